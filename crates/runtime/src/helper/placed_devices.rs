//! Devices outside of `/dev`, such as raw block volumes. libcontainer rejects those, so a hook
//! creates them, in the container's mount namespace before pivot_root. Links of the image are
//! resolved within its root.

use std::{
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

use nix::{
    fcntl::{AtFlags, OFlag},
    sys::stat::{Mode, SFlag, fstatat, makedev, mknodat, umask},
    unistd::{Gid, Uid, fchownat},
};
use oci_spec::runtime::{Hook, HookBuilder, LinuxDevice, LinuxDeviceType, Spec};

use super::oci::Outcome;
use crate::{reexec, rooted};

/// Takes such devices out of the configuration, for the hook.
pub(super) fn take(spec: &mut Spec) -> Outcome<Option<Hook>> {
    let root = spec.root().as_ref().ok_or("no root")?.path().clone();
    let Some(linux) = spec.linux_mut() else {
        return Ok(None);
    };
    let devices = linux.devices().clone().unwrap_or_default();
    let (kept, taken): (Vec<_>, Vec<_>) = devices
        .into_iter()
        .partition(|device| device.path().starts_with("/dev"));
    if taken.is_empty() {
        return Ok(None);
    }
    linux.set_devices(Some(kept));
    let name = String::from_utf8_lossy(reexec::MAKE_DEVICES.to_bytes()).into_owned();
    let args = vec![
        name,
        root.display().to_string(),
        serde_json::to_string(&taken)?,
    ];
    Ok(Some(
        HookBuilder::default()
            .path("/proc/self/exe")
            .args(args)
            .build()?,
    ))
}

/// The hook's entry point; arguments: the container's root and the devices.
pub(crate) fn run() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [root, devices] = args.as_slice() else {
        return ExitCode::from(2);
    };
    match perform(Path::new(root), devices) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

fn perform(root: &Path, devices: &str) -> Outcome<()> {
    let devices: Vec<LinuxDevice> = serde_json::from_str(devices)?;
    umask(Mode::empty());
    for device in &devices {
        let path = device.path().display();
        make(root, device).map_err(|error| format!("device {path}: {error}"))?;
    }
    Ok(())
}

fn make(root: &Path, device: &LinuxDevice) -> Outcome<()> {
    let path = device.path();
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err("no name".into());
    };
    rooted::create_dir_all(root, parent)?;
    let parent = rooted::open(root, parent, OFlag::O_PATH | OFlag::O_DIRECTORY)?;
    let kind = match device.typ() {
        LinuxDeviceType::B => SFlag::S_IFBLK,
        LinuxDeviceType::P => SFlag::S_IFIFO,
        _ => SFlag::S_IFCHR,
    };
    let number = makedev(
        u64::try_from(device.major())?,
        u64::try_from(device.minor())?,
    );
    let mode = Mode::from_bits_truncate(device.file_mode().unwrap_or(0o666));
    match mknodat(&parent, name, kind, mode, number) {
        // A restarted container already has it.
        Err(nix::Error::EEXIST) => {
            let there = fstatat(&parent, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
            let same = SFlag::from_bits_truncate(there.st_mode & SFlag::S_IFMT.bits()) == kind
                && there.st_rdev == number;
            if !same {
                return Err("the path exists and is not that device".into());
            }
        }
        made => made?,
    }
    let (uid, gid) = (
        device.uid().map(Uid::from_raw),
        device.gid().map(Gid::from_raw),
    );
    fchownat(&parent, name, uid, gid, AtFlags::AT_SYMLINK_NOFOLLOW)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{FileTypeExt, MetadataExt, symlink},
    };

    use serde_json::json;

    use super::*;

    #[test]
    fn devices_outside_of_dev_are_made_by_the_hook() {
        let device = |path: &str| json!({ "path": path, "type": "c", "major": 1, "minor": 3 });
        let mut spec: Spec = serde_json::from_value(json!({
            "ociVersion": "1.0.2",
            "root": { "path": "/root" },
            "linux": { "devices": [device("/dev/x"), device("/devices/y"), device("/opt/0")] },
        }))
        .unwrap();
        let hook = take(&mut spec).unwrap().unwrap();
        let left = spec.linux().as_ref().unwrap().devices().clone().unwrap();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].path(), Path::new("/dev/x"));
        let taken = &hook.args().as_ref().unwrap()[2];
        assert!(taken.contains("/devices/y") && taken.contains("/opt/0"));
        assert!(take(&mut spec).unwrap().is_none());
    }

    #[test]
    fn devices_are_created_inside_the_root_in_spite_of_links() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir(&root).unwrap();
        symlink("../..", root.join("opt")).unwrap();
        let device = json!([{ "path": "/opt/a/0", "type": "c", "major": 1, "minor": 3,
            "fileMode": 0o640, "uid": 0, "gid": 7 }]);
        perform(&root, &device.to_string()).unwrap();
        let made = fs::symlink_metadata(root.join("a/0")).unwrap();
        assert!(made.file_type().is_char_device());
        assert_eq!((made.mode() & 0o7777, made.gid()), (0o640, 7));
        // Again, as when a container restarts.
        perform(&root, &device.to_string()).unwrap();
        fs::remove_file(root.join("a/0")).unwrap();
        fs::write(root.join("a/0"), "").unwrap();
        assert!(perform(&root, &device.to_string()).is_err());
    }
}
