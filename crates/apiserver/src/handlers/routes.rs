//! Which methods exist at which paths. Upstream serves built-in kinds by a router: an unknown path
//! is a 404 and an unknown method a 405, both as Status. Elsewhere (custom resources, unknown
//! groups) an unknown path is a plain-text page.

use http::{Method, StatusCode};
use machinery::{Status, text};

use crate::{
    RequestInfo, Resource, discovery,
    respond::{self, Answer},
};
use registry::Table;

/// The 404 page for paths without a router.
pub(crate) fn no_page() -> http::Response<crate::Body> {
    let page = respond::text(StatusCode::NOT_FOUND, "404 page not found\n");
    respond::unsniffed(page)
}

/// The response for a path below a group that is not served.
pub(crate) fn missing(table: &Table, group: &str) -> Answer {
    if table.has_router(group) {
        Err(Status::path_not_found())
    } else {
        Ok(no_page())
    }
}

/// The response if a resource does not have this path or method; `None` if it does.
pub(crate) fn refuse(method: &Method, info: &RequestInfo, resource: &Resource) -> Option<Answer> {
    let subject = info.resource.as_ref()?;
    let is_namespace = resource.kind.server_side().is_namespace;
    let in_namespace = !subject.namespace.is_empty() && !is_namespace;
    // For a list, the name comes from a field selector, not from the path.
    let many = matches!(info.verb, "list" | "watch" | "deletecollection");
    let named = !many && !subject.name.is_empty();
    let whole = resource.namespaced() && !in_namespace;
    let place = ResourcePath {
        resource,
        subresource: &subject.subresource,
        named,
        whole,
    };
    let misplaced = in_namespace && !resource.namespaced() || whole && named;
    if resource.custom {
        return place.refuse_custom(info.verb, &subject.name, misplaced);
    }
    let more = !subject.rest.is_empty() && subject.subresource != "proxy";
    if misplaced || more || !place.exists() {
        return Some(Err(Status::path_not_found()));
    }
    (!place.has(method, info.verb)).then(|| Err(Status::method_not_allowed()))
}

/// Rejects names that no object can have because they would be read as part of the path.
pub(crate) fn check_name(info: &RequestInfo, resource: &Resource) -> Result<(), Status> {
    let (_, name) = info.place();
    if matches!(info.verb, "list" | "watch" | "deletecollection" | "create") {
        return Ok(());
    }
    if name.contains('\0') {
        return Err(Status::not_found(&resource.group, &resource.plural, name));
    }
    let why = match name {
        "." => "may not be '.'",
        ".." => "may not be '..'",
        _ if name.contains('%') => "may not contain '%'",
        _ => return Ok(()),
    };
    let why = format!("Name parameter invalid: {}: {why}", text::quote(name));
    Err(Status::bad_request(why))
}

/// A path of a resource.
struct ResourcePath<'a> {
    resource: &'a Resource,
    subresource: &'a str,
    /// Whether it names one object.
    named: bool,
    /// Whether it covers all namespaces of a namespaced kind.
    whole: bool,
}

impl ResourcePath<'_> {
    /// Verbs served at the path itself, without a subresource.
    fn own_verbs(&self) -> &'static [&'static str] {
        match (self.named, self.whole) {
            (true, _) => &["get", "update", "patch", "delete"],
            (false, true) => &["list", "watch"],
            (false, false) => &["list", "watch", "create", "deletecollection"],
        }
    }

    fn exists(&self) -> bool {
        if !self.subresource.is_empty() {
            return self
                .resource
                .kind
                .subresources()
                .contains(&self.subresource);
        }
        let verbs = self.resource.kind.verbs();
        self.own_verbs().iter().any(|verb| verbs.contains(verb))
    }

    fn serves(&self, verb: &str) -> bool {
        match self.subresource {
            // A proxied backend accepts every verb.
            "proxy" => true,
            "" => self.own_verbs().contains(&verb) && self.resource.kind.verbs().contains(&verb),
            name => discovery::subresource_verbs(self.resource, name).contains(&verb),
        }
    }

    /// The router maps reads to GET only, not HEAD, except for `proxy`.
    fn has(&self, method: &Method, verb: &str) -> bool {
        self.serves(verb) && (*method != Method::HEAD || self.subresource == "proxy")
    }

    /// Custom resources are checked by verb, not by method; unknown subresources are reported by
    /// name.
    fn refuse_custom(&self, verb: &str, name: &str, misplaced: bool) -> Option<Answer> {
        let Resource { group, plural, .. } = self.resource;
        if misplaced || self.whole && !matches!(verb, "list" | "watch") {
            return Some(Ok(no_page()));
        }
        if !self.subresource.is_empty() && !self.exists() {
            return Some(Err(Status::not_found(group, plural, name)));
        }
        if self.subresource.is_empty() {
            if !self.named && matches!(verb, "update" | "patch") {
                return Some(Err(Status::bad_request("name must be provided")));
            }
            let known = self.resource.kind.verbs().contains(&verb);
            return (!known).then(|| Err(Status::method_not_supported(group, plural, verb)));
        }
        (!self.serves(verb)).then(|| Err(Status::method_not_supported(group, plural, verb)))
    }
}
