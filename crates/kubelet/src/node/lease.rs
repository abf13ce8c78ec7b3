//! The node's heartbeat Lease. The Node object owns it: without a Node there is no Lease, and after
//! a new registration the new Node owns it. Otherwise the garbage collector would delete it.

use std::time::Duration;

use client::Api;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference},
};
use kube::api::PostParams;
use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::{Result, core::Core};

const NAMESPACE: &str = "kube-node-lease";
/// The delay after a failed renewal: short, so that the node counts as healthy soon after an outage.
const RETRY: Duration = Duration::from_secs(1);
/// Renewals per lease duration.
const RENEWALS: u32 = 4;

/// Renews the Lease. Never returns. `node_uid` is the uid of the Node object, if it exists.
pub(crate) async fn run(core: &Core, mut node_uid: watch::Receiver<Option<String>>) {
    let mut known: Option<Lease> = None;
    let mut is_failing = false;
    loop {
        let uid = match node_uid.wait_for(Option::is_some).await {
            Ok(uid) => uid.clone().unwrap_or_default(),
            Err(_) => return,
        };
        let wait = match renew(core, &uid, known.take()).await {
            Ok(lease) => {
                debug!("lease renewed");
                if is_failing {
                    info!("lease renewed again");
                }
                is_failing = false;
                known = Some(lease);
                let seconds = core.settings().node_lease_duration_seconds;
                Duration::from_secs(u64::try_from(seconds).unwrap_or(1)) / RENEWALS
            }
            Err(error) => {
                // Once, since the servers may be away for hours.
                match is_failing {
                    false => warn!(%error, "cannot renew lease, trying every second"),
                    true => debug!(%error, "cannot renew lease"),
                }
                is_failing = true;
                RETRY
            }
        };
        tokio::select! {
            () = core.config.clock.sleep(wait) => {}
            changed = node_uid.changed() => if changed.is_err() {
                return;
            },
        }
    }
}

async fn renew(core: &Core, node_uid: &str, known: Option<Lease>) -> Result<Lease> {
    let config = &core.config;
    let api: Api<Lease> = Api::namespaced(config.client.clone(), NAMESPACE);
    let known = match known {
        Some(lease) => Some(lease),
        None => api.get_opt(&config.node_name).await?,
    };
    let params = PostParams::default();
    Ok(match known {
        Some(mut lease) => {
            stamp(&mut lease, core, node_uid);
            api.replace(&config.node_name, &params, &lease).await?
        }
        None => {
            let mut lease = Lease::default();
            stamp(&mut lease, core, node_uid);
            api.create(&params, &lease).await?
        }
    })
}

fn stamp(lease: &mut Lease, core: &Core, node_uid: &str) {
    let config = &core.config;
    lease.metadata.name = Some(config.node_name.clone());
    lease.metadata.namespace = Some(NAMESPACE.into());
    let owners = lease.metadata.owner_references.get_or_insert_default();
    set_owner(owners, &config.node_name, node_uid);
    let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
    spec.holder_identity = Some(config.node_name.clone());
    spec.lease_duration_seconds = Some(core.settings().node_lease_duration_seconds);
    spec.renew_time = Some(MicroTime(config.clock.now()));
}

/// Makes the Node of this uid the only owner of kind Node; owners of other kinds stay.
fn set_owner(owners: &mut Vec<OwnerReference>, node_name: &str, node_uid: &str) {
    let is_node = |owner: &OwnerReference| owner.kind == "Node" && owner.api_version == "v1";
    if owners.iter().any(|o| is_node(o) && o.uid == node_uid) {
        return;
    }
    owners.retain(|owner| !is_node(owner));
    owners.push(OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: node_name.to_owned(),
        uid: node_uid.to_owned(),
        ..Default::default()
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_was_registered_again_owns_its_lease() {
        let mut owners = Vec::new();
        set_owner(&mut owners, "n", "old");
        set_owner(&mut owners, "n", "old");
        assert_eq!(owners.len(), 1);
        owners.push(OwnerReference {
            kind: "Other".into(),
            uid: "x".into(),
            ..Default::default()
        });
        set_owner(&mut owners, "n", "new");
        let uids: Vec<_> = owners.iter().map(|owner| owner.uid.as_str()).collect();
        assert_eq!(uids, ["x", "new"]);
    }
}
