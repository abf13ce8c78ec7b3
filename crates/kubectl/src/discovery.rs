//! Discovery, and resolution of words such as `po`, `deploy` or `deployments.v1.apps` to resources.

mod legacy;

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Result, bail};
use serde_json::Value;

use crate::api::Api;

const AGGREGATED: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";

/// A served resource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Resource {
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
    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// `deployment.apps`, as in kubectl's output.
    pub(crate) fn qualified_singular(&self) -> String {
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
    pub(crate) fn qualified_plural(&self) -> String {
        if self.group.is_empty() {
            self.plural.clone()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// The collection's path; `None` is all namespaces.
    pub(crate) fn collection(&self, namespace: Option<&str>) -> String {
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
    pub(crate) fn object(&self, namespace: &str, name: &str) -> String {
        format!("{}/{}", self.collection(Some(namespace)), encode(name))
    }
}

/// Percent-encodes characters that are invalid in a path segment or a query value.
pub(crate) fn encode(text: &str) -> String {
    stdx::percent::encode(text, ":@,")
}

/// How long cached discovery is valid.
const TTL: Duration = Duration::from_secs(6 * 3600);

/// All resources, in the server's order of preference. Read from the cache while it is fresh, and
/// requested again if something is not found.
pub(crate) struct Discovery {
    api: Api,
    /// The cache directory.
    directory: Option<PathBuf>,
    /// The known resources, and whether they came from the server.
    known: Mutex<Option<(Arc<Vec<Resource>>, bool)>>,
    /// Versions that the last response marked as stale.
    stale: Mutex<Vec<String>>,
}

impl Discovery {
    /// Sends no request yet.
    pub(crate) fn new(api: Api, directory: Option<PathBuf>) -> Self {
        Self {
            api,
            directory,
            known: Mutex::default(),
            stale: Mutex::default(),
        }
    }

    /// Fails if the last response was incomplete.
    pub(crate) fn check_complete(&self) -> Result<()> {
        let stale = self.stale.lock().unwrap_or_else(PoisonError::into_inner);
        if stale.is_empty() {
            return Ok(());
        }
        let why = |version: &String| format!("{version}: stale GroupVersion discovery: {version}");
        let why: Vec<String> = stale.iter().map(why).collect();
        bail!(
            "unable to retrieve the complete list of server APIs: {}",
            why.join(", ")
        )
    }

    fn known(&self) -> MutexGuard<'_, Option<(Arc<Vec<Resource>>, bool)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every served resource.
    pub(crate) async fn resources(&self) -> Result<Arc<Vec<Resource>>> {
        if let Some((known, _)) = &*self.known() {
            return Ok(known.clone());
        }
        if let Some(resources) = self.cached() {
            let resources = Arc::new(resources);
            *self.known() = Some((resources.clone(), false));
            return Ok(resources);
        }
        self.refresh().await
    }

    /// Requests discovery: two requests.
    pub(crate) async fn refresh(&self) -> Result<Arc<Vec<Resource>>> {
        let mut documents = Vec::new();
        for path in ["/api", "/apis"] {
            let document = self.api.get_as(path, AGGREGATED).await?;
            documents.push(match document["kind"] == "APIGroupDiscoveryList" {
                true => document,
                // Servers before 1.26 describe each version by itself.
                false => legacy::document(&self.api, path, &document).await?,
            });
        }
        self.keep(&documents);
        let mut stale = self.stale.lock().unwrap_or_else(PoisonError::into_inner);
        *stale = stale_versions(&documents);
        drop(stale);
        let resources = Arc::new(of_documents(&documents));
        *self.known() = Some((resources.clone(), true));
        Ok(resources)
    }

    fn cached(&self) -> Option<Vec<Resource>> {
        let path = self.directory.as_ref()?.join("aggregated.json");
        let age = std::fs::metadata(&path)
            .ok()?
            .modified()
            .ok()?
            .elapsed()
            .ok()?;
        if age > TTL {
            return None;
        }
        let documents: Vec<Value> = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
        Some(of_documents(&documents))
    }

    /// Caches the response; write failures are ignored.
    fn keep(&self, documents: &[Value]) {
        let Some(directory) = &self.directory else {
            return;
        };
        let Ok(text) = serde_json::to_vec(documents) else {
            return;
        };
        let temporary = directory.join(format!("aggregated.{}.tmp", std::process::id()));
        let kept = std::fs::create_dir_all(directory)
            .and_then(|()| std::fs::write(&temporary, text))
            .and_then(|()| std::fs::rename(&temporary, directory.join("aggregated.json")));
        if kept.is_err() {
            let _ = std::fs::remove_file(temporary);
        }
    }

    /// Looks up something, a second time with fresh discovery if it is not found.
    async fn find<T>(&self, look: impl Fn(&[Resource]) -> Option<T>) -> Result<Option<T>> {
        let resources = self.resources().await?;
        if let Some(found) = look(&resources) {
            return Ok(Some(found));
        }
        let is_fresh = self.known().as_ref().is_some_and(|(_, is_fresh)| *is_fresh);
        if is_fresh {
            return Ok(None);
        }
        Ok(look(&self.refresh().await?))
    }

    /// The resource of a word.
    pub(crate) async fn resolve(&self, word: &str) -> Result<Resource> {
        match self
            .find(|resources| resolve(resources, word).cloned())
            .await?
        {
            Some(resource) => {
                self.warn_of_short_name(&resource, word).await?;
                Ok(resource)
            }
            None => {
                let name = word.split('.').next().unwrap_or(word);
                bail!("the server doesn't have a resource type \"{name}\"")
            }
        }
    }

    /// Warns once of other resources with the same short name.
    async fn warn_of_short_name(&self, found: &Resource, word: &str) -> Result<()> {
        static HAS_WARNED: AtomicBool = AtomicBool::new(false);
        let others = also_short(&self.resources().await?, found, word);
        if !others.is_empty() && !HAS_WARNED.swap(true, Ordering::Relaxed) {
            for other in others {
                eprintln!(
                    "Warning: short name {word:?} could also match lower priority resource {other}"
                );
            }
        }
        Ok(())
    }

    /// The resources of a category such as `all`.
    pub(crate) async fn category(&self, word: &str) -> Result<Vec<Resource>> {
        let resources = self.resources().await?;
        let mut found: Vec<Resource> = Vec::new();
        for resource in resources
            .iter()
            .filter(|r| r.categories.iter().any(|c| c == word))
        {
            let is_known =
                |known: &Resource| known.group == resource.group && known.plural == resource.plural;
            if !found.iter().any(is_known) {
                found.push(resource.clone());
            }
        }
        Ok(found)
    }

    /// The preferred version of a kind.
    pub(crate) async fn of_group_kind(&self, group: &str, kind: &str) -> Result<Option<Resource>> {
        let is_it = |r: &&Resource| r.kind == kind && r.group == group;
        self.find(|resources| resources.iter().find(is_it).cloned())
            .await
    }

    /// The resource of a manifest.
    pub(crate) async fn of_kind(&self, api_version: &str, kind: &str) -> Result<Option<Resource>> {
        let is_it = |r: &&Resource| r.kind == kind && r.api_version() == api_version;
        self.find(|resources| resources.iter().find(is_it).cloned())
            .await
    }
}

/// Other resources with the same short name, as `events.events.k8s.io`; none if the word is no short
/// name or has a group.
fn also_short(resources: &[Resource], found: &Resource, word: &str) -> BTreeSet<String> {
    let is_other = |resource: &&Resource| {
        resource.short_names.iter().any(|name| name == word)
            && (&resource.group, &resource.plural) != (&found.group, &found.plural)
    };
    let is_name = word == found.plural
        || word == found.singular
        || !found.short_names.iter().any(|name| name == word);
    match is_name {
        true => BTreeSet::new(),
        false => resources
            .iter()
            .filter(is_other)
            .map(Resource::qualified_plural)
            .collect(),
    }
}

/// The resource of a word. Short forms prefer earlier groups.
fn resolve<'a>(resources: &'a [Resource], word: &str) -> Option<&'a Resource> {
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
            || (rest.trim_end_matches('.') == resource.version
                && (resource.group.is_empty() || !rest.ends_with('.')))
            || rest == format!("{}.{}", resource.version, resource.group)
    };
    let in_group_prefix = |resource: &&Resource| resource.group.starts_with(&format!("{rest}."));
    let named = || resources.iter().filter(is_named);
    named()
        .find(in_group)
        .or_else(|| named().find(in_group_prefix))
}

fn of_documents(documents: &[Value]) -> Vec<Resource> {
    let groups = documents
        .iter()
        .flat_map(|document| items(&document["items"]));
    groups.flat_map(of_group).collect()
}

fn stale_versions(documents: &[Value]) -> Vec<String> {
    let groups = documents.iter();
    let groups = groups.flat_map(|document| items(&document["items"]));
    let stale = groups.flat_map(|group| {
        let stale = items(&group["versions"]).filter(|version| version["freshness"] == "Stale");
        stale.map(|version| {
            let group = text(&group["metadata"]["name"]);
            format!("{group}/{}", text(&version["version"]))
        })
    });
    stale.collect()
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

    fn discovery() -> Vec<Resource> {
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
        resources
    }

    #[test]
    fn resources_are_found_by_any_of_their_names() {
        let discovery = discovery();
        for word in ["po", "pod", "pods", "Pod", "pods.v1."] {
            assert_eq!(resolve(&discovery, word).unwrap().plural, "pods", "{word}");
        }
        for (word, group) in [
            ("deploy", "apps"),
            ("deployments", "apps"),
            ("deployments.example.com", "example.com"),
            ("deployments.v1.apps", "apps"),
        ] {
            assert_eq!(resolve(&discovery, word).unwrap().group, group, "{word}");
        }
        assert!(resolve(&discovery, "nothing").is_none());
    }

    #[test]
    fn other_resources_with_the_same_short_name_are_found() {
        let mut resources = discovery();
        resources[2].short_names.push("deploy".to_owned());
        let found = resolve(&resources, "deploy").unwrap().clone();
        let others = |word: &str| Vec::from_iter(also_short(&resources, &found, word));
        assert_eq!(others("deploy"), ["deployments.example.com"]);
        assert!(others("deployments").is_empty());
        assert!(others("deployments.apps").is_empty());
    }

    #[test]
    fn versions_whose_servers_are_away_are_known() {
        let document = json!({"items": [
            {"metadata": {"name": "apps"}, "versions": [{"version": "v1", "freshness": "Current"}]},
            {"metadata": {"name": "a.b"}, "versions": [{"version": "v1", "freshness": "Stale"}]}]});
        assert_eq!(stale_versions(&[document]), ["a.b/v1"]);
    }

    #[test]
    fn paths_follow_group_version_and_scope() {
        let discovery = discovery();
        let deployment = resolve(&discovery, "deploy").unwrap();
        assert_eq!(
            deployment.object("a", "b"),
            "/apis/apps/v1/namespaces/a/deployments/b"
        );
        assert_eq!(deployment.collection(None), "/apis/apps/v1/deployments");
        assert_eq!(deployment.qualified_singular(), "deployment.apps");
    }
}
