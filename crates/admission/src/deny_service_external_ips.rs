//! Rejects new external IPs of services, which could intercept other traffic. Upstream has this as
//! an option; here it is on by default.

use async_trait::async_trait;
use kinds::tree;
use machinery::{Object, Status};

use super::{Attributes, Plugin};

pub(crate) const NAME: &str = "DenyServiceExternalIPs";

pub(crate) struct DenyServiceExternalIPs;

#[async_trait]
impl Plugin for DenyServiceExternalIPs {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.is_write_of("", "services")
    }

    fn mutates(&self) -> bool {
        false
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Object>,
    ) -> Result<(), Status> {
        let of = |object: &Object| tree::list(&tree::get(object, "spec")["externalIPs"]).to_vec();
        let before = attributes.old.map(of).unwrap_or_default();
        let mut after = object.map(of).unwrap_or_default().into_iter();
        if after.all(|address| before.contains(&address)) {
            return Ok(());
        }
        Err(attributes.forbidden("Use of external IPs is denied by admission control"))
    }
}
