//! The tasks: each calls the runtime, the file system or the kernel. None knows the worker.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use client::Api;
use cri::v1;
use k8s_openapi::api::{core::v1::Pod, node::v1::RuntimeClass};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{
    Error, Result, cgroups, claims,
    core::Core,
    logs::links,
    make::{
        self,
        resources::{self, Bounds},
    },
    node::cgroup_driver,
    pod::spec,
    start::sandbox_config,
    volumes::{self, Mounted},
};

/// The name of the built-in runtime. Its sandboxes need no cgroup of the pod before the first container starts.
const BUILT_IN: &str = "mainstay";

pub(super) async fn set_up_volumes(
    core: &Core,
    pod: &Arc<Pod>,
    stop: &CancellationToken,
) -> Result<Mounted> {
    let dir = core.pod_dir(spec::uid(pod));
    std::fs::create_dir_all(&dir).map_err(Error::io(&dir))?;
    volumes::set_up(core, pod, false, stop).await
}

pub(super) async fn create_sandbox(
    core: &Arc<Core>,
    pod: &Arc<Pod>,
    attempt: u32,
) -> Result<String> {
    claims::check(core, pod).await?;
    if spec::spec(pod).host_users == Some(false) {
        return Err(Error::Other(
            "user namespaces are not supported by this node".into(),
        ));
    }
    let handler = runtime_handler(core, pod).await?;
    cgroup_driver::determine(core).await?;
    let config = sandbox_config(core, pod, attempt);
    let logs = config.log_directory.clone();
    std::fs::create_dir_all(&logs).map_err(Error::io(&logs))?;
    if core.config.shares_pod_logs_dir {
        let marked = links::mark(logs.as_ref(), &core.config.root_dir);
        marked.map_err(Error::io(&logs))?;
    }
    if attempt > 0 {
        let message = "Pod sandbox changed, it will be killed and re-created.";
        core.events.normal(pod, "SandboxChanged", message);
    }
    let request = v1::RunPodSandboxRequest {
        config: Some(config),
        runtime_handler: handler,
    };
    let mut runtime = core.runtime.client.clone().runtime;
    let run = async {
        let (handler, begun) = (request.runtime_handler.clone(), Instant::now());
        let answer = runtime.run_pod_sandbox(request).await;
        let lives = &core.metrics.lives;
        lives.sandbox_run(&handler, begun.elapsed(), answer.is_ok());
        Ok::<_, Error>(answer?.into_inner().pod_sandbox_id)
    };
    // Others have a process in the sandbox, which begins in the pod's cgroup.
    if core.runtime.known_name() != BUILT_IN {
        make_cgroup(core, pod)?;
        return run.await;
    }
    let (shared, of) = (core.clone(), pod.clone());
    let made = core.blocking.run(move || make_cgroup(&shared, &of));
    let (made, ran) = tokio::join!(made, run);
    let made = made.unwrap_or_else(|panic| Err(Error::PodCgroup(panic.to_string())));
    if let (Err(_), Ok(id)) = (&made, &ran) {
        remove_surely(core, id).await;
    }
    made.and(ran)
}

fn make_cgroup(core: &Core, pod: &Pod) -> Result<()> {
    let make = || cgroups::ensure_pod(core, pod);
    core.metrics.cgroup_managed("create", make)
}

/// Removes a sandbox in which nothing may start: while this runs, nothing does.
async fn remove_surely(core: &Core, id: &str) {
    while let Err(status) = core.runtime.remove_sandbox(id).await {
        warn!(sandbox = id, error = status.message(), "cannot remove");
        core.config.clock.sleep(Duration::from_secs(1)).await;
    }
}

/// Resizes containers to the resources in the pod's spec; returns the resources that the runtime accepted, and the
/// error if it did not accept all. The limits of the pod's cgroup are raised before those of its containers, and
/// lowered after them.
pub(super) async fn resize(
    core: &Core,
    pod: &Pod,
    containers: &[(String, String)],
) -> (Vec<(String, Bounds)>, Option<String>) {
    let grow = || cgroups::grow_pod(core, pod);
    let mut failure: Option<Error> = core.metrics.cgroup_managed("update", grow).err();
    let mut accepted = Vec::new();
    for (id, name) in containers {
        let Some((_, container)) = spec::find(pod, name) else {
            continue;
        };
        let resources = resources::of_container(pod, &container, core.node_limits());
        let request = v1::UpdateContainerResourcesRequest {
            container_id: id.clone(),
            linux: Some(resources),
            ..Default::default()
        };
        let mut runtime = core.runtime.client.clone().runtime;
        match runtime.update_container_resources(request).await {
            Ok(_) => accepted.push((
                id.clone(),
                Bounds::wanted(pod, &container, core.settings().cfs_quota()),
            )),
            Err(status) => failure = Some(status.into()),
        }
    }
    let set = || cgroups::ensure_pod(core, pod);
    let bounds = core.metrics.cgroup_managed("update", set);
    let error = failure.map_or(bounds, Err).err();
    if let Some(error) = &error {
        warn!(pod = spec::described(pod), %error, "cannot resize pod");
    }
    (accepted, error.map(|error| error.to_string()))
}

/// Removes ended containers, so that the pod starts again. The next evaluation retries failures.
pub(super) async fn remove_containers(core: &Core, containers: &[String]) {
    for id in containers {
        if let Err(status) = core.runtime.remove_container(id).await {
            warn!(container = id, error = status.message(), "cannot remove");
            core.config.clock.sleep(Duration::from_secs(1)).await;
            return;
        }
    }
}

/// The handler of the pod's RuntimeClass.
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

pub(super) async fn stop_sandbox(core: &Core, id: &str) {
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

pub(super) async fn remove_everything(core: &Core, pod: &Pod) -> Result<()> {
    let uid = spec::uid(pod);
    let observed = core.runtime.observe(uid, &mut Default::default()).await?;
    for container in &observed.containers {
        core.runtime.remove_container(&container.id).await?;
        let dir = &core.config.container_logs_dir;
        let link = links::path(dir, pod, &container.name, &container.id);
        links::remove(&link).map_err(Error::io(&link))?;
    }
    for sandbox in &observed.sandboxes {
        core.runtime.remove_sandbox(&sandbox.id).await?;
    }
    volumes::tear_down(core, uid).await?;
    let logs = &core.config.pod_logs_dir.to_string_lossy();
    volumes::remove_dir(core, core.pod_dir(uid)).await?;
    volumes::remove_dir(core, make::sandbox::log_directory(logs, pod).into()).await?;
    let remove = || cgroups::remove_pod(&core.cgroup_root(), uid);
    core.metrics.cgroup_managed("destroy", remove);
    Ok(())
}
