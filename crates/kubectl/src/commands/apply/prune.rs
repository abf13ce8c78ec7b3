//! `apply --prune`: deletes objects that were applied before and are no longer in the files.

use std::collections::{BTreeSet, HashSet};

use anyhow::{Result, bail};
use serde_json::Value;

use crate::{
    api::{Query, with_query},
    discovery::Resource,
    json::{list, str_of},
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

impl Apply {
    pub(super) async fn prune(&self, session: &Session, applied: &[Value]) -> Result<()> {
        let kept: HashSet<&str> = applied
            .iter()
            .map(|object| str_of(&object["metadata"]["uid"]))
            .collect();
        let namespaces: BTreeSet<&str> = applied
            .iter()
            .map(|object| str_of(&object["metadata"]["namespace"]))
            .filter(|namespace| !namespace.is_empty())
            .collect();
        let dry_run = self.dry_run.mode()?;
        let options = self.how.options(dry_run)?;
        for resource in self.prune_types(session).await? {
            // Cluster-scoped objects are pruned only if no namespace is given.
            let places: Vec<Option<&str>> = match resource.namespaced {
                true => namespaces
                    .iter()
                    .map(|namespace| Some(*namespace))
                    .collect(),
                false if session.namespace_given => Vec::new(),
                false => vec![None],
            };
            for place in places {
                for object in self.candidates(session, &resource, place).await? {
                    let metadata = &object["metadata"];
                    if metadata["annotations"][LAST_APPLIED].is_null()
                        || kept.contains(str_of(&metadata["uid"]))
                    {
                        continue;
                    }
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
            }
        }
        Ok(())
    }

    async fn candidates(
        &self,
        session: &Session,
        resource: &Resource,
        place: Option<&str>,
    ) -> Result<Vec<Value>> {
        let selector = self.selection.selector.iter();
        let query: Query = selector
            .map(|selector| ("labelSelector", selector.clone()))
            .collect();
        let path = with_query(&resource.collection(place), &query);
        let answer = session.api.list(&path, "application/json", 500).await?;
        Ok(list(&answer["items"]).cloned().collect())
    }

    async fn prune_types(&self, session: &Session) -> Result<Vec<Resource>> {
        let mut named: Vec<(String, String)> = Vec::new();
        for gvk in &self.prune_allowlist {
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
            named = TYPES
                .iter()
                .map(|(version, kind)| ((*version).to_owned(), (*kind).to_owned()))
                .collect();
        }
        let mut types = Vec::new();
        for (version, kind) in named {
            match session.discovery.of_kind(&version, &kind).await? {
                Some(resource) => types.push(resource),
                None if self.prune_allowlist.is_empty() => {}
                None => bail!("no matches for kind {kind:?} in version {version:?}"),
            }
        }
        Ok(types)
    }
}
