//! The difference of two values as Kubernetes shows it: a unified diff of their indented JSON with
//! three lines of context. Matching blocks are found as Python's `difflib` does: the longest first,
//! then to its left and right.

use machinery::Value;
use std::collections::HashMap;
use std::fmt::Write;

const CONTEXT: usize = 3;
/// From this many lines on, lines that make up more than one percent do not start a matching block.
const MANY_LINES: usize = 200;
/// Above this many lines, one change replaces everything between the first and the last difference:
/// the time for the smallest changes grows with the square of the lines.
const MOST_LINES: usize = 4000;

/// The unified diff from `a` to `b`; empty if equal.
pub(crate) fn unified(a: &Value, b: &Value) -> String {
    let (a, b) = (lines(a), lines(b));
    let mut out = String::new();
    for group in groups(&changes(&a, &b)) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else {
            continue;
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "@@ -{} +{} @@",
            range(first.a.0, last.a.1),
            range(first.b.0, last.b.1)
        );
        for part in group {
            let (old, new) = (&a[part.a.0..part.a.1], &b[part.b.0..part.b.1]);
            let mut put = |mark: char, lines: &[String]| {
                for line in lines {
                    let _ = writeln!(out, "{mark}{line}");
                }
            };
            if part.same {
                put(' ', old);
            } else {
                put('-', old);
                put('+', new);
            }
        }
    }
    out
}

fn lines(value: &Value) -> Vec<String> {
    let mut out = String::new();
    pretty(value, 0, &mut out);
    out.split('\n').map(str::to_owned).collect()
}

/// JSON indented by one space per level, as Go does.
fn pretty(value: &Value, depth: usize, out: &mut String) {
    let indent = |out: &mut String, depth: usize| {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', depth));
    };
    let mut items = |open: char, close: char, items: Vec<(String, &Value)>| {
        out.push(open);
        let many = !items.is_empty();
        for (i, (name, value)) in items.into_iter().enumerate() {
            if i > 0 {
                out.push(',');
            }
            indent(out, depth + 1);
            out.push_str(&name);
            pretty(value, depth + 1, out);
        }
        if many {
            indent(out, depth);
        }
        out.push(close);
    };
    match value {
        Value::Object(map) => {
            let name = |key: &str| format!("{}: ", Value::from(key));
            items('{', '}', map.iter().map(|(k, v)| (name(k), v)).collect());
        }
        Value::Array(list) => items('[', ']', list.iter().map(|v| (String::new(), v)).collect()),
        other => out.push_str(&other.to_string()),
    }
}

/// A range of lines in a hunk header.
fn range(start: usize, stop: usize) -> String {
    match stop - start {
        1 => (start + 1).to_string(),
        0 => format!("{start},0"),
        length => format!("{},{length}", start + 1),
    }
}

/// Line ranges of both sides: equal, or one replacing the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LineRanges {
    same: bool,
    a: (usize, usize),
    b: (usize, usize),
}

fn changes(a: &[String], b: &[String]) -> Vec<LineRanges> {
    if a.len().max(b.len()) > MOST_LINES {
        return outer_change(a, b);
    }
    let mut places: HashMap<&str, Vec<usize>> = HashMap::new();
    for (j, line) in b.iter().enumerate() {
        places.entry(line).or_default().push(j);
    }
    if b.len() >= MANY_LINES {
        places.retain(|_, at| at.len() <= b.len() / 100 + 1);
    }
    let mut blocks = Vec::new();
    let mut open = vec![((0, a.len()), (0, b.len()))];
    while let Some((in_a, in_b)) = open.pop() {
        let (i, j, size) = longest(a, b, &places, in_a, in_b);
        if size == 0 {
            continue;
        }
        blocks.push((i, j, size));
        open.push(((in_a.0, i), (in_b.0, j)));
        open.push(((i + size, in_a.1), (j + size, in_b.1)));
    }
    blocks.sort_unstable();
    blocks.push((a.len(), b.len(), 0));
    let (mut parts, mut at) = (Vec::new(), (0, 0));
    let mut together: Option<(usize, usize, usize)> = None;
    let mut put = |(i, j, size): (usize, usize, usize)| {
        if at != (i, j) {
            let (a, b) = ((at.0, i), (at.1, j));
            parts.push(LineRanges { same: false, a, b });
        }
        if size > 0 {
            let (a, b) = ((i, i + size), (j, j + size));
            parts.push(LineRanges { same: true, a, b });
        }
        at = (i + size, j + size);
    };
    // Adjacent blocks are joined.
    for (i, j, size) in blocks {
        match &mut together {
            Some((x, y, length)) if *x + *length == i && *y + *length == j => *length += size,
            _ => {
                together
                    .replace((i, j, size))
                    .into_iter()
                    .for_each(&mut put);
            }
        }
    }
    together.into_iter().for_each(&mut put);
    parts
}

/// One change between the common lines at the beginning and at the end.
fn outer_change(a: &[String], b: &[String]) -> Vec<LineRanges> {
    let head = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let rest = a.len().min(b.len()) - head;
    let ends = a.iter().rev().zip(b.iter().rev()).take(rest);
    let tail = ends.take_while(|(a, b)| a == b).count();
    let (a, b) = (a.len(), b.len());
    let parts = [
        (true, (0, head), (0, head)),
        (false, (head, a - tail), (head, b - tail)),
        (true, (a - tail, a), (b - tail, b)),
    ];
    let parts = parts.map(|(same, a, b)| LineRanges { same, a, b });
    let is_empty = |part: &LineRanges| part.a.0 == part.a.1 && part.b.0 == part.b.1;
    parts.into_iter().filter(|part| !is_empty(part)).collect()
}

/// The longest run of equal lines within both ranges; of several, the first in `a`, then in `b`.
fn longest(
    a: &[String],
    b: &[String],
    places: &HashMap<&str, Vec<usize>>,
    in_a: (usize, usize),
    in_b: (usize, usize),
) -> (usize, usize, usize) {
    let mut best = (in_a.0, in_b.0, 0);
    let mut lengths: HashMap<usize, usize> = HashMap::new();
    for (i, line) in a.iter().enumerate().take(in_a.1).skip(in_a.0) {
        let mut next = HashMap::new();
        for &j in places.get(line.as_str()).into_iter().flatten() {
            if j < in_b.0 || j >= in_b.1 {
                continue;
            }
            let before = j.checked_sub(1).and_then(|j| lengths.get(&j));
            let length = before.copied().unwrap_or(0) + 1;
            next.insert(j, length);
            if length > best.2 {
                best = (i + 1 - length, j + 1 - length, length);
            }
        }
        lengths = next;
    }
    // Frequent lines do not start a run, but they extend one.
    let (mut i, mut j, mut size) = best;
    while i > in_a.0 && j > in_b.0 && a[i - 1] == b[j - 1] {
        (i, j, size) = (i - 1, j - 1, size + 1);
    }
    while i + size < in_a.1 && j + size < in_b.1 && a[i + size] == b[j + size] {
        size += 1;
    }
    (i, j, size)
}

/// Changes close to each other, with their context.
fn groups(parts: &[LineRanges]) -> Vec<Vec<LineRanges>> {
    let mut parts = parts.to_vec();
    if let Some(first) = parts.first_mut().filter(|part| part.same) {
        first.a.0 = first.a.0.max(first.a.1.saturating_sub(CONTEXT));
        first.b.0 = first.b.0.max(first.b.1.saturating_sub(CONTEXT));
    }
    if let Some(last) = parts.last_mut().filter(|part| part.same) {
        last.a.1 = last.a.1.min(last.a.0 + CONTEXT);
        last.b.1 = last.b.1.min(last.b.0 + CONTEXT);
    }
    let (mut groups, mut group) = (Vec::new(), Vec::new());
    for mut part in parts {
        if part.same && part.a.1 - part.a.0 > 2 * CONTEXT {
            let mut head = part;
            head.a.1 = part.a.0 + CONTEXT;
            head.b.1 = part.b.0 + CONTEXT;
            group.push(head);
            groups.push(std::mem::take(&mut group));
            part.a.0 = part.a.1 - CONTEXT;
            part.b.0 = part.b.1 - CONTEXT;
        }
        group.push(part);
    }
    let only_same = matches!(group[..], [] | [LineRanges { same: true, .. }]);
    if !only_same {
        groups.push(group);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use machinery::json::json;

    #[test]
    fn very_many_lines_are_compared_in_linear_time() {
        let list = |name: &str| -> Value {
            let items = (0..20_000).map(|i| format!("{name}{i}"));
            ["first".to_owned()]
                .into_iter()
                .chain(items)
                .chain(["last".to_owned()])
                .collect::<Vec<_>>()
                .into()
        };
        let text = unified(&list("a"), &list("b"));
        assert!(
            text.starts_with("@@ -1,20004 +1,20004 @@\n [\n  \"first\",\n- \"a0\",\n"),
            "{}",
            &text[..80]
        );
        assert!(text.ends_with("+ \"b19999\",\n  \"last\"\n ]\n"));
        assert_eq!(unified(&list("a"), &list("a")), "");
    }

    #[test]
    fn a_diff_has_context_lines() {
        let cases = [
            (json!({"a": 1}), json!({"a": 1}), ""),
            (
                json!({"a": 1, "b": [], "c": {"d": "x"}}),
                json!({"a": 1, "b": ["y"], "c": {"d": "x"}}),
                "@@ -1,6 +1,8 @@\n {\n  \"a\": 1,\n- \"b\": [],\n+ \"b\": [\n+  \"y\"\n+ ],\n  \"c\": {\n   \"d\": \"x\"\n  }\n",
            ),
            (json!(null), json!({}), "@@ -1 +1 @@\n-null\n+{}\n"),
            (
                json!(["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]),
                json!(["x", "b", "c", "d", "e", "f", "g", "h", "i", "y"]),
                "@@ -1,5 +1,5 @@\n [\n- \"a\",\n+ \"x\",\n  \"b\",\n  \"c\",\n  \"d\",\n@@ -8,5 +8,5 @@\n  \"g\",\n  \"h\",\n  \"i\",\n- \"j\"\n+ \"y\"\n ]\n",
            ),
        ];
        for (a, b, expected) in cases {
            assert_eq!(unified(&a, &b), expected);
        }
    }
}
