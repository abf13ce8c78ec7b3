//! The scheduling requirements of a pod's spec, computed once and shared by all equal pods: the
//! replicas of a workload have one template.

use std::{
    collections::{BTreeMap, HashSet},
    hash::{Hash, Hasher},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{
    Container, NodeSelectorTerm, Pod, PodAffinityTerm, PodSpec, Toleration,
    TopologySpreadConstraint, WeightedPodAffinityTerm,
};
use machinery::quantity::Quantity;
use reconcile::Selector;

use crate::{
    disk::Disk,
    in_tree,
    matching::{Labels, Matcher},
    resources::{self, Resources},
};

/// A host port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostPort {
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// `0.0.0.0` for all addresses.
    pub address: String,
    /// The number on the node.
    pub number: i32,
}

impl HostPort {
    /// Whether both cannot be used on one node.
    pub fn collides(&self, other: &Self) -> bool {
        let any = |address: &str| address == "0.0.0.0";
        self.number == other.number
            && self.protocol == other.protocol
            && (self.address == other.address || any(&self.address) || any(&other.address))
    }
}

/// An affinity or anti-affinity term.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Term {
    /// The pods that it matches.
    pub matcher: Arc<Matcher>,
    /// The node label that says what is near.
    pub topology_key: Arc<str>,
    /// For preferences, negative for anti-affinity; 0 for required terms.
    pub weight: i64,
}

impl Term {
    fn new(term: &PodAffinityTerm, namespace: &str, weight: i64) -> Self {
        let mut namespaces = term.namespaces.clone().unwrap_or_default();
        if namespaces.is_empty() && term.namespace_selector.is_none() {
            namespaces.push(namespace.to_owned());
        }
        let selected = term.namespace_selector.as_ref();
        let matcher = Matcher {
            selector: Selector::from_label_selector(term.label_selector.as_ref()),
            namespaces,
            namespace_selector: selected
                .map(|selector| Selector::from_label_selector(Some(selector))),
        };
        Self {
            matcher: Arc::new(matcher),
            topology_key: Arc::from(term.topology_key.as_str()),
            weight,
        }
    }
}

/// A topology spread constraint.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Spread {
    /// The pods that are counted.
    pub matcher: Arc<Matcher>,
    /// The node label whose values are the domains.
    pub topology_key: Arc<str>,
    /// The maximum difference between the fullest and the emptiest domain.
    pub max_skew: i64,
    /// Domains missing to this number count as empty.
    pub min_domains: usize,
    /// `DoNotSchedule` rather than `ScheduleAnyway`.
    pub hard: bool,
    /// Whether only nodes count that the pod's node affinity allows.
    pub honor_affinity: bool,
    /// Whether only nodes count whose taints the pod tolerates.
    pub honor_taints: bool,
}

impl Spread {
    /// The constraint over pods of the namespace; `labels` are those of its pod.
    pub fn new(constraint: &TopologySpreadConstraint, namespace: &str, labels: &Labels) -> Self {
        let keys = constraint.match_label_keys.iter().flatten();
        let own = keys.filter_map(|key| Some((key.clone(), labels.get(key)?.clone())));
        let own = Selector::labels(&own.collect());
        let selector = Selector::from_label_selector(constraint.label_selector.as_ref()).and(&own);
        let min_domains = constraint.min_domains.unwrap_or(1);
        Self {
            matcher: Arc::new(Matcher::within(namespace, selector)),
            topology_key: Arc::from(constraint.topology_key.as_str()),
            max_skew: constraint.max_skew.into(),
            min_domains: usize::try_from(min_domains).unwrap_or(1),
            hard: constraint.when_unsatisfiable == "DoNotSchedule",
            honor_affinity: constraint.node_affinity_policy.as_deref() != Some("Ignore"),
            honor_taints: constraint.node_taints_policy.as_deref() == Some("Honor"),
        }
    }
}

/// Node selector and node affinity.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeRequirements {
    /// All of these labels are required.
    pub selector: Labels,
    /// One of these terms is required, if there are any.
    pub required: Option<Vec<NodeSelectorTerm>>,
    /// Preferred terms with their weights.
    pub preferred: Vec<(i64, NodeSelectorTerm)>,
}

impl NodeRequirements {
    fn new(spec: &PodSpec) -> Self {
        let affinity = spec.affinity.as_ref();
        let affinity = affinity.and_then(|affinity| affinity.node_affinity.as_ref());
        let required = affinity.and_then(|affinity| {
            let required = &affinity.required_during_scheduling_ignored_during_execution;
            Some(required.as_ref()?.node_selector_terms.clone())
        });
        let preferred = affinity
            .and_then(|a| {
                a.preferred_during_scheduling_ignored_during_execution
                    .as_ref()
            })
            .into_iter()
            .flatten()
            .map(|term| (term.weight.into(), term.preference.clone()));
        Self {
            selector: spec.node_selector.clone().unwrap_or_default(),
            required,
            preferred: preferred.collect(),
        }
    }

    /// Whether every node matches.
    pub fn is_empty(&self) -> bool {
        self.selector.is_empty() && self.required.is_none()
    }

    /// Whether a node with these labels and this name matches.
    pub fn matches(&self, labels: &Labels, name: &str) -> bool {
        let selected = |(key, value)| labels.get(key) == Some(value);
        self.selector.iter().all(selected)
            && self
                .required
                .as_ref()
                .is_none_or(|terms| reconcile::placement::matches_any(terms, labels, name))
    }
}

/// A PersistentVolumeClaim that the pod uses.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum VolumeClaim {
    /// By its name.
    Named(String),
    /// Of a generic ephemeral volume of this name; the claim is named after the pod and the volume.
    Ephemeral(String),
}

/// A container of a pod that requests extended resources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerRequests {
    /// Its index among init containers and containers.
    pub index: usize,
    /// Its name.
    pub name: String,
    /// Whether it ends before the containers start.
    pub is_short_lived: bool,
    /// All of its requests.
    pub requests: BTreeMap<String, i64>,
}

/// A pod's controller, for default spreading.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Owner {
    /// `apps/v1` or `v1`.
    pub api_version: String,
    /// `ReplicaSet`, …
    pub kind: String,
    /// The controller's name.
    pub name: String,
}

/// Everything derived from the spec, the namespace and the owner.
#[derive(Debug, Default, PartialEq)]
pub struct Template {
    /// The pods' namespace.
    pub namespace: Arc<str>,
    /// `default-scheduler` unless the pod says otherwise.
    pub scheduler_name: String,
    /// Higher priorities are scheduled first.
    pub priority: i32,
    /// `preemptionPolicy: Never`.
    pub never_preempts: bool,
    /// The requests.
    pub requests: Resources,
    /// CPU and memory requests with defaults, for scoring.
    pub non_zero: (i64, i64),
    /// Host ports.
    pub ports: Vec<HostPort>,
    /// Node selector and node affinity; shared so that results can be cached by address.
    pub node: Arc<NodeRequirements>,
    /// Tolerations.
    pub tolerations: Vec<Toleration>,
    /// Required affinity.
    pub affinity: Vec<Term>,
    /// Required anti-affinity.
    pub anti_affinity: Vec<Term>,
    /// Preferred affinity (positive weight) and anti-affinity (negative).
    pub preferences: Vec<Term>,
    /// Spread constraints of the pod itself.
    pub spread: Vec<Spread>,
    /// Images of containers and image volumes, with a tag or digest.
    pub images: Vec<String>,
    /// The number of containers and init containers.
    pub containers: usize,
    /// The remaining scheduling gates.
    pub gates: Vec<String>,
    /// Claims that must be bound before the pod can run.
    pub claims: Vec<VolumeClaim>,
    /// In-line disks that pods of one node cannot share.
    pub disks: Vec<Disk>,
    /// In-line volumes that CSI drivers serve: driver and handle.
    pub migrated: Vec<(&'static str, String)>,
    /// Resource claims: the name in the pod, and the claim if it is named directly.
    pub resource_claims: Vec<(String, Option<String>)>,
    /// Features that the node must declare.
    pub features: Vec<&'static str>,
    /// The containers, if one of them requests an extended resource.
    pub extended: Vec<ContainerRequests>,
    /// The controller.
    pub owner: Option<Owner>,
}

impl Eq for Template {}

impl Hash for Template {
    /// Hashes only what differs most and is cheap: equality compares the rest.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.namespace.hash(state);
        self.owner.hash(state);
        self.priority.hash(state);
        self.requests.hash(state);
        self.images.hash(state);
        self.preferences.len().hash(state);
        self.spread.len().hash(state);
    }
}

impl Template {
    /// Computes the template of a pod.
    pub fn new(pod: &Pod) -> Self {
        let empty = PodSpec::default();
        let spec = pod.spec.as_ref().unwrap_or(&empty);
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let none = Labels::new();
        let labels = pod.metadata.labels.as_ref().unwrap_or(&none);
        let (affinity, anti_affinity, preferences) = terms(spec, namespace);
        let spread = spec.topology_spread_constraints.iter().flatten();
        let spread = spread.map(|constraint| Spread::new(constraint, namespace, labels));
        let scheduler = spec
            .scheduler_name
            .as_deref()
            .filter(|name| !name.is_empty());
        let gates = spec.scheduling_gates.iter().flatten();
        let inits = spec.init_containers.as_deref().unwrap_or_default();
        Self {
            scheduler_name: scheduler.unwrap_or("default-scheduler").to_owned(),
            priority: spec.priority.unwrap_or(0),
            never_preempts: spec.preemption_policy.as_deref() == Some("Never"),
            requests: resources::requests(pod),
            non_zero: resources::non_zero(pod),
            ports: ports(spec),
            node: Arc::new(NodeRequirements::new(spec)),
            tolerations: spec.tolerations.clone().unwrap_or_default(),
            affinity,
            anti_affinity,
            preferences,
            spread: spread.collect(),
            images: images(spec),
            containers: spec.containers.len() + inits.len(),
            gates: gates.map(|gate| gate.name.clone()).collect(),
            claims: claims(spec),
            disks: disks(spec),
            migrated: migrated(spec),
            resource_claims: resource_claims(spec),
            features: features(spec),
            extended: extended(spec),
            owner: owner(pod),
            namespace: Arc::from(namespace),
        }
    }

    /// Whether placed pods with it affect the affinity of others.
    pub fn has_terms(&self) -> bool {
        !(self.affinity.is_empty() && self.anti_affinity.is_empty() && self.preferences.is_empty())
    }
}

/// Deduplicates equal values.
#[derive(Debug)]
pub struct Interner<T> {
    known: HashSet<Arc<T>>,
    /// The number in use at the last cleanup.
    kept: usize,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self {
            known: HashSet::new(),
            kept: 0,
        }
    }
}

impl<T: Eq + Hash> Interner<T> {
    /// The shared instance of a value.
    pub fn intern(&mut self, value: T) -> Arc<T> {
        if let Some(known) = self.known.get(&value) {
            return known.clone();
        }
        if self.known.len() > 2 * self.kept + 1024 {
            self.known.retain(|known| Arc::strong_count(known) > 1);
            self.kept = self.known.len();
        }
        let shared = Arc::new(value);
        self.known.insert(shared.clone());
        shared
    }
}

fn terms(spec: &PodSpec, namespace: &str) -> (Vec<Term>, Vec<Term>, Vec<Term>) {
    let affinity = spec.affinity.as_ref();
    let near = affinity.and_then(|affinity| affinity.pod_affinity.as_ref());
    let far = affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref());
    let required = |terms: Option<&Vec<PodAffinityTerm>>| -> Vec<Term> {
        let terms = terms.into_iter().flatten();
        terms.map(|term| Term::new(term, namespace, 0)).collect()
    };
    let preferred = |terms: Option<&Vec<WeightedPodAffinityTerm>>, sign: i64| -> Vec<Term> {
        let weighted = |term: &WeightedPodAffinityTerm| {
            Term::new(
                &term.pod_affinity_term,
                namespace,
                sign * i64::from(term.weight),
            )
        };
        terms.into_iter().flatten().map(weighted).collect()
    };
    let mut preferences = preferred(
        near.and_then(|a| {
            a.preferred_during_scheduling_ignored_during_execution
                .as_ref()
        }),
        1,
    );
    preferences.extend(preferred(
        far.and_then(|a| {
            a.preferred_during_scheduling_ignored_during_execution
                .as_ref()
        }),
        -1,
    ));
    (
        required(near.and_then(|a| {
            a.required_during_scheduling_ignored_during_execution
                .as_ref()
        })),
        required(far.and_then(|a| {
            a.required_during_scheduling_ignored_during_execution
                .as_ref()
        })),
        preferences,
    )
}

fn is_sidecar(container: &&Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

fn ports(spec: &PodSpec) -> Vec<HostPort> {
    let sidecars = spec.init_containers.iter().flatten().filter(is_sidecar);
    let containers = spec.containers.iter().chain(sidecars);
    let ports = containers.flat_map(|container| container.ports.iter().flatten());
    let host = |port: &k8s_openapi::api::core::v1::ContainerPort| {
        let address = port.host_ip.as_deref().filter(|ip| !ip.is_empty());
        let protocol = port.protocol.as_deref().filter(|name| !name.is_empty());
        Some(HostPort {
            number: port.host_port.filter(|number| *number > 0)?,
            protocol: protocol.unwrap_or("TCP").to_owned(),
            address: address.unwrap_or("0.0.0.0").to_owned(),
        })
    };
    ports.filter_map(host).collect()
}

fn images(spec: &PodSpec) -> Vec<String> {
    let containers = spec
        .init_containers
        .iter()
        .flatten()
        .chain(&spec.containers);
    let volumes = spec.volumes.iter().flatten();
    let volumes = volumes.filter_map(|volume| volume.image.as_ref()?.reference.as_deref());
    let images = containers.filter_map(|container| container.image.as_deref());
    images.chain(volumes).map(with_tag).collect()
}

/// Adds `:latest`, since nodes list images with a tag or digest.
fn with_tag(image: &str) -> String {
    if image.rfind(':') <= image.rfind('/') {
        format!("{image}:latest")
    } else {
        image.to_owned()
    }
}

fn claims(spec: &PodSpec) -> Vec<VolumeClaim> {
    let claim = |volume: &k8s_openapi::api::core::v1::Volume| {
        if let Some(claim) = &volume.persistent_volume_claim {
            return Some(VolumeClaim::Named(claim.claim_name.clone()));
        }
        let ephemeral = volume.ephemeral.is_some();
        ephemeral.then(|| VolumeClaim::Ephemeral(volume.name.clone()))
    };
    spec.volumes.iter().flatten().filter_map(claim).collect()
}

fn disks(spec: &PodSpec) -> Vec<Disk> {
    let volumes = spec.volumes.iter().flatten();
    volumes.filter_map(Disk::new).collect()
}

fn migrated(spec: &PodSpec) -> Vec<(&'static str, String)> {
    let volumes = spec.volumes.iter().flatten();
    volumes.filter_map(in_tree::inline).collect()
}

fn resource_claims(spec: &PodSpec) -> Vec<(String, Option<String>)> {
    let claims = spec.resource_claims.iter().flatten();
    claims
        .map(|claim| (claim.name.clone(), claim.resource_claim_name.clone()))
        .collect()
}

/// The containers, if one of them requests an extended resource.
fn extended(spec: &PodSpec) -> Vec<ContainerRequests> {
    let inits = spec.init_containers.iter().flatten();
    let inits = inits.map(|container| (container, !is_sidecar(&container)));
    let containers = spec.containers.iter().map(|container| (container, false));
    let all = inits.chain(containers).enumerate();
    let all: Vec<ContainerRequests> = all
        .map(|(index, (container, is_short_lived))| {
            let resources = container.resources.as_ref();
            let requests = resources.and_then(|resources| resources.requests.as_ref());
            let requests = requests.into_iter().flatten().map(|(name, quantity)| {
                let amount = quantity.0.parse::<Quantity>();
                (name.clone(), amount.map_or(0, Quantity::value))
            });
            ContainerRequests {
                index,
                name: container.name.clone(),
                is_short_lived,
                requests: requests.collect(),
            }
        })
        .collect();
    let is_extended = |one: &ContainerRequests| one.requests.keys().any(|name| name.contains('/'));
    let has_any = all.iter().any(is_extended);
    if has_any { all } else { Vec::new() }
}

/// The node features that v1.36 infers from a pod's spec.
fn features(spec: &PodSpec) -> Vec<&'static str> {
    let mut features = Vec::new();
    let mut containers = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten());
    let restarts_all = containers.any(|container| {
        let mut rules = container.restart_policy_rules.iter().flatten();
        rules.any(|rule| rule.action == "RestartAllContainers")
    });
    if restarts_all {
        features.push("RestartAllContainersOnContainerExits");
    }
    if spec.host_network == Some(true) && spec.host_users == Some(false) {
        features.push("UserNamespacesHostNetworkSupport");
    }
    features
}

fn owner(pod: &Pod) -> Option<Owner> {
    let mut owners = pod.metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.controller == Some(true))?;
    Some(Owner {
        api_version: owner.api_version.clone(),
        kind: owner.kind.clone(),
        name: owner.name.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_get_a_tag_only_where_they_have_none() {
        for (image, name) in [
            ("nginx", "nginx:latest"),
            ("registry:5000/nginx", "registry:5000/nginx:latest"),
            ("nginx:1", "nginx:1"),
            ("nginx@sha256:ab", "nginx@sha256:ab"),
        ] {
            assert_eq!(with_tag(image), name);
        }
    }

    #[test]
    fn equal_templates_share_one_address() {
        let mut templates = Interner::default();
        let pod = |name: &str, priority| {
            let mut pod = Pod::default();
            pod.metadata.name = Some(name.into());
            pod.spec = Some(PodSpec {
                priority: Some(priority),
                ..Default::default()
            });
            Template::new(&pod)
        };
        let one = templates.intern(pod("a", 1));
        assert!(Arc::ptr_eq(&one, &templates.intern(pod("b", 1))));
        assert!(!Arc::ptr_eq(&one, &templates.intern(pod("c", 2))));
    }
}
