//! A runtime daemon of the test's own, with its own directories, cgroup and socket, a client, and a
//! cleanup that leaves nothing behind even if the test fails.

#![allow(dead_code, clippy::print_stderr)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use cri::v1;

pub(crate) const HELLO: &str = "mainstay.local/hello:latest";

pub(crate) struct Node {
    pub id: String,
    pub root: PathBuf,
    pub state: PathBuf,
    pub logs: PathBuf,
    pub cri: cri::Client,
    handlers: Vec<String>,
    /// A command that starts the daemon, such as `setpriv`.
    wrapper: Vec<String>,
    daemon: Option<Child>,
}

impl Node {
    /// Starts a daemon. These tests need root and fail without it.
    pub(crate) async fn start() -> Self {
        Self::with_handlers(&[]).await
    }

    /// On a machine without CAP_SYS_RESOURCE.
    pub(crate) async fn without_sys_resource() -> Self {
        let wrapper = [
            "setpriv",
            "--bounding-set=-sys_resource",
            "--inh-caps=-sys_resource",
        ];
        Self::with(&[], &wrapper).await
    }

    pub(crate) async fn with_handlers(handlers: &[&str]) -> Self {
        Self::with(handlers, &[]).await
    }

    async fn with(handlers: &[&str], wrapper: &[&str]) -> Self {
        assert!(
            nix::unistd::geteuid().is_root(),
            "tests of the runtime must run as root"
        );
        let id = format!("t{:07x}", rand() & 0xfff_ffff);
        let base = PathBuf::from(format!("/tmp/mainstay-{id}"));
        let state = PathBuf::from(format!("/run/mainstay-{id}"));
        let mut node = Self {
            root: base.join("data"),
            logs: base.join("logs"),
            cri: cri::connect(state.join("cri.sock")),
            state,
            id,
            handlers: handlers
                .iter()
                .map(|handler| (*handler).to_owned())
                .collect(),
            wrapper: wrapper.iter().map(|word| (*word).to_owned()).collect(),
            daemon: None,
        };
        fs::create_dir_all(&node.root).unwrap();
        node.launch().await;
        node
    }

    /// Starts the daemon process and waits until it answers.
    pub(crate) async fn launch(&mut self) {
        let log = self.root.parent().unwrap().join("daemon.log");
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .unwrap();
        let mut command = match self.wrapper.split_first() {
            Some((wrapper, options)) => {
                let mut command = Command::new(wrapper);
                command.args(options).arg(program());
                command
            }
            None => Command::new(program()),
        };
        let child = command
            .arg(&self.id)
            .arg(&self.root)
            .arg(&self.state)
            .args(&self.handlers)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.daemon = Some(child);
        let mut client = self.cri.clone();
        let deadline = Instant::now() + Duration::from_secs(60);
        while client
            .runtime
            .version(v1::VersionRequest::default())
            .await
            .is_err()
        {
            assert!(
                Instant::now() < deadline,
                "the daemon does not answer:\n{}",
                self.daemon_log()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) fn daemon_log(&self) -> String {
        fs::read_to_string(self.root.parent().unwrap().join("daemon.log")).unwrap_or_default()
    }

    pub(crate) fn daemon_pid(&self) -> u32 {
        self.daemon.as_ref().unwrap().id()
    }

    /// kill -9.
    pub(crate) fn kill_daemon(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }

    /// Asks the daemon to stop, and waits until it has.
    pub(crate) async fn terminate_daemon(&mut self) {
        let Some(mut daemon) = self.daemon.take() else {
            return;
        };
        let pid = nix::unistd::Pid::from_raw(daemon.id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        let has_ended = || daemon.try_wait().unwrap().is_some();
        self.wait_for("the end of the daemon", has_ended).await;
    }

    pub(crate) fn cgroup(&self) -> String {
        format!("mainstay-{}", self.id)
    }

    /// The node's remaining mounts, cgroups and processes.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let mut left = Vec::new();
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        left.extend(
            table
                .lines()
                .filter(|line| line.contains(&self.id))
                .map(str::to_owned),
        );
        for dir in cgroup_dirs(&self.cgroup()) {
            walk(&dir, &mut |path| {
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                if !["pods", "shims"].contains(&name.as_str()) && path != dir {
                    left.push(path.display().to_string());
                }
            });
        }
        left.extend(
            self.processes()
                .into_iter()
                .map(|pid| format!("process {pid}")),
        );
        for dir in ["s", "oci"] {
            left.extend(names(&self.state.join(dir)));
        }
        for dir in ["runtime/sandboxes", "runtime/containers", "runtime/staging"] {
            left.extend(names(&self.root.join(dir)));
        }
        left
    }

    /// Every process in the node's cgroups.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let mut pids = Vec::new();
        for dir in cgroup_dirs(&self.cgroup()) {
            let mut read = |path: &Path| {
                let text = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
                pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
            };
            if dir.exists() {
                walk(&dir, &mut read);
            }
        }
        pids.sort_unstable();
        pids.dedup();
        pids
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("daemon's log:\n{}", self.daemon_log());
        }
        self.kill_daemon();
        let deadline = Instant::now() + Duration::from_secs(5);
        while !self.processes().is_empty() && Instant::now() < deadline {
            for pid in self.processes() {
                let pid = nix::unistd::Pid::from_raw(pid);
                let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mine = table.lines().filter(|line| line.contains(&self.id)).rev();
        for place in mine.filter_map(|line| line.split(' ').nth(4)) {
            let _ = nix::mount::umount2(place, nix::mount::MntFlags::MNT_DETACH);
        }
        for dir in cgroup_dirs(&self.cgroup()) {
            let mut all = Vec::new();
            walk(&dir, &mut |path| all.push(path.to_path_buf()));
            for path in all.iter().rev() {
                let _ = fs::remove_dir(path);
            }
        }
        let _ = fs::remove_dir_all(&self.state);
        let _ = fs::remove_dir_all(self.root.parent().unwrap());
    }
}

fn cgroup_dirs(name: &str) -> Vec<PathBuf> {
    let mut dirs = vec![Path::new("/sys/fs/cgroup").join(name)];
    let Ok(entries) = fs::read_dir("/sys/fs/cgroup") else {
        return dirs;
    };
    dirs.extend(entries.flatten().map(|entry| entry.path().join(name)));
    dirs.retain(|dir| dir.is_dir());
    dirs
}

/// Visits parents before children.
fn walk(dir: &Path, visit: &mut dyn FnMut(&Path)) {
    visit(dir);
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            walk(&entry.path(), visit);
        }
    }
}

fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    entries
        .flatten()
        .map(|entry| entry.path().display().to_string())
        .collect()
}

/// Examples are built beside the tests.
fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test
        .parent()
        .unwrap()
        .parent()
        .unwrap()
        .join("examples/daemon");
    assert!(
        program.exists(),
        "{} is missing: build with --examples",
        program.display()
    );
    program
}

fn rand() -> u32 {
    uuid::Uuid::new_v4().as_u128() as u32
}

pub(crate) fn sandbox_config(node: &Node, name: &str) -> v1::PodSandboxConfig {
    v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: name.into(),
            uid: format!("uid-{name}"),
            namespace: "default".into(),
            attempt: 0,
        }),
        hostname: name.into(),
        log_directory: node.logs.join(name).display().to_string(),
        labels: [("app".to_owned(), name.to_owned())].into(),
        linux: Some(v1::LinuxPodSandboxConfig {
            security_context: Some(v1::LinuxSandboxSecurityContext {
                namespace_options: Some(own_pids()),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

pub(crate) fn own_pids() -> v1::NamespaceOption {
    v1::NamespaceOption {
        pid: v1::NamespaceMode::Container.into(),
        ..Default::default()
    }
}

pub(crate) fn container_config(name: &str, args: &[&str]) -> v1::ContainerConfig {
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata {
            name: name.into(),
            attempt: 0,
        }),
        image: Some(v1::ImageSpec {
            image: HELLO.into(),
            ..Default::default()
        }),
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        log_path: format!("{name}.log"),
        linux: Some(v1::LinuxContainerConfig {
            security_context: Some(v1::LinuxContainerSecurityContext {
                namespace_options: Some(own_pids()),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

impl Node {
    pub(crate) async fn run_sandbox(&self, config: v1::PodSandboxConfig) -> String {
        let request = v1::RunPodSandboxRequest {
            config: Some(config),
            ..Default::default()
        };
        self.cri
            .clone()
            .runtime
            .run_pod_sandbox(request)
            .await
            .unwrap()
            .into_inner()
            .pod_sandbox_id
    }

    pub(crate) async fn create(&self, sandbox: &str, config: v1::ContainerConfig) -> String {
        self.try_create(sandbox, config).await.unwrap()
    }

    pub(crate) async fn try_create(
        &self,
        sandbox: &str,
        config: v1::ContainerConfig,
    ) -> Result<String, cri::tonic::Status> {
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox.into(),
            config: Some(config),
            sandbox_config: None,
        };
        Ok(self
            .cri
            .clone()
            .runtime
            .create_container(request)
            .await?
            .into_inner()
            .container_id)
    }

    pub(crate) async fn try_start(&self, container: &str) -> Result<(), cri::tonic::Status> {
        let request = v1::StartContainerRequest {
            container_id: container.into(),
        };
        self.cri
            .clone()
            .runtime
            .start_container(request)
            .await
            .map(|_| ())
    }

    /// Creates and starts a container.
    pub(crate) async fn run(&self, sandbox: &str, config: v1::ContainerConfig) -> String {
        let id = self.create(sandbox, config).await;
        self.try_start(&id).await.unwrap();
        id
    }

    pub(crate) async fn status(&self, container: &str) -> v1::ContainerStatus {
        let request = v1::ContainerStatusRequest {
            container_id: container.into(),
            verbose: false,
        };
        let response = self
            .cri
            .clone()
            .runtime
            .container_status(request)
            .await
            .unwrap();
        response.into_inner().status.unwrap()
    }

    /// A container's first process.
    pub(crate) async fn pid(&self, container: &str) -> i32 {
        let request = v1::ContainerStatusRequest {
            container_id: container.into(),
            verbose: true,
        };
        let response = self
            .cri
            .clone()
            .runtime
            .container_status(request)
            .await
            .unwrap();
        let info = &response.into_inner().info["info"];
        let info: serde_json::Value = serde_json::from_str(info).unwrap();
        i32::try_from(info["pid"].as_i64().unwrap()).unwrap()
    }

    /// The shim of the only pod.
    pub(crate) fn shim_pid(&self) -> i32 {
        *self.shim_pids().first().unwrap()
    }

    /// Every shim, and processes that are about to become one.
    pub(crate) fn shim_pids(&self) -> Vec<i32> {
        let is_shim = |pid: &i32| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            name.trim_end() == "mainstay-shim"
        };
        self.processes().into_iter().filter(is_shim).collect()
    }

    pub(crate) fn is_cgroup_v1(&self) -> bool {
        Path::new("/sys/fs/cgroup/memory").is_dir()
    }

    /// A file of a container's cgroup.
    pub(crate) fn cgroup_file(
        &self,
        pod: &str,
        container: &str,
        controller: &str,
        file: &str,
    ) -> String {
        let dir = Path::new("/sys/fs/cgroup")
            .join(controller)
            .join(self.cgroup());
        let path = dir.join("pods").join(pod).join(container).join(file);
        fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{path:?}: {error}"))
            .trim()
            .to_owned()
    }

    pub(crate) async fn wait_exit(&self, container: &str) -> v1::ContainerStatus {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let status = self.status(container).await;
            if status.state == i32::from(v1::ContainerState::ContainerExited) {
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "container {container} does not end: {status:?}"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) async fn stop(&self, container: &str, timeout: i64) {
        let request = v1::StopContainerRequest {
            container_id: container.into(),
            timeout,
        };
        self.cri
            .clone()
            .runtime
            .stop_container(request)
            .await
            .unwrap();
    }

    pub(crate) async fn exec(&self, container: &str, command: &[&str]) -> v1::ExecSyncResponse {
        self.try_exec(container, command, 0).await.unwrap()
    }

    pub(crate) async fn try_exec(
        &self,
        container: &str,
        command: &[&str],
        timeout: i64,
    ) -> Result<v1::ExecSyncResponse, cri::tonic::Status> {
        let request = v1::ExecSyncRequest {
            container_id: container.into(),
            cmd: command.iter().map(|word| (*word).to_owned()).collect(),
            timeout,
        };
        Ok(self
            .cri
            .clone()
            .runtime
            .exec_sync(request)
            .await?
            .into_inner())
    }

    /// A container's log without timestamps.
    pub(crate) fn log(&self, pod: &str, container: &str) -> Vec<String> {
        let path = self.logs.join(pod).join(format!("{container}.log"));
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines()
            .map(|line| line.split_once(' ').unwrap().1.to_owned())
            .collect()
    }

    pub(crate) async fn remove_sandbox(&self, sandbox: &str) {
        let id = sandbox.to_owned();
        let mut cri = self.cri.clone();
        let stop = v1::StopPodSandboxRequest {
            pod_sandbox_id: id.clone(),
        };
        cri.runtime.stop_pod_sandbox(stop).await.unwrap();
        let remove = v1::RemovePodSandboxRequest { pod_sandbox_id: id };
        cri.runtime.remove_pod_sandbox(remove).await.unwrap();
    }

    pub(crate) async fn wait_for(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !condition() {
            assert!(
                Instant::now() < deadline,
                "never happened: {what}; left: {:#?}",
                self.leftovers()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
