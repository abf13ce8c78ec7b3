//! How fast nodes get NoExecute taints, by zone: at the normal rate while most nodes of a zone are
//! ready, slower or not at all while many are not, and not at all while no node of any zone is
//! ready, since then the control plane is probably disconnected. Pure.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;

/// Nodes per second in a normal zone.
const RATE: f64 = 0.1;
/// Nodes per second in a large, partially disrupted zone.
const SECONDARY_RATE: f64 = 0.01;
/// In zones up to this size nothing is evicted while they are partially disrupted.
const LARGE: usize = 50;
/// A zone is partially disrupted if this fraction and more than two of its nodes are not ready.
const UNHEALTHY: f64 = 0.55;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Initial,
    Normal,
    PartialDisruption,
    FullDisruption,
}

/// The ready and not ready nodes of a zone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) ready: usize,
    pub(super) not_ready: usize,
}

impl Count {
    fn size(self) -> usize {
        self.ready + self.not_ready
    }

    #[allow(clippy::cast_precision_loss, reason = "no zone has 2^52 nodes")]
    fn state(self) -> State {
        let unhealthy = self.not_ready as f64 / self.size() as f64;
        if self.ready == 0 && self.not_ready > 0 {
            State::FullDisruption
        } else if self.not_ready > 2 && unhealthy >= UNHEALTHY {
            State::PartialDisruption
        } else {
            State::Normal
        }
    }
}

/// The result of a pass for the whole cluster.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Zones are evaluated separately.
    None,
    /// No node is ready any more: NoExecute taints are removed and none is added.
    AllDisrupted,
    /// Some node is ready again: every node's grace period restarts.
    Recovered,
}

struct Zone {
    state: State,
    rate: f64,
    /// Rate limiter tokens at `counted`; at most one.
    tokens: f64,
    counted: Timestamp,
    waiting: VecDeque<String>,
}

impl Zone {
    fn new(now: Timestamp) -> Self {
        Self {
            state: State::Initial,
            rate: RATE,
            tokens: 1.0,
            counted: now,
            waiting: VecDeque::new(),
        }
    }

    fn refill(&mut self, now: Timestamp) {
        let passed = now.duration_since(self.counted).as_secs_f64().max(0.0);
        self.tokens = (self.tokens + passed * self.rate).min(1.0);
        self.counted = now;
    }

    fn set_rate(&mut self, rate: f64, now: Timestamp) {
        self.refill(now);
        self.rate = rate;
    }

    fn enter(&mut self, state: State, size: usize, now: Timestamp) {
        self.state = state;
        let rate = match state {
            State::PartialDisruption if size > LARGE => SECONDARY_RATE,
            State::PartialDisruption => 0.0,
            State::Initial | State::Normal | State::FullDisruption => RATE,
        };
        self.set_rate(rate, now);
    }

    /// The next node, if the rate limit allows.
    fn pop(&mut self, now: Timestamp) -> Option<String> {
        self.refill(now);
        if self.rate <= 0.0 || self.tokens < 1.0 {
            return None;
        }
        let node = self.waiting.pop_front()?;
        self.tokens -= 1.0;
        Some(node)
    }

    fn next_in(&self) -> Option<Duration> {
        if self.waiting.is_empty() || self.rate <= 0.0 {
            return None;
        }
        Some(Duration::from_secs_f64(
            ((1.0 - self.tokens) / self.rate).max(0.0),
        ))
    }
}

/// All zones, with their nodes that wait for a NoExecute taint.
#[derive(Default)]
pub(super) struct Zones {
    zones: BTreeMap<String, Zone>,
}

impl Zones {
    /// Updates the zones' states from the counts of ready nodes.
    pub(super) fn observe(&mut self, counts: &BTreeMap<String, Count>, now: Timestamp) -> Change {
        self.zones.retain(|name, _| counts.contains_key(name));
        for name in counts.keys() {
            let zone = self.zones.entry(name.clone());
            zone.or_insert_with(|| Zone::new(now));
        }
        if counts.is_empty() {
            return Change::None;
        }
        let full = |state: State| state == State::FullDisruption;
        let were_all_disrupted = self.zones.values().all(|zone| full(zone.state));
        let are_all_disrupted = counts.values().all(|count| full(count.state()));
        if are_all_disrupted {
            for zone in self.zones.values_mut() {
                zone.state = State::FullDisruption;
                zone.set_rate(0.0, now);
                zone.waiting.clear();
            }
            return if were_all_disrupted {
                Change::None
            } else {
                Change::AllDisrupted
            };
        }
        for (name, zone) in &mut self.zones {
            let count = counts.get(name).copied().unwrap_or_default();
            if zone.state != count.state() || were_all_disrupted {
                zone.enter(count.state(), count.size(), now);
            }
        }
        if were_all_disrupted {
            Change::Recovered
        } else {
            Change::None
        }
    }

    /// Queues a node for its taint.
    pub(super) fn add(&mut self, zone: &str, node: &str, now: Timestamp) {
        let zone = self.zones.entry(zone.to_owned());
        let waiting = &mut zone.or_insert_with(|| Zone::new(now)).waiting;
        if !waiting.iter().any(|known| known == node) {
            waiting.push_back(node.to_owned());
        }
    }

    /// The node is ready or gone.
    pub(super) fn remove(&mut self, node: &str) {
        for zone in self.zones.values_mut() {
            zone.waiting.retain(|known| known != node);
        }
    }

    /// The nodes that get their taint now.
    pub(super) fn due(&mut self, now: Timestamp) -> Vec<String> {
        let zones = self.zones.values_mut();
        zones.filter_map(|zone| zone.pop(now)).collect()
    }

    /// How long until the next queued node gets its taint.
    pub(super) fn next_in(&self) -> Option<Duration> {
        self.zones.values().filter_map(Zone::next_in).min()
    }
}

/// The zone of a node: its region and zone labels together.
pub(super) fn zone_of(node: &Node) -> String {
    let label = |stable: &str, beta: &str| {
        let labels = node.metadata.labels.as_ref();
        let label = labels.and_then(|labels| labels.get(stable).or_else(|| labels.get(beta)));
        label.cloned().unwrap_or_default()
    };
    let region = label(
        "topology.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/region",
    );
    let zone = label(
        "topology.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/zone",
    );
    if region.is_empty() && zone.is_empty() {
        return String::new();
    }
    format!("{region}:\0:{zone}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::samples::at;

    fn counts(zones: &[(&str, usize, usize)]) -> BTreeMap<String, Count> {
        let counts = zones.iter().map(|(name, ready, not_ready)| {
            let count = Count {
                ready: *ready,
                not_ready: *not_ready,
            };
            ((*name).to_owned(), count)
        });
        counts.collect()
    }

    #[test]
    fn a_zone_is_disrupted_in_part_or_in_full() {
        let state = |ready, not_ready| Count { ready, not_ready }.state();
        assert_eq!(state(3, 0), State::Normal);
        assert_eq!(state(0, 1), State::FullDisruption);
        assert_eq!(state(1, 2), State::Normal, "two are too few to tell");
        assert_eq!(state(2, 3), State::PartialDisruption);
        assert_eq!(state(5, 6), State::Normal, "just under the threshold");
    }

    #[test]
    fn nodes_of_a_zone_are_tainted_one_in_ten_seconds() {
        let mut zones = Zones::default();
        zones.observe(&counts(&[("a", 8, 2)]), at(0));
        for node in ["n1", "n2", "n1"] {
            zones.add("a", node, at(0));
        }
        assert_eq!(zones.due(at(0)), ["n1"]);
        assert!(zones.due(at(5)).is_empty());
        assert_eq!(zones.next_in(), Some(Duration::from_secs(5)));
        assert_eq!(zones.due(at(10)), ["n2"]);
        assert_eq!(zones.next_in(), None);
    }

    #[test]
    fn a_mostly_unhealthy_zone_is_not_tainted_or_slowly_if_large() {
        let mut zones = Zones::default();
        let partial = counts(&[("large", 40, 60), ("small", 2, 3)]);
        zones.observe(&partial, at(0));
        for zone in ["large", "small"] {
            zones.add(zone, &format!("{zone}-1"), at(0));
            zones.add(zone, &format!("{zone}-2"), at(0));
        }
        assert_eq!(zones.due(at(0)), ["large-1"]);
        assert!(zones.due(at(99)).is_empty());
        assert_eq!(zones.due(at(100)), ["large-2"]);
        zones.observe(&counts(&[("large", 100, 0), ("small", 4, 1)]), at(100));
        assert_eq!(zones.due(at(100)), ["small-1"]);
    }

    #[test]
    fn a_zone_that_is_lost_is_evicted_while_another_is_well() {
        let mut zones = Zones::default();
        let lost = counts(&[("a", 0, 3), ("b", 3, 0)]);
        assert_eq!(zones.observe(&lost, at(0)), Change::None);
        zones.add("a", "n1", at(0));
        assert_eq!(zones.due(at(0)), ["n1"]);
    }

    #[test]
    fn nothing_is_evicted_while_no_node_is_well() {
        let mut zones = Zones::default();
        zones.observe(&counts(&[("a", 2, 1), ("b", 1, 0)]), at(0));
        zones.add("a", "n1", at(0));
        let none = counts(&[("a", 0, 3), ("b", 0, 1)]);
        assert_eq!(zones.observe(&none, at(5)), Change::AllDisrupted);
        assert!(zones.due(at(5)).is_empty(), "its queue is emptied");
        zones.add("a", "n1", at(10));
        assert_eq!(zones.observe(&none, at(10)), Change::None);
        assert!(zones.due(at(1000)).is_empty());
        assert_eq!(zones.next_in(), None);
        let some = counts(&[("a", 1, 2), ("b", 0, 1)]);
        assert_eq!(zones.observe(&some, at(1000)), Change::Recovered);
        zones.add("a", "n1", at(1000));
        assert_eq!(zones.due(at(1010)), ["n1"]);
        assert_eq!(zones.observe(&some, at(1011)), Change::None);
    }

    #[test]
    fn a_cluster_that_starts_with_no_node_well_is_disrupted_from_the_start() {
        let mut zones = Zones::default();
        assert_eq!(zones.observe(&counts(&[]), at(0)), Change::None);
        let none = counts(&[("", 0, 1)]);
        assert_eq!(zones.observe(&none, at(1)), Change::AllDisrupted);
        assert_eq!(
            zones.observe(&counts(&[("", 1, 0)]), at(2)),
            Change::Recovered
        );
    }
}
