//! Addresses and networks in fields: strict forms for new fields, lenient ones for fields older
//! than the strict rules, and warnings.

use crate::check;
use crate::tree::text;
use machinery::Value;
use machinery::field::{Error, Errors, Path};
use std::net::IpAddr;

/// An address in a field that accepted lenient forms before; unchanged values are kept.
pub fn legacy_ip(value: &Value, before: &[Value], path: &Path, errors: &mut Errors) {
    if !before.contains(value) {
        check::ip(text(value), path, errors);
    }
}

/// A network in a field that accepted lenient forms before; unchanged values are kept.
pub fn legacy_cidr(value: &str, before: &[&str], path: &Path, errors: &mut Errors) {
    if !before.contains(&value) {
        check::cidr(value, path, errors);
    }
}

/// An address in canonical form.
pub fn strict_ip(value: &str, path: &Path, errors: &mut Errors) {
    let known = errors.len();
    check::ip(value, path, errors);
    if let (true, Ok(address)) = (errors.len() == known, value.parse::<IpAddr>()) {
        canonical(value, &address.to_string(), path, errors);
    }
}

/// A network in canonical form.
pub fn strict_cidr(value: &str, path: &Path, errors: &mut Errors) {
    let known = errors.len();
    check::cidr(value, path, errors);
    if let (true, Some((address, length))) = (errors.len() == known, check::network(value)) {
        canonical(value, &format!("{address}/{length}"), path, errors);
    }
}

fn canonical(value: &str, form: &str, path: &Path, errors: &mut Errors) {
    if value != form {
        let detail = format!("must be in canonical form ({form:?})");
        errors.push(Error::invalid(path, value, detail));
    }
}

/// An address usable as an endpoint: not unspecified, loopback, link-local or link-local multicast.
pub fn endpoint_ip(value: &str, path: &Path, errors: &mut Errors) {
    let Some(address) = check::loose_ip(value) else {
        errors.push(Error::invalid(path, value, "must be a valid IP address"));
        return;
    };
    let mut refuse = |detail: &str| errors.push(Error::invalid(path, value, detail));
    if address.is_unspecified() {
        refuse(&format!("may not be unspecified ({value})"));
    }
    if address.is_loopback() {
        refuse("may not be in the loopback range (127.0.0.0/8, ::1/128)");
    }
    let (local, multicast) = match address {
        IpAddr::V4(a) => (a.is_link_local(), a.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(a) => (
            a.is_unicast_link_local(),
            a.segments()[0] & 0xff0f == 0xff02,
        ),
    };
    if local {
        refuse("may not be in the link-local range (169.254.0.0/16, fe80::/10)");
    }
    if multicast {
        refuse("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)");
    }
}

/// Warnings about an accepted address.
pub fn ip_warnings(value: &str, path: &Path) -> Vec<String> {
    let Some(loose) = check::loose_ip(value) else {
        return Vec::new();
    };
    let warning = match value.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) if address.to_ipv4_mapped().is_none() => {
            let form = address.to_string();
            if form == value {
                return Vec::new();
            }
            format!(
                "{path}: IPv6 address {value:?} should be in RFC 5952 canonical format ({form:?})"
            )
        }
        Ok(IpAddr::V4(_)) => return Vec::new(),
        _ => format!(
            "{path}: non-standard IP address {value:?} is invalid: use {:?}",
            loose.to_string()
        ),
    };
    vec![warning]
}

/// Warnings about an accepted network.
pub fn cidr_warnings(value: &str, path: &Path) -> Vec<String> {
    let Some((loose, length)) = check::loose_network(value) else {
        return Vec::new();
    };
    let masked = check::masked(loose, length);
    let form = format!("{masked}/{length}");
    let mut warnings = Vec::new();
    if masked != loose {
        let bits = if loose.is_ipv4() { 32 } else { 128 };
        let single = format!("{loose}/{bits}");
        warnings.push(format!(
            "{path}: CIDR value {value:?} is ambiguous in this context (should be {form:?} or {single:?}?)"
        ));
    }
    let strict = check::network(value);
    if strict.is_none_or(|(address, _)| is_mapped(address)) {
        warnings.push(format!(
            "{path}: non-standard CIDR value {value:?} is invalid: use {form:?}"
        ));
    }
    if warnings.is_empty() && loose.is_ipv6() && form != value {
        warnings.push(format!(
            "{path}: IPv6 CIDR value {value:?} should be in RFC 5952 canonical format ({form:?})"
        ));
    }
    warnings
}

fn is_mapped(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(a) if a.to_ipv4_mapped().is_some())
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
    fn strict_fields_accept_only_canonical_addresses() {
        assert_eq!(messages(strict_ip, "2001:db8::1"), "");
        assert_eq!(
            messages(strict_ip, "2001:DB8::1"),
            r#"p: Invalid value: "2001:DB8::1": must be in canonical form ("2001:db8::1")"#
        );
        assert_eq!(messages(strict_cidr, "10.0.0.0/8"), "");
        assert_eq!(
            messages(strict_cidr, "2001:0db8::/32"),
            r#"p: Invalid value: "2001:0db8::/32": must be in canonical form ("2001:db8::/32")"#
        );
    }

    #[test]
    fn endpoints_have_addresses_that_others_can_reach() {
        assert_eq!(messages(endpoint_ip, "10.0.0.1"), "");
        for (value, part) in [
            ("0.0.0.0", "may not be unspecified (0.0.0.0)"),
            ("127.0.0.1", "loopback range"),
            ("169.254.0.1", "link-local range"),
            ("fe80::1", "link-local range"),
            ("224.0.0.1", "link-local multicast range"),
            ("ff02::1", "link-local multicast range"),
            ("x", "must be a valid IP address"),
        ] {
            assert!(messages(endpoint_ip, value).contains(part), "{value}");
        }
    }

    #[test]
    fn odd_forms_are_warned_about() {
        let path = Path::new("p");
        assert!(ip_warnings("10.0.0.1", &path).is_empty());
        assert_eq!(
            ip_warnings("2001:DB8::1", &path),
            [
                r#"p: IPv6 address "2001:DB8::1" should be in RFC 5952 canonical format ("2001:db8::1")"#
            ]
        );
        assert_eq!(
            ip_warnings("010.0.0.1", &path),
            [r#"p: non-standard IP address "010.0.0.1" is invalid: use "10.0.0.1""#]
        );
        assert!(cidr_warnings("10.0.0.0/8", &path).is_empty());
        assert_eq!(
            cidr_warnings("10.0.0.1/8", &path),
            [
                r#"p: CIDR value "10.0.0.1/8" is ambiguous in this context (should be "10.0.0.0/8" or "10.0.0.1/32"?)"#
            ]
        );
        assert_eq!(
            cidr_warnings("2001:DB8::/32", &path),
            [
                r#"p: IPv6 CIDR value "2001:DB8::/32" should be in RFC 5952 canonical format ("2001:db8::/32")"#
            ]
        );
    }
}
