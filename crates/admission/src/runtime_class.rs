//! Sets the overhead and node selection of a pod's runtime class.

use async_trait::async_trait;
use kinds::tree;
use machinery::{Object, Status, Value};

use super::{Attributes, Operation, Plugin};

pub(crate) const NAME: &str = "RuntimeClass";

pub(crate) struct RuntimeClass;

#[async_trait]
impl Plugin for RuntimeClass {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation == Operation::Create && attributes.is_write_of("", "pods")
    }

    async fn mutate(&self, attributes: &Attributes<'_>, object: &mut Object) -> Result<(), Status> {
        let spec = tree::child_or_new(object, "spec");
        let Value::String(name) = tree::get(spec, "runtimeClassName") else {
            return Ok(());
        };
        let name = name.to_string();
        refuse_unaskable(&name)?;
        let class = attributes
            .reader
            .get("node.k8s.io", "runtimeclasses", "", &name)
            .await?;
        let Some(class) = class else {
            let why = format!("pod rejected: RuntimeClass {name:?} not found");
            return Err(attributes.forbidden(&why));
        };
        apply(spec, &class.parse()).map_err(|why| attributes.forbidden(&why))
    }

    /// Only a class may set overhead. The pod has passed validation before.
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Object>,
    ) -> Result<(), Status> {
        let spec = object.map_or(&Value::Null, |object| tree::get(object, "spec"));
        if !tree::is_set(&spec["overhead"]) {
            return Ok(());
        }
        let name = tree::text(&spec["runtimeClassName"]);
        let class = match name {
            "" => None,
            name => {
                let reader = attributes.reader;
                reader
                    .get("node.k8s.io", "runtimeclasses", "", name)
                    .await?
            }
        };
        if class.is_some_and(|class| tree::is_set(tree::get(&class.parse(), "overhead"))) {
            return Ok(());
        }
        let why = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined \
                   Overhead";
        Err(attributes.forbidden(why))
    }
}

/// Rejects names that cannot be in a path.
fn refuse_unaskable(name: &str) -> Result<(), Status> {
    if name.is_empty() {
        return Err(Status::unknown("resource name may not be empty"));
    }
    let complaints = kinds::metadata::path_segment(name, false);
    if complaints.is_empty() {
        return Ok(());
    }
    Err(Status::unknown(format!(
        "invalid resource name {}: [{}]",
        machinery::text::quote(name),
        complaints.join(" ")
    )))
}

fn apply(spec: &mut Object, class: &Object) -> Result<(), String> {
    let overhead = &tree::get(class, "overhead")["podFixed"];
    let own = tree::get(spec, "overhead");
    if !tree::is_empty(own) && !tree::same(own, overhead) {
        return Err(
            "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead".to_owned(),
        );
    }
    if !tree::is_empty(overhead) {
        spec.insert("overhead".to_owned(), overhead.clone());
    }
    let scheduling = tree::get(class, "scheduling");
    for (key, value) in tree::entries(&scheduling["nodeSelector"]) {
        let selector = tree::child_or_new(spec, "nodeSelector");
        match selector.get(key) {
            Some(other) if other != value => {
                return Err(format!(
                    "conflict: cannot merge runtimeClass.Scheduling.nodeSelector with {key} of the \
                     pod"
                ));
            }
            _ => drop(selector.insert(key.clone(), value.clone())),
        }
    }
    for toleration in tree::list(&scheduling["tolerations"]) {
        let slot = spec.entry("tolerations").or_insert(Value::Null);
        if !tree::list(slot).contains(toleration) {
            match slot {
                Value::Array(list) => list.push(toleration.clone()),
                _ => *slot = Value::Array(vec![toleration.clone()]),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;
    use crate::testing::object;

    #[test]
    fn overhead_selector_and_tolerations_come_from_the_class() {
        let class = object(json!({
            "overhead": {"podFixed": {"cpu": "10m"}},
            "scheduling": {"nodeSelector": {"kind": "vm"}, "tolerations": [{"key": "vm"}]},
        }));
        let mut spec = object(json!({"nodeSelector": {"zone": "a"}}));
        for _ in 0..2 {
            apply(&mut spec, &class).unwrap();
        }
        assert_eq!(spec["overhead"], json!({"cpu": "10m"}));
        assert_eq!(spec["nodeSelector"], json!({"zone": "a", "kind": "vm"}));
        assert_eq!(spec["tolerations"], json!([{"key": "vm"}]));
        apply(&mut object(json!({"overhead": {"cpu": "1"}})), &class).unwrap_err();
        apply(
            &mut object(json!({"nodeSelector": {"kind": "other"}})),
            &class,
        )
        .unwrap_err();
    }

    #[test]
    fn invalid_runtime_class_names_are_not_looked_up() {
        let reported =
            |name: &str| refuse_unaskable(name).map_err(|status| (status.code, status.message));
        assert_eq!(reported("gvisor"), Ok(()));
        let empty = "resource name may not be empty".to_owned();
        assert_eq!(reported(""), Err((500, empty)));
        let slash = "invalid resource name \"a/b\": [may not contain '/']".to_owned();
        assert_eq!(reported("a/b"), Err((500, slash)));
    }
}
