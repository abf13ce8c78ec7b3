//! Answers.

use http::{Response, StatusCode, header};
use machinery::Status;
use serde::Serialize;

use crate::Body;

pub(crate) type Answer = Result<Response<Body>, Status>;

pub(crate) const JSON: &str = "application/json";

/// Bytes of a media type.
pub(crate) fn bytes(
    code: StatusCode,
    media: &str,
    body: impl Into<bytes::Bytes>,
) -> Response<Body> {
    let mut response = Response::new(Body::whole(body));
    *response.status_mut() = code;
    // Media types here are our own constants or come from a parsed header.
    if let Ok(media) = media.parse() {
        response.headers_mut().insert(header::CONTENT_TYPE, media);
    }
    response
}

/// A document of our own.
pub(crate) fn json(value: &impl Serialize) -> Response<Body> {
    match serde_json::to_vec(value) {
        Ok(body) => bytes(StatusCode::OK, JSON, body),
        Err(error) => status(&Status::internal(error)),
    }
}

/// Plain text.
pub(crate) fn text(code: StatusCode, body: impl Into<bytes::Bytes>) -> Response<Body> {
    bytes(code, "text/plain; charset=utf-8", body)
}

/// A refusal, or a success without an object.
pub(crate) fn status(status: &Status) -> Response<Body> {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = bytes(code, JSON, status.to_bytes());
    let retry = status
        .details
        .as_ref()
        .map_or(0, |details| details.retry_after_seconds);
    if retry > 0 {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, retry.into());
    }
    response
}
