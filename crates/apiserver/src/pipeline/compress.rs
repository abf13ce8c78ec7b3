//! Compression of responses, for clients remote enough to gain from it.

use std::{io::Write, sync::Arc};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use futures::StreamExt;
use http::{HeaderMap, HeaderValue, Response, header};
use http_body_util::BodyStream;

use http_server::Budget;
use request::BodyError;

use super::{Caller, arrival::Exchange};
use crate::Body;

/// Smaller responses are not compressed.
const SMALLEST: u64 = 128 * 1024;

/// Approximate memory of a compressor.
const STATE: usize = 256 * 1024;

/// Whether this client accepts and gains from compression: on the same machine compressing costs
/// more than sending.
pub(super) fn wanted(headers: &HeaderMap, caller: &Caller) -> bool {
    let Caller::Connection(connection) = caller else {
        return false;
    };
    let accepts = headers
        .get(header::ACCEPT_ENCODING)
        .and_then(|value| value.to_str().ok());
    let gzip = |coding: &str| {
        coding
            .split(';')
            .next()
            .is_some_and(|name| name.trim() == "gzip")
    };
    !connection.remote.ip().is_loopback() && accepts.is_some_and(|list| list.split(',').any(gzip))
}

/// Response stage.
pub(super) fn stage(exchange: &mut Exchange, response: &mut Response<Body>) {
    if exchange.compresses {
        let plain = std::mem::replace(response, Response::new(Body::empty()));
        *response = apply(plain, &exchange.pipeline.shared.traffic.http.budget);
    }
}

/// Compresses a response that is large enough.
fn apply(response: Response<Body>, budget: &Arc<Budget>) -> Response<Body> {
    use http_body::Body as _;
    let small = response
        .body()
        .size_hint()
        .exact()
        .is_some_and(|size| size < SMALLEST);
    if small
        || !response.status().is_success()
        || response.headers().contains_key(header::CONTENT_ENCODING)
    {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    parts
        .headers
        .insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    parts
        .headers
        .append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    parts.headers.remove(header::CONTENT_LENGTH);
    let mut body = Body::stream(compressed(body));
    body.hold(budget.charge(STATE));
    Response::from_parts(parts, body)
}

fn compressed(body: Body) -> impl futures::Stream<Item = Result<Bytes, BodyError>> + Send {
    let encoder = GzEncoder::new(Vec::new(), Compression::fast());
    futures::stream::unfold(
        (BodyStream::new(body), Some(encoder)),
        |(mut body, encoder)| async {
            let mut encoder = encoder?;
            loop {
                match body.next().await {
                    Some(Ok(frame)) => {
                        let Ok(data) = frame.into_data() else {
                            continue;
                        };
                        // Writing to a vector cannot fail.
                        let _ = encoder.write_all(&data);
                        if !encoder.get_ref().is_empty() {
                            let out = std::mem::take(encoder.get_mut());
                            return Some((Ok(out.into()), (body, Some(encoder))));
                        }
                    }
                    Some(Err(error)) => return Some((Err(error), (body, None))),
                    None => {
                        let end = encoder.finish().unwrap_or_default();
                        return Some((Ok(end.into()), (body, None)));
                    }
                }
            }
        },
    )
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn large_compressed_responses_are_complete() {
        let text = "all work and no play ".repeat(20_000);
        let budget = Budget::new(1 << 20, std::time::Duration::from_secs(1));
        let response = apply(Response::new(Body::whole(text.clone())), &budget);
        assert_eq!(response.headers()["content-encoding"], "gzip");
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        assert!(bytes.len() < text.len() / 10);
        let mut back = String::new();
        flate2::read::GzDecoder::new(&bytes[..])
            .read_to_string(&mut back)
            .unwrap();
        assert_eq!(back, text);
        let small = apply(Response::new(Body::whole("hello")), &budget);
        assert!(small.headers().is_empty());
    }
}
