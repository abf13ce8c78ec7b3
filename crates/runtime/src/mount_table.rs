//! The mount that a path is on, and how it propagates.

use std::{
    fs, io,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
};

use nix::{
    fcntl::{OFlag, open},
    sys::stat::Mode,
};

/// A mount of this thread's mount namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// Where it is mounted, as the kernel writes it.
    pub mount_point: PathBuf,
    /// Whether mounts below it appear elsewhere.
    pub is_shared: bool,
    /// Whether mounts made elsewhere appear below it.
    pub is_slave: bool,
    /// Whether it shows the same directory as there would be without it.
    pub is_of_itself: bool,
}

impl MountEntry {
    /// The mount that a path is on, the topmost one; links are followed.
    pub fn of_path(path: &Path) -> io::Result<Self> {
        let id = mount_id(path)?;
        let table = fs::read_to_string("/proc/thread-self/mountinfo")?;
        let missing = || io::Error::other(format!("the mount of {} is not listed", path.display()));
        find(&table, &id).ok_or_else(missing)
    }
}

/// The ID of the mount that a path is on.
fn mount_id(path: &Path) -> io::Result<String> {
    let opened = open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
    let info = format!("/proc/thread-self/fdinfo/{}", opened.as_raw_fd());
    let text = fs::read_to_string(info)?;
    let mut lines = text.lines();
    let id = lines.find_map(|line| line.strip_prefix("mnt_id:"));
    Ok(id.unwrap_or_default().trim().to_owned())
}

/// Finds a mount in the table of `/proc/PID/mountinfo`.
fn find(table: &str, id: &str) -> Option<MountEntry> {
    let line = |id: &str| Line::all(table).find(|line| line.id == id);
    let found = line(id)?;
    let below = line(found.parent).and_then(|parent| {
        let relative = found.mount_point.strip_prefix(parent.mount_point).ok()?;
        Some((parent.device, parent.root.join(relative)))
    });
    let has = |name: &str| found.tags.iter().any(|tag| tag.starts_with(name));
    Some(MountEntry {
        mount_point: found.mount_point.to_owned(),
        is_shared: has("shared:"),
        is_slave: has("master:"),
        is_of_itself: below == Some((found.device, found.root.to_owned())),
    })
}

/// A line of the table.
struct Line<'a> {
    id: &'a str,
    parent: &'a str,
    device: &'a str,
    /// The directory of the file system that is mounted.
    root: &'a Path,
    mount_point: &'a Path,
    tags: Vec<&'a str>,
}

impl<'a> Line<'a> {
    fn all(table: &'a str) -> impl Iterator<Item = Self> {
        table.lines().filter_map(|line| {
            let mut fields = line.split(' ');
            Some(Self {
                id: fields.next()?,
                parent: fields.next()?,
                device: fields.next()?,
                root: Path::new(fields.next()?),
                mount_point: Path::new(fields.next()?),
                // After the mount's options, up to a hyphen.
                tags: fields.skip(1).take_while(|tag| *tag != "-").collect(),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:21 / /var rw,relatime shared:7 - tmpfs tmpfs rw
31 22 0:22 / /in rw master:3 propagate_from:2 - tmpfs shared:9 rw
32 22 0:23 / /both rw shared:4 master:3 - tmpfs tmpfs rw
33 22 0:24 / /own rw unbindable - tmpfs tmpfs rw
34 22 254:0 /lib /lib rw - ext4 /dev/vda rw
35 22 254:0 /bin /sbin rw - ext4 /dev/vda rw
36 35 254:0 /bin/a /sbin/a rw - ext4 /dev/vda rw
37 30 0:22 /a /var/a rw - tmpfs tmpfs rw
";

    #[test]
    fn how_a_mount_propagates_is_in_its_optional_fields() {
        for (id, mount_point, is_shared, is_slave, is_of_itself) in [
            ("22", "/", false, false, false),
            ("30", "/var", true, false, false),
            ("31", "/in", false, true, false),
            ("32", "/both", true, true, false),
            ("33", "/own", false, false, false),
            ("34", "/lib", false, false, true),
            ("35", "/sbin", false, false, false),
            ("36", "/sbin/a", false, false, true),
            ("37", "/var/a", false, false, false),
        ] {
            let expected = MountEntry {
                mount_point: mount_point.into(),
                is_shared,
                is_slave,
                is_of_itself,
            };
            assert_eq!(find(TABLE, id), Some(expected));
        }
        assert_eq!(find(TABLE, "3"), None);
    }

    #[test]
    fn a_path_belongs_to_a_mount_above_it() {
        for (path, mount_point) in [("/proc/self/fd", "/proc"), ("/proc", "/proc")] {
            let mount = MountEntry::of_path(Path::new(path)).unwrap();
            assert_eq!(mount.mount_point, Path::new(mount_point));
        }
        assert!(MountEntry::of_path(Path::new("/missing/path")).is_err());
    }
}
