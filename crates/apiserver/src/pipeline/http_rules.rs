//! Rejects requests that violate HTTP, before anything else is parsed.

use http::{HeaderValue, Method, Response, StatusCode, Version, header, request::Parts};

use super::Caller;
use crate::{Body, handlers, query, respond};

/// The response to a malformed request; `None` if it is well-formed.
pub(super) fn refuse(parts: &Parts, caller: &Caller) -> Option<Response<Body>> {
    let refuse = |code: StatusCode, words: &str| {
        let mut refused = respond::text(code, words.to_owned());
        let close = HeaderValue::from_static("close");
        refused.headers_mut().insert(header::CONNECTION, close);
        Some(refused)
    };
    let path = parts.uri.path();
    if path.is_empty() && parts.method == Method::CONNECT {
        return Some(handlers::no_page());
    }
    if path.is_empty() || !query::is_well_escaped(path) {
        return refuse(StatusCode::BAD_REQUEST, "400 Bad Request");
    }
    if parts.version != Version::HTTP_11 || matches!(caller, Caller::Known(..)) {
        return None;
    }
    if !parts.headers.contains_key(header::HOST) && parts.uri.host().is_none() {
        let words = "400 Bad Request: missing required Host header";
        return refuse(StatusCode::BAD_REQUEST, words);
    }
    let expects = parts.headers.get(header::EXPECT);
    if expects.is_some_and(|what| !what.as_bytes().eq_ignore_ascii_case(b"100-continue")) {
        return refuse(StatusCode::EXPECTATION_FAILED, "");
    }
    None
}
