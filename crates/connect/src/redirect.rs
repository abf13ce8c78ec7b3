//! Proxied redirects and links: the client follows them through this server; this server itself
//! never follows them.

use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri, header, request::Parts};
use http_body_util::BodyExt;
use machinery::Status;
use request::{Answer, Body};

use super::{Location, authority, html, locate};

/// Longer pages are not rewritten; one without Content-Length becomes a 503.
const MAX_PAGE: usize = 8 << 20;

/// A browser at `…/proxy` would resolve relative links against the wrong directory: it is
/// redirected to `…/proxy/`.
pub(super) fn to_root(parts: &Parts, depth: usize) -> Option<Response<Body>> {
    let path = parts.uri.path();
    let upgrades = parts.headers.contains_key(header::UPGRADE);
    let reads = matches!(parts.method, Method::GET | Method::HEAD);
    if !locate::tail(path, depth).is_empty() || upgrades || !reads {
        return None;
    }
    let target = match parts.uri.query() {
        Some(query) => format!("{path}/?{query}"),
        None => format!("{path}/"),
    };
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    let target = HeaderValue::from_str(&target).ok()?;
    response.headers_mut().insert(header::LOCATION, target);
    Some(response)
}

/// The root of a proxied target, for clients and for this server.
pub(super) struct Base {
    /// `/api/v1/namespaces/default/services/web/proxy`.
    prefix: String,
    /// `10.42.0.7:8080`.
    target: String,
}

impl Base {
    /// `path` is that of the request.
    pub(super) fn new(path: &str, location: &Location) -> Self {
        let tail = location.path_and_query.split('?').next();
        let prefix = path.strip_suffix(tail.unwrap_or_default()).unwrap_or(path);
        Self {
            prefix: prefix.to_owned(),
            target: authority(location),
        }
    }

    /// Rewrites redirects and, in pages, links to the target so that they go through the proxy.
    pub(super) async fn lead_back(&self, answer: Response<Body>) -> Answer {
        let (mut parts, body) = answer.into_parts();
        self.rewrite(&mut parts.headers);
        let length = parts.headers.get(header::CONTENT_LENGTH);
        let length: Option<usize> = length.and_then(|length| length.to_str().ok()?.parse().ok());
        if !is_page(&parts.headers) || length.is_some_and(|length| length > MAX_PAGE) {
            return Ok(Response::from_parts(parts, body));
        }
        let page = http_body_util::Limited::new(body, MAX_PAGE).collect().await;
        let page = page.map_err(|error| {
            Status::service_unavailable(format!("error trying to reach service: {error}"))
        })?;
        let page = page.to_bytes();
        let page = match std::str::from_utf8(&page) {
            Ok(text) => html::rewrite(text, |link| self.through(link)).into(),
            Err(_) => page,
        };
        parts.headers.remove(header::CONTENT_LENGTH);
        Ok(Response::from_parts(parts, Body::whole(page)))
    }

    fn rewrite(&self, headers: &mut HeaderMap) {
        let Some(rewritten) = headers
            .get(header::LOCATION)
            .and_then(|location| self.through(location.to_str().ok()?))
        else {
            return;
        };
        if let Ok(rewritten) = HeaderValue::from_str(&rewritten) {
            headers.insert(header::LOCATION, rewritten);
        }
    }

    fn through(&self, location: &str) -> Option<String> {
        let uri: Uri = location.parse().ok()?;
        let here = match uri.authority() {
            Some(authority) => *authority == self.target,
            None => location.starts_with('/'),
        };
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let led = path.starts_with(&self.prefix);
        (here && !led).then(|| format!("{}{path}", self.prefix))
    }
}

/// Whether it is rewritable: uncompressed HTML.
fn is_page(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let media = text(header::CONTENT_TYPE).and_then(|media| media.split(';').next());
    media.is_some_and(|media| media.trim().eq_ignore_ascii_case("text/html"))
        && text(header::CONTENT_ENCODING).is_none_or(|encoding| encoding == "identity")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_to_the_target_are_rewritten_to_the_proxy() {
        let base = Base {
            prefix: "/api/v1/namespaces/d/pods/p/proxy".to_owned(),
            target: "10.42.0.7:8080".to_owned(),
        };
        let through = |location: &str| base.through(location);
        let own = Some("/api/v1/namespaces/d/pods/p/proxy/x?y=1".to_owned());
        assert_eq!(through("/x?y=1"), own);
        assert_eq!(through("http://10.42.0.7:8080/x?y=1"), own);
        assert_eq!(through("http://example.com/x"), None);
        assert_eq!(through("next"), None);
    }
}
