//! Assigns each node a subnet of the cluster CIDR, once and for its lifetime. No subnet overlaps that of another node,
//! also if that one has another size, as after a change of the size.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use client::Api;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use parking_lot::Mutex;
use reconcile::{Action, Controller, Error, Key, Kind, Recorder};
use serde_json::json;

use crate::{
    metrics::Metrics,
    nodelifecycle,
    shared::{CIDR, SUBNET_SIZE, Shared},
};

/// The name in [`crate::ALL`].
pub const NAME: &str = "node-ipam";
const ACCOUNT: &str = "node-controller";

struct Allocator {
    client: kube::Client,
    nodes: client::Informer<Node>,
    recorder: Recorder,
    /// One per IP family of the cluster.
    ranges: Vec<Range>,
    /// Guards the index of the first subnet of each range that may be free: all subnets before it are allocated.
    first_free: Mutex<Vec<u128>>,
    metrics: Metrics,
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
        first_free: Mutex::new(vec![0; ranges.len()]),
        ranges,
        metrics: shared.metrics.clone(),
    });
    let freed = controller.clone();
    // One worker: two nodes must never get the same part.
    shared
        .controller(&controller)
        .watches_with(&controller.nodes, move |event| match event {
            client::Event::Deleted(_) => {
                freed.first_free.lock().fill(0);
                Vec::new()
            }
            event => vec![Key::from_object(&**event.object())],
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
        let Some(cidrs) = self.allocate() else {
            let about = kube::Resource::object_ref(&*node, &());
            let text = format!("Node {} status is now: CIDRNotAvailable", key.name);
            self.recorder
                .event(&about, Kind::Normal, "CIDRNotAvailable", text);
            return Err(Error::Invalid(
                "no free range left in the cluster CIDR".into(),
            ));
        };
        let api: Api<Node> = Api::all(self.client.clone());
        let patch = json!({"spec": {"podCIDR": cidrs.first(), "podCIDRs": cidrs}});
        let patched = api
            .patch(&key.name, &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
        for range in &self.ranges {
            let by = [("clusterCIDR", &*range.to_string())];
            self.metrics.ranges_allocated.add(by, 1);
        }
        let version = patched.metadata.resource_version.unwrap_or_default();
        self.nodes.reached(&version).await;
        Ok(Action::Done)
    }
}

impl Allocator {
    /// A free subnet of each range.
    fn allocate(&self) -> Option<Vec<String>> {
        let mut first = self.first_free.lock();
        let ranges = self.ranges.iter().zip(first.iter_mut());
        let found = ranges.map(|(range, first)| {
            let is_assigned = |_: u128, cidr: &str| self.nodes.count_by_index(CIDR, cidr) > 0;
            // Thousands of nodes may be without a subnet and try again and again: none is looked for until a node is deleted.
            let Some((start, _)) = range.first_free(*first, is_assigned) else {
                *first = range.parts();
                return None;
            };
            let others = self.of_other_size(range);
            let is_taken = |number, cidr: &str| {
                let overlaps = |other: &Subnet| other.overlaps(&range.subnet(number));
                is_assigned(number, cidr) || others.iter().any(overlaps)
            };
            let free = range.first_free(start, is_taken);
            *first = free
                .as_ref()
                .map_or_else(|| range.parts(), |(number, _)| *number);
            free.map(|(_, cidr)| cidr)
        });
        found.collect()
    }

    /// Subnets of nodes that have another size than those of this range; usually there is none.
    fn of_other_size(&self, range: &Range) -> Vec<Subnet> {
        let own = size_key(range.bits, range.part);
        let mut sizes = self.nodes.index_keys(SUBNET_SIZE);
        sizes.retain(|size| *size != own);
        let nodes = sizes
            .iter()
            .flat_map(|size| self.nodes.entries_by_index(SUBNET_SIZE, size));
        let mut found = Vec::new();
        for node in nodes {
            let facts: Option<&nodelifecycle::Facts> = node.summary();
            let all = facts.into_iter().flat_map(|facts| facts.pod_cidrs.iter());
            found.extend(
                all.filter(|subnet| subnet.bits == range.bits && subnet.prefix != range.part),
            );
        }
        found
    }
}

/// A subnet as numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Subnet {
    first: u128,
    /// The length of an address.
    bits: u32,
    prefix: u32,
}

impl Subnet {
    fn parse(cidr: &str) -> Option<Self> {
        let (address, prefix) = cidr.split_once('/')?;
        let (first, bits) = number(address.parse().ok()?);
        let prefix = prefix.parse().ok().filter(|prefix| *prefix <= bits)?;
        Some(Self {
            first,
            bits,
            prefix,
        })
    }

    fn overlaps(&self, other: &Self) -> bool {
        let rest = self.bits - self.prefix.min(other.prefix);
        self.bits == other.bits && self.first.checked_shr(rest) == other.first.checked_shr(rest)
    }
}

/// An address as a number, and its length in bits.
fn number(address: IpAddr) -> (u128, u32) {
    match address {
        IpAddr::V4(address) => (u128::from(u32::from(address)), 32),
        IpAddr::V6(address) => (u128::from(address), 128),
    }
}

/// The pod CIDRs of a node as numbers.
pub(crate) fn subnets(node: &Node) -> Box<[Subnet]> {
    let all = cidrs(node);
    all.iter().filter_map(|cidr| Subnet::parse(cidr)).collect()
}

/// The sizes of a node's pod CIDRs, as keys of the index [`SUBNET_SIZE`].
pub(crate) fn sizes(node: &Node) -> Vec<String> {
    let subnets = subnets(node);
    let mut sizes: Vec<_> = subnets
        .iter()
        .map(|subnet| size_key(subnet.bits, subnet.prefix))
        .collect();
    sizes.sort();
    sizes.dedup();
    sizes
}

fn size_key(bits: u32, prefix: u32) -> String {
    format!("{bits}/{prefix}")
}

/// The pod CIDRs of a node.
pub(crate) fn cidrs(node: &Node) -> Vec<String> {
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

impl std::fmt::Display for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address(0), self.prefix)
    }
}

impl Range {
    fn parse(cidr: &str, part: u8) -> Option<Self> {
        let (address, prefix) = cidr.split_once('/')?;
        let (base, bits) = number(address.parse().ok()?);
        let prefix = prefix.parse::<u32>().ok()?;
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

    /// The first free subnet from index `first` on, with its index.
    fn first_free(
        &self,
        first: u128,
        is_taken: impl Fn(u128, &str) -> bool,
    ) -> Option<(u128, String)> {
        let mut parts = (first..self.parts()).map(|number| (number, self.nth(number)));
        parts.find(|(number, cidr)| !is_taken(*number, cidr))
    }

    /// The number of subnets.
    fn parts(&self) -> u128 {
        1 << (self.part - self.prefix)
    }

    fn subnet(&self, number: u128) -> Subnet {
        Subnet {
            first: self.base + (number << (self.bits - self.part)),
            bits: self.bits,
            prefix: self.part,
        }
    }

    fn nth(&self, number: u128) -> String {
        format!("{}/{}", self.address(number), self.part)
    }

    /// The first address of a subnet.
    fn address(&self, number: u128) -> IpAddr {
        let address = self.base + (number << (self.bits - self.part));
        if self.bits == 32 {
            // The base came from an IPv4 address and the parts stay inside its range.
            IpAddr::V4(Ipv4Addr::from(u32::try_from(address).unwrap_or(u32::MAX)))
        } else {
            IpAddr::V6(Ipv6Addr::from(address))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_cidrs_are_allocated_in_order_and_gaps_are_reused() {
        let range = Range::parse("10.42.0.0/16", 24).unwrap();
        let free = |range: &Range, first, taken: &[&str]| {
            let found = range.first_free(first, |_, cidr| taken.contains(&cidr));
            found.map(|(_, cidr)| cidr)
        };
        assert_eq!(free(&range, 0, &[]).unwrap(), "10.42.0.0/24");
        let used = ["10.42.0.0/24", "10.42.2.0/24"];
        assert_eq!(free(&range, 0, &used).unwrap(), "10.42.1.0/24");
        assert_eq!(free(&range, 2, &used).unwrap(), "10.42.3.0/24");
        assert_eq!(range.to_string(), "10.42.0.0/16");
        let tiny = Range::parse("10.0.0.0/24", 24).unwrap();
        assert_eq!(free(&tiny, 0, &["10.0.0.0/24"]), None);
        assert_eq!(
            Range::parse("fd00:42::/56", 24).unwrap().nth(3),
            "fd00:42:0:3::/64"
        );
        assert!(Range::parse("10.0.0.0/25", 24).is_none());
    }

    #[test]
    fn nodes_are_indexed_by_the_sizes_of_their_subnets() {
        let node = |cidrs: serde_json::Value| -> Node {
            serde_json::from_value(json!({"spec": {"podCIDRs": cidrs}})).unwrap()
        };
        for (cidrs, expected) in [
            (json!(["10.42.0.0/24"]), vec!["32/24"]),
            (
                json!(["10.42.0.0/24", "fd00:42::/64"]),
                vec!["128/64", "32/24"],
            ),
            (json!(["10.42.0.0/24", "10.43.0.0/24"]), vec!["32/24"]),
            (json!(["nonsense"]), vec![]),
            (json!([]), vec![]),
        ] {
            assert_eq!(sizes(&node(cidrs.clone())), expected, "{cidrs}");
        }
    }

    #[test]
    fn subnets_of_another_size_are_not_given_again() {
        for (cluster, part, taken, expected) in [
            ("10.42.0.0/16", 26, "10.42.0.0/24", Some("10.42.1.0/26")),
            ("10.42.0.0/16", 24, "10.42.0.64/26", Some("10.42.1.0/24")),
            ("10.42.0.0/16", 24, "10.42.7.0/26", Some("10.42.0.0/24")),
            ("10.42.0.0/16", 24, "10.0.0.0/8", None),
            ("10.42.0.0/16", 24, "0.0.0.0/0", None),
            ("10.42.0.0/16", 24, "fd00::/8", Some("10.42.0.0/24")),
            (
                "fd00:42::/56",
                64,
                "fd00:42:0::/63",
                Some("fd00:42:0:2::/64"),
            ),
        ] {
            let range = Range::parse(cluster, part).unwrap();
            let taken = Subnet::parse(taken).unwrap();
            let found = range.first_free(0, |number, _| taken.overlaps(&range.subnet(number)));
            let found = found.map(|(_, cidr)| cidr);
            assert_eq!(found.as_deref(), expected, "{cluster} {taken:?}");
        }
        assert_eq!(Subnet::parse("10.0.0.0/33"), None);
        assert_eq!(Subnet::parse("10.0.0.0"), None);
    }
}
