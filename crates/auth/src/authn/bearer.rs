//! Bearer tokens: where requests carry them, constant-time comparison, and their removal before a
//! request is forwarded.

use std::borrow::Cow;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use http::{HeaderMap, HeaderValue, header};

/// Browsers cannot set headers on a WebSocket: the token is a subprotocol.
const PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// The token of a request.
pub fn token(headers: &HeaderMap) -> Option<Cow<'_, str>> {
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        let mut parts = value.to_str().ok()?.trim().splitn(3, ' ');
        let (scheme, token) = (parts.next()?, parts.next()?);
        let usable = scheme.eq_ignore_ascii_case("bearer") && !token.is_empty();
        return usable.then_some(Cow::Borrowed(token));
    }
    match of_websocket(headers) {
        WebSocket::Token(token) => Some(Cow::Owned(token)),
        WebSocket::None | WebSocket::Malformed => None,
    }
}

/// Whether a request has a malformed token: such a caller is not anonymous.
pub fn is_malformed(headers: &HeaderMap) -> bool {
    of_websocket(headers) == WebSocket::Malformed
}

#[derive(Debug, PartialEq)]
enum WebSocket {
    None,
    Token(String),
    Malformed,
}

/// The token among the subprotocols of a WebSocket. There must be exactly one, and another
/// subprotocol that the server can select.
fn of_websocket(headers: &HeaderMap) -> WebSocket {
    if !headers.contains_key(header::SEC_WEBSOCKET_PROTOCOL) || !streaming::is_websocket(headers) {
        return WebSocket::None;
    }
    let (tokens, others): (Vec<_>, Vec<_>) =
        protocols(headers).partition(|name| name.starts_with(PROTOCOL));
    let token = match (tokens.as_slice(), others.as_slice()) {
        ([], _) => return WebSocket::None,
        ([_], []) => None,
        ([token], _) => token.strip_prefix(PROTOCOL),
        _ => None,
    };
    let decoded = token.and_then(|token| BASE64_URL_SAFE_NO_PAD.decode(token).ok());
    match decoded.map(String::from_utf8) {
        Some(Ok(token)) if token.is_empty() => WebSocket::None,
        Some(Ok(token)) => WebSocket::Token(token),
        _ => WebSocket::Malformed,
    }
}

/// Every subprotocol of a request.
fn protocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).into_iter();
    values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
}

/// Removes the caller's credentials from a request: otherwise a proxied backend could act as the
/// caller.
pub fn strip(headers: &mut HeaderMap) {
    headers.remove(header::AUTHORIZATION);
    let names = headers.keys().map(http::HeaderName::as_str);
    let identity: Vec<String> = names
        .filter(|name| {
            matches!(*name, "x-remote-user" | "x-remote-uid" | "x-remote-group")
                || name.starts_with("x-remote-extra-")
                || name.starts_with("impersonate-")
        })
        .map(str::to_owned)
        .collect();
    for name in identity {
        headers.remove(name);
    }
    if !protocols(headers).any(|name| name.starts_with(PROTOCOL)) {
        return;
    }
    let others = protocols(headers).filter(|name| !name.starts_with(PROTOCOL));
    let others = others.collect::<Vec<_>>().join(",");
    headers.remove(header::SEC_WEBSOCKET_PROTOCOL);
    if !others.is_empty()
        && let Ok(others) = HeaderValue::from_str(&others)
    {
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, others);
    }
}

/// The warning for an unusable Authorization header.
pub fn warning(headers: &HeaderMap) -> Option<&'static str> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, rest) = value.split_at_checked(SCHEME.len())?;
    let ignored = scheme.eq_ignore_ascii_case(SCHEME) && rest.starts_with(b"  ");
    ignored.then_some(
        "the provided Authorization header contains extra space before the bearer token, and is ignored",
    )
}

const SCHEME: &[u8] = b"bearer";

/// Whether two secrets are equal, in constant time.
pub fn equal(one: &str, other: &str) -> bool {
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
        assert_eq!(token(&HeaderMap::new()), None);
    }

    fn websocket(protocols: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        for protocol in protocols {
            let protocol = protocol.replace("TOKEN", &format!("{PROTOCOL}YWJj"));
            headers.append(header::SEC_WEBSOCKET_PROTOCOL, protocol.parse().unwrap());
        }
        headers
    }

    #[test]
    fn a_websockets_token_is_one_of_several_protocols() {
        for (given, expected) in [
            (
                &["v4.channel.k8s.io, TOKEN"][..],
                WebSocket::Token("abc".to_owned()),
            ),
            (
                &["TOKEN", "v4.channel.k8s.io"],
                WebSocket::Token("abc".to_owned()),
            ),
            (&["v4.channel.k8s.io"], WebSocket::None),
            (&["TOKEN"], WebSocket::Malformed),
            (&["TOKEN, TOKEN, v4.channel.k8s.io"], WebSocket::Malformed),
            (&["TOKEN=, v4.channel.k8s.io"], WebSocket::Malformed),
        ] {
            assert_eq!(of_websocket(&websocket(given)), expected, "{given:?}");
        }
        let mut plain = websocket(&["TOKEN, v4.channel.k8s.io"]);
        plain.remove(header::UPGRADE);
        assert_eq!(of_websocket(&plain), WebSocket::None, "no WebSocket");
    }

    #[test]
    fn credentials_and_identity_headers_are_removed_before_proxying() {
        let mut headers = websocket(&["a, TOKEN", "b,TOKEN"]);
        for name in [
            "authorization",
            "x-remote-user",
            "x-remote-uid",
            "x-remote-group",
            "x-remote-extra-scopes",
            "impersonate-user",
            "impersonate-extra-a",
        ] {
            headers.append(name, HeaderValue::from_static("x"));
            headers.append(name, HeaderValue::from_static("y"));
        }
        headers.insert("cookie", HeaderValue::from_static("theirs"));
        strip(&mut headers);
        let mut left: Vec<&str> = headers.keys().map(http::HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(
            left,
            ["connection", "cookie", "sec-websocket-protocol", "upgrade"]
        );
        assert_eq!(headers["sec-websocket-protocol"], "a,b");
    }

    #[test]
    fn only_equal_secrets_are_equal() {
        assert!(equal("abc", "abc") && !equal("abc", "abd") && !equal("abc", "ab"));
        assert!(equal("", "") && !equal("", "a"));
    }
}
