//! Validated string formats, as in Kubernetes' OpenAPI library. Other formats are only
//! documentation.

use std::sync::LazyLock;

use machinery::{duration, format};
use regex::Regex;

type Check = fn(&str) -> bool;

/// By their names without dashes.
const ALL: &[(&str, Check)] = &[
    ("bsonobjectid", |s| s.len() == 24 && is_hex(s)),
    ("uri", is_request_uri),
    ("email", super::email::is_address),
    ("hostname", is_hostname),
    ("ipv4", |s| s.contains('.') && sloppy_ip(s).is_some()),
    ("ipv6", |s| s.contains(':') && strict_ip(s)),
    ("cidr", is_cidr),
    ("mac", is_mac),
    ("uuid", |s| is_uuid(s, None)),
    ("uuid3", |s| is_uuid(s, Some(('3', false)))),
    ("uuid4", |s| is_uuid(s, Some(('4', true)))),
    ("uuid5", |s| is_uuid(s, Some(('5', true)))),
    ("isbn", |s| is_isbn10(s) || is_isbn13(s)),
    ("isbn10", is_isbn10),
    ("isbn13", is_isbn13),
    ("creditcard", is_card),
    ("ssn", |s| SSN.is_match(s)),
    ("hexcolor", |s| {
        let digits = s.strip_prefix('#').unwrap_or(s);
        matches!(digits.len(), 3 | 6) && is_hex(digits)
    }),
    ("rgbcolor", |s| RGB.is_match(s)),
    ("byte", |s| BASE64.is_match(s)),
    ("password", |_| true),
    ("date", is_date),
    ("duration", is_duration),
    ("datetime", is_date_time),
    ("k8sshortname", |s| format::dns1123_label(s).is_empty()),
    ("k8slongname", |s| format::dns1123_subdomain(s).is_empty()),
];

fn find(format: &str) -> Option<Check> {
    let name = format.replace('-', "");
    ALL.iter()
        .find(|(known, _)| *known == name)
        .map(|(_, c)| *c)
}

/// Whether a string format is validated.
pub(super) fn is_known(format: &str) -> bool {
    !format.is_empty() && find(format).is_some()
}

/// Whether a text has the format; unvalidated formats accept everything.
pub(super) fn has(format: &str, text: &str) -> bool {
    find(format).is_none_or(|check| check(text))
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_hexdigit())
}

macro_rules! regex {
    ($name:ident, $pattern:expr) => {
        static $name: LazyLock<Regex> =
            LazyLock::new(|| Regex::new(&$pattern).unwrap_or_else(|why| unreachable!("{why}")));
    };
}

regex!(SSN, "^[0-9]{3}[- ][0-9]{2}[- ][0-9]{4}$");
regex!(
    BASE64,
    "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})$"
);
regex!(RGB, {
    let level = r"[\t\n\f\r ]*(0|[1-9][0-9]?|1[0-9]{2}|2[0-4][0-9]|25[0-5])[\t\n\f\r ]*";
    format!(r"^rgb\({level},{level},{level}\)$")
});
// One label with a dash in the second position at most, or several and a word of letters.
regex!(HOST, {
    let c = r"a-zA-Z0-9\p{S}\p{L}";
    let label = format!(r"[{c}](?:[{c}-]{{0,61}}[{c}])?\.");
    format!(r"^(?:[{c}](?:-?[{c}]{{0,62}})?|(?:{label})+[a-zA-Z\p{{L}}]{{2,63}})$")
});
regex!(
    CARD,
    "^(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|6(?:011|5[0-9]{2})[0-9]{12}|3[47][0-9]{13}|3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35[0-9]{3})[0-9]{11})$"
);
regex!(
    CLOCK,
    "^([0-9]{2}):([0-9]{2}):([0-9]{2})(?:.[0-9]+)?(?:z|[+-][0-9]{2}:[0-9]{2})$"
);
regex!(SPAN, r"([0-9]+)[\t\n\f\r ]*([A-Za-zµ]+)");

fn is_hostname(text: &str) -> bool {
    HOST.is_match(text) && text.len() <= 255 && text.split('.').all(|label| label.len() <= 63)
}

/// An address whose numbers may have leading zeros.
fn sloppy_ip(text: &str) -> Option<std::net::IpAddr> {
    let (front, last) = match text.rfind(':') {
        Some(at) => text.split_at(at + 1),
        None => ("", text),
    };
    let strip = |part: &str| -> Option<String> {
        let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        let zeros = digits.then(|| part.trim_start_matches('0'))?;
        Some(if zeros.is_empty() { "0" } else { zeros }.to_owned())
    };
    if !last.contains('.') {
        return text.parse().ok();
    }
    // Any number of leading zeros is accepted.
    let parts: Option<Vec<String>> = last.split('.').map(strip).collect();
    format!("{front}{}", parts?.join(".")).parse().ok()
}

fn strict_ip(text: &str) -> bool {
    text.parse::<std::net::IpAddr>().is_ok()
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else {
        return false;
    };
    let digits = !bits.is_empty() && bits.len() < 6 && bits.bytes().all(|b| b.is_ascii_digit());
    let most = match sloppy_ip(address) {
        Some(_) if !address.contains(':') => 32,
        Some(_) => 128,
        None => return false,
    };
    digits && bits.parse::<u32>().is_ok_and(|bits| bits <= most)
}

/// 6, 8 or 20 bytes: pairs of digits separated by `:` or `-`, groups of four by `.`, or without
/// separators.
fn is_mac(text: &str) -> bool {
    let bytes = match text.as_bytes() {
        [_, _, b':', ..] => groups(text, ':', 2),
        [_, _, b'-', ..] => groups(text, '-', 2),
        [_, _, _, _, b'.', ..] => groups(text, '.', 4),
        _ if is_hex(text) && text.len().is_multiple_of(2) => Some(text.len() / 2),
        _ => None,
    };
    matches!(bytes, Some(6 | 8 | 20))
}

/// The number of bytes in groups of `width` digits.
fn groups(text: &str, separator: char, width: usize) -> Option<usize> {
    let mut count = 0;
    for group in text.split(separator) {
        if group.len() != width || !is_hex(group) {
            return None;
        }
        count += width / 2;
    }
    Some(count)
}

/// With or without dashes in the usual places; `kind` is the version's digit, and whether the
/// variant is checked.
fn is_uuid(text: &str, kind: Option<(char, bool)>) -> bool {
    let mut rest = text;
    let mut digits = String::new();
    for (i, width) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        if i > 0 {
            rest = rest.strip_prefix('-').unwrap_or(rest);
        }
        let Some((group, after)) = rest.split_at_checked(width) else {
            return false;
        };
        digits.push_str(group);
        rest = after;
    }
    let at = |i: usize| digits.as_bytes()[i] as char;
    rest.is_empty()
        && is_hex(&digits)
        && kind.is_none_or(|(version, variant)| {
            at(12) == version && (!variant || "89abAB".contains(at(16)))
        })
}

fn isbn_digits(text: &str) -> Vec<u32> {
    let skipped = |c: &char| c.is_whitespace() || *c == '-';
    let chars: Vec<char> = text.chars().filter(|c| !skipped(c)).collect();
    let last = chars.len().saturating_sub(1);
    let digit = |(i, c): (usize, &char)| match c {
        'X' if i == 9 && i == last => Some(10),
        c => c.to_digit(10),
    };
    let digits: Option<Vec<u32>> = chars.iter().enumerate().map(digit).collect();
    digits.unwrap_or_default()
}

fn is_isbn10(text: &str) -> bool {
    let digits = isbn_digits(text);
    let sum = |digits: &[u32]| -> u32 { (1..).zip(digits).map(|(n, d)| n * d).sum() };
    digits.len() == 10 && sum(&digits).is_multiple_of(11)
}

fn is_isbn13(text: &str) -> bool {
    let digits = isbn_digits(text);
    let sum =
        |digits: &[u32]| -> u32 { [1, 3].iter().cycle().zip(digits).map(|(n, d)| n * d).sum() };
    digits.len() == 13 && sum(&digits).is_multiple_of(10)
}

fn is_card(text: &str) -> bool {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    let weigh = |(i, c): (usize, char)| match (i % 2, c.to_digit(10).unwrap_or_default()) {
        (0, d) => d,
        (_, d) if d >= 5 => d * 2 - 9,
        (_, d) => d * 2,
    };
    let sum: u32 = digits.chars().rev().enumerate().map(weigh).sum();
    CARD.is_match(&digits) && sum.is_multiple_of(10)
}

fn is_date(text: &str) -> bool {
    text.len() == 10 && text.is_ascii() && text.parse::<jiff::civil::Date>().is_ok()
}

fn is_date_time(text: &str) -> bool {
    let lower = text.to_lowercase();
    let mut parts = lower.split('t');
    let (Some(date), Some(clock)) = (parts.next(), parts.next()) else {
        return false;
    };
    CLOCK.captures(clock).is_some_and(|part| {
        is_date(date) && part[1] <= *"23" && part[2] <= *"59" && part[3] <= *"59"
    })
}

/// Go's durations, and texts such as `3 days`.
fn is_duration(text: &str) -> bool {
    const UNITS: &[&[&str]] = &[
        &["ns", "nano"],
        &["us", "µs", "micro"],
        &["ms", "milli"],
        &["s", "sec"],
        &["m", "min"],
        &["h", "hr", "hour"],
        &["d", "day"],
        &["w", "wk", "week"],
    ];
    // The last name of a unit may be extended: `minutes`, `hours`.
    let is_unit = |unit: &str| {
        let unit = unit.to_lowercase();
        UNITS.iter().any(|names| {
            names.contains(&unit.as_str()) || names.last().is_some_and(|n| unit.starts_with(n))
        })
    };
    if duration::nanos(text).is_ok() {
        return true;
    }
    let mut known = false;
    for span in SPAN.captures_iter(text) {
        if span[1].parse::<i64>().is_err() {
            return false;
        }
        known |= is_unit(&span[2]);
    }
    known
}

/// A valid request URI: an absolute URL, or a path.
fn is_request_uri(text: &str) -> bool {
    if text.is_empty() || text.bytes().any(|b| b < 0x20 || b == 0x7f) {
        return false;
    }
    if text == "*" {
        return true;
    }
    let Some((scheme, rest)) = split_scheme(text) else {
        return false;
    };
    let rest = rest.split('?').next().unwrap_or_default();
    if !rest.starts_with('/') {
        return !scheme.is_empty();
    }
    let (authority, path) = match rest.strip_prefix("//").filter(|_| !scheme.is_empty()) {
        Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
        None => ("", rest),
    };
    is_authority(authority) && has_whole_escapes(path)
}

/// A scheme, if any, and the rest; `None` if there is only a colon.
fn split_scheme(text: &str) -> Option<(&str, &str)> {
    for (i, c) in text.char_indices() {
        match c {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if i > 0 => {}
            ':' if i == 0 => return None,
            ':' => return Some((&text[..i], &text[i + 1..])),
            _ => return Some(("", text)),
        }
    }
    Some(("", text))
}

fn has_whole_escapes(text: &str) -> bool {
    let mut parts = text.split('%');
    parts.next();
    parts.all(|part| part.get(..2).is_some_and(is_hex))
}

/// Whether ASCII characters other than `%` are percent-encoded.
fn has_ascii_escapes(text: &str) -> bool {
    let mut parts = text.split('%').skip(1);
    parts.any(|part| matches!(part.as_bytes(), [b'0'..=b'7', ..]) && !part.starts_with("25"))
}

fn is_authority(text: &str) -> bool {
    let (user, host) = text.rsplit_once('@').unwrap_or(("", text));
    let in_user = |c: char| c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c);
    let port = |port: &str| {
        port.is_empty()
            || port
                .strip_prefix(':')
                .is_some_and(|p| p.bytes().all(|b| b.is_ascii_digit()))
    };
    let in_host = |c: char| {
        !c.is_ascii() || c.is_ascii_alphanumeric() || "-_.~!$&'()*+,;=:[]<>\"%".contains(c)
    };
    let ends_well = match host.strip_prefix('[') {
        Some(_) => host.rfind(']').is_some_and(|at| {
            let address = host[1..at].split('%').next().unwrap_or_default();
            port(&host[at + 1..]) && address.parse::<std::net::Ipv6Addr>().is_ok()
        }),
        None => port(host.find(':').map_or("", |at| &host[at..])),
    };
    user.chars().all(in_user)
        && has_whole_escapes(user)
        && ends_well
        && host.chars().all(in_host)
        && (host.starts_with('[') || (has_whole_escapes(host) && !has_ascii_escapes(host)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The format, valid texts, and invalid ones.
    const CASES: &[(&str, &[&str], &[&str])] = &[
        (
            "bsonobjectid",
            &["507f1f77bcf86cd799439011"],
            &["507f1f77", ""],
        ),
        (
            "uri",
            &[
                "http://x.y/z?a=%zz",
                "/a",
                "mailto:x",
                "*",
                "http://[::1]:8",
            ],
            &[
                "x",
                "",
                ":x",
                "http://x:p",
                "/%zz",
                "http://[::1",
                "http://a b/",
                "http://a%20b/",
                "http://[x]/",
            ],
        ),
        (
            "hostname",
            &["a", "a-b", "x.example.com", "1.ab"],
            &["-a", "a.b", "a--b", "a_b", ""],
        ),
        (
            "ipv4",
            &["1.2.3.4", "001.2.3.4", "::ffff:1.2.3.4"],
            &["1.2.3", "::1", "1.2.3.256"],
        ),
        ("ipv6", &["::1", "::ffff:1.2.3.4"], &["1.2.3.4", "::g"]),
        (
            "cidr",
            &["10.0.0.0/8", "::/0", "010.0.0.0/8"],
            &["10.0.0.0", "10.0.0.0/33", "/8"],
        ),
        (
            "mac",
            &["01:02:03:04:05:06", "0102.0304.0506"],
            &["01:02", "01:02-03:04:05:06"],
        ),
        (
            "uuid4",
            &["A987FBC9-4BED-4078-8F07-9141BA07C9F3"],
            &["a987fbc9-4bed-3078-8f07-9141ba07c9f3"],
        ),
        (
            "uuid",
            &["a987fbc94bed3078cf079141ba07c9f3"],
            &["x", "a987fbc9-4bed"],
        ),
        (
            "isbn",
            &["0321751043", "978-0321751041", "080442957X"],
            &["0321751044", "X"],
        ),
        (
            "creditcard",
            &["4111-1111-1111-1111"],
            &["4111111111111112", "1"],
        ),
        ("ssn", &["123-45-6789", "123 45 6789"], &["12-345-6789"]),
        ("hexcolor", &["#fff", "ABCDEF"], &["#ffff", "ggg"]),
        (
            "rgbcolor",
            &["rgb(0, 255 ,99)"],
            &["rgb(0,0,256)", "rgb(00,0,0)"],
        ),
        ("byte", &["YQ==", "YWJj"], &["", "a", "YQ="]),
        ("password", &["", "x"], &[]),
        (
            "date",
            &["2020-02-29"],
            &["2021-02-29", "20200229", "2020-2-9"],
        ),
        (
            "date-time",
            &["2020-01-01T00:00:00Z", "2020-01-01t23:59:59.5+01:00"],
            &[
                "2020-01-01",
                "2020-01-01T24:00:00Z",
                "2020-01-01T00:00:60Z",
                "2020-01-01 00:00:00Z",
            ],
        ),
        (
            "duration",
            &["1h2m", "-1.5s", "3 days", "0", "2 weeks 1 hour"],
            &["1", "x", "", "3 years"],
        ),
        ("k8s-short-name", &["a-b"], &["A", "a.b", "-a"]),
        ("k8s-long-name", &["a.b-c"], &["A", "a..b"]),
        ("whatever", &["anything"], &[]),
    ];

    #[test]
    fn values_are_checked_against_their_formats() {
        for (format, right, wrong) in CASES {
            for text in *right {
                assert!(has(format, text), "{format} {text}");
            }
            for text in *wrong {
                assert!(!has(format, text), "{format} {text}");
            }
        }
    }
}
