//! Claims and volumes get a finalizer at birth, so that none disappears while a pod uses it.

use async_trait::async_trait;
use kinds::tree;
use machinery::{Object, Status, Value};

use super::{Attributes, Operation, Plugin};

pub const NAME: &str = "StorageObjectInUseProtection";

const FINALIZERS: [(&str, &str); 2] = [
    ("persistentvolumeclaims", "kubernetes.io/pvc-protection"),
    ("persistentvolumes", "kubernetes.io/pv-protection"),
];

pub struct StorageObjectInUseProtection;

fn finalizer(resource: &str) -> Option<&'static str> {
    FINALIZERS
        .iter()
        .find(|(name, _)| *name == resource)
        .map(|(_, finalizer)| *finalizer)
}

#[async_trait]
impl Plugin for StorageObjectInUseProtection {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation == Operation::Create
            && attributes.is_write_of("", attributes.resource)
            && finalizer(attributes.resource).is_some()
    }

    async fn mutate(&self, attributes: &Attributes<'_>, object: &mut Object) -> Result<(), Status> {
        let Some(finalizer) = finalizer(attributes.resource) else {
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
        for (resource, finalizer) in FINALIZERS {
            let case = Case::new(Operation::Create, "", resource);
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
