//! Text as Go prints it: quoted strings and JSON inside messages. And fast equality of texts.

use crate::json::Value;
use std::fmt::Write as _;

/// Whether two texts are equal. For names that are often empty, such as the core group and the
/// namespace of cluster-scoped objects, this is faster than `==`, which calls libc for empty texts,
/// too (decision 20).
#[inline]
pub fn same(one: &str, other: &str) -> bool {
    one.len() == other.len() && (one.is_empty() || one == other)
}

/// A string in double quotes with Go's escapes, as `%q` prints it.
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\u{b}' => out.push_str("\\v"),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => escape(&mut out, "\\x", c as u32, 2),
            c if is_unprintable(c) && (c as u32) < 0x10000 => {
                escape(&mut out, "\\u", c as u32, 4);
            }
            c if is_unprintable(c) => escape(&mut out, "\\U", c as u32, 8),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn escape(out: &mut String, prefix: &str, code: u32, width: usize) {
    // Writing to a String cannot fail.
    let _ = write!(out, "{prefix}{code:0width$x}");
}

fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{a0}' | '\u{ad}' | '\u{fffe}' | '\u{ffff}')
        || (c.is_whitespace() && c != ' ')
        || matches!(c as u32, 0x200b..=0x200f | 0x202a..=0x202e | 0x2060..=0x206f | 0xfeff | 0xe000..=0xf8ff)
}

/// JSON as Go writes it into messages: compact, with `<`, `>` and `&` escaped.
pub fn json(value: &Value) -> String {
    let plain = value.to_string();
    if !plain.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        return plain;
    }
    let mut out = String::with_capacity(plain.len() + 16);
    for c in plain.chars() {
        match c {
            '<' => out.push_str("\\u003c"),
            '>' => out.push_str("\\u003e"),
            '&' => out.push_str("\\u0026"),
            '\u{2028}' => out.push_str("\\u2028"),
            '\u{2029}' => out.push_str("\\u2029"),
            c => out.push(c),
        }
    }
    out
}

/// A tree as Go's `%v` prints it: `map[a:1 b:[x y]]`.
pub fn plain(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(list) => {
            let parts: Vec<String> = list.iter().map(plain).collect();
            format!("[{}]", parts.join(" "))
        }
        Value::Object(map) => {
            let mut parts: Vec<(&str, &Value)> = map.iter().map(|(k, v)| (k.as_str(), v)).collect();
            parts.sort_by_key(|(key, _)| *key);
            let pairs = parts.into_iter().map(|(k, v)| format!("{k}:{}", plain(v)));
            format!("map[{}]", pairs.collect::<Vec<_>>().join(" "))
        }
        Value::Number(n) if !n.is_i64() => float(n.as_f64().unwrap_or_default()),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

/// A float as Go's `%v` prints it: `2.5`, `1e+06`.
pub fn float(f: f64) -> String {
    with_exponent(f, -4, 6, 2)
}

/// A float as Go writes it into JSON: `2`, `1e+21`, `1e-7`.
pub fn json_float(f: f64) -> String {
    with_exponent(f, -6, 21, 1)
}

/// The shortest digits that round-trip; with an exponent from `high` on, and below `low`.
fn with_exponent(f: f64, low: i32, high: i32, width: usize) -> String {
    let scientific = format!("{f:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if f == 0.0 || (low..high).contains(&exponent) {
        return format!("{f}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:0width$}", exponent.abs())
}

/// A tree as Go's `%#v` prints it.
pub fn literal(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::String(text) => quote(text),
        Value::Array(list) => {
            let parts: Vec<String> = list.iter().map(literal).collect();
            format!("[]interface {{}}{{{}}}", parts.join(", "))
        }
        Value::Object(map) => {
            let mut parts: Vec<(&str, &Value)> = map.iter().map(|(k, v)| (k.as_str(), v)).collect();
            parts.sort_by_key(|(key, _)| *key);
            let pairs = parts
                .into_iter()
                .map(|(k, v)| format!("{}:{}", quote(k), literal(v)));
            let pairs: Vec<String> = pairs.collect();
            format!("map[string]interface {{}}{{{}}}", pairs.join(", "))
        }
        Value::Number(n) if !n.is_i64() => float(n.as_f64().unwrap_or_default()),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

/// Parses a number as Go's `strconv.ParseUint`, with its error.
pub fn parse_uint(text: &str) -> Result<u64, String> {
    let why = |what: &str| format!("strconv.ParseUint: parsing {}: {what}", quote(text));
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(why("invalid syntax"));
    }
    text.parse().map_err(|_| why("value out of range"))
}

/// Parses a number as Go's `strconv.ParseInt`, with its error.
pub fn parse_int(text: &str) -> Result<i64, String> {
    let why = |what: &str| format!("strconv.ParseInt: parsing {}: {what}", quote(text));
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(why("invalid syntax"));
    }
    text.parse().map_err(|_| why("value out of range"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_agrees_with_the_equality_operator() {
        for one in ["", "a", "b", "apps", "batch"] {
            for other in ["", "a", "b", "apps", "batch"] {
                assert_eq!(same(one, other), one == other, "{one} {other}");
            }
        }
    }

    #[test]
    fn floats_look_as_go_writes_them() {
        for (f, plain, json) in [
            (2.0, "2", "2"),
            (-2.5, "-2.5", "-2.5"),
            (0.0, "0", "0"),
            (1e6, "1e+06", "1000000"),
            (123_456_789.0, "1.23456789e+08", "123456789"),
            (1e21, "1e+21", "1e+21"),
            (1.5e-5, "1.5e-05", "0.000015"),
            (1.5e-7, "1.5e-07", "1.5e-7"),
        ] {
            assert_eq!((float(f), json_float(f)), (plain.into(), json.into()));
        }
    }

    #[test]
    fn trees_print_as_gos_do() {
        let tree = crate::json::json!({"b": [1, "x", null], "a": {"c": true}});
        assert_eq!(plain(&tree), "map[a:map[c:true] b:[1 x <nil>]]");
        assert_eq!(
            literal(&tree),
            r#"map[string]interface {}{"a":map[string]interface {}{"c":true}, "b":[]interface {}{1, "x", interface {}(nil)}}"#
        );
    }

    #[test]
    fn number_errors_have_gos_messages() {
        assert_eq!(parse_uint("12"), Ok(12));
        assert_eq!(
            parse_uint("-1").unwrap_err(),
            r#"strconv.ParseUint: parsing "-1": invalid syntax"#
        );
        assert_eq!(parse_int("-1"), Ok(-1));
        assert_eq!(
            parse_int("99999999999999999999").unwrap_err(),
            r#"strconv.ParseInt: parsing "99999999999999999999": value out of range"#
        );
    }

    #[test]
    fn quoting_escapes_as_go_does() {
        assert_eq!(
            quote("a\"b\\c\n\u{1}ä\u{200b}"),
            "\"a\\\"b\\\\c\\n\\x01ä\\u200b\""
        );
    }
}
