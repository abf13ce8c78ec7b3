//! A volume mounted at `/dev` itself, as CSI node drivers mount the node's. libcontainer creates
//! devices and links in `/dev` and removes `ptmx`, which would change the volume. So it gets a
//! small tmpfs there, and a hook mounts the volume over it, in the container's mount namespace
//! before pivot_root. As with runc, no device and no link is created in the volume, and
//! `linux.devices` is ignored.
//!
//! - Volumes below `/dev` are mounted by the hook, too. As elsewhere, a missing mount point is
//!   created; nothing else is.
//! - The container's own devpts and mqueue are mounted where the volume has the directories.
//! - Bidirectional propagation is rejected: mounts below it for this container would appear on the
//!   node.

use std::{
    fs,
    io::{self, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::FileTypeExt,
    },
    path::{Path, PathBuf},
    process::ExitCode,
};

use nix::{
    fcntl::OFlag,
    mount::{MsFlags, mount},
    sys::statvfs::{FsFlags, statvfs},
};
use oci_spec::runtime::{Hook, HookBuilder, Mount, MountBuilder, Spec};

use super::{mount_points::is_bind, oci::Outcome};
use crate::{reexec, rooted};

const DEV: &str = "/dev";

/// Takes a volume at `/dev` and everything below it out of the configuration, for the hook.
pub(super) fn take(spec: &mut Spec) -> Outcome<Option<Hook>> {
    let mounts = spec.mounts().clone().unwrap_or_default();
    let is_volume = |mount: &&Mount| is_bind(mount) && mount.destination() == Path::new(DEV);
    let Some(volume) = mounts.iter().find(is_volume) else {
        return Ok(None);
    };
    check(volume)?;
    let root = spec.root().as_ref().ok_or("no root")?.path().clone();
    let is_below = |mount: &Mount| mount.destination().starts_with(DEV);
    let (taken, mut kept): (Vec<_>, Vec<_>) = mounts.into_iter().partition(is_below);
    kept.push(placeholder()?);
    spec.set_mounts(Some(kept));
    if let Some(linux) = spec.linux_mut() {
        linux.set_devices(None);
    }
    let name = String::from_utf8_lossy(reexec::BIND_DEV.to_bytes()).into_owned();
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

/// Checked before the container is created, for a readable error message.
fn check(volume: &Mount) -> Outcome<()> {
    if has(volume, "rshared") {
        let refused = "a volume mounted at /dev cannot have Bidirectional mount propagation";
        return Err(refused.into());
    }
    let null = volume.source().as_ref().map(|source| source.join("null"));
    let null = null.and_then(|null| fs::metadata(null).ok());
    match null.is_some_and(|null| null.file_type().is_char_device()) {
        true => Ok(()),
        false => Err("the volume mounted at /dev has no device null".into()),
    }
}

fn has(mount: &Mount, wanted: &str) -> bool {
    mount.options().iter().flatten().any(|o| o == wanted)
}

fn placeholder() -> Outcome<Mount> {
    let options = ["nosuid", "mode=755", "size=64k"];
    Ok(MountBuilder::default()
        .typ("tmpfs")
        .source("tmpfs")
        .destination(DEV)
        .options(options.map(str::to_owned).to_vec())
        .build()?)
}

/// The hook's entry point; arguments: the container's root and the mounts.
pub(crate) fn run() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [root, mounts] = args.as_slice() else {
        return ExitCode::from(2);
    };
    match perform(Path::new(root), mounts) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

fn perform(root: &Path, mounts: &str) -> Outcome<()> {
    let mut mounts: Vec<Mount> = serde_json::from_str(mounts)?;
    mounts.sort_by_key(|mount| mount.destination().components().count());
    for mount in &mounts {
        let made = match is_bind(mount) {
            true => bind(root, mount, &mounts),
            false => mount_own(root, mount),
        };
        made.map_err(|error| format!("mount {}: {error}", mount.destination().display()))?;
    }
    Ok(())
}

/// Mounts a file system of the container's own, such as devpts, if its directory exists.
fn mount_own(root: &Path, wanted: &Mount) -> Outcome<()> {
    let place = wanted.destination();
    let Ok(directory) = rooted::open(root, place, OFlag::O_PATH | OFlag::O_DIRECTORY) else {
        return Ok(());
    };
    let kind = wanted.typ().as_deref().ok_or("no type")?;
    let (flags, data) = own_options(wanted);
    mount(
        Some(kind),
        &through(&directory),
        Some(kind),
        flags,
        Some(data.as_str()),
    )?;
    if kind == "devpts"
        && let Ok(link) = rooted::open(root, "/dev/ptmx", OFlag::O_PATH | OFlag::O_NOFOLLOW)
    {
        // The node's ptmx would open terminals of the node.
        let own = rooted::open(root, place.join("ptmx"), OFlag::O_PATH)?;
        let (from, to, none) = (through(&own), through(&link), None::<&str>);
        mount(Some(&from), &to, none, MsFlags::MS_BIND, none)?;
    }
    Ok(())
}

fn own_options(wanted: &Mount) -> (MsFlags, String) {
    let mut flags = MsFlags::empty();
    let mut data = Vec::new();
    for option in wanted.options().iter().flatten() {
        match flag(option) {
            Some(flag) => flags |= flag,
            None if matches!(option.as_str(), "rw" | "relatime" | "strictatime") => {}
            None => data.push(option.as_str()),
        }
    }
    (flags, data.join(","))
}

fn flag(option: &str) -> Option<MsFlags> {
    Some(match option {
        "ro" => MsFlags::MS_RDONLY,
        "nosuid" => MsFlags::MS_NOSUID,
        "nodev" => MsFlags::MS_NODEV,
        "noexec" => MsFlags::MS_NOEXEC,
        _ => return None,
    })
}

fn bind(root: &Path, wanted: &Mount, all: &[Mount]) -> Outcome<()> {
    let source = wanted.source().as_ref().ok_or("no source")?;
    let place = wanted.destination();
    let none = None::<&str>;
    let under = mount_point(root, place, source.is_dir())?;
    let how = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(source), &through(&under), none, how, none)?;
    // Open again: the first descriptor is of the directory below the mount.
    let top = rooted::open(root, place, OFlag::O_PATH)?;
    let propagation = match has(wanted, "rslave") {
        true => MsFlags::MS_SLAVE,
        false => MsFlags::MS_PRIVATE,
    };
    let how = propagation | MsFlags::MS_REC;
    mount(none, &through(&top), none, how, none)?;
    if place == Path::new(DEV) {
        // Before it becomes read-only.
        for (place, is_dir) in points_in(all) {
            mount_point(root, place, is_dir)?;
        }
    }
    restrict(&top, wanted)
}

/// The mount points in the volume at `/dev`, and whether they are directories.
fn points_in(all: &[Mount]) -> impl Iterator<Item = (&Path, bool)> {
    let inner = |mount: &&Mount| mount.destination() != Path::new(DEV);
    let is_in_other = move |place: &Path| {
        let mut others = all.iter().filter(inner).map(Mount::destination);
        others.any(|other| place != other && place.starts_with(other))
    };
    let bound = all.iter().filter(inner).filter(|mount| is_bind(mount));
    bound.filter_map(move |mount| {
        let is_dir = mount.source().as_ref()?.is_dir();
        let place = mount.destination().as_path();
        (!is_in_other(place)).then_some((place, is_dir))
    })
}

fn restrict(top: &OwnedFd, wanted: &Mount) -> Outcome<()> {
    let options = wanted.options().iter().flatten();
    let flags: MsFlags = options.filter_map(|option| flag(option)).collect();
    if !flags.is_empty() {
        let (at, none) = (through(top), None::<&str>);
        let all = flags | current(&at)? | MsFlags::MS_BIND | MsFlags::MS_REMOUNT;
        mount(none, &at, none, all, none)?;
    }
    if has(wanted, "rro") {
        read_only_below(top)?;
    }
    Ok(())
}

/// The flags that a remount would otherwise clear.
fn current(at: &Path) -> nix::Result<MsFlags> {
    let now = statvfs(at)?.flags();
    let pairs = [
        (FsFlags::ST_RDONLY, MsFlags::MS_RDONLY),
        (FsFlags::ST_NOSUID, MsFlags::MS_NOSUID),
        (FsFlags::ST_NODEV, MsFlags::MS_NODEV),
        (FsFlags::ST_NOEXEC, MsFlags::MS_NOEXEC),
    ];
    let set = pairs.into_iter().filter(|(is, _)| now.contains(*is));
    Ok(set.map(|(_, flag)| flag).collect())
}

fn read_only_below(mount: &OwnedFd) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_RDONLY,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: the descriptor is open, the path is empty and the structure outlives the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | libc::AT_RECURSIVE,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn mount_point(root: &Path, place: &Path, directory: bool) -> io::Result<OwnedFd> {
    match rooted::open(root, place, OFlag::O_PATH) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if directory {
                rooted::create_dir_all(root, place)?;
            } else {
                rooted::create_file(root, place)?;
            }
            rooted::open(root, place, OFlag::O_PATH)
        }
        opened => opened,
    }
}

fn through(file: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(mounts: Value) -> Spec {
        serde_json::from_value(json!({
            "ociVersion": "1.0.2",
            "root": { "path": "/root" },
            "mounts": mounts,
            "linux": { "devices": [{ "path": "/dev/sda", "type": "b", "major": 8, "minor": 0 }] },
        }))
        .unwrap()
    }

    fn bound(destination: &str, propagation: &str) -> Value {
        let options = ["rbind", propagation, "rw"];
        json!({ "destination": destination, "type": "bind", "source": "/dev", "options": options })
    }

    #[test]
    fn libcontainer_never_sees_a_volume_at_dev_nor_devices_for_it() {
        let pts = json!({ "destination": "/dev/pts", "type": "devpts", "source": "devpts", "options": ["nosuid"] });
        let log = bound("/dev/termination-log", "rprivate");
        let beside = bound("/device", "rprivate");
        let mut spec = spec(json!([bound("/dev", "rslave"), beside, pts, log]));
        let hook = take(&mut spec).unwrap().unwrap();
        let left: Vec<_> = spec.mounts().iter().flatten().collect();
        assert_eq!(left.len(), 2);
        assert_eq!(left[0].destination(), Path::new("/device"));
        assert_eq!(left[1].destination(), Path::new("/dev"));
        assert_eq!(left[1].typ().as_deref(), Some("tmpfs"));
        assert_eq!(spec.linux().as_ref().unwrap().devices(), &None);
        let args = hook.args().clone().unwrap();
        let taken: Vec<Mount> = serde_json::from_str(&args[2]).unwrap();
        let places: Vec<_> = taken.iter().map(|mount| mount.destination()).collect();
        assert_eq!(
            places,
            ["/dev", "/dev/pts", "/dev/termination-log"].map(Path::new)
        );
    }

    #[test]
    fn an_ordinary_dev_is_left_to_libcontainer() {
        let own = json!({ "destination": "/dev", "type": "tmpfs", "source": "tmpfs" });
        let mut spec = spec(json!([own, bound("/dev/shm", "rprivate")]));
        let before = spec.clone();
        assert!(take(&mut spec).unwrap().is_none());
        assert_eq!(spec, before);
    }

    #[test]
    fn mounts_below_dev_never_reach_the_node() {
        let refused = take(&mut spec(json!([bound("/dev", "rshared")])));
        assert!(refused.unwrap_err().to_string().contains("Bidirectional"));
    }

    #[test]
    fn options_of_own_file_systems_are_split_into_flags_and_data() {
        let pts = json!({ "destination": "/dev/pts", "type": "devpts",
            "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "gid=5"] });
        let (flags, data) = own_options(&serde_json::from_value(pts).unwrap());
        assert_eq!(flags, MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC);
        assert_eq!(data, "newinstance,ptmxmode=0666,gid=5");
    }
}
