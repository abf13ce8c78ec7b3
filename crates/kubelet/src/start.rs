//! Starts one container: image, environment, mounts, create, start, postStart hook.

use std::{collections::BTreeMap, path::PathBuf};

use cri::v1;
use k8s_openapi::api::core::v1::{Container, Pod};
use reconcile::Kind;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{
    Error, Result, cgroups,
    core::Core,
    hooks,
    images::{self, RequiredImage},
    logs::links,
    make::{self, env::Problem, mounts, security},
    node::cgroup_driver,
    pod::{
        memory::Waiting,
        spec::{self, Role},
    },
    volumes::Mounted,
};

/// The inputs of a start.
pub(crate) struct Start<'a> {
    pub pod: &'a Pod,
    pub name: &'a str,
    pub restart_count: u32,
    pub sandbox_id: &'a str,
    pub sandbox_attempt: u32,
    pub pod_ips: &'a [String],
    pub volumes: &'a Mounted,
    /// The id of the container that an ephemeral container targets.
    pub target: Option<&'a str>,
    /// Cancelled when the pod stops: nothing new is created.
    pub cancel: &'a CancellationToken,
    /// Whether an earlier kubelet made the sandbox, which may have ended before the pod's cgroup had its limits.
    pub makes_cgroup: bool,
}

/// Why a start failed.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub waiting: Waiting,
    /// The waiting reason that is shown later.
    pub then: Option<Waiting>,
    /// Whether the image pull failed: its retry delays grow.
    pub is_pull: bool,
}

fn failure(reason: &str, message: impl Into<String>) -> Failure {
    let waiting = Waiting {
        reason: reason.to_owned(),
        message: message.into(),
    };
    Failure {
        waiting,
        then: None,
        is_pull: false,
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        failure("CreateContainerConfigError", problem.0)
    }
}

/// Starts the container, unless it is cancelled.
pub(crate) async fn start(core: &Core, start: &Start<'_>) -> std::result::Result<(), Failure> {
    let Some((role, container)) = spec::find(start.pod, start.name) else {
        return Ok(());
    };
    let images = tokio::select! {
        images = all_images(core, start.pod, &container) => images,
        () = start.cancel.cancelled() => return Ok(()),
    };
    let images = images.map_err(|no| Failure {
        waiting: no.waiting,
        then: no.then,
        is_pull: true,
    })?;
    let outcome = create_and_start(core, start, role, &container, images).await;
    let reason = outcome
        .as_ref()
        .err()
        .map(|failure| &*failure.waiting.reason);
    core.metrics.container_started(role, reason);
    if let Err(failure) = &outcome {
        let message = format!("Error: {}", failure.waiting.message);
        core.events
            .container(start.pod, start.name, Kind::Warning, "Failed", message);
    }
    outcome
}

/// The images of a container: its own, and those of image volumes by volume name.
struct Images {
    own: images::Image,
    mounted: BTreeMap<String, v1::ImageSpec>,
}

async fn all_images(
    core: &Core,
    pod: &Pod,
    container: &Container,
) -> std::result::Result<Images, images::NoImage> {
    let own = images::ensure(core, pod, RequiredImage::by(container)).await?;
    let mut mounted = BTreeMap::new();
    for volume in spec::spec(pod).volumes.iter().flatten() {
        let mut mounts = container.volume_mounts.iter().flatten();
        if let Some(source) = &volume.image
            && mounts.any(|mount| mount.name == volume.name)
        {
            let image =
                images::ensure(core, pod, RequiredImage::mounted_by(container, source)).await?;
            mounted.insert(volume.name.clone(), image.spec);
        }
    }
    Ok(Images { own, mounted })
}

async fn create_and_start(
    core: &Core,
    start: &Start<'_>,
    role: Role,
    container: &Container,
    images: Images,
) -> std::result::Result<(), Failure> {
    if start.makes_cgroup {
        let known = cgroup_driver::determine(core).await;
        known.map_err(|error| failure("CreateContainerError", error.to_string()))?;
        let made = cgroups::ensure_pod(core, start.pod);
        made.map_err(|error| failure("CreateContainerError", error.to_string()))?;
    }
    let config = container_config(core, start, role, container, images).await?;
    if start.cancel.is_cancelled() {
        return Ok(());
    }
    let mut runtime = core.runtime.client.clone().runtime;
    let request = v1::CreateContainerRequest {
        pod_sandbox_id: start.sandbox_id.to_owned(),
        config: Some(config),
        sandbox_config: Some(sandbox_config(core, start.pod, start.sandbox_attempt)),
    };
    let created = runtime
        .create_container(request)
        .await
        .map_err(|status| failure("CreateContainerError", status.message()))?;
    let id = created.into_inner().container_id;
    core.events.container(
        start.pod,
        start.name,
        Kind::Normal,
        "Created",
        "Container created",
    );
    let request = v1::StartContainerRequest {
        container_id: id.clone(),
    };
    runtime
        .start_container(request)
        .await
        .map_err(|status| failure("RunContainerError", status.message()))?;
    link_log(core, start, &id);
    core.events.container(
        start.pod,
        start.name,
        Kind::Normal,
        "Started",
        "Container started",
    );
    post_start(core, start, container, &id).await
}

/// Makes the link to the log. Without it the container still runs and its log can be read.
fn link_log(core: &Core, start: &Start<'_>, id: &str) {
    let config = &core.config;
    let logs = make::sandbox::log_directory(&config.pod_logs_dir.to_string_lossy(), start.pod);
    let file = format!("{}.log", start.restart_count);
    let log = std::path::Path::new(&logs).join(start.name).join(file);
    let link = links::path(&config.container_logs_dir, start.pod, start.name, id);
    if let Err(error) = links::make(&link, &log) {
        warn!(link = %link.display(), %error, "cannot create log link");
    }
}

/// Runs the postStart hook. If the pod stops meanwhile, the hook is cancelled and the container is
/// stopped like any other.
async fn post_start(
    core: &Core,
    start: &Start<'_>,
    container: &Container,
    id: &str,
) -> std::result::Result<(), Failure> {
    let lifecycle = container.lifecycle.as_ref();
    let Some(hook) = lifecycle.and_then(|lifecycle| lifecycle.post_start.as_ref()) else {
        return Ok(());
    };
    let outcome = tokio::select! {
        outcome = hooks::run(core, start.pod, container, id, start.pod_ips, hook) => outcome,
        () = start.cancel.cancelled() => return Ok(()),
    };
    let Err(error) = outcome else {
        return Ok(());
    };
    let message = "PostStartHook failed";
    let reason = "FailedPostStartHook";
    let events = &core.events;
    events.container(start.pod, start.name, Kind::Warning, reason, message);
    let grace = spec::grace_period(start.pod);
    hooks::stop_container(core, id, grace).await;
    Err(failure("PostStartHookError", error.to_string()))
}

fn seccomp_root(core: &Core) -> String {
    let root = core.config.root_dir.join("seccomp");
    root.to_string_lossy().into_owned()
}

fn seccomp_of_node<'a>(core: &Core, root: &'a str) -> security::Seccomp<'a> {
    security::Seccomp {
        root,
        by_default: core.settings().seccomp_default,
    }
}

async fn container_config(
    core: &Core,
    start: &Start<'_>,
    role: Role,
    container: &Container,
    images: Images,
) -> std::result::Result<v1::ContainerConfig, Failure> {
    let pod = start.pod;
    let needs = make::env::needs(container);
    let unavailable = |error: Error| failure("CreateContainerConfigError", error.to_string());
    let gathered = core
        .sources
        .gather(pod, &needs, core.now())
        .await
        .map_err(unavailable)?;
    let services = core.services_for(pod);
    let services: Vec<_> = services.iter().map(AsRef::as_ref).collect();
    let (node, host_ips) = (core.node_facts(), core.host_ips());
    let environment = make::env::environment(
        pod,
        container,
        &make::env::Inputs {
            objects: &gathered.objects,
            services: &services,
            node: &node,
            host_ips: &host_ips,
            pod_ips: start.pod_ips,
            volumes: &start.volumes.paths,
        },
    )?;
    let seccomp = seccomp_root(core);
    let security = security::of_container(
        pod,
        role,
        container,
        &images.own.user,
        start.target,
        seccomp_of_node(core, &seccomp),
    )?;
    let mounts = all_mounts(core, start, container, &environment, &images.mounted)?;
    let devices = mounts::devices(container, start.volumes)?;
    let inputs = make::container::Inputs {
        restart_count: start.restart_count,
        image: images.own.spec,
        environment,
        mounts,
        devices,
        security,
        resources: make::resources::of_container(pod, container, core.node_limits()),
    };
    Ok(make::container::config(pod, container, inputs)?)
}

fn all_mounts(
    core: &Core,
    start: &Start<'_>,
    container: &Container,
    environment: &[(String, String)],
    images: &BTreeMap<String, v1::ImageSpec>,
) -> std::result::Result<Vec<v1::Mount>, Failure> {
    let pod_dir = core.pod_dir(spec::uid(start.pod));
    let known: BTreeMap<String, String> = environment.iter().cloned().collect();
    let inputs = mounts::Inputs {
        pod_dir: &pod_dir,
        volumes: start.volumes,
        images,
        environment: &known,
        mounter: &core.mounter,
    };
    let mut all = mounts::of_volumes(start.pod, container, &inputs)?;
    let files = || -> Result<(PathBuf, PathBuf)> {
        Ok((hosts_file(core, start)?, message_file(core, start)?))
    };
    let (hosts, message) =
        files().map_err(|error| failure("CreateContainerConfigError", error.to_string()))?;
    all.extend(mounts::hosts(container, &hosts));
    all.extend(mounts::termination_message(container, &message));
    Ok(all)
}

/// Written again for every container, since the addresses may have changed.
fn hosts_file(core: &Core, start: &Start<'_>) -> Result<PathBuf> {
    let (hostname, domain) = make::dns::host_and_domain(start.pod, &core.config.cluster_domain);
    let node_hosts = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    let text = make::hosts::hosts(start.pod, start.pod_ips, &hostname, &domain, &node_hosts);
    let path = core.pod_dir(spec::uid(start.pod)).join("etc-hosts");
    std::fs::write(&path, text).map_err(Error::io(&path))?;
    readable_by_all(&path, 0o644)?;
    Ok(path)
}

fn message_file(core: &Core, start: &Start<'_>) -> Result<PathBuf> {
    let dir = core
        .pod_dir(spec::uid(start.pod))
        .join("containers")
        .join(start.name);
    std::fs::create_dir_all(&dir).map_err(Error::io(&dir))?;
    let path = dir.join(start.restart_count.to_string());
    std::fs::write(&path, "").map_err(Error::io(&path))?;
    // The container may run as any user and must be able to write its message.
    readable_by_all(&path, 0o666)?;
    Ok(path)
}

fn readable_by_all(path: &std::path::Path, mode: u32) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(Error::io(path))
}

/// The configuration of the pod's sandbox, for its creation and for its containers.
pub(crate) fn sandbox_config(core: &Core, pod: &Pod, attempt: u32) -> v1::PodSandboxConfig {
    let node = core.node_dns();
    let cluster_dns: Vec<String> = core
        .config
        .cluster_dns
        .iter()
        .map(ToString::to_string)
        .collect();
    make::sandbox::config(
        pod,
        attempt,
        &make::sandbox::Inputs {
            dns: make::dns::DnsFacts {
                cluster_dns: &cluster_dns,
                cluster_domain: &core.config.cluster_domain,
                node: &node,
            },
            pod_logs_dir: &core.config.pod_logs_dir.to_string_lossy(),
            cgroup_root: &core.cgroup_root(),
            cfs: core.settings().cfs_quota(),
            seccomp: seccomp_of_node(core, &seccomp_root(core)),
        },
    )
}
