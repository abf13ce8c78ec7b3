//! The front-proxy headers with the user. Backends trust them because of the client certificate.

use http::{HeaderMap, HeaderName, HeaderValue};
use request::User;

const USER: HeaderName = HeaderName::from_static("x-remote-user");
const UID: HeaderName = HeaderName::from_static("x-remote-uid");
const GROUP: HeaderName = HeaderName::from_static("x-remote-group");
const EXTRA: &str = "x-remote-extra-";

/// The headers of a user. Fails if a header cannot represent a value: a backend must not see a
/// reduced identity.
pub fn headers(user: &User) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    headers.insert(USER, value(&user.name)?);
    if !user.uid.is_empty() {
        headers.insert(UID, value(&user.uid)?);
    }
    for group in &user.groups {
        headers.append(GROUP, value(group)?);
    }
    for (key, values) in &user.extra {
        let name = HeaderName::try_from(format!("{EXTRA}{}", escape(key)))
            .map_err(|error| error.to_string())?;
        for one in values {
            headers.append(name.clone(), value(one)?);
        }
    }
    Ok(headers)
}

/// Spaces around a value are not part of it for the backend, which would see another user or group.
fn value(text: &str) -> Result<HeaderValue, String> {
    let value = match text.trim_matches([' ', '\t']) == text {
        true => HeaderValue::from_bytes(text.as_bytes()).ok(),
        false => None,
    };
    value.ok_or_else(|| format!("{text:?} cannot be sent in a header"))
}

/// Percent-encodes bytes that are invalid in header names.
fn escape(key: &str) -> String {
    let mut escaped = String::with_capacity(key.len());
    for byte in key.bytes() {
        match byte {
            b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => escaped.push(byte.into()),
            b'!' | b'#' | b'$' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`'
            | b'|' | b'~' => escaped.push(byte.into()),
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_headers_have_groups_uid_and_extra() {
        let mut user = User::new("jane", ["dev"]);
        user.uid = "7".to_owned();
        user.extra
            .insert("acme.com/project".to_owned(), vec!["p".to_owned()]);
        let headers = headers(&user).unwrap();
        assert_eq!(headers["x-remote-user"], "jane");
        assert_eq!(headers["x-remote-uid"], "7");
        let groups: Vec<_> = headers.get_all("x-remote-group").iter().collect();
        assert_eq!(groups, ["dev", "system:authenticated"]);
        assert_eq!(headers["x-remote-extra-acme.com%2fproject"], "p");
    }

    #[test]
    fn a_name_that_no_header_carries_is_refused() {
        let none: [&str; 0] = [];
        assert!(headers(&User::new("a\nb", none)).is_err());
        assert!(headers(&User::new("jürgen", none)).is_ok());
        assert!(headers(&User::new("a", ["b\r\nx-remote-group: system:masters"])).is_err());
        assert!(headers(&User::new("a", [" system:masters"])).is_err());
        assert!(headers(&User::new("a\t", none)).is_err());
        assert!(headers(&User::new("a b", none)).is_ok());
    }
}
