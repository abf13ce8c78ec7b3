//! PreBind: writes the chosen volumes and nodes, and waits until the volume controller and the
//! provisioners have bound all claims.

use std::time::Duration;

use futures::future::select_all;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use kube::{Api, api::PostParams};
use reconcile::storage::{
    SELECTED_NODE, annotate, annotation, bound_to, claim_ref, is_fully_bound, reaches, uid,
    volume_name,
};
use tokio::time::{Instant, sleep, timeout_at};

use super::find::{NodeVolumes, Unbound};
use crate::{bindings::Bindings, pod::PodInfo};

/// How often changes of other objects than claims (nodes, volumes, the pod itself) are checked.
const POLL: Duration = Duration::from_secs(1);
/// How often a conflicting write of a claim is retried.
const RETRIES: usize = 3;

/// A pod that is being bound.
pub(super) struct Binding<'a> {
    pub(crate) client: &'a kube::Client,
    pub(crate) caches: &'a Bindings,
    pub(crate) pod: &'a PodInfo,
    pub(crate) node: &'a str,
    pub(crate) found: &'a NodeVolumes,
}

impl Binding<'_> {
    /// Binds the claims; fails if the pod must be scheduled again.
    pub(super) async fn run(&self, patience: Duration) -> Result<(), String> {
        let deadline = Instant::now() + patience;
        for (claim, volume) in &self.found.bindings {
            self.bind_volume(claim, volume).await?;
        }
        for claim in &self.found.provisions {
            self.select_node(claim).await?;
        }
        let bound = timeout_at(deadline, self.wait()).await;
        let bound = bound.unwrap_or_else(|_| Err("context deadline exceeded".to_owned()));
        bound.map_err(|why| format!("binding volumes: {why}"))
    }

    async fn bind_volume(&self, claim: &Unbound, name: &str) -> Result<(), String> {
        let volume = self.caches.volumes.get("", name);
        let volume = volume.ok_or_else(|| format!("persistentvolume {name:?} not found"))?;
        let Some(bound) = bound_to(&volume, &claim.claim) else {
            return Ok(());
        };
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        let written = api.replace(name, &PostParams::default(), &bound).await;
        let written = written.map_err(|error| error.to_string())?;
        let version = written.metadata.resource_version.unwrap_or_default();
        self.caches.volumes.reached_within(&version, POLL).await;
        Ok(())
    }

    /// Writes the selected node of a claim. A conflict is retried, unless another node is selected.
    async fn select_node(&self, claim: &Unbound) -> Result<(), String> {
        let (namespace, name) = &claim.key;
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let mut newest = (*claim.claim).clone();
        for _ in 0..RETRIES {
            match annotation(&newest.metadata, SELECTED_NODE) {
                Some(chosen) if chosen == self.node => return Ok(()),
                Some(chosen) => {
                    return Err(format!("PVC {name:?} is provisioned for node {chosen:?}"));
                }
                None => annotate(&mut newest.metadata, SELECTED_NODE, self.node),
            }
            match api.replace(name, &PostParams::default(), &newest).await {
                Ok(written) => {
                    let version = written.metadata.resource_version.unwrap_or_default();
                    self.caches.claims.reached_within(&version, POLL).await;
                    return Ok(());
                }
                Err(kube::Error::Api(status)) if status.code == 409 => {
                    newest = api.get(name).await.map_err(|error| error.to_string())?;
                    if newest.metadata.uid != claim.claim.metadata.uid {
                        return Err(format!("persistentvolumeclaim {name:?} not found"));
                    }
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        Err(format!("too many conflicts on PVC {name:?}"))
    }

    /// Waits until everything is bound.
    async fn wait(&self) -> Result<(), String> {
        let bindings = self.found.bindings.iter().map(|(claim, _)| claim);
        let claims: Vec<&Unbound> = bindings.chain(&self.found.provisions).collect();
        loop {
            // Subscribe before the check, so that no change is missed.
            let changes = &self.caches.changes;
            let bells = claims
                .iter()
                .map(|claim| Box::pin(changes.next(&claim.key.0, &claim.key.1)));
            let change = select_all(bells);
            if self.is_bound()? {
                return Ok(());
            }
            tokio::select! {
                _ = change => {}
                () = sleep(POLL) => {}
            }
        }
    }

    /// Whether everything is bound; an error if the pod must be scheduled again.
    fn is_bound(&self) -> Result<bool, String> {
        let node = self.caches.nodes.get("", self.node);
        let node = node.ok_or_else(|| {
            let name = self.node;
            format!("failed to get node {name:?}: node {name:?} not found")
        })?;
        let pod = self.caches.pods.get(self.pod.namespace(), &self.pod.name);
        if pod.is_none_or(|pod| pod.info.uid != self.pod.uid) {
            let name = &self.pod.name;
            return Err(format!(
                "pod does not exist any more: pod {name:?} not found"
            ));
        }
        let mut all = true;
        for (claim, name) in &self.found.bindings {
            let volume = self.caches.volumes.get("", name);
            let volume = volume.ok_or_else(|| {
                format!("failed to check binding: persistentvolume {name:?} not found")
            })?;
            check_reach(&volume, &node)?;
            if claim_ref(&volume).and_then(uid).is_none() {
                return Err(format!("ClaimRef got reset for pv {name:?}"));
            }
            all &= is_fully_bound(&*self.claim(claim)?);
        }
        for claim in &self.found.provisions {
            all &= self.is_provisioned(claim, &node)?;
        }
        Ok(all)
    }

    fn claim(&self, claim: &Unbound) -> Result<std::sync::Arc<PersistentVolumeClaim>, String> {
        let (namespace, name) = &claim.key;
        let newest = self.caches.claims.get(namespace, name);
        newest.ok_or_else(|| {
            format!("failed to check binding: persistentvolumeclaim {name:?} not found")
        })
    }

    fn is_provisioned(&self, claim: &Unbound, node: &Node) -> Result<bool, String> {
        let name = &claim.key.1;
        let newest = self.claim(claim)?;
        if annotation(&newest.metadata, SELECTED_NODE) != Some(self.node) {
            // Its provisioner failed and removed the selected node.
            return Err(format!("provisioning failed for PVC {name:?}"));
        }
        if let Some(volume) = volume_name(&newest) {
            let Some(volume) = self.caches.volumes.get("", volume) else {
                return Ok(false);
            };
            check_reach(&volume, node)?;
        }
        Ok(is_fully_bound(&newest))
    }
}

fn check_reach(volume: &PersistentVolume, node: &Node) -> Result<(), String> {
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let node = node.metadata.name.as_deref().unwrap_or_default();
    if reaches(volume, &labels, node) {
        return Ok(());
    }
    let volume = volume.metadata.name.as_deref().unwrap_or_default();
    Err(format!(
        "pv {volume:?} node affinity doesn't match node {node:?}: no matching NodeSelectorTerms"
    ))
}
