//! Debian's containerd with runc, in its own directories and cgroup. It gets our image, also for
//! its pause containers, and no pod network: its pods use the host network.

use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, ensure};

use crate::{
    life::Subject,
    ours::{Ours, answers, clean_cgroup, clean_mounts},
};

/// Our image with a program that only waits: host network pods share ports.
const PAUSE: &str = "mainstay.local/pause:latest";

pub(crate) struct Containerd {
    pub subject: Subject,
    dir: tempfile::TempDir,
    cgroup: String,
    state: PathBuf,
    daemon: Child,
}

impl Containerd {
    pub(crate) async fn start(ours: &Ours) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let cgroup = format!("bench-containerd-{}", std::process::id());
        let state = PathBuf::from(format!("/run/{cgroup}"));
        let socket = state.join("containerd.sock");
        let config = format!(
            "version = 2\nroot = {root:?}\nstate = {state:?}\n[grpc]\naddress = {socket:?}\n\
             [ttrpc]\naddress = {ttrpc:?}\n\
             [plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = {pause:?}\ndisable_tcp_service = true\nrestrict_oom_score_adj = true\n\
             [plugins.\"io.containerd.internal.v1.opt\"]\npath = {opt:?}\n",
            root = dir.path().join("root"),
            ttrpc = state.join("ttrpc.sock"),
            pause = PAUSE,
            opt = dir.path().join("opt"),
        );
        let file = dir.path().join("config.toml");
        fs::write(&file, config)?;
        let log = fs::File::create(dir.path().join("containerd.log"))?;
        let daemon = Command::new("containerd")
            .arg("--config")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("Debian's package containerd is needed")?;
        let subject = Subject {
            cri: cri::connect(&socket),
            image: runtime::images::HELLO.to_owned(),
            cgroup_parent: format!("/{cgroup}"),
            host_network: true,
            logs: dir.path().join("logs").display().to_string(),
        };
        let other = Self {
            subject,
            dir,
            cgroup,
            state,
            daemon,
        };
        answers(&other.subject.cri).await?;
        other.import(ours)?;
        Ok(other)
    }

    fn import(&self, ours: &Ours) -> Result<()> {
        let mut archive = Vec::new();
        let images = runtime::images::Images::open(ours.dir.path().join("runtime"))?;
        images.export(runtime::images::HELLO, &mut archive)?;
        self.load("hello.tar", &archive)?;
        self.load("pause.tar", &as_pause(&archive)?)?;
        Ok(())
    }

    fn load(&self, name: &str, archive: &[u8]) -> Result<()> {
        let file = self.dir.path().join(name);
        fs::write(&file, archive)?;
        let status = Command::new("ctr")
            .arg("--address")
            .arg(self.state.join("containerd.sock"))
            .args(["--namespace", "k8s.io", "images", "import"])
            .arg(&file)
            .stdout(Stdio::null())
            .status()?;
        ensure!(status.success(), "ctr could not import {name}");
        Ok(())
    }
}

/// The archive with another program and name, as a docker archive, which needs no digests.
fn as_pause(archive: &[u8]) -> Result<Vec<u8>> {
    let mut files = std::collections::BTreeMap::new();
    for entry in tar::Archive::new(archive).entries()? {
        let mut entry = entry?;
        let name = entry.path()?.display().to_string();
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut entry, &mut bytes)?;
        files.insert(name, bytes);
    }
    let text = |name: &str| {
        files
            .get(name)
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    };
    let is_config = |bytes: &&Vec<u8>| {
        bytes.len() < 4096 && String::from_utf8_lossy(bytes).contains("diff_ids")
    };
    let config = files.values().find(is_config).context("no configuration")?;
    let mut config: serde_json::Value = serde_json::from_slice(config)?;
    config["config"]["Entrypoint"] = serde_json::json!(["/mainstay", "hello", "sleep"]);
    let layer = config["rootfs"]["diff_ids"][0]
        .as_str()
        .context("no layer")?
        .replace(':', "/");
    let layer = files.get(&format!("blobs/{layer}")).context("no layer")?;
    ensure!(text("oci-layout").is_some(), "not an OCI layout");
    let list = serde_json::json!([{ "Config": "config.json", "RepoTags": [PAUSE], "Layers": ["layer.tar"] }]);
    let mut out = tar::Builder::new(Vec::new());
    for (name, bytes) in [
        ("config.json", config.to_string().as_bytes()),
        ("layer.tar", layer),
        ("manifest.json", list.to_string().as_bytes()),
    ] {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        out.append_data(&mut header, name, bytes)?;
    }
    Ok(out.into_inner()?)
}

impl Drop for Containerd {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        // Its shims and containers outlive it; they name its directory or are in its cgroup.
        kill_all_named(&self.state.display().to_string());
        kill_all_named(&self.cgroup);
        clean_mounts(&self.dir.path().display().to_string());
        clean_mounts(&self.state.display().to_string());
        clean_cgroup(&self.cgroup);
        let _ = fs::remove_dir_all(&self.state);
    }
}

/// Kills processes whose command line or cgroup contains a name that only this run has.
fn kill_all_named(name: &str) {
    let Ok(entries) = fs::read_dir("/proc") else {
        return;
    };
    for entry in entries.flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i32>().ok())
        else {
            continue;
        };
        let text = |file: &str| fs::read(entry.path().join(file)).unwrap_or_default();
        let said = [text("cmdline"), text("cgroup")].concat();
        if pid != std::process::id().cast_signed() && String::from_utf8_lossy(&said).contains(name)
        {
            let _ = nix::sys::signal::kill(
                nix::unistd::Pid::from_raw(pid),
                nix::sys::signal::Signal::SIGKILL,
            );
        }
    }
    std::thread::sleep(std::time::Duration::from_millis(200));
}
