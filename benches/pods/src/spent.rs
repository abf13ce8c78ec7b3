//! The CPU time of everything that a run starts: the cgroup of the bench, where the daemons and their helpers are, and
//! those of pods. Unlike the time that passes, it hardly depends on the other load of the machine.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// The cgroups of pods, below the root.
const PODS: &[&str] = &["mainstay-", "kubepods"];

/// CPU time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Spent {
    user: Duration,
    kernel: Duration,
}

/// The time since an earlier moment for each of so many pods, as text.
pub(crate) fn per_pod(before: Spent, pods: usize) -> Option<String> {
    let now = so_far()?;
    let share = |now: Duration, before: Duration| {
        now.saturating_sub(before).as_secs_f64() * 1000.0 / pods as f64
    };
    Some(format!(
        "CPU per pod: {:.1} ms user, {:.1} ms kernel",
        share(now.user, before.user),
        share(now.kernel, before.kernel)
    ))
}

/// The time so far; nothing if the bench is in the root cgroup, which has the whole machine.
pub(crate) fn so_far() -> Option<Spent> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let (root, own) = own.lines().find_map(of_line)?;
    if own == "/" {
        return None;
    }
    let mut spent = read(&root.join(own.trim_start_matches('/')))?;
    for entry in fs::read_dir(&root).ok()?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if PODS.iter().any(|prefix| name.starts_with(prefix)) {
            let pods = read(&entry.path()).unwrap_or_default();
            spent.user += pods.user;
            spent.kernel += pods.kernel;
        }
    }
    Some(spent)
}

/// The hierarchy that counts CPU time, and the bench's cgroup in it.
fn of_line(line: &str) -> Option<(PathBuf, String)> {
    let mut parts = line.splitn(3, ':');
    let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let root = Path::new("/sys/fs/cgroup");
    let found = match controllers {
        "" if root.join("cgroup.controllers").exists() => root.to_path_buf(),
        "" => return None,
        some if some.split(',').any(|name| name == "cpuacct") => root.join("cpuacct"),
        _ => return None,
    };
    Some((found, path.to_owned()))
}

fn read(dir: &Path) -> Option<Spent> {
    let number = |text: &str| text.trim().parse::<u64>().ok();
    if let Ok(user) = fs::read_to_string(dir.join("cpuacct.usage_user")) {
        let kernel = fs::read_to_string(dir.join("cpuacct.usage_sys")).ok()?;
        return Some(Spent {
            user: Duration::from_nanos(number(&user)?),
            kernel: Duration::from_nanos(number(&kernel)?),
        });
    }
    let stat = fs::read_to_string(dir.join("cpu.stat")).ok()?;
    let line = |name: &str| {
        let value = stat.lines().find_map(|line| line.strip_prefix(name));
        value.and_then(number).map(Duration::from_micros)
    };
    Some(Spent {
        user: line("user_usec ")?,
        kernel: line("system_usec ")?,
    })
}
