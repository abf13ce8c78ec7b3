//! Sets a pod's priority from its priority class; at most one class is the default.

use async_trait::async_trait;
use kinds::tree;
use machinery::{Object, Status};

use super::{Attributes, Operation, Plugin};
use crate::Reader;

pub(crate) const NAME: &str = "Priority";

const GROUP: &str = "scheduling.k8s.io";
const CLASSES: &str = "priorityclasses";
const PREEMPT: &str = "PreemptLowerPriority";
/// Classes that exist even before their objects do.
const SYSTEM: [(&str, i64); 2] = [
    ("system-node-critical", 2_000_001_000),
    ("system-cluster-critical", 2_000_000_000),
];

pub(crate) struct Priority;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Class {
    name: String,
    value: i64,
    preemption: String,
}

impl Class {
    fn from_object(object: &Object) -> Self {
        let preemption = tree::text(tree::get(object, "preemptionPolicy"));
        Self {
            name: tree::name(object).to_owned(),
            value: tree::int(tree::get(object, "value")),
            preemption: if preemption.is_empty() {
                PREEMPT
            } else {
                preemption
            }
            .to_owned(),
        }
    }
}

#[async_trait]
impl Plugin for Priority {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.is_write_of("", "pods") || attributes.is_write_of(GROUP, CLASSES)
    }

    async fn mutate(&self, attributes: &Attributes<'_>, object: &mut Object) -> Result<(), Status> {
        if attributes.resource != "pods" {
            return Ok(());
        }
        if attributes.operation == Operation::Update {
            keep(object, attributes.old);
            return Ok(());
        }
        let spec = tree::child_or_new(object, "spec");
        let wanted = tree::text(tree::get(spec, "priorityClassName")).to_owned();
        let class = match wanted.as_str() {
            "" => default_class(attributes.reader).await?,
            name => match named(attributes.reader, name).await? {
                Some(class) => Some(class),
                None => {
                    let why = format!("no PriorityClass with name {name} was found");
                    return Err(attributes.forbidden(&why));
                }
            },
        };
        decide(spec, class).map_err(|why| attributes.forbidden(&why))
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Object>,
    ) -> Result<(), Status> {
        let Some(class) = object.filter(|_| attributes.resource == CLASSES) else {
            return Ok(());
        };
        if !tree::truth(tree::get(class, "globalDefault")) {
            return Ok(());
        }
        match default_class(attributes.reader).await? {
            Some(other) if other.name != tree::name(class) => {
                let why = format!(
                    "PriorityClass {} is already marked as default. Only one default can exist",
                    other.name
                );
                Err(attributes.forbidden(&why))
            }
            _ => Ok(()),
        }
    }
}

async fn named(reader: &Reader, name: &str) -> Result<Option<Class>, Status> {
    if let Some(found) = reader.get(GROUP, CLASSES, "", name).await? {
        return Ok(Some(Class::from_object(found.parsed())));
    }
    let system = SYSTEM.iter().find(|(system, _)| *system == name);
    Ok(system.map(|(name, value)| Class {
        name: (*name).to_owned(),
        value: *value,
        preemption: PREEMPT.to_owned(),
    }))
}

/// The default class; if concurrent writes created several, the one with the lowest value.
async fn default_class(reader: &Reader) -> Result<Option<Class>, Status> {
    let (_, classes) = reader.list(GROUP, CLASSES, "").await?;
    let classes = classes.iter().map(|class| class.parsed());
    let defaults = classes.filter(|class| tree::truth(tree::get(class, "globalDefault")));
    Ok(defaults
        .map(Class::from_object)
        .min_by_key(|class| class.value))
}

/// Sets a new pod's priority, or returns why it is invalid.
fn decide(spec: &mut Object, class: Option<Class>) -> Result<(), String> {
    let unnamed = Class {
        name: String::new(),
        value: 0,
        preemption: PREEMPT.to_owned(),
    };
    let class = class.unwrap_or(unnamed);
    let asked = tree::get(spec, "priority").as_i64();
    if let Some(asked) = asked.filter(|asked| *asked != class.value) {
        return Err(format!(
            "the integer value of priority ({asked}) must not be provided in pod spec; priority \
             admission controller computed {} from the given PriorityClass name",
            class.value
        ));
    }
    let policy = tree::get(spec, "preemptionPolicy").as_str();
    if let Some(policy) = policy.filter(|policy| *policy != class.preemption) {
        return Err(format!(
            "the string value of PreemptionPolicy ({policy}) must not be provided in pod spec; \
             priority admission controller computed {} from the given PriorityClass name",
            class.preemption
        ));
    }
    if !class.name.is_empty() {
        spec.insert("priorityClassName".to_owned(), class.name.into());
    }
    spec.insert("priority".to_owned(), class.value.into());
    spec.insert("preemptionPolicy".to_owned(), class.preemption.into());
    Ok(())
}

/// An update that omits the priority keeps it.
fn keep(pod: &mut Object, old: Option<&Object>) {
    let Some(old) = old.and_then(|old| tree::get(old, "spec").as_object()) else {
        return;
    };
    let spec = tree::child_or_new(pod, "spec");
    for field in ["priority", "preemptionPolicy"] {
        if !tree::is_set(tree::get(spec, field)) {
            tree::keep(spec, old, field);
        }
    }
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;
    use crate::testing::object;

    fn class(value: i64) -> Option<Class> {
        Some(Class {
            name: "high".to_owned(),
            value,
            preemption: "Never".to_owned(),
        })
    }

    #[test]
    fn the_class_decides_the_number() {
        let mut spec = object(json!({"priorityClassName": "high"}));
        decide(&mut spec, class(1000)).unwrap();
        assert_eq!(spec["priority"], 1000);
        assert_eq!(spec["preemptionPolicy"], "Never");
        let mut none = object(json!({}));
        decide(&mut none, None).unwrap();
        assert_eq!(none["priority"], 0);
        assert!(none.get("priorityClassName").is_none());
    }

    #[test]
    fn a_number_of_ones_own_is_refused() {
        let mut spec = object(json!({"priority": 5}));
        assert!(
            decide(&mut spec, None)
                .unwrap_err()
                .contains("priority (5) must not be provided")
        );
        let mut same = object(json!({"priority": 1000, "preemptionPolicy": "Never"}));
        decide(&mut same, class(1000)).unwrap();
        let mut policy = object(json!({"preemptionPolicy": "Never"}));
        assert!(
            decide(&mut policy, None)
                .unwrap_err()
                .contains("PreemptionPolicy (Never)")
        );
    }

    #[test]
    fn an_update_without_numbers_keeps_them() {
        let old = object(json!({"spec": {"priority": 7, "preemptionPolicy": "Never"}}));
        let mut pod = object(json!({"spec": {}}));
        keep(&mut pod, Some(&old));
        assert_eq!(pod["spec"], old["spec"]);
    }
}
