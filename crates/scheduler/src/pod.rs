//! A pod as the scheduler sees it: everything it asks for, worked out once.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodAffinityTerm, PodSpec, TopologySpreadConstraint};
use reconcile::Selector;

use crate::resources::{self, Resources};

/// A port that the pod wants on its node: protocol, address, number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// `0.0.0.0` for all.
    pub address: String,
    /// The number on the node.
    pub number: i32,
}

impl HostPort {
    /// Whether both cannot be had on one node.
    pub fn collides(&self, other: &Self) -> bool {
        let anywhere = |address: &str| matches!(address, "0.0.0.0" | "::");
        self.number == other.number
            && self.protocol == other.protocol
            && (self.address == other.address
                || anywhere(&self.address)
                || anywhere(&other.address))
    }
}

/// Other pods that a pod wants near or far.
#[derive(Debug, Clone)]
pub struct Term {
    selector: Selector,
    namespaces: Vec<String>,
    namespace_selector: Option<Selector>,
    /// What "near" means.
    pub topology_key: String,
    /// For preferences; required terms have none.
    pub weight: i64,
}

impl Term {
    fn of(term: &PodAffinityTerm, pod: &Pod, weight: i64) -> Self {
        let mut namespaces = term.namespaces.clone().unwrap_or_default();
        if namespaces.is_empty() && term.namespace_selector.is_none() {
            namespaces.push(pod.metadata.namespace.clone().unwrap_or_default());
        }
        Self {
            selector: Selector::of(term.label_selector.as_ref()),
            namespaces,
            namespace_selector: term
                .namespace_selector
                .as_ref()
                .map(|s| Selector::of(Some(s))),
            topology_key: term.topology_key.clone(),
            weight,
        }
    }

    /// Whether the term speaks of this pod.
    pub fn matches(&self, pod: &PodInfo, namespaces: &Namespaces) -> bool {
        let place = self.namespaces.contains(&pod.namespace)
            || self.namespace_selector.as_ref().is_some_and(|selector| {
                selector.matches(namespaces.get(&pod.namespace)) || selector.is_everything()
            });
        place && self.selector.matches(pod.labels())
    }
}

/// The labels of namespaces.
pub type Namespaces = BTreeMap<String, BTreeMap<String, String>>;

/// A wish to spread.
#[derive(Debug, Clone)]
pub struct Spread {
    /// The constraint.
    pub constraint: TopologySpreadConstraint,
    /// Which pods are counted.
    pub selector: Selector,
}

/// Worked out once per version of a pod.
#[derive(Debug)]
pub struct PodInfo {
    /// The object.
    pub pod: Arc<Pod>,
    /// Its uid.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Higher goes first.
    pub priority: i32,
    /// What must be free.
    pub requests: Resources,
    /// What is counted when nodes are compared.
    pub weights: Resources,
    /// Ports on the node.
    pub ports: Vec<HostPort>,
    /// Required to be near.
    pub affinity: Vec<Term>,
    /// Required to be far.
    pub anti_affinity: Vec<Term>,
    /// Better near (positive weight) or far (negative).
    pub preferences: Vec<Term>,
    /// Must or should spread.
    pub spread: Vec<Spread>,
    /// When it was made.
    pub created: Timestamp,
}

impl PodInfo {
    /// Works everything out.
    pub fn new(pod: Arc<Pod>) -> Self {
        let spec = pod.spec.clone().unwrap_or_default();
        let (affinity, anti_affinity, preferences) = terms(&pod, &spec);
        let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
        Self {
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            priority: spec.priority.unwrap_or(0),
            requests: resources::requests(&spec),
            weights: resources::weights(&spec),
            ports: ports(&spec),
            affinity,
            anti_affinity,
            preferences,
            spread: spreads(&pod, &spec),
            created: created.unwrap_or(Timestamp::UNIX_EPOCH),
            pod,
        }
    }

    /// Its labels.
    pub fn labels(&self) -> Option<&BTreeMap<String, String>> {
        self.pod.metadata.labels.as_ref()
    }

    /// The spec; every pod has one.
    pub fn spec(&self) -> &PodSpec {
        static EMPTY: std::sync::LazyLock<PodSpec> = std::sync::LazyLock::new(PodSpec::default);
        self.pod.spec.as_ref().unwrap_or(&EMPTY)
    }

    /// Every topology key that it mentions.
    pub fn topology_keys(&self) -> impl Iterator<Item = &str> {
        let terms = self
            .affinity
            .iter()
            .chain(&self.anti_affinity)
            .chain(&self.preferences);
        let spread = self
            .spread
            .iter()
            .map(|spread| spread.constraint.topology_key.as_str());
        terms.map(|term| term.topology_key.as_str()).chain(spread)
    }
}

fn terms(pod: &Pod, spec: &PodSpec) -> (Vec<Term>, Vec<Term>, Vec<Term>) {
    let (mut near, mut far, mut preferences) = (Vec::new(), Vec::new(), Vec::new());
    let Some(affinity) = &spec.affinity else {
        return (near, far, preferences);
    };
    if let Some(affinity) = &affinity.pod_affinity {
        let required = affinity
            .required_during_scheduling_ignored_during_execution
            .iter()
            .flatten();
        near.extend(required.map(|term| Term::of(term, pod, 0)));
        let preferred = affinity
            .preferred_during_scheduling_ignored_during_execution
            .iter()
            .flatten();
        preferences.extend(
            preferred.map(|term| Term::of(&term.pod_affinity_term, pod, term.weight.into())),
        );
    }
    if let Some(affinity) = &affinity.pod_anti_affinity {
        let required = affinity
            .required_during_scheduling_ignored_during_execution
            .iter()
            .flatten();
        far.extend(required.map(|term| Term::of(term, pod, 0)));
        let preferred = affinity
            .preferred_during_scheduling_ignored_during_execution
            .iter()
            .flatten();
        preferences.extend(
            preferred.map(|term| Term::of(&term.pod_affinity_term, pod, -i64::from(term.weight))),
        );
    }
    (near, far, preferences)
}

fn spreads(pod: &Pod, spec: &PodSpec) -> Vec<Spread> {
    let constraints = spec.topology_spread_constraints.iter().flatten();
    let spread = |constraint: &TopologySpreadConstraint| {
        let mut selector = constraint.label_selector.clone().unwrap_or_default();
        let labels = pod.metadata.labels.as_ref();
        for key in constraint.match_label_keys.iter().flatten() {
            if let Some(value) = labels.and_then(|labels| labels.get(key)) {
                selector
                    .match_labels
                    .get_or_insert_default()
                    .insert(key.clone(), value.clone());
            }
        }
        let absent = constraint.label_selector.is_none();
        let selector = if absent {
            Selector::nothing()
        } else {
            Selector::of(Some(&selector))
        };
        Spread {
            constraint: constraint.clone(),
            selector,
        }
    };
    constraints.map(spread).collect()
}

fn ports(spec: &PodSpec) -> Vec<HostPort> {
    let sidecars = spec.init_containers.iter().flatten();
    let sidecars = sidecars.filter(|init| init.restart_policy.as_deref() == Some("Always"));
    let ports = spec
        .containers
        .iter()
        .chain(sidecars)
        .flat_map(|c| c.ports.iter().flatten());
    let host = |port: &k8s_openapi::api::core::v1::ContainerPort| {
        let number = port.host_port.filter(|number| *number > 0)?;
        Some(HostPort {
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".into()),
            address: port
                .host_ip
                .clone()
                .filter(|ip| !ip.is_empty())
                .unwrap_or("0.0.0.0".into()),
            number,
        })
    };
    ports.filter_map(host).collect()
}
