//! The few mounts that the daemon makes itself.

use std::{fs, io, path::Path};

use nix::{
    errno::Errno,
    mount::{MntFlags, MsFlags, mount, umount2},
};

use crate::error::{Error, Result};

/// Shared memory of a pod.
pub fn shm(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(Error::file(path))?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let options = Some("mode=1777,size=67108864");
    mount(Some("shm"), path, Some("tmpfs"), flags, options)
        .map_err(Error::system(format!("mount {}", path.display())))
}

/// Takes a mount away, with everything on it. That there is none is fine.
pub fn unmount(path: &Path) -> Result<()> {
    loop {
        match umount2(path, MntFlags::MNT_DETACH) {
            // There may be more than one on the same place.
            Ok(()) => {}
            Err(Errno::EINVAL | Errno::ENOENT) => return Ok(()),
            Err(error) => {
                let action = format!("unmount {}", path.display());
                return Err(Error::system::<io::Error>(action)(error.into()));
            }
        }
    }
}

/// Joins layers, the uppermost first, into one tree. Without `upper` it is read-only.
pub fn overlay(lower: &[&Path], upper: Option<(&Path, &Path)>, target: &Path) -> Result<()> {
    fs::create_dir_all(target).map_err(Error::file(target))?;
    let join = |paths: &[&Path]| {
        let texts = paths.iter().map(|path| escape(&path.to_string_lossy()));
        texts.collect::<Vec<_>>().join(":")
    };
    let mut options = format!("lowerdir={}", join(lower));
    if let Some((upper, work)) = upper {
        options.push_str(&format!(
            ",upperdir={},workdir={}",
            join(&[upper]),
            join(&[work])
        ));
    }
    mount(
        Some("overlay"),
        target,
        Some("overlay"),
        MsFlags::empty(),
        Some(options.as_str()),
    )
    .map_err(Error::system(format!(
        "mount overlay on {}",
        target.display()
    )))
}

/// Colons separate layers and commas options.
fn escape(path: &str) -> String {
    path.replace('\\', "\\\\")
        .replace(':', "\\:")
        .replace(',', "\\,")
}
