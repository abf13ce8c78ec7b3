//! YAML as Kubernetes reads it: into JSON with sorted keys, with limits against alias bombs.

use super::{Findings, MAX_DEPTH, Tree};
use crate::text::quote;
use crate::{Value, normalise};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use std::cell::Cell;
use std::fmt;

/// Stack size. In a debug build the parser uses some 17 KiB per level: more than an ordinary thread
/// has at the maximum nesting.
const ROOM: usize = 16 << 20;

/// Parses a document on a separate stack that fits the maximum nesting.
fn read<T: serde::de::DeserializeOwned + Send>(text: &str) -> Result<T, String> {
    let text = first_document(text);
    let parse = || {
        serde_saphyr::from_str_with_options(text, options())
            .map_err(|e| complaint(text, &e.to_string()))
    };
    std::thread::scope(|scope| {
        let room = std::thread::Builder::new().stack_size(ROOM);
        let reader = room
            .spawn_scoped(scope, parse)
            .map_err(|e| format!("yaml: {e}"))?;
        reader
            .join()
            .unwrap_or_else(|_| Err("yaml: the document cannot be read".to_owned()))
    })
}

/// The first document of the text; the rest is ignored.
fn first_document(text: &str) -> &str {
    let marks = |line: &str, mark: &str| {
        let rest = line.strip_prefix(mark);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t']))
    };
    let (mut at, mut begun) = (0, false);
    for line in text.split_inclusive('\n') {
        let bare = line.trim_end_matches(['\n', '\r']);
        let begins = marks(bare, "---");
        if begun && (begins || marks(bare, "...")) {
            return &text[..at];
        }
        begun |= begins || !(bare.trim().is_empty() || bare.starts_with(['#', '%']));
        at += line.len();
    }
    text
}

/// The first line of the parser's error, with the line number in Kubernetes' form.
fn complaint(text: &str, reported: &str) -> String {
    let first = reported.lines().next().unwrap_or_default();
    let first = first.strip_prefix("error: ").unwrap_or(first);
    let placed = first
        .strip_prefix("line ")
        .and_then(|rest| rest.split_once(" column "))
        .and_then(|(line, rest)| Some((line, rest.split_once(": ")?)));
    let Some((line, (column, why))) = placed else {
        return format!("yaml: {}", in_libyamls_words(first));
    };
    if why.starts_with("non-finite float") {
        let written = why
            .split('`')
            .nth(1)
            .unwrap_or_default()
            .to_ascii_lowercase();
        let value = match written.as_str() {
            ".nan" => "NaN",
            written if written.starts_with('-') => "-Inf",
            _ => "+Inf",
        };
        return format!("json: unsupported value: {value}");
    }
    if why.starts_with("alias references unknown anchor") {
        let name = alias(text, line, column).unwrap_or_default();
        return format!("yaml: unknown anchor '{name}' referenced");
    }
    if why.starts_with("recursive references") {
        let name = alias(text, line, column).unwrap_or_default();
        return format!("yaml: anchor '{name}' value contains itself");
    }
    match in_libyamls_words(why) {
        whole @ ("document contains excessive aliasing" | "exceeded max depth of 10000") => {
            format!("yaml: {whole}")
        }
        words => format!("yaml: line {line}: {words}"),
    }
}

/// The name of the alias at a position, counted from one.
fn alias<'a>(text: &'a str, line: &str, column: &str) -> Option<&'a str> {
    let (line, column): (usize, usize) = (line.parse().ok()?, column.parse().ok()?);
    let line = text.lines().nth(line.checked_sub(1)?)?;
    let (start, _) = line.char_indices().nth(column.checked_sub(1)?)?;
    let name = line[start..].trim_start_matches('*');
    let ends = |c: char| c.is_whitespace() || ",[]{}".contains(c);
    name.split(ends).next()
}

/// The wording of upstream's parser for the most common errors.
fn in_libyamls_words(why: &str) -> &str {
    match why {
        _ if why.starts_with("tabs disallowed") => "found character that cannot start any token",
        _ if why.starts_with("unclosed bracket '['") => "did not find expected ',' or ']'",
        _ if why.starts_with("unclosed bracket '{'") => "did not find expected node content",
        _ if why.starts_with("budget breached: Depth") || why.starts_with("recursion limit") => {
            "exceeded max depth of 10000"
        }
        _ if why.starts_with("budget breached") || why.starts_with("alias replay limit") => {
            "document contains excessive aliasing"
        }
        _ => why,
    }
}

/// The tree, and whether a key is duplicated.
pub(super) fn tree(bytes: &[u8]) -> Result<(Value, bool), String> {
    let text = std::str::from_utf8(bytes).map_err(|e| format!("yaml: {e}"))?;
    let Yaml {
        mut value,
        has_duplicates,
    } = read(text)?;
    normalise::sort(&mut value);
    Ok((value, has_duplicates))
}

/// The duplicate keys with their lines.
pub(super) fn duplicates(bytes: &[u8]) -> Findings {
    let text = String::from_utf8_lossy(bytes);
    let lines: Result<Lines, _> = read(&text);
    let mut findings = Findings::default();
    for (line, key) in lines.map(|l| l.0).unwrap_or_default() {
        findings.push(format!(
            "line {line}: key {} already set in map",
            quote(&key)
        ));
    }
    findings.yaml = findings.sentences.len();
    findings
}

/// Collects duplicate keys and their lines.
#[derive(Default)]
struct Lines(Vec<(u64, String)>);

impl<'de> serde::Deserialize<'de> for Lines {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LinesVisitor)
    }
}

struct LinesVisitor;

impl<'de> Visitor<'de> for LinesVisitor {
    type Value = Lines;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Lines, E> {
        Ok(Lines::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<Lines, E> {
        Ok(Lines::default())
    }

    fn visit_u64<E>(self, _: u64) -> Result<Lines, E> {
        Ok(Lines::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<Lines, E> {
        Ok(Lines::default())
    }

    fn visit_str<E>(self, _: &str) -> Result<Lines, E> {
        Ok(Lines::default())
    }

    fn visit_unit<E>(self) -> Result<Lines, E> {
        Ok(Lines::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Lines, A::Error> {
        let mut out = Lines::default();
        while let Some(below) = seq.next_element::<Lines>()? {
            out.0.extend(below.0);
        }
        Ok(out)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Lines, A::Error> {
        let mut out = Lines::default();
        let mut seen = std::collections::HashSet::new();
        while let Some(key) = map.next_key::<serde_saphyr::Spanned<String>>()? {
            if seen.contains(&key.value) {
                out.0.push((key.defined.line(), key.value.clone()));
            }
            seen.insert(key.value);
            out.0.extend(map.next_value::<Lines>()?.0);
        }
        Ok(out)
    }
}

fn options() -> serde_saphyr::Options {
    // Limits against alias bombs: three megabytes of text have fewer nodes than this, and
    // legitimate documents hardly use aliases.
    let budget = serde_saphyr::budget! {
        max_depth: MAX_DEPTH,
        max_nodes: 1_500_000,
        max_aliases: 1_000,
        max_anchors: 1_000,
    };
    let mut options = serde_saphyr::options! {
        budget: budget,
        duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy::LastWins,
        legacy_octal_numbers: true,
        strict_booleans: false,
    };
    options.alias_limits.max_total_replayed_events = 200_000;
    options
}

/// The target of deserialization.
struct Yaml {
    value: Value,
    has_duplicates: bool,
}

impl<'de> serde::Deserialize<'de> for Yaml {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let duplicate = Cell::new(false);
        let value = Tree {
            duplicate: &duplicate,
            depth: 0,
        }
        .deserialize(deserializer)?;
        Ok(Self {
            value,
            has_duplicates: duplicate.get(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_document_counts_and_complaints_are_libyamls() {
        for (text, expected) in [
            ("a: 1\n---\nb: 2\n", Ok(r#"{"a":1}"#)),
            ("# first\n---\na: 1\n---\n", Ok(r#"{"a":1}"#)),
            ("a: |\n  x\n  ---\n  y\n", Ok(r#"{"a":"x\n---\ny\n"}"#)),
            ("a: 1\n...\n}}}", Ok(r#"{"a":1}"#)),
            ("a: ---b", Ok(r#"{"a":"---b"}"#)),
            ("---\n---\na: 1\n", Ok("null")),
            ("a: *x", Err("yaml: unknown anchor 'x' referenced")),
            ("a: .inf", Err("json: unsupported value: +Inf")),
            ("a: -.inf", Err("json: unsupported value: -Inf")),
            (
                "a:\n\tb: 1",
                Err("yaml: line 2: found character that cannot start any token"),
            ),
            (
                "a: [1",
                Err("yaml: line 1: did not find expected ',' or ']'"),
            ),
        ] {
            let read = tree(text.as_bytes()).map(|(value, _)| value.to_string());
            let read = read.as_deref().map_err(String::as_str);
            assert_eq!(read, expected, "{text:?}");
        }
        let deep = tree("[".repeat(5000).as_bytes()).unwrap_err();
        assert_eq!(deep, "yaml: exceeded max depth of 10000");
    }

    #[test]
    fn the_deepest_document_is_read_and_a_deeper_one_refused() {
        let nested = |depth: usize| format!("{}1{}", "{a: ".repeat(depth), "}".repeat(depth));
        // A thread with a stack as small as those of request handlers.
        let small = std::thread::Builder::new().stack_size(1 << 20);
        let ends = small.spawn(move || {
            let depth = MAX_DEPTH - 1;
            (
                tree(nested(depth).as_bytes()).is_ok(),
                tree(nested(5000).as_bytes()).is_err(),
            )
        });
        assert_eq!(ends.unwrap().join().unwrap(), (true, true));
    }
}
