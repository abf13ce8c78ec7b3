//! Text the way Go prints it: quoted strings and JSON inside messages.

use crate::json::Value;
use std::fmt::Write as _;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting_escapes_as_go_does() {
        assert_eq!(
            quote("a\"b\\c\n\u{1}ä\u{200b}"),
            "\"a\\\"b\\\\c\\n\\x01ä\\u200b\""
        );
    }
}
