//! Resolves and validates the claims of pods and their persistent volumes.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Volume};
use kube::Api;
use volume::storage::{
    Spec,
    resolve::{self, Uses},
};

use crate::{Error, Result, admit, core::Core, pod::spec};

/// The volume of a pod; fails if its claim cannot be used yet.
pub(super) async fn resolve(
    core: &Core,
    pod: &Pod,
    volume: &Volume,
    uses: Uses,
) -> std::result::Result<Spec, String> {
    let Some(name) = resolve::claim_name(spec::name(pod), volume) else {
        return Ok(resolve::inline(volume));
    };
    let namespace = spec::namespace(pod);
    let failed = |why: String| format!("error processing PVC {namespace}/{name}: {why}");
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(core.config.client.clone(), namespace);
    let claim = claims.get(&name).await;
    let claim = claim.map_err(|error| {
        failed(format!(
            "failed to fetch PVC from API server: {}",
            error_message(error)
        ))
    })?;
    let volumes: Api<PersistentVolume> = Api::all(core.config.client.clone());
    let bound = resolve::bound_volume(pod, volume, &claim).map_err(failed)?;
    let found = volumes.get(bound).await.map_err(|error| {
        let error = error_message(error);
        failed(format!(
            "failed to fetch PV {bound} from API server: {error}"
        ))
    })?;
    resolve::claimed(volume, Arc::new(claim), Arc::new(found), uses).map_err(failed)
}

/// The API server's error message.
fn error_message(error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message,
        error => error.to_string(),
    }
}

/// Rejects a persistent volume whose node affinity excludes this node. Without the Node it is not
/// known whether it does.
pub(super) fn check_affinity(core: &Core, spec: &Spec) -> Result<()> {
    let found = spec.volume.as_ref().and_then(|volume| volume.spec.as_ref());
    let required = found.and_then(|found| found.node_affinity.as_ref()?.required.as_ref());
    let Some(required) = required else {
        return Ok(());
    };
    let why = match core.nodes.get("", &core.config.node_name) {
        Some(node) if admit::node_matches(required, &node) => return Ok(()),
        Some(_) => "no matching NodeSelectorTerms",
        None => "error retrieving node",
    };
    Err(Error::Mount {
        reason: super::failed_reason(spec),
        message: format!(
            "MountVolume.NodeAffinity check failed for volume {:?} : {why}",
            spec.name
        ),
        is_waiting: true,
    })
}

/// Volumes whose claims cannot be used yet.
#[derive(Default)]
pub(super) struct Waiting {
    names: Vec<String>,
    why: Vec<String>,
}

impl Waiting {
    pub(super) fn add(&mut self, volume: &Volume, why: String) {
        self.names.push(volume.name.clone());
        self.why.push(why);
    }

    /// An error with upstream's message.
    pub(super) fn into_result(self, pod: &Pod) -> Result<()> {
        if self.names.is_empty() {
            return Ok(());
        }
        let used = super::used(pod);
        let unmounted: Vec<&str> = used
            .iter()
            .map(|(volume, _)| volume.name.as_str())
            .filter(|name| self.names.iter().any(|waits| waits == name))
            .collect();
        Err(Error::Mount {
            reason: "FailedMount",
            message: format!(
                "Unable to attach or mount volumes: unmounted volumes=[{}], unattached volumes=[], failed to process volumes=[{}]: {}",
                unmounted.join(" "),
                self.names.join(" "),
                self.why.join("; "),
            ),
            is_waiting: true,
        })
    }
}
