//! The versions of a resource, for managers that use another version than the written one.

use std::{collections::HashMap, sync::Arc};

use machinery::{
    Object, Status, Value,
    apply::{self, Root},
    decode::Findings,
    json::from_slice,
    normalise,
};
use parking_lot::Mutex;

use crate::{Resource, Table};

/// A resource and all others that serve the same objects.
pub struct Versions {
    own: Arc<Resource>,
    table: Arc<Table>,
    /// Guards webhook conversions: objects with the wanted version, and their results. `None` is
    /// pending.
    converted: Mutex<HashMap<(String, String), Option<Object>>>,
}

impl Versions {
    pub fn new(own: &Arc<Resource>, table: Arc<Table>) -> Self {
        Self {
            own: own.clone(),
            table,
            converted: Mutex::default(),
        }
    }

    /// The resource that serves the objects in a version.
    pub fn find(&self, api_version: &str) -> Option<&Resource> {
        if api_version == self.own.api_version {
            return Some(&self.own);
        }
        let mut same = self.table.same_objects(&self.own);
        same.find(|known| known.api_version == api_version)
    }
}

impl Versions {
    /// Converts an object, also by webhook.
    pub async fn converted(&self, object: Object, api_version: &str) -> Result<Object, Status> {
        if self.asks()
            && let Some(to) = self.find(api_version)
        {
            let mut made = to.convert(vec![object]).await?;
            return made
                .pop()
                .ok_or_else(|| Status::internal("an object is lost"));
        }
        Ok(self.convert_here(object, api_version))
    }

    /// Whether a webhook converts.
    pub fn asks(&self) -> bool {
        let definition = self.own.definition.as_ref();
        definition.is_some_and(|kind| kind.conversion.is_some())
    }

    /// Performs pending conversions. Returns whether there were any: then the caller must compute
    /// its result again.
    pub async fn convert_pending(&self) -> Result<bool, Status> {
        let waiting: Vec<(String, String)> = {
            let known = self.converted.lock();
            let waiting = known.iter().filter(|(_, made)| made.is_none());
            waiting.map(|(asked, _)| asked.clone()).collect()
        };
        let asked = !waiting.is_empty();
        for (json, version) in waiting {
            let object = from_slice(json.as_bytes()).map_err(Status::internal)?;
            let made = self.converted(object, &version).await?;
            self.converted.lock().insert((json, version), Some(made));
        }
        Ok(asked)
    }

    /// The result of a webhook's conversion; the unchanged object until it was called.
    fn convert_by_webhook(&self, object: Object, api_version: &str) -> Object {
        let is_own = object.get("apiVersion").and_then(Value::as_str) == Some(api_version);
        if is_own || self.find(api_version).is_none() {
            return object;
        }
        let json = Value::Object(object.clone()).to_string();
        let mut known = self.converted.lock();
        let made = known.entry((json, api_version.to_owned())).or_default();
        made.clone().unwrap_or(object)
    }
}

impl apply::Versions for Versions {
    fn root(&self, api_version: &str) -> Option<Root<'_>> {
        self.find(api_version).map(Resource::root)
    }

    fn convert(&self, object: Object, api_version: &str) -> Object {
        match self.asks() {
            true => self.convert_by_webhook(object, api_version),
            false => self.convert_here(object, api_version),
        }
    }
}

impl Versions {
    fn convert_here(&self, object: Object, api_version: &str) -> Object {
        let from = object.get("apiVersion").and_then(Value::as_str);
        let from = from.and_then(|from| self.find(from));
        let (Some(from), Some(to)) = (from, self.find(api_version)) else {
            return object;
        };
        let stored = match &from.storage {
            Some(_) => from.kind.to_stored(object),
            None => object,
        };
        let converted = match &to.storage {
            Some(_) => to.kind.from_stored(stored),
            None => stored,
        };
        // Adds the fields that the other version always serializes.
        let Some(schema) = to.schema else {
            return converted;
        };
        let tree = Value::Object(converted.clone());
        let mut findings = Findings::default();
        normalise::converted(schema, tree, &mut findings).unwrap_or(converted)
    }
}
