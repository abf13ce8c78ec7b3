//! Runs work inside another network namespace.
//!
//! `setns` changes only the calling thread, so that a thread of its own enters the namespace and
//! ends there: no worker of the async runtime is ever left in the wrong namespace. A netlink socket
//! stays in the namespace where it was opened, so it is opened there and used from anywhere.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    thread,
};

use nix::sched::{CloneFlags, setns};
use rtnetlink::Handle;
use tokio::{sync::oneshot, task::JoinHandle};

use crate::{Error, Result};

/// Runs `work` on a new thread inside the namespace at `path`.
pub async fn run<T, F>(path: &Path, work: F) -> Result<T>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    let path = path.to_path_buf();
    let (send, receive) = oneshot::channel();
    thread::Builder::new()
        .name("netns".into())
        .spawn(move || {
            let _ = send.send(enter(&path).map(|()| work()));
        })
        .map_err(Error::Socket)?;
    receive.await.map_err(|_| Error::ThreadLost)?
}

/// Moves the calling thread into the namespace for the rest of its life.
fn enter(path: &PathBuf) -> Result<()> {
    let wrong = |source: io::Error| Error::Namespace {
        path: path.clone(),
        source,
    };
    let file = File::open(path).map_err(wrong)?;
    setns(file, CloneFlags::CLONE_NEWNET).map_err(|errno| Error::Namespace {
        path: path.clone(),
        source: errno.into(),
    })
}

/// A route netlink connection; ends when dropped.
pub struct Netlink {
    /// The rtnetlink handle.
    pub handle: Handle,
    task: JoinHandle<()>,
}

impl Netlink {
    /// A connection in the caller's own namespace.
    pub fn here() -> Result<Self> {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(Error::Socket)?;
        Ok(Self {
            handle,
            task: tokio::spawn(connection),
        })
    }

    /// A connection in the namespace at `path`.
    pub async fn at(path: &Path) -> Result<Self> {
        let runtime = tokio::runtime::Handle::current();
        run(path, move || {
            let _inside = runtime.enter();
            Self::here()
        })
        .await?
    }
}

impl Drop for Netlink {
    fn drop(&mut self) {
        self.task.abort();
    }
}
