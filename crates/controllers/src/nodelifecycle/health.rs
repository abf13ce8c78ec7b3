//! When a node's last heartbeat was, by this controller's clock, and the conditions of a node
//! without heartbeats. Pure.

use std::{collections::HashMap, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{Node, NodeCondition},
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use reconcile::condition;

use super::zones::zone_of;
use crate::nodeipam::{self, Subnet};

/// The facts of a node that tell whether it is well. The informer keeps them for every node, so that none must be
/// decoded for the checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(super) uid: Option<Arc<str>>,
    pub(super) zone: Box<str>,
    /// Whether it does not count for the state of its zone.
    pub(super) is_excluded: bool,
    /// Whether the condition Ready is True; `None` if there is no such condition.
    is_ready: Option<bool>,
    /// The heartbeat in the condition Ready, unless that is Unknown.
    posted: Option<Timestamp>,
    /// For [`crate::nodeipam`].
    pub(crate) pod_cidrs: Box<[Subnet]>,
}

impl Facts {
    pub(crate) fn new(node: &Node) -> Self {
        let ready = ready(node);
        let posted = ready
            .filter(|ready| ready.status != "Unknown")
            .and_then(|ready| ready.last_heartbeat_time.as_ref());
        Self {
            uid: node.metadata.uid.as_deref().map(Into::into),
            zone: zone_of(node).into(),
            is_excluded: super::is_excluded(node),
            is_ready: ready.map(|ready| ready.status == "True"),
            posted: posted.map(|time| time.0),
            pod_cidrs: nodeipam::subnets(node),
        }
    }

    /// Whether the condition Ready is True.
    pub(super) fn is_ready(&self) -> bool {
        self.is_ready == Some(true)
    }
}

/// The time at which a lease was renewed.
pub(super) fn renewed(lease: &Lease) -> Option<Timestamp> {
    let renewed = lease.spec.as_ref()?.renew_time.as_ref();
    renewed.map(|time| time.0)
}

/// How long a node may be without heartbeat.
const GRACE: Duration = Duration::from_secs(50);
/// The same for a new node.
const STARTUP_GRACE: Duration = Duration::from_secs(60);

/// Between two passes at most this much time counts for the grace period. The rest is a step of the clock, or time in which
/// this server was paused and could not see heartbeats: the nodes are not silent because of it.
const LONGEST_STEP: SignedDuration = SignedDuration::from_secs(20);

/// The last heartbeat, and when this controller saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Heartbeat {
    uid: Option<Arc<str>>,
    renewed: Option<Timestamp>,
    posted: Option<Timestamp>,
    seen: Timestamp,
}

/// The last heartbeat of each node.
#[derive(Default)]
pub(super) struct Heartbeats {
    nodes: HashMap<String, Heartbeat>,
    /// The time of the last pass.
    last_pass: Option<Timestamp>,
}

impl Heartbeats {
    /// A pass over all nodes begins.
    pub(super) fn begin_pass(&mut self, now: Timestamp) {
        let Some(last) = self.last_pass.replace(now) else {
            return;
        };
        let step = now.duration_since(last);
        let skipped = step - step.clamp(SignedDuration::ZERO, LONGEST_STEP);
        if skipped.is_zero() {
            return;
        }
        for heartbeat in self.nodes.values_mut() {
            let seen = heartbeat.seen.checked_add(skipped);
            heartbeat.seen = seen.unwrap_or(now);
        }
    }

    /// Whether the node had no heartbeat for too long. Only that a heartbeat changed counts, not
    /// its time, since machines' clocks may differ. `renewed` is the time in the node's lease.
    pub(super) fn is_silent(
        &mut self,
        name: &str,
        node: &Facts,
        renewed: Option<Timestamp>,
        now: Timestamp,
    ) -> bool {
        let mut heartbeat = Heartbeat {
            uid: node.uid.clone(),
            renewed,
            posted: node.posted,
            seen: now,
        };
        if let Some(known) = self.nodes.get(name) {
            // A status that this controller wrote is no heartbeat.
            heartbeat.posted = heartbeat.posted.or(known.posted);
            heartbeat.seen = known.seen;
            if heartbeat != *known {
                heartbeat.seen = now;
            }
        }
        let grace = if node.is_ready.is_none() {
            STARTUP_GRACE
        } else {
            GRACE
        };
        let silent = now.duration_since(heartbeat.seen);
        match self.nodes.get_mut(name) {
            Some(known) => *known = heartbeat,
            None => drop(self.nodes.insert(name.to_owned(), heartbeat)),
        }
        Duration::try_from(silent).unwrap_or_default() > grace
    }

    /// Restarts the grace period of every node.
    pub(super) fn reset(&mut self, now: Timestamp) {
        for heartbeat in self.nodes.values_mut() {
            heartbeat.seen = now;
        }
    }

    pub(super) fn forget(&mut self, node: &str) {
        self.nodes.remove(node);
    }
}

/// The Ready condition.
pub(super) fn ready(node: &Node) -> Option<&NodeCondition> {
    condition::find(conditions(node), "Ready")
}

pub(super) fn conditions(node: &Node) -> impl Iterator<Item = &NodeCondition> {
    let status = node.status.iter();
    status.flat_map(|status| status.conditions.iter().flatten())
}

/// The conditions to write for a node without heartbeats; empty if it has them.
pub(super) fn silenced(node: &Node, now: Timestamp) -> Vec<NodeCondition> {
    let kinds = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];
    let silenced = kinds.map(|kind| match condition::find(conditions(node), kind) {
        None => Some(NodeCondition {
            type_: kind.into(),
            status: "Unknown".into(),
            reason: Some("NodeStatusNeverUpdated".into()),
            message: Some("Kubelet never posted node status.".into()),
            last_heartbeat_time: node.metadata.creation_timestamp.clone(),
            last_transition_time: Some(Time(now)),
        }),
        Some(known) if known.status != "Unknown" => Some(NodeCondition {
            status: "Unknown".into(),
            reason: Some("NodeStatusUnknown".into()),
            message: Some("Kubelet stopped posting node status.".into()),
            last_transition_time: Some(Time(now)),
            ..known.clone()
        }),
        Some(_) => None,
    });
    silenced.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::coordination::v1::LeaseSpec, apimachinery::pkg::apis::meta::v1::MicroTime,
    };

    use super::*;
    use crate::{nodelifecycle::samples::node, pods::samples::at};

    fn lease(renewed: i64) -> Lease {
        let spec = LeaseSpec {
            renew_time: Some(MicroTime(at(renewed))),
            ..Default::default()
        };
        Lease {
            spec: Some(spec),
            ..Default::default()
        }
    }

    #[test]
    fn a_node_is_silent_when_neither_its_lease_nor_its_status_changes_for_the_grace_period() {
        let mut heartbeats = Heartbeats::default();
        let node = node(&[("Ready", "True")], &[]);
        let facts = Facts::new(&node);
        let mut silent =
            |lease: &Lease, now| heartbeats.is_silent("n", &facts, renewed(lease), at(now));
        let old = lease(-9999);
        assert!(!silent(&old, 0), "the clock of the node does not matter");
        assert!(!silent(&old, 50));
        assert!(silent(&old, 51));
        assert!(!silent(&lease(-9998), 52), "it was renewed");
        heartbeats.reset(at(200));
        let renewed = renewed(&lease(-9998));
        assert!(!heartbeats.is_silent("n", &facts, renewed, at(250)));
    }

    #[test]
    fn nodes_are_not_silent_because_the_clock_was_set_or_the_server_was_paused() {
        let node = node(&[("Ready", "True")], &[]);
        let facts = Facts::new(&node);
        // The seconds of the passes; the node is silent in the last one only if it is expected.
        for (passes, expected) in [
            (vec![0, 5, 3605], false),
            (vec![0, 5, 3605, 3610, 3630], false),
            (vec![0, 20, 40, 60], true),
            (vec![0, 5, 3605, 3625, 3640], true),
            (vec![3600, 0, 5], false),
            (vec![3600, 0, 20, 40, 51], true),
        ] {
            let mut heartbeats = Heartbeats::default();
            let looks: Vec<bool> = passes
                .iter()
                .map(|second| {
                    heartbeats.begin_pass(at(*second));
                    heartbeats.is_silent("n", &facts, None, at(*second))
                })
                .collect();
            let (last, before) = looks.split_last().unwrap();
            assert_eq!(*last, expected, "{passes:?}");
            assert!(before.iter().all(|silent| !silent), "{passes:?}");
        }
    }

    #[test]
    fn setting_conditions_to_unknown_does_not_count_as_a_heartbeat() {
        let mut heartbeats = Heartbeats::default();
        let mut node = node(&[("Ready", "True")], &[]);
        let posted = |node: &mut Node, status: &str| {
            let conditions = node.status.as_mut().unwrap().conditions.as_mut();
            let ready = &mut conditions.unwrap()[0];
            ready.status = status.into();
            ready.last_heartbeat_time = Some(Time(at(7)));
        };
        posted(&mut node, "True");
        let mut silent =
            |node: &Node, now| heartbeats.is_silent("n", &Facts::new(node), None, at(now));
        assert!(!silent(&node, 0));
        assert!(silent(&node, 60));
        posted(&mut node, "Unknown");
        assert!(silent(&node, 61));
    }

    #[test]
    fn a_silent_node_is_unknown_in_everything_and_only_once() {
        let mut silent = node(&[("Ready", "True"), ("MemoryPressure", "False")], &[]);
        let conditions = silenced(&silent, at(9));
        assert_eq!(conditions.len(), 4);
        assert!(
            conditions
                .iter()
                .all(|condition| condition.status == "Unknown")
        );
        assert_eq!(
            conditions[0].message.as_deref(),
            Some("Kubelet stopped posting node status.")
        );
        silent.status.as_mut().unwrap().conditions = Some(conditions);
        assert!(silenced(&silent, at(10)).is_empty());
    }
}
