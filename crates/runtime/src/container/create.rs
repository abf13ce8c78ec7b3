//! Creates a container: its root file system, its OCI configuration and its record. No process yet.

use std::{
    fs,
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use cri::v1::{ContainerConfig, Signal};
use tokio::sync::watch;

use super::{Container, Facts, Phase, Status, dir};
use crate::{
    cgroup::Cgroup,
    disk,
    engine::Engine,
    error::{Error, Result},
    id,
    images::Image,
    rooted,
    sandbox::Sandbox,
    signals,
    snapshot::Measured,
    spec::{self, BoundImage, Built, Inputs},
    stamp,
};

impl Engine {
    /// Creates a container and returns its id.
    pub(crate) async fn create_container(
        self: &Arc<Self>,
        sandbox_id: &str,
        config: ContainerConfig,
    ) -> Result<String> {
        let sandbox = self.sandbox(sandbox_id)?;
        if !sandbox.is_ready() {
            return Err(Error::Precondition(format!(
                "sandbox {sandbox_id} is not ready"
            )));
        }
        if config
            .metadata
            .as_ref()
            .is_none_or(|metadata| metadata.name.is_empty())
        {
            return Err(Error::Invalid("a container needs a name".into()));
        }
        let wanted = config.image.clone().unwrap_or_default().image;
        let id = id::generate();
        let cgroup = self.cgroup_of(&sandbox, &id);
        let (engine, new) = (self.clone(), id.clone());
        let made = self
            .blocking(move || {
                let _lease = engine.images.lease()?;
                let image = engine.images.need(&wanted)?;
                std::thread::scope(|scope| {
                    let thread = std::thread::Builder::new().name("cgroup".into());
                    let cgroup = || engine.prepare_cgroup(&sandbox, &new);
                    // Without the thread the cgroup is made when the container starts.
                    let _ = thread.spawn_scoped(scope, cgroup);
                    engine.make_container(&sandbox, &new, config, &image)
                })
            })
            .await?;
        match made {
            Ok(container) => {
                self.containers
                    .write()
                    .insert(id.clone(), container.clone());
                self.announce(
                    &container,
                    cri::v1::ContainerEventType::ContainerCreatedEvent,
                );
                Ok(id)
            }
            Err(error) => {
                self.discard_container_dir(&dir(&self.config, &id)).await;
                let _ = Cgroup::new(cgroup).remove();
                Err(error)
            }
        }
    }

    fn cgroup_of(&self, sandbox: &Sandbox, id: &str) -> String {
        let parent = sandbox.facts.cgroup_parent.trim_end_matches('/');
        self.config.container_cgroup(parent, id)
    }

    /// Makes the container's cgroup, which on cgroup v1 takes longer than all other files: one directory for each
    /// controller. systemd and other OCI runtimes make theirs themselves.
    fn prepare_cgroup(&self, sandbox: &Sandbox, id: &str) {
        if self.config.systemd_cgroups || self.config.handlers.contains_key(&sandbox.facts.handler)
        {
            return;
        }
        if let Err(error) = Cgroup::new(self.cgroup_of(sandbox, id)).create() {
            // The start tries again, and reports the error.
            tracing::debug!(container = id, %error, "cannot make a cgroup");
        }
    }

    fn make_container(
        &self,
        sandbox: &Sandbox,
        id: &str,
        config: ContainerConfig,
        image: &Image,
    ) -> Result<Arc<Container>> {
        let dir = dir(&self.config, id);
        fs::create_dir_all(&dir).map_err(Error::file(&dir))?;
        disk::record(&dir.join("status.json"), &Status::default())?;
        let rootfs = self.snapshots.root(&self.images.layer_dirs(image), &dir)?;
        let mut layers = image.layers.clone();
        let bound_images = self.bind_images(&dir, &config, &mut layers)?;
        let parent = sandbox.facts.cgroup_parent.trim_end_matches('/');
        let cgroup = self.cgroup_of(sandbox, id);
        let mut built = spec::build(&Inputs {
            config: &config,
            sandbox: &sandbox.config,
            pins: &sandbox.facts.pins,
            target_pid: self.target_pid(&config),
            pod_files: &sandbox.pod_files(),
            image: &image.config,
            bound_images: &bound_images,
            rootfs: &rootfs,
            cgroup: &cgroup,
            lowest_oom_score: self.lowest_oom_score,
            cdi_dirs: &self.config.cdi_dirs,
        })?;
        make_working_dir(&rootfs, &built);
        let oci_runtime = self.config.handlers.get(&sandbox.facts.handler).cloned();
        if oci_runtime.is_some() {
            built.spec["linux"]["cgroupsPath"] = self.config.oci_cgroup(parent, id).into();
        }
        disk::save(&dir.join("config.json"), &built.spec)?;
        let facts = Facts {
            sandbox: sandbox.id.clone(),
            created_at: stamp::now(),
            image_id: image.id.clone(),
            image_ref: image.reference(),
            layers,
            cgroup,
            log: log_path(&sandbox.config.log_directory, &config.log_path)?,
            identity: built.identity,
            shares_pids: built.shares_pids,
            stop_signal: stop_signal(&config, &image.config.stop_signal)?,
            oci_runtime,
        };
        disk::save_message(&dir.join("config.pb"), &config)?;
        disk::save(&dir.join("facts.json"), &facts)?;
        let status = Status {
            phase: Phase::Created,
            ..Status::default()
        };
        disk::record(&dir.join("status.json"), &status)?;
        Ok(Arc::new(Container {
            id: id.to_owned(),
            config,
            facts,
            status: watch::Sender::new(status),
            limits: parking_lot::Mutex::default(),
            dir,
            measured: Measured::default(),
            changing: tokio::sync::Mutex::default(),
        }))
    }

    /// Mounts the image volumes of the container, and returns their layers.
    fn bind_images(
        &self,
        dir: &Path,
        config: &ContainerConfig,
        layers: &mut Vec<String>,
    ) -> Result<Vec<BoundImage>> {
        let mut bound = Vec::new();
        for mount in &config.mounts {
            let Some(wanted) = &mount.image else { continue };
            let image = self.images.need(&wanted.image)?;
            layers.extend(image.layers.iter().cloned());
            let target = dir.join("images").join(bound.len().to_string());
            self.snapshots
                .view(&self.images.layer_dirs(&image), &target)?;
            let path = inside(&target, &mount.image_sub_path)?;
            bound.push(BoundImage {
                container_path: mount.container_path.clone(),
                path,
            });
        }
        Ok(bound)
    }

    fn target_pid(&self, config: &ContainerConfig) -> Option<i32> {
        let security = config.linux.as_ref()?.security_context.as_ref()?;
        let target = &security.namespace_options.as_ref()?.target_id;
        let container = self.container(target).ok()?;
        container.is_running().then(|| container.status().pid)
    }
}

/// A path in a mounted image, which cannot lead out of it.
fn inside(root: &Path, sub_path: &str) -> Result<PathBuf> {
    if sub_path.is_empty() {
        return Ok(root.to_path_buf());
    }
    let flags = nix::fcntl::OFlag::O_PATH;
    let opened = rooted::open(root, sub_path, flags).map_err(Error::file(root.join(sub_path)))?;
    use std::os::fd::AsRawFd;
    let link = format!("/proc/self/fd/{}", opened.as_raw_fd());
    fs::read_link(&link).map_err(Error::file(link))
}

/// Creates the working directory if the image lacks it; an error is reported when the process
/// starts.
fn make_working_dir(rootfs: &Path, built: &Built) {
    if let Some(cwd) = built.spec["process"]["cwd"].as_str() {
        let _ = rooted::create_dir_all(rootfs, cwd);
    }
}

fn log_path(directory: &str, path: &str) -> Result<Option<PathBuf>> {
    if directory.is_empty() || path.is_empty() {
        return Ok(None);
    }
    let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    if !Path::new(path).components().all(plain) {
        let message = format!("log path {path:?} leads out of {directory:?}");
        return Err(Error::Invalid(message));
    }
    Ok(Some(Path::new(directory).join(path)))
}

/// The stop signal of the pod, of the image, or SIGTERM.
fn stop_signal(config: &ContainerConfig, image: &str) -> Result<i32> {
    match Signal::try_from(config.stop_signal) {
        Ok(Signal::RuntimeDefault) => Ok(signals::number(image).unwrap_or(libc::SIGTERM)),
        Ok(signal) => {
            let name = signal.as_str_name().trim_start_matches("SIGNAL_");
            signals::number(name).ok_or_else(|| Error::Invalid(format!("unknown signal {name}")))
        }
        Err(_) => Err(Error::Invalid(format!(
            "unknown signal {}",
            config.stop_signal
        ))),
    }
}
