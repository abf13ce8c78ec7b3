//! The kernel's word that something in a directory changed.

use std::{os::fd::OwnedFd, path::Path};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::io::unix::AsyncFd;

/// Files that are there in whole, or no longer.
const CLOSED: WatchFlags = WatchFlags::MOVED_TO
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::CLOSE_WRITE);

/// Watches directories.
pub(crate) struct Watch(AsyncFd<OwnedFd>);

impl Watch {
    /// Files that were made, written, moved or removed. With `growth`, every write counts; without,
    /// a file counts once its writer has closed it.
    pub(crate) fn new(dir: &Path, growth: bool) -> std::io::Result<Self> {
        let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        let mut events = CLOSED;
        if growth {
            events |= WatchFlags::MODIFY | WatchFlags::CREATE;
        }
        inotify::add_watch(&fd, dir, events)?;
        // SAFETY: the descriptor is owned by the AsyncFd alone and is neither replaced nor closed
        // before it is deregistered there.
        let registered = unsafe { AsyncFd::register(fd) };
        Ok(Self(registered.map_err(std::io::Error::from)?))
    }

    /// Also watches another directory, where files count once their writers have closed them.
    pub(crate) fn also(&self, dir: &Path) -> std::io::Result<()> {
        inotify::add_watch(self.0.get_ref(), dir, CLOSED | WatchFlags::CREATE)?;
        Ok(())
    }

    /// Waits for the next change. What it was does not matter: whoever waits looks for itself.
    pub(crate) async fn changed(&self) -> std::io::Result<()> {
        let mut buffer = [0; 4096];
        let mut guard = self.0.readable().await?;
        while rustix::io::read(self.0.get_ref(), &mut buffer).is_ok_and(|count| count > 0) {}
        guard.clear_ready();
        Ok(())
    }
}
