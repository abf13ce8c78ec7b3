//! One daemon per data directory: a lock that the kernel releases when its holder ends.

use std::{
    fs::{DirBuilder, File},
    io::Write,
    os::unix::fs::DirBuilderExt,
    path::Path,
};

use nix::fcntl::{Flock, FlockArg};

use crate::Error;

/// Held as long as the daemon runs.
pub struct DataLock(#[allow(dead_code)] Flock<File>);

impl DataLock {
    /// Creates the directory if needed, and takes its lock; fails while another process holds it.
    pub fn take(data_dir: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Directory {
            path: data_dir.to_owned(),
            source,
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(data_dir)
            .map_err(failed)?;
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(data_dir.join("lock"))
            .map_err(failed)?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(mut lock) => {
                // Informational, for `holder`; the lock is valid without it.
                let _ = lock
                    .set_len(0)
                    .and_then(|()| write!(lock, "{}", std::process::id()));
                Ok(Self(lock))
            }
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => Err(Error::InUse(data_dir.to_owned())),
            Err((_, error)) => Err(failed(error.into())),
        }
    }
}

/// The process that holds a data directory, if any.
pub fn holder(data_dir: &Path) -> Option<i32> {
    let file = File::options()
        .read(true)
        .open(data_dir.join("lock"))
        .ok()?;
    match Flock::lock(file, FlockArg::LockSharedNonblock) {
        Err((file, nix::errno::Errno::EWOULDBLOCK)) => {
            std::io::read_to_string(&file).ok()?.trim().parse().ok()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_daemon_on_the_same_directory_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        let first = DataLock::take(&data).unwrap();
        assert!(matches!(DataLock::take(&data), Err(Error::InUse(_))));
        assert_eq!(holder(&data), Some(std::process::id() as i32));
        drop(first);
        assert_eq!(holder(&data), None);
        assert!(DataLock::take(&data).is_ok());
    }
}
