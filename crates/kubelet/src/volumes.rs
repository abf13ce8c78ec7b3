//! Sets up and tears down all volumes of a pod: its ephemeral ones here, persistent ones through
//! the node's volume manager.

mod claims;
mod expand;
mod host;
mod metrics;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Volume};
use tokio_util::sync::CancellationToken;
use volume::{
    Request, plugin_for,
    storage::{
        Spec, StepError,
        resolve::{self, Uses},
    },
    subpath, volume_dir,
};

use crate::{Error, Result, core::Core, pod::spec};
pub(crate) use host::{Drivers, NodeHost, RegisteredDriver};
pub(crate) use metrics::VolumeMetrics;

/// How often claims of running pods are checked: for expansion, and for drivers with
/// requiresRepublish.
const CLAIMS_INTERVAL: Duration = Duration::from_secs(60);

/// The volumes' host paths, and when to refresh them.
#[derive(Debug, Clone, Default)]
pub struct Mounted {
    pub paths: BTreeMap<String, PathBuf>,
    /// Block devices.
    pub devices: BTreeMap<String, PathBuf>,
    /// Volumes that no container may write to.
    pub read_only: BTreeSet<String>,
    pub refresh_at: Option<Timestamp>,
}

impl Mounted {
    fn refresh_by(&mut self, at: Option<Timestamp>) {
        self.refresh_at = [self.refresh_at, at].into_iter().flatten().min();
    }
}

/// How containers use volumes, by volume name.
fn uses(pod: &Pod) -> BTreeMap<String, Uses> {
    let mut uses: BTreeMap<String, Uses> = BTreeMap::new();
    for (_, container) in spec::containers(pod) {
        for mount in container.volume_mounts.iter().flatten() {
            uses.entry(mount.name.clone()).or_default().mounted = true;
        }
        for device in container.volume_devices.iter().flatten() {
            uses.entry(device.name.clone()).or_default().as_device = true;
        }
        let sources = container.env.iter().flatten();
        let files = sources.filter_map(|env| env.value_from.as_ref()?.file_key_ref.as_ref());
        for file in files {
            uses.entry(file.volume_name.clone()).or_default().mounted = true;
        }
    }
    uses
}

/// The volumes that containers mount or read variables from, except image volumes, which the
/// runtime mounts.
fn used(pod: &Pod) -> Vec<(&Volume, Uses)> {
    let uses = uses(pod);
    let volumes = spec::spec(pod).volumes.iter().flatten();
    volumes
        .filter(|volume| volume.image.is_none())
        .filter_map(|volume| Some((volume, *uses.get(&volume.name)?)))
        .collect()
}

/// Whether all volumes that containers use are set up: an ephemeral container may use one that no other container uses.
pub(crate) fn are_all_set_up(pod: &Pod, mounted: &Mounted) -> bool {
    let is_set_up =
        |name: &String| mounted.paths.contains_key(name) || mounted.devices.contains_key(name);
    used(pod).iter().all(|(volume, _)| is_set_up(&volume.name))
}

/// Sets up all volumes or, with `again`, updates their content. `cancel` ends the wait for an
/// attachment.
pub(crate) async fn set_up(
    core: &Core,
    pod: &Arc<Pod>,
    again: bool,
    cancel: &CancellationToken,
) -> Result<Mounted> {
    let mut mounted = Mounted::default();
    let (storage, own): (Vec<_>, Vec<_>) = used(pod)
        .into_iter()
        .partition(|(volume, _)| resolve::is_storage(volume));
    let census = &core.metrics.volumes;
    census.want(pod, own.iter().map(|(volume, _)| *volume));
    // One that cannot be set up does not keep the tokens of others from being renewed.
    let mut outcome = Ok(());
    for (volume, _) in own {
        let done = set_up_own(core, pod, volume, &mut mounted).await;
        outcome = outcome.and(done);
    }
    outcome?;
    if storage.is_empty() {
        census.all_mounted(pod);
        return Ok(mounted);
    }
    // All claims are checked before anything is mounted, so that one message names all pending
    // ones.
    let mut specs = Vec::new();
    let mut waiting = claims::Waiting::default();
    for (volume, uses) in storage {
        match claims::resolve(core, pod, volume, uses).await {
            Ok(spec) => specs.push(spec),
            Err(why) => waiting.add(volume, why),
        }
    }
    waiting.into_result(pod)?;
    census.want_storage(pod, &specs);
    let set_ups = specs
        .iter()
        .map(|spec| set_up_storage(core, pod, spec, again, cancel));
    let ready = futures::future::join_all(set_ups).await;
    for (spec, ready) in specs.iter().zip(ready) {
        let (name, ready) = (spec.inline.name.clone(), ready?);
        if spec.read_only {
            mounted.read_only.insert(name.clone());
        }
        if spec.claim.is_some() || ready.republishes {
            mounted.refresh_by(Some(core.now() + CLAIMS_INTERVAL));
        }
        match spec.is_block {
            true => mounted.devices.insert(name, ready.path),
            false => mounted.paths.insert(name, ready.path),
        };
    }
    census.all_mounted(pod);
    Ok(mounted)
}

async fn set_up_storage(
    core: &Core,
    pod: &Arc<Pod>,
    spec: &Spec,
    again: bool,
    cancel: &CancellationToken,
) -> Result<volume::storage::Ready> {
    let refuse = |error: String| Error::Mount {
        reason: failed_reason(spec),
        message: format!(
            "MountVolume.SetUp failed for volume {:?} : {error}",
            spec.name
        ),
        is_waiting: false,
    };
    let plugin = resolve::plugin(spec).map_err(refuse)?;
    claims::check_affinity(core, spec)?;
    resolve::check_mount_options(spec, plugin).map_err(|error| Error::Mount {
        reason: failed_reason(spec),
        message: format!(
            "MountVolume.MountOptionSupport check failed for volume {:?} : {error}",
            spec.name
        ),
        is_waiting: false,
    })?;
    let (begun, name) = (Instant::now(), metrics::storage_plugin(spec));
    let ready = core.volumes.set_up(pod, spec, plugin, again, cancel).await;
    let volumes = &core.metrics.volumes;
    volumes.mounted(&name, spec.is_block, begun, ready.is_ok());
    let ready = ready.map_err(|failure| match failure.error {
        StepError::LimitReached(why) => Error::VolumeLimit(why),
        _ => Error::Mount {
            reason: failed_reason(spec),
            message: failure.to_string(),
            is_waiting: false,
        },
    })?;
    expand::expand(core, pod, spec, &ready.key).await?;
    Ok(ready)
}

fn failed_reason(spec: &Spec) -> &'static str {
    match spec.is_block {
        true => "FailedMapVolume",
        false => "FailedMount",
    }
}

async fn set_up_own(
    core: &Core,
    pod: &Arc<Pod>,
    volume: &Volume,
    mounted: &mut Mounted,
) -> Result<()> {
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
    let (begun, name) = (Instant::now(), plugin.name());
    let set_up = move || {
        plugin.set_up(&Request {
            pod: &pod,
            volume: &owned,
            dir: &dir,
            objects: &gathered.objects,
            node: &node,
            mounter: &mounter,
        })
    };
    let path = core.blocking.run(set_up).await;
    let path = path.map_err(|error| failed(&error))?;
    let volumes = &core.metrics.volumes;
    volumes.mounted(name, false, begun, path.is_ok());
    let path = path.map_err(|error| failed(&error))?;
    mounted.paths.insert(volume.name.clone(), path);
    mounted.refresh_by(gathered.refresh_at);
    Ok(())
}

/// Whether any volume depends on the pod's own metadata (downward API).
pub(crate) fn show_pod(pod: &Pod) -> bool {
    let shows = |(volume, _): &(&Volume, Uses)| {
        plugin_for(volume).is_ok_and(|plugin| plugin.shows_pod(volume))
    };
    used(pod).iter().any(shows)
}

/// Tears down all volumes: subPath mounts first, then persistent volumes, then the pod's ephemeral
/// ones.
pub(crate) async fn tear_down(core: &Core, uid: &str) -> Result<()> {
    let (dir, mounter) = (core.pod_dir(uid), core.mounter);
    core.metrics.volumes.removing(uid);
    let own = dir.clone();
    blocking(core, move || subpath::clean_up(&own, &mounter)).await?;
    let down = core.volumes.tear_down(uid).await;
    down.map_err(|failure| Error::Other(failure.to_string()))?;
    blocking(core, move || volume::tear_down_all(&dir, &mounter)).await?;
    core.metrics.volumes.removed(uid);
    Ok(())
}

/// Removes a directory tree, without crossing into mounts.
pub(crate) async fn remove_dir(core: &Core, dir: PathBuf) -> Result<()> {
    blocking(core, move || volume::remove_tree(&dir)).await
}

async fn blocking(
    core: &Core,
    work: impl FnOnce() -> volume::Result<()> + Send + 'static,
) -> Result<()> {
    let done = core.blocking.run(work).await;
    done.map_err(|error| Error::Other(error.to_string()))?
        .map_err(Error::from)
}
