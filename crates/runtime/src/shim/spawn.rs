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

use super::protocol::Start;
use crate::{
    error::{Error, Result},
    reexec::{self, Program},
};

/// Starts a shim and waits until it serves.
pub(crate) async fn start(program: &Program, orders: &Start, file: &Path) -> Result<()> {
    let failed = || Error::system::<io::Error>("start the shim");
    let orders = write_orders(orders, file).map_err(Error::file(file))?;
    let mut command = tokio::process::Command::from(program.command(reexec::SHIM));
    command
        .stdin(Stdio::from(orders))
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let child = command.kill_on_drop(true).spawn().map_err(failed())?;
    let output = child.wait_with_output().await.map_err(failed())?;
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
