//! The status of a definition: accepted names, conditions, stored versions.

use apiextensions::{
    conditions::{self, condition, set_condition},
    names::Conflict,
};
use machinery::{Object, Status, Value, json::json};

use super::{DefinitionContext, GROUP, PLURAL};
use crate::{
    meta,
    write::{self, Write},
};

/// The names that a definition was granted.
pub(super) struct Names {
    pub(super) name: String,
    pub(super) accepted: Value,
    pub(super) conflict: Option<Conflict>,
}

impl Names {
    /// Whether the definition's status already states them.
    pub(super) fn are_in(&self, definition: &Value, now: &str) -> bool {
        let said = definition
            .as_object()
            .map(|definition| self.with_names(definition, now));
        said.is_some_and(|said| said["status"] == definition["status"])
    }

    /// Writes accepted names and conditions.
    pub(super) async fn write(&self, context: &DefinitionContext) -> Result<(), Status> {
        let Some(write) = status_write(context, &self.name) else {
            return Ok(());
        };
        let now = meta::time(context.writes.clock.now());
        let change = |old: &Object| match self.with_names(old, &now) {
            Value::Object(object) => Ok(object),
            _ => Err(Status::internal("an object stays one")),
        };
        write::update(&write, &change).await.map(|_| ())
    }

    /// The definition with its names and conditions.
    fn with_names(&self, old: &Object, now: &str) -> Value {
        let mut object = Value::Object(old.clone());
        object["status"]["acceptedNames"] = self.accepted.clone();
        let status = &mut object["status"];
        match &self.conflict {
            None => {
                let names = condition("NamesAccepted", true, "NoConflicts", "no conflicts found");
                let message = "the initial names have been accepted";
                let established = condition("Established", true, "InitialNamesAccepted", message);
                set_condition(status, names, now);
                set_condition(status, established, now);
            }
            Some(Conflict { reason, message }) => {
                let names = condition("NamesAccepted", false, reason, message);
                set_condition(status, names, now);
                // An established definition stays established under its previous names.
                let conditions = status["conditions"].as_array().into_iter().flatten();
                let mut conditions = conditions.into_iter();
                let is_known = conditions.any(|old| old["type"] == "Established");
                let plural = self.accepted["plural"].as_str().unwrap_or_default();
                if !is_known || plural.is_empty() {
                    let message = "not all names are accepted";
                    let established = condition("Established", false, "NotAccepted", message);
                    set_condition(status, established, now);
                }
            }
        }
        if let Some(approval) = conditions::approval(old) {
            set_condition(&mut object["status"], approval, now);
        }
        add_stored_version(&mut object);
        object
    }
}

fn add_stored_version(object: &mut Value) {
    let versions = object["spec"]["versions"].as_array().into_iter().flatten();
    let mut stored = versions.filter(|version| version["storage"] == true);
    let Some(stored) = stored.next().map(|version| version["name"].clone()) else {
        return;
    };
    let known = &mut object["status"]["storedVersions"];
    if !known.is_array() {
        *known = json!([]);
    }
    if let Some(known) = known
        .as_array_mut()
        .filter(|known| !known.contains(&stored))
    {
        known.push(stored);
    }
}

/// A write of a definition's status; `None` if CustomResourceDefinitions are not served.
pub(super) fn status_write(context: &DefinitionContext, name: &str) -> Option<Write> {
    let resource = context.writes.registry.get(GROUP, "v1", PLURAL)?;
    Some(super::own_write(context, resource, "", name))
}
