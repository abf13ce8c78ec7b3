//! A cgroup: one path below the root of every hierarchy.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    Hierarchies,
    hierarchies::BESIDE,
    systemd::Scope,
    usage::{self},
};

/// A cgroup.
#[derive(Debug, Clone)]
pub struct Cgroup {
    pub(crate) hierarchies: &'static Hierarchies,
    path: PathBuf,
}

impl Cgroup {
    /// The cgroup at `path`, relative to the hierarchies' roots.
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self::at(Hierarchies::host(), path)
    }

    pub(crate) fn at(hierarchies: &'static Hierarchies, path: impl AsRef<Path>) -> Self {
        let path = path.as_ref();
        let path = path.strip_prefix("/").unwrap_or(path).to_path_buf();
        Self { hierarchies, path }
    }

    /// Its directory for one controller, if that is mounted.
    pub fn dir(&self, controller: &str) -> Option<PathBuf> {
        match self.hierarchies {
            Hierarchies::Unified(root) => Some(root.join(&self.path)),
            Hierarchies::Split(roots) => roots.get(controller).map(|root| root.join(&self.path)),
        }
    }

    fn dirs(&self) -> Vec<PathBuf> {
        match self.hierarchies {
            Hierarchies::Unified(root) => vec![root.join(&self.path)],
            Hierarchies::Split(roots) => {
                let mut dirs: Vec<_> = roots.values().map(|root| root.join(&self.path)).collect();
                dirs.sort();
                dirs.dedup();
                dirs
            }
        }
    }

    /// Its directories in hierarchies with controllers. The others belong to service managers, and
    /// nothing would remove a container's parents there.
    fn controlled(&self) -> Vec<PathBuf> {
        match self.hierarchies {
            Hierarchies::Unified(_) => self.dirs(),
            Hierarchies::Split(roots) => {
                let has = |name: &String| name != BESIDE && !name.starts_with("name=");
                let trees = roots.iter().filter(|(name, _)| has(name));
                let mut dirs: Vec<_> = trees.map(|(_, root)| root.join(&self.path)).collect();
                dirs.sort();
                dirs.dedup();
                dirs
            }
        }
    }

    /// Creates it where missing. New v1 cpusets get their parents' values, since empty ones accept
    /// no process. In v2 the controllers are enabled on the path.
    pub fn create(&self) -> io::Result<()> {
        match self.hierarchies {
            Hierarchies::Unified(root) => {
                create_dir(&root.join(&self.path))?;
                hand_down(root, &self.path);
                Ok(())
            }
            Hierarchies::Split(roots) => {
                for dir in self.controlled() {
                    create_dir(&dir)?;
                }
                match roots.get("cpuset") {
                    Some(root) => fill_cpusets(root, &self.path),
                    None => Ok(()),
                }
            }
        }
    }

    /// Moves the calling process, which must be single-threaded, into it.
    ///
    /// Moving whole processes makes the kernel wait for an RCU grace period (some ten milliseconds)
    /// to exclude concurrent forks. A thread that moves itself does not need that, and v1 can move
    /// a single thread.
    pub fn enter(&self) -> io::Result<()> {
        self.start_scope()?;
        self.create()?;
        match self.hierarchies {
            Hierarchies::Unified(_) if self.is_ours() => Ok(()),
            Hierarchies::Unified(root) => put(&root.join(&self.path), "cgroup.procs", "0"),
            Hierarchies::Split(_) => each_enters(&self.controlled()),
        }
    }

    /// The systemd scope that makes this cgroup, if it has the name of one.
    pub(crate) fn scope(&self) -> Option<Scope> {
        self.hierarchies
            .is_unified()
            .then(|| Scope::at(&self.path))?
    }

    /// Lets systemd make a scope with the calling process in it. One that exists is joined as any
    /// other cgroup.
    fn start_scope(&self) -> io::Result<()> {
        match self.scope() {
            Some(scope) if !self.dir("").is_some_and(|dir| dir.exists()) => {
                scope.start(std::process::id())
            }
            _ => Ok(()),
        }
    }

    /// Whether the calling process is in it, in the v2 hierarchy.
    fn is_ours(&self) -> bool {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
        own.is_some_and(|own| Path::new(own) == self.path)
    }

    /// Forks a child into it; returns the child's pid, or `None` in the child. The caller must be
    /// single-threaded.
    ///
    /// Whole processes cannot be moved without a grace period (see [`Cgroup::enter`]), but they can
    /// be created in the right place: that is how the v2 hierarchy is entered, also beside v1
    /// hierarchies, which the child must enter itself with [`Cgroup::enter_everywhere`].
    pub fn fork(&self) -> io::Result<Option<i32>> {
        if self.scope().is_some() {
            // The child asks systemd for its scope.
            return clone_into(None);
        }
        self.create()?;
        for dir in self.dirs() {
            create_dir(&dir)?;
        }
        let tree = match self.hierarchies {
            Hierarchies::Unified(root) => Some(root),
            Hierarchies::Split(roots) => roots.get(BESIDE),
        };
        let tree = tree.map(|root| File::open(root.join(&self.path)));
        clone_into(tree.transpose()?.as_ref())
    }

    /// As [`Cgroup::enter`], and also the hierarchies of service managers, so that these do not
    /// consider the process theirs; for the child of [`Cgroup::fork`].
    pub fn enter_everywhere(&self) -> io::Result<()> {
        match self.hierarchies {
            Hierarchies::Unified(_) => self.enter(),
            Hierarchies::Split(roots) => {
                let beside = roots.get(BESIDE).map(|root| root.join(&self.path));
                let mut dirs = self.dirs();
                dirs.retain(|dir| Some(dir) != beside.as_ref());
                each_enters(&dirs)
            }
        }
    }

    /// Moves a process into it, creating it where missing.
    pub fn adopt(&self, pid: i32) -> io::Result<()> {
        self.create()?;
        for dir in self.controlled() {
            put(&dir, "cgroup.procs", &pid.to_string())?;
        }
        Ok(())
    }

    /// Every process in it and below.
    pub fn processes(&self) -> Vec<i32> {
        // v1: the processes are the same in all hierarchies with controllers.
        let dir = ["pids", "memory", "freezer", "cpu"]
            .iter()
            .find_map(|name| self.dir(name));
        let mut found = Vec::new();
        if let Some(dir) = dir {
            collect(&dir, &mut found);
        }
        found
    }

    /// Kills all of its processes, repeatedly until none is left or the deadline has passed.
    pub fn kill_all(&self, deadline: Duration) -> bool {
        let until = Instant::now() + deadline;
        loop {
            let left = self.processes();
            if left.is_empty() {
                return true;
            }
            if !self.kill_at_once() {
                for pid in left {
                    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
                }
            }
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// v2 has `cgroup.kill`, which also catches concurrent forks.
    fn kill_at_once(&self) -> bool {
        match self.hierarchies {
            Hierarchies::Unified(root) => put(&root.join(&self.path), "cgroup.kill", "1").is_ok(),
            Hierarchies::Split(_) => false,
        }
    }

    /// Freezes or thaws all of its processes.
    pub fn freeze(&self, frozen: bool) -> io::Result<()> {
        match self.hierarchies {
            Hierarchies::Unified(root) => {
                let value = if frozen { "1" } else { "0" };
                put(&root.join(&self.path), "cgroup.freeze", value)
            }
            Hierarchies::Split(_) => {
                let dir = self
                    .dir("freezer")
                    .ok_or_else(|| io::Error::other("the freezer is not mounted"))?;
                put(
                    &dir,
                    "freezer.state",
                    if frozen { "FROZEN" } else { "THAWED" },
                )
            }
        }
    }

    /// Removes it with everything below. One that still has a process stays, which is an error.
    pub fn remove(&self) -> io::Result<()> {
        let mut result = Ok(());
        for dir in self.dirs() {
            if let Err(error) = remove_tree(&dir) {
                result = Err(io::Error::new(
                    error.kind(),
                    format!("{}: {error}", dir.display()),
                ));
            }
        }
        result
    }

    /// Retries [`Cgroup::remove`] until the deadline: the kernel releases a dead process' cgroup a
    /// moment after the process was reaped.
    pub fn remove_within(&self, deadline: Duration) -> io::Result<()> {
        let until = Instant::now() + deadline;
        loop {
            match self.remove() {
                Err(_) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                result => return result,
            }
        }
    }

    /// The number of OOM kills in it.
    pub fn oom_kills(&self) -> u64 {
        let Some(dir) = self.dir("memory") else {
            return 0;
        };
        let file = if self.hierarchies.is_unified() {
            "memory.events"
        } else {
            "memory.oom_control"
        };
        usage::keyed(&dir.join(file), "oom_kill").unwrap_or(0)
    }
}

/// Moves the calling thread into these cgroups.
fn each_enters(dirs: &[PathBuf]) -> io::Result<()> {
    dirs.iter().try_for_each(|dir| put(dir, "tasks", "0"))
}

/// Writes a value to an existing file; an error names both.
pub(crate) fn put(dir: &Path, file: &str, value: &str) -> io::Result<()> {
    put_each(dir, file, [value])
}

/// Writes values to an existing file, one after the other.
pub(crate) fn put_each<'a>(
    dir: &Path,
    file: &str,
    values: impl IntoIterator<Item = &'a str>,
) -> io::Result<()> {
    let path = dir.join(file);
    let mut opened = None;
    for value in values {
        let written = match &mut opened {
            Some(file) => File::write_all(file, value.as_bytes()),
            None => OpenOptions::new()
                .write(true)
                .open(&path)
                .and_then(|file| opened.insert(file).write_all(value.as_bytes())),
        };
        written.map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("write {value:?} to {}: {error}", path.display()),
            )
        })?;
    }
    Ok(())
}

/// The kernel's value; libc's type is too narrow.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// `fork`, with the child in a v2 cgroup if one is given.
fn clone_into(cgroup: Option<&File>) -> io::Result<Option<i32>> {
    // SAFETY: all zero is a valid value of this structure of numbers.
    let mut wanted: libc::clone_args = unsafe { std::mem::zeroed() };
    wanted.exit_signal = u64::from(libc::SIGCHLD.cast_unsigned());
    if let Some(cgroup) = cgroup {
        wanted.flags = CLONE_INTO_CGROUP;
        wanted.cgroup = u64::from(cgroup.as_raw_fd().cast_unsigned());
    }
    // SAFETY: without shared memory this is a fork, and the caller has one thread.
    let result = unsafe {
        libc::syscall(
            libc::SYS_clone3,
            &raw mut wanted,
            size_of::<libc::clone_args>(),
        )
    };
    match result {
        0 => Ok(None),
        pid if pid > 0 => i32::try_from(pid).map(Some).map_err(io::Error::other),
        _ => Err(io::Error::last_os_error()),
    }
}

fn create_dir(dir: &Path) -> io::Result<()> {
    match fs::create_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => fs::create_dir_all(dir),
        result => result,
    }
    .map_err(|error| io::Error::new(error.kind(), format!("make {}: {error}", dir.display())))
}

/// Copies downwards from the last cgroup on the path that has cpus and memory nodes.
fn fill_cpusets(root: &Path, path: &Path) -> io::Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let mut empty = Vec::new();
        let mut value = String::new();
        for step in path.ancestors() {
            let dir = root.join(step);
            value = fs::read_to_string(dir.join(file))?.trim().to_owned();
            if !value.is_empty() {
                break;
            }
            empty.push(dir);
        }
        for dir in empty.iter().rev() {
            put(dir, file, &value)?;
        }
    }
    Ok(())
}

/// Enables the controllers in every cgroup on the path. One that cannot be enabled is an error only
/// when a limit of it is set.
fn hand_down(root: &Path, path: &Path) {
    let mut way: Vec<&Path> = path.ancestors().skip(1).collect();
    way.reverse();
    for step in way {
        let dir = root.join(step);
        let read = |file: &str| fs::read_to_string(dir.join(file)).unwrap_or_default();
        let (available, given) = (read("cgroup.controllers"), read("cgroup.subtree_control"));
        let given: Vec<&str> = given.split_whitespace().collect();
        for controller in available.split_whitespace() {
            if !given.contains(&controller) {
                let _ = put(&dir, "cgroup.subtree_control", &format!("+{controller}"));
            }
        }
    }
}

fn collect(dir: &Path, found: &mut Vec<i32>) {
    if let Ok(text) = fs::read_to_string(dir.join("cgroup.procs")) {
        found.extend(
            text.lines()
                .filter_map(|line| line.parse::<i32>().ok())
                .filter(|pid| *pid > 0),
        );
    }
    for child in children(dir) {
        collect(&child, found);
    }
}

fn children(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let directories = entries
        .flatten()
        .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
    directories.map(|entry| entry.path()).collect()
}

fn remove_tree(dir: &Path) -> io::Result<()> {
    match fs::remove_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => {
            let children = children(dir);
            if children.is_empty() {
                return Err(error);
            }
            for child in children {
                remove_tree(&child)?;
            }
            fs::remove_dir(dir)
        }
        Ok(()) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A v2 hierarchy of ordinary files: what is written can be read back.
    fn fake(files: &[(&str, &str)]) -> (tempfile::TempDir, &'static Hierarchies) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let root = dir.path().to_path_buf();
        (dir, Box::leak(Box::new(Hierarchies::Unified(root))))
    }

    #[test]
    fn version_2_hands_controllers_down_and_kills_by_file() {
        let (dir, hierarchies) = fake(&[
            ("cgroup.controllers", "cpu memory pids"),
            ("cgroup.subtree_control", "cpu memory pids"),
            ("pods/cgroup.controllers", "memory"),
            ("pods/cgroup.subtree_control", ""),
            ("pods/a/cgroup.procs", "0"),
            ("pods/a/cgroup.kill", ""),
            ("pods/a/cgroup.freeze", ""),
        ]);
        let group = Cgroup::at(hierarchies, "/pods/a");
        group.create().unwrap();
        let read = |path: &str| fs::read_to_string(dir.path().join(path)).unwrap();
        assert_eq!(read("pods/cgroup.subtree_control"), "+memory");
        assert_eq!(read("cgroup.subtree_control"), "cpu memory pids");
        assert!(group.kill_at_once());
        assert_eq!(read("pods/a/cgroup.kill"), "1");
        group.freeze(true).unwrap();
        assert_eq!(read("pods/a/cgroup.freeze"), "1");
        group.enter().unwrap();
    }

    #[test]
    fn new_cpusets_inherit_from_their_nearest_ancestor() {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in [("", "0-3\n"), ("pods", "\n"), ("pods/a", "\n")] {
            fs::create_dir_all(dir.path().join(path)).unwrap();
            for file in ["cpuset.cpus", "cpuset.mems"] {
                fs::write(dir.path().join(path).join(file), text).unwrap();
            }
        }
        fill_cpusets(dir.path(), Path::new("pods/a")).unwrap();
        let read = |path: &str| fs::read_to_string(dir.path().join(path)).unwrap();
        assert_eq!(read("pods/cpuset.cpus").trim(), "0-3");
        assert_eq!(read("pods/a/cpuset.mems").trim(), "0-3");
    }

    /// The machine's own v2 hierarchy, with or without controllers. Needs root.
    #[test]
    fn version_2_kills_freezes_and_removes_for_real() {
        let Some(tree) = crate::real::Tree::take() else {
            return;
        };
        let hierarchies = tree.hierarchies();
        let name = format!("mainstay-test-{}", std::process::id());
        let group = Cgroup::at(hierarchies, format!("{name}/inner"));
        let mut sleeper = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        group.adopt(sleeper.id().cast_signed()).unwrap();
        assert_eq!(group.processes(), [sleeper.id().cast_signed()]);
        group.freeze(true).unwrap();
        let events = group.dir("").unwrap().join("cgroup.events");
        let deadline = Instant::now() + Duration::from_secs(5);
        while usage::keyed(&events, "frozen") != Some(1) {
            assert!(Instant::now() < deadline, "it does not freeze");
            std::thread::yield_now();
        }
        group.freeze(false).unwrap();
        assert!(group.kill_at_once());
        let status = sleeper.wait().unwrap();
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(9)
        );
        let whole = Cgroup::at(hierarchies, &name);
        whole.remove_within(Duration::from_secs(5)).unwrap();
        assert!(!whole.dir("").unwrap().exists());
    }
}
