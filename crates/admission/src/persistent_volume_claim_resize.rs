//! A bound claim may grow only if its storage class allows expansion.

use async_trait::async_trait;
use kinds::tree;
use machinery::{Object, Status, quantity::Quantity};

use super::{Attributes, Operation, Plugin};

pub(crate) const NAME: &str = "PersistentVolumeClaimResize";

pub(crate) struct PersistentVolumeClaimResize;

#[async_trait]
impl Plugin for PersistentVolumeClaimResize {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation == Operation::Update
            && attributes.is_write_of("", "persistentvolumeclaims")
    }

    fn mutates(&self) -> bool {
        false
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Object>,
    ) -> Result<(), Status> {
        let (Some(claim), Some(old)) = (object, attributes.old) else {
            return Ok(());
        };
        if !grows(claim, old) {
            return Ok(());
        }
        if tree::get(old, "status")["phase"] != "Bound" {
            return Err(attributes.forbidden("Only bound persistent volume claims can be expanded"));
        }
        let name = tree::text(&tree::get(old, "spec")["storageClassName"]);
        let class = attributes
            .reader
            .get("storage.k8s.io", "storageclasses", "", name)
            .await?;
        let allowed = class
            .is_some_and(|class| tree::truth(tree::get(&class.parse(), "allowVolumeExpansion")));
        if allowed {
            return Ok(());
        }
        let why = "only dynamically provisioned pvc can be resized and the storageclass that \
                   provisions the pvc must support resize";
        Err(attributes.forbidden(why))
    }
}

fn grows(claim: &Object, old: &Object) -> bool {
    let size = |claim: &Object| {
        let text = tree::text(&tree::get(claim, "spec")["resources"]["requests"]["storage"]);
        text.parse::<Quantity>().ok()
    };
    match (size(claim), size(old)) {
        (Some(new), Some(old)) => new > old,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;
    use crate::testing::{Case, object};

    fn claim(size: &str, class: &str) -> Object {
        object(json!({"spec": {"storageClassName": class,
                               "resources": {"requests": {"storage": size}}},
                      "status": {"phase": "Bound"}}))
    }

    #[tokio::test]
    async fn claims_grow_only_where_their_class_lets_them() {
        let mut case = Case::new(Operation::Update, "", "persistentvolumeclaims");
        let class = json!({"metadata": {"name": "grows"}, "allowVolumeExpansion": true});
        case.world
            .put("storage.k8s.io", "storageclasses", class)
            .await;
        for (class, size, allowed) in [
            ("grows", "2Gi", true),
            ("fixed", "2Gi", false),
            ("fixed", "1024Mi", true),
        ] {
            case.old = Some(claim("1Gi", class));
            let new = claim(size, class);
            let checked = PersistentVolumeClaimResize
                .validate(&case.attributes(), Some(&new))
                .await;
            assert_eq!(checked.is_ok(), allowed, "{class} {size}");
        }
    }
}
