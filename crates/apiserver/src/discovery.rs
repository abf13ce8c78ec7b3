//! Discovery documents made from the registry: the legacy ones per group and version, and the
//! aggregated one with its ETag.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use aggregator::{ApiServiceSnapshot, ApiServices, Backend, Priorities, local_priorities};
use apiextensions::versions::priority;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use machinery::json::{Value, json};
use machinery::{Object, protobuf, schema};
use parking_lot::Mutex;
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

/// The inputs of discovery documents.
pub(crate) struct DiscoveryInputs<'a> {
    /// What this server serves itself.
    pub(crate) table: &'a Table,
    /// The APIServices, which also name aggregated servers.
    pub(crate) services: &'a ApiServices,
}

/// A cache of the aggregated documents.
#[derive(Default)]
pub(crate) struct DiscoveryCache {
    /// Guards the documents; index 1 is the core group.
    known: Mutex<[Option<Arc<Aggregated>>; 2]>,
}

/// An aggregated document, and the state it was made from.
struct Aggregated {
    generation: u64,
    moment: ApiServiceSnapshot,
    etag: HeaderValue,
    json: Bytes,
    /// Made at the first request for it.
    protobuf: OnceLock<Bytes>,
}

impl Aggregated {
    fn protobuf(&self) -> Bytes {
        let encode = || {
            let schema = schema::lookup("apidiscovery/v2.APIGroupDiscoveryList")?;
            // The bytes were serialized from an object, so this parses.
            let document: Object = machinery::json::from_slice(&self.json).ok()?;
            Some(protobuf::encode(schema, &document).into())
        };
        let made = self.protobuf.get_or_init(|| encode().unwrap_or_default());
        made.clone()
    }
}

impl DiscoveryCache {
    fn get(&self, table: &Table, moment: &ApiServiceSnapshot, core: bool) -> Arc<Aggregated> {
        let known = self.known.lock()[usize::from(core)].clone();
        let is_current = |known: &Arc<Aggregated>| {
            known.generation == table.generation && known.moment == *moment
        };
        known.filter(is_current).unwrap_or_else(|| {
            let view = DiscoveryInputs {
                table,
                services: &moment.services,
            };
            let made = Arc::new(aggregate(&view, core, moment));
            self.known.lock()[usize::from(core)] = Some(made.clone());
            made
        })
    }
}

/// The document at a discovery path; `None` when nothing is served there.
pub(crate) fn serve(
    made: &DiscoveryCache,
    table: &Table,
    moment: &ApiServiceSnapshot,
    path: &str,
    headers: &HeaderMap,
    address: &str,
) -> Option<Answer> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    if let (["api" | "apis"], Some(encoding)) = (parts.as_slice(), wants_aggregated(headers)) {
        let document = made.get(table, moment, parts == ["api"]);
        return Some(Ok(aggregated(&document, headers, encoding)));
    }
    let view = &DiscoveryInputs {
        table,
        services: &moment.services,
    };
    let (document, schema, routed) = document(view, &parts, address)?;
    let encoding = media::of_document(headers, routed);
    Some(encoding.map(|encoding| respond::document(&document, schema, encoding)))
}

/// A legacy document, its type, and whether upstream serves it by a router (GET only).
fn document(
    view: &DiscoveryInputs<'_>,
    parts: &[&str],
    address: &str,
) -> Option<(Value, &'static str, bool)> {
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
            let groups = groups(view);
            let groups = groups.iter().filter(|group| !group.name.is_empty());
            let groups: Vec<Value> = groups.map(group_document).collect();
            let document = json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups});
            (document, "meta/v1.APIGroupList", false)
        }
        ["api", version] => (
            resources(view.table, "", version)?,
            "meta/v1.APIResourceList",
            true,
        ),
        ["apis", name] if !name.is_empty() => {
            let groups = groups(view);
            let group = groups.iter().find(|group| group.name == *name)?;
            let mut document = json!({"kind": "APIGroup", "apiVersion": "v1"});
            if let (Value::Object(document), Value::Object(group)) =
                (&mut document, group_document(group))
            {
                document.extend(group);
            }
            (document, "meta/v1.APIGroup", false)
        }
        ["apis", group, version] if !group.is_empty() => {
            let document = resources(view.table, group, version)?;
            let routed = view.table.has_router(group);
            (document, "meta/v1.APIResourceList", routed)
        }
        _ => return None,
    })
}

/// A group, its versions in the order of preference.
struct Group<'a> {
    name: &'a str,
    versions: Vec<Version<'a>>,
}

struct Version<'a> {
    name: &'a str,
    priorities: Priorities,
    server: Server<'a>,
}

/// The server of a version.
enum Server<'a> {
    /// This server, with these resources by name.
    Local(Vec<&'a Resource>),
    Remote(&'a Backend),
}

/// The group of APIServices comes first; no APIService can change that.
const FIRST: (&str, i64) = ("apiregistration.k8s.io", 20_001);

/// Groups in the order of preference, including the core group. Clients resolve a bare resource
/// name to the first group that has it.
fn groups<'a>(view: &DiscoveryInputs<'a>) -> Vec<Group<'a>> {
    let mut by_name: BTreeMap<&str, BTreeMap<&str, Version<'a>>> = BTreeMap::new();
    for resource in view.table.discoverable() {
        let (group, version) = (resource.group.as_str(), resource.version.as_str());
        let versions = by_name.entry(group).or_default();
        let version = versions.entry(version).or_insert_with(|| {
            let known = view.services.priorities(group, version);
            Version {
                name: version,
                priorities: known.unwrap_or_else(|| local_priorities(group, version)),
                server: Server::Local(Vec::new()),
            }
        });
        if let Server::Local(members) = &mut version.server {
            members.push(resource);
        }
    }
    for backend in view.services.remote() {
        let version = Version {
            name: &backend.version,
            priorities: backend.priorities,
            server: Server::Remote(backend),
        };
        let versions = by_name.entry(backend.group.as_str()).or_default();
        versions.insert(&backend.version, version);
    }
    let groups = by_name.into_iter().map(|(name, versions)| {
        let mut versions: Vec<Version<'_>> = versions.into_values().collect();
        versions.sort_by_cached_key(|one| Reverse((one.priorities.version, priority(one.name))));
        for version in &mut versions {
            if let Server::Local(members) = &mut version.server {
                members.sort_by(|one, other| one.plural.cmp(&other.plural));
            }
        }
        Group { name, versions }
    });
    let mut groups: Vec<Group<'_>> = groups.collect();
    let rank = |group: &Group<'_>| match group.name {
        name if name == FIRST.0 => FIRST.1,
        _ => {
            let priorities = group.versions.iter().map(|one| one.priorities.group);
            priorities.max().unwrap_or_default()
        }
    };
    // The sort is stable: groups of equal priority stay sorted by name.
    groups.sort_by_key(|group| Reverse(rank(group)));
    groups
}

fn group_document(group: &Group<'_>) -> Value {
    let version = |version: &Version<'_>| {
        let name = version.name;
        json!({"groupVersion": api_version(group.name, name), "version": name})
    };
    let versions: Vec<Value> = group.versions.iter().map(version).collect();
    json!({"name": group.name, "versions": versions, "preferredVersion": versions.first()})
}

/// Resources of a group version by name, as upstream orders them.
fn members<'a>(table: &'a Table, group: &str, version: &str) -> Vec<&'a Resource> {
    let of = |resource: &&Resource| resource.group == group && resource.version == version;
    let mut members: Vec<&Resource> = table.discoverable().map(|r| &**r).filter(of).collect();
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
    // Upstream leaves apiVersion out for the core group, for old clients.
    if !group.is_empty() {
        document["apiVersion"] = "v1".into();
    }
    document["groupVersion"] = api_version(group, version).into();
    document["resources"] = list.into();
    Some(document)
}

/// Subresources sorted by name; those of custom resources in declared order.
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

/// The hash of a resource's storage version. Resources stored in the same form have the same hash.
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

/// The encoding of the aggregated document if the client asks for it.
fn wants_aggregated(headers: &HeaderMap) -> Option<Encoding> {
    let accepts = headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let mut ranges = accepts.flat_map(|text| text.split(','));
    // The client's first acceptable media type decides; older versions of the document are not
    // served.
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

/// Makes an aggregated document in both encodings.
fn aggregate(view: &DiscoveryInputs<'_>, core: bool, moment: &ApiServiceSnapshot) -> Aggregated {
    let groups = groups(view);
    let groups = groups.iter().filter(|one| one.name.is_empty() == core);
    let items: Vec<Value> = groups.map(aggregated_group).collect();
    let document = json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    });
    let json = document.to_string();
    let hash: String = Sha256::digest(json.as_bytes())
        .iter()
        .map(|b| format!("{b:02X}"))
        .collect();
    // Quoted hex digits are a valid header value.
    let etag = HeaderValue::try_from(format!("\"{hash}\""));
    Aggregated {
        generation: view.table.generation,
        moment: moment.clone(),
        etag: etag.unwrap_or(HeaderValue::from_static("\"\"")),
        json: json.into(),
        protobuf: OnceLock::new(),
    }
}

/// The aggregated document, or 304 when the client has it already.
fn aggregated(document: &Aggregated, headers: &HeaderMap, encoding: Encoding) -> Response<Body> {
    let (media, body) = match encoding {
        Encoding::Protobuf => (AGGREGATED_PROTOBUF, document.protobuf()),
        _ => (AGGREGATED, document.json.clone()),
    };
    let is_known = headers.get(header::IF_NONE_MATCH) == Some(&document.etag);
    let mut response = match is_known {
        true => respond::bytes(StatusCode::NOT_MODIFIED, media, ""),
        false => respond::bytes(StatusCode::OK, media, body),
    };
    let headers = response.headers_mut();
    headers.insert(header::ETAG, document.etag.clone());
    headers.insert(header::VARY, HeaderValue::from_static("Accept"));
    let public = HeaderValue::from_static("public");
    headers.insert(header::CACHE_CONTROL, public);
    response
}

fn aggregated_group(group: &Group<'_>) -> Value {
    let version = |version: &Version<'_>| match &version.server {
        Server::Remote(backend) => Value::Object(backend.discovery()),
        Server::Local(members) => {
            let members = members.iter().map(|one| aggregated_resource(one));
            let resources: Vec<Value> = members.collect();
            json!({"version": version.name, "resources": resources, "freshness": "Current"})
        }
    };
    let versions: Vec<Value> = group.versions.iter().map(version).collect();
    let metadata = match group.name {
        "" => json!({}),
        name => json!({"name": name}),
    };
    json!({"metadata": metadata, "versions": versions})
}

fn aggregated_resource(resource: &Resource) -> Value {
    let names = resource.kind.names();
    let kind = |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
    // Only custom resources state the group and version of their kinds.
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

/// The verbs of a resource. A terminating definition has no create, update or patch, though
/// requests for them get an explanation.
fn verbs(resource: &Resource) -> &'static [&'static str] {
    match &resource.definition {
        Some(definition) if definition.leaving => {
            &["delete", "deletecollection", "get", "list", "watch"]
        }
        _ => resource.kind.verbs(),
    }
}

/// The verbs of a subresource.
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
    fn aggregated_discovery_is_sent_to_clients_that_prefer_it() {
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
