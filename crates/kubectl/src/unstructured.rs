//! Error responses that are no `Status`: those of proxies, and of servers that are not Kubernetes.

use http::StatusCode;
use machinery::Status;

/// How much of such a response is printed.
const MAX_TEXT: usize = 2048;

/// A response and the request it belongs to.
pub(crate) struct Unstructured<'a> {
    pub(crate) code: StatusCode,
    /// None without the header.
    pub(crate) content_type: Option<&'a str>,
    pub(crate) body: &'a [u8],
    /// The method and the path; None if they are not part of the message.
    pub(crate) request: Option<(&'a str, &'a str)>,
}

impl Unstructured<'_> {
    /// Reason and message by the code, as client-go makes them.
    pub(crate) fn status(&self) -> Status {
        let text = self.text();
        let code = self.code.as_u16();
        let method = self.request.map_or("", |(method, _)| method);
        let (reason, message) = match code {
            409 if method == "POST" => ("AlreadyExists", "the server reported a conflict"),
            409 => ("Conflict", "the server reported a conflict"),
            404 => (
                "NotFound",
                "the server could not find the requested resource",
            ),
            400 => (
                "BadRequest",
                "the server rejected our request for an unknown reason",
            ),
            401 => (
                "Unauthorized",
                "the server has asked for the client to provide credentials",
            ),
            403 => ("Forbidden", text.as_str()),
            406 if matches!(text.as_str(), "" | UNKNOWN) => (
                "NotAcceptable",
                "the server was unable to respond with a content type that the client supports",
            ),
            406 => ("NotAcceptable", text.as_str()),
            415 => ("UnsupportedMediaType", text.as_str()),
            405 => (
                "MethodNotAllowed",
                "the server does not allow this method on the requested resource",
            ),
            422 => (
                "Invalid",
                "the server rejected our request due to an error in our request",
            ),
            503 => (
                "ServiceUnavailable",
                "the server is currently unable to handle the request",
            ),
            504 => (
                "Timeout",
                "the server was unable to return a response in the time allotted, but may still be processing the request",
            ),
            429 => (
                "TooManyRequests",
                "the server has received too many requests and has asked us to try again later",
            ),
            _ => ("", ""),
        };
        let (reason, message) = match (reason, code) {
            ("", 500..) => (
                "InternalError",
                format!(
                    "an error on the server ({text:?}) has prevented the request from succeeding"
                ),
            ),
            ("", _) => (
                "Unknown",
                format!(
                    "the server responded with the status code {code} but did not return more information"
                ),
            ),
            (reason, _) => (reason, message.to_owned()),
        };
        let message = match self.request.and_then(|(method, path)| about(method, path)) {
            Some(about) => format!("{message} ({about})"),
            None => message,
        };
        Status::failure(code, reason, message)
    }

    /// What the server says, if it is text.
    fn text(&self) -> String {
        let is_text = self
            .content_type
            .is_none_or(|kind| kind.trim_start().starts_with("text/"));
        if !is_text {
            return UNKNOWN.to_owned();
        }
        let body = &self.body[..self.body.len().min(MAX_TEXT)];
        String::from_utf8_lossy(body).trim().to_owned()
    }
}

/// Stands for a text that is none.
const UNKNOWN: &str = "unknown";

/// `get deployments.apps web`, from the path of a request for a resource.
fn about(method: &str, path: &str) -> Option<String> {
    let path = path.split('?').next().unwrap_or_default();
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (group, rest) = match parts.as_slice() {
        ["api", _, rest @ ..] => ("", rest),
        ["apis", group, _, rest @ ..] => (*group, rest),
        _ => return None,
    };
    let (resource, name) = match rest {
        ["namespaces", _, resource, name, ..] => (resource, Some(name)),
        ["namespaces", _, resource] => (resource, None),
        [resource, name, ..] => (resource, Some(name)),
        [resource] => (resource, None),
        [] => return None,
    };
    let group = match group {
        "" => String::new(),
        group => format!(".{group}"),
    };
    let name = name.map(|name| format!(" {name}")).unwrap_or_default();
    Some(format!("{} {resource}{group}{name}", method.to_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(
        code: u16,
        content_type: Option<&str>,
        body: &str,
        request: Option<(&str, &str)>,
    ) -> String {
        let code = StatusCode::from_u16(code).unwrap();
        let body = body.as_bytes();
        let status = Unstructured {
            code,
            content_type,
            body,
            request,
        };
        let status = status.status();
        format!("{}: {}", status.reason, status.message)
    }

    #[test]
    fn responses_of_proxies_are_reported_by_their_code() {
        let pod = Some(("GET", "/api/v1/namespaces/a/pods/b?x=y"));
        let html = Some("text/html; charset=utf-8");
        for (code, kind, body, request, expected) in [
            (
                502,
                html,
                "<h1>bad</h1>\n",
                pod,
                "InternalError: an error on the server (\"<h1>bad</h1>\") has prevented the request from succeeding (get pods b)",
            ),
            (
                500,
                Some("application/json"),
                "{}",
                pod,
                "InternalError: an error on the server (\"unknown\") has prevented the request from succeeding (get pods b)",
            ),
            (
                503,
                None,
                "busy",
                Some(("GET", "/apis/apps/v1/deployments")),
                "ServiceUnavailable: the server is currently unable to handle the request (get deployments.apps)",
            ),
            (403, None, "go away", None, "Forbidden: go away"),
            (
                409,
                None,
                "",
                Some(("POST", "/apis/a.b/v1/namespaces/n/cs")),
                "AlreadyExists: the server reported a conflict (post cs.a.b)",
            ),
            (
                302,
                None,
                "",
                Some(("GET", "/version")),
                "Unknown: the server responded with the status code 302 but did not return more information",
            ),
            (
                404,
                None,
                "",
                None,
                "NotFound: the server could not find the requested resource",
            ),
            (
                406,
                None,
                "",
                None,
                "NotAcceptable: the server was unable to respond with a content type that the client supports",
            ),
        ] {
            assert_eq!(said(code, kind, body, request), expected);
        }
    }

    #[test]
    fn only_the_beginning_of_a_page_is_printed() {
        let page = "x".repeat(1 << 20);
        assert!(said(500, None, &page, None).len() < MAX_TEXT + 200);
    }
}
