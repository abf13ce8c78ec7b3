//! Negotiation of upgrades: the client's request, and the response.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

pub(crate) const SPDY: &str = "SPDY/3.1";
pub(crate) const PROTOCOL_VERSION: &str = "x-stream-protocol-version";
const ACCEPTED_VERSIONS: &str = "x-accepted-stream-protocol-versions";

/// The response to an upgrade request.
pub type Answer = Response<Full<Bytes>>;

/// The requested type of connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Spdy,
    WebSocket,
}

/// Every item of a comma-separated header, also if it is repeated.
fn items<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = &'a str> {
    let values = headers
        .get_all(name)
        .into_iter()
        .filter_map(|value| value.to_str().ok());
    values
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|item| !item.is_empty())
}

/// The requested upgrade.
pub(crate) fn requested_upgrade(headers: &HeaderMap) -> Option<&str> {
    let connection = items(headers, "connection").any(|item| item.eq_ignore_ascii_case("upgrade"));
    connection
        .then(|| headers.get(header::UPGRADE)?.to_str().ok())
        .flatten()
}

/// The type of the requested upgrade, or the rejection.
pub(crate) fn kind(headers: &HeaderMap) -> Result<Kind, Answer> {
    match requested_upgrade(headers) {
        Some(upgrade) if upgrade.eq_ignore_ascii_case(SPDY) => Ok(Kind::Spdy),
        Some(upgrade) if upgrade.eq_ignore_ascii_case("websocket") => Ok(Kind::WebSocket),
        _ => Err(refusal(
            StatusCode::BAD_REQUEST,
            "unable to upgrade: the request has no Connection: Upgrade with SPDY/3.1 or websocket",
        )),
    }
}

/// Whether the headers request a WebSocket.
pub fn is_websocket(headers: &HeaderMap) -> bool {
    requested_upgrade(headers).is_some_and(|upgrade| upgrade.eq_ignore_ascii_case("websocket"))
}

/// A plain-text response.
pub(crate) fn refusal(status: StatusCode, message: impl Into<String>) -> Answer {
    let mut response = Response::new(Full::from(message.into()));
    *response.status_mut() = status;
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, text);
    response
}

fn switching(upgrade: &'static str) -> Answer {
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response
        .headers_mut()
        .insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    response
        .headers_mut()
        .insert(header::UPGRADE, HeaderValue::from_static(upgrade));
    response
}

/// Accepts SPDY with the first of the client's versions that we support; a client without versions
/// gets the oldest.
pub(crate) fn spdy(
    headers: &HeaderMap,
    supported: &[&'static str],
) -> Result<(Answer, Option<&'static str>), Answer> {
    let mut named = false;
    let mut chosen = None;
    for version in items(headers, PROTOCOL_VERSION) {
        named = true;
        chosen = chosen.or_else(|| supported.iter().copied().find(|known| *known == version));
    }
    if named && chosen.is_none() {
        let mut answer = refusal(
            StatusCode::FORBIDDEN,
            format!(
                "unable to upgrade: none of the client's protocols is supported: {supported:?}"
            ),
        );
        for version in supported {
            answer
                .headers_mut()
                .append(ACCEPTED_VERSIONS, HeaderValue::from_static(version));
        }
        return Err(answer);
    }
    let mut answer = switching(SPDY);
    if let Some(version) = chosen {
        answer
            .headers_mut()
            .insert(PROTOCOL_VERSION, HeaderValue::from_static(version));
    }
    Ok((answer, chosen))
}

/// Accepts WebSocket with the first of the client's subprotocols that we support. An empty string
/// in `supported` allows a client without subprotocols.
pub(crate) fn websocket(
    headers: &HeaderMap,
    supported: &[&'static str],
) -> Result<(Answer, &'static str), Answer> {
    let mut requested = subprotocols(headers).peekable();
    let known = |name: &str| supported.iter().copied().find(|known| *known == name);
    let chosen = if requested.peek().is_none() {
        known("")
    } else {
        requested.find_map(known)
    };
    let Some(chosen) = chosen else {
        let message = format!("none of the requested protocols is supported: {supported:?}");
        return Err(refusal(StatusCode::FORBIDDEN, message));
    };
    Ok((handshake(headers, chosen)?, chosen))
}

/// The client's subprotocols, without the one that carries its token.
pub(crate) fn subprotocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    items(headers, header::SEC_WEBSOCKET_PROTOCOL.as_str())
        .filter(|name| !name.starts_with("base64url.bearer.authorization.k8s.io."))
}

/// Accepts WebSocket with a subprotocol, or with none if it is empty.
pub(crate) fn handshake(headers: &HeaderMap, protocol: &str) -> Result<Answer, Answer> {
    let bad = |message: &str| refusal(StatusCode::BAD_REQUEST, message);
    let key = headers
        .get(header::SEC_WEBSOCKET_KEY)
        .ok_or_else(|| bad("missing Sec-WebSocket-Key"))?;
    if headers
        .get(header::SEC_WEBSOCKET_VERSION)
        .is_none_or(|version| version != "13")
    {
        return Err(bad("only WebSocket version 13 is supported"));
    }
    let mut answer = switching("websocket");
    let accept = HeaderValue::from_str(&derive_accept_key(key.as_bytes()));
    let accept = accept.map_err(|_| bad("bad Sec-WebSocket-Key"))?;
    answer
        .headers_mut()
        .insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    if !protocol.is_empty() {
        let protocol = HeaderValue::from_str(protocol);
        let protocol = protocol.map_err(|_| bad("bad Sec-WebSocket-Protocol"))?;
        answer
            .headers_mut()
            .insert(header::SEC_WEBSOCKET_PROTOCOL, protocol);
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn the_clients_first_known_version_wins_and_unknown_ones_are_refused() {
        let ours = ["v4.channel.k8s.io", "v3.channel.k8s.io"];
        let both = headers(&[
            (PROTOCOL_VERSION, "v9.channel.k8s.io"),
            (PROTOCOL_VERSION, "v3.channel.k8s.io, v4.channel.k8s.io"),
        ]);
        assert_eq!(spdy(&both, &ours).unwrap().1, Some("v3.channel.k8s.io"));
        assert_eq!(spdy(&HeaderMap::new(), &ours).unwrap().1, None);
        let refused = spdy(&headers(&[(PROTOCOL_VERSION, "v9")]), &ours).unwrap_err();
        assert_eq!(refused.status(), StatusCode::FORBIDDEN);
        assert_eq!(
            refused.headers().get_all(ACCEPTED_VERSIONS).iter().count(),
            2
        );
    }

    #[test]
    fn an_ordinary_request_is_not_an_upgrade() {
        kind(&headers(&[("upgrade", "SPDY/3.1")])).unwrap_err();
        kind(&headers(&[("connection", "Upgrade"), ("upgrade", "h2c")])).unwrap_err();
        let both = headers(&[
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "spdy/3.1"),
        ]);
        assert_eq!(kind(&both).unwrap(), Kind::Spdy);
    }

    #[test]
    fn websockets_need_a_key_a_version_and_a_known_protocol() {
        let with = |protocol| {
            headers(&[
                ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
                ("sec-websocket-version", "13"),
                ("sec-websocket-protocol", protocol),
            ])
        };
        let (answer, chosen) = websocket(&with("a, b"), &["b", ""]).unwrap();
        assert_eq!(chosen, "b");
        let accept = answer.headers().get("sec-websocket-accept").unwrap();
        assert_eq!(accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(
            websocket(&with("c"), &["b", ""]).unwrap_err().status(),
            StatusCode::FORBIDDEN
        );
        websocket(&HeaderMap::new(), &["b", ""]).unwrap_err();
    }
}
