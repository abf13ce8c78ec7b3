//! Indented JSON: when a client asks for it, or is one that shows responses to people.

use bytes::{Bytes, BytesMut};
use futures::{FutureExt, StreamExt};
use http::{HeaderMap, Response, StatusCode, header};
use http_body::Body as _;
use http_body_util::{BodyExt, BodyStream};

use super::arrival::Exchange;
use crate::{Body, query::Query, respond};

/// Whether the response is indented: by the `pretty` parameter, the media type, or a user agent
/// that people read.
pub(super) fn wanted(path: &str, query: &Query, headers: &HeaderMap) -> bool {
    if !path.starts_with("/api") {
        return false;
    }
    if let Some(asked) = query.filled("pretty") {
        return matches!(asked, "1" | "t" | "T" | "true" | "TRUE" | "True");
    }
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let agent = text(header::USER_AGENT).unwrap_or_default();
    let shows = ["curl", "Wget", "Mozilla/5.0"];
    shows.iter().any(|name| agent.starts_with(name))
        || text(header::ACCEPT).is_some_and(|accept| accept.contains("pretty=1"))
}

/// Response stage.
pub(super) fn stage(exchange: &mut Exchange, response: &mut Response<Body>) {
    if exchange.indents {
        let plain = std::mem::replace(response, Response::new(Body::empty()));
        *response = apply(plain);
    }
}

/// Indents a JSON response; others are unchanged.
fn apply(response: Response<Body>) -> Response<Body> {
    let is_json = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|media| media == respond::JSON);
    if !is_json || response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return response;
    }
    let (parts, body) = response.into_parts();
    let mut indenter = Indenter::default();
    let body = if body.size_hint().exact().is_some() {
        // The body is complete, so this does not wait.
        let bytes = match body.collect().now_or_never() {
            Some(Ok(bytes)) => bytes.to_bytes(),
            _ => Bytes::new(),
        };
        Body::whole(indenter.indent(&bytes))
    } else {
        let pieces = BodyStream::new(body).filter_map(move |frame| {
            let piece = match frame {
                Ok(frame) => frame
                    .into_data()
                    .ok()
                    .map(|data| Ok(indenter.indent(&data))),
                Err(error) => Some(Err(error)),
            };
            std::future::ready(piece)
        });
        Body::stream(pieces)
    };
    Response::from_parts(parts, body)
}

/// The state between two pieces of a document.
#[derive(Default)]
struct Indenter {
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// A bracket was opened and nothing has followed it.
    opened: bool,
}

impl Indenter {
    /// Indents the next piece of a document, wherever it was split.
    fn indent(&mut self, piece: &[u8]) -> Bytes {
        let mut out = BytesMut::with_capacity(piece.len() + piece.len() / 2);
        for byte in piece.iter().copied() {
            self.indent_byte(byte, &mut out);
        }
        out.freeze()
    }

    fn indent_byte(&mut self, byte: u8, out: &mut BytesMut) {
        if self.in_string {
            out.extend_from_slice(&[byte]);
            self.in_string = byte != b'"' || self.escaped;
            self.escaped = byte == b'\\' && !self.escaped;
            return;
        }
        if byte.is_ascii_whitespace() {
            return;
        }
        let closes = matches!(byte, b'}' | b']');
        if self.opened && !closes {
            self.opened = false;
            self.depth += 1;
            self.line(out);
        }
        if closes && !std::mem::take(&mut self.opened) {
            self.depth = self.depth.saturating_sub(1);
            self.line(out);
        }
        out.extend_from_slice(&[byte]);
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.opened = true,
            b',' => self.line(out),
            b':' => out.extend_from_slice(b" "),
            _ => {}
        }
    }

    fn line(&self, out: &mut BytesMut) {
        out.extend_from_slice(b"\n");
        for _ in 0..self.depth {
            out.extend_from_slice(b"  ");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_indented_wherever_they_are_cut() {
        let text = r#"{"a":{},"b":[1,{"c":"x\"{,:\\"},[]],"d":null}"#;
        let value: machinery::json::Value = machinery::json::from_str(text).unwrap();
        let expected = machinery::json::to_string_pretty(&value).unwrap();
        for size in 1..text.len() {
            let mut indenter = Indenter::default();
            let pieces = text.as_bytes().chunks(size);
            let out: Vec<u8> = pieces.flat_map(|piece| indenter.indent(piece)).collect();
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }

    #[test]
    fn json_is_indented_for_browsers_and_curl_only() {
        let ask = |query: &str, agent: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::USER_AGENT, agent.parse().unwrap());
            wanted("/api/v1/pods", &Query::parse(query), &headers)
        };
        assert!(ask("pretty=true", "kubectl/v1.36"));
        assert!(ask("", "curl/8.0") && ask("", "Mozilla/5.0 (X11)"));
        assert!(!ask("pretty=0", "curl/8.0") && !ask("", "kubectl/v1.36"));
        assert!(!wanted(
            "/metrics",
            &Query::parse("pretty=1"),
            &HeaderMap::new()
        ));
    }
}
