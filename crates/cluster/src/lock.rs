//! One daemon per data directory: a lock that the kernel releases when its holder ends.

use std::{
    fs::{DirBuilder, File, Permissions},
    io::Write,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
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
        create(data_dir).map_err(failed)?;
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(data_dir.join("lock"))
            .map_err(failed)?;
        // Every user who can open the file can lock it.
        file.set_permissions(Permissions::from_mode(0o600))
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

/// Creates the data directory for its owner alone, and closes one of ours to others: earlier versions
/// left it open with `--detach`. Shared directories, such as /tmp, stay as they are.
pub fn create(data_dir: &Path) -> std::io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(data_dir)?;
    let mode = data_dir.metadata()?.permissions().mode();
    let is_shared = mode & 0o1022 != 0;
    if mode & 0o055 != 0 && !is_shared && data_dir.join(crate::marker::FILE).exists() {
        std::fs::set_permissions(data_dir, Permissions::from_mode(0o700))?;
    }
    Ok(())
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

    #[test]
    fn a_data_directory_and_its_lock_are_closed_to_others() {
        let directory = tempfile::tempdir().unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o7777;
        let data = directory.path().join("data");
        let lock = data.join("lock");
        drop(DataLock::take(&data).unwrap());
        assert_eq!((mode(&data), mode(&lock)), (0o700, 0o600));
        for (before, is_ours, after) in [
            (0o755, true, 0o700),
            (0o755, false, 0o755),
            (0o1777, true, 0o1777),
        ] {
            let marker = data.join(crate::marker::FILE);
            match is_ours {
                true => std::fs::write(&marker, "{}").unwrap(),
                false => std::fs::remove_file(&marker).unwrap(),
            }
            std::fs::set_permissions(&data, Permissions::from_mode(before)).unwrap();
            std::fs::set_permissions(&lock, Permissions::from_mode(0o644)).unwrap();
            drop(DataLock::take(&data).unwrap());
            assert_eq!((mode(&data), mode(&lock)), (after, 0o600));
        }
    }
}
