//! Waits for changes in directories by inotify. The kernel limits its use by all processes of a user together, also of
//! those in containers: beyond the limit callers are woken every second.

use std::{os::fd::OwnedFd, path::Path, time::Duration};

use rustix::{
    fs::inotify::{self, CreateFlags, WatchFlags},
    io::Errno,
};
use tokio::io::unix::AsyncFd;
use tracing::debug;

/// How often callers are woken without inotify.
const PERIOD: Duration = Duration::from_secs(1);

/// Files that are complete or gone.
const CLOSED: WatchFlags = WatchFlags::MOVED_TO
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::CLOSE_WRITE);

/// Watches directories; `None` if the kernel does not.
pub(crate) struct Watch(Option<AsyncFd<OwnedFd>>);

impl Watch {
    /// Reports created, written, moved and removed files. With `growth` every write counts;
    /// without, a file counts when it is closed after writing.
    pub(crate) fn new(dir: &Path, growth: bool) -> std::io::Result<Self> {
        let mut events = CLOSED;
        if growth {
            events |= WatchFlags::MODIFY | WatchFlags::CREATE;
        }
        let fd = match open(dir, events) {
            Ok(fd) => fd,
            Err(error) if is_exhausted(error) => {
                debug!(dir = %dir.display(), %error, "no inotify, looking every second");
                return Ok(Self(None));
            }
            Err(error) => return Err(error.into()),
        };
        // SAFETY: the descriptor is owned by the AsyncFd alone and is neither replaced nor closed
        // before it is deregistered there.
        let registered = unsafe { AsyncFd::register(fd) };
        Ok(Self(Some(registered.map_err(std::io::Error::from)?)))
    }

    /// Also watches another directory, where files count when they are closed after writing.
    pub(crate) fn also(&self, dir: &Path) -> std::io::Result<()> {
        if let Some(fd) = &self.0 {
            inotify::add_watch(fd.get_ref(), dir, CLOSED | WatchFlags::CREATE)?;
        }
        Ok(())
    }

    /// Waits for the next change. Callers read the directory themselves.
    pub(crate) async fn changed(&self) -> std::io::Result<()> {
        let Some(fd) = &self.0 else {
            tokio::time::sleep(PERIOD).await;
            return Ok(());
        };
        let mut buffer = [0; 4096];
        let mut guard = fd.readable().await?;
        while rustix::io::read(fd.get_ref(), &mut buffer).is_ok_and(|count| count > 0) {}
        guard.clear_ready();
        Ok(())
    }
}

fn open(dir: &Path, events: WatchFlags) -> rustix::io::Result<OwnedFd> {
    let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
    inotify::add_watch(&fd, dir, events)?;
    Ok(fd)
}

/// Whether a limit of the kernel is reached: of instances or of watches.
fn is_exhausted(error: Errno) -> bool {
    matches!(error, Errno::MFILE | Errno::NOSPC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn without_inotify_callers_look_by_themselves() {
        let dir = tempfile::tempdir().unwrap();
        let watch = Watch(None);
        watch.also(dir.path()).unwrap();
        watch.changed().await.unwrap();
        for (error, expected) in [
            (Errno::MFILE, true),
            (Errno::NOSPC, true),
            (Errno::NOENT, false),
        ] {
            assert_eq!(is_exhausted(error), expected, "{error}");
        }
        assert!(Watch::new(&dir.path().join("missing"), true).is_err());
    }
}
