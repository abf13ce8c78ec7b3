//! The node's volume manager. A volume is staged before the first pod uses it and unstaged after
//! the last one; it is published once per pod, however many of its containers or volume names refer
//! to it. Steps of one volume are sequential; volumes do not wait for each other.
//!
//! A step whose result is unknown counts as done for undoing it, and as not done for using it: all
//! steps are idempotent.

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use stdx::{Backoff, Clock};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::{
    Host, Observer, PodMount, Publish, Spec, Step, StepError, StoragePlugin,
    state::{Entry, Key, Progress, User, Volumes, in_use},
};

/// How long a pod waits for an attachment before it reports that.
const ATTACH_PATIENCE: Duration = Duration::from_secs(123);

/// A volume that a pod can use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ready {
    /// The volume.
    pub key: Key,
    /// A directory, or a device.
    pub path: PathBuf,
    /// Whether it is republished periodically.
    pub republishes: bool,
}

/// A failed step, in the terms of events.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{step} failed for volume {volume:?} : {error}")]
pub struct Failure {
    /// For example `MountVolume.SetUp`.
    pub step: &'static str,
    /// The volume's name.
    pub volume: String,
    /// Why.
    pub error: StepError,
}

/// The volume manager. Its only task is [`Manager::run`].
pub struct Manager {
    pub(super) host: Arc<dyn Host>,
    pub(super) clock: Arc<dyn Clock>,
    /// Guards the map only; not held during steps.
    pub(super) volumes: Mutex<Volumes>,
    /// The names of volumes that must stay attached.
    in_use: watch::Sender<Vec<String>>,
    /// Volumes that no pod uses any more.
    pub(super) idle: mpsc::UnboundedSender<Key>,
    /// Locked by [`Manager::run`].
    pub(super) idle_inbox: tokio::sync::Mutex<mpsc::UnboundedReceiver<Key>>,
    pub(super) observer: OnceLock<Box<dyn Observer>>,
}

impl Manager {
    /// A manager without volumes.
    pub fn new(host: Arc<dyn Host>, clock: Arc<dyn Clock>) -> Self {
        let (idle, inbox) = mpsc::unbounded_channel();
        Self {
            host,
            clock,
            volumes: Mutex::default(),
            in_use: watch::Sender::new(Vec::new()),
            idle,
            idle_inbox: tokio::sync::Mutex::new(inbox),
            observer: OnceLock::new(),
        }
    }

    /// The node.
    pub fn host(&self) -> &dyn Host {
        &*self.host
    }

    /// The names of volumes that must stay attached.
    pub fn in_use(&self) -> watch::Receiver<Vec<String>> {
        self.in_use.subscribe()
    }

    /// Publishes the volumes in use; watchers are notified only of differences.
    pub(super) fn show_in_use(&self) {
        self.in_use.send_if_modified(|shown| {
            let now = in_use(&self.volumes.lock());
            let is_new = *shown != now;
            *shown = now;
            is_new
        });
    }

    /// Mounts a volume for a pod, or finds it mounted. With `again`, it is republished if its
    /// driver wants that.
    pub async fn set_up(
        &self,
        pod: &Pod,
        spec: &Spec,
        plugin: &'static dyn StoragePlugin,
        again: bool,
        cancel: &CancellationToken,
    ) -> Result<Ready, Failure> {
        let steps = StepNames::for_spec(spec);
        let host = &*self.host;
        let fail = |step, error| Failure {
            step,
            volume: spec.name.clone(),
            error,
        };
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let key = Key {
            plugin: plugin.name(),
            volume: plugin.volume_name(spec, &uid),
        };
        let attachable = plugin.is_attachable(spec, host).await;
        let attachable = attachable.map_err(|error| fail(steps.attach, error))?;
        let guard = self.join(&key, plugin, spec, &uid, attachable, again);
        let ended = || StepError::NotTried("the pod has ended".to_owned());
        let guard = guard.ok_or_else(|| fail(steps.publish, ended()))?;
        if attachable {
            let begun = Instant::now();
            let attached = self.wait_for_attach(&key, plugin, spec, cancel).await;
            let is_attached = attached.is_ok();
            self.report(
                &key,
                "verify_controller_attached_volume",
                begun,
                is_attached,
            );
            attached.map_err(|error| fail(steps.attach, error))?;
        }
        let _guard = guard.lock_owned().await;
        if self.is_taken(&key, spec, &uid) {
            let step = match spec.is_block {
                true => steps.stage,
                false => steps.publish,
            };
            let why = "volume uses the ReadWriteOncePod access mode and is already in use by \
                       another pod";
            return Err(fail(step, StepError::NotTried(why.to_owned())));
        }
        self.stage(&key, plugin, spec, pod)
            .await
            .map_err(|error| fail(steps.stage, error))?;
        let republishes = plugin.republishes(spec, host).await;
        let republishes = republishes.map_err(|error| fail(steps.publish, error))?;
        let path = self
            .publish(&key, plugin, spec, pod, again && republishes)
            .await
            .map_err(|error| fail(steps.publish, error))?;
        Ok(Ready {
            key,
            path,
            republishes,
        })
    }

    /// Registers the pod as a user: the volume is neither unstaged nor detached. With `again`, a
    /// pod that no longer has the volume does not get it.
    fn join(
        &self,
        key: &Key,
        plugin: &'static dyn StoragePlugin,
        spec: &Spec,
        uid: &str,
        attachable: bool,
        again: bool,
    ) -> Option<Arc<tokio::sync::Mutex<()>>> {
        let mut volumes = self.volumes.lock();
        if again && !volumes.get(key)?.users.contains_key(uid) {
            return None;
        }
        let entry = volumes
            .entry(key.clone())
            .or_insert_with(|| Entry::new(plugin, &spec.name, spec.is_block));
        entry.is_attachable = attachable;
        let user = entry.users.entry(uid.to_owned()).or_insert_with(|| {
            let mount = PodMount {
                pod: uid.to_owned(),
                name: spec.name.clone(),
                is_block: spec.is_block,
            };
            User::new(mount, Progress::No)
        });
        user.names.insert(spec.inline.name.clone());
        let steps = entry.steps.clone();
        drop(volumes);
        self.show_in_use();
        Some(steps)
    }

    /// Whether only one pod may use the volume, and it is not this one. The scheduler checks that,
    /// too; a pod that was created with its node does not pass it.
    fn is_taken(&self, key: &Key, spec: &Spec, uid: &str) -> bool {
        if spec.access_modes() != ["ReadWriteOncePod"] {
            return false;
        }
        let is_elsewhere = |entry: &mut Entry| {
            let mut others = entry.users.iter().filter(|(pod, _)| *pod != uid);
            others.any(|(_, user)| user.published != Progress::No)
        };
        self.with(key, is_elsewhere).unwrap_or_default()
    }

    async fn wait_for_attach(
        &self,
        key: &Key,
        plugin: &dyn StoragePlugin,
        spec: &Spec,
        cancel: &CancellationToken,
    ) -> Step<()> {
        let (host, name) = (&*self.host, key.to_string());
        let until = self.clock.now() + ATTACH_PATIENCE;
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
        loop {
            let not_yet = |why: &str| Err(StepError::NotTried(why.to_owned()));
            let checked = if !host.is_reported_in_use(&name) {
                not_yet(
                    "volume has not been added to the list of VolumesInUse in the node's volume status",
                )
            } else if !host.is_attached(&name) {
                not_yet("volume not attached according to node status")
            } else {
                plugin.check_attached(spec, host).await
            };
            let Err(error) = checked else { return Ok(()) };
            debug!(volume = name, %error, "volume is not attached yet");
            if self.clock.now() >= until {
                return Err(match plugin.is_limit_reached(spec, host).await {
                    Ok(true) => StepError::LimitReached(error.to_string()),
                    _ => error,
                });
            }
            tokio::select! {
                () = self.clock.sleep(backoff.step()) => {}
                () = cancel.cancelled() => return Err(error),
            }
        }
    }

    async fn stage(
        &self,
        key: &Key,
        plugin: &dyn StoragePlugin,
        spec: &Spec,
        pod: &Pod,
    ) -> Step<()> {
        let before = self.with(key, |entry| entry.staged);
        if before == Some(Progress::Yes) || !plugin.stages(spec, &*self.host).await? {
            return Ok(());
        }
        self.with(key, |entry| entry.staged = Progress::Maybe);
        let before = before.unwrap_or(Progress::No);
        let outcome = plugin.stage(spec, pod, &*self.host).await;
        let after = match (&outcome, before) {
            // An earlier attempt may have staged it, and this error does not exclude that.
            (Err(_), Progress::Maybe) => Progress::Maybe,
            _ => progress(&outcome, before),
        };
        let staged = self.with(key, |entry| {
            entry.staged = after;
            entry.staged(key)
        });
        if let (Err(_), Progress::No, Some(staged)) = (&outcome, after, staged) {
            // A driver may return an error and leave a mount: it is unstaged after the last pod.
            if let Err(error) = plugin.forget_stage(&staged, &*self.host).await {
                warn!(volume = %key, %error, "volume may be staged after an error");
                self.with(key, |entry| entry.staged = Progress::Maybe);
            }
        }
        outcome
    }

    async fn publish(
        &self,
        key: &Key,
        plugin: &dyn StoragePlugin,
        spec: &Spec,
        pod: &Pod,
        again: bool,
    ) -> Step<PathBuf> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let gone = || StepError::NotTried("the pod has ended".to_owned());
        let (user, is_shared) = self
            .with(key, |entry| {
                let others = entry.users.values();
                let shared = others
                    .filter(|user| user.mount.pod != uid)
                    .any(|user| user.published != Progress::No);
                entry.users.get(uid).cloned().map(|user| (user, shared))
            })
            .flatten()
            .ok_or_else(gone)?;
        if let (Progress::Yes, Some(path), false) = (user.published, &user.path, again) {
            return Ok(path.clone());
        }
        let set = |published: Progress, path: Option<PathBuf>| {
            self.with(key, |entry| {
                if let Some(user) = entry.users.get_mut(uid) {
                    user.published = published;
                    user.path = path.or(user.path.take());
                }
            });
        };
        if user.published == Progress::No {
            set(Progress::Maybe, None);
        }
        let request = Publish {
            pod,
            spec,
            mount: &user.mount,
            may_be_used: user.published != Progress::No,
            is_in_place: user.published == Progress::Yes,
            is_shared,
        };
        let outcome = plugin.publish(&request, &*self.host).await;
        // A volume that the pod may use stays published, whatever the result of republishing.
        let after = match user.published {
            Progress::No => progress(&outcome, Progress::No),
            before if outcome.is_err() => before,
            _ => Progress::Yes,
        };
        set(after, outcome.as_ref().ok().cloned());
        outcome
    }

    /// Removes all volumes of a pod. A failure does not affect the others; the first one is
    /// returned, and the pod keeps that volume.
    pub async fn tear_down(&self, pod: &str) -> Result<(), Failure> {
        let keys: Vec<Key> = {
            let volumes = self.volumes.lock();
            let of_pod = volumes.iter();
            let of_pod = of_pod.filter(|(_, entry)| entry.users.contains_key(pod));
            of_pod.map(|(key, _)| key.clone()).collect()
        };
        let downs = keys.iter().map(|key| self.unpublish(key, pod));
        let outcomes = futures::future::join_all(downs).await;
        outcomes.into_iter().collect::<Result<Vec<()>, _>>()?;
        Ok(())
    }

    async fn unpublish(&self, key: &Key, pod: &str) -> Result<(), Failure> {
        let Some(steps) = self.with(key, |entry| entry.steps.clone()) else {
            return Ok(());
        };
        let _guard = steps.lock_owned().await;
        let found = self.with(key, |entry| {
            Some((entry.plugin, entry.users.get(pod)?.clone()))
        });
        let Some((plugin, user)) = found.flatten() else {
            return Ok(());
        };
        if user.published != Progress::No {
            self.with(key, |entry| {
                if let Some(user) = entry.users.get_mut(pod) {
                    user.published = Progress::Maybe;
                }
            });
            let begun = Instant::now();
            let down = plugin.unpublish(&user.mount, &*self.host).await;
            let name = match user.mount.is_block {
                true => "unmap_volume",
                false => "volume_unmount",
            };
            self.report(key, name, begun, down.is_ok());
            down.map_err(|error| Failure {
                step: match user.mount.is_block {
                    true => "UnmapVolume.UnmapPodDevice",
                    false => "UnmountVolume.TearDown",
                },
                volume: user.mount.name.clone(),
                error,
            })?;
        }
        self.with(key, |entry| entry.users.remove(pod));
        self.leave(key);
        Ok(())
    }

    /// After the last pod, [`Manager::run`] unstages the volume.
    fn leave(&self, key: &Key) {
        let mut volumes = self.volumes.lock();
        let Some(entry) = volumes.get(key).filter(|entry| entry.is_idle()) else {
            return;
        };
        if entry.staged == Progress::No {
            volumes.remove(key);
            drop(volumes);
            self.show_in_use();
        } else {
            // The inbox lives as long as the manager.
            let _ = self.idle.send(key.clone());
        }
    }

    pub(super) fn with<T>(&self, key: &Key, change: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        self.volumes.lock().get_mut(key).map(change)
    }
}

/// The state of a step after this result.
fn progress<T>(outcome: &Step<T>, before: Progress) -> Progress {
    match outcome {
        Ok(_) => Progress::Yes,
        Err(StepError::NotTried(_) | StepError::LimitReached(_)) => before,
        Err(StepError::Failed(_)) => Progress::No,
        Err(StepError::Uncertain(_)) => Progress::Maybe,
    }
}

/// The step names in events.
struct StepNames {
    attach: &'static str,
    stage: &'static str,
    publish: &'static str,
}

impl StepNames {
    fn for_spec(spec: &Spec) -> Self {
        match spec.is_block {
            true => Self {
                attach: "MapVolume.WaitForAttach",
                stage: "MapVolume.SetUpDevice",
                publish: "MapVolume.MapPodDevice",
            },
            false => Self {
                attach: "MountVolume.WaitForAttach",
                stage: "MountVolume.MountDevice",
                publish: "MountVolume.SetUp",
            },
        }
    }
}
