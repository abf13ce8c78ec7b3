//! Names in resource.k8s.io: of drivers, pools, requests, attributes, shares.

use crate::check;
use crate::tree::text;
pub(super) use crate::volume_source::csi_driver_name as driver;
use machinery::field::{Error, Errors, Path};
use machinery::{Value, format};

const POOL_MAX: usize = 253;
const IDENTIFIER_MAX: usize = 32;

/// Names of requests, devices and counters.
pub(super) fn label(name: &str, path: &Path, errors: &mut Errors) {
    check::form(format::dns1123_label(name), name, path, errors);
}

/// A label key.
pub(super) fn label_key(key: &str, path: &Path, errors: &mut Errors) {
    check::form(format::qualified_name(key), key, path, errors);
}

/// Subdomains separated by slashes.
pub(super) fn pool(name: &str, path: &Path, errors: &mut Errors) {
    if name.is_empty() {
        return errors.push(Error::required(path, ""));
    }
    if name.len() > POOL_MAX {
        errors.push(Error::too_long(path, POOL_MAX));
    }
    for part in name.split('/') {
        check::form(format::dns1123_subdomain(part), part, path, errors);
    }
}

/// A required device class name.
pub(super) fn class(name: &Value, path: &Path, errors: &mut Errors) {
    check::required(name, path, errors);
    check::optional(format::dns1123_subdomain, name, path, errors);
}

/// An attribute or capacity name, with or without a domain. Upstream accepts more than one slash.
pub(super) fn qualified(name: &str, path: &Path, errors: &mut Errors) {
    let parts: Vec<&str> = name.split('/').collect();
    match parts[..] {
        [name] => identifier(name, path, errors),
        [domain, name] => {
            match domain {
                "" => errors.push(Error::invalid(path, "", "the domain must not be empty")),
                domain => driver(domain, path, errors),
            }
            match name {
                "" => errors.push(Error::invalid(path, "", "the name must not be empty")),
                name => identifier(name, path, errors),
            }
        }
        _ => {}
    }
}

/// An attribute with its domain.
pub(super) fn fully_qualified(name: &str, path: &Path, errors: &mut Errors) {
    qualified(name, path, errors);
    if !name.contains('/') {
        let detail = "a fully qualified name must be a domain and a name separated by a slash";
        errors.push(Error::invalid(path, name, detail));
    }
}

fn identifier(name: &str, path: &Path, errors: &mut Errors) {
    if name.len() > IDENTIFIER_MAX {
        errors.push(Error::too_long(path, IDENTIFIER_MAX));
    }
    check::form(format::c_identifier(name), name, path, errors);
}

/// A share ID: a UUID in canonical form.
pub(super) fn share(id: &str, path: &Path, errors: &mut Errors) {
    if let Err(why) = uuid(id) {
        let detail = format!("error validating uid: {why}");
        errors.push(Error::invalid(path, id, detail));
    } else if id.len() != 36 || id.bytes().any(|b| b.is_ascii_uppercase()) {
        let detail = "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase hexadecimal characters";
        errors.push(Error::invalid(path, id, detail));
    }
}

/// A UUID in any form that Go's parser accepts.
fn uuid(id: &str) -> Result<(), String> {
    const DASHES: [usize; 4] = [8, 13, 18, 23];
    let bytes = id.as_bytes();
    let hyphened = match bytes.len() {
        36 => bytes,
        45 => match bytes.split_at(9) {
            (prefix, rest) if prefix.eq_ignore_ascii_case(b"urn:uuid:") => rest,
            (prefix, _) => {
                let prefix = machinery::text::quote(&String::from_utf8_lossy(prefix));
                return Err(format!("invalid urn prefix: {prefix}"));
            }
        },
        38 => match bytes {
            [b'{', inner @ .., b'}'] => inner,
            _ => return Err("invalid bracketed UUID format".to_owned()),
        },
        32 if bytes.iter().all(u8::is_ascii_hexdigit) => return Ok(()),
        32 => return Err("invalid UUID format".to_owned()),
        other => return Err(format!("invalid UUID length: {other}")),
    };
    let sound = hyphened
        .iter()
        .enumerate()
        .all(|(i, b)| match DASHES.contains(&i) {
            true => *b == b'-',
            false => b.is_ascii_hexdigit(),
        });
    match sound {
        true => Ok(()),
        false => Err("invalid UUID format".to_owned()),
    }
}

/// A map key in a path, shortened in the middle if too long.
pub(super) fn shortened(key: &str, max: usize) -> String {
    if key.len() <= max {
        return key.to_owned();
    }
    let rest = max - 3;
    let (head, tail) = (rest.div_ceil(2), key.len() - rest / 2);
    let (head, tail) = (&key.as_bytes()[..head], &key.as_bytes()[tail..]);
    let (head, tail) = (String::from_utf8_lossy(head), String::from_utf8_lossy(tail));
    format!("{head}...{tail}")
}

/// The names of a claim's requests, with those of their subrequests.
pub(super) struct Requests<'a>(Vec<(&'a str, Vec<&'a str>)>);

impl<'a> Requests<'a> {
    /// From the `devices` of a claim's spec.
    pub(super) fn from_devices(devices: &'a Value) -> Self {
        let name = |of: &'a Value| text(&of["name"]);
        let requests = crate::tree::list(&devices["requests"]).iter();
        let alternatives = |r: &'a Value| crate::tree::list(&r["firstAvailable"]).iter().map(name);
        Self(
            requests
                .map(|r| (name(r), alternatives(r).collect()))
                .collect(),
        )
    }

    fn has(&self, reference: &str) -> bool {
        let (name, alternative) = match reference.split_once('/') {
            Some((name, alternative)) => (name, Some(alternative)),
            None => (reference, None),
        };
        // Of requests with the same name the last one counts.
        let found = self.0.iter().rev().find(|(given, _)| *given == name);
        found.is_some_and(|(_, given)| alternative.is_none_or(|a| given.contains(&a)))
    }

    /// A request, or a request and one of its subrequests.
    pub(super) fn check(&self, reference: &str, path: &Path, errors: &mut Errors) {
        let parts: Vec<&str> = reference.split('/').collect();
        if parts.len() <= 2 {
            for part in parts {
                label(part, path, errors);
            }
            if self.has(reference) {
                return;
            }
        }
        let detail = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
        errors.push(Error::invalid(path, reference, detail));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::lines;

    fn messages(check: fn(&str, &Path, &mut Errors), value: &str) -> String {
        let mut errors = Vec::new();
        check(value, &Path::new("p"), &mut errors);
        lines(errors).join(" | ")
    }

    #[test]
    fn shares_are_uuids_in_small_letters() {
        let id = "01234567-89ab-cdef-0123-456789abcdef";
        let normal = "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase hexadecimal characters";
        let cases = [
            (id.to_owned(), String::new()),
            (id.to_uppercase(), normal.to_owned()),
            (format!("{{{id}}}"), normal.to_owned()),
            (format!("urn:uuid:{id}"), normal.to_owned()),
            (id.replace('-', ""), normal.to_owned()),
            (
                format!("urn-uuid:{id}"),
                "error validating uid: invalid urn prefix: \"urn-uuid:\"".to_owned(),
            ),
            (
                "a".to_owned(),
                "error validating uid: invalid UUID length: 1".to_owned(),
            ),
            (
                id.replace('a', "g"),
                "error validating uid: invalid UUID format".to_owned(),
            ),
        ];
        for (id, expected) in cases {
            let line = messages(share, &id);
            assert_eq!(
                line.split_once("\": ").map_or("", |(_, detail)| detail),
                expected,
                "{id}"
            );
        }
    }

    #[test]
    fn attributes_have_a_domain_and_an_identifier() {
        let cases = [
            ("example.com/a_b", ""),
            (
                "a",
                "p: Invalid value: \"a\": a fully qualified name must be a domain and a name separated by a slash",
            ),
            ("/a", "p: Invalid value: \"\": the domain must not be empty"),
            ("a.b/", "p: Invalid value: \"\": the name must not be empty"),
            ("a/b/c", ""),
        ];
        for (name, expected) in cases {
            assert_eq!(messages(fully_qualified, name), expected, "{name}");
        }
        assert!(
            messages(qualified, &"a".repeat(33))
                .starts_with("p: Too long: may not be more than 32")
        );
        assert!(messages(qualified, "a-b").contains("a valid C identifier must start with"));
    }

    #[test]
    fn pools_are_paths_of_subdomains() {
        assert_eq!(messages(pool, "a.b/c"), "");
        assert_eq!(messages(pool, ""), "p: Required value");
        assert!(
            messages(pool, "a//b")
                .starts_with("p: Invalid value: \"\": a lowercase RFC 1123 subdomain")
        );
        assert!(
            messages(pool, &"a".repeat(254)).starts_with("p: Too long: may not be more than 253")
        );
    }

    #[test]
    fn long_keys_are_cut_in_the_middle() {
        assert_eq!(shortened("abc", 16), "abc");
        assert_eq!(shortened("abcdefghijklmnopq", 16), "abcdefg...lmnopq");
    }
}
