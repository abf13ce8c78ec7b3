//! Starts the decided actions, and handles their results.

use std::time::Duration;

use futures::{FutureExt, future::BoxFuture};
use reconcile::Kind;
use tracing::{info, warn};

use super::{Worker, report::Answer, resize_events, runtime_view::Effect, shrink, tasks};
use crate::{
    Error, Result,
    admit::Refusal,
    dispatch, hooks,
    make::resources::Bounds,
    pod::{
        decide::Action,
        memory::{Replaced, ResizeFailure, SandboxFailure, StartFailure, Task, Volumes},
        spec,
    },
    registry::Message,
    start::{self, Failure, Start},
    volumes::{self, Mounted},
};

/// The maximum delay between two attempts.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(300);

/// The same for persistent volumes, which may become ready at any time without notification.
const MOUNT_CAP: Duration = Duration::from_secs(122);
const WAITING_CAP: Duration = Duration::from_secs(10);

const RESIZE_RETRY: Duration = Duration::from_secs(5);

/// Ended work.
pub(super) enum Done {
    Volumes(Result<Mounted>),
    Refreshed(Result<Mounted>),
    Sandbox(Result<String>),
    /// The container's name, its restart count, and the result.
    Started(String, u32, std::result::Result<(), Failure>),
    /// The resources that the runtime accepted, by container id, and the error if it did not accept all.
    Resized(Vec<(String, Bounds)>, Option<String>),
    /// No result; the runtime's state may have changed.
    Ended(Task),
    TornDown(Result<()>),
    Written(std::result::Result<Answer, kube::Error>),
    Deleted(std::result::Result<(), kube::Error>),
}

fn delay(first: Duration, times: u32, cap: Duration) -> Duration {
    first.saturating_mul(1 << times.min(16)).min(cap)
}

impl Worker {
    /// Starts an action.
    pub(super) fn act(&mut self, action: &Action) {
        let task = action.task();
        let mut grace_of_kill = 0;
        let (core, pod) = (self.core.clone(), self.subject.size.shared().clone());
        let future = match action.clone() {
            Action::SetUpVolumes => {
                let stop = self.starts.clone();
                async move { Done::Volumes(tasks::set_up_volumes(&core, &pod, &stop).await) }
                    .boxed()
            }
            Action::CreateSandbox { attempt } => {
                async move { Done::Sandbox(tasks::create_sandbox(&core, &pod, attempt).await) }
                    .boxed()
            }
            Action::StopSandbox { id } => async move {
                tasks::stop_sandbox(&core, &id).await;
                Done::Ended(Task::StopSandbox(id))
            }
            .boxed(),
            Action::Start {
                name,
                restart_count,
                crash,
                ..
            } => {
                if let Some(crash) = crash {
                    self.memory.crashes.insert(name.clone(), crash);
                }
                match self.start(name, restart_count) {
                    Some(future) => future,
                    None => return,
                }
            }
            Action::Kill { grace, .. } => {
                grace_of_kill = grace;
                self.kill(action.clone())
            }
            Action::Reset { containers, crash } => {
                self.memory.crashes.insert(crash.0, crash.1);
                let all = self.runtime.observed.containers.iter();
                let removed = all.filter(|seen| containers.contains(&seen.id));
                let removed = removed.map(|seen| (seen.name.clone(), seen.id.clone()));
                self.memory.reset.extend(removed);
                async move {
                    tasks::remove_containers(&core, &containers).await;
                    Done::Ended(Task::Reset)
                }
                .boxed()
            }
            Action::Resize { containers } => {
                self.memory.pod_grows = false;
                let shrinking = self.shrinking();
                async move {
                    let refused = shrink::refusal(&core, &pod, &shrinking).await;
                    let (sizes, error) = match refused {
                        Some(error) => (Vec::new(), Some(error)),
                        None => tasks::resize(&core, &pod, &containers).await,
                    };
                    Done::Resized(sizes, error)
                }
                .boxed()
            }
            Action::TearDown => {
                let uid = self.subject.uid.clone();
                async move { Done::TornDown(volumes::tear_down(&core, &uid).await) }.boxed()
            }
        };
        self.memory.running.insert(task, grace_of_kill);
        self.work.spawn(future);
    }

    fn kill(&mut self, action: Action) -> BoxFuture<'static, Done> {
        let (core, pod, ips) = (self.core.clone(), self.subject.pod.clone(), self.pod_ips());
        let Action::Kill {
            id,
            name,
            message,
            grace,
            restart,
            after,
            ..
        } = action
        else {
            // Only kills get here.
            return std::future::pending().boxed();
        };
        let events = &core.events;
        events.container(&pod, &name, Kind::Normal, "Killing", message);
        let was = self.runtime.observed.containers.iter().find(|c| c.id == id);
        if let (true, Some(was)) = (restart, was.cloned()) {
            let shown_until = None;
            let replaced = Replaced { was, shown_until };
            self.memory.replaced.insert(name.clone(), replaced);
        }
        let mut alive = self.alive.subscribe();
        async move {
            let turn = async {
                // Fails only if the worker is gone, and this task with it.
                let _ = alive
                    .wait_for(|alive| !after.iter().any(|name| alive.contains(name)))
                    .await;
            };
            hooks::kill(&core, &pod, &id, &name, &ips, grace, turn).await;
            Done::Ended(Task::Kill(id))
        }
        .boxed()
    }

    fn start(&self, name: String, restart_count: u32) -> Option<BoxFuture<'static, Done>> {
        let sandbox = self.runtime.observed.sandboxes.first()?;
        let (sandbox_id, sandbox_attempt) = (sandbox.id.clone(), sandbox.attempt);
        let target = spec::ephemeral_containers(&self.subject.pod)
            .iter()
            .find(|ephemeral| ephemeral.name == name)
            .and_then(|ephemeral| ephemeral.target_container_name.as_deref())
            .and_then(|target| self.runtime.observed.active(target))
            .map(|target| target.id.clone());
        let (core, pod) = (self.core.clone(), self.subject.size.shared().clone());
        let (volumes, ips, cancel) = (
            self.mounts.mounted.clone(),
            self.pod_ips(),
            self.starts.clone(),
        );
        let makes_cgroup = !self.has_cgroup;
        let future = async move {
            let outcome = start::start(
                &core,
                &Start {
                    pod: &pod,
                    name: &name,
                    restart_count,
                    sandbox_id: &sandbox_id,
                    sandbox_attempt,
                    pod_ips: &ips,
                    volumes: &volumes,
                    target: target.as_deref(),
                    cancel: &cancel,
                    makes_cgroup,
                },
            )
            .await;
            Done::Started(name, restart_count, outcome)
        };
        Some(future.boxed())
    }

    /// Handles the result of a task.
    pub(super) fn finish(&mut self, done: Done) {
        match done {
            Done::Volumes(outcome) => self.finish_volumes(outcome),
            Done::Refreshed(outcome) => self.finish_refresh(outcome),
            Done::Sandbox(outcome) => self.finish_sandbox(outcome),
            Done::Started(name, restarts, outcome) => self.finish_start(name, restarts, outcome),
            Done::Ended(task) => {
                self.memory.running.remove(&task);
                match task {
                    Task::Kill(id) => self.runtime.expect(Effect::Ended { id }),
                    _ => self.runtime.ask_again(),
                }
            }
            Done::Resized(sizes, error) => self.finish_resize(sizes, error),
            Done::TornDown(outcome) => self.finish_tear_down(outcome),
            Done::Written(outcome) => self.finish_write(outcome),
            Done::Deleted(outcome) => self.finish_delete(outcome),
        }
    }

    fn finish_resize(&mut self, sizes: Vec<(String, Bounds)>, error: Option<String>) {
        self.memory.running.remove(&Task::Resize);
        self.memory.sizes.extend(sizes);
        self.memory.pod_grows |= error.is_some();
        let pod = &self.subject.pod;
        if let Some(error) = &error {
            resize_events::failed(&self.core.events, pod, error);
        }
        let retry_at = self.core.now() + RESIZE_RETRY;
        self.memory.resize_failure = error.map(|message| ResizeFailure { message, retry_at });
        self.runtime.ask_again();
    }

    fn finish_volumes(&mut self, outcome: Result<Mounted>) {
        self.memory.running.remove(&Task::SetUpVolumes);
        match outcome {
            Ok(mounted) => {
                // The pod may have got ephemeral containers with other volumes meanwhile.
                self.memory.volumes = match volumes::are_all_set_up(&self.subject.pod, &mounted) {
                    true => Volumes::Ready,
                    false => Volumes::Pending,
                };
                self.mounts.set(mounted);
            }
            Err(error) => {
                let (reason, cap) = match &error {
                    Error::Mount {
                        reason, is_waiting, ..
                    } => (*reason, if *is_waiting { WAITING_CAP } else { MOUNT_CAP }),
                    _ => ("FailedMount", MAX_RETRY_DELAY),
                };
                match &error {
                    Error::VolumeLimit(_) => self.reject(Refusal {
                        reason: "VolumeAttachmentLimitExceeded".into(),
                        message: error.to_string(),
                    }),
                    _ => {
                        let events = &self.core.events;
                        events.warning(&self.subject.pod, reason, error.to_string());
                    }
                }
                let times = match self.memory.volumes {
                    Volumes::Failed { times, .. } => times,
                    _ => 0,
                };
                let wait = delay(Duration::from_millis(500), times, cap);
                self.memory.volumes = Volumes::Failed {
                    retry_at: self.core.now() + wait,
                    times: times + 1,
                };
            }
        }
    }

    /// A volume that cannot be torn down keeps the pod's object until nothing is mounted.
    fn finish_tear_down(&mut self, outcome: Result<()>) {
        self.memory.running.remove(&Task::TearDown);
        let Err(error) = outcome else {
            self.memory.volumes = Volumes::Gone;
            return;
        };
        warn!(pod = self.subject.uid, %error, "cannot tear down volumes");
        let events = &self.core.events;
        events.warning(&self.subject.pod, "FailedUnmount", error.to_string());
        let times = match self.memory.volumes {
            Volumes::Stuck { times, .. } => times,
            _ => 0,
        };
        let wait = delay(Duration::from_millis(500), times, Duration::from_secs(120));
        self.memory.volumes = Volumes::Stuck {
            retry_at: self.core.now() + wait,
            times: times + 1,
        };
    }

    fn finish_sandbox(&mut self, outcome: Result<String>) {
        self.memory.running.remove(&Task::CreateSandbox);
        self.core.metrics.sandbox_made(outcome.is_ok());
        let pod = &self.subject.pod;
        match outcome {
            Ok(id) => {
                info!(pod = spec::described(pod), sandbox = id, "sandbox created");
                self.memory.sandbox_failure = None;
                self.has_cgroup = true;
                self.runtime.expect(Effect::Sandbox { id });
            }
            Err(error) => {
                self.runtime.ask_again();
                let (reason, message) = match error {
                    Error::Claims(why) => (
                        "FailedPrepareDynamicResources",
                        format!("Failed to prepare dynamic resources: {why}"),
                    ),
                    Error::PodCgroup(_) => ("FailedCreatePodContainer", error.to_string()),
                    error => (
                        "FailedCreatePodSandBox",
                        format!("Failed to create pod sandbox: {error}"),
                    ),
                };
                self.core.events.warning(pod, reason, message);
                let times = self.memory.sandbox_failure.as_ref().map_or(0, |f| f.times);
                let wait = delay(Duration::from_secs(1), times, Duration::from_secs(10));
                let retry_at = self.core.now() + wait;
                self.memory.sandbox_failure = Some(SandboxFailure {
                    retry_at,
                    times: times + 1,
                });
            }
        }
    }

    fn finish_start(
        &mut self,
        name: String,
        restarts: u32,
        outcome: std::result::Result<(), Failure>,
    ) {
        self.memory.running.remove(&Task::Start(name.clone()));
        let Err(failure) = outcome else {
            self.memory.failures.remove(&name);
            self.runtime.expect(Effect::Started { name, restarts });
            return;
        };
        self.runtime.ask_again();
        let before = self.memory.failures.get(&name);
        let times = before.map_or(0, |failure| failure.times);
        let wait = if failure.is_pull {
            delay(Duration::from_secs(10), times, MAX_RETRY_DELAY)
        } else {
            Duration::from_secs(10)
        };
        let now = self.core.now();
        let failure = StartFailure {
            waiting: failure.waiting,
            then: failure
                .then
                .map(|then| (now + Duration::from_secs(3), then)),
            retry_at: now + wait,
            times: times + 1,
        };
        self.memory.failures.insert(name, failure);
    }

    /// Removes everything that the pod has left on this node.
    pub(super) async fn clean_up(&mut self) {
        self.probing.stop();
        let (core, uid) = (&self.core, &self.subject.uid);
        core.sources.release(uid);
        core.release(uid);
        let mut delay = stdx::Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
        while let Err(error) = tasks::remove_everything(core, &self.subject.pod).await {
            warn!(pod = uid, %error, "cannot clean up");
            core.config.clock.sleep(delay.step()).await;
        }
        core.registry.remove(uid);
        // From now on nothing is sent to this worker.
        let mut next = std::mem::take(&mut self.next);
        while let Ok(message) = self.inbox.try_recv() {
            next.take(&message);
        }
        if let Some(pod) = next.pod {
            dispatch::dispatch_pod(core, pod);
            core.registry.send(uid, Message::Mirror(next.shown));
        }
    }
}
