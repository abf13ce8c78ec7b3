//! Parsing of IP addresses and networks, with Go's errors.

use std::net::IpAddr;

use ipnet::IpNet;
use machinery::text::quote;

/// An address, or Go's error; addresses with a zone are rejected later.
pub(super) fn parse(text: &str) -> Result<IpAddr, String> {
    let plain = match text.split_once('%') {
        Some((address, zone)) if address.contains(':') && !zone.is_empty() => address,
        _ => text,
    };
    plain.parse().map_err(|_| {
        let (why, at) = reason(text, plain);
        let at = at.map(|at| format!(" (at {})", quote(at)));
        format!(
            "ParseAddr({}): {why}{}",
            quote(text),
            at.unwrap_or_default()
        )
    })
}

/// The error of an address, and the text it is about.
fn reason<'t>(whole: &str, text: &'t str) -> (&'static str, Option<&'t str>) {
    match whole.find(['.', ':', '%']).map(|at| whole.as_bytes()[at]) {
        Some(b'.') => dotted(text),
        Some(b':') if whole.ends_with('%') => ("zone must be a non-empty string", None),
        Some(b':') => groups(text),
        Some(_) => ("missing IPv6 address", None),
        None => ("unable to parse IP", None),
    }
}

fn dotted(text: &str) -> (&'static str, Option<&str>) {
    let (mut value, mut digits, mut fields) = (0u32, 0, 0);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'0'..=b'9' if digits == 1 && value == 0 => {
                return ("IPv4 field has octet with leading zero", None);
            }
            b'0'..=b'9' => {
                value = value * 10 + u32::from(byte - b'0');
                digits += 1;
                if value > 255 {
                    return ("IPv4 field has value >255", None);
                }
            }
            b'.' if digits == 0 || at + 1 == text.len() => {
                return ("IPv4 field must have at least one digit", text.get(at..));
            }
            b'.' if fields == 3 => return ("IPv4 address too long", None),
            b'.' => (value, digits, fields) = (0, 0, fields + 1),
            _ => return ("unexpected character", text.get(at..)),
        }
    }
    ("IPv4 address too short", None)
}

fn groups(text: &str) -> (&'static str, Option<&str>) {
    let mut rest = text;
    let (mut count, mut ellipsis) = (0, false);
    if let Some(after) = rest.strip_prefix("::") {
        (rest, ellipsis) = (after, true);
    }
    while count < 8 {
        let digits = rest.bytes().take_while(u8::is_ascii_hexdigit).count();
        match (digits, rest.as_bytes().get(digits)) {
            (5.., _) => return ("each group must have 4 or less digits", Some(rest)),
            (0, _) => {
                let why = "each colon-separated field must have at least one digit";
                return (why, Some(rest));
            }
            (_, Some(b'.')) if !ellipsis && count != 6 => {
                let why = "embedded IPv4 address must replace the final 2 fields of the address";
                return (why, Some(rest));
            }
            (_, Some(b'.')) if count > 6 => {
                let why = "too many hex fields to fit an embedded IPv4 at the end of the address";
                return (why, Some(rest));
            }
            (_, Some(b'.')) => return dotted(rest),
            _ => {}
        }
        count += 1;
        rest = &rest[digits..];
        match rest.as_bytes() {
            [] => break,
            [b':'] => return ("colon must be followed by more characters", Some(rest)),
            [b':', b':', ..] if ellipsis => return ("multiple :: in address", Some(&rest[1..])),
            [b':', b':', ..] => (rest, ellipsis) = (&rest[2..], true),
            [b':', ..] => rest = &rest[1..],
            _ => return ("unexpected character, want colon", Some(rest)),
        }
        if rest.is_empty() {
            break;
        }
    }
    match (rest.is_empty(), ellipsis) {
        (false, _) => ("trailing garbage after address", Some(rest)),
        (true, true) => ("the :: must expand to at least one field of zeros", None),
        (true, false) => ("address string too short", None),
    }
}

/// A network, or Go's error.
pub(super) fn parse_network(text: &str) -> Result<IpNet, String> {
    let failed = |why: &str| format!("netip.ParsePrefix({}): {why}", quote(text));
    let (address, bits) = text.rsplit_once('/').ok_or_else(|| failed("no '/'"))?;
    let parsed = parse(address).map_err(|why| failed(&why))?;
    if address.contains('%') {
        return Err(failed("IPv6 zones cannot be present in a prefix"));
    }
    let bad = || failed(&format!("bad bits after slash: {}", quote(bits)));
    let first = bits.bytes().next().ok_or_else(bad)?;
    if bits.len() > 1 && !(b'1'..=b'9').contains(&first) {
        return Err(bad());
    }
    let bits: u32 = bits.parse().map_err(|_| bad())?;
    let bits = u8::try_from(bits).map_err(|_| failed("prefix length out of range"))?;
    IpNet::new(parsed, bits).map_err(|_| failed("prefix length out of range"))
}
