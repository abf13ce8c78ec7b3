//! Extended attributes of files, and the names that overlayfs interprets.

use std::{ffi::CString, io, os::unix::ffi::OsStrExt, path::Path};

/// Marks a directory that hides those of the layers below.
pub(crate) const OPAQUE: &str = "trusted.overlay.opaque";

/// Whether overlayfs interprets an attribute.
pub(crate) fn is_overlay(name: &str) -> bool {
    name.starts_with("trusted.overlay.") || name.starts_with("user.overlay.")
}

fn text(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// Sets an attribute; follows links.
pub(crate) fn set(path: &Path, name: &str, value: &[u8]) -> io::Result<()> {
    let (path, name) = (text(path)?, CString::new(name)?);
    let (data, length) = (value.as_ptr().cast(), value.len());
    // SAFETY: both names end with a zero, and `data` has `length` bytes; all live through the call.
    let result = unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), data, length, 0) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The value of an attribute, if the file has it; follows links.
pub(crate) fn get(path: &Path, name: &str) -> io::Result<Option<Vec<u8>>> {
    let (path, name) = (text(path)?, CString::new(name)?);
    let read = |buffer: &mut [u8]| {
        let (data, length) = (buffer.as_mut_ptr().cast(), buffer.len());
        // SAFETY: both names end with a zero, and `data` has room for `length` bytes.
        let length = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), data, length) };
        usize::try_from(length).map_err(|_| io::Error::last_os_error())
    };
    match whole(read) {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENODATA | libc::EOPNOTSUPP)) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The names of all attributes; follows links.
pub(crate) fn list(path: &Path) -> io::Result<Vec<String>> {
    let path = text(path)?;
    let read = |buffer: &mut [u8]| {
        let (data, length) = (buffer.as_mut_ptr().cast(), buffer.len());
        // SAFETY: the path ends with a zero, and `data` has room for `length` bytes.
        let length = unsafe { libc::listxattr(path.as_ptr(), data, length) };
        usize::try_from(length).map_err(|_| io::Error::last_os_error())
    };
    let names = match whole(read) {
        Ok(names) => names,
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Vec::new(),
        Err(error) => return Err(error),
    };
    let names = names
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty());
    Ok(names
        .filter_map(|name| String::from_utf8(name.to_vec()).ok())
        .collect())
}

/// Copies attributes to another file, except those of overlayfs.
pub(crate) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    for name in list(from)?.iter().filter(|name| !is_overlay(name)) {
        if let Some(value) = get(from, name)? {
            set(to, name, &value)?;
        }
    }
    Ok(())
}

/// Queries the size first; it may grow in between.
fn whole(read: impl Fn(&mut [u8]) -> io::Result<usize>) -> io::Result<Vec<u8>> {
    loop {
        let size = read(&mut [])?;
        let mut buffer = vec![0; size];
        if size == 0 {
            return Ok(buffer);
        }
        match read(&mut buffer) {
            Ok(length) => {
                buffer.truncate(length);
                return Ok(buffer);
            }
            Err(error) if error.raw_os_error() == Some(libc::ERANGE) => {}
            Err(error) => return Err(error),
        }
    }
}
