//! Rejects creates in namespaces that do not exist or are terminating, and deletes of the cluster's
//! own namespaces.

use async_trait::async_trait;
use kinds::tree;
use machinery::{Object, Status, status::Cause};

use super::{Attributes, Operation, Plugin};
use crate::Stored;

pub(crate) const NAME: &str = "NamespaceLifecycle";

const IMMORTAL: &[&str] = &["default", "kube-system", "kube-public"];

pub(crate) struct NamespaceLifecycle;

#[async_trait]
impl Plugin for NamespaceLifecycle {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        // Access reviews do not require the namespace to exist.
        attributes.resource != "localsubjectaccessreviews"
            && (!attributes.namespace.is_empty() || attributes.is("", "namespaces"))
    }

    async fn mutate(
        &self,
        attributes: &Attributes<'_>,
        _object: &mut Object,
    ) -> Result<(), Status> {
        if attributes.is("", "namespaces") {
            return Ok(());
        }
        let (namespace, reader) = (attributes.namespace, attributes.reader);
        let found = reader.get("", "namespaces", "", namespace).await?;
        admit(attributes, found.as_deref().map(Stored::parsed))
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        _object: Option<&Object>,
    ) -> Result<(), Status> {
        let immortal = attributes.operation == Operation::Delete
            && attributes.is("", "namespaces")
            && attributes.subresource.is_empty()
            && IMMORTAL.contains(&attributes.name);
        if immortal {
            return Err(attributes.forbidden("this namespace may not be deleted"));
        }
        Ok(())
    }
}

fn admit(attributes: &Attributes<'_>, namespace: Option<&Object>) -> Result<(), Status> {
    let name = attributes.namespace;
    let Some(namespace) = namespace else {
        return Err(Status::not_found("", "namespaces", name));
    };
    let ending = tree::is_set(&tree::get(namespace, "metadata")["deletionTimestamp"])
        || tree::get(namespace, "status")["phase"] == "Terminating";
    if attributes.operation != Operation::Create || !ending {
        return Ok(());
    }
    let why =
        format!("unable to create new content in namespace {name} because it is being terminated");
    let mut status = attributes.forbidden(&why);
    status.details.get_or_insert_default().causes.push(Cause {
        reason: "NamespaceTerminating".to_owned(),
        message: format!("namespace {name} is being terminated"),
        field: "metadata.namespace".to_owned(),
    });
    Err(status)
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;
    use crate::testing::{Case, object};

    #[test]
    fn a_missing_namespace_is_not_found_and_a_leaving_one_takes_nothing_new() {
        let case = Case::new(Operation::Create, "", "pods").named("there", "web");
        let missing = admit(&case.attributes(), None).unwrap_err();
        assert_eq!(missing.message, r#"namespaces "there" not found"#);
        let here = object(json!({"metadata": {"name": "there"}, "status": {"phase": "Active"}}));
        admit(&case.attributes(), Some(&here)).unwrap();
        let leaving = object(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
        let refused = admit(&case.attributes(), Some(&leaving)).unwrap_err();
        assert_eq!(
            refused.message,
            "pods \"web\" is forbidden: unable to create new content in namespace there because \
             it is being terminated"
        );
        assert_eq!(
            refused.details.unwrap().causes[0].reason,
            "NamespaceTerminating"
        );
        let update = Case::new(Operation::Update, "", "pods").named("there", "web");
        admit(&update.attributes(), Some(&leaving)).unwrap();
    }

    #[tokio::test]
    async fn the_clusters_own_namespaces_stay() {
        for (name, stays) in [("kube-system", true), ("default", true), ("mine", false)] {
            let case = Case::new(Operation::Delete, "", "namespaces").named(name, name);
            let refused = NamespaceLifecycle.validate(&case.attributes(), None).await;
            assert_eq!(refused.is_err(), stays, "{name}");
        }
    }
}
