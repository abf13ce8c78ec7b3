//! Starts a shim from the daemon, as a fork of the [zygote](super::zygote). The process that the daemon waits for, by the
//! pipes that it holds, ends as soon as the shim serves; the shim itself is no child of the daemon.
//!
//! A shim's orders are in a file that it keeps locked as long as it lives. The lock is taken before
//! the process exists, so that a daemon can tell whether the shim of a crashed daemon is there, is
//! still starting, or never was.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Seek, Write},
    os::fd::OwnedFd,
    path::Path,
};

use tokio::{io::AsyncReadExt, net::unix::pipe::Receiver};

use super::{Zygote, protocol::Start};
use crate::{
    error::{Error, Result},
    reexec::Program,
};

/// A shim that is starting: why it failed is written to this pipe, which it closes when it serves.
pub(crate) struct Starting(Receiver);

/// Tells when the namespaces of a starting shim are pinned.
pub(crate) struct Pinned(Receiver);

/// What the shim writes when it has pinned its namespaces.
pub(super) const PINNED: &[u8] = b"p";

/// Starts a shim.
pub(crate) fn start(
    zygote: &Zygote,
    program: &Program,
    orders: &Start,
    file: &Path,
) -> Result<(Starting, Pinned)> {
    let orders = write_orders(orders, file).map_err(Error::file(file))?;
    let begin = || -> io::Result<_> {
        let (pinned, stdout) = io::pipe()?;
        let (complaints, stderr) = io::pipe()?;
        zygote.fork(program, [orders.into(), stdout.into(), stderr.into()])?;
        let receiver = |end: io::PipeReader| Receiver::from_owned_fd(OwnedFd::from(end));
        Ok((Starting(receiver(complaints)?), Pinned(receiver(pinned)?)))
    };
    begin().map_err(Error::system("start the shim"))
}

impl Pinned {
    /// Waits until the namespaces can be used; false if the shim failed before.
    pub(crate) async fn wait(mut self) -> bool {
        let mut byte = [0; PINNED.len()];
        self.0.read_exact(&mut byte).await.is_ok()
    }
}

impl Starting {
    /// Waits until the shim serves. One that was killed before says nothing; then its socket refuses connections.
    pub(crate) async fn serves(mut self) -> Result<()> {
        let mut message = Vec::new();
        let read = self.0.read_to_end(&mut message).await;
        read.map_err(Error::system("start the shim"))?;
        if message.is_empty() {
            return Ok(());
        }
        let message = String::from_utf8_lossy(&message);
        Err(Error::Shim(format!(
            "the shim did not start: {}",
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
