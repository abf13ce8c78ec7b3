//! The mounts that the daemon makes itself.

use std::{
    ffi::{CStr, CString},
    fs, io,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use nix::{
    errno::Errno,
    mount::{MntFlags, MsFlags, mount, umount2},
};

use crate::error::{Error, Result};

/// Mounts a pod's /dev/shm.
pub(crate) fn shm(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(Error::file(path))?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let options = Some("mode=1777,size=67108864");
    mount(Some("shm"), path, Some("tmpfs"), flags, options)
        .map_err(Error::system(format!("mount {}", path.display())))
}

/// Unmounts everything at a path. No mount is no error.
pub(crate) fn unmount(path: &Path) -> Result<()> {
    loop {
        match umount2(path, MntFlags::MNT_DETACH) {
            // There may be several mounts at the same place.
            Ok(()) => {}
            Err(Errno::EINVAL | Errno::ENOENT) => return Ok(()),
            Err(error) => {
                let action = format!("unmount {}", path.display());
                return Err(Error::system::<io::Error>(action)(error.into()));
            }
        }
    }
}

/// Mounts an overlay of layers, the uppermost first. Without `upper` it is read-only.
pub(crate) fn overlay(lower: &[&Path], upper: Option<(&Path, &Path)>, target: &Path) -> Result<()> {
    fs::create_dir_all(target).map_err(Error::file(target))?;
    // overlayfs needs two layers at least: bind a single read-only one.
    if let ([only], None) = (lower, upper) {
        return bind_read_only(only, target);
    }
    let options = options(lower, upper);
    let mounted = if options.len() < MAX_OPTIONS {
        mount(
            Some("overlay"),
            target,
            Some("overlay"),
            MsFlags::empty(),
            Some(options.as_str()),
        )
        .map_err(io::Error::from)
    } else {
        overlay_by_parts(lower, upper, target)
    };
    mounted.map_err(Error::system(format!(
        "mount overlay on {}",
        target.display()
    )))
}

fn bind_read_only(source: &Path, target: &Path) -> Result<()> {
    let none = None::<&str>;
    let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    mount(Some(source), target, none, MsFlags::MS_BIND, none)
        .and_then(|()| mount(none, target, none, flags, none))
        .map_err(Error::system(format!("bind {}", target.display())))
}

/// mount(2) accepts one page of options.
const MAX_OPTIONS: usize = 4000;

/// A container's writable layer need not survive a power failure: `volatile` avoids syncing the
/// file system at every unmount.
fn options(lower: &[&Path], upper: Option<(&Path, &Path)>) -> String {
    let layers: Vec<_> = lower
        .iter()
        .map(|path| escape(&path.to_string_lossy()))
        .collect();
    let mut options = format!("lowerdir={}", layers.join(":"));
    if let Some((upper, work)) = upper {
        let escape = |path: &Path| escape(&path.to_string_lossy());
        options.push_str(&format!(
            ",upperdir={},workdir={},volatile",
            escape(upper),
            escape(work)
        ));
    }
    options
}

/// Colons separate layers and commas separate options.
fn escape(path: &str) -> String {
    path.replace('\\', "\\\\")
        .replace(':', "\\:")
        .replace(',', "\\,")
}

/// Passes the layers one by one, for images with many of them. Needs Linux 6.5.
fn overlay_by_parts(
    lower: &[&Path],
    upper: Option<(&Path, &Path)>,
    target: &Path,
) -> io::Result<()> {
    let context = system_call(
        libc::SYS_fsopen,
        [c"overlay".as_ptr() as usize, FSOPEN_CLOEXEC, 0, 0, 0],
    )?;
    // SAFETY: the kernel has just made this descriptor for us.
    let context = unsafe { OwnedFd::from_raw_fd(context) };
    for path in lower {
        configure(&context, c"lowerdir+", path)?;
    }
    if let Some((upper, work)) = upper {
        configure(&context, c"upperdir", upper)?;
        configure(&context, c"workdir", work)?;
        let flag = [FSCONFIG_SET_FLAG, c"volatile".as_ptr() as usize];
        let fd = context.as_raw_fd() as usize;
        system_call(libc::SYS_fsconfig, [fd, flag[0], flag[1], 0, 0])?;
    }
    let fd = context.as_raw_fd() as usize;
    system_call(libc::SYS_fsconfig, [fd, FSCONFIG_CMD_CREATE, 0, 0, 0])?;
    let made = system_call(libc::SYS_fsmount, [fd, FSMOUNT_CLOEXEC, 0, 0, 0])?;
    // SAFETY: the kernel has just made this descriptor for us.
    let made = unsafe { OwnedFd::from_raw_fd(made) };
    let target = CString::new(target.as_os_str().as_bytes())?;
    let from = [made.as_raw_fd() as usize, c"".as_ptr() as usize];
    let to = [libc::AT_FDCWD as usize, target.as_ptr() as usize];
    system_call(
        libc::SYS_move_mount,
        [from[0], from[1], to[0], to[1], MOVE_MOUNT_F_EMPTY_PATH],
    )?;
    Ok(())
}

const FSOPEN_CLOEXEC: usize = 1;
const FSMOUNT_CLOEXEC: usize = 1;
const FSCONFIG_SET_FLAG: usize = 0;
const FSCONFIG_SET_STRING: usize = 1;
const FSCONFIG_CMD_CREATE: usize = 6;
const MOVE_MOUNT_F_EMPTY_PATH: usize = 4;

fn configure(context: &OwnedFd, key: &CStr, path: &Path) -> io::Result<()> {
    let value = CString::new(path.as_os_str().as_bytes())?;
    let fd = context.as_raw_fd() as usize;
    let args = [
        fd,
        FSCONFIG_SET_STRING,
        key.as_ptr() as usize,
        value.as_ptr() as usize,
        0,
    ];
    system_call(libc::SYS_fsconfig, args).map(|_| ())
}

fn system_call(number: libc::c_long, args: [usize; 5]) -> io::Result<i32> {
    let [a, b, c, d, e] = args;
    // SAFETY: only called above, with descriptors and strings that live through the call.
    let result = unsafe { libc::syscall(number, a, b, c, d, e) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        i32::try_from(result).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_may_have_more_layers_than_fit_into_one_page_of_options() {
        let dir = tempfile::tempdir().unwrap();
        let layers: Vec<_> = (0..120)
            .map(|number| {
                let layer = dir.path().join(format!("{number:0>64}"));
                fs::create_dir(&layer).unwrap();
                fs::write(layer.join(number.to_string()), "").unwrap();
                layer
            })
            .collect();
        let [upper, work, target] = ["upper", "work", "target"].map(|name| dir.path().join(name));
        fs::create_dir(&upper).unwrap();
        fs::create_dir(&work).unwrap();
        let lower: Vec<&Path> = layers.iter().map(std::path::PathBuf::as_path).collect();
        assert!(options(&lower, None).len() > MAX_OPTIONS);
        overlay(&lower, Some((&upper, &work)), &target).unwrap();
        let found = fs::read_dir(&target).unwrap().count();
        unmount(&target).unwrap();
        assert_eq!(found, 120);
    }
}
