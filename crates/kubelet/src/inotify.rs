//! Waits for changes in directories by inotify.

use std::{os::fd::OwnedFd, path::Path};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::io::unix::AsyncFd;

/// Files that are complete or gone.
const CLOSED: WatchFlags = WatchFlags::MOVED_TO
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::CLOSE_WRITE);

/// Watches directories.
pub(crate) struct Watch(AsyncFd<OwnedFd>);

impl Watch {
    /// Reports created, written, moved and removed files. With `growth` every write counts;
    /// without, a file counts when it is closed after writing.
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

    /// Also watches another directory, where files count when they are closed after writing.
    pub(crate) fn also(&self, dir: &Path) -> std::io::Result<()> {
        inotify::add_watch(self.0.get_ref(), dir, CLOSED | WatchFlags::CREATE)?;
        Ok(())
    }

    /// Waits for the next change. Callers read the directory themselves.
    pub(crate) async fn changed(&self) -> std::io::Result<()> {
        let mut buffer = [0; 4096];
        let mut guard = self.0.readable().await?;
        while rustix::io::read(self.0.get_ref(), &mut buffer).is_ok_and(|count| count > 0) {}
        guard.clear_ready();
        Ok(())
    }
}
