//! Go's `Printf` for the values of templates: integers, floats, strings, booleans, lists, maps and nil.

use serde_json::{Number, Value};

use super::funcs::{nested, type_name};

/// The most that widths and precisions pad.
const MOST: usize = 1024;

/// What stands between `%` and a verb.
#[derive(Debug, Clone, Copy, Default)]
struct Spec {
    is_left: bool,
    is_zero: bool,
    has_plus: bool,
    has_space: bool,
    has_sharp: bool,
    width: usize,
    precision: Option<usize>,
}

/// Formats values.
pub(super) fn printf(format: &str, values: &[Value]) -> String {
    let mut formatter = Formatter {
        rest: format,
        values,
        next: 0,
        is_reordered: false,
        out: String::new(),
    };
    formatter.run();
    formatter.out
}

struct Formatter<'a> {
    rest: &'a str,
    values: &'a [Value],
    /// The index of the next value.
    next: usize,
    /// Values were chosen by index (`%[1]d`): those left over are no mistake.
    is_reordered: bool,
    out: String,
}

impl Formatter<'_> {
    fn run(&mut self) {
        while let Some(at) = self.rest.find('%') {
            self.out.push_str(&self.rest[..at]);
            self.rest = &self.rest[at + 1..];
            self.directive();
        }
        self.out.push_str(self.rest);
        let extra = self.values.get(self.next..).unwrap_or_default();
        if !self.is_reordered && !extra.is_empty() {
            let shown: Vec<String> = extra.iter().map(typed).collect();
            self.out
                .push_str(&format!("%!(EXTRA {})", shown.join(", ")));
        }
    }

    fn directive(&mut self) {
        let mut spec = Spec::default();
        while let Some(flag) = self.rest.chars().next() {
            match flag {
                '-' => spec.is_left = true,
                '0' => spec.is_zero = true,
                '+' => spec.has_plus = true,
                ' ' => spec.has_space = true,
                '#' => spec.has_sharp = true,
                _ => break,
            }
            self.rest = &self.rest[1..];
        }
        self.index();
        match self.number() {
            Some(width) if width < 0 => (spec.is_left, spec.width) = (true, limit(-width)),
            width => spec.width = limit(width.unwrap_or_default()),
        }
        if let Some(rest) = self.rest.strip_prefix('.') {
            self.rest = rest;
            self.index();
            spec.precision = Some(limit(self.number().unwrap_or_default()));
        }
        self.index();
        let Some(verb) = self.rest.chars().next() else {
            return self.out.push_str("%!(NOVERB)");
        };
        self.rest = &self.rest[verb.len_utf8()..];
        if verb == '%' {
            return self.out.push('%');
        }
        match self.take() {
            Some(value) => self.out.push_str(&formatted(verb, spec, &value)),
            None => self.out.push_str(&format!("%!{verb}(MISSING)")),
        }
    }

    fn take(&mut self) -> Option<Value> {
        let value = self.values.get(self.next).cloned();
        self.next += usize::from(value.is_some());
        value
    }

    /// `[2]`: the value to use next.
    fn index(&mut self) {
        let inside = self
            .rest
            .strip_prefix('[')
            .and_then(|rest| rest.split_once(']'));
        if let Some((index, rest)) = inside
            && let Ok(index) = index.parse::<usize>()
        {
            self.next = index.saturating_sub(1);
            self.is_reordered = true;
            self.rest = rest;
        }
    }

    /// A width or a precision: digits, or `*` for the next value.
    fn number(&mut self) -> Option<i64> {
        if let Some(rest) = self.rest.strip_prefix('*') {
            self.rest = rest;
            return self.take().and_then(|value| value.as_i64());
        }
        let end = self.rest.find(|c: char| !c.is_ascii_digit());
        let (digits, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        digits.parse().ok()
    }
}

fn limit(number: i64) -> usize {
    usize::try_from(number).unwrap_or_default().min(MOST)
}

/// `string=a`, for values that the format does not use.
fn typed(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        value => format!("{}={}", type_name(value), nested(value)),
    }
}

fn formatted(verb: char, spec: Spec, value: &Value) -> String {
    match (value, verb) {
        (value, 'T') => padded(type_name(value), spec),
        (Value::Null, 'v') => padded("<nil>", spec),
        (Value::Array(items), _) => {
            let items: Vec<String> = items.iter().map(|item| item_of(verb, spec, item)).collect();
            format!("[{}]", items.join(" "))
        }
        (Value::Object(map), _) => {
            let mut pairs: Vec<_> = map.iter().collect();
            pairs.sort_by_key(|(key, _)| key.as_str());
            let pair = |(key, value): (&String, &Value)| {
                let key = formatted(verb, spec, &Value::from(key.as_str()));
                format!("{key}:{}", item_of(verb, spec, value))
            };
            let pairs: Vec<String> = pairs.into_iter().map(pair).collect();
            format!("map[{}]", pairs.join(" "))
        }
        (Value::Bool(flag), 't' | 'v') => padded(&flag.to_string(), spec),
        (Value::String(text), _) => string(verb, spec, text).unwrap_or_else(|| bad(verb, value)),
        (Value::Number(number), _) => {
            let text = match integer_of(number) {
                Some(integer) => integer_text(verb, spec, integer),
                None => float_text(verb, spec, number.as_f64().unwrap_or_default()),
            };
            text.unwrap_or_else(|| bad(verb, value))
        }
        _ => bad(verb, value),
    }
}

/// An element of a list or map.
fn item_of(verb: char, spec: Spec, value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        _ => formatted(verb, spec, value),
    }
}

fn integer_of(number: &Number) -> Option<i128> {
    let signed = number.as_i64().map(i128::from);
    signed.or_else(|| number.as_u64().map(i128::from))
}

/// A value that the verb cannot format.
fn bad(verb: char, value: &Value) -> String {
    format!("%!{verb}({})", typed(value))
}

fn padded(text: &str, spec: Spec) -> String {
    let missing = spec.width.saturating_sub(text.chars().count());
    match (spec.is_left, spec.is_zero) {
        (true, _) => format!("{text}{}", " ".repeat(missing)),
        (false, true) => format!("{}{text}", "0".repeat(missing)),
        (false, false) => format!("{}{text}", " ".repeat(missing)),
    }
}

/// A number with its sign; zeros stand behind the sign.
fn signed(is_negative: bool, digits: &str, spec: Spec) -> String {
    let sign = match (is_negative, spec.has_plus, spec.has_space) {
        (true, ..) => "-",
        (_, true, _) => "+",
        (_, _, true) => " ",
        _ => "",
    };
    if spec.is_zero && !spec.is_left {
        let width = spec.width.saturating_sub(sign.len());
        let zeros = "0".repeat(width.saturating_sub(digits.len()));
        return format!("{sign}{zeros}{digits}");
    }
    padded(
        &format!("{sign}{digits}"),
        Spec {
            is_zero: false,
            ..spec
        },
    )
}

fn string(verb: char, spec: Spec, text: &str) -> Option<String> {
    let cut: String = match spec.precision {
        Some(most) => text.chars().take(most).collect(),
        None => text.to_owned(),
    };
    let text = match verb {
        's' => cut,
        'v' if spec.has_sharp => machinery::text::quote(&cut),
        'v' => cut,
        'q' => machinery::text::quote(&cut),
        'x' => cut.bytes().map(|byte| format!("{byte:02x}")).collect(),
        'X' => cut.bytes().map(|byte| format!("{byte:02X}")).collect(),
        _ => return None,
    };
    Some(padded(&text, spec))
}

fn integer_text(verb: char, spec: Spec, number: i128) -> Option<String> {
    let size = number.unsigned_abs();
    let (prefix, digits) = match verb {
        'd' | 'v' => ("", size.to_string()),
        'b' => ("0b", format!("{size:b}")),
        'o' => ("0", format!("{size:o}")),
        'O' => return Some(signed(number < 0, &format!("0o{size:o}"), spec)),
        'x' => ("0x", format!("{size:x}")),
        'X' => ("0X", format!("{size:X}")),
        'c' | 'q' | 'U' => return character(verb, spec, number),
        _ => return None,
    };
    let zeros = spec
        .precision
        .unwrap_or_default()
        .saturating_sub(digits.len());
    let digits = format!("{}{digits}", "0".repeat(zeros));
    let digits = match spec.has_sharp {
        true => format!("{prefix}{digits}"),
        false => digits,
    };
    // A precision replaces the padding with zeros.
    let is_zero = spec.is_zero && spec.precision.is_none();
    Some(signed(number < 0, &digits, Spec { is_zero, ..spec }))
}

fn character(verb: char, spec: Spec, number: i128) -> Option<String> {
    let code = u32::try_from(number).ok().and_then(char::from_u32);
    let c = code.unwrap_or(char::REPLACEMENT_CHARACTER);
    let text = match verb {
        'c' => c.to_string(),
        'q' => {
            let quoted = machinery::text::quote(&c.to_string());
            match c {
                '\'' => r"'\''".to_owned(),
                '"' => "'\"'".to_owned(),
                _ => format!("'{}'", &quoted[1..quoted.len() - 1]),
            }
        }
        _ if spec.has_sharp => format!("U+{number:04X} '{c}'"),
        _ => format!("U+{number:04X}"),
    };
    Some(padded(&text, spec))
}

fn float_text(verb: char, spec: Spec, number: f64) -> Option<String> {
    let size = number.abs();
    let digits = match (verb, spec.precision) {
        ('v' | 'g' | 'G', None) => machinery::text::float(size),
        ('v' | 'g' | 'G', Some(precision)) => general(size, precision.clamp(1, 64)),
        ('f' | 'F', precision) => format!("{size:.*}", precision.unwrap_or(6).min(64)),
        ('e' | 'E', precision) => exponential(size, precision.unwrap_or(6).min(64)),
        _ => return None,
    };
    let digits = match verb {
        'E' | 'G' => digits.to_uppercase(),
        _ => digits,
    };
    Some(signed(number.is_sign_negative(), &digits, spec))
}

/// Digits with an exponent of at least two digits.
fn exponential(number: f64, precision: usize) -> String {
    let text = format!("{number:.precision$e}");
    let Some((digits, exponent)) = text.split_once('e') else {
        return text;
    };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// A number of digits, with an exponent if that is shorter.
fn general(number: f64, precision: usize) -> String {
    let text = exponential(number, precision - 1);
    let Some((digits, exponent)) = text.split_once('e') else {
        return text;
    };
    let without_zeros = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    let place: i32 = exponent.parse().unwrap_or_default();
    match usize::try_from(place) {
        Ok(place) if place >= precision => format!("{}e{exponent}", without_zeros(digits)),
        Ok(place) => without_zeros(&format!("{number:.*}", precision - 1 - place)),
        Err(_) if place < -4 => format!("{}e{exponent}", without_zeros(digits)),
        Err(_) => {
            let below = usize::try_from(-place).unwrap_or_default();
            without_zeros(&format!("{number:.*}", precision - 1 + below))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_formatted_as_by_go() {
        for (format, values, expected) in [
            ("%s %f %x", json!([3, 3, 3]), "%!s(int64=3) %!f(int64=3) 3"),
            ("%v %v", json!([true]), "true %!v(MISSING)"),
            ("%d", json!([3, "a", null]), "3%!(EXTRA string=a, <nil>)"),
            (
                "%s",
                json!([{"n": 3, "l": ["a", true]}]),
                "map[l:[a %!s(bool=true)] n:%!s(int64=3)]",
            ),
            (
                "%d",
                json!([{"a": "x"}]),
                "map[%!d(string=a):%!d(string=x)]",
            ),
            (
                "%5.1f|%-5d|%05d|%+d",
                json!([3.14259, 3, 3, 3]),
                "  3.1|3    |00003|+3",
            ),
            (
                "%q|%x|%X|%x",
                json!(["a", "a", 255, -255]),
                "\"a\"|61|FF|-ff",
            ),
            (
                "%t %t %c %U %b %o",
                json!([true, 3, 65, 65, 5, 8]),
                "true %!t(int64=3) A U+0041 101 10",
            ),
            ("%*d|%[2]d %[1]d", json!([5, 3]), "    3|3 5"),
            ("%v %s", json!([null, null]), "<nil> %!s(<nil>)"),
            (
                "%! %z %",
                json!(["a", 3]),
                "%!!(string=a) %!z(int64=3) %!(NOVERB)",
            ),
            (
                "%e %E %g %G %.3g %F",
                json!([12345.678, 0.00012, 1e7, 1e-7, 1234.5, 2.5]),
                "1.234568e+04 1.200000E-04 1e+07 1E-07 1.23e+03 2.500000",
            ),
            (
                "%.3g %.5g %.2g",
                json!([0.00012345, 100.5, 0.000012]),
                "0.000123 100.5 1.2e-05",
            ),
            (
                "%08.3f|%+.2f|% d|%#x|%#o",
                json!([3.14259, 2.0, 5, 255, 8]),
                "0003.143|+2.00| 5|0xff|010",
            ),
            ("%3c|%-4q|%#U", json!([65, 66, 9731]), "  A|'B' |U+2603 '☃'"),
            (
                "%6d|%-6d|%06d|%.4d",
                json!([42, 42, -42, 7]),
                "    42|42    |-00042|0007",
            ),
            (
                "%05s|%.2s|%5t",
                json!(["ab", "abc", true]),
                "000ab|ab| true",
            ),
            (
                "%T %T %T 100%%",
                json!([1, "a", null]),
                "int64 string <nil> 100%",
            ),
        ] {
            let values = values.as_array().cloned().unwrap_or_default();
            assert_eq!(printf(format, &values), expected, "{format}");
        }
    }
}
