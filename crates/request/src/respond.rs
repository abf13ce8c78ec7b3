//! Responses.

use std::collections::HashSet;

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use machinery::{Status, Value, protobuf, schema};

use crate::Body;

/// The encoding of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Encoding {
    #[default]
    Json,
    Yaml,
    Protobuf,
}

pub type Answer = Result<Response<Body>, Status>;

pub const JSON: &str = "application/json";
pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// Bytes of a media type.
pub fn bytes(code: StatusCode, media: &str, body: impl Into<bytes::Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::whole(body));
    *response.status_mut() = code;
    // Media types are constants or come from a parsed header.
    let media = match media {
        JSON => Ok(HeaderValue::from_static(JSON)),
        other => other.parse(),
    };
    if let Ok(media) = media {
        response.headers_mut().insert(header::CONTENT_TYPE, media);
    }
    response
}

/// JSON with a trailing newline.
pub fn line(code: StatusCode, json: &[u8]) -> Response<Body> {
    let mut line = bytes::BytesMut::with_capacity(json.len() + 1);
    line.extend_from_slice(json.trim_ascii_end());
    line.extend_from_slice(b"\n");
    bytes(code, JSON, line)
}

/// An indented JSON document.
pub fn lines(value: &Value) -> Response<Body> {
    match machinery::json::to_string_pretty(value) {
        Ok(text) => bytes(StatusCode::OK, JSON, text),
        Err(error) => status(&Status::internal(error)),
    }
}

/// Only the response's headers, with the Content-Length of the body. In HTTP/2 a body must not be
/// sent: clients treat data in a response to HEAD as a broken stream.
pub fn without_body(response: Response<Body>) -> Response<Body> {
    use http_body::Body as _;
    let (mut parts, body) = response.into_parts();
    if let Some(length) = body.size_hint().exact().filter(|length| *length > 0) {
        let length = || length.into();
        parts
            .headers
            .entry(header::CONTENT_LENGTH)
            .or_insert_with(length);
    }
    Response::from_parts(parts, Body::empty())
}

/// Forbids browsers to guess the media type.
pub fn unsniffed(mut response: Response<Body>) -> Response<Body> {
    let never = HeaderValue::from_static("nosniff");
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, never);
    response
}

/// A non-resource document in the client's encoding, by its type in the schema table.
pub fn document(value: &Value, schema_name: &str, encoding: Encoding) -> Response<Body> {
    let schema = schema::lookup(schema_name);
    match (encoding, schema, value.as_object()) {
        (Encoding::Protobuf, Some(schema), Some(object)) => {
            let raw = protobuf::message(schema, object);
            let message = protobuf::envelope("v1", schema.name, &raw);
            bytes(StatusCode::OK, PROTOBUF, message)
        }
        (Encoding::Yaml, ..) => match crate::yaml::from_json(value.to_string().as_bytes()) {
            Ok(text) => bytes(StatusCode::OK, "application/yaml", text),
            Err(error) => status(&error),
        },
        _ => line(StatusCode::OK, value.to_string().as_bytes()),
    }
}

/// Plain text.
pub fn text(code: StatusCode, body: impl Into<bytes::Bytes>) -> Response<Body> {
    bytes(code, "text/plain; charset=utf-8", body)
}

/// A Status as a protobuf body.
pub fn status_message(status: &Status) -> Option<Vec<u8>> {
    let schema = schema::lookup("meta/v1.Status")?;
    let object = machinery::json::from_slice(&status.to_bytes()).ok()?;
    Some(protobuf::encode(schema, &object))
}

/// An error, or a success without an object.
pub fn status(status: &Status) -> Response<Body> {
    status_as(status, Encoding::Json)
}

/// The same in the client's encoding.
pub fn status_as(status: &Status, encoding: Encoding) -> Response<Body> {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let other: Option<(_, bytes::Bytes)> = match encoding {
        Encoding::Json => None,
        Encoding::Yaml => crate::yaml::from_json(&status.to_bytes())
            .ok()
            .map(|text| ("application/yaml", text.into())),
        Encoding::Protobuf => status_message(status).map(|message| (PROTOBUF, message.into())),
    };
    let mut response = match other {
        Some((media, body)) => bytes(code, media, body),
        None => line(code, &status.to_bytes()),
    };
    let retry = status
        .details
        .as_ref()
        .map_or(0, |details| details.retry_after_seconds);
    if retry > 0 {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, retry.into());
    }
    warn(response, &status.warnings)
}

/// If warnings exceed the first number of characters in total, each is truncated to the second, and
/// the rest is dropped.
const MAX_WARNINGS: usize = 4096;
const MAX_WARNING: usize = 256;

/// Deduplicated warnings, bounded in size.
fn bounded(warnings: &[String]) -> Vec<String> {
    let mut seen = HashSet::new();
    let distinct = warnings
        .iter()
        .filter(|text| !text.is_empty() && seen.insert(text.as_str()));
    let distinct: Vec<&String> = distinct.collect();
    let total: usize = distinct.iter().map(|text| text.chars().count()).sum();
    if total <= MAX_WARNINGS {
        return distinct.into_iter().cloned().collect();
    }
    let mut written = 0;
    let short = distinct
        .into_iter()
        .map(|text| text.chars().take(MAX_WARNING).collect::<String>());
    short
        .take_while(|text| {
            let room = written < MAX_WARNINGS;
            written += text.chars().count();
            room
        })
        .collect()
}

/// Adds Warning headers.
pub fn warn(mut response: Response<Body>, warnings: &[String]) -> Response<Body> {
    for warning in bounded(warnings) {
        let mut value = Vec::with_capacity(warning.len() + 16);
        value.extend_from_slice(b"299 - \"");
        if warning
            .bytes()
            .all(|b| matches!(b, b' '..=b'~') && !matches!(b, b'"' | b'\\'))
        {
            value.extend_from_slice(warning.as_bytes());
        } else {
            let text: String = warning.chars().filter(|c| !c.is_control()).collect();
            let text = text.replace('\\', "\\\\").replace('"', "\\\"");
            value.extend_from_slice(text.as_bytes());
        }
        value.push(b'"');
        if let Ok(value) = HeaderValue::from_maybe_shared(bytes::Bytes::from(value)) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
    response
}

/// Puts a warning before those of the response.
pub fn warn_first(headers: &mut HeaderMap, text: &str) {
    let others: Vec<HeaderValue> = headers.get_all(header::WARNING).iter().cloned().collect();
    if let Ok(first) = HeaderValue::try_from(format!("299 - \"{text}\"")) {
        headers.insert(header::WARNING, first);
        for other in others {
            headers.append(header::WARNING, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_deduplicated_and_limited() {
        let few = ["a", "b", "a", ""].map(str::to_owned);
        assert_eq!(bounded(&few), ["a", "b"]);
        let many: Vec<String> = (0..100_000).map(|n| format!("{n:0>300}")).collect();
        let sent = bounded(&many);
        assert_eq!(sent.len(), MAX_WARNINGS / MAX_WARNING);
        assert!(sent.iter().all(|text| text.len() == MAX_WARNING));
    }
}
