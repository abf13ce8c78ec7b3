//! Rejects nodes without enough free resources for the pod, and scores by LeastAllocated,
//! MostAllocated or RequestedToCapacityRatio.

use std::{any::Any, borrow::Cow, sync::Arc};

use serde::Deserialize;
use serde_json::Value;

use super::{
    arguments,
    resource_score::{ResourceWeight, Scored, checked},
};
use crate::{
    cluster::{Cluster, Column, NodeInfo, Slot},
    framework::{
        BEST, Plugin, Point,
        candidates::Candidates,
        event::{Event, EventKind},
    },
    pod::PodInfo,
    resources::Resources,
};

/// The plugin's name.
pub(crate) const NAME: &str = "NodeResourcesFit";

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Arguments {
    ignored_resources: Vec<String>,
    ignored_resource_groups: Vec<String>,
    scoring_strategy: Strategy,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Strategy {
    #[serde(rename = "type")]
    kind: Option<String>,
    resources: Vec<ResourceWeight>,
    requested_to_capacity_ratio: Option<Ratio>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Ratio {
    shape: Vec<ShapePoint>,
}

/// A score from 0 to 10 at a utilization in percent.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ShapePoint {
    utilization: i64,
    score: i64,
}

#[derive(Debug)]
enum Scoring {
    LeastAllocated,
    MostAllocated,
    /// Linear interpolation between points, with scores from 0 to [`BEST`].
    Ratio(Vec<ShapePoint>),
}

/// The plugin.
#[derive(Debug)]
pub(super) struct NodeResourcesFit {
    ignored: Vec<String>,
    ignored_groups: Vec<String>,
    scoring: Scoring,
    resources: Vec<ResourceWeight>,
}

/// Creates the plugin.
pub(super) fn new(value: &Value) -> Result<Arc<dyn Plugin>, String> {
    let arguments: Arguments = arguments(value)?;
    let strategy = arguments.scoring_strategy;
    let scoring = match strategy.kind.as_deref() {
        None | Some("LeastAllocated") => Scoring::LeastAllocated,
        Some("MostAllocated") => Scoring::MostAllocated,
        Some("RequestedToCapacityRatio") => {
            let ratio = strategy.requested_to_capacity_ratio;
            Scoring::Ratio(shape(ratio.map(|ratio| ratio.shape).unwrap_or_default())?)
        }
        Some(other) => return Err(format!("unknown scoring strategy {other:?}")),
    };
    Ok(Arc::new(NodeResourcesFit {
        ignored: arguments.ignored_resources,
        ignored_groups: arguments.ignored_resource_groups,
        scoring,
        resources: checked(strategy.resources)?,
    }))
}

fn shape(mut points: Vec<ShapePoint>) -> Result<Vec<ShapePoint>, String> {
    if points.is_empty() {
        return Err("a shape needs at least one point".into());
    }
    let rising = points
        .windows(2)
        .all(|pair| pair[0].utilization < pair[1].utilization);
    let bounded = points
        .iter()
        .all(|p| (0..=100).contains(&p.utilization) && (0..=10).contains(&p.score));
    if !rising || !bounded {
        return Err("a shape has rising utilizations from 0 to 100 and scores from 0 to 10".into());
    }
    for point in &mut points {
        point.score *= BEST / 10;
    }
    Ok(points)
}

fn on_shape(points: &[ShapePoint], utilization: i64) -> i64 {
    let next = points
        .iter()
        .position(|point| utilization <= point.utilization);
    match next {
        Some(0) => points[0].score,
        Some(at) => {
            let (low, high) = (&points[at - 1], &points[at]);
            let rise = (high.score - low.score) * (utilization - low.utilization);
            low.score + rise / (high.utilization - low.utilization)
        }
        None => points.last().map_or(0, |point| point.score),
    }
}

impl NodeResourcesFit {
    fn is_ignored(&self, resource: &str) -> bool {
        let group = resource.split('/').next().unwrap_or_default();
        let is_extended = resource.contains('/');
        is_extended
            && (self.ignored.iter().any(|name| name == resource)
                || self.ignored_groups.iter().any(|name| name == group))
    }

    fn score_node(&self, resources: &[Scored<'_>], slot: Slot) -> i64 {
        let (mut sum, mut weights) = (0, 0);
        for resource in resources {
            let Some((has, _, wanted)) = resource.amounts(slot) else {
                continue;
            };
            let score = match &self.scoring {
                Scoring::LeastAllocated if wanted > has => 0,
                Scoring::LeastAllocated => (has - wanted) * BEST / has,
                Scoring::MostAllocated => wanted.min(has) * BEST / has,
                Scoring::Ratio(shape) if wanted > has => on_shape(shape, 100),
                Scoring::Ratio(shape) => on_shape(shape, wanted * 100 / has),
            };
            if score > 0 || !matches!(self.scoring, Scoring::Ratio(_)) {
                sum += score * resource.weight;
                weights += resource.weight;
            }
        }
        match (&self.scoring, weights) {
            (_, 0) => 0,
            (Scoring::Ratio(_), weights) => (sum as f64 / weights as f64).round() as i64,
            (_, weights) => sum / weights,
        }
    }

    /// What the node lacks, and whether it would be too small even without pods.
    fn lacks(&self, wanted: &Resources, cluster: &Cluster, slot: Slot) -> InsufficientResource {
        let mut lack = InsufficientResource::default();
        if cluster.count.free(slot) < 1 {
            lack.reasons.push("Too many pods".into());
        }
        let fixed = [
            (wanted.cpu, &cluster.cpu, "Insufficient cpu"),
            (wanted.memory, &cluster.memory, "Insufficient memory"),
            (
                wanted.ephemeral,
                &cluster.ephemeral,
                "Insufficient ephemeral-storage",
            ),
        ];
        for (amount, column, reason) in fixed {
            lack.check(amount, Some(column), slot, || Cow::Borrowed(reason));
        }
        for (name, amount) in &wanted.others {
            let has = cluster
                .others
                .get(name)
                .map_or(0, |column| column.allocatable[slot]);
            if *amount > 0 && !self.is_ignored(name) && !is_by_devices(cluster, name, has) {
                let reason = || Cow::Owned(format!("Insufficient {name}"));
                lack.check(*amount, cluster.others.get(name), slot, reason);
            }
        }
        lack
    }

    /// Whether the node has the resources for the pod when the pods that it may preempt there are gone. What is reserved for
    /// nominated pods that are at least as important is not free.
    fn may_have_room(&self, pod: &PodInfo, cluster: &Cluster, slot: Slot) -> bool {
        let Some(node) = cluster.node(slot) else {
            return false;
        };
        let wanted = &pod.template.requests;
        if !fits_empty(wanted, node, cluster) && wanted.others.is_empty() {
            return false;
        }
        let room = PossibleRoom::new(pod, cluster, slot);
        let fits = |wanted: i64, column: &Column, amount: &dyn Fn(&Resources) -> i64| {
            wanted == 0 || wanted <= column.free(slot).saturating_add(room.more(amount))
        };
        fits(1, &cluster.count, &|_| 1)
            && fits(wanted.cpu, &cluster.cpu, &|requests| requests.cpu)
            && fits(wanted.memory, &cluster.memory, &|requests| requests.memory)
            && fits(wanted.ephemeral, &cluster.ephemeral, &|requests| {
                requests.ephemeral
            })
            && wanted.others.iter().all(|(name, wanted)| {
                let column = cluster.others.get(name);
                let has = column.map_or(0, |column| column.allocatable[slot]);
                let amount = |requests: &Resources| requests.amount(name);
                self.is_ignored(name)
                    || is_by_devices(cluster, name, has)
                    || column.is_some_and(|column| fits(*wanted, column, &amount))
            })
    }
}

/// Pods whose resources on a node are not those that its columns show: less important ones may be preempted, and nominated
/// ones are to come.
struct PossibleRoom<'a> {
    pod: &'a PodInfo,
    placed: &'a [Arc<PodInfo>],
    nominated: &'a [Arc<PodInfo>],
    /// Whether the pod itself is nominated to the node: its victims there are on their way.
    waits: bool,
}

impl<'a> PossibleRoom<'a> {
    fn new(pod: &'a PodInfo, cluster: &'a Cluster, slot: Slot) -> Self {
        let may_preempt = !pod.template.never_preempts && cluster.has_less_important(pod);
        let name = &cluster.names[slot];
        Self {
            pod,
            placed: if may_preempt {
                &cluster.pods[slot]
            } else {
                &[]
            },
            nominated: cluster.nominated.on(name),
            waits: cluster.nominated.node_of(&pod.uid) == Some(name),
        }
    }

    /// What is to be added to the free amount.
    fn more(&self, amount: &dyn Fn(&Resources) -> i64) -> i64 {
        let own = self.pod.priority();
        let goes = |other: &&Arc<PodInfo>| {
            other.priority() < own && !(self.waits && other.is_terminating())
        };
        let comes = |other: &&Arc<PodInfo>| other.priority() >= own && other.uid != self.pod.uid;
        let gone = sum(self.placed.iter().filter(goes), amount);
        gone.saturating_sub(sum(self.nominated.iter().filter(comes), amount))
    }
}

fn sum<'a>(
    pods: impl Iterator<Item = &'a Arc<PodInfo>>,
    amount: &dyn Fn(&Resources) -> i64,
) -> i64 {
    let amounts = pods.map(|pod| amount(&pod.template.requests));
    amounts.fold(0, i64::saturating_add)
}

#[derive(Debug, Default)]
struct InsufficientResource {
    reasons: Vec<Cow<'static, str>>,
    too_small: bool,
}

impl InsufficientResource {
    fn check(
        &mut self,
        wanted: i64,
        column: Option<&Column>,
        slot: Slot,
        reason: impl Fn() -> Cow<'static, str>,
    ) {
        let (free, has) = column.map_or((0, 0), |c| (c.free(slot), c.allocatable[slot]));
        if wanted > 0 && wanted > free {
            self.reasons.push(reason());
            self.too_small |= wanted > has;
        }
    }
}

/// Whether devices stand for a resource that the node does not have itself: `DynamicResources`
/// decides then.
fn is_by_devices(cluster: &Cluster, resource: &str, has: i64) -> bool {
    has == 0 && cluster.classes.for_resource(resource).is_some()
}

/// Whether the pod would fit on the node without other pods.
fn fits_empty(wanted: &Resources, node: &NodeInfo, cluster: &Cluster) -> bool {
    let has = &node.allocatable;
    let others = wanted.others.iter();
    node.pods >= 1
        && wanted.cpu <= has.cpu
        && wanted.memory <= has.memory
        && wanted.ephemeral <= has.ephemeral
        && others.into_iter().all(|(name, amount)| {
            let has = has.amount(name);
            *amount <= has || is_by_devices(cluster, name, has)
        })
}

/// Whether there is more of a resource that the pod requests.
fn grew(wanted: &Resources, less: &Resources, more: &Resources) -> bool {
    let names = ["cpu", "memory", "ephemeral-storage"].into_iter();
    let mut names = names.chain(wanted.others.keys().map(String::as_str));
    names.any(|name| wanted.amount(name) > 0 && more.amount(name) > less.amount(name))
}

impl Plugin for NodeResourcesFit {
    fn name(&self) -> &'static str {
        NAME
    }

    fn is_local(&self) -> bool {
        true
    }

    fn normalizes(&self) -> bool {
        false
    }

    fn points(&self) -> &'static [Point] {
        &[
            Point::PreFilter,
            Point::Filter,
            Point::PreScore,
            Point::Score,
        ]
    }

    fn filter(&self, pod: &PodInfo, cluster: &Cluster, _: &dyn Any, candidates: &mut Candidates) {
        let wanted = &pod.template.requests;
        candidates.retain_with(NAME, |slot| {
            let fits = cluster.count.free(slot) >= 1
                && (wanted.cpu == 0 || wanted.cpu <= cluster.cpu.free(slot))
                && (wanted.memory == 0 || wanted.memory <= cluster.memory.free(slot))
                && wanted.ephemeral == 0
                && wanted.others.is_empty();
            if fits {
                return None;
            }
            let lack = self.lacks(wanted, cluster, slot);
            (!lack.reasons.is_empty()).then_some((lack.reasons, !lack.too_small))
        });
    }

    fn pre_score(&self, _: &PodInfo, _: &Cluster, _: &[Slot]) -> Option<Box<dyn Any>> {
        Some(Box::new(()))
    }

    fn score(
        &self,
        pod: &PodInfo,
        cluster: &Cluster,
        _: &dyn Any,
        nodes: &[Slot],
        scores: &mut [i64],
    ) {
        let resources = Scored::new(&self.resources, pod, cluster, true);
        for (slot, score) in nodes.iter().zip(scores) {
            *score = self.score_node(&resources, *slot);
        }
    }

    fn events(&self) -> &'static [EventKind] {
        &[
            EventKind::NodeAdded,
            EventKind::NodeUpdated,
            EventKind::PodDeleted,
            EventKind::PodUpdated,
            EventKind::OwnUpdate,
            EventKind::DeviceClass,
        ]
    }

    fn hints_by_template(&self) -> bool {
        true
    }

    fn is_helped_by(&self, pod: &PodInfo, event: &Event<'_>, cluster: &Cluster) -> bool {
        let wanted = &pod.template.requests;
        match event {
            Event::NodeAdded(node) => fits_empty(wanted, node, cluster),
            Event::NodeUpdated { old, new } => {
                let more = grew(wanted, &old.allocatable, &new.allocatable);
                fits_empty(wanted, new, cluster) && (new.pods > old.pods || more)
            }
            // Only its node has more room.
            Event::PodDeleted(_, slot) => {
                slot.is_none_or(|slot| self.may_have_room(pod, cluster, slot))
            }
            Event::DeviceClass { .. } => {
                let mut others = wanted.others.keys();
                others.any(|name| cluster.classes.for_resource(name).is_some())
            }
            Event::PodUpdated { old, new } => {
                grew(wanted, &new.template.requests, &old.template.requests)
            }
            Event::OwnUpdate { old, new } => {
                let (old, new) = (&old.template.requests, &new.template.requests);
                grew(old, new, old)
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::samples::{self, rejected, scored};

    fn default() -> Arc<dyn Plugin> {
        new(&Value::Null).unwrap()
    }

    #[test]
    fn every_missing_resource_is_named_and_a_node_too_small_is_beyond_help() {
        let mut cluster = samples::cluster(&[
            ("small", "1", "1Gi"),
            ("full", "4", "8Gi"),
            ("free", "4", "8Gi"),
        ]);
        cluster.put_pod("full", samples::pod("big", "3", "7Gi"));
        let pod = samples::pod("a", "2", "2Gi");
        let both = ["Insufficient cpu", "Insufficient memory"];
        let found = rejected(&*default(), &pod, &mut cluster);
        let found: Vec<_> = found
            .iter()
            .map(|r| (r.slot, r.reasons.to_vec(), r.resolvable))
            .collect();
        assert_eq!(
            found,
            [
                (0, both.map(Cow::from).to_vec(), false),
                (1, both.map(Cow::from).to_vec(), true)
            ]
        );
    }

    #[test]
    fn pods_count_and_a_pod_that_asks_for_nothing_fits_a_node_that_is_overcommitted() {
        let mut cluster = samples::cluster(&[("n1", "1", "1Gi")]);
        cluster.put_pod("n1", samples::pod("big", "2", "2Gi"));
        let nothing = samples::pod_with("a", |_| {});
        assert!(rejected(&*default(), &nothing, &mut cluster).is_empty());
        let mut node = samples::node("n1", "1", "1Gi");
        node.pods = 1;
        cluster.put_node(node);
        let found = rejected(&*default(), &nothing, &mut cluster);
        assert_eq!(*found[0].reasons, ["Too many pods"]);
    }

    #[test]
    fn extended_resources_can_be_ignored_by_name_and_by_group() {
        let mut cluster = samples::cluster(&[("n1", "1", "1Gi")]);
        let pod = samples::pod_requesting("a", &[("example.com/gpu", "1")]);
        let found = rejected(&*default(), &pod, &mut cluster);
        assert_eq!(*found[0].reasons, ["Insufficient example.com/gpu"]);
        assert!(!found[0].resolvable);
        for ignoring in [
            json!({"ignoredResources": ["example.com/gpu"]}),
            json!({"ignoredResourceGroups": ["example.com"]}),
        ] {
            let plugin = new(&ignoring).unwrap();
            assert!(
                rejected(&*plugin, &pod, &mut cluster).is_empty(),
                "{ignoring}"
            );
        }
    }

    #[test]
    fn the_three_strategies_score_as_upstream_does() {
        let mut cluster = samples::cluster(&[("a", "4", "8Gi"), ("b", "4", "8Gi")]);
        cluster.put_pod("a", samples::pod("x", "2", "4Gi"));
        let pod = samples::pod("p", "1", "2Gi");
        let shape = json!([{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]);
        for (arguments, expected) in [
            (Value::Null, [25, 75]),
            (
                json!({"scoringStrategy": {"type": "MostAllocated"}}),
                [75, 25],
            ),
            (
                json!({"scoringStrategy": {"type": "RequestedToCapacityRatio",
                    "requestedToCapacityRatio": {"shape": shape}}}),
                [75, 25],
            ),
            (
                json!({"scoringStrategy": {"type": "LeastAllocated",
                    "resources": [{"name": "cpu", "weight": 3}, {"name": "nvidia.com/gpu"}]}}),
                [25, 75],
            ),
        ] {
            let plugin = new(&arguments).unwrap();
            let scores = scored(&*plugin, &pod, &mut cluster, &[0, 1]).unwrap();
            assert_eq!(scores, expected, "{arguments}");
        }
    }

    #[test]
    fn only_events_that_free_resources_requeue_a_pod() {
        let cluster = Cluster::default();
        let pod = samples::pod("p", "2", "1Gi");
        let helped = |event: Event<'_>| default().is_helped_by(&pod, &event, &cluster);
        let (small, large) = (
            samples::node("n", "1", "1Gi"),
            samples::node("n", "2", "1Gi"),
        );
        assert!(!helped(Event::NodeAdded(&small)));
        assert!(helped(Event::NodeAdded(&large)));
        assert!(helped(Event::NodeUpdated {
            old: &small,
            new: &large
        }));
        assert!(!helped(Event::NodeUpdated {
            old: &large,
            new: &large
        }));
        let (before, after) = (samples::pod("q", "2", "1Gi"), samples::pod("q", "1", "1Gi"));
        assert!(helped(Event::PodUpdated {
            old: &before,
            new: &after
        }));
        assert!(!helped(Event::PodUpdated {
            old: &after,
            new: &before
        }));
        assert!(helped(Event::PodDeleted(&before, None)));
    }

    #[test]
    fn a_deleted_pod_helps_those_that_have_room_on_its_node_or_may_preempt_others_there() {
        let mut cluster = samples::cluster(&[("n1", "4", "8Gi")]);
        cluster.put_pod("n1", samples::prioritised("low", "1", 1));
        cluster.put_pod("n1", samples::prioritised("equal", "1", 10));
        let gone = samples::prioritised("gone", "1", 0);
        let helped = |cluster: &Cluster, pod: &PodInfo, slot| {
            default().is_helped_by(pod, &Event::PodDeleted(&gone, Some(slot)), cluster)
        };
        let pod = |cpu, priority| samples::prioritised("p", cpu, priority);
        for (cpu, priority, expected) in [
            ("2", 0, true),
            ("3", 0, false),
            ("3", 10, true),
            ("4", 10, false),
            ("4", 11, true),
            ("5", 11, false),
        ] {
            let helped = helped(&cluster, &pod(cpu, priority), 0);
            assert_eq!(helped, expected, "{cpu} {priority}");
        }
        let never = samples::pod_asking("never", "3", "1Gi", |spec| {
            spec.priority = Some(10);
            spec.preemption_policy = Some("Never".into());
        });
        assert!(!helped(&cluster, &never, 0));
        // Room for a nominated pod is not free, but for itself and for more important ones.
        let first = samples::prioritised("first", "2", 10);
        cluster.nominated.put(first.clone(), "n1".into());
        assert!(helped(&cluster, &first, 0));
        assert!(!helped(&cluster, &pod("2", 10), 0));
        assert!(helped(&cluster, &pod("2", 11), 0));
        cluster.remove_node("n1");
        assert!(!helped(&cluster, &pod("1", 10), 0));
    }

    #[test]
    fn a_nominated_pod_waits_for_all_its_victims() {
        let victim = |name: &str| {
            let mut victim = samples::api_pod(name, &[]);
            let container = json!({"name": "c", "resources": {"requests": {"cpu": "1"}}});
            let spec = json!({"priority": 0, "containers": [container]});
            victim.spec = serde_json::from_value(spec).unwrap();
            victim.metadata.deletion_timestamp = Some(samples::time(1));
            Arc::new(PodInfo::new(&victim))
        };
        let mut cluster = samples::cluster(&[("n1", "3", "8Gi")]);
        cluster.put_pod("n1", victim("one"));
        cluster.put_pod("n1", victim("two"));
        let (pod, gone) = (samples::prioritised("p", "3", 10), victim("gone"));
        cluster.nominated.put(pod.clone(), "n1".into());
        for (next, expected) in [("one", false), ("two", true)] {
            cluster.remove_pod(&format!("uid-{next}"));
            let event = Event::PodDeleted(&gone, Some(0));
            assert_eq!(default().is_helped_by(&pod, &event, &cluster), expected);
        }
    }
}
