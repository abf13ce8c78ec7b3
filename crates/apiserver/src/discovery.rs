//! What this server serves, as documents made from the registry: the legacy ones per group and
//! version, and the aggregated one with its ETag.

use apiextensions::versions::priority;
use http::{HeaderMap, Response, StatusCode, header};
use machinery::json::{Value, json};
use machinery::{protobuf, schema};
use registry::{Table, api_version};
use sha2::{Digest, Sha256};

use crate::{
    Body, Resource,
    media::{self, Encoding},
    respond::{self, Answer},
};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const AGGREGATED_PROTOBUF: &str =
    "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// The document at a discovery path; `None` when nothing is served there.
pub(crate) fn serve(
    table: &Table,
    path: &str,
    headers: &HeaderMap,
    address: &str,
) -> Option<Answer> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    if let (["api" | "apis"], Some(encoding)) = (parts.as_slice(), wants_aggregated(headers)) {
        return Some(Ok(aggregated(table, parts == ["api"], headers, encoding)));
    }
    let (document, schema, routed) = document(table, &parts, address)?;
    let encoding = media::of_document(headers, routed);
    Some(encoding.map(|encoding| respond::document(&document, schema, encoding)))
}

/// A document of the older form, its type, and whether a router is in front of it.
fn document(table: &Table, parts: &[&str], address: &str) -> Option<(Value, &'static str, bool)> {
    Some(match parts {
        ["api"] => {
            let addresses = json!([{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]);
            let document = json!({
                "kind": "APIVersions",
                "versions": ["v1"],
                "serverAddressByClientCIDRs": addresses,
            });
            (document, "meta/v1.APIVersions", true)
        }
        ["apis"] => {
            let groups: Vec<Value> = groups(table)
                .iter()
                .map(|group| group_document(table, group))
                .collect();
            let document = json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups});
            (document, "meta/v1.APIGroupList", false)
        }
        ["api", version] => (
            resources(table, "", version)?,
            "meta/v1.APIResourceList",
            true,
        ),
        ["apis", group] if groups(table).contains(group) => {
            let mut document = json!({"kind": "APIGroup", "apiVersion": "v1"});
            if let (Value::Object(document), Value::Object(group)) =
                (&mut document, group_document(table, group))
            {
                document.extend(group);
            }
            (document, "meta/v1.APIGroup", false)
        }
        ["apis", group, version] if !group.is_empty() => {
            let document = resources(table, group, version)?;
            let routed = table.has_router(group);
            (document, "meta/v1.APIResourceList", routed)
        }
        _ => return None,
    })
}

/// The built-in groups as they are preferred.
const ORDER: &[&str] = &[
    "apiregistration.k8s.io",
    "apps",
    "events.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "networking.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "storage.k8s.io",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "scheduling.k8s.io",
    "coordination.k8s.io",
    "node.k8s.io",
    "discovery.k8s.io",
    "resource.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "metrics.k8s.io",
];

/// Groups in the order of preference, custom ones by name behind the others, without the core group.
fn groups(table: &Table) -> Vec<&str> {
    let mut groups: Vec<&str> = Vec::new();
    for resource in table.all() {
        if !resource.group.is_empty() && !groups.contains(&resource.group.as_str()) {
            groups.push(&resource.group);
        }
    }
    // Clients that know a resource by its bare name take the first group that has it.
    let rank = |group: &str| ORDER.iter().position(|known| *known == group);
    groups.sort_by_key(|group| {
        (
            rank(group).unwrap_or(ORDER.len()),
            rank(group).map_or(*group, |_| ""),
        )
    });
    groups
}

/// Versions of a group, the preferred one first.
fn versions<'a>(table: &'a Table, group: &str) -> Vec<&'a str> {
    let mut versions: Vec<&str> = Vec::new();
    for resource in table
        .all()
        .iter()
        .filter(|resource| resource.group == group)
    {
        if !versions.contains(&resource.version.as_str()) {
            versions.push(&resource.version);
        }
    }
    versions.sort_by_key(|version| std::cmp::Reverse(priority(version)));
    versions
}

fn group_document(table: &Table, group: &str) -> Value {
    let versions: Vec<Value> = versions(table, group)
        .iter()
        .map(|version| json!({"groupVersion": api_version(group, version), "version": version}))
        .collect();
    json!({"name": group, "versions": versions, "preferredVersion": versions.first()})
}

/// Resources of a group version by name, as upstream orders them.
fn members<'a>(table: &'a Table, group: &str, version: &str) -> Vec<&'a Resource> {
    let of = |resource: &&Resource| resource.group == group && resource.version == version;
    let mut members: Vec<&Resource> = table.all().iter().map(|r| &**r).filter(of).collect();
    members.sort_by(|one, other| one.plural.cmp(&other.plural));
    members
}

fn resources(table: &Table, group: &str, version: &str) -> Option<Value> {
    if !table.serves(group, version) {
        return None;
    }
    let mut list = Vec::new();
    for resource in members(table, group, version) {
        list.push(legacy(resource));
        for name in in_order(resource) {
            list.push(legacy_subresource(resource, name));
        }
    }
    let mut document = json!({"kind": "APIResourceList"});
    // The oldest clients took the list of the core group without a version.
    if !group.is_empty() {
        document["apiVersion"] = "v1".into();
    }
    document["groupVersion"] = api_version(group, version).into();
    document["resources"] = list.into();
    Some(document)
}

/// Subresources by name; those of custom resources as they are.
fn in_order(resource: &Resource) -> Vec<&'static str> {
    let mut names = resource.kind.subresources().to_vec();
    if !resource.custom {
        names.sort_unstable();
    }
    names
}

fn legacy(resource: &Resource) -> Value {
    let names = resource.kind.names();
    let mut entry = json!({
        "name": names.plural,
        "singularName": names.singular,
        "namespaced": resource.namespaced(),
        "kind": names.kind,
        "verbs": verbs(resource),
    });
    if !names.short_names.is_empty() {
        entry["shortNames"] = names.short_names.clone().into();
    }
    if !names.categories.is_empty() {
        entry["categories"] = names.categories.clone().into();
    }
    if resource.kind.verbs().contains(&"watch") {
        entry["storageVersionHash"] = storage_hash(resource).into();
    }
    entry
}

/// Changes when the stored form of a resource changes. What is stored in the same form has the same.
fn storage_hash(resource: &Resource) -> String {
    use base64::{Engine, engine::general_purpose::STANDARD};
    let stored = resource.storage.as_deref().unwrap_or(resource);
    let kind = &stored.kind.names().kind;
    let id = format!("{}/{}/{kind}", stored.group, stored.version);
    STANDARD.encode(&Sha256::digest(id.as_bytes())[..8])
}

fn legacy_subresource(resource: &Resource, name: &str) -> Value {
    let (group, version, kind, verbs) = resource.subresource(name);
    let mut entry = json!({
        "name": format!("{}/{name}", resource.plural),
        "singularName": "",
        "namespaced": resource.namespaced(),
    });
    if !group.is_empty() || !version.is_empty() {
        entry["group"] = group.into();
        entry["version"] = version.into();
    }
    entry["kind"] = kind.into();
    entry["verbs"] = verbs.into();
    entry
}

/// How the aggregated document is wanted, if it is.
fn wants_aggregated(headers: &HeaderMap) -> Option<Encoding> {
    let accepts = headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let mut ranges = accepts.flat_map(|text| text.split(','));
    // The client's first choice that can be served decides; older forms of the document are not.
    let first = ranges.find(|range| {
        let range = range.replace(' ', "");
        !range.contains("as=")
            || (range.contains("as=APIGroupDiscoveryList")
                && range.contains("v=v2")
                && !range.contains("v=v2beta"))
    });
    let range = first.filter(|range| range.contains("as="))?.trim();
    match range.split(';').next().unwrap_or_default().trim() {
        "application/json" | "application/*" | "*/*" => Some(Encoding::Json),
        "application/vnd.kubernetes.protobuf" => Some(Encoding::Protobuf),
        _ => None,
    }
}

/// The aggregated document, or 304 when the client has it already.
fn aggregated(
    table: &Table,
    core: bool,
    headers: &HeaderMap,
    encoding: Encoding,
) -> Response<Body> {
    let groups = if core { vec![""] } else { groups(table) };
    let items: Vec<Value> = groups
        .iter()
        .map(|group| aggregated_group(table, group))
        .collect();
    let document = json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    });
    let body = document.to_string();
    let hash: String = Sha256::digest(body.as_bytes())
        .iter()
        .map(|b| format!("{b:02X}"))
        .collect();
    let etag = format!("\"{hash}\"");
    let known = headers
        .get(header::IF_NONE_MATCH)
        .and_then(|value| value.to_str().ok());
    let schema = schema::lookup("apidiscovery/v2.APIGroupDiscoveryList");
    let (media, body) = match (encoding, schema, document.as_object()) {
        (Encoding::Protobuf, Some(schema), Some(document)) => {
            (AGGREGATED_PROTOBUF, protobuf::encode(schema, document))
        }
        _ => (AGGREGATED, body.into_bytes()),
    };
    let mut response = if known.is_some_and(|known| known == etag) {
        respond::bytes(StatusCode::NOT_MODIFIED, media, "")
    } else {
        respond::bytes(StatusCode::OK, media, body)
    };
    // Hex digits between quotes are a valid header value.
    if let Ok(etag) = etag.parse() {
        response.headers_mut().insert(header::ETAG, etag);
    }
    response
        .headers_mut()
        .insert(header::VARY, header::HeaderValue::from_static("Accept"));
    response.headers_mut().insert(
        header::CACHE_CONTROL,
        header::HeaderValue::from_static("public"),
    );
    response
}

fn aggregated_group(table: &Table, group: &str) -> Value {
    let versions: Vec<Value> = versions(table, group)
        .iter()
        .map(|version| {
            let resources: Vec<Value> = members(table, group, version)
                .into_iter()
                .map(aggregated_resource)
                .collect();
            json!({"version": version, "resources": resources, "freshness": "Current"})
        })
        .collect();
    let metadata = if group.is_empty() {
        json!({})
    } else {
        json!({"name": group})
    };
    json!({"metadata": metadata, "versions": versions})
}

fn aggregated_resource(resource: &Resource) -> Value {
    let names = resource.kind.names();
    let kind = |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
    // Only custom resources say whose their kinds are.
    let (own_group, own_version) = match resource.custom {
        true => (resource.group.as_str(), resource.version.as_str()),
        false => ("", ""),
    };
    let mut entry = json!({
        "resource": names.plural,
        "responseKind": kind(own_group, own_version, &names.kind),
        "scope": if resource.namespaced() { "Namespaced" } else { "Cluster" },
        "singularResource": names.singular,
        "verbs": verbs(resource),
    });
    if !names.short_names.is_empty() {
        entry["shortNames"] = names.short_names.clone().into();
    }
    if !names.categories.is_empty() {
        entry["categories"] = names.categories.clone().into();
    }
    let subresources: Vec<Value> = in_order(resource)
        .into_iter()
        .map(|name| {
            let (group, version, own, verbs) = resource.subresource(name);
            let (group, version) = match (group, version) {
                ("", "") => (own_group, own_version),
                given => given,
            };
            json!({"subresource": name, "responseKind": kind(group, version, own), "verbs": verbs})
        })
        .collect();
    if !subresources.is_empty() {
        entry["subresources"] = subresources.into();
    }
    entry
}

/// What can be done with a resource. Nothing is made or changed of a definition that goes, though who
/// tries is told why.
fn verbs(resource: &Resource) -> &'static [&'static str] {
    match &resource.definition {
        Some(definition) if definition.leaving => {
            &["delete", "deletecollection", "get", "list", "watch"]
        }
        _ => resource.kind.verbs(),
    }
}

/// The verbs a subresource answers to.
pub(crate) fn subresource_verbs(resource: &Resource, name: &str) -> &'static [&'static str] {
    resource.subresource(name).3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stable_versions_are_preferred() {
        let mut versions = ["v1alpha1", "v2", "v1beta2", "v10", "v1", "v1beta10", "foo"];
        versions.sort_by_key(|version| std::cmp::Reverse(priority(version)));
        assert_eq!(
            versions,
            ["v10", "v2", "v1", "v1beta10", "v1beta2", "v1alpha1", "foo"]
        );
    }

    #[test]
    fn the_aggregated_form_is_sent_to_those_who_prefer_it() {
        let ask = |accept: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, accept.parse().unwrap());
            wants_aggregated(&headers).is_some()
        };
        assert!(ask(
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json"
        ));
        assert!(!ask(
            "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json"
        ));
        assert!(!ask("application/json"));
    }
}
