//! `reset`: removes everything that a cluster created on this machine, found by its id and its
//! directories, and nothing else: a directory without our marker is rejected, other entries and
//! foreign mounts stay. Works after a crash at any moment; idempotent.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    mount::{MntFlags, umount2},
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    Error, kubelet_root,
    lock::DataLock,
    marker::{self, Marker},
    node::{POD_LOGS_DIR, dns_holder},
    settings,
};

/// The cgroup hierarchy, version 1 or 2.
const CGROUPS: &str = "/sys/fs/cgroup";

/// The file in the state directory with the name of the cluster's cgroup.
pub(crate) const CGROUP_FILE: &str = "cgroup";

/// How long killed processes get to exit.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// The result of a reset.
#[derive(Debug, Default)]
pub struct Report {
    /// A line for each type of removed thing.
    pub removed: Vec<String>,
    /// What remains, and why.
    pub kept: Vec<String>,
}

/// Removes everything that the cluster of this data directory created. A directory without our
/// marker is rejected; otherwise entries that are not ours and everything below foreign mounts
/// stay.
pub async fn run(data_dir: &Path) -> Result<Report, Error> {
    let id = settings::id(data_dir);
    let state_dir = settings::state_dir(&id);
    let marker = Marker::read(data_dir)?;
    if data_dir.exists() && marker.is_none() {
        return Err(Error::NotOurs(data_dir.to_owned()));
    }
    let kubelet_root = kubelet_root::claimed(data_dir, marker.as_ref());
    // A running daemon would recreate what is removed.
    let lock = data_dir
        .exists()
        .then(|| DataLock::take(data_dir))
        .transpose()?;
    let mut report = Report::default();
    let removed = &mut report.removed;
    let groups = control_groups(&cgroup(&id, &state_dir, marker.as_ref()));
    count(removed, end_processes(&groups)?, "process");
    let holder = dns_holder(&state_dir);
    dns::holder::end(&holder).map_err(|source| Error::Directory {
        path: holder.clone(),
        source,
    })?;
    network::cleanup(&id).await?;
    let pods = network::cleanup_cni(&data_dir.join("cni")).await?;
    count(removed, pods, "attachment");
    count(
        removed,
        unmount_below(&mount_roots(data_dir, &state_dir, kubelet_root.as_deref()))?,
        "mount",
    );
    let own_root = data_dir.join("kubelet");
    kubelet_root::unshare(kubelet_root.as_deref().unwrap_or(&own_root))?;
    count(removed, groups.len(), "cgroup");
    for group in groups {
        remove_group(&group)?;
    }
    remove_tree(&state_dir, &mount_table(), &mut report)?;
    let owner = kubelet_root.clone().unwrap_or(own_root);
    remove_logs(Path::new(POD_LOGS_DIR), &owner, &mut report)?;
    if let Some(root) = &kubelet_root {
        remove_tree(root, &mount_table(), &mut report)?;
    }
    remove_entries(data_dir, &mut report)?;
    drop(lock);
    // Shared by all clusters of the machine: removed with the last one.
    if let Some(parent) = state_dir.parent() {
        let _ = fs::remove_dir(parent);
    }
    Ok(report)
}

/// The name of the cluster's cgroup. If the data directory was removed by hand, the state directory
/// still has it.
fn cgroup(id: &str, state_dir: &Path, marker: Option<&Marker>) -> String {
    let usual = marker::cgroup(id, marker);
    if marker.is_some() {
        return usual;
    }
    let noted = fs::read_to_string(state_dir.join(CGROUP_FILE)).unwrap_or_default();
    let is_ours = noted.starts_with(&usual) && !noted.contains('/');
    if is_ours { noted } else { usual }
}

/// The directories below which our components mount: pods' volumes, containers' file systems,
/// pinned namespaces. A mount at one of them, or above, is not ours, except the kubelet's
/// directory on itself.
fn mount_roots(data_dir: &Path, state_dir: &Path, kubelet_root: Option<&Path>) -> Vec<PathBuf> {
    let mut roots = vec![state_dir.to_owned()];
    roots.extend(kubelet_root.map(Path::to_owned));
    roots.extend(["kubelet", "runtime", "cni"].map(|entry| data_dir.join(entry)));
    roots
}

/// Removes the logs of our pods from a shared directory, and the links to them.
fn remove_logs(dir: &Path, owner: &Path, report: &mut Report) -> Result<(), Error> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let ours = entries.map(|entry| entry.path());
    let ours: Vec<PathBuf> = ours.filter(|dir| kubelet::owns_logs(dir, owner)).collect();
    let mut removed = Report::default();
    for logs in &ours {
        remove_tree(logs, &mount_table(), &mut removed)?;
    }
    report.kept.append(&mut removed.kept);
    count(&mut report.removed, removed.removed.len(), "log directory");
    let links = dir.with_file_name("containers");
    kubelet::remove_dangling_log_links(&links, dir);
    // Other runtimes may use them too: they go only if they are empty.
    for shared in [dir, &links] {
        let _ = fs::remove_dir(shared);
    }
    Ok(())
}

/// Removes our entries of the data directory, the marker last, and then the directory if it is
/// empty.
fn remove_entries(data_dir: &Path, report: &mut Report) -> Result<(), Error> {
    let failed = |source| Error::Directory {
        path: data_dir.to_owned(),
        source,
    };
    let entries = match fs::read_dir(data_dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    let mut names: Vec<String> = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    // After a crash in the middle, the next reset still finds the marker.
    names.sort_unstable_by_key(|name| name == marker::FILE);
    let table = mount_table();
    let kept = report.kept.len();
    for name in names {
        let path = data_dir.join(&name);
        if !marker::is_ours(&name) {
            report
                .kept
                .push(format!("{}: not made by mainstay", path.display()));
        } else if name == marker::FILE && report.kept[kept..].iter().any(|why| why.ends_with(MOUNT))
        {
            report.kept.push(format!(
                "{}: the directory still contains data of mainstay",
                path.display()
            ));
        } else {
            remove_tree(&path, &table, report)?;
        }
    }
    if table.iter().any(|mount| mount == data_dir) {
        report.kept.push(format!("{}: {MOUNT}", data_dir.display()));
        return Ok(());
    }
    match fs::remove_dir(data_dir) {
        Ok(()) => report.removed.push(data_dir.display().to_string()),
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
        Err(error) => return Err(failed(error)),
    }
    Ok(())
}

/// Why a directory stays.
const MOUNT: &str = "a mount point that mainstay did not make";

/// Removes a file or a directory tree; one that contains or is a mount stays.
fn remove_tree(path: &Path, mounts: &[PathBuf], report: &mut Report) -> Result<(), Error> {
    if let Some(mount) = mounts.iter().find(|mount| mount.starts_with(path)) {
        report.kept.push(format!("{}: {MOUNT}", mount.display()));
        return Ok(());
    }
    let removed = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Ok(()) => report.removed.push(path.display().to_string()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => {
            let path = path.to_owned();
            return Err(Error::Directory { path, source });
        }
    }
    Ok(())
}

fn count(removed: &mut Vec<String>, many: usize, what: &str) {
    match (many, what.strip_suffix('y')) {
        (0, _) => {}
        (1, _) => removed.push(format!("1 {what}")),
        (many, Some(stem)) => removed.push(format!("{many} {stem}ies")),
        (many, None) => {
            let plural = if what.ends_with('s') { "es" } else { "s" };
            removed.push(format!("{many} {what}{plural}"));
        }
    }
}

/// Every cgroup directory of this name directly below a hierarchy's root.
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

/// Kills every process in the cgroups, and waits until they are gone.
fn end_processes(groups: &[PathBuf]) -> Result<usize, Error> {
    let mut ended = BTreeSet::new();
    let deadline = Instant::now() + STOP_TIMEOUT;
    loop {
        let alive: BTreeSet<i32> = groups.iter().flat_map(|group| processes(group)).collect();
        if alive.is_empty() {
            return Ok(ended.len());
        }
        if Instant::now() > deadline {
            return Err(Error::Unkillable(alive.into_iter().collect()));
        }
        for pid in alive {
            // It may have exited already.
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

/// Unmounts everything below the directories, the newest first, but not at the directories
/// themselves.
fn unmount_below(directories: &[PathBuf]) -> Result<usize, Error> {
    let mut mounts = mount_table();
    let is_below =
        |mount: &Path, directory: &PathBuf| mount.starts_with(directory) && mount != directory;
    mounts.retain(|mount| {
        directories
            .iter()
            .any(|directory| is_below(mount, directory))
    });
    mounts.reverse();
    for mount in &mounts {
        match umount2(mount, MntFlags::MNT_DETACH) {
            Ok(()) => {}
            // Shared mounts go together: this one went with another.
            Err(Errno::EINVAL | Errno::ENOENT) if !mount_table().contains(mount) => {}
            Err(error) => {
                let (path, source) = (mount.clone(), error.into());
                return Err(Error::Directory { path, source });
            }
        }
    }
    Ok(mounts.len())
}

/// Every mount point of this thread, the oldest first.
pub(crate) fn mount_table() -> Vec<PathBuf> {
    mount_points(&fs::read_to_string("/proc/thread-self/mountinfo").unwrap_or_default())
}

fn mount_points(table: &str) -> Vec<PathBuf> {
    let point = |line: &str| Some(PathBuf::from(unescape(line.split(' ').nth(4)?)));
    table.lines().filter_map(point).collect()
}

/// The kernel writes spaces and backslashes in paths as octal escapes.
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
    fn mount_points_are_read_from_the_table() {
        let table = "1 0 8:1 / / rw - ext4 /dev/a rw\n\
                     3 1 0:2 / /data/one\\040more rw - tmpfs tmpfs rw\n";
        assert_eq!(
            mount_points(table),
            [Path::new("/"), Path::new("/data/one more")]
        );
    }

    #[test]
    fn the_cgroup_of_a_removed_data_directory_is_found() {
        let state = tempfile::tempdir().unwrap();
        let marker = Marker {
            cgroup_suffix: "77".into(),
            ..Marker::default()
        };
        assert_eq!(cgroup("1a", state.path(), Some(&marker)), "mainstay-1a77");
        assert_eq!(cgroup("1a", state.path(), None), "mainstay-1a");
        for (noted, expected) in [
            ("mainstay-1a77", "mainstay-1a77"),
            ("mainstay-1a/../other", "mainstay-1a"),
            ("other", "mainstay-1a"),
        ] {
            fs::write(state.path().join(CGROUP_FILE), noted).unwrap();
            assert_eq!(cgroup("1a", state.path(), None), expected);
        }
        assert_eq!(cgroup("1a", state.path(), Some(&marker)), "mainstay-1a77");
    }

    #[tokio::test]
    async fn a_directory_without_our_marker_is_refused_and_stays() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("pki")).unwrap();
        let refused = run(directory.path()).await.unwrap_err();
        assert!(matches!(refused, Error::NotOurs(_)), "{refused}");
        assert!(refused.to_string().contains(marker::FILE), "{refused}");
        assert!(directory.path().join("pki").exists());
        assert!(!directory.path().join("lock").exists());
    }

    #[test]
    fn foreign_files_are_kept_and_listed() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        for entry in ["pki", "store", "photos"] {
            fs::create_dir_all(data.join(entry)).unwrap();
        }
        fs::write(data.join("admin.kubeconfig"), "x").unwrap();
        Marker::update(&data, |_| {}).unwrap();
        let mut report = Report::default();
        remove_entries(&data, &mut report).unwrap();
        let left: Vec<_> = fs::read_dir(&data).unwrap().flatten().collect();
        assert_eq!(left.len(), 1);
        assert!(data.join("photos").is_dir());
        assert_eq!(report.kept.len(), 1);
        assert!(report.kept[0].contains("photos"), "{:?}", report.kept);
        fs::remove_dir(data.join("photos")).unwrap();
        Marker::update(&data, |_| {}).unwrap();
        remove_entries(&data, &mut report).unwrap();
        assert!(!data.exists());
    }

    #[test]
    fn logs_of_our_pods_go_and_those_of_others_stay() {
        let temporary = tempfile::tempdir().unwrap();
        let (pods, owner) = (temporary.path().join("pods"), Path::new("/our/kubelet"));
        for (name, owner) in [
            ("a_b_1", Some(owner)),
            ("a_b_2", Some("/theirs".as_ref())),
            ("c", None),
        ] {
            fs::create_dir_all(pods.join(name)).unwrap();
            if let Some(owner) = owner {
                kubelet::mark_logs(&pods.join(name), owner).unwrap();
            }
        }
        let mut report = Report::default();
        remove_logs(&pods, owner, &mut report).unwrap();
        assert_eq!(report.removed, ["1 log directory"]);
        let left = |name: &str| pods.join(name).exists();
        assert!(!left("a_b_1") && left("a_b_2") && left("c"));
        for name in ["a_b_2", "c"] {
            fs::remove_dir_all(pods.join(name)).unwrap();
        }
        remove_logs(&pods, owner, &mut report).unwrap();
        assert!(!pods.exists());
    }

    #[test]
    fn mounts_that_go_together_are_unmounted() {
        use nix::{
            mount::{MsFlags, mount},
            sched::{CloneFlags, unshare},
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_owned();
        // The thread has a mount namespace of its own.
        let unmounted = std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            let none = None::<&str>;
            let change = |flags| mount(none, "/", none, flags, none).unwrap();
            let tmpfs = |at: &Path| mount(none, at, Some("tmpfs"), MsFlags::empty(), none).unwrap();
            change(MsFlags::MS_REC | MsFlags::MS_PRIVATE);
            change(MsFlags::MS_REC | MsFlags::MS_SHARED);
            let [one, other] = ["one", "other"].map(|name| path.join(name));
            fs::create_dir(&one).unwrap();
            fs::create_dir(&other).unwrap();
            tmpfs(&one);
            mount(Some(&one), &other, none, MsFlags::MS_BIND, none).unwrap();
            fs::create_dir(one.join("below")).unwrap();
            tmpfs(&one.join("below"));
            let count = unmount_below(std::slice::from_ref(&path)).unwrap();
            let left = mount_table();
            let left = left.iter().filter(|mount| mount.starts_with(&path)).count();
            (count, left)
        });
        assert_eq!(unmounted.join().unwrap(), (4, 0));
    }

    #[test]
    fn nothing_below_a_mount_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let store = directory.path().join("store");
        fs::create_dir_all(store.join("disk")).unwrap();
        fs::write(store.join("disk/data"), "x").unwrap();
        let mut report = Report::default();
        remove_tree(&store, &[store.join("disk")], &mut report).unwrap();
        assert!(store.join("disk/data").exists());
        assert!(report.kept[0].contains("mount point"), "{:?}", report.kept);
        remove_tree(&store, &[directory.path().join("store2")], &mut report).unwrap();
        assert!(!store.exists());
    }
}
