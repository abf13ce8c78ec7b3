//! Starts a shim from the daemon. The process that the daemon starts ends as soon as the shim
//! serves; the shim itself is no child of the daemon.
//!
//! A shim's orders are in a file that it keeps locked as long as it lives. The lock is taken before
//! the process exists, so that a daemon can tell whether the shim of a crashed daemon is there, is
//! still starting, or never was.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Seek, Write},
    path::Path,
    process::Stdio,
};

use tokio::{
    io::AsyncReadExt,
    process::{Child, ChildStdout},
};

use super::protocol::Start;
use crate::{
    error::{Error, Result},
    reexec::{self, Program},
};

/// A shim that is starting.
pub(crate) struct Starting {
    child: Child,
}

/// Tells when the namespaces of a starting shim are pinned.
pub(crate) struct Pinned(Option<ChildStdout>);

/// What the shim writes when it has pinned its namespaces.
pub(super) const PINNED: &[u8] = b"p";

/// Starts a shim.
pub(crate) fn start(program: &Program, orders: &Start, file: &Path) -> Result<(Starting, Pinned)> {
    let orders = write_orders(orders, file).map_err(Error::file(file))?;
    let mut command = tokio::process::Command::from(program.command(reexec::SHIM));
    command
        .stdin(Stdio::from(orders))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let spawned = command.kill_on_drop(true).spawn();
    let mut child = spawned.map_err(Error::system("start the shim"))?;
    let pinned = Pinned(child.stdout.take());
    Ok((Starting { child }, pinned))
}

impl Pinned {
    /// Waits until the namespaces can be used; false if the shim failed before.
    pub(crate) async fn wait(self) -> bool {
        let mut byte = [0; PINNED.len()];
        match self.0 {
            Some(mut stdout) => stdout.read_exact(&mut byte).await.is_ok(),
            None => false,
        }
    }
}

impl Starting {
    /// Waits until the shim serves.
    pub(crate) async fn serves(self) -> Result<()> {
        let output = self.child.wait_with_output().await;
        let output = output.map_err(Error::system("start the shim"))?;
        if output.status.success() {
            return Ok(());
        }
        let message = String::from_utf8_lossy(&output.stderr);
        Err(Error::Shim(format!(
            "the shim did not start ({}): {}",
            output.status,
            message.trim_end()
        )))
    }
}

fn write_orders(orders: &Start, path: &Path) -> io::Result<File> {
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(path)?;
    file.lock()?;
    file.write_all(&serde_json::to_vec(orders)?)?;
    file.rewind()?;
    Ok(file)
}

/// Whether a shim with these orders runs or is starting.
pub(crate) fn is_held(file: &Path) -> bool {
    match File::open(file) {
        Ok(file) => matches!(file.try_lock(), Err(TryLockError::WouldBlock)),
        Err(_) => false,
    }
}
