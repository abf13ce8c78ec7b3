//! What the server serves, and which resource a word such as `po`, `deploy` or
//! `deployments.v1.apps` means.

use anyhow::{Result, bail};
use serde_json::Value;

use crate::api::Api;

const AGGREGATED: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";

/// A resource that the server serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    pub group: String,
    pub version: String,
    pub kind: String,
    pub plural: String,
    pub singular: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub namespaced: bool,
    pub verbs: Vec<String>,
    pub subresources: Vec<String>,
}

impl Resource {
    /// `apps/v1` or `v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// `deployment.apps`, as kubectl names things it did something to.
    pub fn qualified_singular(&self) -> String {
        let singular = if self.singular.is_empty() {
            self.kind.to_lowercase()
        } else {
            self.singular.clone()
        };
        if self.group.is_empty() {
            singular
        } else {
            format!("{singular}.{}", self.group)
        }
    }

    /// `deployments.apps`.
    pub fn qualified_plural(&self) -> String {
        if self.group.is_empty() {
            self.plural.clone()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// The collection's path; `None` asks for all namespaces.
    pub fn collection(&self, namespace: Option<&str>) -> String {
        let root = if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        };
        match namespace.filter(|_| self.namespaced) {
            Some(namespace) => format!("{root}/namespaces/{namespace}/{}", self.plural),
            None => format!("{root}/{}", self.plural),
        }
    }

    /// An object's path.
    pub fn object(&self, namespace: &str, name: &str) -> String {
        format!("{}/{}", self.collection(Some(namespace)), encode(name))
    }
}

/// Percent-encodes what may not stand in a path segment or a query value.
pub fn encode(text: &str) -> String {
    let keep = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:@,".contains(&byte);
    let push = |mut out: String, byte: u8| {
        if keep(byte) {
            out.push(byte as char);
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
        out
    };
    text.bytes().fold(String::new(), push)
}

/// All resources, in the server's order of preference.
#[derive(Debug, Clone, Default)]
pub struct Discovery {
    pub resources: Vec<Resource>,
}

impl Discovery {
    /// Asks the server: two requests.
    pub async fn load(api: &Api) -> Result<Self> {
        let mut resources = Vec::new();
        for path in ["/api", "/apis"] {
            let document = api.get_as(path, AGGREGATED).await?;
            if document["kind"] != "APIGroupDiscoveryList" {
                bail!("the server at {path} does not speak aggregated discovery");
            }
            for group in items(&document["items"]) {
                resources.extend(of_group(group));
            }
        }
        Ok(Self { resources })
    }

    /// The resource a word means. Shorter forms prefer earlier groups, as kubectl does.
    pub fn resolve(&self, word: &str) -> Result<&Resource> {
        let (name, rest) = word.split_once('.').unwrap_or((word, ""));
        let name = name.to_lowercase();
        let is_named = |resource: &&Resource| {
            resource.plural == name
                || resource.singular == name
                || resource.kind.to_lowercase() == name
                || resource.short_names.contains(&name)
        };
        let in_group = |resource: &&Resource| {
            rest.is_empty()
                || rest == resource.group
                || rest.trim_end_matches('.') == resource.version
                || rest == format!("{}.{}", resource.version, resource.group)
        };
        let found = self.resources.iter().filter(is_named).find(in_group);
        match found {
            Some(resource) => Ok(resource),
            None => bail!("the server doesn't have a resource type \"{word}\""),
        }
    }

    /// Whether the word is a category such as `all`, and what is in it.
    pub fn category(&self, word: &str) -> Vec<&Resource> {
        self.resources
            .iter()
            .filter(|r| r.categories.iter().any(|c| c == word))
            .collect()
    }

    /// The resource of a manifest.
    pub fn of_kind(&self, api_version: &str, kind: &str) -> Result<&Resource> {
        let found = self
            .resources
            .iter()
            .find(|r| r.kind == kind && r.api_version() == api_version);
        match found {
            Some(resource) => Ok(resource),
            None => bail!(
                "resource mapping not found: no matches for kind \"{kind}\" in version \"{api_version}\"\n\
                 ensure CRDs are installed first"
            ),
        }
    }
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn of_group(group: &Value) -> Vec<Resource> {
    let name = text(&group["metadata"]["name"]);
    let mut resources = Vec::new();
    for version in items(&group["versions"]) {
        for resource in items(&version["resources"]) {
            resources.push(of_resource(&name, &text(&version["version"]), resource));
        }
    }
    resources
}

fn of_resource(group: &str, version: &str, resource: &Value) -> Resource {
    let texts = |value: &Value| items(value).map(text).collect();
    Resource {
        group: group.to_owned(),
        version: version.to_owned(),
        kind: text(&resource["responseKind"]["kind"]),
        plural: text(&resource["resource"]),
        singular: text(&resource["singularResource"]),
        short_names: texts(&resource["shortNames"]),
        categories: texts(&resource["categories"]),
        namespaced: resource["scope"] == "Namespaced",
        verbs: texts(&resource["verbs"]),
        subresources: items(&resource["subresources"])
            .map(|s| text(&s["subresource"]))
            .collect(),
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn discovery() -> Discovery {
        let group = |name: &str, plural: &str, kind: &str, short: &str| {
            of_group(
                &json!({"metadata": {"name": name}, "versions": [{"version": "v1", "resources": [{
                "resource": plural, "responseKind": {"kind": kind}, "scope": "Namespaced",
                "singularResource": kind.to_lowercase(), "shortNames": [short], "verbs": ["get"],
                "categories": ["all"]}]}]}),
            )
        };
        let mut resources = group("", "pods", "Pod", "po");
        resources.extend(group("apps", "deployments", "Deployment", "deploy"));
        resources.extend(group("example.com", "deployments", "Deployment", "dp"));
        Discovery { resources }
    }

    #[test]
    fn words_mean_resources_by_any_of_their_names() {
        let discovery = discovery();
        for word in ["po", "pod", "pods", "Pod", "pods.v1."] {
            assert_eq!(discovery.resolve(word).unwrap().plural, "pods", "{word}");
        }
        for (word, group) in [
            ("deploy", "apps"),
            ("deployments", "apps"),
            ("deployments.example.com", "example.com"),
            ("deployments.v1.apps", "apps"),
        ] {
            assert_eq!(discovery.resolve(word).unwrap().group, group, "{word}");
        }
        assert!(discovery.resolve("nothing").is_err());
    }

    #[test]
    fn paths_follow_group_version_and_scope() {
        let discovery = discovery();
        let deployment = discovery.resolve("deploy").unwrap();
        assert_eq!(
            deployment.object("a", "b"),
            "/apis/apps/v1/namespaces/a/deployments/b"
        );
        assert_eq!(deployment.collection(None), "/apis/apps/v1/deployments");
        assert_eq!(deployment.qualified_singular(), "deployment.apps");
    }
}
