//! Private files: a directory of mode 0700, files of mode 0600, replaced atomically.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{ErrorKind, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::Path,
};

use crate::Error;

fn at(path: &Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
    move |source| Error::File {
        path: path.to_owned(),
        source,
    }
}

/// Creates the directory, or restricts the mode of an existing one.
pub(crate) fn private_dir(path: &Path) -> Result<(), Error> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(at(path))?;
    fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(at(path))
}

/// Writes a file that only its owner can read; a crash leaves the old or the new content.
pub fn write(path: &Path, content: &[u8]) -> Result<(), Error> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = Path::new(&temporary);
    let replace = || {
        // A leftover of a crash would keep its old mode: start anew.
        match fs::remove_file(temporary) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(temporary)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(temporary, path)?;
        path.parent()
            .map_or(Ok(()), |parent| File::open(parent)?.sync_all())
    };
    replace().map_err(at(path))
}

/// The file's content, or `None` when there is no such file.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    match fs::read(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(at(path)(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_file_is_replaced_whole_and_readable_by_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let private = dir.path().join("pki");
        private_dir(&private).unwrap();
        let path = private.join("key");
        write(&path, b"one").unwrap();
        write(&path, b"two").unwrap();
        assert_eq!(read(&path).unwrap().unwrap(), b"two");
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(
            fs::metadata(&private).unwrap().permissions().mode() & 0o777,
            0o700
        );
        assert_eq!(fs::read_dir(&private).unwrap().count(), 1);
        assert!(read(&private.join("other")).unwrap().is_none());
    }
}
