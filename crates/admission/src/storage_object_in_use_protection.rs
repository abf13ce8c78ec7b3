//! Adds a protection finalizer to new claims, volumes and attributes classes, so that none is
//! removed while in use.

use async_trait::async_trait;
use kinds::tree;
use machinery::{Object, Status, Value};

use super::{Attributes, Operation, Plugin};

pub(crate) const NAME: &str = "StorageObjectInUseProtection";

/// Group, resource, finalizer.
const FINALIZERS: [(&str, &str, &str); 3] = [
    ("", "persistentvolumeclaims", "kubernetes.io/pvc-protection"),
    ("", "persistentvolumes", "kubernetes.io/pv-protection"),
    (
        "storage.k8s.io",
        "volumeattributesclasses",
        "kubernetes.io/vac-protection",
    ),
];

pub(crate) struct StorageObjectInUseProtection;

fn finalizer(attributes: &Attributes<'_>) -> Option<&'static str> {
    FINALIZERS
        .iter()
        .find(|(group, resource, _)| attributes.is_write_of(group, resource))
        .map(|(_, _, finalizer)| *finalizer)
}

#[async_trait]
impl Plugin for StorageObjectInUseProtection {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation == Operation::Create && finalizer(attributes).is_some()
    }

    fn validates(&self) -> bool {
        false
    }

    async fn mutate(&self, attributes: &Attributes<'_>, object: &mut Object) -> Result<(), Status> {
        let Some(finalizer) = finalizer(attributes) else {
            return Ok(());
        };
        let metadata = tree::child_or_new(object, "metadata");
        let slot = metadata.entry("finalizers").or_insert(Value::Null);
        if !tree::list(slot).iter().any(|present| present == finalizer) {
            match slot {
                Value::Array(list) => list.push(finalizer.into()),
                _ => *slot = Value::Array(vec![finalizer.into()]),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;
    use crate::testing::{Case, object};

    #[tokio::test]
    async fn claims_and_volumes_are_protected_once_and_nothing_else_is() {
        for (group, resource, finalizer) in FINALIZERS {
            let case = Case::new(Operation::Create, group, resource);
            let mut created = object(json!({"metadata": {"finalizers": ["mine"]}}));
            assert!(StorageObjectInUseProtection.handles(&case.attributes()));
            for _ in 0..2 {
                let attributes = case.attributes();
                let done = StorageObjectInUseProtection.mutate(&attributes, &mut created);
                done.await.unwrap();
            }
            assert_eq!(
                created["metadata"]["finalizers"],
                json!(["mine", finalizer])
            );
        }
        let pod = Case::new(Operation::Create, "", "pods");
        assert!(!StorageObjectInUseProtection.handles(&pod.attributes()));
    }
}
