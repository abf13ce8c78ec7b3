//! The log of requests with `-v=6` and higher, in klog's format: 6 prints one line per response; 7 the
//! request with its headers and the response status; 8 also response headers and truncated bodies; 9
//! complete bodies.

use std::time::Duration;

use http::{HeaderMap, Method, StatusCode};

/// The logged fields of a request.
pub(crate) struct Logged<'a> {
    pub verbosity: u8,
    pub method: &'a Method,
    pub url: &'a str,
}

impl Logged<'_> {
    pub(crate) fn print_request(&self, headers: &HeaderMap) {
        print(self.request(headers));
    }

    /// `answer` is `None` if the server could not be reached.
    pub(crate) fn print_response(&self, answer: Option<(StatusCode, &HeaderMap)>, took: Duration) {
        print(self.response(answer, took));
    }

    fn request(&self, headers: &HeaderMap) -> Option<String> {
        let Self { method, url, .. } = self;
        (self.verbosity >= 7).then(|| {
            let headers = lines(headers);
            format!("\"Request\" verb=\"{method}\" url=\"{url}\" headers={headers}")
        })
    }

    fn response(&self, answer: Option<(StatusCode, &HeaderMap)>, took: Duration) -> Option<String> {
        if self.verbosity < 6 {
            return None;
        }
        let Self { method, url, .. } = self;
        let status = answer.map(|(status, _)| status.to_string());
        let status = status.unwrap_or_default();
        let mut line = "\"Response\"".to_owned();
        if self.verbosity == 6 || self.verbosity >= 9 {
            line += &format!(" verb=\"{method}\" url=\"{url}\"");
        }
        line += &format!(" status=\"{status}\"");
        if let Some((_, headers)) = answer.filter(|_| self.verbosity >= 8) {
            line += &format!(" headers={}", lines(headers));
        }
        Some(line + &format!(" milliseconds={}", took.as_millis()))
    }
}

/// Prints the body of a request or response, with `-v=8` and higher.
pub(crate) fn print_body(verbosity: u8, what: &str, body: &[u8]) {
    if verbosity < 8 || body.is_empty() {
        return;
    }
    let most = if verbosity >= 9 { usize::MAX } else { 1024 };
    let text = String::from_utf8_lossy(body);
    let shown: String = text.chars().take(most).collect();
    let rest = match text.chars().count().saturating_sub(most) {
        0 => String::new(),
        rest => format!(" [truncated {rest} chars]"),
    };
    let shown = machinery::text::quote(&shown);
    print(Some(format!("\"{what}\" body={shown}{rest}")));
}

/// The klog header of a line.
pub(crate) fn prefix() -> String {
    let now = jiff::Zoned::now();
    format!(
        "I{} {:>7} request",
        now.strftime("%m%d %H:%M:%S.%6f"),
        std::process::id()
    )
}

fn print(line: Option<String>) {
    if let Some(line) = line {
        eprintln!("{}] {line}", prefix());
    }
}

/// The headers in order, one per line. Credentials are masked.
fn lines(headers: &HeaderMap) -> String {
    let mut lines: Vec<String> = headers
        .iter()
        .map(|(name, value)| match name == http::header::AUTHORIZATION {
            true => format!("\t{}: <masked>\n", capitalized(name.as_str())),
            false => format!(
                "\t{}: {}\n",
                capitalized(name.as_str()),
                String::from_utf8_lossy(value.as_bytes())
            ),
        })
        .collect();
    lines.sort();
    format!("<\n{} >", lines.concat())
}

/// The name of a header as written in HTTP/1.1, e.g. `Content-Type`.
fn capitalized(name: &str) -> String {
    let parts = name.split('-').map(|part| {
        let (first, rest) = part.split_at(part.chars().next().map_or(0, char::len_utf8));
        first.to_uppercase() + rest
    });
    parts.collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, header};

    use super::*;

    fn logged(verbosity: u8) -> Logged<'static> {
        Logged {
            verbosity,
            method: &Method::GET,
            url: "https://a/api",
        }
    }

    fn headers() -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        headers.insert(header::AUTHORIZATION, HeaderValue::from_static("Bearer x"));
        headers
    }

    #[test]
    fn each_verbosity_shows_what_kubectl_shows_at_it() {
        let headers = headers();
        let answer = Some((StatusCode::UNAUTHORIZED, &headers));
        let took = Duration::from_millis(3);
        let request = "\"Request\" verb=\"GET\" url=\"https://a/api\" headers=<\n\tAuthorization: <masked>\n\tContent-Type: text/plain\n >";
        let response = |verbosity| logged(verbosity).response(answer, took);
        assert_eq!(logged(5).request(&headers), None);
        assert_eq!(response(5), None);
        assert_eq!(logged(6).request(&headers), None);
        let line = "\"Response\" verb=\"GET\" url=\"https://a/api\" status=\"401 Unauthorized\" milliseconds=3";
        assert_eq!(response(6).as_deref(), Some(line));
        assert_eq!(logged(7).request(&headers).as_deref(), Some(request));
        let line = "\"Response\" status=\"401 Unauthorized\" milliseconds=3";
        assert_eq!(response(7).as_deref(), Some(line));
        assert!(response(8).is_some_and(|line| line.contains("headers=<")));
    }

    #[test]
    fn a_server_that_is_not_reached_has_a_line_without_a_status() {
        let line = "\"Response\" verb=\"GET\" url=\"https://a/api\" status=\"\" milliseconds=0";
        let logged = logged(6).response(None, Duration::ZERO);
        assert_eq!(logged.as_deref(), Some(line));
    }
}
