//! Runs work inside another network namespace.
//!
//! `setns` changes only the calling thread, so that a thread of its own enters the namespace and
//! ends there: no worker of the async runtime is ever left in the wrong namespace. A netlink socket
//! stays in the namespace where it was opened, so it is opened there and used from anywhere.

use std::{fs::File, path::Path, thread, time::Duration};

use nix::sched::{CloneFlags, setns};
use rtnetlink::Handle;
use tokio::{sync::oneshot, task::JoinHandle, time::timeout};

use crate::{Error, Result};

/// How long requests to the kernel for one purpose may take. The kernel can lose an answer, which would be waited for forever.
pub(crate) const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// Bounds requests to the kernel for one purpose. They need a connection of their own, which is closed with them.
pub(crate) async fn answered<T>(
    action: &str,
    requests: impl Future<Output = Result<T>>,
) -> Result<T> {
    answered_within(ANSWERS_WITHIN, action, requests).await
}

/// The same for many requests.
pub(crate) async fn answered_within<T>(
    within: Duration,
    action: &str,
    requests: impl Future<Output = Result<T>>,
) -> Result<T> {
    let answers = timeout(within, requests).await;
    answers.unwrap_or_else(|_| Err(Error::NoAnswer(action.to_owned())))
}

/// Runs `work` on a new thread inside the namespace at `path`.
pub async fn run<T, F>(path: &Path, work: F) -> Result<T>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    let path = path.to_path_buf();
    on_thread(move || {
        enter(&path, &open(&path)?)?;
        Ok(work())
    })
    .await
}

/// Runs `work` on a new thread, which may enter a namespace.
pub(crate) async fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    on_watching_thread(move |_| work()).await
}

/// The same for work that looks whether its caller still waits: if not, the sender that it gets is closed.
pub(crate) async fn on_watching_thread<T: Send + 'static>(
    work: impl FnOnce(&oneshot::Sender<Result<T>>) -> Result<T> + Send + 'static,
) -> Result<T> {
    let (send, receive) = oneshot::channel();
    thread::Builder::new()
        .name("netns".into())
        .spawn(move || {
            let outcome = work(&send);
            let _ = send.send(outcome);
        })
        .map_err(Error::Socket)?;
    receive.await.map_err(|_| Error::ThreadLost)?
}

/// Opens the namespace at `path`.
pub(crate) fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|source| Error::Namespace {
        path: path.to_path_buf(),
        source,
    })
}

/// Moves the calling thread into the namespace, which was opened at `path`, for the rest of its life.
pub(crate) fn enter(path: &Path, namespace: &File) -> Result<()> {
    setns(namespace, CloneFlags::CLONE_NEWNET).map_err(|errno| Error::Namespace {
        path: path.to_path_buf(),
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
