//! Assigns each node a subnet of the cluster CIDR, once and for its lifetime.

use std::{
    collections::HashSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use client::Api;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use reconcile::{Action, Controller, Error, Key, Kind, Recorder};
use serde_json::json;

use crate::shared::Shared;

/// The name in [`crate::ALL`].
pub const NAME: &str = "node-ipam";
const ACCOUNT: &str = "node-controller";

struct Allocator {
    client: kube::Client,
    nodes: client::Informer<Node>,
    recorder: Recorder,
    /// One per IP family of the cluster.
    ranges: Vec<Range>,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let config = &shared.config;
    let cidrs = config.cluster_cidr.split(',').zip(&config.node_cidr_masks);
    let ranges: Option<Vec<Range>> = cidrs
        .map(|(cidr, mask)| Range::parse(cidr, *mask))
        .collect();
    let Some(ranges) = ranges else {
        tracing::error!(
            cidr = shared.config.cluster_cidr,
            "cluster CIDR cannot be divided among nodes"
        );
        return;
    };
    let controller = Arc::new(Allocator {
        client: shared.client(ACCOUNT),
        nodes: shared.informer(),
        recorder: shared.recorder(ACCOUNT, "cidrAllocator"),
        ranges,
    });
    // One worker, so that two nodes never get the same subnet.
    shared
        .controller(&controller)
        .watches_with(&controller.nodes, |event| match event {
            client::Event::Deleted(_) => Vec::new(),
            event => vec![Key::of(&**event.object())],
        })
        .start();
}

impl Controller for Allocator {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(node) = self.nodes.get("", &key.name) else {
            return Ok(Action::Done);
        };
        if !cidrs(&node).is_empty() || node.metadata.deletion_timestamp.is_some() {
            return Ok(Action::Done);
        }
        let taken: HashSet<String> = self
            .nodes
            .list()
            .iter()
            .flat_map(|node| cidrs(node))
            .collect();
        let free = self.ranges.iter().map(|range| range.first_free(&taken));
        let Some(cidrs) = free.collect::<Option<Vec<String>>>() else {
            let about = kube::Resource::object_ref(&*node, &());
            let text = format!("Node {} status is now: CIDRNotAvailable", key.name);
            self.recorder
                .event(&about, Kind::Normal, "CIDRNotAvailable", text);
            return Err(Error::Invalid(
                "no part of the pod addresses is free".into(),
            ));
        };
        let api: Api<Node> = Api::all(self.client.clone());
        let patch = json!({"spec": {"podCIDR": cidrs.first(), "podCIDRs": cidrs}});
        let patched = api
            .patch(&key.name, &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
        let version = patched.metadata.resource_version.unwrap_or_default();
        self.nodes.reached(&version).await;
        Ok(Action::Done)
    }
}

fn cidrs(node: &Node) -> Vec<String> {
    let Some(spec) = &node.spec else {
        return Vec::new();
    };
    let mut all = spec.pod_cidrs.clone().unwrap_or_default();
    all.extend(spec.pod_cidr.clone());
    all.retain(|cidr| !cidr.is_empty());
    all.sort();
    all.dedup();
    all
}

/// The cluster CIDR and the size of a node's subnet.
#[derive(Debug, Clone, Copy)]
struct Range {
    base: u128,
    bits: u32,
    prefix: u32,
    part: u32,
}

impl Range {
    fn parse(cidr: &str, part: u8) -> Option<Self> {
        let (address, prefix) = cidr.split_once('/')?;
        let (address, prefix) = (address.parse::<IpAddr>().ok()?, prefix.parse::<u32>().ok()?);
        let (base, bits) = match address {
            IpAddr::V4(address) => (u128::from(u32::from(address)), 32),
            IpAddr::V6(address) => (u128::from(address), 128),
        };
        // A node's IPv6 subnet is a /64 unless a prefix longer than /32 is configured.
        let part = if bits == 128 && part <= 32 {
            64
        } else {
            u32::from(part)
        };
        let fits = prefix <= part && part <= bits && part - prefix <= 16;
        fits.then_some(Self {
            base,
            bits,
            prefix,
            part,
        })
    }

    fn first_free(&self, taken: &HashSet<String>) -> Option<String> {
        let parts = 1_u128 << (self.part - self.prefix);
        (0..parts)
            .map(|number| self.nth(number))
            .find(|cidr| !taken.contains(cidr))
    }

    fn nth(&self, number: u128) -> String {
        let address = self.base + (number << (self.bits - self.part));
        let address = if self.bits == 32 {
            // The base is an IPv4 address and subnets are within its range.
            IpAddr::V4(Ipv4Addr::from(u32::try_from(address).unwrap_or(u32::MAX)))
        } else {
            IpAddr::V6(Ipv6Addr::from(address))
        };
        format!("{address}/{}", self.part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_cidrs_are_allocated_in_order_and_gaps_are_reused() {
        let range = Range::parse("10.42.0.0/16", 24).unwrap();
        let taken = |cidrs: &[&str]| cidrs.iter().map(|cidr| (*cidr).to_owned()).collect();
        assert_eq!(range.first_free(&taken(&[])).unwrap(), "10.42.0.0/24");
        let used = taken(&["10.42.0.0/24", "10.42.2.0/24"]);
        assert_eq!(range.first_free(&used).unwrap(), "10.42.1.0/24");
        let tiny = Range::parse("10.0.0.0/24", 24).unwrap();
        assert_eq!(tiny.first_free(&taken(&["10.0.0.0/24"])), None);
        assert_eq!(
            Range::parse("fd00:42::/56", 24).unwrap().nth(3),
            "fd00:42:0:3::/64"
        );
        assert!(Range::parse("10.0.0.0/25", 24).is_none());
    }
}
