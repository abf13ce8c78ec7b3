//! Sysctls that the network needs. Changes are logged and stay when the daemon stops: another
//! program may rely on them.

use std::{fs, path::PathBuf};

use tracing::{debug, info, warn};

use crate::{Error, Result};

fn path(name: &str) -> PathBuf {
    let mut path = PathBuf::from("/proc/sys");
    path.extend(name.split('/'));
    path
}

/// Sets `name` (components separated by `/`) in the caller's network namespace, unless it has the
/// value.
pub(crate) fn set(name: &str, value: &str) -> Result<()> {
    let path = path(name);
    if fs::read_to_string(&path).is_ok_and(|now| now.trim() == value) {
        return Ok(());
    }
    fs::write(&path, value).map_err(Error::file(&path))?;
    info!(name, value, "sysctl changed");
    Ok(())
}

/// Sets a value of one of our own links; errors are ignored and not logged.
pub(crate) fn set_for_link(family: &str, link: &str, name: &str, value: &str) {
    let path = path(&format!("net/{family}/conf/{link}/{name}"));
    if let Err(error) = fs::write(&path, value) {
        if path.exists() {
            warn!(link, name, value, %error, "cannot set sysctl");
        } else {
            debug!(link, name, "no such sysctl here");
        }
    }
}
