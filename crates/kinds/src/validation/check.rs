//! Checks that many kinds share.

use crate::tree::{entries, int, list, same, text};
use machinery::field::{Error, Errors, Path};
use machinery::{Value, format};
use std::net::IpAddr;

/// The message for an immutable field.
pub const IMMUTABLE: &str = "field is immutable";
/// The message for a negative number.
pub const NEGATIVE: &str = "must be greater than or equal to 0";
/// The message for a number that is not positive.
pub const POSITIVE: &str = "must be greater than zero";

/// `Required value` when the text is empty.
pub fn required(value: &Value, path: &Path, errors: &mut Errors) {
    if text(value).is_empty() {
        errors.push(Error::required(path, ""));
    }
}

/// The value must be one of these; the caller has defaulted an empty one.
pub fn one_of(value: &Value, supported: &[&str], path: &Path, errors: &mut Errors) {
    if !supported.contains(&text(value)) {
        errors.push(Error::not_supported(path, text(value), supported));
    }
}

/// The value is required and must be one of these.
pub fn known(value: &Value, supported: &[&str], path: &Path, errors: &mut Errors) {
    if text(value).is_empty() {
        errors.push(Error::required(path, ""));
    } else {
        one_of(value, supported, path, errors);
    }
}

/// Greater than zero.
pub fn positive(value: &Value, path: &Path, errors: &mut Errors) {
    if int(value) <= 0 {
        errors.push(Error::invalid(path, int(value), POSITIVE));
    }
}

/// A name in one of the usual formats, if set.
pub fn optional(form_of: fn(&str) -> Vec<String>, value: &Value, path: &Path, errors: &mut Errors) {
    let value = text(value);
    if !value.is_empty() {
        form(form_of(value), value, path, errors);
    }
}

/// An address in a field that accepted lenient forms before.
pub fn ip(value: &str, path: &Path, errors: &mut Errors) {
    let detail = match value.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) if address.to_ipv4_mapped().is_some() => {
            "must not be an IPv4-mapped IPv6 address"
        }
        Ok(_) => return,
        Err(_) if loose_ip(value).is_some() => "must not have leading 0s",
        Err(_) => "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
    };
    errors.push(Error::invalid(path, value, detail));
}

/// A network in a field that accepted lenient forms before.
pub fn cidr(value: &str, path: &Path, errors: &mut Errors) {
    let zeros = |value: &str| {
        let (_, length) = value.split_once('/').unwrap_or_default();
        length.len() > 1 && length.starts_with('0')
    };
    let detail = match network(value) {
        Some(_) if zeros(value) => "must not have leading 0s in IP or prefix length",
        Some((IpAddr::V6(address), _)) if address.to_ipv4_mapped().is_some() => {
            "must not have an IPv4-mapped IPv6 address"
        }
        Some((address, length)) if masked(address, length) != address => {
            "must not have bits set beyond the prefix length"
        }
        Some(_) => return,
        None if loose_network(value).is_some() => "must not have leading 0s in IP or prefix length",
        None => "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
    };
    errors.push(Error::invalid(path, value, detail));
}

/// An address and a prefix length, such as `10.0.0.0/8`.
pub(crate) fn network(value: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = value.split_once('/')?;
    let address = address.parse::<IpAddr>().ok()?;
    let length = length
        .parse::<u8>()
        .ok()
        .filter(|_| !length.starts_with('+'))?;
    (length <= if address.is_ipv4() { 32 } else { 128 }).then_some((address, length))
}

/// The same as older, lenient parsers read it.
pub(crate) fn loose_network(value: &str) -> Option<(IpAddr, u8)> {
    network(&without_leading_zeros(value)).map(|(address, length)| (unmapped(address), length))
}

/// An address as older, lenient parsers read it.
pub(crate) fn loose_ip(value: &str) -> Option<IpAddr> {
    without_leading_zeros(value).parse().ok().map(unmapped)
}

fn unmapped(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(a) => a.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

/// The address with all bits after the prefix cleared.
pub(crate) fn masked(address: IpAddr, length: u8) -> IpAddr {
    let length = u32::from(length);
    match address {
        IpAddr::V4(a) => {
            let mask = u32::MAX.checked_shl(32u32.saturating_sub(length));
            std::net::Ipv4Addr::from_bits(a.to_bits() & mask.unwrap_or(0)).into()
        }
        IpAddr::V6(a) => {
            let mask = u128::MAX.checked_shl(128u32.saturating_sub(length));
            std::net::Ipv6Addr::from_bits(a.to_bits() & mask.unwrap_or(0)).into()
        }
    }
}

/// An IPv4 address or network without the leading zeros that lenient parsers accept.
fn without_leading_zeros(value: &str) -> String {
    let trim = |part: &str| {
        let cut = part.trim_start_matches('0');
        let digits = part.bytes().all(|b| b.is_ascii_digit());
        match (digits, cut) {
            (false, _) => part.to_owned(),
            (true, "") if part.is_empty() => String::new(),
            (true, "") => "0".to_owned(),
            (true, cut) => cut.to_owned(),
        }
    };
    let (address, length) = value
        .split_once('/')
        .map_or((value, None), |(a, l)| (a, Some(l)));
    let address: Vec<String> = address.split('.').map(trim).collect();
    match length {
        Some(length) => format!("{}/{}", address.join("."), trim(length)),
        None => address.join("."),
    }
}

/// A domain, a slash and a path, such as `acme.io/foo`.
pub fn domain_prefixed_path(value: &str, path: &Path, errors: &mut Errors) {
    const PATTERN: &str = r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+";
    if value.is_empty() {
        errors.push(Error::required(path, ""));
        return;
    }
    let (host, rest) = value.split_once('/').unwrap_or_default();
    if host.is_empty() || rest.is_empty() {
        let detail = "must be a domain-prefixed path (such as \"acme.io/foo\")";
        errors.push(Error::invalid(path, value, detail));
        return;
    }
    form(format::dns1123_subdomain(host), host, path, errors);
    let sound = |b: u8| b.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&b);
    if !rest.bytes().all(sound) {
        let detail = format::pattern_message("Invalid path", PATTERN, &[]);
        errors.push(Error::invalid(path, rest, detail));
    }
}

/// Not negative.
pub fn non_negative(value: &Value, path: &Path, errors: &mut Errors) {
    if int(value) < 0 {
        errors.push(Error::invalid(path, int(value), NEGATIVE));
    }
}

/// The value must not change.
pub fn immutable(value: &Value, old: &Value, path: &Path, errors: &mut Errors) {
    if !same(value, old) {
        errors.push(Error::invalid(path, value.clone(), IMMUTABLE));
    }
}

/// Format complaints as errors.
pub fn form(complaints: Vec<String>, value: &str, path: &Path, errors: &mut Errors) {
    errors.extend(
        complaints
            .into_iter()
            .map(|c| Error::invalid(path, value, c)),
    );
}

/// Keys and values of labels.
pub fn labels(value: &Value, path: &Path, errors: &mut Errors) {
    for (key, value) in entries(value) {
        form(format::qualified_name(key), key, path, errors);
        form(format::label_value(text(value)), text(value), path, errors);
    }
}

/// Keys of annotations and their total size.
pub fn annotations(value: &Value, path: &Path, errors: &mut Errors) {
    const LIMIT: usize = 256 * 1024;
    let mut size = 0;
    for (key, value) in entries(value) {
        form(
            format::qualified_name(&key.to_lowercase()),
            key,
            path,
            errors,
        );
        size += key.len() + text(value).len();
    }
    if size > LIMIT {
        errors.push(Error::too_long(path, LIMIT));
    }
}

/// A `LabelSelector`.
pub fn label_selector(value: &Value, path: &Path, errors: &mut Errors) {
    labels(&value["matchLabels"], &path.child("matchLabels"), errors);
    for (i, expression) in list(&value["matchExpressions"]).iter().enumerate() {
        requirement(expression, &path.child("matchExpressions").index(i), errors);
    }
}

fn requirement(value: &Value, path: &Path, errors: &mut Errors) {
    let values = list(&value["values"]);
    let at = path.child("values");
    match text(&value["operator"]) {
        "In" | "NotIn" => {
            if values.is_empty() {
                errors.push(Error::required(
                    &at,
                    "must be specified when `operator` is 'In' or 'NotIn'",
                ));
            }
        }
        "Exists" | "DoesNotExist" => {
            if !values.is_empty() {
                errors.push(Error::forbidden(
                    &at,
                    "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
                ));
            }
        }
        other => {
            errors.push(Error::invalid(
                &path.child("operator"),
                other,
                "not a valid selector operator",
            ));
        }
    }
    let key = text(&value["key"]);
    form(format::qualified_name(key), key, &path.child("key"), errors);
    for (i, value) in values.iter().enumerate() {
        form(
            format::label_value(text(value)),
            text(value),
            &at.index(i),
            errors,
        );
    }
}

/// A required name that is valid in a URL path.
pub fn needed_segment(value: &Value, path: &Path, errors: &mut Errors) {
    required(value, path, errors);
    optional(format::path_segment, value, path, errors);
}

/// A number, also as text, or the number of a percentage; zero for anything else.
pub fn amount_of(value: &Value) -> i64 {
    match value {
        Value::String(s) => s.strip_suffix('%').unwrap_or(s).parse().unwrap_or_default(),
        other => int(other),
    }
}

/// A number or percentage that is not negative.
pub fn count_or_percent(value: &Value, path: &Path, errors: &mut Errors) {
    match value {
        Value::String(s) => form(format::percent(s), s, path, errors),
        Value::Number(_) => non_negative(value, path, errors),
        _ => {}
    }
}

/// Conditions of type meta/v1: unique types, with a reason and a time.
pub fn conditions(value: &Value, path: &Path, errors: &mut Errors) {
    const REASON_MAX: usize = 1024;
    const MESSAGE_MAX: usize = 32 * 1024;
    for (i, condition) in list(value).iter().enumerate() {
        let at = path.index(i);
        let kind = text(&condition["type"]);
        if list(value)[..i].iter().any(|c| text(&c["type"]) == kind) {
            errors.push(Error::duplicate(&at.child("type"), kind));
        }
        form(
            format::qualified_name(kind),
            kind,
            &at.child("type"),
            errors,
        );
        let states = ["False", "True", "Unknown"];
        one_of(&condition["status"], &states, &at.child("status"), errors);
        let generation = int(&condition["observedGeneration"]);
        if generation < 0 {
            let detail = "must be greater than or equal to zero";
            errors.push(Error::invalid(
                &at.child("observedGeneration"),
                generation,
                detail,
            ));
        }
        if text(&condition["lastTransitionTime"]).is_empty() {
            errors.push(Error::required(&at.child("lastTransitionTime"), ""));
        }
        let (reason, at_reason) = (text(&condition["reason"]), at.child("reason"));
        if reason.is_empty() {
            errors.push(Error::required(&at_reason, ""));
        } else {
            form(condition_reason(reason), reason, &at_reason, errors);
            if reason.len() > REASON_MAX {
                errors.push(Error::too_long(&at_reason, REASON_MAX));
            }
        }
        if text(&condition["message"]).len() > MESSAGE_MAX {
            errors.push(Error::too_long(&at.child("message"), MESSAGE_MAX));
        }
    }
}

fn condition_reason(value: &str) -> Vec<String> {
    let (first, last) = (value.as_bytes().first(), value.as_bytes().last());
    let sound = first.is_some_and(u8::is_ascii_alphabetic)
        && last.is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_')
        && value
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"_,:".contains(&b));
    if sound {
        return Vec::new();
    }
    vec![format::pattern_message(
        "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_'",
        "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?",
        &[
            "my_name",
            "MY_NAME",
            "MyName",
            "ReasonA,ReasonB",
            "ReasonA:ReasonB",
        ],
    )]
}

/// Warns of names that are not DNS labels: they give surprising host names.
pub fn warn_host_name(name: &str) -> Vec<String> {
    let complaints = format::dns1123_label(name);
    if complaints.is_empty() {
        return Vec::new();
    }
    vec![format!(
        "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: [{}]",
        complaints.join(" ")
    )]
}

/// At most 100 percent.
pub fn at_most_whole(value: &Value, path: &Path, errors: &mut Errors) {
    let percent = value
        .as_str()
        .and_then(|s| s.strip_suffix('%'))
        .and_then(|n| n.parse::<i64>().ok());
    if percent.is_some_and(|p| p > 100) {
        errors.push(Error::invalid(
            path,
            value.clone(),
            "must not be greater than 100%",
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::lines;

    fn messages(check: fn(&str, &Path, &mut Errors), value: &str) -> String {
        let mut errors = Vec::new();
        check(value, &Path::new("p"), &mut errors);
        lines(errors).join(" ")
    }

    #[test]
    fn conditions_need_a_reason_and_a_transition_time() {
        let mut errors = Vec::new();
        let given = machinery::json::json!([
            {"type": "Ready", "status": "True", "reason": "Fine", "lastTransitionTime": "2020-01-01T00:00:00Z"},
            {"type": "Ready", "status": "Maybe", "reason": "1"}
        ]);
        conditions(&given, &Path::new("c"), &mut errors);
        let paths: Vec<String> = errors.iter().map(|e| e.path.to_string()).collect();
        assert_eq!(
            paths,
            [
                "c[1].type",
                "c[1].status",
                "c[1].lastTransitionTime",
                "c[1].reason"
            ]
        );
    }

    #[test]
    fn addresses_are_taken_in_their_strict_form() {
        assert_eq!(messages(ip, "10.0.0.1"), "");
        assert_eq!(messages(ip, "::1"), "");
        assert!(messages(ip, "10.0.0.01").ends_with("must not have leading 0s"));
        assert!(
            messages(ip, "::ffff:1.2.3.4").ends_with("must not be an IPv4-mapped IPv6 address")
        );
        assert!(messages(ip, "x").contains("must be a valid IP address"));
        assert_eq!(messages(cidr, "10.0.0.0/8"), "");
        assert_eq!(messages(cidr, "::/0"), "");
        assert!(
            messages(cidr, "10.0.0.1/8")
                .ends_with("must not have bits set beyond the prefix length")
        );
        assert!(messages(cidr, "10.0.0.0/08").ends_with("leading 0s in IP or prefix length"));
        assert!(messages(cidr, "10.0.0.0").contains("must be a valid CIDR value"));
        assert!(messages(cidr, "10.0.0.0/33").contains("must be a valid CIDR value"));
    }
}
