//! KYAML: YAML in flow style with every string quoted, for `-o kyaml`.

use serde_json::Value;

/// The document in its own key order, with its first line and a trailing newline.
pub(crate) fn to_string(value: &Value) -> String {
    let mut out = String::from("---\n");
    node(&mut out, value, 0);
    out.push('\n');
    out
}

fn indent(out: &mut String, level: usize) {
    for _ in 0..level {
        out.push_str("  ");
    }
}

fn node(out: &mut String, value: &Value, level: usize) {
    match value {
        Value::Object(map) if map.is_empty() => out.push_str("{}"),
        Value::Object(map) => {
            out.push_str("{\n");
            for (key, value) in map {
                indent(out, level + 1);
                if needs_quotes(key) {
                    quoted(out, key, None);
                } else {
                    out.push_str(key);
                }
                out.push_str(": ");
                node(out, value, level + 1);
                out.push_str(",\n");
            }
            indent(out, level);
            out.push('}');
        }
        Value::Array(items) => list(out, items, level),
        Value::String(text) => quoted(out, text, Some(level + 1)),
        other => out.push_str(&other.to_string()),
    }
}

fn list(out: &mut String, items: &[Value], level: usize) {
    let is_nested = |item: &Value| item.is_object() || item.is_array();
    if items.iter().all(is_nested) {
        out.push('[');
        for (at, item) in items.iter().enumerate() {
            if at > 0 {
                out.push_str(", ");
            }
            node(out, item, level);
        }
        return out.push(']');
    }
    out.push_str("[\n");
    for item in items {
        indent(out, level + 1);
        node(out, item, level + 1);
        out.push_str(",\n");
    }
    indent(out, level);
    out.push(']');
}

/// A double-quoted string; with a level, its lines are one below the other.
fn quoted(out: &mut String, text: &str, level: Option<usize>) {
    let fold = level.filter(|_| text.contains('\n'));
    out.push('"');
    if fold.is_some() {
        out.push_str("\\\n");
    }
    for c in text.chars() {
        if let Some(level) = fold
            && out.ends_with('\n')
        {
            indent(out, level);
            out.push(if c.is_whitespace() && c != '\n' {
                '\\'
            } else {
                ' '
            });
        }
        match c {
            '\n' if fold.is_some() => out.push_str("\\n\\\n"),
            '\n' => out.push_str("\\n"),
            '\t' if level.is_some() => out.push('\t'),
            '\t' => out.push_str("\\t"),
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\r' => out.push_str("\\r"),
            c => match escape(c) {
                Some(escaped) => out.push_str(&escaped),
                None => out.push(c),
            },
        }
    }
    if let Some(level) = fold {
        if !out.ends_with('\n') {
            out.push_str("\\\n");
        }
        indent(out, level);
    }
    out.push('"');
}

/// A character that YAML writes as an escape, or that cannot be seen.
fn escape(c: char) -> Option<String> {
    let named = [
        ('\x07', "\\a"),
        ('\x08', "\\b"),
        ('\x0b', "\\v"),
        ('\x0c', "\\f"),
        ('\x1b', "\\e"),
        ('\u{a0}', "\\_"),
        ('\u{2028}', "\\L"),
        ('\u{2029}', "\\P"),
    ];
    if let Some((_, name)) = named.iter().find(|(known, _)| *known == c) {
        return Some((*name).to_owned());
    }
    // What Rust shows as its number has no glyph; marks are combined with what is before them.
    let is_hidden = c.escape_debug().to_string().starts_with("\\u{");
    match u32::from(c) {
        code @ (0..0x20 | 0x7f) => Some(format!("\\x{code:02x}")),
        0x0300..=0x036f => None,
        code @ 0x80..=0xffff if is_hidden => Some(format!("\\u{code:04x}")),
        code if is_hidden => Some(format!("\\U{code:08x}")),
        _ => None,
    }
}

fn needs_quotes(key: &str) -> bool {
    const WORDS: &[&str] = &[
        "null", "~", "true", "y", "yes", "on", "false", "n", "no", "off", "t", "f", "nan", "inf",
        "infinity",
    ];
    let chars: Vec<char> = key.chars().collect();
    let inside = |at: usize| at > 0 && at + 1 < chars.len();
    let is_allowed = |(at, c): (usize, &char)| {
        c.is_alphanumeric() || *c == '_' || (inside(at) && matches!(c, '-' | '.' | '/'))
    };
    let plain = key.replace('_', "");
    key.is_empty()
        || WORDS.contains(&key.to_lowercase().as_str())
        || plain.parse::<f64>().is_ok()
        || plain
            .strip_prefix("0x")
            .is_some_and(|hex| u64::from_str_radix(hex, 16).is_ok())
        || (key.starts_with(|c: char| c.is_ascii_digit()) && key.contains('-'))
        || !chars.iter().enumerate().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn characters_without_a_glyph_are_escaped() {
        let mut out = String::new();
        quoted(
            &mut out,
            "\x07\x1b\x02~\u{a0}\u{2028}\u{feff}\u{200b}\u{e000}é日😀",
            None,
        );
        assert_eq!(out, "\"\\a\\e\\x02~\\_\\L\\ufeff\\u200b\\ue000é日😀\"");
    }

    #[test]
    fn objects_are_printed_in_flow_style() {
        let value = json!({
            "kind": "Pod", "metadata": {"labels": {"a/b": "x", "y": "no"}},
            "spec": {"containers": [{"args": ["a", "b"], "n": 1}], "tolerations": []}, "text": "a\n b\n"});
        let expected = "---\n{\n  kind: \"Pod\",\n  metadata: {\n    labels: {\n      a/b: \"x\",\n      \"y\": \"no\",\n    },\n  },\n  spec: {\n    containers: [{\n      args: [\n        \"a\",\n        \"b\",\n      ],\n      \"n\": 1,\n    }],\n    tolerations: [],\n  },\n  text: \"\\\n     a\\n\\\n    \\ b\\n\\\n    \",\n}\n";
        assert_eq!(to_string(&value), expected);
    }
}
