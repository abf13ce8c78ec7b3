//! Sets up and takes down all volumes of a pod.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Volume};
use volume::{Request, plugin_for, volume_dir};

use crate::{Error, Result, core::Core, pod::spec};

/// Where each volume is, and when it wants to be refreshed.
#[derive(Debug, Clone, Default)]
pub struct Mounted {
    pub paths: BTreeMap<String, PathBuf>,
    pub refresh_at: Option<Timestamp>,
}

/// The volumes that a container mounts or reads variables from, and that the node makes: images are mounted by the runtime.
fn used(pod: &Pod) -> Vec<&Volume> {
    let mut names = BTreeSet::new();
    for (_, container) in spec::containers(pod) {
        let mounts = container.volume_mounts.iter().flatten();
        names.extend(mounts.map(|mount| mount.name.clone()));
        let sources = container.env.iter().flatten();
        let files = sources.filter_map(|env| env.value_from.as_ref()?.file_key_ref.as_ref());
        names.extend(files.map(|file| file.volume_name.clone()));
    }
    spec::spec(pod)
        .volumes
        .iter()
        .flatten()
        .filter(|volume| names.contains(&volume.name) && volume.image.is_none())
        .collect()
}

/// Makes all volumes or brings their content up to date.
pub async fn set_up(core: &Core, pod: &Arc<Pod>) -> Result<Mounted> {
    let mut mounted = Mounted::default();
    for volume in used(pod) {
        let failed = |error: &dyn std::fmt::Display| {
            Error::Other(format!(
                "MountVolume.SetUp failed for volume {:?} : {error}",
                volume.name
            ))
        };
        let plugin = plugin_for(volume).map_err(|error| failed(&error))?;
        let needs = plugin.needs(volume);
        let gathered = core
            .sources
            .gather(pod, &needs, core.now())
            .await
            .map_err(|error| failed(&error))?;
        let dir = volume_dir(&core.pod_dir(spec::uid(pod)), plugin.name(), &volume.name);
        let (pod, owned, node) = (pod.clone(), volume.clone(), core.node_facts());
        let mounter = core.mounter;
        let path = tokio::task::spawn_blocking(move || {
            plugin.set_up(&Request {
                pod: &pod,
                volume: &owned,
                dir: &dir,
                objects: &gathered.objects,
                node: &node,
                mounter: &mounter,
            })
        })
        .await
        .map_err(|error| failed(&error))?
        .map_err(|error| failed(&error))?;
        mounted.paths.insert(volume.name.clone(), path);
        let times = [mounted.refresh_at, gathered.refresh_at];
        mounted.refresh_at = times.into_iter().flatten().min();
    }
    Ok(mounted)
}

/// Whether any volume shows the pod's own metadata.
pub fn show_pod(pod: &Pod) -> bool {
    let shows = |volume: &&Volume| plugin_for(volume).is_ok_and(|plugin| plugin.shows_pod(volume));
    used(pod).iter().any(shows)
}

/// Takes all of them down.
pub async fn tear_down(core: &Core, uid: &str) -> Result<()> {
    let (dir, mounter) = (core.pod_dir(uid), core.mounter);
    let down = tokio::task::spawn_blocking(move || volume::tear_down_all(&dir, &mounter)).await;
    down.map_err(|error| Error::Other(error.to_string()))?
        .map_err(Error::from)
}

/// Removes a directory of the kubelet's own. What is mounted below it is left alone.
pub async fn remove_dir(dir: PathBuf) -> Result<()> {
    let removed = tokio::task::spawn_blocking(move || volume::remove_tree(&dir)).await;
    removed
        .map_err(|error| Error::Other(error.to_string()))?
        .map_err(Error::from)
}
