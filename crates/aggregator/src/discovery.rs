//! Discovery of an aggregated API server, as an entry of the aggregated document: fetched as such,
//! or made from the legacy resource list.

use std::{collections::HashMap, time::Duration};

use http::{HeaderValue, StatusCode, header};
use kinds::tree;
use machinery::{
    Object, Value,
    decode::{self, Format},
    json::json,
    schema,
};

use crate::{Link, link};

const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum bytes of a version's entry: every client of discovery gets it.
const LARGEST_ENTRY: usize = 4 << 20;
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";

/// The last document of a backend, for conditional requests.
#[derive(Debug, Default, Clone)]
pub(crate) struct LastDocument {
    etag: Option<HeaderValue>,
    /// The entry of the version, with its resources.
    pub(crate) entry: Option<Object>,
}

/// Fetches the entry of a version.
pub(crate) async fn fetch(
    link: &Link,
    group: &str,
    version: &str,
    seen: &LastDocument,
) -> Result<LastDocument, String> {
    let mut headers = link::accepting(AGGREGATED);
    if let Some(etag) = seen.etag.as_ref().filter(|_| seen.entry.is_some()) {
        headers.insert(header::IF_NONE_MATCH, etag.clone());
    }
    let answer = link.get_from_any("/apis", headers, TIMEOUT).await?;
    let media = answer.headers.get(header::CONTENT_TYPE);
    let media = media.and_then(|media| media.to_str().ok());
    match answer.code {
        StatusCode::NOT_MODIFIED => Ok(seen.clone()),
        StatusCode::SERVICE_UNAVAILABLE => {
            let code = answer.code.as_u16();
            Err(format!("returned non-success response code: {code}"))
        }
        StatusCode::OK if media.is_some_and(is_aggregated) => Ok(LastDocument {
            etag: answer.headers.get(header::ETAG).cloned(),
            entry: Some({
                let (group, version) = (group.to_owned(), version.to_owned());
                blocking(move || entry(&answer.body, &group, &version)).await?
            }),
        }),
        _ => {
            let path = crate::path(group, version);
            let headers = link::accepting("application/json");
            let answer = link.get_from_any(&path, headers, TIMEOUT).await?;
            if answer.code != StatusCode::OK {
                let code = answer.code.as_u16();
                return Err(format!(
                    "failed to download legacy discovery for {path}: {code}"
                ));
            }
            Ok(LastDocument {
                etag: None,
                entry: Some({
                    let version = version.to_owned();
                    blocking(move || from_list(&answer.body, &version)).await?
                }),
            })
        }
    }
}

/// Reads a document outside of the runtime's threads: it may be large.
async fn blocking(
    read: impl FnOnce() -> Result<Object, String> + Send + 'static,
) -> Result<Object, String> {
    let read = tokio::task::spawn_blocking(move || bounded(read()?)).await;
    read.map_err(|error| error.to_string())?
}

fn bounded(entry: Object) -> Result<Object, String> {
    let entry = Value::Object(entry);
    match entry {
        entry if entry.to_string().len() > LARGEST_ENTRY => Err(format!(
            "the discovery document is larger than {LARGEST_ENTRY} bytes"
        )),
        Value::Object(entry) => Ok(entry),
        _ => Ok(Object::new()),
    }
}

fn is_aggregated(media: &str) -> bool {
    let parts: Vec<&str> = media.split(';').map(str::trim).collect();
    let has = |wanted: &str| parts[1..].contains(&wanted);
    parts[0] == "application/json"
        && has("g=apidiscovery.k8s.io")
        && has("as=APIGroupDiscoveryList")
        && (has("v=v2") || has("v=v2beta1"))
}

fn read(bytes: &[u8], kind: &str) -> Result<Object, String> {
    let decoded = decode::object(Format::Json, bytes, schema::lookup(kind))?;
    Ok(decoded.object)
}

/// The entry of a version in an aggregated document; an empty one if it is missing.
fn entry(document: &[u8], group: &str, version: &str) -> Result<Object, String> {
    let document = read(document, "apidiscovery/v2.APIGroupDiscoveryList")?;
    let groups = tree::list(tree::get(&document, "items")).iter();
    let groups = groups.filter(|one| tree::text(&one["metadata"]["name"]) == group);
    let mut versions = groups.flat_map(|one| tree::list(&one["versions"]));
    let found = versions.find(|one| tree::text(&one["version"]) == version);
    let mut entry = found
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_else(|| empty(version));
    // Clients expect kinds to be set.
    for resource in tree::each(&mut entry, "resources") {
        tree::default_to(resource, "responseKind", no_kind());
        for subresource in tree::each(resource, "subresources") {
            tree::default_to(subresource, "responseKind", no_kind());
        }
    }
    Ok(entry)
}

/// An entry without resources.
pub(crate) fn empty(version: &str) -> Object {
    let mut entry = Object::new();
    entry.insert("version", version.into());
    entry
}

fn no_kind() -> Value {
    json!({"group": "", "version": "", "kind": ""})
}

/// The same entry from an `APIResourceList`.
fn from_list(document: &[u8], version: &str) -> Result<Object, String> {
    let document = read(document, "meta/v1.APIResourceList")?;
    let listed = tree::list(tree::get(&document, "resources"));
    let mut resources: Vec<Value> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for one in listed.iter().filter(|one| !name(one).contains('/')) {
        let mut resource = json!({
            "resource": name(one), "responseKind": kind(one), "scope": scope(one),
            "singularResource": tree::text(&one["singularName"]), "verbs": verbs(one),
        });
        for field in ["shortNames", "categories"] {
            if !tree::list(&one[field]).is_empty() {
                resource[field] = one[field].clone();
            }
        }
        places.entry(name(one)).or_insert(resources.len());
        resources.push(resource);
    }
    for one in listed {
        let Some((parent, subresource)) = name(one).split_once('/') else {
            continue;
        };
        let at = *places.entry(parent).or_insert_with(|| {
            resources.push(json!({"resource": parent, "scope": scope(one),
                "responseKind": no_kind(), "singularResource": "", "verbs": []}));
            resources.len() - 1
        });
        if resources[at]["scope"] != scope(one) {
            return Err(format!("{parent} and {subresource} differ in their scope"));
        }
        let entry =
            json!({"subresource": subresource, "responseKind": kind(one), "verbs": verbs(one)});
        match resources[at]["subresources"].as_array_mut() {
            Some(known) => known.push(entry),
            None => resources[at]["subresources"] = json!([entry]),
        }
    }
    let mut entry = empty(version);
    entry.insert("resources", resources.into());
    Ok(entry)
}

fn name(resource: &Value) -> &str {
    tree::text(&resource["name"])
}

fn scope(resource: &Value) -> &'static str {
    match tree::truth(&resource["namespaced"]) {
        true => "Namespaced",
        false => "Cluster",
    }
}

fn verbs(resource: &Value) -> Value {
    tree::list(&resource["verbs"]).to_vec().into()
}

fn kind(resource: &Value) -> Value {
    let text = |field: &str| tree::text(&resource[field]);
    json!({"group": text("group"), "version": text("version"), "kind": text("kind")})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_version_that_is_registered_is_taken_of_a_document() {
        let document = json!({"kind": "APIGroupDiscoveryList", "items": [
            {"metadata": {"name": "apps"}, "versions": [{"version": "v1", "resources": [
                {"resource": "stolen", "scope": "Cluster", "verbs": ["get"]}]}]},
            {"metadata": {"name": "a.b"}, "versions": [{"version": "v1", "freshness": "Current", "resources": [
                {"resource": "things", "scope": "Namespaced", "singularResource": "thing", "verbs": ["get"],
                 "made": "up", "subresources": [{"subresource": "status", "verbs": ["get"]}]}]}]},
        ]});
        let found = entry(document.to_string().as_bytes(), "a.b", "v1").unwrap();
        let resource = &found["resources"][0];
        assert_eq!(resource["resource"], "things");
        assert_eq!(resource["responseKind"], no_kind());
        assert_eq!(resource["subresources"][0]["responseKind"], no_kind());
        assert!(resource.get("made").is_none());
        let other = entry(document.to_string().as_bytes(), "a.b", "v2").unwrap();
        assert_eq!(other, empty("v2"));
        assert!(entry(b"[]", "a.b", "v1").is_err());
        assert!(entry(br#"{"items": {"a": 1}}"#, "a.b", "v1").is_err());
    }

    #[test]
    fn an_older_list_becomes_an_entry() {
        let list = json!({"kind": "APIResourceList", "groupVersion": "a.b/v1", "resources": [
            {"name": "things", "singularName": "thing", "namespaced": true, "kind": "Thing", "verbs": ["get", "list"],
             "shortNames": ["th"]},
            {"name": "things/status", "singularName": "", "namespaced": true, "kind": "Thing", "verbs": ["get"]},
            {"name": "orphans/scale", "namespaced": false, "kind": "Scale", "group": "autoscaling",
             "version": "v1", "verbs": ["get"]},
        ]});
        let found = from_list(list.to_string().as_bytes(), "v1").unwrap();
        let expected = json!([
            {"resource": "things", "responseKind": {"group": "", "version": "", "kind": "Thing"},
             "scope": "Namespaced", "singularResource": "thing", "verbs": ["get", "list"], "shortNames": ["th"],
             "subresources": [{"subresource": "status",
                "responseKind": {"group": "", "version": "", "kind": "Thing"}, "verbs": ["get"]}]},
            {"resource": "orphans", "scope": "Cluster", "responseKind": no_kind(), "singularResource": "",
             "verbs": [], "subresources": [{"subresource": "scale",
                "responseKind": {"group": "autoscaling", "version": "v1", "kind": "Scale"}, "verbs": ["get"]}]},
        ]);
        assert_eq!(found["resources"], expected);
    }

    /// In quadratic time this would not end before the runner ends it.
    #[test]
    fn a_list_of_many_orphaned_subresources_is_read_in_linear_time() {
        let orphan = |n: usize| json!({"name": format!("parent{n}/part"), "verbs": []});
        let orphans: Vec<Value> = (0..100_000).map(orphan).collect();
        let list = json!({"kind": "APIResourceList", "resources": orphans}).to_string();
        let found = from_list(list.as_bytes(), "v1").unwrap();
        assert_eq!(tree::list(&found["resources"]).len(), 100_000);
        let why = bounded(found).unwrap_err();
        assert!(why.ends_with("larger than 4194304 bytes"), "{why}");
    }

    #[test]
    fn older_and_newer_forms_of_the_document_are_known_by_their_type() {
        for (media, expected) in [
            (
                "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
                true,
            ),
            (
                "application/json; g=apidiscovery.k8s.io; v=v2beta1; as=APIGroupDiscoveryList",
                true,
            ),
            ("application/json", false),
            (
                "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
                false,
            ),
        ] {
            assert_eq!(is_aggregated(media), expected, "{media}");
        }
    }
}
