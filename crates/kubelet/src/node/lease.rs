//! The node's sign of life.

use std::time::Duration;

use k8s_openapi::{
    api::{
        coordination::v1::{Lease, LeaseSpec},
        core::v1::Node,
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference},
};
use kube::{Api, api::PostParams};
use tracing::{debug, warn};

use crate::{Config, Result};

const NAMESPACE: &str = "kube-node-lease";
const DURATION: i32 = 40;

/// Renews the Lease for ever.
pub async fn run(config: &Config, node: &Node) {
    let mut known: Option<Lease> = None;
    loop {
        match renew(config, node, known.take()).await {
            Ok(lease) => {
                debug!("lease renewed");
                known = Some(lease);
                config.clock.sleep(config.lease_interval).await;
            }
            Err(error) => {
                warn!(%error, "cannot renew lease");
                config.clock.sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

async fn renew(config: &Config, node: &Node, known: Option<Lease>) -> Result<Lease> {
    let api: Api<Lease> = Api::namespaced(config.client.clone(), NAMESPACE);
    let known = match known {
        Some(lease) => Some(lease),
        None => api.get_opt(&config.node_name).await?,
    };
    let params = PostParams::default();
    Ok(match known {
        Some(mut lease) => {
            stamp(&mut lease, config, node);
            api.replace(&config.node_name, &params, &lease).await?
        }
        None => {
            let mut lease = Lease::default();
            stamp(&mut lease, config, node);
            api.create(&params, &lease).await?
        }
    })
}

fn stamp(lease: &mut Lease, config: &Config, node: &Node) {
    lease.metadata.name = Some(config.node_name.clone());
    lease.metadata.namespace = Some(NAMESPACE.into());
    if lease
        .metadata
        .owner_references
        .as_ref()
        .is_none_or(Vec::is_empty)
        && let Some(uid) = node.metadata.uid.clone()
    {
        lease.metadata.owner_references = Some(vec![OwnerReference {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: config.node_name.clone(),
            uid,
            ..Default::default()
        }]);
    }
    let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
    spec.holder_identity = Some(config.node_name.clone());
    spec.lease_duration_seconds = Some(DURATION);
    spec.renew_time = Some(MicroTime(config.clock.now()));
}
