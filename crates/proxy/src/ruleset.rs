//! The desired table as the sum of all Services, and the changes between states.
//!
//! Several Services can want the same element (a pod behind two Services is in the hairpin set for
//! both; two Services can claim one address): the first one has it, and the next gets it when that
//! one is removed.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use network::nft::Batch;

use crate::{
    rules::{Contribution, Frontend, Map, Object, Pick, Slot},
    table::{Frame, declaration},
};

/// Namespace and name of a Service.
pub type ServiceKey = (String, String);

/// The maximum number of elements per statement.
const ELEMENTS_PER_STATEMENT: usize = 500;

/// UDP addresses whose endpoints changed, with the current endpoints.
pub type Datagrams = BTreeMap<Frontend, BTreeSet<(std::net::IpAddr, u16)>>;

/// An element's key and value; the value is empty in sets.
type Element = (Slot, String);

/// Everything that should be in the table.
pub struct Ruleset {
    frame: Frame,
    services: BTreeMap<ServiceKey, Contribution>,
    /// Which Services want each element, in order.
    wanted: HashMap<Slot, Vec<(ServiceKey, String)>>,
    /// Picking chains in the table, with the number of Services that use each.
    picks: BTreeMap<Pick, usize>,
    /// Maps of endpoints in the table: those that its picking chains use.
    maps: BTreeSet<(Map, bool)>,
}

impl Ruleset {
    /// A table without services.
    pub fn new(frame: Frame) -> Self {
        Self {
            frame,
            services: BTreeMap::new(),
            wanted: HashMap::new(),
            picks: BTreeMap::new(),
            maps: BTreeSet::new(),
        }
    }

    /// Replaces a Service's contribution, adds the changes to `batch` and records changed UDP
    /// addresses.
    pub fn set(
        &mut self,
        key: &ServiceKey,
        new: Contribution,
        batch: &mut Batch,
        datagrams: &mut Datagrams,
    ) {
        let old = self.services.remove(key).unwrap_or_default();
        if old != new {
            let mut change = Change {
                table: self.frame.table(),
                batch,
            };
            change.prepare_objects(&old, &new);
            for pick in new.picks.difference(&old.picks) {
                let users = self.picks.entry(*pick).or_default();
                *users += 1;
                if *users == 1 {
                    change.pick(*pick, &mut self.maps);
                }
            }
            let (gone, come) = self.swap_elements(key, &old, &new);
            change.elements("delete", gone);
            change.elements("add", come);
            change.remove_objects(&old, &new);
            let unused = self.release_picks(old.picks.difference(&new.picks));
            change.remove_picks(&unused, &self.picks, &mut self.maps);
            note_datagrams(&old, &new, datagrams);
        }
        if new != Contribution::default() {
            self.services.insert(key.clone(), new);
        }
    }

    /// The table's name.
    pub fn table(&self) -> String {
        self.frame.table()
    }

    /// The Services with a contribution.
    pub fn services(&self) -> impl Iterator<Item = &ServiceKey> {
        self.services.keys()
    }

    /// The whole table, written from scratch.
    pub fn full(&mut self) -> Batch {
        let mut batch = Batch::new();
        self.frame.write(&mut batch);
        let mut change = Change {
            table: self.frame.table(),
            batch: &mut batch,
        };
        self.maps.clear();
        for pick in self.picks.keys() {
            change.pick(*pick, &mut self.maps);
        }
        let nothing = Contribution::default();
        for service in self.services.values() {
            change.prepare_objects(&nothing, service);
        }
        let elements = self.wanted.iter().filter_map(|(slot, wants)| {
            wants
                .first()
                .map(|(_, value)| (slot.clone(), value.clone()))
        });
        change.elements("add", elements.collect());
        batch
    }

    /// Releases a Service's use of these chains; returns those that are unused now.
    fn release_picks<'a>(&mut self, picks: impl Iterator<Item = &'a Pick>) -> Vec<Pick> {
        let mut unused = Vec::new();
        for pick in picks {
            let Some(users) = self.picks.get_mut(pick) else {
                continue;
            };
            *users -= 1;
            if *users == 0 {
                self.picks.remove(pick);
                unused.push(*pick);
            }
        }
        unused
    }

    /// Updates the wanted elements; returns the removed and the added ones.
    fn swap_elements(
        &mut self,
        key: &ServiceKey,
        old: &Contribution,
        new: &Contribution,
    ) -> (Vec<Element>, Vec<Element>) {
        let (mut gone, mut come) = (Vec::new(), Vec::new());
        let slots: BTreeSet<&Slot> = old.elements.keys().chain(new.elements.keys()).collect();
        for slot in slots {
            let wants = self.wanted.entry(slot.clone()).or_default();
            let before = wants.first().map(|(_, value)| value.clone());
            let place = wants.iter().position(|(owner, _)| owner == key);
            match (place, new.elements.get(slot)) {
                (Some(place), Some(value)) => wants[place].1.clone_from(value),
                (Some(place), None) => {
                    wants.remove(place);
                }
                (None, Some(value)) => wants.push((key.clone(), value.clone())),
                (None, None) => {}
            }
            let after = wants.first().map(|(_, value)| value.clone());
            if wants.is_empty() {
                self.wanted.remove(slot);
            }
            if before != after {
                gone.extend(before.map(|value| (slot.clone(), value)));
                come.extend(after.map(|value| (slot.clone(), value)));
            }
        }
        (gone, come)
    }
}

fn note_datagrams(old: &Contribution, new: &Contribution, into: &mut Datagrams) {
    for frontend in old.datagrams.keys().chain(new.datagrams.keys()) {
        if old.datagrams.get(frontend) != new.datagrams.get(frontend) {
            into.insert(
                *frontend,
                new.datagrams.get(frontend).cloned().unwrap_or_default(),
            );
        }
    }
}

/// Writes statements about one table.
struct Change<'a> {
    table: String,
    batch: &'a mut Batch,
}

impl Change<'_> {
    /// Adds a picking chain, with its maps and chains.
    fn pick(&mut self, pick: Pick, known: &mut BTreeSet<(Map, bool)>) {
        for map in pick.maps().filter(|map| known.insert((*map, pick.v4))) {
            self.batch.push(declaration(&self.table, map, pick.v4));
            self.chain(&map.chain(pick.v4), &[map.translation(pick.v4)]);
        }
        self.chain(&pick.chain(), &pick.rules());
        self.batch
            .push(declaration(&self.table, pick.set(), pick.v4));
        let (chain, rule) = pick.entry();
        self.batch
            .push(format!("add rule inet {} {chain} {rule}", self.table));
    }

    /// Removes picking chains, their sets, and maps that no other chain uses. A rule can be removed
    /// only by its kernel handle, so that the chains of entries are written again.
    fn remove_picks(
        &mut self,
        unused: &[Pick],
        left: &BTreeMap<Pick, usize>,
        maps: &mut BTreeSet<(Map, bool)>,
    ) {
        let entries: BTreeSet<&str> = unused.iter().map(|pick| pick.entry().0).collect();
        for chain in entries {
            let rules = left.keys().map(|pick| pick.entry());
            let rules = rules.filter(|(of, _)| *of == chain).map(|(_, rule)| rule);
            self.fill(chain, &rules.collect::<Vec<_>>());
        }
        for pick in unused {
            self.remove_chain(&pick.chain());
            let set = pick.set().name(pick.v4);
            self.batch
                .push(format!("delete set inet {} {set}", self.table));
        }
        if unused.is_empty() {
            return;
        }
        let mut longest: BTreeMap<(Map, bool), u16> = BTreeMap::new();
        for pick in left.keys() {
            let count = longest.entry((pick.first_map(), pick.v4)).or_default();
            *count = (*count).max(pick.count);
        }
        maps.retain(|(map, v4)| {
            let (first, number) = map.numbered();
            let is_used = longest
                .get(&(first, *v4))
                .is_some_and(|count| number < *count);
            if !is_used {
                self.remove_chain(&map.chain(*v4));
                let name = map.name(*v4);
                self.batch
                    .push(format!("delete map inet {} {name}", self.table));
            }
            is_used
        });
    }

    fn remove_chain(&mut self, name: &str) {
        for verb in ["flush", "delete"] {
            self.batch
                .push(format!("{verb} chain inet {} {name}", self.table));
        }
    }

    fn chain(&mut self, name: &str, rules: &[String]) {
        self.batch
            .push(format!("add chain inet {} {name}", self.table));
        self.fill(name, rules);
    }

    fn fill(&mut self, name: &str, rules: &[String]) {
        self.batch
            .push(format!("flush chain inet {} {name}", self.table));
        for rule in rules {
            self.batch
                .push(format!("add rule inet {} {name} {rule}", self.table));
        }
    }

    /// Creates new sets and chains, and replaces the rules of changed chains.
    fn prepare_objects(&mut self, old: &Contribution, new: &Contribution) {
        let changed = || {
            new.objects
                .iter()
                .filter(|(name, object)| old.objects.get(*name) != Some(object))
        };
        for (name, object) in changed() {
            match object {
                Object::Set(declaration) => {
                    if old.objects.contains_key(name) {
                        // A set's declaration cannot change while rules use it: the remembered
                        // clients are lost.
                        self.release_set(old, name);
                    }
                    self.batch
                        .push(format!("add set inet {} {name} {declaration}", self.table));
                }
                Object::Chain(_) => self
                    .batch
                    .push(format!("add chain inet {} {name}", self.table)),
                Object::Ranges(ranges) => {
                    let declaration = ranges.declaration();
                    self.batch
                        .push(format!("add set inet {} {name} {declaration}", self.table));
                    self.element_statements("add", name, &ranges.elements());
                }
            }
        }
        let redeclared = changed().any(|(name, object)| {
            matches!(object, Object::Set(_)) && old.objects.contains_key(name)
        });
        let refill = new
            .objects
            .iter()
            .filter(|(name, object)| redeclared || old.objects.get(*name) != Some(object));
        for (name, object) in refill {
            if let Object::Chain(rules) = object {
                self.fill(name, rules);
            }
        }
    }

    /// Empties every chain of the Service, so that a set can be removed.
    fn release_set(&mut self, old: &Contribution, set: &str) {
        for (name, object) in &old.objects {
            if matches!(object, Object::Chain(_)) {
                self.batch
                    .push(format!("flush chain inet {} {name}", self.table));
            }
        }
        self.batch
            .push(format!("delete set inet {} {set}", self.table));
    }

    fn remove_objects(&mut self, old: &Contribution, new: &Contribution) {
        let gone = || {
            old.objects
                .iter()
                .filter(|(name, _)| !new.objects.contains_key(*name))
        };
        let chains = || gone().filter(|(_, object)| matches!(object, Object::Chain(_)));
        for verb in ["flush", "delete"] {
            for (name, _) in chains() {
                self.batch
                    .push(format!("{verb} chain inet {} {name}", self.table));
            }
        }
        for (name, _) in gone().filter(|(_, object)| !matches!(object, Object::Chain(_))) {
            self.batch
                .push(format!("delete set inet {} {name}", self.table));
        }
    }

    fn elements(&mut self, verb: &str, elements: Vec<Element>) {
        let mut by_map: BTreeMap<(Map, bool), Vec<String>> = BTreeMap::new();
        for (slot, value) in elements {
            let element = if value.is_empty() {
                slot.key
            } else {
                format!("{} : {value}", slot.key)
            };
            by_map.entry((slot.map, slot.v4)).or_default().push(element);
        }
        for ((map, v4), elements) in by_map {
            self.element_statements(verb, &map.name(v4), &elements);
        }
    }

    fn element_statements(&mut self, verb: &str, set: &str, elements: &[String]) {
        for some in elements.chunks(ELEMENTS_PER_STATEMENT) {
            let (table, some) = (&self.table, some.join(", "));
            self.batch
                .push(format!("{verb} element inet {table} {set} {{ {some} }}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Front;

    fn ruleset() -> Ruleset {
        Ruleset::new(Frame {
            id: "0123abcd".into(),
            cluster_cidrs: vec!["10.42.0.0/16".parse().unwrap()],
            service_cidrs: vec!["10.43.0.0/16".parse().unwrap()],
            dns: None,
            node_port_addresses: Vec::new(),
        })
    }

    fn wants(elements: &[(Map, &str, &str)]) -> Contribution {
        let slot = |map, key: &str| Slot {
            map,
            v4: true,
            key: key.into(),
        };
        Contribution {
            elements: elements
                .iter()
                .map(|(map, key, value)| (slot(*map, key), (*value).into()))
                .collect(),
            ..Contribution::default()
        }
    }

    fn set(ruleset: &mut Ruleset, name: &str, new: Contribution) -> Vec<String> {
        let mut batch = Batch::new();
        ruleset.set(
            &("default".into(), name.into()),
            new,
            &mut batch,
            &mut Datagrams::new(),
        );
        let table = " inet mainstay-0123abcd-services";
        batch
            .statements()
            .iter()
            .map(|statement| statement.replace(table, ""))
            .collect()
    }

    #[test]
    fn only_differences_are_written() {
        let mut ruleset = ruleset();
        let first = wants(&[
            (Map::Services, "a", "goto x"),
            (Map::Endpoints(0), "a", "e"),
        ]);
        assert_eq!(
            set(&mut ruleset, "web", first.clone()),
            [
                "add element services4 { a : goto x }",
                "add element endpoints4-0 { a : e }"
            ]
        );
        assert!(set(&mut ruleset, "web", first).is_empty());
        let second = wants(&[
            (Map::Services, "a", "goto y"),
            (Map::Endpoints(0), "a", "e"),
        ]);
        assert_eq!(
            set(&mut ruleset, "web", second),
            [
                "delete element services4 { a : goto x }",
                "add element services4 { a : goto y }"
            ]
        );
        assert_eq!(
            set(&mut ruleset, "web", Contribution::default()),
            [
                "delete element services4 { a : goto y }",
                "delete element endpoints4-0 { a : e }"
            ]
        );
        assert_eq!(ruleset.services().count(), 0);
    }

    #[test]
    fn a_shared_element_stays_until_the_last_owner_goes() {
        let mut ruleset = ruleset();
        let both = wants(&[(Map::Hairpin, "p . p", "")]);
        assert_eq!(
            set(&mut ruleset, "a", both.clone()),
            ["add element hairpin4 { p . p }"]
        );
        assert!(set(&mut ruleset, "b", both).is_empty());
        assert!(set(&mut ruleset, "a", Contribution::default()).is_empty());
        assert_eq!(
            set(&mut ruleset, "b", Contribution::default()),
            ["delete element hairpin4 { p . p }"]
        );
    }

    #[test]
    fn an_address_that_two_services_claim_goes_to_the_next_when_the_first_leaves() {
        let mut ruleset = ruleset();
        set(&mut ruleset, "a", wants(&[(Map::Services, "v", "goto a")]));
        assert!(set(&mut ruleset, "b", wants(&[(Map::Services, "v", "goto b")])).is_empty());
        assert_eq!(
            set(&mut ruleset, "a", Contribution::default()),
            [
                "delete element services4 { v : goto a }",
                "add element services4 { v : goto b }"
            ]
        );
    }

    #[test]
    fn a_picking_chain_is_made_once() {
        let mut ruleset = ruleset();
        let mut new = wants(&[(Map::Services, "v", "goto pick-cluster4-2")]);
        new.picks.insert(Pick {
            front: Front::Cluster,
            v4: true,
            count: 2,
        });
        let statements = set(&mut ruleset, "a", new.clone());
        let chains: Vec<&String> = statements
            .iter()
            .filter(|statement| statement.starts_with("add chain"))
            .collect();
        assert_eq!(
            chains,
            [
                "add chain to-endpoints4-0",
                "add chain to-endpoints4-1",
                "add chain pick-cluster4-2"
            ]
        );
        new.elements = wants(&[(Map::Services, "w", "goto pick-cluster4-2")]).elements;
        assert_eq!(
            set(&mut ruleset, "b", new),
            ["add element services4 { w : goto pick-cluster4-2 }"]
        );
    }

    #[test]
    fn a_service_that_grew_and_shrank_leaves_nothing_behind() {
        let with = |count: u16| {
            let pick = Pick {
                front: Front::Cluster,
                v4: true,
                count,
            };
            let mut new = Contribution::default();
            let slot = |map, key: &str| Slot {
                map,
                v4: true,
                key: key.into(),
            };
            for (number, map) in pick.maps().enumerate() {
                new.elements.insert(slot(map, "v"), format!("e{number}"));
            }
            new.elements.insert(slot(pick.set(), "v"), String::new());
            new.picks.insert(pick);
            new
        };
        let mut ruleset = ruleset();
        let mut objects = BTreeSet::new();
        let sizes = [1, 2, 3, 40, 3, 2, 1];
        let states = sizes.map(with).into_iter().chain([Contribution::default()]);
        let mut before_shrinking = BTreeSet::new();
        for (step, state) in states.enumerate() {
            for statement in set(&mut ruleset, "web", state) {
                let words: Vec<&str> = statement.split(' ').collect();
                let name = format!("{} {}", words[1], words[2]);
                match (words[0], words[1]) {
                    ("add", "chain" | "set" | "map") => assert!(objects.insert(name)),
                    ("delete", "chain" | "set" | "map") => {
                        assert!(objects.remove(&name), "{name} was not there");
                    }
                    _ => {}
                }
            }
            match step {
                0 => before_shrinking = objects.clone(),
                6 => assert_eq!(objects, before_shrinking),
                _ => {}
            }
        }
        assert!(objects.is_empty(), "{objects:?}");
        assert!(ruleset.picks.is_empty() && ruleset.maps.is_empty());
    }

    #[test]
    fn a_datagram_address_is_noted_when_its_endpoints_change() {
        let mut ruleset = ruleset();
        let frontend = (Some("10.43.0.9".parse().unwrap()), 53);
        let endpoint = ("10.42.0.1".parse().unwrap(), 53);
        let mut new = Contribution::default();
        new.datagrams.insert(frontend, BTreeSet::from([endpoint]));
        let (mut batch, mut noted) = (Batch::new(), Datagrams::new());
        let key = ("default".into(), "dns".into());
        ruleset.set(&key, new.clone(), &mut batch, &mut noted);
        assert_eq!(noted[&frontend].len(), 1);
        noted.clear();
        ruleset.set(&key, new, &mut batch, &mut noted);
        assert!(noted.is_empty());
        ruleset.set(&key, Contribution::default(), &mut batch, &mut noted);
        assert!(noted[&frontend].is_empty());
    }
}
