//! `reset`: removes everything that a cluster made on this machine, found by its id and its
//! directories, and nothing else. Works after a crash at any moment; doing it twice is no error.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use nix::{
    mount::{MntFlags, umount2},
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{Error, lock::DataLock, settings};

/// Where the machine's control groups are, version 1 or 2.
const CGROUPS: &str = "/sys/fs/cgroup";

/// How long killed processes get to vanish.
const PATIENCE: Duration = Duration::from_secs(10);

/// Removes it all; gives a line for each kind of thing that was there.
pub async fn run(data_dir: &Path) -> Result<Vec<String>, Error> {
    let id = settings::id(data_dir);
    let state_dir = settings::state_dir(&id);
    // A running daemon would make anew what is removed.
    let lock = data_dir
        .exists()
        .then(|| DataLock::take(data_dir))
        .transpose()?;
    let mut removed = Vec::new();
    let groups = control_groups(&format!("mainstay-{id}"));
    count(&mut removed, end_processes(&groups)?, "process");
    network::cleanup(&id).await?;
    let pods = network::cleanup_cni(&data_dir.join("cni")).await?;
    count(&mut removed, pods, "attachment");
    count(
        &mut removed,
        unmount_below(&[data_dir, &state_dir])?,
        "mount",
    );
    count(&mut removed, groups.len(), "cgroup");
    for group in groups {
        remove_group(&group)?;
    }
    for directory in [&state_dir, &data_dir.to_owned()] {
        match fs::remove_dir_all(directory) {
            Ok(()) => removed.push(directory.display().to_string()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => {
                return Err(Error::Directory {
                    path: directory.clone(),
                    source,
                });
            }
        }
    }
    drop(lock);
    // Shared by all clusters of the machine: only the last one takes it along.
    if let Some(parent) = state_dir.parent() {
        let _ = fs::remove_dir(parent);
    }
    Ok(removed)
}

fn count(removed: &mut Vec<String>, many: usize, what: &str) {
    let plural = if what.ends_with('s') { "es" } else { "s" };
    match many {
        0 => {}
        1 => removed.push(format!("1 {what}")),
        many => removed.push(format!("{many} {what}{plural}")),
    }
}

/// Every control group directory of this name directly below a hierarchy's root.
fn control_groups(name: &str) -> Vec<PathBuf> {
    let root = Path::new(CGROUPS);
    let below = fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    let all = below
        .chain([root.to_owned()])
        .map(|hierarchy| hierarchy.join(name));
    all.filter(|path| path.is_dir()).collect()
}

/// Kills every process in the groups, and waits until they are gone.
fn end_processes(groups: &[PathBuf]) -> Result<usize, Error> {
    let mut ended = BTreeSet::new();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let alive: BTreeSet<i32> = groups.iter().flat_map(|group| processes(group)).collect();
        if alive.is_empty() {
            return Ok(ended.len());
        }
        if Instant::now() > deadline {
            return Err(Error::Unkillable(alive.into_iter().collect()));
        }
        for pid in alive {
            // One that has ended meanwhile is as good as killed.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            ended.insert(pid);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn processes(group: &Path) -> Vec<i32> {
    let own = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let mut found: Vec<i32> = own.lines().filter_map(|line| line.parse().ok()).collect();
    for child in subgroups(group) {
        found.extend(processes(&child));
    }
    found
}

fn subgroups(group: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(group).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.map(|entry| entry.path()).collect()
}

fn remove_group(group: &Path) -> Result<(), Error> {
    for child in subgroups(group) {
        remove_group(&child)?;
    }
    match fs::remove_dir(group) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::Directory {
            path: group.to_owned(),
            source: error,
        }),
        _ => Ok(()),
    }
}

/// Unmounts everything below the directories, the newest first.
fn unmount_below(directories: &[&Path]) -> Result<usize, Error> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut mounts = mounts_below(&table, directories);
    mounts.reverse();
    for mount in &mounts {
        umount2(mount, MntFlags::MNT_DETACH).map_err(|error| Error::Directory {
            path: mount.clone(),
            source: error.into(),
        })?;
    }
    Ok(mounts.len())
}

/// The mount points of a mount table that lie in one of the directories, in the table's order.
fn mounts_below(table: &str, directories: &[&Path]) -> Vec<PathBuf> {
    let point = |line: &str| Some(PathBuf::from(unescape(line.split(' ').nth(4)?)));
    let ours = |path: &PathBuf| {
        directories
            .iter()
            .any(|directory| path.starts_with(directory))
    };
    table.lines().filter_map(point).filter(ours).collect()
}

/// The kernel writes blanks and backslashes of paths as octal numbers.
fn unescape(path: &str) -> String {
    [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ]
    .into_iter()
    .fold(path.to_owned(), |path, (code, text)| {
        path.replace(code, text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mounts_inside_our_directories_are_ours() {
        let table = "1 0 8:1 / / rw - ext4 /dev/a rw\n\
                     2 1 0:1 / /data/one/merged rw - overlay overlay rw\n\
                     3 1 0:2 / /data/one\\040more rw - tmpfs tmpfs rw\n\
                     4 1 0:3 / /run/mainstay/ab/netns/x rw - nsfs nsfs rw\n";
        let ours = mounts_below(
            table,
            &[Path::new("/data/one"), Path::new("/run/mainstay/ab")],
        );
        assert_eq!(
            ours,
            [
                Path::new("/data/one/merged"),
                Path::new("/run/mainstay/ab/netns/x")
            ]
        );
    }
}
