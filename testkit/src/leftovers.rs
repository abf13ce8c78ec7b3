//! What a cluster could leave behind on a machine, to compare before and after.

use std::{collections::BTreeSet, fs, path::Path};

use crate::Machine;

/// Links, rules, routes, mounts, cgroups and processes, as lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftovers(BTreeSet<String>);

impl Leftovers {
    /// Everything that exists now. `marks` identify the cluster's processes.
    pub fn on(machine: &Machine, marks: &[&str]) -> Self {
        let mut seen = BTreeSet::new();
        for (what, program, args) in [
            ("link", "ip", &["-o", "link"][..]),
            ("route", "ip", &["route", "show", "table", "all"]),
            ("rule", "nft", &["list", "ruleset"]),
            ("mount", "cat", &["/proc/self/mountinfo"]),
            ("netns", "ls", &["/run"]),
        ] {
            let text = machine.run(program, args).stdout;
            let lasting = text.lines().filter(|line| !comes_by_itself(line));
            seen.extend(lasting.map(|line| format!("{what}: {}", stable(what, line))));
        }
        seen.extend(cgroups(Path::new("/sys/fs/cgroup"), marks));
        seen.extend(processes(marks));
        Self(seen)
    }

    /// What exists now and did not before.
    pub fn since(&self, before: &Self) -> Vec<String> {
        self.0.difference(&before.0).cloned().collect()
    }
}

/// The kernel adds local addresses to the machine's own link at any time.
fn comes_by_itself(line: &str) -> bool {
    let own = ["dev eth0", "dev wire"]
        .iter()
        .any(|link| line.contains(link));
    own && ["fe80::", "ff00::"]
        .iter()
        .any(|range| line.contains(range))
}

/// Drops what changes by itself: mount ids, link indexes.
fn stable<'a>(what: &str, line: &'a str) -> &'a str {
    match what {
        "mount" => line.splitn(5, ' ').last().unwrap_or(line),
        "link" => line
            .split_once(": ")
            .map_or(line, |(_, rest)| rest.split(' ').next().unwrap_or(rest)),
        _ => line,
    }
}

fn cgroups(directory: &Path, marks: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(directory) else {
        return found;
    };
    for entry in entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|t| t.is_dir()))
    {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if marks.iter().any(|mark| name.contains(mark)) {
            found.push(format!("cgroup: {}", path.display()));
        } else {
            found.extend(cgroups(&path, marks));
        }
    }
    found
}

fn processes(marks: &[&str]) -> Vec<String> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let of = |entry: fs::DirEntry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let read = |file: &str| fs::read(entry.path().join(file)).unwrap_or_default();
        let command = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
        let cgroup = String::from_utf8_lossy(&read("cgroup")).into_owned();
        let ours = marks
            .iter()
            .any(|mark| command.contains(mark) || cgroup.contains(mark));
        (ours && pid != std::process::id()).then(|| format!("process: {pid} {command}"))
    };
    entries.flatten().filter_map(of).collect()
}
