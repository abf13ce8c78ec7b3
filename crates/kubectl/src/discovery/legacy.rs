//! Discovery without aggregation: a list of versions, and a request for the resources of each.

use anyhow::Result;
use serde_json::{Value, json};

use super::{items, text};
use crate::api::Api;

/// The aggregated document for the groups at `/api` or `/apis`, which are given.
pub(super) async fn document(api: &Api, path: &str, groups: &Value) -> Result<Value> {
    let mut found = Vec::new();
    for (group, versions) in versions(groups) {
        let mut described = Vec::new();
        for version in versions {
            let path = match group.is_empty() {
                true => format!("{path}/{version}"),
                false => format!("{path}/{group}/{version}"),
            };
            // The server of one group may be away.
            described.push(match api.get(&path).await {
                Ok(resources) => of_version(&group, &version, &resources),
                Err(_) => json!({"version": version, "freshness": "Stale"}),
            });
        }
        found.push(json!({"metadata": {"name": group}, "versions": described}));
    }
    Ok(json!({"kind": "APIGroupDiscoveryList", "items": found}))
}

/// Groups with their versions, the preferred one first.
fn versions(groups: &Value) -> Vec<(String, Vec<String>)> {
    if groups["kind"] == "APIVersions" {
        let versions = items(&groups["versions"]).map(text).collect();
        return vec![(String::new(), versions)];
    }
    let of_group = |group: &Value| {
        let preferred = text(&group["preferredVersion"]["version"]);
        let mut versions: Vec<String> = items(&group["versions"])
            .map(|version| text(&version["version"]))
            .collect();
        versions.sort_by_key(|version| *version != preferred);
        (text(&group["name"]), versions)
    };
    items(&groups["groups"]).map(of_group).collect()
}

/// A version with its resources, whose subresources are resources of their own here.
fn of_version(group: &str, version: &str, list: &Value) -> Value {
    let names = |resource: &Value| {
        let name = text(&resource["name"]);
        let (name, sub) = name.split_once('/').unwrap_or((&name, ""));
        (name.to_owned(), sub.to_owned())
    };
    let all = || items(&list["resources"]);
    let described = |resource: &Value| {
        let (name, _) = names(resource);
        let subresources = all()
            .map(names)
            .filter(|(of, sub)| *of == name && !sub.is_empty());
        let subresources: Vec<Value> = subresources
            .map(|(_, sub)| json!({"subresource": sub}))
            .collect();
        json!({
            "resource": name,
            "responseKind": {"group": group, "version": version, "kind": resource["kind"]},
            "scope": if resource["namespaced"] == true { "Namespaced" } else { "Cluster" },
            "singularResource": resource["singularName"],
            "shortNames": resource["shortNames"],
            "categories": resource["categories"],
            "verbs": resource["verbs"],
            "subresources": subresources})
    };
    let resources: Vec<Value> = all()
        .filter(|resource| names(resource).1.is_empty())
        .map(described)
        .collect();
    json!({"version": version, "freshness": "Current", "resources": resources})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_resources_become_an_aggregated_document() {
        let list = json!({"resources": [
            {"name": "pods", "kind": "Pod", "singularName": "pod", "namespaced": true, "shortNames": ["po"], "verbs": ["get", "list"]},
            {"name": "pods/log", "kind": "Pod", "namespaced": true, "verbs": ["get"]},
            {"name": "nodes", "kind": "Node", "namespaced": false, "verbs": ["get"]}]});
        let group = json!({"metadata": {"name": ""}, "versions": [of_version("", "v1", &list)]});
        let resources = super::super::of_group(&group);
        let shown: Vec<(&str, bool, usize)> = resources
            .iter()
            .map(|one| (one.plural.as_str(), one.namespaced, one.subresources.len()))
            .collect();
        assert_eq!(shown, [("pods", true, 1), ("nodes", false, 0)]);
    }

    #[test]
    fn the_preferred_version_is_the_first() {
        let groups = json!({"kind": "APIGroupList", "groups": [{"name": "a",
            "versions": [{"version": "v1beta1"}, {"version": "v1"}], "preferredVersion": {"version": "v1"}}]});
        let expected = vec![("a".to_owned(), vec!["v1".to_owned(), "v1beta1".to_owned()])];
        assert_eq!(versions(&groups), expected);
        let core = json!({"kind": "APIVersions", "versions": ["v1"]});
        assert_eq!(versions(&core), [(String::new(), vec!["v1".to_owned()])]);
    }
}
