//! Our own runtime as a daemon of its own.

use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, ExitCode, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use cri::v1;
use lifecycle::{Context, Service};
use tokio_util::sync::CancellationToken;

use crate::life::Subject;

pub(crate) struct Ours {
    pub subject: Subject,
    pub dir: tempfile::TempDir,
    state: PathBuf,
    id: String,
    pub daemon: Child,
}

/// The daemon's process.
pub(crate) fn serve(dir: &str, state: &str) -> ExitCode {
    let id = state.rsplit('-').next().unwrap_or("bench").to_owned();
    let mut config = runtime::Config::new(&id, dir.into(), Arc::new(network::LoopbackNetwork));
    config.state_dir = state.into();
    config.socket = config.state_dir.join("cri.sock");
    let Ok(threads) = tokio::runtime::Runtime::new() else {
        return ExitCode::FAILURE;
    };
    let run = async {
        let service = config.build().map_err(|error| error.to_string())?;
        let context = Context::standalone("runtime", CancellationToken::new());
        service
            .run(context)
            .await
            .map_err(|error| error.to_string())
    };
    match threads.block_on(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Waits until a runtime answers.
pub(crate) async fn answers(cri: &cri::Client) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut runtime = cri.runtime.clone();
    while runtime
        .version(v1::VersionRequest::default())
        .await
        .is_err()
    {
        if Instant::now() > deadline {
            bail!("the runtime does not answer");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

impl Ours {
    pub(crate) async fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let id = format!("b{:07x}", std::process::id());
        let state = PathBuf::from(format!("/run/mainstay-{id}"));
        let daemon = Command::new(std::env::current_exe()?)
            .arg("daemon")
            .arg(dir.path())
            .arg(&state)
            .stdin(Stdio::null())
            .spawn()?;
        let cri = cri::connect(state.join("cri.sock"));
        answers(&cri).await?;
        let subject = Subject {
            cri,
            image: runtime::images::HELLO.to_owned(),
            cgroup_parent: String::new(),
            host_network: false,
            logs: dir.path().join("logs").display().to_string(),
        };
        Ok(Self {
            subject,
            dir,
            state,
            id,
            daemon,
        })
    }

    /// Every process in a part of our cgroups.
    pub(crate) fn processes(&self, part: &str) -> Vec<u32> {
        let roots = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].map(PathBuf::from);
        let root = roots
            .iter()
            .map(|root| root.join(format!("mainstay-{}", self.id)).join(part));
        let mut found = Vec::new();
        let mut dirs: Vec<PathBuf> = root.filter(|dir| dir.is_dir()).take(1).collect();
        while let Some(dir) = dirs.pop() {
            let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
            found.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
            let Ok(entries) = fs::read_dir(&dir) else {
                continue;
            };
            dirs.extend(
                entries
                    .flatten()
                    .map(|entry| entry.path())
                    .filter(|path| path.is_dir()),
            );
        }
        found
    }

    /// The memory usage of the pods' cgroups in bytes.
    pub(crate) fn cgroup_usage(&self) -> u64 {
        let name = format!("mainstay-{}/pods", self.id);
        let files = [
            format!("/sys/fs/cgroup/memory/{name}/memory.usage_in_bytes"),
            format!("/sys/fs/cgroup/{name}/memory.current"),
        ];
        let read = |file: &String| fs::read_to_string(file).ok()?.trim().parse().ok();
        files.iter().find_map(read).unwrap_or(0)
    }

    /// Seconds of CPU time that the daemon has used.
    pub(crate) fn cpu(&self) -> Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.daemon.id()))?;
        let fields: Vec<&str> = stat
            .rsplit(')')
            .next()
            .context("stat")?
            .split_whitespace()
            .collect();
        let ticks = fields.get(11).context("utime")?.parse::<f64>()?
            + fields.get(12).context("stime")?.parse::<f64>()?;
        Ok(ticks / 100.0)
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        // A failed run may have left pods.
        for part in ["pods", "shims"] {
            for pid in self.processes(part) {
                let pid = nix::unistd::Pid::from_raw(pid.cast_signed());
                let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
            }
        }
        clean_mounts(&self.id);
        clean_mounts(&self.dir.path().display().to_string());
        clean_cgroup(&format!("mainstay-{}", self.id));
        let _ = fs::remove_dir_all(&self.state);
    }
}

/// Unmounts everything whose mountinfo line contains the name.
pub(crate) fn clean_mounts(name: &str) {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for line in table.lines().rev().filter(|line| line.contains(name)) {
        if let Some(place) = line.split(' ').nth(4) {
            let _ = nix::mount::umount2(place, nix::mount::MntFlags::MNT_DETACH);
        }
    }
}

/// Removes a cgroup of ours from every hierarchy.
pub(crate) fn clean_cgroup(name: &str) {
    let Ok(entries) = fs::read_dir("/sys/fs/cgroup") else {
        return;
    };
    let mut roots: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path().join(name))
        .collect();
    roots.push(PathBuf::from("/sys/fs/cgroup").join(name));
    for root in roots.into_iter().filter(|root| root.is_dir()) {
        let mut all = vec![root];
        let mut at = 0;
        while let Some(dir) = all.get(at).cloned() {
            at += 1;
            let Ok(entries) = fs::read_dir(&dir) else {
                continue;
            };
            all.extend(
                entries
                    .flatten()
                    .map(|entry| entry.path())
                    .filter(|path| path.is_dir()),
            );
        }
        for dir in all.iter().rev() {
            let _ = fs::remove_dir(dir);
        }
    }
}
