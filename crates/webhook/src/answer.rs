//! Interpretation of a response's status code.

use std::time::Duration;

use bytes::Bytes;
use http::{header, response::Parts};
use machinery::Value;

use crate::{Answer, Failure, quote};

/// Maximum bytes quoted from an error.
const QUOTED: usize = 2048;

/// The Retry-After of a 429 or a server error.
pub(crate) fn retry_after(parts: &Parts) -> Option<Duration> {
    let code = parts.status.as_u16();
    let asks = code == 429 || code >= 500;
    let seconds = parts.headers.get(header::RETRY_AFTER).filter(|_| asks)?;
    let seconds: i64 = seconds.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

/// The response, or the error of its code. A Status in the body takes precedence over the code.
pub(crate) fn read_answer(parts: &Parts, body: Bytes) -> Result<Answer, Failure> {
    let code = parts.status.as_u16();
    let content_type = parts.headers.get(header::CONTENT_TYPE);
    let content_type = content_type.and_then(|value| value.to_str().ok());
    if (200..=206).contains(&code) {
        return Ok(Answer {
            code,
            content_type: content_type.unwrap_or("application/json").to_owned(),
            body,
        });
    }
    let message = match status_message(&body) {
        Some(message) => message,
        None => {
            let is_text = content_type.is_none_or(|media| media.starts_with("text/"));
            let quoted = String::from_utf8_lossy(&body[..body.len().min(QUOTED)]).into_owned();
            generic(code, if is_text { quoted.trim() } else { "unknown" })
        }
    };
    Err(Failure {
        message,
        code,
        timed_out: false,
    })
}

fn status_message(body: &[u8]) -> Option<String> {
    let status: Value = machinery::json::from_slice(body).ok()?;
    let is_failure = status["kind"] == "Status" && status["status"] != "Success";
    let message = status["message"].as_str().filter(|_| is_failure)?;
    Some(message.to_owned())
}

/// The message of a code.
fn generic(code: u16, said: &str) -> String {
    match code {
        409 => "the server reported a conflict",
        404 => "the server could not find the requested resource",
        400 => "the server rejected our request for an unknown reason",
        401 => "the server has asked for the client to provide credentials",
        406 if matches!(said, "" | "unknown") => {
            "the server was unable to respond with a content type that the client supports"
        }
        403 | 406 | 415 => said,
        405 => "the server does not allow this method on the requested resource",
        422 => "the server rejected our request due to an error in our request",
        503 => "the server is currently unable to handle the request",
        504 => {
            "the server was unable to return a response in the time allotted, but may still be processing the request"
        }
        429 => "the server has received too many requests and has asked us to try again later",
        500.. => {
            let said = quote(said);
            return format!("an error on the server ({said}) has prevented the request from succeeding");
        }
        _ => {
            return format!(
                "the server responded with the status code {code} but did not return more information"
            );
        }
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(code: u16, media: &str, body: &'static str) -> String {
        let (parts, ()) = http::Response::builder()
            .status(code)
            .header(header::CONTENT_TYPE, media)
            .body(())
            .unwrap()
            .into_parts();
        match read_answer(&parts, Bytes::from_static(body.as_bytes())) {
            Ok(answer) => format!("{} {}", answer.code, answer.body.len()),
            Err(failure) => failure.message,
        }
    }

    #[test]
    fn failed_calls_have_a_retry_delay() {
        for (code, header, expected) in [
            (429, "2", Some(2)),
            (503, "0", Some(0)),
            (500, "-1", Some(0)),
            (500, "soon", None),
            (200, "1", None),
            (404, "1", None),
        ] {
            let (parts, ()) = http::Response::builder()
                .status(code)
                .header(header::RETRY_AFTER, header)
                .body(())
                .unwrap()
                .into_parts();
            let expected = expected.map(Duration::from_secs);
            assert_eq!(retry_after(&parts), expected, "{code} {header}");
        }
    }

    #[test]
    fn messages_come_from_the_status_or_the_http_code() {
        for (code, media, body, expected) in [
            (200, "application/json", "{}", "200 2"),
            (
                404,
                "text/plain",
                "gone",
                "the server could not find the requested resource",
            ),
            (
                500,
                "text/plain; charset=utf-8",
                "boom\n",
                "an error on the server (\"boom\") has prevented the request from succeeding",
            ),
            (
                502,
                "application/json",
                "{",
                "an error on the server (\"unknown\") has prevented the request from succeeding",
            ),
            (
                302,
                "text/html",
                "",
                "the server responded with the status code 302 but did not return more information",
            ),
            (
                403,
                "application/json",
                r#"{"kind":"Status","status":"Failure","message":"not you"}"#,
                "not you",
            ),
        ] {
            assert_eq!(said(code, media, body), expected);
        }
    }
}
