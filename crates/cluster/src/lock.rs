//! One daemon per data directory: a lock that the kernel releases when its holder ends.

use std::{
    fs::{self, DirBuilder, File, Permissions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
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
            .custom_flags(nix::libc::O_NOFOLLOW)
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
pub fn create(data_dir: &Path) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(data_dir)?;
    let metadata = data_dir.metadata()?;
    if !trusted_owners().contains(&metadata.uid()) {
        // Another owner could replace its contents: keys, programs, the names of processes and directories to remove.
        return Err(io::Error::other(format!(
            "it belongs to another user (uid {}); make it yours with chown, or use another one",
            metadata.uid()
        )));
    }
    let mode = metadata.permissions().mode();
    let is_shared = mode & 0o1022 != 0;
    if mode & 0o055 != 0 && !is_shared && data_dir.join(crate::marker::FILE).exists() {
        std::fs::set_permissions(data_dir, Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// The users who may own a data directory: root, the running user, and the user behind sudo.
fn trusted_owners() -> Vec<u32> {
    let own = nix::unistd::geteuid();
    let behind = std::env::var("SUDO_UID").ok().filter(|_| own.is_root());
    let behind = behind.and_then(|uid| uid.parse().ok());
    [0, own.as_raw()].into_iter().chain(behind).collect()
}

/// The process that holds a data directory, if any.
pub fn holder(data_dir: &Path) -> Option<i32> {
    let path = data_dir.join("lock");
    let file = File::options().read(true).open(&path).ok()?;
    match Flock::lock(file, FlockArg::LockSharedNonblock) {
        Err((file, nix::errno::Errno::EWOULDBLOCK)) => {
            let text = io::read_to_string(&file).ok()?;
            let process = text.trim().parse().ok()?;
            has_open(process, &file.metadata().ok()?).then_some(process)
        }
        _ => None,
    }
}

/// Whether a process has a file open: a lock that another user wrote could name any process, also
/// groups of processes (-1 is all). A user who may not see the files of a process cannot stop it either.
fn has_open(process: i32, file: &fs::Metadata) -> bool {
    let Ok(open) = fs::read_dir(format!("/proc/{process}/fd")) else {
        return process > 0 && !nix::unistd::geteuid().is_root();
    };
    let mut open = open
        .flatten()
        .filter_map(|entry| fs::metadata(entry.path()).ok());
    open.any(|open| (open.dev(), open.ino()) == (file.dev(), file.ino()))
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
    fn a_lock_that_names_another_process_has_no_holder() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        for process in ["-1", "0", "1", "not a number"] {
            fs::write(&path, process).unwrap();
            let file = File::open(&path).unwrap();
            let _lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).unwrap();
            // Others than root may not see which files process 1 has open.
            if nix::unistd::geteuid().is_root() || process != "1" {
                assert_eq!(holder(directory.path()), None, "{process}");
            }
        }
    }

    #[test]
    fn a_directory_of_another_user_is_refused() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let stranger = Some(nix::unistd::Uid::from_raw(54_321));
        nix::unistd::chown(directory.path(), stranger, None).unwrap();
        let refused = DataLock::take(directory.path())
            .err()
            .map(|error| error.to_string());
        assert!(refused.is_some_and(|why| why.contains("54321")));
        // A link in the place of the lock is not followed.
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("target");
        std::os::unix::fs::symlink(&target, directory.path().join("lock")).unwrap();
        assert!(DataLock::take(directory.path()).is_err());
        assert!(!target.exists());
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
