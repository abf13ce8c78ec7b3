//! Regular expressions in Go's syntax: what Go rejects is rejected with its messages; the rest is
//! translated for an engine with a slightly different syntax.

use regex::bytes::{Regex, RegexBuilder};

/// Maximum bytes of a compiled expression.
const SIZE_LIMIT: usize = 32 << 20;
/// Maximum weight of an expression with its repetitions expanded: about the number of its states,
/// computed before it is compiled.
const WEIGHT_LIMIT: u64 = 300_000;
/// The weight of a Unicode category or script, and of a class larger than ASCII.
const UNICODE_WEIGHT: u64 = 400;
const WIDE_WEIGHT: u64 = 16;
/// Maximum nesting of groups.
const NESTING_LIMIT: usize = 240;
/// Maximum count of a repetition.
const REPEAT_LIMIT: u64 = 1000;

/// A valid expression.
#[derive(Debug, Clone)]
pub struct Pattern {
    /// The expression; with its error, if it is invalid.
    pub text: String,
    /// `None` if invalid: it matches nothing.
    regex: Option<Regex>,
}

impl Pattern {
    /// Parses an expression, or returns Go's error.
    pub fn new(text: &str) -> Result<Self, String> {
        let (translated, _) = read(text)?;
        let built = RegexBuilder::new(&translated)
            .size_limit(SIZE_LIMIT)
            .build()
            .map_err(|_| format!("error parsing regexp: expression too large: `{text}`"))?;
        Ok(Self {
            text: text.to_owned(),
            regex: Some(built),
        })
    }

    /// The weight of an expression, on which the cost of compiling depends. Or Go's error.
    pub fn weight(text: &str) -> Result<u64, String> {
        read(text).map(|(_, weight)| weight)
    }

    /// An expression stored before validation existed: an invalid one matches nothing.
    pub fn stored(text: &str) -> Self {
        Self::new(text).unwrap_or_else(|why| Self {
            text: format!("{text}, but pattern is invalid: {why}"),
            regex: None,
        })
    }

    /// Whether the expression matches anywhere in a text.
    pub fn is_match(&self, text: &str) -> bool {
        let regex = self.regex.as_ref();
        regex.is_some_and(|regex| regex.is_match(text.as_bytes()))
    }
}

impl Pattern {
    /// The non-overlapping matches in a text, at most `limit`.
    pub fn find_all(&self, text: &str, limit: usize) -> Vec<String> {
        let Some(regex) = &self.regex else {
            return Vec::new();
        };
        // As Go: an empty match is between characters, never inside of one.
        let matches = regex.find_iter(text.as_bytes());
        let matches = matches.filter(|found| text.is_char_boundary(found.start()));
        matches
            .take(limit)
            .map(|found| String::from_utf8_lossy(found.as_bytes()).into_owned())
            .collect()
    }
}

fn read(text: &str) -> Result<(String, u64), String> {
    let refused = |(why, part): Refused<'_>| format!("error parsing regexp: {why}: `{part}`");
    translate(text).map_err(refused)
}

/// The error, and the part that it is about.
type Refused<'a> = (&'static str, &'a str);

const BAD_CLASS: &str = "invalid character class range";
const BAD_ESCAPE: &str = "invalid escape sequence";
const BAD_REPEAT: &str = "invalid repeat count";
const NO_ARGUMENT: &str = "missing argument to repetition operator";

/// The content of a group, or of the whole expression. Numbers are total repetition counts.
#[derive(Default)]
struct Group {
    most: u64,
    /// The count of the item that a repetition would apply to, if any.
    last: Option<u64>,
    /// The total weight, and that of the item a repetition would apply to.
    weight: u64,
    last_weight: u64,
}

impl Group {
    fn close(&mut self) {
        self.most = self.most.max(self.last.take().unwrap_or(0));
    }

    fn push(&mut self, most: u64, weight: u64) {
        self.close();
        self.last = Some(most);
        self.last_weight = weight;
        self.weight = self.weight.saturating_add(weight);
    }

    /// One repetition is already counted.
    fn repeat(&mut self, times: u64) {
        let more = self.last_weight.saturating_mul(times.saturating_sub(1));
        self.last_weight = self.last_weight.saturating_add(more);
        self.weight = self.weight.saturating_add(more);
    }
}

struct Reader<'a> {
    whole: &'a str,
    rest: &'a str,
    out: String,
    outer: Vec<Group>,
    group: Group,
}

/// The expression in the engine's syntax.
fn translate(pattern: &str) -> Result<(String, u64), Refused<'_>> {
    let mut reader = Reader {
        whole: pattern,
        rest: pattern,
        out: String::with_capacity(pattern.len() + 8),
        outer: Vec::new(),
        group: Group::default(),
    };
    let mut repeated = None;
    while !reader.rest.is_empty() {
        repeated = reader.item(repeated)?;
        if reader.outer.len() > NESTING_LIMIT {
            return Err(("expression nests too deeply", pattern));
        }
        if reader.group.weight > WEIGHT_LIMIT {
            return Err(("expression too large", pattern));
        }
    }
    match reader.outer.is_empty() {
        true => Ok((reader.out, reader.group.weight)),
        false => Err(("missing closing )", pattern)),
    }
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }

    /// The text read since `before`.
    fn since(&self, before: &'a str) -> &'a str {
        &before[..before.len() - self.rest.len()]
    }

    fn push(&mut self, part: &str, weight: u64) {
        self.out.push_str(part);
        self.group.push(0, weight);
    }

    fn literal(&mut self, code: u32) {
        let class = format!("[{}]", range(code, code));
        let text = match char::from_u32(code) {
            Some(c) => regex::escape(c.encode_utf8(&mut [0; 4])),
            None => class,
        };
        self.push(&text, text.len() as u64);
    }

    /// Reads one item; returns its start if it is a repetition.
    fn item(&mut self, repeated: Option<&'a str>) -> Result<Option<&'a str>, Refused<'a>> {
        let before = self.rest;
        match self.next().unwrap_or_default() {
            '(' if self.rest.starts_with('?') => self.flags(before)?,
            '(' => self.open("(?:"),
            '|' => {
                self.group.close();
                self.out.push('|');
            }
            ')' => {
                let Some(outer) = self.outer.pop() else {
                    return Err(("unexpected )", self.whole));
                };
                self.group.close();
                let inner = std::mem::replace(&mut self.group, outer);
                self.out.push(')');
                self.group.push(inner.most, inner.weight + 1);
            }
            c @ ('^' | '$' | '.') => self.push(c.encode_utf8(&mut [0; 4]), WIDE_WEIGHT),
            '[' => self.class(before)?,
            '*' | '+' | '?' => {
                self.repeat(0, before, repeated)?;
                return Ok(Some(before));
            }
            '{' => match count(self.rest) {
                None => self.literal('{'.into()),
                Some((least, most, rest)) => {
                    self.rest = rest;
                    let too_many = |n: Option<u64>| n.is_some_and(|n| n > REPEAT_LIMIT);
                    if too_many(Some(least)) || too_many(most) || most.is_some_and(|m| least > m) {
                        return Err((BAD_REPEAT, self.since(before)));
                    }
                    self.repeat(most.unwrap_or(least), before, repeated)?;
                    return Ok(Some(before));
                }
            },
            '\\' => self.escape(before)?,
            c => self.literal(c.into()),
        }
        Ok(None)
    }

    fn open(&mut self, text: &str) {
        self.out.push_str(text);
        self.outer.push(std::mem::take(&mut self.group));
    }

    fn repeat(
        &mut self,
        times: u64,
        before: &'a str,
        repeated: Option<&'a str>,
    ) -> Result<(), Refused<'a>> {
        if self.rest.starts_with('?') {
            self.next();
        }
        if let Some(first) = repeated {
            return Err(("invalid nested repetition operator", self.since(first)));
        }
        let operator = self.since(before);
        let Some(within) = self.group.last else {
            return Err((NO_ARGUMENT, operator));
        };
        let most = match times {
            0 => within,
            times => times * within.max(1),
        };
        if times >= 2 && most > REPEAT_LIMIT {
            return Err((BAD_REPEAT, operator));
        }
        self.out.push_str(operator);
        self.group.last = Some(most);
        self.group.repeat(times);
        Ok(())
    }

    /// A group with a name or flags, or only flags.
    fn flags(&mut self, before: &'a str) -> Result<(), Refused<'a>> {
        let named = |prefix: &str| before.len() > prefix.len() && before.starts_with(prefix);
        let prefix = ["(?P<", "(?<"].into_iter().find(|prefix| named(prefix));
        if let Some(prefix) = prefix {
            let bad = "invalid named capture";
            let end = before.find('>').ok_or((bad, before))?;
            let name = &before[prefix.len()..end];
            let is_word = |b: u8| b == b'_' || b.is_ascii_alphanumeric();
            if name.is_empty() || !name.bytes().all(is_word) {
                return Err((bad, &before[..=end]));
            }
            self.rest = &before[end + 1..];
            self.open("(?:");
            return Ok(());
        }
        self.next();
        let (mut negated, mut said) = (false, false);
        loop {
            match self.next() {
                Some('i' | 'm' | 's' | 'U') => said = true,
                Some('-') if !negated => (negated, said) = (true, false),
                Some(end @ (':' | ')')) if said || !negated => {
                    let text = self.since(before);
                    match end {
                        ':' => self.open(text),
                        _ if said => self.out.push_str(text),
                        _ => {}
                    }
                    return Ok(());
                }
                _ => return Err(("invalid or unsupported Perl syntax", self.since(before))),
            }
        }
    }

    /// An escape outside of a class.
    fn escape(&mut self, before: &'a str) -> Result<(), Refused<'a>> {
        let kind = before[1..].chars().next();
        let known = match kind {
            Some('A') => r"\A",
            Some('b') => r"(?-u:\b)",
            Some('B') => r"(?-u:\B)",
            Some('z') => r"\z",
            _ => "",
        };
        if !known.is_empty() {
            self.next();
            self.push(known, 1);
        } else if kind == Some('C') {
            return Err((BAD_ESCAPE, &before[..2]));
        } else if kind == Some('Q') {
            let quoted = &before[2..];
            let (text, rest) = quoted.split_once("\\E").unwrap_or((quoted, ""));
            text.chars().for_each(|c| self.literal(c.into()));
            self.rest = rest;
        } else if let Some(class) = self.named_escape(before)? {
            self.push(&format!("[{class}]"), weight(&class));
        } else {
            let code = self.escaped(before)?;
            self.literal(code);
        }
        Ok(())
    }

    /// `\d`, `\pL`: as the content of a class. The backslash has been read.
    fn named_escape(&mut self, before: &'a str) -> Result<Option<String>, Refused<'a>> {
        let kind = before[1..].chars().next();
        let perl = match kind {
            Some('d') => "0-9",
            Some('D') => "[^0-9]",
            Some('w') => "0-9A-Za-z_",
            Some('W') => "[^0-9A-Za-z_]",
            Some('s') => r"\t\n\f\r ",
            Some('S') => r"[^\t\n\f\r ]",
            _ => "",
        };
        if !perl.is_empty() {
            self.next();
            return Ok(Some(perl.to_owned()));
        }
        let Some(sign @ ('p' | 'P')) = kind else {
            return Ok(None);
        };
        self.next();
        let name = match self.next() {
            Some('{') => {
                let end = before.find('}').ok_or((BAD_CLASS, before))?;
                self.rest = &before[end + 1..];
                &before[3..end]
            }
            _ => self.since(before).get(2..).unwrap_or_default(),
        };
        let negated = name.starts_with('^');
        let name = name.strip_prefix('^').unwrap_or(name);
        let group = unicode_group(name).ok_or((BAD_CLASS, self.since(before)))?;
        let sign = match (sign, negated) {
            ('p', false) | ('P', true) => 'p',
            _ => 'P',
        };
        Ok(Some(format!("\\{sign}{{{group}}}")))
    }

    /// An escaped character; the backslash has been read.
    fn escaped(&mut self, before: &'a str) -> Result<u32, Refused<'a>> {
        let Some(c) = self.next() else {
            return Err(("trailing backslash at end of expression", ""));
        };
        let octal = |c: Option<char>| c.and_then(|c| c.to_digit(8));
        let peeked = octal(self.rest.chars().next());
        let found = match c {
            '1'..='7' if peeked.is_none() => None,
            '0'..='7' => {
                let mut code = c.to_digit(8).unwrap_or(0);
                for _ in 0..2 {
                    let Some(digit) = octal(self.rest.chars().next()) else {
                        break;
                    };
                    self.next();
                    code = code * 8 + digit;
                }
                Some(code)
            }
            'x' => self.hexadecimal(),
            'a' => Some(7),
            'f' => Some(12),
            'n' => Some(10),
            'r' => Some(13),
            't' => Some(9),
            'v' => Some(11),
            c if c.is_ascii() && !c.is_ascii_alphanumeric() => Some(c.into()),
            _ => None,
        };
        found.ok_or((BAD_ESCAPE, self.since(before)))
    }

    fn hexadecimal(&mut self) -> Option<u32> {
        let digit = |c: char| c.to_digit(16);
        match self.next()? {
            '{' => {
                let (mut code, mut any) = (0, false);
                loop {
                    match self.next()? {
                        '}' => return any.then_some(code),
                        c => code = code * 16 + digit(c)?,
                    }
                    if code > u32::from(char::MAX) {
                        return None;
                    }
                    any = true;
                }
            }
            first => {
                let second = self.next();
                Some(digit(first)? * 16 + second.and_then(digit)?)
            }
        }
    }

    fn class(&mut self, before: &'a str) -> Result<(), Refused<'a>> {
        let mut out = String::from("[");
        if self.rest.starts_with('^') {
            self.next();
            out.push('^');
        }
        let mut first = true;
        while first || !self.rest.starts_with(']') {
            first = false;
            let start = self.rest;
            if let Some(end) = start.strip_prefix("[:").and_then(|name| name.find(":]")) {
                let name = &start[..end + 4];
                self.rest = &start[end + 4..];
                if !is_posix(&name[2..end + 2]) {
                    return Err((BAD_CLASS, name));
                }
                out.push_str(name);
                continue;
            }
            if start.starts_with('\\') {
                self.next();
                if let Some(class) = self.named_escape(start)? {
                    out.push_str(&class);
                    continue;
                }
                self.rest = start;
            }
            let low = self.class_char(before)?;
            let mut high = low;
            let after = self.rest.strip_prefix('-');
            if let Some(after) = after.filter(|after| !after.is_empty() && !after.starts_with(']'))
            {
                self.rest = after;
                high = self.class_char(before)?;
                if high < low {
                    return Err((BAD_CLASS, self.since(start)));
                }
            }
            out.push_str(&range(low, high));
        }
        self.next();
        out.push(']');
        // A class without any valid character.
        let out = match out.as_str() {
            "[]" => r"[^\x{0}-\x{10FFFF}]",
            "[^]" => r"[\x{0}-\x{10FFFF}]",
            out => out,
        };
        self.push(out, weight(out));
        Ok(())
    }

    fn class_char(&mut self, class: &'a str) -> Result<u32, Refused<'a>> {
        let before = self.rest;
        match self.next() {
            None => Err(("missing closing ]", class)),
            Some('\\') => self.escaped(before),
            Some(c) => Ok(c.into()),
        }
    }
}

/// The weight of a class.
fn weight(class: &str) -> u64 {
    let unicode = class.matches("\\p{").count() + class.matches("\\P{").count();
    let ranges = class.matches('-').count() as u64;
    let ascii = |range: &str| range.len() <= 2;
    let mut codes = class
        .split("\\x{")
        .skip(1)
        .filter_map(|code| code.split('}').next());
    let wide = class.contains("[^") || codes.any(|code| !ascii(code));
    let each = if wide { WIDE_WEIGHT } else { 1 };
    (unicode as u64).saturating_mul(UNICODE_WEIGHT) + each * (ranges + 1)
}

/// A range in a class, without surrogates.
fn range(low: u32, high: u32) -> String {
    let surrogate = |code: u32| (0xD800..0xE000).contains(&code);
    let low = if surrogate(low) { 0xE000 } else { low };
    let high = if surrogate(high) { 0xD7FF } else { high };
    match low <= high {
        true => format!("\\x{{{low:X}}}-\\x{{{high:X}}}"),
        false => String::new(),
    }
}

fn is_posix(name: &str) -> bool {
    matches!(
        name.strip_prefix('^').unwrap_or(name),
        "alnum"
            | "alpha"
            | "ascii"
            | "blank"
            | "cntrl"
            | "digit"
            | "graph"
            | "lower"
            | "print"
            | "punct"
            | "space"
            | "upper"
            | "word"
            | "xdigit"
    )
}

/// The engine's name of a Unicode category or script.
fn unicode_group(name: &str) -> Option<String> {
    /// Scripts whose full names look like abbreviations, which Go does not support.
    const SHORT: &[&str] = &[
        "ahom", "cham", "kawi", "lisu", "modi", "newa", "thai", "toto",
    ];
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    if name.is_empty() || !name.bytes().all(is_plain) {
        return None;
    }
    let is_whole = name.len() != 4 || SHORT.contains(&name.to_lowercase().as_str());
    [("gc", true), ("sc", is_whole)]
        .into_iter()
        .filter(|(_, known)| *known)
        .map(|(kind, _)| format!("{kind}={name}"))
        .find(|group| Regex::new(&format!("\\p{{{group}}}")).is_ok())
}

/// A repetition count: `3}`, `3,}`, `3,5}`, and the rest of the text.
fn count(text: &str) -> Option<(u64, Option<u64>, &str)> {
    let (least, rest) = number(text)?;
    let (most, rest) = match rest.strip_prefix(',') {
        None => (Some(least), rest),
        Some(rest) if rest.starts_with('}') => (None, rest),
        Some(rest) => number(rest).map(|(most, rest)| (Some(most), rest))?,
    };
    Some((least, most, rest.strip_prefix('}')?))
}

/// A number without leading zeros.
fn number(text: &str) -> Option<(u64, &str)> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    if digits.is_empty() || (digits.len() > 1 && digits.starts_with('0')) {
        return None;
    }
    // A longer number is far above the limit.
    Some((digits.parse().unwrap_or(u64::MAX), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_that_go_rejects_are_rejected_with_its_message() {
        for (pattern, why) in [
            ("[a", "missing closing ]: `[a`"),
            ("x[]a", "missing closing ]: `[]a`"),
            ("(a", "missing closing ): `(a`"),
            ("(?i", "invalid or unsupported Perl syntax: `(?i`"),
            ("a)b", "unexpected ): `a)b`"),
            ("*a", "missing argument to repetition operator: `*`"),
            ("a|+?", "missing argument to repetition operator: `+?`"),
            ("({2}", "missing argument to repetition operator: `{2}`"),
            ("a**", "invalid nested repetition operator: `**`"),
            ("a{2}?*", "invalid nested repetition operator: `{2}?*`"),
            ("a{1001}", "invalid repeat count: `{1001}`"),
            ("a{2,1}", "invalid repeat count: `{2,1}`"),
            ("(a{100}){11}", "invalid repeat count: `{11}`"),
            ("[z-a]", "invalid character class range: `z-a`"),
            ("[[:nope:]]", "invalid character class range: `[:nope:]`"),
            (r"\p{Nope}", r"invalid character class range: `\p{Nope}`"),
            (r"\pQ", r"invalid character class range: `\pQ`"),
            (
                r"\p{Alphabetic}",
                r"invalid character class range: `\p{Alphabetic}`",
            ),
            (r"a\8", r"invalid escape sequence: `\8`"),
            (r"a\1", r"invalid escape sequence: `\1`"),
            (r"\Z", r"invalid escape sequence: `\Z`"),
            (r"[\b]", r"invalid escape sequence: `\b`"),
            (r"\x{110000}", r"invalid escape sequence: `\x{110000`"),
            (r"\xg1", r"invalid escape sequence: `\xg1`"),
            ("a\\", "trailing backslash at end of expression: ``"),
            ("(?=a)", "invalid or unsupported Perl syntax: `(?=`"),
            ("(?!a)", "invalid or unsupported Perl syntax: `(?!`"),
            ("(?<=a)", "invalid named capture: `(?<=a)`"),
            ("(?i-)a", "invalid or unsupported Perl syntax: `(?i-)`"),
            ("(?P<a b>c)", "invalid named capture: `(?P<a b>`"),
        ] {
            let refused = Pattern::new(pattern).unwrap_err();
            assert_eq!(refused, format!("error parsing regexp: {why}"));
        }
    }

    #[test]
    fn a_too_large_expression_is_refused_and_matches_nothing() {
        let large = r"(\pL{900}|\pN{900})\pL{900}";
        let why = Pattern::new(large).unwrap_err();
        assert!(why.starts_with("error parsing regexp: expression too large: `"));
        assert!(!Pattern::stored(large).is_match("a"));
        assert!(
            Pattern::stored("[")
                .text
                .contains("[, but pattern is invalid: ")
        );
    }

    #[test]
    fn too_large_patterns_are_refused_before_compilation() {
        let large = "expression too large";
        for (pattern, wanted) in [
            (r"\pL{1000}".to_owned(), large),
            (r"[\p{L}\p{N}]".repeat(20_000), large),
            (format!("({})", r"(\p{L}{100})".repeat(50)), large),
            (r"(?:\w{100}){10}".repeat(100), large),
            (
                format!("{}a{}", "(".repeat(1000), ")".repeat(1000)),
                "expression nests too deeply",
            ),
            ("a".repeat(400_000), large),
        ] {
            let why = Pattern::new(&pattern).unwrap_err();
            assert!(why.contains(wanted), "{}", &why[..60]);
        }
        for pattern in [
            r"^[\p{L}\p{N} ]{1,256}$",
            r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$",
            r"^.{0,1000}$",
            r"^[^\s]{1,1000}$",
        ] {
            assert!(Pattern::new(pattern).is_ok(), "{pattern}");
        }
    }

    #[test]
    fn patterns_match_as_in_go() {
        for (pattern, yes, no) in [
            (r"^\d+$", "12", "١"),
            (r"^[\w.-]+\s$", "a.b ", "é "),
            ("^[^[]x$", "ax", "[x"),
            ("^[[:alpha:]&&a]$", "&", "1"),
            ("^[]a]+$", "]a", "b"),
            ("^a{2,3}{x}$", "aa{x}", "a{x}"),
            ("^a{,2}$", "a{,2}", "aa"),
            ("^a{01}$", "a{01}", "a"),
            (r"^\{\[\.$", "{[.", "x"),
            (r"\bfoo\b", "é foo é", "foobar"),
            (r"a\Bb", "ab", "a b"),
            (r"^\Qa.b\E+$", "a.bbb", "axb"),
            (r"^(?P<n>a)(?P<n>b)$", "ab", "aa"),
            (r"^(?<n>a)$", "a", "b"),
            (r"(?i)^ä$", "Ä", "a"),
            (r"^(?s:.)$", "\n", "ab"),
            (r"^.$", "é", "\n"),
            (r"^\pL+$", "aé", "1"),
            (r"^\p{Greek}\P{^Lu}$", "αA", "aA"),
            (r"^\p{letter}$", "a", "1"),
            (r"^\x41\x{e9}\101\n$", "A\u{e9}A\n", "A"),
            (r"^a\z", "a", "a\n"),
            (r"^a$", "a", "a\n"),
            (r"^[a-c\-]+$", "a-c", "d"),
            (r"^[^\x00-\x7f]$", "é", "e"),
            (r"^\_\-\/$", "_-/", "x"),
            ("(?)a|", "", "\u{0}none"),
        ] {
            let pattern = Pattern::new(pattern).unwrap();
            assert!(pattern.regex.is_some(), "{}", pattern.text);
            assert!(pattern.is_match(yes), "{} {yes}", pattern.text);
            if !no.contains("none") {
                assert!(!pattern.is_match(no), "{} {no}", pattern.text);
            }
        }
    }
}
