//! Checks and adjusts mount destinations. The image's links and the pod's volumes are untrusted,
//! and libcontainer differs from runc in three points that are handled here before it runs:
//!
//! - A mount whose destination is a dangling link is mounted at the link's target, inside the root.
//! - Nothing is mounted inside `/proc` but the few files that runc allows, however the destination
//!   is spelled. Links inside volumes cannot be resolved in advance, so the result is checked again
//!   in the container, before its program is executed ([`check_result`]).
//! - On cgroup v1 a container sees only its own cgroups, read-only unless it is privileged.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use libcgroups::Hierarchies;
use nix::sys::statfs::{PROC_SUPER_MAGIC, statfs};
use oci_spec::runtime::{Mount, MountBuilder, Spec};

use super::oci::Outcome;
use crate::rooted;

const PROC: &str = "/proc";
pub(super) const CGROUPS: &str = "/sys/fs/cgroup";

/// Files of `/proc` that may be mounted over, as lxcfs does.
const REPLACEABLE: &[&str] = &[
    "/proc/cpuinfo",
    "/proc/diskstats",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/swaps",
    "/proc/uptime",
    "/proc/loadavg",
    "/proc/slabinfo",
    "/proc/sys/kernel/ns_last_pid",
    "/proc/sys/crypto/fips_enabled",
];

/// Adjusts the mounts; returns whether any was changed.
pub(super) fn create_mount_points(spec: &mut Spec) -> Outcome<bool> {
    let followed = follow_links(spec)?;
    let limited = show_own_cgroups(spec, Hierarchies::host())?;
    Ok(followed || limited)
}

pub(super) fn is_bind(mount: &Mount) -> bool {
    let has = |wanted: &str| mount.options().iter().flatten().any(|o| o == wanted);
    mount.typ().as_deref() == Some("bind") || has("bind") || has("rbind")
}

fn follow_links(spec: &mut Spec) -> Outcome<bool> {
    let root = spec.root().as_ref().ok_or("no root")?.path().clone();
    let mut mounts = spec.mounts().clone().unwrap_or_default();
    let mut mounted: BTreeSet<PathBuf> = BTreeSet::new();
    let mut changed = false;
    for mount in &mut mounts {
        // Links below an earlier mount are not the image's.
        let visible = |at: &Path| !mounted.iter().any(|place| at.starts_with(place));
        let wanted = mount.destination().clone();
        let place = rooted::resolve(&root, &wanted, visible)
            .map_err(|error| format!("mount path {}: {error}", wanted.display()))?;
        check_destination(&place, mount)?;
        if is_bind(mount) && place != wanted {
            mount.set_destination(place.clone());
            changed = true;
        }
        mounted.insert(place);
    }
    if changed {
        spec.set_mounts(Some(mounts));
    }
    Ok(changed)
}

/// runc's rule about `/proc`.
fn check_destination(place: &Path, mount: &Mount) -> Outcome<()> {
    if !place.starts_with(PROC) || REPLACEABLE.iter().any(|file| place == Path::new(file)) {
        return Ok(());
    }
    let wanted = mount.destination().display();
    if place != Path::new(PROC) {
        return Err(format!("{wanted} cannot be mounted because it is inside /proc").into());
    }
    let is_proc = match mount.source() {
        Some(source) if is_bind(mount) => {
            statfs(source).is_ok_and(|fs| fs.filesystem_type() == PROC_SUPER_MAGIC)
        }
        _ => mount.typ().as_deref() == Some("proc"),
    };
    if is_proc {
        Ok(())
    } else {
        Err(format!("{wanted} cannot be mounted because it is not of type proc").into())
    }
}

/// Replaces the cgroup mount by bind mounts of the container's own cgroups. There is no cgroup
/// namespace on v1 here, and libcontainer mounts it writable in any case.
fn show_own_cgroups(spec: &mut Spec, hierarchies: &Hierarchies) -> Outcome<bool> {
    let trees = hierarchies.controllers();
    let mut mounts = spec.mounts().clone().unwrap_or_default();
    let found = mounts
        .iter()
        .position(|m| m.typ().as_deref() == Some("cgroup"));
    let (Some(index), false) = (found, hierarchies.is_unified()) else {
        return Ok(false);
    };
    let Some(mut linux) = spec.linux().clone() else {
        return Ok(false);
    };
    let own = linux.cgroups_path().clone().ok_or("no cgroup")?;
    let own = own.strip_prefix("/").unwrap_or(&own).to_path_buf();
    let whole = mounts.remove(index);
    let writable = whole
        .options()
        .iter()
        .flatten()
        .any(|option| option == "rw");
    let access = if writable { "rw" } else { "ro" };
    let place = whole.destination().clone();
    let mut shown = vec![mount_of(
        "tmpfs",
        "tmpfs".into(),
        place.clone(),
        &["mode=755"],
    )?];
    for (name, tree) in trees {
        let options = ["bind", "rprivate", access];
        shown.push(mount_of(
            "bind",
            tree.join(&own),
            place.join(name),
            &options,
        )?);
    }
    mounts.splice(index..index, shown);
    spec.set_mounts(Some(mounts));
    if !writable && place == Path::new(CGROUPS) {
        // The tmpfs around them: read-only, so that nothing can be added.
        let mut paths = linux.readonly_paths().clone().unwrap_or_default();
        paths.push(CGROUPS.to_owned());
        linux.set_readonly_paths(Some(paths));
        spec.set_linux(Some(linux));
    }
    Ok(true)
}

fn mount_of(kind: &str, source: PathBuf, place: PathBuf, options: &[&str]) -> Outcome<Mount> {
    let options = ["nosuid", "noexec", "nodev"].iter().chain(options);
    Ok(MountBuilder::default()
        .typ(kind)
        .source(source)
        .destination(place)
        .options(options.map(|o| (*o).to_owned()).collect::<Vec<_>>())
        .build()?)
}

/// In the container: fails if something is mounted in `/proc` that is not in the configuration.
pub(super) fn check_result(spec: &Spec) -> Outcome<()> {
    let given = spec.mounts().iter().flatten();
    let mut given = given.filter(|mount| is_bind(mount));
    if given.any(|mount| mount.destination() == Path::new(PROC)) {
        // The node's own /proc, with whatever is mounted in it.
        return Ok(());
    }
    let proc = statfs(PROC)?;
    if proc.filesystem_type() != PROC_SUPER_MAGIC {
        return Err("/proc is not of type proc".into());
    }
    let mut expected: BTreeSet<PathBuf> = REPLACEABLE.iter().map(PathBuf::from).collect();
    if let Some(linux) = spec.linux() {
        let restricted = [linux.masked_paths(), linux.readonly_paths()];
        expected.extend(
            restricted
                .into_iter()
                .flatten()
                .flatten()
                .map(PathBuf::from),
        );
    }
    match unexpected(&fs::read_to_string("/proc/self/mountinfo")?, &expected) {
        None => Ok(()),
        Some(place) => Err(io::Error::other(format!(
            "{} cannot be mounted because it is inside /proc",
            place.display()
        ))
        .into()),
    }
}

fn unexpected(mountinfo: &str, expected: &BTreeSet<PathBuf>) -> Option<PathBuf> {
    let places = mountinfo.lines().filter_map(|line| line.split(' ').nth(4));
    places
        .map(PathBuf::from)
        .filter(|place| place.starts_with(PROC) && place != Path::new(PROC))
        .find(|place| !expected.contains(place))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use serde_json::json;

    use super::*;

    fn spec(root: &Path, mounts: serde_json::Value) -> Spec {
        serde_json::from_value(json!({
            "ociVersion": "1.0.2",
            "root": { "path": root },
            "mounts": mounts,
            "linux": { "cgroupsPath": "/pods/a" },
        }))
        .unwrap()
    }

    fn bind(destination: &str, source: &str) -> serde_json::Value {
        json!({ "destination": destination, "type": "bind", "source": source, "options": ["rbind"] })
    }

    #[test]
    fn nothing_is_mounted_inside_proc_however_it_is_spelled() {
        let dir = tempfile::tempdir().unwrap();
        symlink("/proc/sys", dir.path().join("link")).unwrap();
        symlink("..//proc", dir.path().join("up")).unwrap();
        for (destination, source, allowed) in [
            ("/proc", "/tmp", false),
            ("/proc", "/proc", true),
            ("/proc/sys", "/tmp", false),
            ("/proc/self/attr", "/tmp", false),
            ("/x/../proc/sys", "/tmp", false),
            ("/link/kernel", "/tmp", false),
            ("/link", "/tmp", false),
            ("/up", "/tmp", false),
            ("/proc/meminfo", "/tmp", true),
            ("/procession", "/tmp", true),
            ("/sys/fs/bpf", "/tmp", true),
        ] {
            let mut spec = spec(dir.path(), json!([bind(destination, source)]));
            let outcome = follow_links(&mut spec);
            assert_eq!(outcome.is_ok(), allowed, "{source} on {destination}");
        }
    }

    #[test]
    fn a_dangling_links_target_is_used_unless_a_mount_hides_it() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("etc")).unwrap();
        symlink("/run/stub", dir.path().join("etc/resolv.conf")).unwrap();
        let file = bind("/etc/resolv.conf", "/tmp");
        let mut dangling = spec(dir.path(), json!([file]));
        assert!(follow_links(&mut dangling).unwrap());
        let destination = |spec: &Spec| spec.mounts().iter().flatten().last().cloned();
        let place = destination(&dangling).unwrap().destination().clone();
        assert_eq!(place, Path::new("/run/stub"));
        let mut hidden = spec(dir.path(), json!([bind("/etc", "/tmp"), file]));
        assert!(!follow_links(&mut hidden).unwrap());
    }

    #[test]
    fn only_the_containers_own_cgroups_are_shown_and_read_only() {
        let trees = [
            ("cpu", "/c/cpu"),
            ("memory", "/c/memory"),
            ("name=x", "/c/x"),
            ("unified", "/c/u"),
        ];
        let split = Hierarchies::Split(trees.map(|(n, p)| (n.to_owned(), p.into())).into());
        let cgroup = json!({ "destination": CGROUPS, "type": "cgroup", "source": "cgroup", "options": ["ro"] });
        let mut plain = spec(Path::new("/"), json!([cgroup]));
        assert!(show_own_cgroups(&mut plain, &split).unwrap());
        let mounts = plain.mounts().clone().unwrap();
        let places: Vec<_> = mounts
            .iter()
            .map(|m| m.destination().display().to_string())
            .collect();
        assert_eq!(
            places,
            [CGROUPS, "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/memory"]
        );
        assert_eq!(
            mounts[1].source().as_deref(),
            Some(Path::new("/c/cpu/pods/a"))
        );
        for mount in &mounts[1..] {
            assert!(
                mount
                    .options()
                    .iter()
                    .flatten()
                    .any(|option| option == "ro")
            );
        }
        let linux = plain.linux().clone().unwrap();
        assert_eq!(linux.readonly_paths().clone().unwrap(), [CGROUPS]);
        let unified = Hierarchies::Unified("/c".into());
        assert!(!show_own_cgroups(&mut spec(Path::new("/"), json!([cgroup])), &unified).unwrap());
    }

    #[test]
    fn a_mount_that_got_into_proc_is_found() {
        let table = "1 2 0:3 / /proc rw - proc proc rw\n4 1 0:5 /x /proc/kcore rw - tmpfs t rw\n";
        let expected = BTreeSet::from([PathBuf::from("/proc/kcore")]);
        assert_eq!(unexpected(table, &expected), None);
        let more = format!("{table}6 1 0:7 / /proc/sys/kernel rw - ext4 /dev/x rw\n");
        assert_eq!(
            unexpected(&more, &expected),
            Some("/proc/sys/kernel".into())
        );
    }
}
