//! Applies the reclaim policies that destroy data without a provisioner: Recycle with a pod, and
//! Delete for hostPath volumes. Before data is destroyed, the volume and its claim are read from the
//! API server, since the cache can be older.

use std::{io, path::Path, sync::Arc, time::Duration};

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::{self, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::{Api, Resource as _, api::WatchParams, core::WatchEvent};
use reconcile::{
    Action, Error, Key, Kind,
    storage::{claim_ref, uid, volume_name},
};

use crate::pods::is_active;

use super::{
    Binder, RESYNC,
    decision::{ClusterView as _, Decision},
    recycle::{self, Attempt, NAMESPACE, Step},
    volume,
};

impl Binder {
    /// Whether the cached volume is current and its claim is gone or bound to another volume.
    async fn is_released(&self, cached: &PersistentVolume) -> Result<bool, Error> {
        let name = cached.metadata.name.as_deref().unwrap_or_default();
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let current = volumes.get_opt(name).await?;
        let version = current.and_then(|volume| volume.metadata.resource_version);
        if version != cached.metadata.resource_version {
            return Ok(false);
        }
        let Some(reference) = claim_ref(cached) else {
            return Ok(false);
        };
        let namespace = reference.namespace.as_deref().unwrap_or_default();
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let claim = claims.get_opt(reference.name.as_deref().unwrap_or_default());
        Ok(has_lost_its_claim(cached, claim.await?.as_ref()))
    }

    /// Takes the next step of recycling a volume.
    pub(super) async fn recycle(&self, volume: &PersistentVolume) -> Result<Action, Error> {
        let name = volume.metadata.name.clone().unwrap_or_default();
        let pod = self.pods.cache().get(NAMESPACE, &recycle::pod_name(volume));
        let attempt = self
            .recycling
            .lock()
            .get(&name)
            .cloned()
            .unwrap_or_default();
        match recycle::next(volume, pod.as_deref(), &attempt, self.clock.now()) {
            Step::Wait => Ok(Action::After(RESYNC)),
            Step::Retry(after) => Ok(Action::After(after)),
            Step::Create(pod) => self.start_recycler(volume, &name, &pod).await,
            Step::Failed(why) => {
                self.end_recycler(volume, pod.as_deref()).await?;
                self.recycle_failed(volume, name, &why).await
            }
            Step::Succeeded => {
                self.end_recycler(volume, pod.as_deref()).await?;
                self.recycling.lock().remove(&name);
                let about = volume.object_ref(&());
                self.events
                    .event(&about, Kind::Normal, "VolumeRecycled", "Volume recycled");
                let available = volume::unbound(volume);
                self.volumes.cluster_update(&available).await?;
                Ok(Action::After(Duration::ZERO))
            }
        }
    }

    async fn start_recycler(
        &self,
        volume: &PersistentVolume,
        name: &str,
        pod: &Pod,
    ) -> Result<Action, Error> {
        if !self.is_released(volume).await? {
            return Ok(Action::After(RESYNC));
        }
        match self.pods.create(NAMESPACE, pod).await {
            Ok(created) => {
                let attempt = Attempt::running(created.metadata.uid);
                self.recycling.lock().insert(name.to_owned(), attempt);
                Ok(Action::After(RESYNC))
            }
            Err(error) => {
                let why = format!("unexpected error creating recycler pod:  {error}");
                self.recycle_failed(volume, name.to_owned(), &why).await
            }
        }
    }

    /// Deletes the pod that would empty a volume whose policy was changed before the pod could start.
    pub(super) async fn stop_recycler(&self, volume: &Key) -> Result<(), Error> {
        let Some(volume) = self.volume(&volume.name) else {
            return Ok(());
        };
        let pod = self
            .pods
            .cache()
            .get(NAMESPACE, &recycle::pod_name(&volume));
        let is_due = |pod: &Arc<Pod>| is_active(pod) && recycle::is_recycler(pod);
        match pod.filter(is_due) {
            Some(pod) if volume::is_kept(&volume) => self.pods.delete(&pod).await,
            _ => Ok(()),
        }
    }

    /// Repeats the pod's events on the volume and deletes the pod.
    async fn end_recycler(
        &self,
        volume: &PersistentVolume,
        pod: Option<&Pod>,
    ) -> Result<(), Error> {
        let Some(pod) = pod else {
            return Ok(());
        };
        let about = volume.object_ref(&());
        for event in self.pod_events(pod).await.unwrap_or_default() {
            let kind = match event.type_.as_deref() {
                Some("Warning") => Kind::Warning,
                _ => Kind::Normal,
            };
            let message = format!("Recycler pod: {}", event.message.unwrap_or_default());
            self.events.event(&about, kind, "RecyclerPod", message);
        }
        self.pods.delete(pod).await
    }

    /// The events of a pod. The binder's role allows only to watch events.
    async fn pod_events(&self, pod: &Pod) -> Result<Vec<v1::Event>, Error> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let selector = format!("involvedObject.uid={uid}");
        let params = WatchParams::default().fields(&selector).timeout(1);
        let api: Api<v1::Event> = Api::namespaced(self.client.clone(), NAMESPACE);
        let mut events = Vec::new();
        let mut stream = std::pin::pin!(api.watch(&params, "0").await?);
        while let Some(event) = stream.try_next().await? {
            if let WatchEvent::Added(event) = event {
                events.push(event);
            }
        }
        Ok(events)
    }

    async fn recycle_failed(
        &self,
        volume: &PersistentVolume,
        name: String,
        why: &str,
    ) -> Result<Action, Error> {
        let attempt = Attempt::failed(self.clock.now());
        self.recycling.lock().insert(name, attempt);
        let why = format!("Recycle failed: {why}");
        self.reclaim_failed(volume, "VolumeFailedRecycle", &why)
            .await
    }

    /// Removes the directory of a hostPath volume, then the volume.
    pub(super) async fn remove_host_path(
        &self,
        volume: &PersistentVolume,
    ) -> Result<Action, Error> {
        let spec = volume.spec.as_ref();
        let path = spec.and_then(|spec| Some(spec.host_path.as_ref()?.path.clone()));
        let path = path.unwrap_or_default();
        if !self.is_released(volume).await? {
            return Ok(Action::After(RESYNC));
        }
        let removed = tokio::task::spawn_blocking(move || remove_below_tmp(&path)).await;
        match removed.unwrap_or_else(|error| Err(error.to_string())) {
            Ok(()) => {
                self.volumes.cluster_delete(volume).await?;
                Ok(Action::Done)
            }
            Err(why) => {
                let by = [
                    ("plugin_name", "kubernetes.io/host-path"),
                    ("operation_name", "delete"),
                ];
                self.metrics.volume_errors.add(by, 1);
                self.reclaim_failed(volume, "VolumeFailedDelete", &why)
                    .await
            }
        }
    }

    /// Marks a volume as Failed with an event; the policy is applied again later.
    async fn reclaim_failed(
        &self,
        volume: &PersistentVolume,
        reason: &'static str,
        why: &str,
    ) -> Result<Action, Error> {
        if let Decision::Write(change, event) = volume::fail(volume, reason, why) {
            self.write(change).await?;
            self.record(event.map(|event| *event));
        }
        Ok(Action::After(RESYNC))
    }
}

/// Whether a volume was bound and the claim of that name is gone, another one, or bound elsewhere.
pub(super) fn has_lost_its_claim(
    volume: &PersistentVolume,
    claim: Option<&PersistentVolumeClaim>,
) -> bool {
    let name = volume.metadata.name.as_deref();
    let Some(owner) = claim_ref(volume).and_then(uid) else {
        return false;
    };
    claim.is_none_or(|claim| {
        let is_elsewhere = volume_name(claim).is_some_and(|bound| Some(bound) != name);
        claim.metadata.uid.as_deref() != Some(owner) || is_elsewhere
    })
}

/// Removes a file or a directory tree, without crossing mounts. As upstream only below a directory
/// `tmp`: this is for tests of a single node, since the path is one of this machine.
fn remove_below_tmp(path: &str) -> Result<(), String> {
    let is_below = path
        .split_once("/tmp/")
        .is_some_and(|(_, rest)| !rest.is_empty());
    if !is_below {
        return Err(format!(
            "host_path deleter only supports /tmp/.+ but received provided {path}"
        ));
    }
    let path = Path::new(path);
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(found) if !found.is_dir() => {
            std::fs::remove_file(path).map_err(|error| error.to_string())
        }
        _ => ::volume::remove_tree(path).map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_below_tmp_are_removed() {
        let home = tempfile::tempdir().unwrap();
        let tmp = home.path().join("tmp");
        std::fs::create_dir_all(tmp.join("data/inner")).unwrap();
        std::fs::write(tmp.join("file"), "x").unwrap();
        let remove = |path: &Path| remove_below_tmp(path.to_str().unwrap());
        remove(&tmp.join("data")).unwrap();
        remove(&tmp.join("file")).unwrap();
        remove(&tmp.join("missing")).unwrap();
        assert_eq!(std::fs::read_dir(&tmp).unwrap().count(), 0);
        for path in ["/srv/data", "/tmp", "/tmp/", "/srv/tmp.d/x"] {
            let why =
                format!("host_path deleter only supports /tmp/.+ but received provided {path}");
            assert_eq!(remove_below_tmp(path), Err(why));
        }
    }
}
