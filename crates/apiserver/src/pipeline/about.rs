//! Classifies a request by its path and query: its metric labels, and whether it is long-running.

use http::{HeaderMap, header};
use server_metrics::RequestLabels;

use crate::{RequestInfo, Resource, query::Query};

fn verb_label(verb: &'static str) -> &'static str {
    match verb {
        "get" | "head" => "GET",
        "list" => "LIST",
        "watch" => "WATCH",
        "create" | "post" => "POST",
        "update" | "put" => "PUT",
        "patch" => "PATCH",
        "delete" => "DELETE",
        "deletecollection" => "DELETECOLLECTION",
        _ => "other",
    }
}

/// The metric labels of a request. Names that are not served are left out, to bound the number of
/// series.
pub(super) fn request_labels(info: &RequestInfo, resource: Option<&Resource>) -> RequestLabels {
    let mut about = RequestLabels {
        verb: verb_label(info.verb),
        labels: None,
        subresource: "",
        scope: "",
    };
    let (Some(subject), Some(resource)) = (&info.resource, resource) else {
        return about;
    };
    about.scope = match (subject.name.is_empty(), subject.namespace.is_empty()) {
        (false, _) => "resource",
        (true, false) => "namespace",
        (true, true) => "cluster",
    };
    about.labels = Some(resource.labels.clone());
    let mut subresources = resource.kind.subresources().iter();
    let known = subresources.find(|known| **known == subject.subresource);
    about.subresource = known.copied().unwrap_or_default();
    about
}

/// Whether a request is long-running: watches and streams have no deadline.
pub(super) fn is_long_running(info: &RequestInfo, query: &Query) -> bool {
    let Some(resource) = &info.resource else {
        return false;
    };
    match resource.subresource.as_str() {
        "exec" | "attach" | "portforward" | "proxy" => true,
        "log" => query.flag("follow"),
        _ => info.verb == "watch",
    }
}

/// Whether a request opens a stream into a pod by GET, as WebSockets do: on the pod itself, or on a
/// kubelet through its node's proxy.
pub(super) fn opens_stream_by_get(info: &RequestInfo, headers: &HeaderMap) -> bool {
    info.verb == "get"
        && info.resource.as_ref().is_some_and(|subject| {
            match (subject.resource.as_str(), subject.subresource.as_str()) {
                ("pods", "exec" | "attach" | "portforward") => true,
                ("nodes", "proxy") => headers.contains_key(header::UPGRADE),
                _ => false,
            }
        })
}
