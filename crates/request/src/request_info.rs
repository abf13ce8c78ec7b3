//! Request info, parsed once from method, path and query.

use http::Method;
use machinery::fields;

use crate::query::Query;

/// The subject of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; the
    /// method in lower case for non-resource paths.
    pub verb: &'static str,
    /// The decoded path.
    pub path: String,
    /// The resource, if it is a resource path.
    pub resource: Option<ResourceRequest>,
}

/// The parts of a resource's path; empty where a part is missing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResourceRequest {
    pub group: String,
    pub version: String,
    pub namespace: String,
    pub resource: String,
    pub name: String,
    pub subresource: String,
    /// The path after the subresource, for proxies.
    pub rest: String,
    /// The number of path segments before that.
    pub depth: usize,
}

impl RequestInfo {
    /// Parses a request.
    pub fn new(method: &Method, path: &str, query: &Query) -> Self {
        // Decoded before splitting, so escaped separators count as separators, too.
        let path = crate::query::decode(path);
        let found = resource(&path);
        let mut info = Self {
            verb: method_verb(method),
            path,
            resource: None,
        };
        let Some((mut request, watch)) = found else {
            return info;
        };
        info.verb = match *method {
            Method::GET | Method::HEAD if watch => "watch",
            Method::GET | Method::HEAD if !request.name.is_empty() => "get",
            Method::GET | Method::HEAD if query.flag("watch") => "watch",
            Method::GET | Method::HEAD => "list",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE if request.name.is_empty() => "deletecollection",
            Method::DELETE => "delete",
            _ => "",
        };
        if matches!(info.verb, "list" | "watch" | "deletecollection") && request.name.is_empty() {
            request.name = named_by(query.get("fieldSelector").unwrap_or_default());
        }
        info.resource = Some(request);
        info
    }

    /// The namespace and name; empty where they are missing.
    pub fn place(&self) -> (&str, &str) {
        let subject = self.resource.as_ref();
        subject.map_or(("", ""), |subject| (&subject.namespace, &subject.name))
    }
}

/// The name that a field selector requires, so that rules by name apply to lists too.
fn named_by(selector: &str) -> String {
    // Parsed as the handlers do: the name they use must be the authorized one.
    let selector = fields::Selector::parse(selector).unwrap_or_default();
    let name = selector.exact("metadata.name").unwrap_or_default();
    name.to_owned()
}

fn method_verb(method: &Method) -> &'static str {
    match *method {
        Method::GET => "get",
        Method::HEAD => "head",
        Method::POST => "post",
        Method::PUT => "put",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        Method::OPTIONS => "options",
        Method::TRACE => "trace",
        Method::CONNECT => "connect",
        _ => "",
    }
}

/// The segments of `/api/v1/…` and `/apis/group/version/…`; whether it is a `watch` path.
fn resource(path: &str) -> Option<(ResourceRequest, bool)> {
    let parts = path.strip_prefix('/')?.trim_end_matches('/').split('/');
    let depth = parts.clone().count();
    let mut parts = parts;
    let group = match parts.next()? {
        "api" => "",
        "apis" => parts.next()?,
        _ => return None,
    };
    let version = parts.next()?;
    let (mut request, watch) = below(group.to_owned(), version.to_owned(), parts)?;
    request.depth = depth - request.depth;
    Some((request, watch))
}

/// The segments after the version.
fn below<'a>(
    group: String,
    version: String,
    parts: impl Iterator<Item = &'a str>,
) -> Option<(ResourceRequest, bool)> {
    let mut parts = parts.peekable();
    let mut first = parts.next()?;
    let watch = first == "watch" && parts.peek().is_some();
    if watch {
        first = parts.next()?;
    }
    let mut request = ResourceRequest {
        group,
        version,
        ..ResourceRequest::default()
    };
    if first == "namespaces"
        && let Some(namespace) = parts.next()
    {
        request.namespace = namespace.to_owned();
        let own = |part: &str| part == "status" || part == "finalize";
        match parts.peek() {
            Some(part) if !own(part) => first = parts.next()?,
            _ => request.name = namespace.to_owned(),
        }
    }
    request.resource = first.to_owned();
    if request.name.is_empty() {
        request.name = parts.next().unwrap_or_default().to_owned();
    }
    request.subresource = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        // Counted from the end, until the whole path is known.
        request.depth += 1;
        if !request.rest.is_empty() {
            request.rest.push('/');
        }
        request.rest.push_str(part);
    }
    Some((request, watch))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(method: Method, uri: &str) -> (String, String) {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        let info = RequestInfo::new(&method, path, &Query::parse(query));
        let resource = info.resource.map(|r| {
            [
                r.group,
                r.version,
                r.namespace,
                r.resource,
                r.name,
                r.subresource,
                r.rest,
            ]
            .join("|")
        });
        (info.verb.to_owned(), resource.unwrap_or_default())
    }

    /// Method, URI, verb and parts.
    type Case = (Method, &'static str, &'static str, &'static str);

    fn assert_read<const N: usize>(cases: [Case; N]) {
        for (method, uri, verb, parts) in cases {
            let expected = (verb.to_owned(), parts.to_owned());
            assert_eq!(read(method, uri), expected, "{uri}");
        }
    }

    #[test]
    fn paths_become_verbs_and_parts() {
        assert_read([
            (Method::GET, "/api/v1/pods", "list", "|v1||pods|||"),
            (Method::GET, "/api/v1/pods?watch=1", "watch", "|v1||pods|||"),
            (Method::GET, "/api/v1/watch/pods", "watch", "|v1||pods|||"),
            (
                Method::GET,
                "/api/v1/namespaces/a/pods/b",
                "get",
                "|v1|a|pods|b||",
            ),
            (
                Method::GET,
                "/api/v1/namespaces/a/pods/b/log",
                "get",
                "|v1|a|pods|b|log|",
            ),
            (
                Method::POST,
                "/apis/apps/v1/namespaces/a/deployments",
                "create",
                "apps|v1|a|deployments|||",
            ),
            (
                Method::GET,
                "/api/v1/namespaces",
                "list",
                "|v1||namespaces|||",
            ),
            (
                Method::GET,
                "/api/v1/namespaces/a",
                "get",
                "|v1|a|namespaces|a||",
            ),
            (
                Method::PUT,
                "/api/v1/namespaces/a/finalize",
                "update",
                "|v1|a|namespaces|a|finalize|",
            ),
            (
                Method::DELETE,
                "/api/v1/namespaces/a/pods",
                "deletecollection",
                "|v1|a|pods|||",
            ),
            (
                Method::DELETE,
                "/api/v1/nodes/n",
                "delete",
                "|v1||nodes|n||",
            ),
            (
                Method::GET,
                "/api/v1/namespaces/a/services/b:80/proxy/x/y",
                "get",
                "|v1|a|services|b:80|proxy|x/y",
            ),
        ]);
    }

    #[test]
    fn selectors_escapes_and_unusual_paths_are_read_as_upstream() {
        assert_read([
            (
                Method::GET,
                "/api/v1/pods?fieldSelector=metadata.name%3Dx",
                "list",
                "|v1||pods|x||",
            ),
            (
                Method::GET,
                "/api/v1/pods?fieldSelector=metadata.namespace!%3Da%5C,metadata.name%3Dx",
                "list",
                "|v1||pods|||",
            ),
            (
                Method::GET,
                "/api/v1/watch/namespaces/a/pods/x",
                "watch",
                "|v1|a|pods|x||",
            ),
            (
                Method::GET,
                "/api/v1/namespaces/a%2Fb/pods/c",
                "get",
                "|v1|a|b|pods|c|",
            ),
            (Method::GET, "/%61pi/v1/p%6Fds", "list", "|v1||pods|||"),
            (Method::GET, "/api/v1//pods", "get", "|v1|||pods||"),
            (
                Method::GET,
                "/api/v1/namespaces//pods",
                "list",
                "|v1||pods|||",
            ),
            (Method::GET, "//api/v1/pods", "get", ""),
            (Method::GET, "/apis/apps/v1", "get", ""),
            (Method::GET, "/healthz", "get", ""),
        ]);
    }
}
