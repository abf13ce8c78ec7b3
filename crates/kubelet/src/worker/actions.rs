//! Carrying out what was decided, and taking in how it went.

use std::{sync::Arc, time::Duration};

use cri::v1;
use futures::FutureExt;
use k8s_openapi::api::{core::v1::Pod, node::v1::RuntimeClass};
use kube::Api;
use reconcile::Kind;
use tracing::{info, warn};

use super::{Worker, report::Answer};
use crate::{
    Error, Result, cgroups,
    core::Core,
    hooks,
    make::resources,
    pod::{
        decide::Action,
        memory::{SandboxFailure, StartFailure, Task, Volumes},
        observed::Observed,
        spec,
    },
    start::{self, Failure, Start, sandbox_config},
    volumes::{self, Mounted},
};

/// The longest time between two tries of the same thing.
const CAP: Duration = Duration::from_secs(300);

/// Ended work.
pub enum Done {
    Volumes(Result<Mounted>),
    Refreshed(Result<Mounted>),
    Sandbox(Result<String>),
    Started(String, std::result::Result<bool, Failure>),
    /// Nothing to take in but that the runtime changed.
    Ended(Task),
    TornDown(Result<()>),
    Written(std::result::Result<Answer, kube::Error>),
    Deleted(std::result::Result<(), kube::Error>),
}

fn delay(first: Duration, times: u32, cap: Duration) -> Duration {
    first.saturating_mul(1 << times.min(16)).min(cap)
}

impl Worker {
    /// Begins an action.
    pub(super) fn act(&mut self, action: Action) {
        let task = action.task();
        let core = self.core.clone();
        let pod = self.pod.clone();
        let mut grace_of_kill = 0;
        let future = match action {
            Action::SetUpVolumes => {
                async move { Done::Volumes(set_up_volumes(&core, &pod).await) }.boxed()
            }
            Action::CreateSandbox { attempt } => {
                async move { Done::Sandbox(create_sandbox(&core, &pod, attempt).await) }.boxed()
            }
            Action::StopSandbox { id } => async move {
                stop_sandbox(&core, &id).await;
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
            Action::Kill {
                id,
                name,
                message,
                grace,
                ..
            } => {
                grace_of_kill = grace;
                core.events
                    .container(&pod, &name, Kind::Normal, "Killing", message);
                let ips = self.pod_ips();
                async move {
                    hooks::kill(&core, &pod, &id, &name, &ips, grace).await;
                    Done::Ended(Task::Kill(id))
                }
                .boxed()
            }
            Action::Resize { containers } => async move {
                if let Err(error) = resize(&core, &pod, &containers).await {
                    warn!(pod = spec::described(&pod), %error, "cannot resize");
                    core.events.warning(&pod, "ResizeError", error.to_string());
                    core.config.clock.sleep(Duration::from_secs(5)).await;
                }
                Done::Ended(Task::Resize)
            }
            .boxed(),
            Action::TearDown => {
                let uid = self.uid.clone();
                async move { Done::TornDown(volumes::tear_down(&core, &uid).await) }.boxed()
            }
        };
        self.memory.running.insert(task, grace_of_kill);
        self.work.push(future);
    }

    fn start(
        &self,
        name: String,
        restart_count: u32,
    ) -> Option<futures::future::BoxFuture<'static, Done>> {
        let sandbox = self.observed.sandboxes.first()?.clone();
        let (core, pod, volumes) = (
            self.core.clone(),
            self.pod.clone(),
            self.volume_paths.clone(),
        );
        let (observed, ips, cancel) = (self.observed.clone(), self.pod_ips(), self.starts.clone());
        let future = async move {
            let outcome = start::start(
                &core,
                &Start {
                    pod: &pod,
                    name: &name,
                    restart_count,
                    sandbox_id: &sandbox.id,
                    sandbox_attempt: sandbox.attempt,
                    pod_ips: &ips,
                    volumes: &volumes,
                    observed: &observed,
                    cancel: &cancel,
                },
            )
            .await;
            Done::Started(name, outcome)
        };
        Some(future.boxed())
    }

    /// Takes in how work ended.
    pub(super) fn finish(&mut self, done: Done) {
        match done {
            Done::Volumes(outcome) => self.finish_volumes(outcome),
            Done::Refreshed(outcome) => {
                self.refreshing = false;
                match outcome {
                    Ok(mounted) => self.refresh_at = mounted.refresh_at,
                    Err(error) => {
                        warn!(pod = self.uid, %error, "cannot refresh volumes");
                        self.refresh_at = Some(self.core.now() + Duration::from_secs(10));
                    }
                }
            }
            Done::Sandbox(outcome) => self.finish_sandbox(outcome),
            Done::Started(name, outcome) => self.finish_start(name, outcome),
            Done::Ended(task) => {
                self.memory.running.remove(&task);
                self.stale = true;
            }
            Done::TornDown(outcome) => {
                self.memory.running.remove(&Task::TearDown);
                self.memory.volumes = Volumes::Gone;
                if let Err(error) = outcome {
                    // The rest is taken away with the pod's directory, or at the next start.
                    warn!(pod = self.uid, %error, "cannot take down volumes");
                }
            }
            Done::Written(outcome) => self.finish_write(outcome),
            Done::Deleted(outcome) => self.finish_delete(outcome),
        }
    }

    fn finish_volumes(&mut self, outcome: Result<Mounted>) {
        self.memory.running.remove(&Task::SetUpVolumes);
        match outcome {
            Ok(mounted) => {
                self.volume_paths = Arc::new(mounted.paths);
                self.refresh_at = mounted.refresh_at;
                self.memory.volumes = Volumes::Ready;
                self.volume_failures = 0;
            }
            Err(error) => {
                self.core
                    .events
                    .warning(&self.pod, "FailedMount", error.to_string());
                let wait = delay(Duration::from_millis(500), self.volume_failures, CAP);
                self.volume_failures += 1;
                self.memory.volumes = Volumes::Failed {
                    retry_at: self.core.now() + wait,
                };
            }
        }
    }

    fn finish_sandbox(&mut self, outcome: Result<String>) {
        self.memory.running.remove(&Task::CreateSandbox);
        self.stale = true;
        match outcome {
            Ok(id) => {
                info!(
                    pod = spec::described(&self.pod),
                    sandbox = id,
                    "sandbox created"
                );
                self.memory.sandbox_failure = None;
            }
            Err(error) => {
                let message = format!("Failed to create pod sandbox: {error}");
                self.core
                    .events
                    .warning(&self.pod, "FailedCreatePodSandBox", message);
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

    fn finish_start(&mut self, name: String, outcome: std::result::Result<bool, Failure>) {
        self.memory.running.remove(&Task::Start(name.clone()));
        self.stale = true;
        let failure = match outcome {
            Ok(_) => {
                self.memory.failures.remove(&name);
                return;
            }
            Err(failure) => failure,
        };
        let times = self
            .memory
            .failures
            .get(&name)
            .map_or(0, |failure| failure.times);
        let wait = if failure.is_pull {
            delay(Duration::from_secs(10), times, CAP)
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

    /// Takes away everything that the pod has left on this node.
    pub(super) async fn clean_up(&mut self) {
        let core = &self.core;
        for probing in self.probing.values() {
            probing.stop.cancel();
        }
        core.sources.release(&self.uid);
        let mut delay = stdx::Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
        while let Err(error) = remove_everything(core, &self.uid, &mut self.observed).await {
            warn!(pod = self.uid, %error, "cannot clean up");
            core.config.clock.sleep(delay.step()).await;
        }
        remove_dirs(core, &self.pod).await;
        core.registry.remove(&self.uid);
    }
}

async fn set_up_volumes(core: &Core, pod: &Pod) -> Result<Mounted> {
    let dir = core.pod_dir(spec::uid(pod));
    std::fs::create_dir_all(&dir).map_err(Error::io(&dir))?;
    volumes::set_up(core, pod).await
}

async fn create_sandbox(core: &Core, pod: &Pod, attempt: u32) -> Result<String> {
    if spec::spec(pod).host_users == Some(false) {
        return Err(Error::Other(
            "user namespaces are not supported by this node".into(),
        ));
    }
    let handler = runtime_handler(core, pod).await?;
    cgroups::ensure_pod(&core.config.cgroup_root, pod)?;
    let config = sandbox_config(core, pod, attempt);
    let logs = config.log_directory.clone();
    std::fs::create_dir_all(&logs).map_err(Error::io(&logs))?;
    if attempt > 0 {
        let message = "Pod sandbox changed, it will be killed and re-created.";
        core.events.normal(pod, "SandboxChanged", message);
    }
    let request = v1::RunPodSandboxRequest {
        config: Some(config),
        runtime_handler: handler,
    };
    let answer = core
        .runtime
        .client
        .clone()
        .runtime
        .run_pod_sandbox(request)
        .await?;
    Ok(answer.into_inner().pod_sandbox_id)
}

/// The pod's own bounds grow before its containers do and shrink after them.
async fn resize(core: &Core, pod: &Pod, containers: &[(String, String)]) -> Result<()> {
    cgroups::grow_pod(&core.config.cgroup_root, pod);
    for (id, name) in containers {
        let Some((_, container)) = spec::find(pod, name) else {
            continue;
        };
        let resources = resources::of_container(pod, &container, core.machine.memory);
        let request = v1::UpdateContainerResourcesRequest {
            container_id: id.clone(),
            linux: Some(resources),
            ..Default::default()
        };
        core.runtime
            .client
            .clone()
            .runtime
            .update_container_resources(request)
            .await?;
    }
    cgroups::ensure_pod(&core.config.cgroup_root, pod)?;
    let message = "Pod resize completed";
    core.events.normal(pod, "ResizeCompleted", message);
    Ok(())
}

/// The runtime's handler for the pod's class.
async fn runtime_handler(core: &Core, pod: &Pod) -> Result<String> {
    let Some(name) = spec::spec(pod)
        .runtime_class_name
        .as_deref()
        .filter(|name| !name.is_empty())
    else {
        return Ok(String::new());
    };
    let classes: Api<RuntimeClass> = Api::all(core.config.client.clone());
    let class = classes.get_opt(name).await?;
    class
        .map(|class| class.handler)
        .ok_or_else(|| Error::Other(format!("RuntimeClass {name:?} not found")))
}

async fn stop_sandbox(core: &Core, id: &str) {
    let request = v1::StopPodSandboxRequest {
        pod_sandbox_id: id.to_owned(),
    };
    if let Err(status) = core
        .runtime
        .client
        .clone()
        .runtime
        .stop_pod_sandbox(request)
        .await
        && status.code() != tonic::Code::NotFound
    {
        warn!(
            sandbox = id,
            error = status.message(),
            "cannot stop sandbox"
        );
        core.config.clock.sleep(Duration::from_secs(1)).await;
    }
}

async fn remove_everything(core: &Core, uid: &str, observed: &mut Observed) -> Result<()> {
    *observed = core.runtime.observe(uid, &mut Default::default()).await?;
    for container in &observed.containers {
        core.runtime.remove_container(&container.id).await?;
    }
    for sandbox in &observed.sandboxes {
        core.runtime.remove_sandbox(&sandbox.id).await?;
    }
    volumes::tear_down(core, uid).await
}

async fn remove_dirs(core: &Core, pod: &Pod) {
    let dirs = [
        core.pod_dir(spec::uid(pod)),
        crate::make::sandbox::log_directory(&core.config.pod_logs_dir.to_string_lossy(), pod)
            .into(),
    ];
    for dir in dirs {
        if let Err(error) = tokio::fs::remove_dir_all(&dir).await
            && error.kind() != std::io::ErrorKind::NotFound
        {
            warn!(dir = %dir.display(), %error, "cannot remove");
        }
    }
    cgroups::remove_pod(&core.config.cgroup_root, pod);
}
