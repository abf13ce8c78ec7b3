//! `--prune` of `apply` and `diff`: objects that were applied before and are no longer in the files.

use std::collections::{BTreeSet, HashSet};

use anyhow::{Result, bail};
use serde_json::Value;

use crate::{
    api::{Query, with_query},
    discovery::Resource,
    json::{list, str_of},
    resources::of_item,
    session::Session,
};

use super::{Apply, LAST_APPLIED};

/// The default types to prune.
const TYPES: &[(&str, &str)] = &[
    ("v1", "ConfigMap"),
    ("v1", "Endpoints"),
    ("v1", "Namespace"),
    ("v1", "PersistentVolumeClaim"),
    ("v1", "PersistentVolume"),
    ("v1", "Pod"),
    ("v1", "ReplicationController"),
    ("v1", "Secret"),
    ("v1", "Service"),
    ("batch/v1", "Job"),
    ("batch/v1", "CronJob"),
    ("networking.k8s.io/v1", "Ingress"),
    ("apps/v1", "DaemonSet"),
    ("apps/v1", "Deployment"),
    ("apps/v1", "ReplicaSet"),
    ("apps/v1", "StatefulSet"),
];

/// The objects of the files: what is not among them is stale.
#[derive(Debug, Default)]
pub(in super::super) struct Visited {
    uids: HashSet<String>,
    namespaces: BTreeSet<String>,
}

impl Visited {
    /// Notes an object of the files as the server has it.
    pub(in super::super) fn add(&mut self, object: &Value) {
        let metadata = &object["metadata"];
        self.uids.insert(str_of(&metadata["uid"]).to_owned());
        self.add_namespace(str_of(&metadata["namespace"]));
    }

    /// Notes a namespace in which stale objects are looked for.
    pub(in super::super) fn add_namespace(&mut self, namespace: &str) {
        if !namespace.is_empty() {
            self.namespaces.insert(namespace.to_owned());
        }
    }

    /// The applied objects of the types that were not visited.
    pub(in super::super) async fn stale(
        &self,
        session: &Session,
        types: &[Resource],
        selector: Option<&str>,
    ) -> Result<Vec<(Resource, Value)>> {
        let (namespaced, cluster): (Vec<&Resource>, Vec<&Resource>) =
            types.iter().partition(|resource| resource.namespaced);
        let mut places: Vec<(&Resource, Option<&str>)> = Vec::new();
        for namespace in &self.namespaces {
            places.extend(
                namespaced
                    .iter()
                    .map(|one| (*one, Some(namespace.as_str()))),
            );
        }
        places.extend(cluster.iter().map(|one| (*one, None)));
        let query: Query = selector
            .map(|selector| ("labelSelector", selector.to_owned()))
            .into_iter()
            .collect();
        let mut found = Vec::new();
        for (resource, place) in places {
            let path = with_query(&resource.collection(place), &query);
            let answer = session.api.list(&path, "application/json", 500).await?;
            for item in list(&answer["items"]) {
                let metadata = &item["metadata"];
                if !metadata["annotations"][LAST_APPLIED].is_null()
                    && !self.uids.contains(str_of(&metadata["uid"]))
                {
                    let object = of_item(resource, item).live.unwrap_or_default();
                    found.push((resource.clone(), object));
                }
            }
        }
        Ok(found)
    }
}

/// Printed for the default types. Upstream prints it whenever there is a namespace, also the one of
/// the kubeconfig or `default`: always.
const DEFAULT_TYPES_WARNING: &str = "Deprecated: kubectl apply will no longer prune non-namespaced resources by default \
     when used with the --namespace flag in a future release. To preserve the current behaviour, list the resources you \
     want to target explicitly in the --prune-allowlist flag.";

/// The types to look at: those of `--prune-allowlist`, or the default ones.
pub(in super::super) async fn types(
    session: &Session,
    allowlist: &[String],
) -> Result<Vec<Resource>> {
    let mut named: Vec<(String, String)> = Vec::new();
    for gvk in allowlist {
        let parts: Vec<&str> = gvk.split('/').collect();
        let [group, version, kind] = parts.as_slice() else {
            bail!("invalid GroupVersionKind format: {gvk}, please follow <group/version/kind>");
        };
        let api_version = match *group {
            "core" | "" => (*version).to_owned(),
            group => format!("{group}/{version}"),
        };
        named.push((api_version, (*kind).to_owned()));
    }
    if named.is_empty() {
        eprintln!("{DEFAULT_TYPES_WARNING}");
        named = TYPES
            .iter()
            .map(|(version, kind)| ((*version).to_owned(), (*kind).to_owned()))
            .collect();
    }
    let mut types = Vec::new();
    for (version, kind) in named {
        match session.discovery.of_kind(&version, &kind).await? {
            Some(resource) => types.push(resource),
            None if allowlist.is_empty() => {}
            None => bail!("no matches for kind {kind:?} in version {version:?}"),
        }
    }
    Ok(types)
}

impl Apply {
    pub(super) async fn prune(&self, session: &Session, applied: &[Value]) -> Result<()> {
        let mut visited = Visited::default();
        applied.iter().for_each(|object| visited.add(object));
        if session.namespace_given {
            visited.add_namespace(&session.namespace);
        }
        let dry_run = self.dry_run.mode()?;
        let options = self.how.options(dry_run)?;
        let types = types(session, &self.prune_allowlist).await?;
        let selector = self.selection.selector.as_deref();
        for (resource, object) in visited.stale(session, &types, selector).await? {
            let metadata = &object["metadata"];
            let name = str_of(&metadata["name"]);
            let path = resource.object(str_of(&metadata["namespace"]), name);
            if !dry_run.is_client() {
                session.api.delete(&path, &options).await?;
            }
            println!(
                "{}/{name} pruned{}",
                resource.qualified_singular(),
                dry_run.suffix()
            );
        }
        Ok(())
    }
}
