//! The mount namespace that containers are created from: a copy of the node's without the mounts that no container's
//! creation needs, above all without those of pods. Otherwise every start of a container copies, reads and discards all
//! mounts of the node, of which each pod has some six.
//!
//! It has no process: a descriptor keeps it, which is passed to the shim with each call to start a container. Nothing of
//! it is left when the daemon has ended. What a container needs of its pod is attached in a copy of its own
//! ([`crate::helper`]), at its own path or at one of the [`Slots`].

use std::{
    fs::{self, File},
    io,
    os::fd::{AsRawFd, RawFd},
    path::{Path, PathBuf},
    thread,
};

use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
};
use serde::{Deserialize, Serialize};

use crate::{cgroup::Hierarchies, config::Config};

/// The number of slots of each kind.
const SLOTS: usize = 48;

/// Mount points in the namespace for directories and files that are at other paths, or that are mounts themselves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slots {
    /// Their directory.
    pub dir: PathBuf,
    /// How many there are of each kind.
    pub count: usize,
}

impl Slots {
    /// The directory for the cgroups of a container, with one for each controller of cgroup v1.
    pub(crate) fn cgroups(&self) -> PathBuf {
        self.dir.join("cgroups")
    }

    /// The slot of a number.
    pub(crate) fn path(&self, number: usize, is_dir: bool) -> Option<PathBuf> {
        let kind = if is_dir { 'd' } else { 'f' };
        (number < self.count).then(|| self.dir.join(format!("{kind}{number}")))
    }
}

/// The namespace.
pub(crate) struct BaseMounts {
    namespace: File,
    pub slots: Slots,
}

impl BaseMounts {
    /// Makes it. The directory of the slots is created; it is empty in the node's namespace.
    pub(crate) fn make(config: &Config) -> io::Result<Self> {
        let slots = Slots {
            dir: config.state_dir.join("slots"),
            count: SLOTS,
        };
        fs::create_dir_all(&slots.dir)?;
        let needed = [
            config.root_dir.canonicalize()?,
            config.state_dir.canonicalize()?,
        ];
        let namespace = thread::scope(|scope| {
            // The namespace is the thread's, which ends.
            let made = scope.spawn(|| make(&needed, &slots));
            let panicked = |_| io::Error::other("making a mount namespace panicked");
            made.join().map_err(panicked)?
        })?;
        Ok(Self { namespace, slots })
    }

    /// The descriptor.
    pub(crate) fn fd(&self) -> RawFd {
        self.namespace.as_raw_fd()
    }
}

fn make(needed: &[PathBuf], slots: &Slots) -> io::Result<File> {
    unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS)?;
    let none = None::<&str>;
    // First, so that nothing below reaches the node, and the node's later mounts do not get here.
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    let table = fs::read_to_string("/proc/thread-self/mountinfo")?;
    for place in superfluous(&table, needed) {
        // What cannot be removed stays, which is slower only.
        let _ = umount2(&place, MntFlags::MNT_DETACH);
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(
        Some("slots"),
        &slots.dir,
        Some("tmpfs"),
        flags,
        Some("mode=0700,size=64k"),
    )?;
    for number in 0..slots.count {
        slots.path(number, true).map(fs::create_dir).transpose()?;
        slots.path(number, false).map(File::create).transpose()?;
    }
    make_cgroups(&slots.cgroups())?;
    File::open("/proc/thread-self/ns/mnt")
}

/// The directory for cgroups is read-only and has nothing but mount points, so that containers can share it.
fn make_cgroups(place: &Path) -> io::Result<()> {
    fs::create_dir(place)?;
    let none = None::<&str>;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(
        Some("cgroups"),
        place,
        Some("tmpfs"),
        flags,
        Some("mode=755,size=64k"),
    )?;
    for name in Hierarchies::host().controllers().into_keys() {
        fs::create_dir(place.join(name))?;
    }
    let again = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    mount(none, place, none, flags | again, none)?;
    Ok(())
}

/// The mount points of the table that are not needed, the last mounted first.
fn superfluous(table: &str, needed: &[PathBuf]) -> Vec<PathBuf> {
    let places = table.lines().filter_map(|line| line.split(' ').nth(4));
    let mut places: Vec<PathBuf> = places.map(unescape).collect();
    places.retain(|place| !is_needed(place, needed));
    places.reverse();
    places
}

fn is_needed(place: &Path, needed: &[PathBuf]) -> bool {
    ["/proc", "/dev"].iter().any(|own| place == Path::new(own))
        || place.starts_with("/sys")
        || needed.iter().any(|path| path.starts_with(place))
}

/// The kernel writes spaces, tabs, newlines and backslashes as octal numbers.
fn unescape(text: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let number = after.get(..3).filter(|_| first == b'\\');
        let number =
            number.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok());
        match number {
            Some(number) => {
                bytes.push(number);
                rest = &after[3..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    std::ffi::OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_that_no_containers_creation_needs_are_removed() {
        let table = "1 0 0:1 / / rw - ext4 a rw\n\
             2 1 0:2 / /proc rw - proc a rw\n\
             3 2 0:3 / /proc/sys/fs/binfmt_misc rw - binfmt_misc a rw\n\
             4 1 0:4 / /sys rw - sysfs a rw\n\
             5 4 0:5 / /sys/fs/cgroup/cpu rw - cgroup a rw\n\
             6 1 0:6 / /dev rw - devtmpfs a rw\n\
             7 6 0:7 / /dev/shm rw - tmpfs a rw\n\
             8 1 0:8 / /run rw shared:1 - tmpfs a rw\n\
             9 1 0:9 / /data rw - ext4 a rw\n\
             10 9 0:10 / /data/c/runtime/containers/a/rootfs rw - overlay a rw\n\
             11 8 0:11 / /run/mainstay/c/s/b/shm rw - tmpfs a rw\n\
             12 1 0:12 / /database rw - ext4 a rw\n\
             13 1 0:13 / /mnt/a\\040disk\\134 rw - ext4 a rw\n";
        let needed = ["/data/c/runtime", "/run/mainstay/c"].map(PathBuf::from);
        let expected = [
            "/mnt/a disk\\",
            "/database",
            "/run/mainstay/c/s/b/shm",
            "/data/c/runtime/containers/a/rootfs",
            "/dev/shm",
            "/proc/sys/fs/binfmt_misc",
        ];
        assert_eq!(superfluous(table, &needed), expected.map(PathBuf::from));
    }

    #[test]
    fn there_are_slots_for_directories_and_files_and_not_without_end() {
        let slots = Slots {
            dir: "/run/slots".into(),
            count: 2,
        };
        let path = |number, is_dir| {
            slots
                .path(number, is_dir)
                .map(|path| path.display().to_string())
        };
        assert_eq!(path(0, true).as_deref(), Some("/run/slots/d0"));
        assert_eq!(path(1, false).as_deref(), Some("/run/slots/f1"));
        assert_eq!(path(2, true), None);
    }
}
