//! Writing a trust bundle of a signer requires permission to attest for it.

use async_trait::async_trait;
use kinds::tree;
use machinery::{Object, Status};

use super::{
    Attributes, Operation, Plugin,
    signers::{self, Authorizers},
};

pub(crate) const NAME: &str = "ClusterTrustBundleAttest";

pub(crate) struct ClusterTrustBundleAttest {
    pub(super) authorizers: Authorizers,
}

#[async_trait]
impl Plugin for ClusterTrustBundleAttest {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.is("certificates.k8s.io", "clustertrustbundles")
            && matches!(attributes.operation, Operation::Create | Operation::Update)
    }

    fn mutates(&self) -> bool {
        false
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Object>,
    ) -> Result<(), Status> {
        let Some(object) = object else { return Ok(()) };
        let signer = tree::text(&tree::get(object, "spec")["signerName"]);
        // The garbage collector changes owner references and finalizers only.
        let unchanged = attributes
            .old
            .is_some_and(|old| substance(old) == substance(object));
        if signer.is_empty() || unchanged {
            return Ok(());
        }
        if signers::may(&self.authorizers, attributes.user, "attest", signer).await {
            return Ok(());
        }
        let why = format!("user not permitted to attest for signerName {signer:?}");
        Err(attributes.forbidden(&why))
    }
}

/// The object without the fields that the garbage collector changes.
fn substance(object: &Object) -> Object {
    let mut object = object.clone();
    let metadata = tree::child_or_new(&mut object, "metadata");
    for key in [
        "ownerReferences",
        "finalizers",
        "managedFields",
        "resourceVersion",
    ] {
        metadata.shift_remove(key);
    }
    object
}
