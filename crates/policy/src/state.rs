//! Pods, namespaces and policies of the cluster, and the resulting table of this node. Pure.
//!
//! A policy is in the table while it selects a pod of this node, and a selector while a rule uses
//! it. Pods of this node with the same policies share a chain. A pod whose labels are not known yet
//! has no traffic while its namespace has policies.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use k8s_openapi::api::core::v1 as core;
use network::{Protocol, names::object_hash, nft::Batch};

mod budget;

use crate::{
    policy::{Direction, Key, Labels, Policy},
    rules::{Compiled, FAMILIES, Family, NamedSet, address_range, compile, port_range},
    table::{Chain, Table},
};

/// nft's maximum length of comments.
const COMMENT_BYTES: usize = 120;

/// The parts of a pod that policies use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pod {
    /// Its labels.
    pub labels: Labels,
    /// Its addresses.
    pub addresses: BTreeSet<IpAddr>,
    /// Whether it runs on this node.
    pub local: bool,
    /// Its named ports.
    pub ports: BTreeSet<(Protocol, String, u16)>,
}

impl Pod {
    /// From the API object. Host network pods count as the node, and addresses of terminated pods
    /// may belong to others.
    pub fn from_object(pod: &core::Pod, node: &str) -> Option<Self> {
        let (spec, status) = (pod.spec.as_ref()?, pod.status.as_ref());
        let phase = status.and_then(|status| status.phase.as_deref());
        if spec.host_network == Some(true) || matches!(phase, Some("Succeeded" | "Failed")) {
            return None;
        }
        let listed = status.and_then(|status| status.pod_ips.as_ref());
        let listed = listed.into_iter().flatten().map(|ip| ip.ip.as_str());
        let first = status.and_then(|status| status.pod_ip.as_deref());
        let addresses = listed.chain(first).filter_map(|ip| ip.parse().ok());
        let sidecars = spec.init_containers.iter().flatten();
        let sidecars = sidecars.filter(|c| c.restart_policy.as_deref() == Some("Always"));
        let ports = spec.containers.iter().chain(sidecars);
        let ports = ports.flat_map(|container| container.ports.iter().flatten());
        let named = ports.filter_map(|port| {
            let protocol = Protocol::from_kubernetes(port.protocol.as_deref())?;
            let number = u16::try_from(port.container_port).ok()?;
            Some((protocol, port.name.clone()?, number))
        });
        Some(Self {
            labels: pod.metadata.labels.clone().unwrap_or_default(),
            addresses: addresses.collect(),
            local: spec.node_name.as_deref() == Some(node),
            ports: named.collect(),
        })
    }
}

/// Elements by set.
type Elements = BTreeMap<String, BTreeSet<String>>;

/// The elements that others lack.
fn missing<'a>(
    all: &'a Elements,
    others: &'a Elements,
) -> impl Iterator<Item = (&'a str, &'a str)> {
    all.iter().flat_map(move |(set, elements)| {
        let known = others.get(set);
        let elements = elements.iter();
        let elements =
            elements.filter(move |element| !known.is_some_and(|known| known.contains(*element)));
        elements.map(move |element| (set.as_str(), element.as_str()))
    })
}

/// A pod's state in the table.
#[derive(Debug, Default)]
struct Tracked {
    /// From the API.
    pod: Option<Pod>,
    /// The addresses that this node's network assigned.
    attached: BTreeSet<IpAddr>,
    /// Its elements in the sets of rules.
    elements: Elements,
    /// Its addresses in the verdict maps.
    judged: BTreeSet<IpAddr>,
    /// Its verdicts by direction.
    verdicts: BTreeMap<Direction, Verdict>,
}

/// What happens to an isolated pod's connections.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    /// Dropped: its labels are not known yet.
    Drop,
    /// These policies decide.
    Policies(Vec<Key>),
}

impl Verdict {
    fn chain(&self, direction: Direction) -> Option<String> {
        match self {
            Self::Drop => None,
            Self::Policies(keys) => {
                let hash = object_hash(&format!("{keys:?}"));
                Some(format!("pod-{}-{hash}", direction.as_str()))
            }
        }
    }

    fn statement(&self, direction: Direction) -> String {
        self.chain(direction)
            .map_or_else(|| "drop".to_owned(), |chain| format!("goto {chain}"))
    }
}

/// The chain of a policy that selects pods of this node.
#[derive(Debug)]
struct InUse {
    /// The number of pod chains that jump to it.
    users: usize,
    /// Its rules.
    compiled: Arc<Compiled>,
    /// Its rules in the table; `None` if it has none there.
    written: Option<Arc<Compiled>>,
}

/// The state of the cluster and of the table.
#[derive(Debug)]
pub struct State {
    table: Table,
    namespaces: BTreeMap<String, Labels>,
    policies: BTreeMap<Key, Policy>,
    pods: BTreeMap<Key, Tracked>,
    /// This node's pods by address; several while an address changes owner.
    by_address: BTreeMap<IpAddr, BTreeSet<Key>>,
    in_use: BTreeMap<(Direction, Key), InUse>,
    /// Pod chains, with the number of pods that share each.
    shared: BTreeMap<String, usize>,
    /// Sets of rules, with the number of policy chains that use each.
    asked: BTreeMap<String, (NamedSet, usize)>,
    /// Whether chains of policies changed since rules were last chosen.
    is_unfitted: bool,
    /// The number of pods when rules were last chosen.
    fitted_pods: usize,
    /// Namespaces whose policies cost too much: they allow nothing.
    refused: BTreeSet<String>,
    /// What all policies may cost.
    budget: usize,
}

/// The type and the elements of a set that does not depend on pods.
fn constant(asked: &NamedSet) -> Option<(&'static str, Vec<String>)> {
    match asked {
        NamedSet::Numbers(ranges) => {
            let ranges = ranges.iter().copied().map(port_range);
            Some(("inet_service", ranges.collect()))
        }
        NamedSet::Blocks(ranges) => {
            let kind = ranges.first().map(|(ip, _)| Family::from_address(*ip).kind);
            let ranges = ranges.iter().copied().map(address_range);
            Some((kind?, ranges.collect()))
        }
        NamedSet::Pods(_) | NamedSet::NamedPorts(..) => None,
    }
}

fn policy_chain(direction: Direction, key: &Key) -> String {
    let hash = object_hash(&format!("{}/{}", key.0, key.1));
    format!("policy-{}-{hash}", direction.as_str())
}

fn comment(key: &Key) -> String {
    let mut text = format!("{}/{}", key.0, key.1);
    text.truncate(COMMENT_BYTES);
    format!("comment \"{text}\";")
}

impl State {
    /// A table that allows everything.
    pub fn new(table: String) -> Self {
        let mut table = Table::new(table);
        frame(&mut table);
        Self {
            table,
            namespaces: BTreeMap::new(),
            policies: BTreeMap::new(),
            pods: BTreeMap::new(),
            by_address: BTreeMap::new(),
            in_use: BTreeMap::new(),
            shared: BTreeMap::new(),
            asked: BTreeMap::new(),
            is_unfitted: false,
            fitted_pods: 0,
            refused: BTreeSet::new(),
            budget: budget::BUDGET,
        }
    }

    /// The table's name.
    pub fn table(&self) -> &str {
        self.table.name()
    }

    /// The statements for the changes since the last commit.
    pub fn commit(&mut self) -> Batch {
        self.fit();
        self.table.commit()
    }

    /// The whole table, written from scratch.
    pub fn full(&mut self) -> Batch {
        self.fit();
        self.table.full()
    }

    /// The namespaces whose policies allow nothing, since they cost too much.
    pub fn refused(&self) -> &BTreeSet<String> {
        &self.refused
    }

    /// A pod was added, changed, terminated or deleted.
    pub fn set_pod(&mut self, key: &Key, pod: Option<Pod>) {
        let known = self.pods.get(key).and_then(|tracked| tracked.pod.as_ref());
        if known == pod.as_ref() {
            return;
        }
        self.pods.entry(key.clone()).or_default().pod = pod;
        self.refresh_pod(key);
    }

    /// This node's network assigned addresses to a pod; from now on its policies apply to them,
    /// whatever the API shows.
    pub fn attach(&mut self, key: &Key, addresses: &[IpAddr]) {
        self.take_away(addresses);
        let tracked = self.pods.entry(key.clone()).or_default();
        tracked.attached.extend(addresses.iter().copied());
        self.refresh_pod(key);
    }

    /// This node's network released addresses of a pod.
    pub fn detach(&mut self, key: &Key, addresses: &BTreeSet<IpAddr>) {
        if let Some(tracked) = self.pods.get_mut(key) {
            tracked.attached.retain(|ip| !addresses.contains(ip));
            self.refresh_pod(key);
        }
    }

    /// Removes attached addresses from the pods that have them.
    fn take_away(&mut self, addresses: &[IpAddr]) {
        let has = |tracked: &Tracked| addresses.iter().any(|ip| tracked.attached.contains(ip));
        let had = self.pods.iter().filter(|(_, tracked)| has(tracked));
        let keys: Vec<Key> = had.map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.detach(&key, &addresses.iter().copied().collect());
        }
    }

    /// A namespace was added, relabelled or deleted.
    pub fn set_namespace(&mut self, name: &str, labels: Option<Labels>) {
        if self.namespaces.get(name) == labels.as_ref() {
            return;
        }
        match labels {
            Some(labels) => self.namespaces.insert(name.to_owned(), labels),
            None => self.namespaces.remove(name),
        };
        for key in self.pods_in(name) {
            self.refresh_elements(&key);
        }
    }

    /// A policy was added, changed or deleted.
    pub fn set_policy(&mut self, key: &Key, policy: Option<Policy>) {
        if self.policies.get(key) == policy.as_ref() {
            return;
        }
        match policy {
            Some(policy) => self.policies.insert(key.clone(), policy),
            None => self.policies.remove(key),
        };
        for direction in Direction::ALL {
            self.recompile(direction, key);
        }
        for pod in self.pods_in(&key.0) {
            self.refresh_verdicts(&pod);
        }
    }

    fn pods_in(&self, namespace: &str) -> Vec<Key> {
        let first = (namespace.to_owned(), String::new());
        let following = self.pods.range(first..).map(|(key, _)| key);
        let inside = following.take_while(|key| key.0 == namespace);
        inside.cloned().collect()
    }

    fn refresh_pod(&mut self, key: &Key) {
        self.refresh_elements(key);
        self.refresh_verdicts(key);
        let is_over = |tracked: &Tracked| tracked.pod.is_none() && tracked.attached.is_empty();
        if self.pods.get(key).is_some_and(is_over) {
            self.pods.remove(key);
        }
    }

    // Sets of rules.

    /// A pod's elements of a set, with the family's suffix in its name.
    fn wanted(&self, key: &Key, name: &str, asked: &NamedSet) -> Vec<(String, String)> {
        let Some(tracked) = self.pods.get(key) else {
            return Vec::new();
        };
        let Some(pod) = &tracked.pod else {
            return Vec::new();
        };
        let addresses =
            || -> BTreeSet<&IpAddr> { pod.addresses.union(&tracked.attached).collect() };
        let set = |ip: &IpAddr| format!("{name}{}", Family::from_address(*ip).digit);
        match asked {
            NamedSet::Pods(queries) => {
                let namespace = self.namespaces.get(&key.0);
                let mut queries = queries.iter();
                if !queries.any(|query| query.matches(&key.0, namespace, &pod.labels)) {
                    return Vec::new();
                }
                let element = |ip: &IpAddr| (set(ip), ip.to_string());
                addresses().into_iter().map(element).collect()
            }
            NamedSet::NamedPorts(protocol, names) => {
                let ports = pod.ports.iter();
                let named = ports.filter(|port| port.0 == *protocol && names.contains(&port.1));
                // Two names of one number are one element.
                let numbers: BTreeSet<u16> = named.map(|port| port.2).collect();
                let element = |ip: &IpAddr| {
                    let numbers = numbers.iter();
                    let elements = numbers.map(|port| (set(ip), format!("{ip} . {port}")));
                    elements.collect::<Vec<_>>()
                };
                addresses().into_iter().flat_map(element).collect()
            }
            NamedSet::Numbers(_) | NamedSet::Blocks(_) => Vec::new(),
        }
    }

    fn refresh_elements(&mut self, key: &Key) {
        let mut wanted = Elements::new();
        for (name, (asked, _)) in &self.asked {
            for (set, element) in self.wanted(key, name, asked) {
                wanted.entry(set).or_default().insert(element);
            }
        }
        let Some(tracked) = self.pods.get_mut(key) else {
            return;
        };
        let before = std::mem::replace(&mut tracked.elements, wanted);
        for (set, element) in missing(&before, &tracked.elements) {
            self.table.release_element(set, element);
        }
        for (set, element) in missing(&tracked.elements, &before) {
            self.table.add_element(set, element);
        }
    }

    fn ask(&mut self, name: &str, asked: &NamedSet) {
        if let Some((_, users)) = self.asked.get_mut(name) {
            *users += 1;
            return;
        }
        self.asked.insert(name.to_owned(), (asked.clone(), 1));
        if let Some((kind, ranges)) = constant(asked) {
            let declaration = format!("type {kind}; flags interval;");
            self.table.add_set(name, declaration);
            for range in ranges {
                self.table.add_element(name, &range);
            }
            return;
        }
        for Family { kind, digit, .. } in FAMILIES {
            let kind = match asked {
                NamedSet::NamedPorts(..) => format!("type {kind} . inet_service;"),
                _ => format!("type {kind};"),
            };
            self.table.add_set(&format!("{name}{digit}"), kind);
        }
        let pods: Vec<Key> = match asked.namespace() {
            Some(namespace) => self.pods_in(namespace),
            None => self.pods.keys().cloned().collect(),
        };
        for key in pods {
            for (set, element) in self.wanted(&key, name, asked) {
                self.table.add_element(&set, &element);
                if let Some(tracked) = self.pods.get_mut(&key) {
                    tracked.elements.entry(set).or_default().insert(element);
                }
            }
        }
    }

    fn stop_asking(&mut self, name: &str) {
        let Some((asked, users)) = self.asked.get_mut(name) else {
            return;
        };
        *users -= 1;
        if *users > 0 {
            return;
        }
        let sets = match asked {
            NamedSet::Numbers(_) | NamedSet::Blocks(_) => vec![name.to_owned()],
            _ => FAMILIES
                .map(|family| format!("{name}{}", family.digit))
                .to_vec(),
        };
        self.asked.remove(name);
        for set in &sets {
            self.table.remove_set(set);
        }
        for tracked in self.pods.values_mut() {
            for set in &sets {
                tracked.elements.remove(set);
            }
        }
    }

    // Policy chains.

    /// Updates a policy's rules, if it is in use.
    fn recompile(&mut self, direction: Direction, key: &Key) {
        let rules = self
            .policies
            .get(key)
            .and_then(|policy| policy.rules(direction));
        let in_use = self.in_use.get_mut(&(direction, key.clone()));
        // Pod chains that are about to be removed may still jump to the chain of a deleted policy.
        if let (Some(rules), Some(in_use)) = (rules, in_use) {
            in_use.compiled = Arc::new(compile(direction, rules));
            self.is_unfitted = true;
        }
    }

    fn use_policy(&mut self, direction: Direction, key: &Key) {
        let place = (direction, key.clone());
        if let Some(in_use) = self.in_use.get_mut(&place) {
            in_use.users += 1;
            return;
        }
        let rules = self
            .policies
            .get(key)
            .and_then(|policy| policy.rules(direction));
        let compiled = Arc::new(compile(direction, rules.unwrap_or_default()));
        self.put_policy_chain(direction, key, None);
        let in_use = InUse {
            users: 1,
            compiled,
            written: None,
        };
        self.in_use.insert(place, in_use);
        self.is_unfitted = true;
    }

    fn stop_using_policy(&mut self, direction: Direction, key: &Key) {
        let place = (direction, key.clone());
        let Some(in_use) = self.in_use.get_mut(&place) else {
            return;
        };
        in_use.users -= 1;
        if in_use.users > 0 {
            return;
        }
        let over = self.in_use.remove(&place);
        self.table.remove_chain(&policy_chain(direction, key));
        let written = over.and_then(|over| over.written);
        for name in written.iter().flat_map(|written| written.asked.keys()) {
            self.stop_asking(name);
        }
        self.is_unfitted = true;
    }

    fn put_policy_chain(&mut self, direction: Direction, key: &Key, compiled: Option<&Compiled>) {
        let rules = compiled.map(|compiled| compiled.rules.clone());
        let chain = Chain {
            header: comment(key),
            rules: rules.unwrap_or_default(),
        };
        self.table.put_chain(&policy_chain(direction, key), chain);
    }

    // Pod chains, and the verdict maps.

    fn verdicts(&self, key: &Key) -> BTreeMap<Direction, Verdict> {
        let mut verdicts = BTreeMap::new();
        let Some(tracked) = self.pods.get(key) else {
            return verdicts;
        };
        let on_node = |pod: &Pod| pod.local && !pod.addresses.is_empty();
        if !tracked.pod.as_ref().is_some_and(on_node) && tracked.attached.is_empty() {
            return verdicts;
        }
        let first = (key.0.clone(), String::new());
        let policies = self.policies.range(first..);
        let policies = policies.take_while(|(policy, _)| policy.0 == key.0);
        for (policy_key, policy) in policies {
            for direction in Direction::ALL {
                if policy.rules(direction).is_none() {
                    continue;
                }
                match &tracked.pod {
                    None => {
                        verdicts.insert(direction, Verdict::Drop);
                    }
                    Some(pod) if policy.selector.matches(Some(&pod.labels)) => {
                        let none = || Verdict::Policies(Vec::new());
                        let verdict = verdicts.entry(direction).or_insert_with(none);
                        if let Verdict::Policies(keys) = verdict {
                            keys.push(policy_key.clone());
                        }
                    }
                    Some(_) => {}
                }
            }
        }
        verdicts
    }

    fn refresh_verdicts(&mut self, key: &Key) {
        let verdicts = self.verdicts(key);
        let Some(tracked) = self.pods.get(key) else {
            return;
        };
        let own = tracked.pod.as_ref().filter(|pod| pod.local);
        let own = own.map(|pod| pod.addresses.clone()).unwrap_or_default();
        let judged: BTreeSet<IpAddr> = own.union(&tracked.attached).copied().collect();
        if verdicts == tracked.verdicts && judged == tracked.judged {
            // The pod of an address can change without these: an attached pod takes precedence.
            for address in judged {
                self.refresh_address(address);
            }
            return;
        }
        for (direction, verdict) in &verdicts {
            self.share_chain(*direction, verdict);
        }
        let Some(tracked) = self.pods.get_mut(key) else {
            return;
        };
        let before = std::mem::replace(&mut tracked.verdicts, verdicts);
        let judged_before = std::mem::replace(&mut tracked.judged, judged.clone());
        for address in judged_before.difference(&judged) {
            if let Some(keys) = self.by_address.get_mut(address) {
                keys.remove(key);
            }
        }
        for address in &judged {
            self.by_address
                .entry(*address)
                .or_default()
                .insert(key.clone());
        }
        for address in judged_before.union(&judged) {
            self.refresh_address(*address);
        }
        for (direction, verdict) in &before {
            self.stop_sharing_chain(*direction, verdict);
        }
    }

    /// Updates the verdict of an address.
    fn refresh_address(&mut self, address: IpAddr) {
        let keys = self.by_address.get(&address);
        let is_attached = |key: &&Key| {
            let tracked = self.pods.get(*key);
            tracked.is_some_and(|tracked| tracked.attached.contains(&address))
        };
        let keys = || keys.into_iter().flatten();
        let owner = keys().find(is_attached).or_else(|| keys().next());
        let owner = owner.and_then(|key| self.pods.get(key));
        let verdicts = owner
            .map(|owner| owner.verdicts.clone())
            .unwrap_or_default();
        let (digit, key) = (Family::from_address(address).digit, address.to_string());
        for direction in Direction::ALL {
            let map = format!("{}{digit}", direction.as_str());
            let verdict = verdicts.get(&direction);
            let statement = verdict.map(|verdict| verdict.statement(direction));
            self.table.put_element(&map, &key, statement.as_deref());
        }
        let isolated = (!verdicts.is_empty()).then_some("");
        self.table
            .put_element(&format!("isolated{digit}"), &key, isolated);
        let itself = format!("{key} . {key}");
        self.table
            .put_element(&format!("itself{digit}"), &itself, isolated);
        if self
            .by_address
            .get(&address)
            .is_some_and(BTreeSet::is_empty)
        {
            self.by_address.remove(&address);
        }
    }

    fn share_chain(&mut self, direction: Direction, verdict: &Verdict) {
        let (Some(chain), Verdict::Policies(keys)) = (verdict.chain(direction), verdict) else {
            return;
        };
        let users = self.shared.entry(chain.clone()).or_default();
        *users += 1;
        if *users > 1 {
            return;
        }
        let mut rules = vec!["jump always".to_owned()];
        for key in keys {
            self.use_policy(direction, key);
            rules.push(format!("jump {}", policy_chain(direction, key)));
        }
        rules.push("counter drop".to_owned());
        let header = String::new();
        self.table.put_chain(&chain, Chain { header, rules });
    }

    fn stop_sharing_chain(&mut self, direction: Direction, verdict: &Verdict) {
        let (Some(chain), Verdict::Policies(keys)) = (verdict.chain(direction), verdict) else {
            return;
        };
        let Some(users) = self.shared.get_mut(&chain) else {
            return;
        };
        *users -= 1;
        if *users > 0 {
            return;
        }
        self.shared.remove(&chain);
        self.table.remove_chain(&chain);
        for key in keys {
            self.stop_using_policy(direction, key);
        }
    }
}

/// The fixed part of the table: the verdict maps and the base chains.
fn frame(table: &mut Table) {
    for Family { kind, digit, .. } in FAMILIES {
        for direction in Direction::ALL {
            let map = format!("{}{digit}", direction.as_str());
            table.add_map(&map, format!("type {kind} : verdict;"));
        }
        table.add_set(&format!("isolated{digit}"), format!("type {kind};"));
        table.add_set(&format!("itself{digit}"), format!("type {kind} . {kind};"));
    }
    let mut chain = |name: &str, header: &str, rules: Vec<String>| {
        let header = header.to_owned();
        table.put_chain(name, Chain { header, rules });
    };
    let families = |rule: fn(&Family) -> Vec<String>| FAMILIES.iter().flat_map(rule);
    // Without conntrack the client and server are unknown.
    let stateless = families(|Family { ip, digit, .. }| {
        let drop = |end: &str| format!("{ip} {end} @isolated{digit} counter drop");
        vec![drop("saddr"), drop("daddr")]
    });
    chain("stateless", "", stateless.collect());
    // An error about a connection of others is judged as that connection; an isolated pod may only send errors about
    // its own connections.
    let forged = families(|Family { ip, digit, .. }| {
        let about = |end: &str| format!("{ip} saddr . ct {end} {ip} saddr @itself{digit} return");
        let others = format!("{ip} saddr @isolated{digit} counter drop");
        vec![about("original"), about("reply"), others]
    });
    chain("foreign-errors", "", forged.collect());
    // A pod that reaches itself through a Service, and ICMP errors about allowed connections.
    let itself = families(|Family { ip, digit, .. }| {
        let both = format!("ct original {ip} saddr . ct reply {ip} saddr");
        vec![format!("{both} @itself{digit} accept")]
    });
    let related = "ct state related meta l4proto { 1, 58 } accept".to_owned();
    chain("always", "", itself.chain([related]).collect());
    // Two base chains: what the first accepts, the second still evaluates.
    let egress = families(|Family { ip, digit, .. }| {
        vec![format!("ct original {ip} saddr vmap @egress{digit}")]
    });
    let untracked = "ct state invalid,untracked jump stateless".to_owned();
    let errors = "ct state related meta l4proto { 1, 58 } jump foreign-errors".to_owned();
    let egress = [untracked, errors].into_iter().chain(egress).collect();
    let hook = |priority: u8| format!("type filter hook forward priority {priority};");
    chain("forward-egress", &hook(0), egress);
    let ingress = families(|Family { ip, digit, .. }| {
        vec![format!("ct reply {ip} saddr vmap @ingress{digit}")]
    });
    chain("forward-ingress", &hook(1), ingress.collect());
}
