//! Bearer tokens: where requests carry them, and how two are compared.

use std::borrow::Cow;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use http::{HeaderMap, header};

/// Browsers cannot set headers on a WebSocket: the token comes as a protocol name.
const PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// The token that a request carries.
pub(crate) fn token(headers: &HeaderMap) -> Option<Cow<'_, str>> {
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        let mut parts = value.to_str().ok()?.trim().splitn(3, ' ');
        let (scheme, token) = (parts.next()?, parts.next()?);
        let usable = scheme.eq_ignore_ascii_case("bearer") && !token.is_empty();
        return usable.then_some(Cow::Borrowed(token));
    }
    let protocols = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL);
    let mut names = protocols
        .into_iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','));
    let encoded = names.find_map(|name| name.trim().strip_prefix(PROTOCOL))?;
    let token = String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(encoded).ok()?).ok()?;
    Some(Cow::Owned(token))
}

/// What is said to whoever puts a token where it is not looked for.
pub(crate) fn warning(headers: &HeaderMap) -> Option<&'static str> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, rest) = value.split_at_checked(SCHEME.len())?;
    let ignored = scheme.eq_ignore_ascii_case(SCHEME) && rest.starts_with(b"  ");
    ignored.then_some(
        "the provided Authorization header contains extra space before the bearer token, and is ignored",
    )
}

const SCHEME: &[u8] = b"bearer";

/// Whether two secrets are equal, in a time that tells nothing about where they differ.
pub(crate) fn equal(one: &str, other: &str) -> bool {
    let difference = one
        .bytes()
        .zip(other.bytes())
        .fold(0, |sum, (a, b)| sum | (a ^ b));
    one.len() == other.len() && difference == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_in_a_header_or_as_a_websocket_protocol() {
        let with = |name: &'static str, value: &str| {
            HeaderMap::from_iter([(http::HeaderName::from_static(name), value.parse().unwrap())])
        };
        assert_eq!(
            token(&with("authorization", "Bearer abc")).as_deref(),
            Some("abc")
        );
        assert_eq!(
            token(&with("authorization", "bearer abc def")).as_deref(),
            Some("abc")
        );
        let spaced = with("authorization", "Bearer  abc");
        assert_eq!(token(&spaced), None);
        assert!(warning(&spaced).is_some());
        assert_eq!(warning(&with("authorization", "Bearer abc")), None);
        assert_eq!(token(&with("authorization", "Basic abc")), None);
        let protocol = format!("v4.channel.k8s.io, {PROTOCOL}YWJj");
        assert_eq!(
            token(&with("sec-websocket-protocol", &protocol)).as_deref(),
            Some("abc")
        );
        assert_eq!(token(&HeaderMap::new()), None);
    }

    #[test]
    fn only_equal_secrets_are_equal() {
        assert!(equal("abc", "abc") && !equal("abc", "abd") && !equal("abc", "ab"));
        assert!(equal("", "") && !equal("", "a"));
    }
}
