//! Sets the default storage class of a claim that names none, if there is one.

use async_trait::async_trait;
use kinds::tree;
use machinery::{Object, Status};

use super::{Attributes, Operation, Plugin};

pub(crate) const NAME: &str = "DefaultStorageClass";

const GROUP: &str = "storage.k8s.io";
const DEFAULT: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];
const LEGACY: &str = "volume.beta.kubernetes.io/storage-class";

pub(crate) struct DefaultStorageClass;

#[async_trait]
impl Plugin for DefaultStorageClass {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation == Operation::Create
            && attributes.is_write_of("", "persistentvolumeclaims")
    }

    fn validates(&self) -> bool {
        false
    }

    async fn mutate(&self, attributes: &Attributes<'_>, object: &mut Object) -> Result<(), Status> {
        if names_one(object) {
            return Ok(());
        }
        let (_, classes) = attributes.reader.list(GROUP, "storageclasses", "").await?;
        let classes: Vec<Object> = classes.iter().map(|class| class.parse()).collect();
        if let Some(class) = newest_default(&classes) {
            let spec = tree::child_or_new(object, "spec");
            spec.insert("storageClassName".to_owned(), class.into());
        }
        Ok(())
    }
}

/// An empty name counts as set: such a claim wants a volume without a class.
fn names_one(claim: &Object) -> bool {
    tree::is_set(&tree::get(claim, "spec")["storageClassName"])
        || tree::is_set(&tree::get(claim, "metadata")["annotations"][LEGACY])
}

/// Of several defaults the newest counts; of equally old ones, the first by name.
fn newest_default(classes: &[Object]) -> Option<&str> {
    let metadata = |class: &'_ Object| tree::get(class, "metadata").clone();
    let is_default = |class: &&Object| {
        DEFAULT
            .iter()
            .any(|key| tree::get(class, "metadata")["annotations"][key] == "true")
    };
    let mut defaults: Vec<&Object> = classes.iter().filter(is_default).collect();
    defaults.sort_by(|a, b| {
        let created = |class: &Object| tree::text(&metadata(class)["creationTimestamp"]).to_owned();
        created(b)
            .cmp(&created(a))
            .then_with(|| tree::name(a).cmp(tree::name(b)))
    });
    defaults.first().map(|class| tree::name(class))
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;
    use crate::testing::{Case, object};

    fn class(name: &str, created: &str, default: &str) -> machinery::json::Value {
        json!({"metadata": {"name": name, "creationTimestamp": created,
                            "annotations": {(DEFAULT[0]): default}}})
    }

    #[tokio::test]
    async fn the_newest_default_class_is_given_to_claims_without_one() {
        let case = Case::new(Operation::Create, "", "persistentvolumeclaims");
        let mut claim = object(json!({"spec": {}}));
        DefaultStorageClass
            .mutate(&case.attributes(), &mut claim)
            .await
            .unwrap();
        assert_eq!(
            claim["spec"],
            json!({}),
            "without a default class nothing changes"
        );
        for class in [
            class("old", "2026-01-01T00:00:00Z", "true"),
            class("new", "2026-02-01T00:00:00Z", "true"),
            class("newest", "2026-03-01T00:00:00Z", "false"),
        ] {
            case.world.put(GROUP, "storageclasses", class).await;
        }
        DefaultStorageClass
            .mutate(&case.attributes(), &mut claim)
            .await
            .unwrap();
        assert_eq!(claim["spec"]["storageClassName"], "new");
        let mut none = object(json!({"spec": {"storageClassName": ""}}));
        DefaultStorageClass
            .mutate(&case.attributes(), &mut none)
            .await
            .unwrap();
        assert_eq!(none["spec"]["storageClassName"], "");
    }
}
