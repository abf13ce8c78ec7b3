//! Random changes of pods, namespaces and policies: after every step the table equals the one
//! written from scratch, and no statement refers to something missing.

#![allow(clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use network::nft::Batch;
use policy::{
    policy::{Key, Labels, Policy},
    state::{Pod, State},
};
use serde_json::{Value, json};

/// A fake kernel that tracks names only.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Kernel {
    sets: BTreeMap<String, BTreeMap<String, String>>,
    chains: BTreeMap<String, Vec<String>>,
}

impl Kernel {
    fn apply(&mut self, batch: &Batch) {
        for statement in batch.statements() {
            self.statement(statement);
        }
        self.check();
    }

    fn statement(&mut self, statement: &str) {
        let words: Vec<&str> = statement.splitn(6, ' ').collect();
        let rest = words.get(5).copied().unwrap_or_default();
        match (words[0], words[1]) {
            ("add", "table") => {}
            ("delete", "table") => *self = Self::default(),
            ("add", "set" | "map") => {
                let before = self.sets.insert(words[4].to_owned(), BTreeMap::new());
                assert_eq!(before, None, "{statement}");
            }
            ("delete", "set" | "map") => {
                assert!(self.sets.remove(words[4]).is_some(), "{statement}");
            }
            ("add", "chain") => {
                let before = self.chains.insert(words[4].to_owned(), Vec::new());
                assert_eq!(before, None, "{statement}");
            }
            ("delete", "chain") => {
                let rules = self.chains.remove(words[4]);
                assert_eq!(rules, Some(Vec::new()), "{statement}");
            }
            ("flush", "chain") => self.chains.get_mut(words[4]).unwrap().clear(),
            ("add", "rule") => {
                let chain = self.chains.get_mut(words[4]).unwrap();
                chain.push(rest.to_owned());
            }
            (verb, "element") => {
                let set = self
                    .sets
                    .get_mut(words[4])
                    .unwrap_or_else(|| panic!("{statement}"));
                let listed = rest.trim_start_matches("{ ").trim_end_matches(" }");
                for element in listed.split(", ") {
                    let (key, value) = element.split_once(" : ").unwrap_or((element, ""));
                    match verb {
                        "add" => {
                            assert_eq!(set.insert(key.into(), value.into()), None, "{statement}")
                        }
                        _ => assert_eq!(set.remove(key).as_deref(), Some(value), "{statement}"),
                    }
                }
            }
            _ => panic!("{statement}"),
        }
    }

    /// Checks that everything referred to exists, and that every policy chain and set is referred
    /// to.
    fn check(&self) {
        let mut referred = BTreeSet::new();
        let rules = self.chains.values().flatten();
        let verdicts = self.sets.values().flat_map(BTreeMap::values);
        for text in rules.chain(verdicts) {
            let words: Vec<&str> = text.split(' ').collect();
            for pair in words
                .windows(2)
                .filter(|pair| matches!(pair[0], "jump" | "goto"))
            {
                assert!(self.chains.contains_key(pair[1]), "{text}");
                referred.insert(pair[1].to_owned());
            }
            for set in words.iter().filter_map(|word| word.strip_prefix('@')) {
                assert!(self.sets.contains_key(set), "{text}");
                referred.insert(set.to_owned());
            }
        }
        for name in self.chains.keys().chain(self.sets.keys()) {
            // Of two pods with the same address one has it; the other's chain is unused.
            let others = [
                "forward-",
                "ingress",
                "egress",
                "isolated",
                "itself",
                "stateless",
                "always",
                "pod-",
            ];
            let may_stand_alone = others.iter().any(|start| name.starts_with(start));
            assert!(
                may_stand_alone || referred.contains(name) || referred.contains(&twin(name)),
                "{name} is left over"
            );
        }
    }
}

/// The set of the other family: both exist if one is used.
fn twin(name: &str) -> String {
    let other = if name.ends_with('4') { '6' } else { '4' };
    format!("{}{other}", name.trim_end_matches(['4', '6']))
}

/// A reproducible random number generator.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        usize::try_from(self.0 >> 33).unwrap() % limit
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

const NAMESPACES: [&str; 3] = ["x", "y", "z"];
const VALUES: [&str; 3] = ["one", "two", "three"];

#[derive(Default)]
struct World {
    namespaces: BTreeMap<String, Labels>,
    policies: BTreeMap<Key, Policy>,
    pods: BTreeMap<Key, Pod>,
    attached: BTreeMap<Key, Vec<IpAddr>>,
}

impl World {
    fn fresh(&self) -> State {
        let mut state = State::new("t".into());
        for (key, addresses) in &self.attached {
            state.attach(key, addresses);
        }
        for (key, pod) in &self.pods {
            state.set_pod(key, Some(pod.clone()));
        }
        for (key, policy) in &self.policies {
            state.set_policy(key, Some(policy.clone()));
        }
        for (name, labels) in &self.namespaces {
            state.set_namespace(name, Some(labels.clone()));
        }
        state
    }

    fn step(&mut self, random: &mut Random, state: &mut State) {
        let namespace = (*random.pick(&NAMESPACES)).to_owned();
        let number = random.below(6);
        let key = (namespace.clone(), format!("o{number}"));
        let gone = random.below(4) == 0;
        match random.below(5) {
            0 => {
                let labels = (!gone).then(|| labels(random));
                match labels.clone() {
                    Some(labels) => self.namespaces.insert(namespace.clone(), labels),
                    None => self.namespaces.remove(&namespace),
                };
                state.set_namespace(&namespace, labels);
            }
            1 | 2 => {
                let pod = (!gone).then(|| pod(random));
                match pod.clone() {
                    Some(pod) => self.pods.insert(key.clone(), pod),
                    None => self.pods.remove(&key),
                };
                state.set_pod(&key, pod);
            }
            3 => {
                let policy = (!gone).then(|| policy(random, &namespace));
                match policy.clone() {
                    Some(policy) => self.policies.insert(key.clone(), policy),
                    None => self.policies.remove(&key),
                };
                state.set_policy(&key, policy);
            }
            _ => self.attach(random, &key, gone, state),
        }
    }

    fn attach(&mut self, random: &mut Random, key: &Key, gone: bool, state: &mut State) {
        let address = address(random);
        for (holder, held) in &mut self.attached {
            let before = held.len();
            held.retain(|ip| *ip != address);
            if gone && held.len() < before {
                state.detach(holder, &[address].into());
            }
        }
        if !gone {
            self.attached.entry(key.clone()).or_default().push(address);
            state.attach(key, &[address]);
        }
        self.attached.retain(|_, held| !held.is_empty());
    }
}

fn labels(random: &mut Random) -> Labels {
    Labels::from([("l".to_owned(), (*random.pick(&VALUES)).to_owned())])
}

fn address(random: &mut Random) -> IpAddr {
    let number = random.below(9);
    let text = if random.below(3) == 0 {
        format!("fd42::{number}")
    } else {
        format!("10.42.0.{number}")
    };
    text.parse().unwrap()
}

fn pod(random: &mut Random) -> Pod {
    let ports = [("web", 80), ("web", 81), ("dns", 53)];
    let (name, number) = *random.pick(&ports);
    Pod {
        labels: labels(random),
        addresses: (0..random.below(3)).map(|_| address(random)).collect(),
        local: random.below(2) == 0,
        ports: BTreeSet::from([(network::Protocol::Tcp, name.to_owned(), number)]),
    }
}

fn policy(random: &mut Random, namespace: &str) -> Policy {
    let mut selector = || json!({"matchLabels": {"l": random.pick(&VALUES)}});
    let (pods, of_peer, of_namespace) = (selector(), selector(), selector());
    let peers: [Value; 5] = [
        json!([{"podSelector": of_peer}]),
        json!([{"namespaceSelector": of_namespace}]),
        json!([{"namespaceSelector": of_namespace, "podSelector": of_peer}, {"podSelector": {}}]),
        json!([{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]),
        json!([]),
    ];
    let ports: [Value; 4] = [
        json!([]),
        json!([{"port": 80}, {"port": 90, "endPort": 99}]),
        json!([{"port": "web"}]),
        json!([{"protocol": "UDP"}, {"port": "dns"}]),
    ];
    let types = [
        json!(["Ingress"]),
        json!(["Egress"]),
        json!(["Ingress", "Egress"]),
    ];
    let spec = json!({
        "podSelector": pods, "policyTypes": random.pick(&types),
        "ingress": [{"from": random.pick(&peers), "ports": random.pick(&ports)}],
        "egress": [{"to": random.pick(&peers), "ports": random.pick(&ports)}],
    });
    let object = json!({"metadata": {"name": "p", "namespace": namespace}, "spec": spec});
    Policy::from_object(&serde_json::from_value(object).unwrap())
}

#[test]
fn incremental_changes_give_the_same_table_as_a_fresh_start() {
    for seed in 0..40 {
        let mut random = Random(seed);
        let (mut world, mut state) = (World::default(), State::new("t".into()));
        let mut kernel = Kernel::default();
        kernel.apply(&state.full());
        for step in 0..150 {
            for _ in 0..=random.below(3) {
                world.step(&mut random, &mut state);
            }
            kernel.apply(&state.commit());
            let mut expected = Kernel::default();
            expected.apply(&world.fresh().full());
            assert_eq!(kernel, expected, "seed {seed}, step {step}");
        }
        let mut rewritten = Kernel::default();
        rewritten.apply(&state.full());
        assert_eq!(rewritten, kernel, "seed {seed}");
    }
}
