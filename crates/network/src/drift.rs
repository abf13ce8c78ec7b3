//! Detects changes of our tables by other programs: compares the number of rules per chain and of elements per set with
//! what we would write, then the rules themselves. Since nft shows rules in a form of its own, it shows ours in an empty
//! network namespace for that.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    process::{Command, Stdio},
    thread,
};

use nix::sched::{CloneFlags, unshare};
use tokio::sync::oneshot;
use tracing::debug;

use crate::{
    Error, Result,
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
    let Some(listing) = listing else {
        return Ok(true);
    };
    if Shape::from_listing(&listing) != Shape::from_batch(full) {
        return Ok(true);
    }
    match shown(table, full).await? {
        Ok(expected) => Ok(rules(&listing) != rules(&expected)),
        Err(error) => {
            debug!(%error, table, "cannot compare the rules of a table");
            Ok(false)
        }
    }
}

/// How nft shows a table without its elements.
async fn shown(table: &str, full: &Batch) -> Result<io::Result<String>> {
    let statements = full.statements().iter();
    let statements = statements.filter(|statement| !statement.starts_with("add element "));
    let text: String = statements
        .map(|statement| format!("{statement}\n"))
        .collect();
    let table = table.to_owned();
    let (send, receive) = oneshot::channel();
    // A thread of its own: the namespace is that of its children, and ends with it.
    thread::Builder::new()
        .name("nft".into())
        .spawn(move || {
            let entered = unshare(CloneFlags::CLONE_NEWNET).map_err(io::Error::from);
            let _ = send.send(entered.and_then(|()| show(&table, &text)));
        })
        .map_err(Error::Socket)?;
    receive.await.map_err(|_| Error::ThreadLost)
}

fn show(table: &str, text: &str) -> io::Result<String> {
    let nft = |arguments: &[&str]| {
        let mut command = Command::new("nft");
        command.args(arguments).env("LC_ALL", "C");
        command.stdin(Stdio::null()).stderr(Stdio::null());
        command
    };
    let mut writing = nft(&["-f", "-"]).stdin(Stdio::piped()).spawn()?;
    let written = match writing.stdin.take() {
        Some(mut stdin) => stdin.write_all(text.as_bytes()),
        None => Ok(()),
    };
    let status = writing.wait()?;
    written?;
    let output = nft(&["-a", "-s", "list", "table", "inet", table]).output()?;
    match status.success() && output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(io::Error::other("nft failed")),
    }
}

/// The rules of each chain, sorted: those that changes add are at the end. The order of the elements of a set in a rule is
/// the kernel's.
fn rules(listing: &str) -> BTreeMap<&str, Vec<Vec<String>>> {
    let mut all: BTreeMap<&str, Vec<Vec<String>>> = BTreeMap::new();
    let (mut chain, mut rule) = (None, String::new());
    for line in listing.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match (words.as_slice(), chain) {
            (["chain", name, "{", ..], None) => chain = Some(*name),
            (["}"], Some(_)) if line == "\t}" => chain = None,
            (["type" | "comment", ..], Some(_)) if rule.is_empty() => {}
            (words, Some(name)) => {
                rule += &words.join(" ");
                rule.push(' ');
                if let Some((text, _)) = rule.split_once(" # handle ") {
                    let parts = text.split([',', '{', '}']).map(str::trim);
                    let parts = parts.filter(|part| !part.is_empty());
                    let mut parts: Vec<String> = parts.map(ToOwned::to_owned).collect();
                    parts.sort_unstable();
                    all.entry(name).or_default().push(parts);
                    rule.clear();
                }
            }
            _ => {}
        }
    }
    for rules in all.values_mut() {
        rules.sort_unstable();
    }
    all
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
    fn a_rule_differs_by_its_words_and_not_by_its_place() {
        let before = rules(LISTING);
        assert_eq!(before["c"].len(), 2);
        for (old, new, is_same) in [
            (
                "10.0.0.1,\n\t\t\t   10.0.0.2",
                "10.0.0.2,\n\t\t\t   10.0.0.1",
                true,
            ),
            ("handle 6", "handle 60", true),
            ("@s accept", "@s drop", false),
            ("} accept", "} drop", false),
            ("ip saddr @s", "ip daddr @s", false),
        ] {
            let changed = LISTING.replace(old, new);
            assert_ne!(changed, LISTING);
            assert_eq!(rules(&changed) == before, is_same, "{changed}");
        }
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
