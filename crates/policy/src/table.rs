//! The contents of the nftables table, and the changes since the last commit. Pure.
//!
//! The previous value of each changed object is recorded; [`Table::commit`] compares it with the
//! current one, so that what was added and removed in between costs nothing.

use std::collections::BTreeMap;

use network::nft::Batch;

/// The maximum number of elements per statement.
const ELEMENTS_PER_STATEMENT: usize = 500;

/// A set or map with its elements.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Set {
    /// `set` or `map`, and its declaration.
    kind: (&'static str, String),
    /// The value is empty in sets. The number counts the owners of an element.
    elements: BTreeMap<String, (String, usize)>,
}

/// The objects of one table.
#[derive(Debug, Clone)]
pub struct Table {
    name: String,
    sets: BTreeMap<String, Set>,
    chains: BTreeMap<String, Chain>,
    changes: Changes,
}

/// A chain: its declaration, and its rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chain {
    /// Hook and priority of a base chain, otherwise a comment; may be empty.
    pub header: String,
    /// Rules in order.
    pub rules: Vec<String>,
}

/// The previous values of changed objects; `None` if they did not exist.
#[derive(Debug, Clone, Default)]
struct Changes {
    sets: BTreeMap<String, Option<Set>>,
    chains: BTreeMap<String, Option<Chain>>,
    elements: BTreeMap<(String, String), Option<String>>,
}

impl Table {
    /// An empty table.
    pub fn new(name: String) -> Self {
        Self {
            name,
            sets: BTreeMap::new(),
            chains: BTreeMap::new(),
            changes: Changes::default(),
        }
    }

    /// The table's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Adds an empty set (`type ipv4_addr;`).
    pub fn add_set(&mut self, name: &str, declaration: impl Into<String>) {
        self.declare(name, ("set", declaration.into()));
    }

    /// Adds an empty map (`type ipv4_addr : verdict;`).
    pub fn add_map(&mut self, name: &str, declaration: impl Into<String>) {
        self.declare(name, ("map", declaration.into()));
    }

    fn declare(&mut self, name: &str, kind: (&'static str, String)) {
        self.note_set(name);
        let elements = BTreeMap::new();
        self.sets.insert(name.to_owned(), Set { kind, elements });
    }

    fn note_set(&mut self, name: &str) {
        let before = || self.sets.get(name).cloned();
        if !self.changes.sets.contains_key(name) {
            let before = before();
            self.changes.sets.insert(name.to_owned(), before);
        }
    }

    /// Removes a set or map with its elements.
    pub fn remove_set(&mut self, name: &str) {
        self.note_set(name);
        // If it is added again before the next commit, its elements are compared one by one.
        let elements = self.sets.get(name).map(|set| set.elements.keys().cloned());
        for key in elements.into_iter().flatten().collect::<Vec<_>>() {
            self.note_element(name, &key);
        }
        self.sets.remove(name);
    }

    /// Adds an owner to an element of a set; the first one adds the element.
    pub fn add_element(&mut self, set: &str, key: &str) {
        if let Some(owners) = self.owners(set, key) {
            *owners += 1;
            return;
        }
        self.note_element(set, key);
        if let Some(set) = self.sets.get_mut(set) {
            set.elements.insert(key.to_owned(), (String::new(), 1));
        }
    }

    /// Removes an owner from an element of a set; the last one removes the element.
    pub fn release_element(&mut self, set: &str, key: &str) {
        match self.owners(set, key) {
            Some(owners) if *owners > 1 => *owners -= 1,
            Some(_) => self.put_element(set, key, None),
            None => {}
        }
    }

    /// The number of elements of a set.
    pub fn count(&self, set: &str) -> usize {
        self.sets.get(set).map_or(0, |set| set.elements.len())
    }

    fn owners(&mut self, set: &str, key: &str) -> Option<&mut usize> {
        let (_, owners) = self.sets.get_mut(set)?.elements.get_mut(key)?;
        Some(owners)
    }

    /// Sets or removes an element of a map.
    pub fn put_element(&mut self, map: &str, key: &str, value: Option<&str>) {
        self.note_element(map, key);
        let Some(map) = self.sets.get_mut(map) else {
            return;
        };
        match value {
            Some(value) => {
                map.elements.insert(key.to_owned(), (value.to_owned(), 1));
            }
            None => {
                map.elements.remove(key);
            }
        }
    }

    fn note_element(&mut self, set: &str, key: &str) {
        let place = (set.to_owned(), key.to_owned());
        if !self.changes.elements.contains_key(&place) {
            let elements = self.sets.get(set).map(|set| &set.elements);
            let before = elements.and_then(|all| all.get(key));
            let before = before.map(|(value, _)| value.clone());
            self.changes.elements.insert(place, before);
        }
    }

    /// Adds a chain, or replaces its rules.
    pub fn put_chain(&mut self, name: &str, chain: Chain) {
        self.note_chain(name);
        self.chains.insert(name.to_owned(), chain);
    }

    /// Removes a chain.
    pub fn remove_chain(&mut self, name: &str) {
        self.note_chain(name);
        self.chains.remove(name);
    }

    fn note_chain(&mut self, name: &str) {
        if !self.changes.chains.contains_key(name) {
            let before = self.chains.get(name).cloned();
            self.changes.chains.insert(name.to_owned(), before);
        }
    }

    /// The statements for the changes since the last commit.
    pub fn commit(&mut self) -> Batch {
        let changes = std::mem::take(&mut self.changes);
        let mut batch = Batch::new();
        let mut writer = Writer {
            table: &self.name,
            batch: &mut batch,
        };
        for name in changes.sets.keys() {
            if let (Some(None), Some(set)) = (changes.sets.get(name), self.sets.get(name)) {
                writer.declare(name, set);
            }
        }
        let old = |name: &String| changes.chains.get(name).and_then(Option::as_ref);
        let fresh = |name: &&String| old(name).is_none() && self.chains.contains_key(*name);
        for name in changes.chains.keys().filter(fresh) {
            writer.add_chain(name, &self.chains[name].header);
        }
        writer.elements("delete", self.removed_elements(&changes));
        for (name, before) in &changes.chains {
            let now = self.chains.get(name);
            if before.as_ref() != now && (before.is_some() || now.is_some()) {
                writer.fill(name, now.map_or(&[][..], |chain| &chain.rules));
            }
        }
        writer.elements("add", self.added_elements(&changes));
        for (name, before) in &changes.chains {
            if before.is_some() && !self.chains.contains_key(name) {
                writer.delete("chain", name);
            }
        }
        for (name, before) in &changes.sets {
            if let (Some(set), None) = (before, self.sets.get(name)) {
                writer.delete(set.kind.0, name);
            }
        }
        batch
    }

    /// Removed or changed elements; those of removed sets are removed with the set.
    fn removed_elements<'a>(&self, changes: &'a Changes) -> Vec<Element<'a>> {
        let elements = changes.elements.iter();
        let gone = elements.filter_map(|((set, key), before)| {
            let was_there = !matches!(changes.sets.get(set), Some(None));
            let before = before.as_ref().filter(|_| was_there)?;
            let now = self.sets.get(set)?.elements.get(key);
            let same = now.is_some_and(|(value, _)| value == before);
            (!same).then_some((set.as_str(), key.as_str(), before.as_str()))
        });
        gone.collect()
    }

    fn added_elements<'a>(&'a self, changes: &'a Changes) -> Vec<Element<'a>> {
        let elements = changes.elements.iter();
        let come = elements.filter_map(|((set, key), before)| {
            let (value, _) = self.sets.get(set)?.elements.get(key)?;
            let is_new = matches!(changes.sets.get(set), Some(None));
            let same = !is_new && before.as_ref() == Some(value);
            (!same).then_some((set.as_str(), key.as_str(), value.as_str()))
        });
        come.collect()
    }

    /// The whole table, written from scratch.
    pub fn full(&mut self) -> Batch {
        self.changes = Changes::default();
        let mut batch = Batch::new();
        batch.replace_table("inet", &self.name);
        let mut writer = Writer {
            table: &self.name,
            batch: &mut batch,
        };
        for (name, set) in &self.sets {
            writer.declare(name, set);
        }
        for (name, chain) in &self.chains {
            writer.add_chain(name, &chain.header);
        }
        for (name, chain) in &self.chains {
            writer.rules(name, &chain.rules);
        }
        let elements = self.sets.iter().flat_map(|(name, set)| {
            let elements = set.elements.iter();
            elements.map(|(key, (value, _))| (name.as_str(), key.as_str(), value.as_str()))
        });
        writer.elements("add", elements.collect());
        batch
    }
}

/// Set, key, value.
type Element<'a> = (&'a str, &'a str, &'a str);

struct Writer<'a> {
    table: &'a str,
    batch: &'a mut Batch,
}

impl Writer<'_> {
    fn declare(&mut self, name: &str, set: &Set) {
        let (kind, declaration) = &set.kind;
        let table = self.table;
        self.batch.push(format!(
            "add {kind} inet {table} {name} {{ {declaration} }}"
        ));
    }

    fn add_chain(&mut self, name: &str, header: &str) {
        let braces = if header.is_empty() {
            String::new()
        } else {
            format!(" {{ {header} }}")
        };
        self.batch
            .push(format!("add chain inet {} {name}{braces}", self.table));
    }

    fn fill(&mut self, name: &str, rules: &[String]) {
        self.batch
            .push(format!("flush chain inet {} {name}", self.table));
        self.rules(name, rules);
    }

    fn rules(&mut self, name: &str, rules: &[String]) {
        for rule in rules {
            self.batch
                .push(format!("add rule inet {} {name} {rule}", self.table));
        }
    }

    fn delete(&mut self, kind: &str, name: &str) {
        self.batch
            .push(format!("delete {kind} inet {} {name}", self.table));
    }

    /// Elements are ordered by set.
    fn elements(&mut self, verb: &str, elements: Vec<Element<'_>>) {
        for of_set in elements.chunk_by(|one, next| one.0 == next.0) {
            for some in of_set.chunks(ELEMENTS_PER_STATEMENT) {
                let listed: Vec<String> = some
                    .iter()
                    .map(|(_, key, value)| match *value {
                        "" => (*key).to_owned(),
                        value => format!("{key} : {value}"),
                    })
                    .collect();
                let (table, set) = (self.table, some[0].0);
                self.batch.push(format!(
                    "{verb} element inet {table} {set} {{ {} }}",
                    listed.join(", ")
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statements(batch: &Batch) -> Vec<String> {
        let shorten = |statement: &String| statement.replace(" inet t", "");
        batch.statements().iter().map(shorten).collect()
    }

    fn chain(rules: &[&str]) -> Chain {
        Chain {
            header: String::new(),
            rules: rules.iter().map(|rule| (*rule).to_owned()).collect(),
        }
    }

    #[test]
    fn an_element_with_two_owners_goes_with_the_second() {
        let mut table = Table::new("t".into());
        table.add_set("s", "type ipv4_addr;");
        table.add_element("s", "10.0.0.1");
        table.add_element("s", "10.0.0.1");
        assert_eq!(
            statements(&table.commit()),
            [
                "add set s { type ipv4_addr; }",
                "add element s { 10.0.0.1 }"
            ]
        );
        table.release_element("s", "10.0.0.1");
        assert!(table.commit().is_empty());
        table.release_element("s", "10.0.0.1");
        assert_eq!(
            statements(&table.commit()),
            ["delete element s { 10.0.0.1 }"]
        );
    }

    #[test]
    fn elements_removed_and_added_again_before_a_commit_are_not_written() {
        let mut table = Table::new("t".into());
        table.add_set("s", "type ipv4_addr;");
        table.add_element("s", "10.0.0.1");
        table.put_chain("c", chain(&["accept"]));
        table.commit();
        table.release_element("s", "10.0.0.1");
        table.add_element("s", "10.0.0.1");
        table.remove_chain("c");
        table.put_chain("c", chain(&["accept"]));
        table.add_set("u", "type ipv4_addr;");
        table.add_element("u", "10.0.0.2");
        table.remove_set("u");
        assert!(table.commit().is_empty());
    }

    #[test]
    fn a_set_removed_and_added_again_keeps_its_new_elements() {
        let mut table = Table::new("t".into());
        table.add_set("s", "type ipv4_addr;");
        table.add_element("s", "10.0.0.1");
        table.add_element("s", "10.0.0.2");
        table.commit();
        table.remove_set("s");
        table.add_set("s", "type ipv4_addr;");
        table.add_element("s", "10.0.0.2");
        assert_eq!(
            statements(&table.commit()),
            ["delete element s { 10.0.0.1 }"]
        );
    }

    #[test]
    fn references_are_added_after_their_targets_and_removed_before() {
        let mut table = Table::new("t".into());
        table.add_map("m", "type ipv4_addr : verdict;");
        table.put_chain("a", chain(&["jump b", "drop"]));
        table.put_chain("b", chain(&["ip saddr @s accept"]));
        table.add_set("s", "type ipv4_addr;");
        table.put_element("m", "10.0.0.1", Some("goto a"));
        assert_eq!(
            statements(&table.commit()),
            [
                "add map m { type ipv4_addr : verdict; }",
                "add set s { type ipv4_addr; }",
                "add chain a",
                "add chain b",
                "flush chain a",
                "add rule a jump b",
                "add rule a drop",
                "flush chain b",
                "add rule b ip saddr @s accept",
                "add element m { 10.0.0.1 : goto a }",
            ]
        );
        table.put_element("m", "10.0.0.1", None);
        table.remove_chain("a");
        table.remove_chain("b");
        table.remove_set("s");
        assert_eq!(
            statements(&table.commit()),
            [
                "delete element m { 10.0.0.1 : goto a }",
                "flush chain a",
                "flush chain b",
                "delete chain a",
                "delete chain b",
                "delete set s",
            ]
        );
    }

    #[test]
    fn a_changed_verdict_is_replaced_in_one_batch() {
        let mut table = Table::new("t".into());
        table.add_map("m", "type ipv4_addr : verdict;");
        table.put_element("m", "10.0.0.1", Some("drop"));
        table.commit();
        table.put_element("m", "10.0.0.1", Some("accept"));
        assert_eq!(
            statements(&table.commit()),
            [
                "delete element m { 10.0.0.1 : drop }",
                "add element m { 10.0.0.1 : accept }"
            ]
        );
    }

    #[test]
    fn a_full_write_forgets_pending_changes() {
        let mut table = Table::new("t".into());
        table.add_set("s", "type ipv4_addr;");
        table.add_element("s", "10.0.0.1");
        assert_eq!(table.full().statements().len(), 5);
        assert!(table.commit().is_empty());
    }
}
