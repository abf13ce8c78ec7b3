//! The resources that the API server serves, each in its preferred version, including custom ones.

use std::collections::HashSet;

use kube::api::ApiResource;
use serde::Deserialize;

/// A resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resource {
    /// Group, version, kind and plural.
    pub api: ApiResource,
    /// Whether it is namespaced.
    pub namespaced: bool,
    /// The supported verbs.
    pub verbs: Vec<String>,
}

impl Resource {
    /// Whether it supports all of these verbs.
    pub(crate) fn can(&self, verbs: &[&str]) -> bool {
        verbs
            .iter()
            .all(|verb| self.verbs.iter().any(|known| known == verb))
    }

    /// Group and plural, which identify a resource in any version.
    pub(crate) fn identity(&self) -> (String, String) {
        (self.api.group.clone(), self.api.plural.clone())
    }
}

/// Accepts aggregated discovery.
const AGGREGATED: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList, application/json";

/// An `APIGroupDiscoveryList`.
#[derive(Deserialize)]
struct Groups {
    #[serde(default)]
    items: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    #[serde(default)]
    metadata: GroupMeta,
    #[serde(default)]
    versions: Vec<Version>,
}

#[derive(Default, Deserialize)]
struct GroupMeta {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct Version {
    version: String,
    #[serde(default)]
    resources: Vec<Served>,
    /// `Stale` if the server of an APIService did not answer.
    #[serde(default)]
    freshness: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Served {
    resource: String,
    #[serde(default)]
    response_kind: ResponseKind,
    #[serde(default)]
    scope: String,
    #[serde(default)]
    verbs: Vec<String>,
}

#[derive(Default, Deserialize)]
struct ResponseKind {
    #[serde(default)]
    kind: String,
}

/// All resources, and the group versions whose servers did not answer.
pub(crate) async fn discover(
    client: &kube::Client,
) -> Result<(Vec<Resource>, Vec<String>), kube::Error> {
    let mut groups = fetch(client, "/api").await?;
    groups.extend(fetch(client, "/apis").await?);
    Ok(read(groups))
}

async fn fetch(client: &kube::Client, path: &str) -> Result<Vec<Group>, kube::Error> {
    let request = http::Request::get(path)
        .header(http::header::ACCEPT, AGGREGATED)
        .body(Vec::new())
        .map_err(kube::Error::HttpError)?;
    let groups: Groups = client.request(request).await?;
    Ok(groups.items)
}

/// Each resource in the first version that has it; versions come in the order of preference.
fn read(groups: Vec<Group>) -> (Vec<Resource>, Vec<String>) {
    let (mut resources, mut failed) = (Vec::new(), Vec::new());
    for Group { metadata, versions } in groups {
        let group = metadata.name;
        let mut seen = HashSet::new();
        for version in versions {
            let api_version = match group.as_str() {
                "" => version.version.clone(),
                group => format!("{group}/{}", version.version),
            };
            if version.freshness == "Stale" {
                failed.push(api_version);
                continue;
            }
            for served in version.resources {
                if !seen.insert(served.resource.clone()) {
                    continue;
                }
                let api = ApiResource {
                    group: group.clone(),
                    version: version.version.clone(),
                    api_version: api_version.clone(),
                    kind: served.response_kind.kind,
                    plural: served.resource,
                };
                resources.push(Resource {
                    api,
                    namespaced: served.scope == "Namespaced",
                    verbs: served.verbs,
                });
            }
        }
    }
    (resources, failed)
}

/// Whether one of the failed versions belongs to a group.
pub(crate) fn has_failed(failed: &[String], group: &str) -> bool {
    let mut failed = failed.iter().filter_map(|version| version.split_once('/'));
    failed.any(|(of, _)| of == group)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_resource_is_taken_from_the_first_version_that_has_it() {
        let resource = |name: &str| json!({"resource": name, "responseKind": {"kind": "K"}, "scope": "Namespaced", "verbs": ["list"]});
        let groups = json!({"items": [
            {"metadata": {}, "versions": [{"version": "v1", "resources": [resource("pods")]}]},
            {"metadata": {"name": "a.b"}, "versions": [
                {"version": "v2", "resources": [resource("new"), resource("both")], "freshness": "Current"},
                {"version": "v1", "resources": [resource("both"), resource("old")], "freshness": "Current"}]},
            {"metadata": {"name": "c.d"}, "versions": [
                {"version": "v1", "resources": [resource("lost")], "freshness": "Stale"}]},
        ]});
        let groups: Groups = serde_json::from_value(groups).unwrap();
        let (resources, failed) = read(groups.items);
        let found: Vec<_> = resources
            .iter()
            .map(|one| (one.api.api_version.as_str(), one.api.plural.as_str()))
            .collect();
        let expected = [
            ("v1", "pods"),
            ("a.b/v2", "new"),
            ("a.b/v2", "both"),
            ("a.b/v1", "old"),
        ];
        assert_eq!(found, expected);
        assert_eq!(failed, ["c.d/v1"]);
        assert!(has_failed(&failed, "c.d") && !has_failed(&failed, "a.b"));
    }
}
