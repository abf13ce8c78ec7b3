//! Containers created by another OCI runtime's binary, such as runc or crun, chosen by the
//! RuntimeClass handler.

use std::{
    fs,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::oci::{Console, Outcome, Shim};

/// A container of another OCI runtime.
pub(super) struct Runtime {
    pub binary: PathBuf,
    pub root: PathBuf,
    pub container: String,
}

impl Runtime {
    /// Creates and starts the container.
    pub(super) fn run(
        &self,
        bundle: &Path,
        stdio: Option<[OwnedFd; 3]>,
        shim: &mut Shim,
    ) -> Outcome<()> {
        let mut command = self.command(bundle);
        if is_scope(bundle)? {
            command.arg("--systemd-cgroup");
        }
        command.arg("create").arg("--bundle").arg(bundle);
        self.launch(command, bundle, stdio, shim)?;
        let mut start = self.command(bundle);
        start.arg("start").arg(&self.container);
        self.finish(start, bundle)
    }

    /// Starts a process in the container.
    pub(super) fn exec(
        &self,
        process: &Path,
        stdio: Option<[OwnedFd; 3]>,
        shim: &mut Shim,
    ) -> Outcome<()> {
        let scratch = process
            .parent()
            .ok_or("no directory for the process file")?;
        let mut command = self.command(scratch);
        command
            .arg("exec")
            .arg("--detach")
            .arg("--process")
            .arg(process);
        let result = self.launch(command, scratch, stdio, shim);
        let _ = fs::remove_file(process);
        result
    }

    fn command(&self, scratch: &Path) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .arg("--root")
            .arg(&self.root)
            .arg("--log")
            .arg(scratch.join("oci.log"));
        command
    }

    fn launch(
        &self,
        mut command: Command,
        scratch: &Path,
        stdio: Option<[OwnedFd; 3]>,
        shim: &mut Shim,
    ) -> Outcome<()> {
        let pid_file = scratch.join(format!("{}.pid", std::process::id()));
        command.arg("--pid-file").arg(&pid_file);
        let console = Console::listen(&self.root, stdio.is_none())?;
        if let Some(console) = &console {
            command.arg("--console-socket").arg(&console.path);
        }
        if let Some([stdin, stdout, stderr]) = stdio {
            command.stdin(stdin).stdout(stdout).stderr(stderr);
        } else {
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
        }
        command.arg(&self.container);
        let status = command.status()?;
        if !status.success() {
            return Err(complaint(scratch, &self.binary).into());
        }
        let pid = fs::read_to_string(&pid_file)?.trim().parse()?;
        let _ = fs::remove_file(&pid_file);
        shim.created(pid, console.map(Console::receive).transpose()?)?;
        Ok(())
    }

    fn finish(&self, mut command: Command, scratch: &Path) -> Outcome<()> {
        let status = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status()?;
        if status.success() {
            Ok(())
        } else {
            Err(complaint(scratch, &self.binary).into())
        }
    }
}

/// The last line of the runtime's log.
fn complaint(scratch: &Path, binary: &Path) -> String {
    let log = fs::read_to_string(scratch.join("oci.log")).unwrap_or_default();
    let last = log
        .lines()
        .last()
        .unwrap_or("failed without an error message");
    format!("{}: {last}", binary.display())
}

/// Whether systemd makes the container's cgroup: its path is then of the form `SLICE:PREFIX:NAME`.
fn is_scope(bundle: &Path) -> Outcome<bool> {
    let spec: serde_json::Value = serde_json::from_slice(&fs::read(bundle.join("config.json"))?)?;
    let path = spec["linux"]["cgroupsPath"].as_str().unwrap_or_default();
    Ok(!path.starts_with('/') && path.split(':').count() == 3)
}
