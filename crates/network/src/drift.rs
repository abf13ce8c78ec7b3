//! Detects changes of our tables by other programs: compares the number of rules per chain and of
//! elements per set with what we would write.

use std::collections::BTreeMap;

use crate::{
    Result,
    nft::{self, Batch},
};

/// The shape of a table, without the contents of its rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Shape {
    /// The number of rules per chain.
    chains: BTreeMap<String, usize>,
    /// The number of elements per set or map; `None` if packets add them.
    sets: BTreeMap<String, Option<usize>>,
}

/// Whether the kernel's table differs from the one that `full` writes, or is missing.
pub async fn has_drifted(table: &str, full: &Batch) -> Result<bool> {
    let listing = nft::list(&["-a", "-s", "list", "table", "inet", table]).await?;
    Ok(listing.is_none_or(|listing| Shape::from_listing(&listing) != Shape::from_batch(full)))
}

/// The number of elements between braces; none of ours contains a comma.
fn count(elements: &str) -> usize {
    elements
        .split(',')
        .filter(|element| !element.trim().is_empty())
        .count()
}

/// Sets that packets or the kernel change are not counted.
fn is_counted(declaration: &str) -> bool {
    !declaration.contains("dynamic") && !declaration.contains("auto-merge")
}

impl Shape {
    fn from_batch(full: &Batch) -> Self {
        let mut shape = Self::default();
        for statement in full.statements() {
            let words: Vec<&str> = statement.splitn(6, ' ').collect();
            let [verb, kind, _, _, name, ..] = words[..] else {
                continue;
            };
            let rest = words.get(5).copied().unwrap_or_default();
            match (verb, kind) {
                ("add", "chain") => {
                    shape.chains.entry(name.to_owned()).or_default();
                }
                ("add" | "insert", "rule") => {
                    *shape.chains.entry(name.to_owned()).or_default() += 1;
                }
                ("add", "set" | "map") => {
                    let counted = is_counted(rest).then_some(0);
                    shape.sets.insert(name.to_owned(), counted);
                }
                ("add", "element") => {
                    let elements = rest.trim_start_matches('{').trim_end_matches('}');
                    if let Some(Some(known)) = shape.sets.get_mut(name) {
                        *known += count(elements);
                    }
                }
                _ => {}
            }
        }
        shape
    }

    fn from_listing(listing: &str) -> Self {
        let mut shape = Self::default();
        let mut block: Option<(&str, &str)> = None;
        let mut text = String::new();
        for line in listing.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match (words.as_slice(), block) {
                (["chain", name, "{", ..], None) => {
                    block = Some(("chain", name));
                    shape.chains.insert((*name).to_owned(), 0);
                }
                (["set" | "map", name, "{", ..], None) => {
                    block = Some(("set", name));
                    text.clear();
                }
                (["}"], Some((kind, name))) if line == "\t}" => {
                    if kind == "set" {
                        shape.add_set(name, &text);
                    }
                    block = None;
                }
                (_, Some(("chain", name))) => {
                    let is_rule = line.contains("# handle ");
                    if let Some(rules) = shape.chains.get_mut(name).filter(|_| is_rule) {
                        *rules += 1;
                    }
                }
                (_, Some(_)) => text.push_str(line),
                _ => {}
            }
        }
        shape
    }

    fn add_set(&mut self, name: &str, text: &str) {
        let (declaration, elements) = text.split_once("elements = {").unwrap_or((text, ""));
        let elements = elements.trim_end().trim_end_matches('}');
        let counted = is_counted(declaration).then(|| count(elements));
        self.sets.insert(name.to_owned(), counted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = "table inet t { # handle 1\n\
        \tset s { # handle 2\n\
        \t\ttype ipv4_addr\n\
        \t\telements = { 10.0.0.1,\n\
        \t\t\t     10.0.0.2 }\n\
        \t}\n\
        \tmap m { # handle 3\n\
        \t\ttype ipv4_addr : verdict\n\
        \t}\n\
        \tset clients { # handle 4\n\
        \t\ttype ipv4_addr\n\
        \t\tflags dynamic,timeout\n\
        \t\telements = { 10.0.0.9 timeout 5s }\n\
        \t}\n\
        \tchain c { # handle 5\n\
        \t\ttype filter hook forward priority filter; policy accept;\n\
        \t\tip saddr @s accept # handle 6\n\
        \t\tip saddr { 10.0.0.1,\n\
        \t\t\t   10.0.0.2 } accept # handle 7\n\
        \t}\n\
        }\n";

    fn batch(rules: &[&str]) -> Batch {
        let mut batch = Batch::new();
        batch.replace_table("inet", "t");
        batch.push("add set inet t s { type ipv4_addr; }");
        batch.push("add map inet t m { type ipv4_addr : verdict; }");
        batch.push("add set inet t clients { type ipv4_addr; flags dynamic,timeout; }");
        batch.push("add chain inet t c { type filter hook forward priority 0; }");
        for rule in rules {
            batch.push(format!("add rule inet t c {rule}"));
        }
        batch.push("add element inet t s { 10.0.0.1, 10.0.0.2 }");
        batch
    }

    #[test]
    fn a_table_as_we_would_write_it_has_the_same_shape() {
        let expected = Shape::from_batch(&batch(&["ip saddr @s accept", "drop"]));
        assert_eq!(Shape::from_listing(LISTING), expected);
    }

    #[test]
    fn a_missing_rule_element_or_chain_shows() {
        let expected = Shape::from_batch(&batch(&["ip saddr @s accept", "drop"]));
        for changed in [
            LISTING.replace("\t\tip saddr @s accept # handle 6\n", ""),
            LISTING.replace("10.0.0.1,\n\t\t\t     10.0.0.2 }\n\t}", "10.0.0.1 }\n\t}"),
            LISTING.replace("chain c {", "chain d {"),
            LISTING.replace("map m {", "map n {"),
        ] {
            assert_ne!(changed, LISTING);
            assert_ne!(Shape::from_listing(&changed), expected, "{changed}");
        }
    }
}
