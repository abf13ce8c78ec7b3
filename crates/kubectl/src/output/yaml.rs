//! YAML byte for byte as kubectl prints it: keys in natural order, lists not indented below their
//! key, strings plain where unambiguous, lines folded after eighty columns.

use std::cmp::Ordering;

use serde_json::Value;

const WIDTH: usize = 80;

/// The document of a value, with a trailing newline.
pub(crate) fn to_string(value: &Value) -> String {
    let mut out = Emitter::default();
    match value {
        Value::Object(map) if !map.is_empty() => out.mapping(map, 0, true),
        Value::Array(items) if !items.is_empty() => out.sequence(items, 0, true),
        scalar => out.scalar(scalar, 2),
    }
    if !out.text.ends_with('\n') {
        out.text.push('\n');
    }
    out.text
}

#[derive(Default)]
struct Emitter {
    text: String,
    column: usize,
}

impl Emitter {
    fn put(&mut self, text: &str) {
        for c in text.chars() {
            self.put_char(c);
        }
    }

    fn put_char(&mut self, c: char) {
        self.text.push(c);
        self.column = if c == '\n' { 0 } else { self.column + 1 };
    }

    fn line(&mut self, indent: usize) {
        if self.column > 0 {
            self.put_char('\n');
        }
        for _ in 0..indent {
            self.put_char(' ');
        }
    }

    /// `is_open`: the first key is at the cursor, as after `- `.
    fn mapping(&mut self, map: &serde_json::Map<String, Value>, indent: usize, is_open: bool) {
        for (at, key) in sorted(map.keys()).into_iter().enumerate() {
            if at > 0 || !is_open {
                self.line(indent);
            }
            // Longer or multi-line keys need the explicit form.
            let is_simple = key.len() <= 128 && !key.contains('\n');
            if !is_simple {
                self.put("? ");
                self.string(key, indent + 2, true);
                self.line(indent);
            } else {
                self.string(key, indent, false);
            }
            self.put(":");
            self.value(&map[key], indent);
        }
    }

    fn value(&mut self, value: &Value, indent: usize) {
        match value {
            Value::Object(map) if !map.is_empty() => self.mapping(map, indent + 2, false),
            // A list is at the column of its key.
            Value::Array(items) if !items.is_empty() => self.sequence(items, indent, false),
            scalar => {
                self.put(" ");
                self.scalar(scalar, indent + 2);
            }
        }
    }

    fn sequence(&mut self, items: &[Value], indent: usize, is_open: bool) {
        for (at, item) in items.iter().enumerate() {
            if at > 0 || !is_open {
                self.line(indent);
            }
            self.put("- ");
            match item {
                Value::Object(map) if !map.is_empty() => self.mapping(map, indent + 2, true),
                Value::Array(items) if !items.is_empty() => self.sequence(items, indent + 2, true),
                scalar => self.scalar(scalar, indent + 2),
            }
        }
    }

    fn scalar(&mut self, value: &Value, indent: usize) {
        match value {
            Value::Null => self.put("null"),
            Value::Bool(flag) => self.put(if *flag { "true" } else { "false" }),
            Value::Number(number) => self.put(&number_text(number)),
            Value::String(text) => self.string(text, indent, true),
            Value::Array(_) => self.put("[]"),
            Value::Object(_) => self.put("{}"),
        }
    }

    fn string(&mut self, text: &str, indent: usize, may_break: bool) {
        let form = Form::for_text(text);
        let is_key = !may_break;
        if text.contains('\n') {
            if form.block_allowed && !is_key {
                return self.literal(text, indent);
            }
            return self.double_quoted(text, indent, may_break);
        }
        if !is_plain_string(text) {
            return self.double_quoted(text, indent, may_break);
        }
        if form.plain_allowed && !text.is_empty() {
            return self.folded(text, indent, may_break, false);
        }
        if form.single_allowed {
            self.put("'");
            self.folded(text, indent, may_break, true);
            return self.put("'");
        }
        self.double_quoted(text, indent, may_break);
    }

    /// Plain or single-quoted text, whose long lines are folded at single spaces.
    fn folded(&mut self, text: &str, indent: usize, may_break: bool, is_quoted: bool) {
        let chars: Vec<char> = text.chars().collect();
        let mut after_space = false;
        for (at, &c) in chars.iter().enumerate() {
            let inside = !is_quoted || (at > 0 && at + 1 < chars.len());
            let next_is_space = chars.get(at + 1) == Some(&' ');
            if c == ' '
                && may_break
                && !after_space
                && self.column > WIDTH
                && inside
                && !next_is_space
            {
                self.line(indent);
            } else {
                if c == '\'' && is_quoted {
                    self.put_char('\'');
                }
                self.put_char(c);
            }
            after_space = c == ' ';
        }
    }

    fn double_quoted(&mut self, text: &str, indent: usize, may_break: bool) {
        self.put("\"");
        let chars: Vec<char> = text.chars().collect();
        let mut after_space = false;
        for (at, &c) in chars.iter().enumerate() {
            if let Some(escape) = escape(c) {
                self.put(&escape);
            } else if c == ' '
                && may_break
                && !after_space
                && self.column > WIDTH
                && at > 0
                && at + 1 < chars.len()
            {
                self.line(indent);
                if chars.get(at + 1) == Some(&' ') {
                    self.put("\\");
                }
            } else {
                self.put_char(c);
            }
            after_space = c == ' ';
        }
        self.put("\"");
    }

    fn literal(&mut self, text: &str, indent: usize) {
        self.put("|");
        if text.starts_with([' ', '\n']) {
            self.put("2");
        }
        if !text.ends_with('\n') {
            self.put("-");
        } else if text == "\n" || text.ends_with("\n\n") {
            self.put("+");
        }
        self.put_char('\n');
        for line in text.split_inclusive('\n') {
            if line != "\n" {
                for _ in 0..indent {
                    self.put_char(' ');
                }
            }
            self.put(line);
        }
    }
}

/// Numbers as Go's YAML writes them when decoded from JSON.
fn number_text(number: &serde_json::Number) -> String {
    if number.is_i64() || number.is_u64() {
        return number.to_string();
    }
    let value = number.as_f64().unwrap_or_default();
    if value.fract() == 0.0 && value.abs() < 1e21 {
        return format!("{value:.0}");
    }
    let exponent = format!("{value:e}");
    let (digits, power) = exponent.split_once('e').unwrap_or((&exponent, "0"));
    let power: i32 = power.parse().unwrap_or(0);
    if (-4..21).contains(&power) {
        return value.to_string();
    }
    let sign = if power < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", power.abs())
}

fn escape(c: char) -> Option<String> {
    let short = match c {
        '\0' => "\\0",
        '\x07' => "\\a",
        '\x08' => "\\b",
        '\t' => "\\t",
        '\n' => "\\n",
        '\x0b' => "\\v",
        '\x0c' => "\\f",
        '\r' => "\\r",
        '\x1b' => "\\e",
        '"' => "\\\"",
        '\\' => "\\\\",
        '\u{85}' => "\\N",
        '\u{a0}' => return None,
        '\u{2028}' => "\\L",
        '\u{2029}' => "\\P",
        c if is_printable(c) => return None,
        c => {
            let code = c as u32;
            return Some(match code {
                0..=0xff => format!("\\x{code:02X}"),
                0x100..=0xffff => format!("\\u{code:04X}"),
                _ => format!("\\U{code:08X}"),
            });
        }
    };
    Some(short.to_owned())
}

fn is_printable(c: char) -> bool {
    matches!(c, '\n' | ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}')
        && c != '\u{feff}'
}

/// Which styles can represent a text.
struct Form {
    plain_allowed: bool,
    single_allowed: bool,
    block_allowed: bool,
}

impl Form {
    fn for_text(text: &str) -> Self {
        let chars: Vec<char> = text.chars().collect();
        let is_break = |c: char| matches!(c, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}');
        let is_blank = |c: Option<&char>| c.is_none_or(|c| matches!(c, ' ' | '\t'));
        let mut indicator = text.starts_with("---") || text.starts_with("...");
        let (mut special, mut breaks, mut break_space, mut space_break) =
            (false, false, false, false);
        let (mut before_is_space, mut before_is_break) = (false, false);
        for (at, &c) in chars.iter().enumerate() {
            let next_is_blank = is_blank(chars.get(at + 1));
            indicator |= match (at, c) {
                (
                    0,
                    '#' | ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"'
                    | '%' | '@' | '`',
                ) => true,
                (0, '?' | '-') | (_, ':') => next_is_blank,
                (_, '#') => at == 0 || is_blank(chars.get(at - 1)) || is_break(chars[at - 1]),
                _ => false,
            };
            special |= !is_printable(c);
            if c == ' ' {
                break_space |= before_is_break;
            } else if is_break(c) {
                breaks = true;
                space_break |= before_is_space;
            }
            before_is_space = c == ' ';
            before_is_break = is_break(c);
        }
        let edge = |c: Option<&char>| c.is_some_and(|c| *c == ' ' || is_break(*c));
        let trailing_space = chars.last() == Some(&' ');
        Self {
            plain_allowed: !(indicator
                || breaks
                || special
                || break_space
                || space_break
                || edge(chars.first())
                || edge(chars.last())),
            single_allowed: !(break_space || space_break || special),
            block_allowed: !(trailing_space || space_break || special),
        }
    }
}

/// Whether unquoted text parses as this string and not as a number, a bool, null or a time.
fn is_plain_string(text: &str) -> bool {
    const WORDS: &[&str] = &[
        "", "~", "null", "Null", "NULL", "y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE",
        "on", "On", "ON", "n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off",
        "OFF", ".nan", ".NaN", ".NAN", ".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF", "-.inf",
        "-.Inf", "-.INF",
    ];
    if text == "<<" {
        // The merge key is recognised only by the class of its first character, which '<' does not
        // have.
        return true;
    }
    !(WORDS.contains(&text) || is_number(text) || is_time(text) || is_sexagesimal(text))
}

fn is_number(text: &str) -> bool {
    let Some(first) = text.chars().next() else {
        return false;
    };
    if !(first.is_ascii_digit() || matches!(first, '+' | '-' | '.')) {
        return false;
    }
    let plain = text.replace('_', "");
    is_float(&plain) || (first != '.' && is_integer(&plain))
}

fn is_integer(text: &str) -> bool {
    let digits = text.trim_start_matches(['+', '-']);
    if text.len() - digits.len() > 1 || digits.is_empty() {
        return false;
    }
    let lower = digits.to_ascii_lowercase();
    let parse = |digits: &str, radix| u64::from_str_radix(digits, radix).is_ok();
    if let Some(hex) = lower.strip_prefix("0x") {
        return parse(hex, 16);
    }
    if let Some(octal) = lower.strip_prefix("0o") {
        return parse(octal, 8);
    }
    if let Some(binary) = lower.strip_prefix("0b") {
        return parse(binary, 2);
    }
    match lower.strip_prefix('0').filter(|rest| !rest.is_empty()) {
        Some(octal) => parse(octal, 8),
        None => parse(&lower, 10),
    }
}

fn is_float(text: &str) -> bool {
    let rest = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match rest.find(['e', 'E']) {
        Some(at) => (&rest[..at], Some(&rest[at + 1..])),
        None => (rest, None),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, "0"));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let exponent_ok = exponent.is_none_or(|e| {
        let e = e.strip_prefix(['+', '-']).unwrap_or(e);
        !e.is_empty() && digits(e)
    });
    let has_digit = !whole.is_empty() || (!fraction.is_empty() && mantissa.contains('.'));
    // What is too large for a float is a string.
    let is_finite = || rest.parse::<f64>().is_ok_and(f64::is_finite);
    exponent_ok && has_digit && digits(whole) && digits(fraction) && is_finite()
}

/// Dates, and dates with a time.
fn is_time(text: &str) -> bool {
    let bytes = text.as_bytes();
    if bytes.len() < 8 || !bytes[..4].iter().all(u8::is_ascii_digit) || bytes[4] != b'-' {
        return false;
    }
    let (date, time) = match text.find(['T', 't', ' ']) {
        Some(at) => (&text[..at], Some((text.as_bytes()[at], &text[at + 1..]))),
        None => (text, None),
    };
    let mut parts = date.split('-');
    let number = |part: Option<&str>, max: u32| {
        part.filter(|part| (1..=2).contains(&part.len()))
            .and_then(|part| part.parse::<u32>().ok())
            .is_some_and(|n| (1..=max).contains(&n))
    };
    parts.next();
    if !number(parts.next(), 12) || !number(parts.next(), 31) || parts.next().is_some() {
        return false;
    }
    let Some((separator, time)) = time else {
        return true;
    };
    let (clock, has_zone) = split_zone(time);
    has_zone == (separator != b' ') && is_clock(clock)
}

fn split_zone(time: &str) -> (&str, bool) {
    if let Some(clock) = time.strip_suffix('Z') {
        return (clock, true);
    }
    match time.rfind(['+', '-']) {
        Some(at) if time.len() - at == 6 && time.as_bytes()[at + 3] == b':' => (&time[..at], true),
        _ => (time, false),
    }
}

fn is_clock(text: &str) -> bool {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let parts: Vec<&str> = whole.split(':').collect();
    let in_range = |part: &str, max: u32| {
        (1..=2).contains(&part.len()) && part.parse::<u32>().is_ok_and(|n| n <= max)
    };
    parts.len() == 3
        && in_range(parts[0], 23)
        && in_range(parts[1], 59)
        && in_range(parts[2], 59)
        && !fraction.is_empty()
        && fraction.bytes().all(|b| b.is_ascii_digit())
}

/// `190:20:30`, a number of YAML 1.1.
fn is_sexagesimal(text: &str) -> bool {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let mut parts = whole.split(':');
    let first = parts.next().unwrap_or_default();
    let rest: Vec<&str> = parts.collect();
    let is_digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit() || b == b'_');
    !rest.is_empty()
        && first.starts_with(|c: char| c.is_ascii_digit())
        && is_digits(first)
        && is_digits(fraction)
        && rest
            .iter()
            .all(|part| (1..=2).contains(&part.len()) && part.parse::<u32>().is_ok_and(|n| n < 60))
}

/// Keys sorted as Go's YAML does. Its rule is not a total order for all keys (it interprets digits
/// by what precedes them), so the standard library's sort might panic: this one does not.
fn sorted<'a>(keys: impl Iterator<Item = &'a String>) -> Vec<&'a String> {
    let mut sorted: Vec<&String> = Vec::new();
    for key in keys {
        let at = sorted.partition_point(|before| natural(before, key).is_le());
        sorted.insert(at, key);
    }
    sorted
}

/// Letters after other characters, numbers inside names by value.
fn natural(a: &str, b: &str) -> Ordering {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    for at in 0..a.len().min(b.len()) {
        if a[at] == b[at] {
            continue;
        }
        return match (a[at].is_alphabetic(), b[at].is_alphabetic()) {
            (true, true) => a[at].cmp(&b[at]),
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => by_number(&a, &b, at),
        };
    }
    a.len().cmp(&b.len())
}

fn by_number(a: &[char], b: &[char], at: usize) -> Ordering {
    let is_inside = a[at] == '0' || b[at] == '0';
    let before = a[..at].iter().rev().take_while(|c| c.is_ascii_digit());
    let start = u64::from(is_inside && before.into_iter().any(|c| *c != '0'));
    let number = |text: &[char]| {
        let digits: Vec<u64> = text[at..]
            .iter()
            .map_while(|c| c.to_digit(10).map(u64::from))
            .collect();
        let value = digits.iter().fold(start, |sum, digit| {
            sum.wrapping_mul(10).wrapping_add(*digit)
        });
        (value, digits.len())
    };
    number(a).cmp(&number(b)).then_with(|| a[at].cmp(&b[at]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn strings_take_the_style_that_go_gives_them() {
        for (text, expected) in [
            ("plain", "plain"),
            ("", "\"\""),
            ("true", "\"true\""),
            ("1", "\"1\""),
            ("0x1f", "\"0x1f\""),
            ("1e3", "\"1e3\""),
            ("1.2.3", "1.2.3"),
            ("2026-01-01T00:00:00Z", "\"2026-01-01T00:00:00Z\""),
            ("22:22", "\"22:22\""),
            ("a: b", "'a: b'"),
            ("- a", "'- a'"),
            ("-a", "-a"),
            ("*", "'*'"),
            ("it's", "it's"),
            ("'it's", "'''it''s'"),
            (" a", "' a'"),
            ("a #b", "'a #b'"),
            ("a\tb", "\"a\\tb\""),
            ("key:", "'key:'"),
            ("http://x:80", "http://x:80"),
            ("{}", "'{}'"),
        ] {
            assert_eq!(
                to_string(&json!({"k": text})),
                format!("k: {expected}\n"),
                "{text}"
            );
        }
    }

    #[test]
    fn lists_and_maps_nest_as_in_kubectl() {
        let value = json!({"b": [{"y": 1, "x": [1, 2]}, [], {}], "a": {"k10": 1, "k9": 2}, "c": {}, "d": null});
        assert_eq!(
            to_string(&value),
            "a:\n  k9: 2\n  k10: 1\nb:\n- x:\n  - 1\n  - 2\n  \"y\": 1\n- []\n- {}\nc: {}\nd: null\n"
        );
    }

    #[test]
    fn many_lines_are_a_literal_block_and_long_ones_are_folded() {
        let long = "word ".repeat(20);
        let value = json!({"a": "x\ny\n", "b": "x\ny", "c": long.trim_end(), "d": "x \ny"});
        assert_eq!(
            to_string(&value),
            "a: |\n  x\n  y\nb: |-\n  x\n  y\nc: word word word word word word word word word word word word \
             word word word word\n  word word word word\nd: \"x \\ny\"\n"
        );
    }
}
