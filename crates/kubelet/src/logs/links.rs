//! `/var/log/containers`: a link to every container's log, named after pod and container, for log
//! shippers. Also marks which log directories belong to this kubelet, since several may share a
//! parent directory.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::Pod;

use crate::pod::spec;

/// The maximum length of a file name.
const LONGEST_NAME: usize = 255;
const SUFFIX: &str = ".log";
/// The file in a pod's log directory that names its owner.
const OWNER: &str = ".mainstay";

/// The path of the link to a container's log.
pub(crate) fn path(dir: &Path, pod: &Pod, container: &str, id: &str) -> PathBuf {
    let (namespace, name) = (spec::namespace(pod), spec::name(pod));
    // Truncating cannot split a character: the API server allows only ASCII in these names.
    let mut file = format!("{name}_{namespace}_{container}-{id}");
    file.truncate(LONGEST_NAME - SUFFIX.len());
    dir.join(file + SUFFIX)
}

/// Makes the link. An existing one belongs to the same container, whose id is in its name.
pub(crate) fn make(link: &Path, log: &Path) -> io::Result<()> {
    match symlink(log, link) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Removes the link, if there is one.
pub(crate) fn remove(link: &Path) -> io::Result<()> {
    match fs::remove_file(link) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Removes links into `logs` whose target is gone; returns their number. Links to other directories
/// stay.
pub fn remove_dangling(dir: &Path, logs: &Path) -> usize {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let links = entries.map(|entry| entry.path()).filter(|link| {
        let target = fs::read_link(link);
        target.is_ok_and(|target| target.starts_with(logs) && !target.exists())
    });
    links.filter(|link| remove(link).is_ok()).count()
}

/// Marks a log directory as belonging to `owner`.
pub fn mark(dir: &Path, owner: &Path) -> io::Result<()> {
    fs::write(dir.join(OWNER), owner.as_os_str().as_encoded_bytes())
}

/// Whether a log directory belongs to `owner`.
pub fn is_marked(dir: &Path, owner: &Path) -> bool {
    let written = fs::read(dir.join(OWNER));
    written.is_ok_and(|written| written == owner.as_os_str().as_encoded_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_named_as_log_shippers_expect_and_never_too_long() {
        let pod = |name: &str| {
            let json = serde_json::json!({"metadata": {"name": name, "namespace": "ns"}});
            serde_json::from_value::<Pod>(json).unwrap()
        };
        let dir = Path::new("/var/log/containers");
        assert_eq!(
            path(dir, &pod("web"), "main", "0123"),
            dir.join("web_ns_main-0123.log")
        );
        let long = path(dir, &pod(&"n".repeat(253)), "main", "0123");
        assert_eq!(long.file_name().unwrap().len(), LONGEST_NAME);
    }

    #[test]
    fn only_own_links_to_removed_logs_are_removed() {
        let temporary = tempfile::tempdir().unwrap();
        let (dir, logs) = (
            temporary.path().join("containers"),
            temporary.path().join("pods"),
        );
        fs::create_dir(&dir).unwrap();
        fs::create_dir(&logs).unwrap();
        fs::write(logs.join("here.log"), "").unwrap();
        for (link, log) in [
            ("here", logs.join("here.log")),
            ("gone", logs.join("gone.log")),
            ("theirs", "/there/is/no/such.log".into()),
        ] {
            make(&dir.join(link), &log).unwrap();
            make(&dir.join(link), &log).unwrap();
        }
        fs::write(dir.join("file"), "").unwrap();
        assert_eq!(remove_dangling(&dir, &logs), 1);
        assert!(dir.join("here").exists() && dir.join("file").exists());
        assert!(fs::read_link(dir.join("theirs")).is_ok());
        assert!(fs::read_link(dir.join("gone")).is_err());
        remove(&dir.join("gone")).unwrap();
    }

    #[test]
    fn a_log_directory_with_our_marker_is_ours() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!is_marked(dir.path(), Path::new("/a")));
        mark(dir.path(), Path::new("/a")).unwrap();
        assert!(is_marked(dir.path(), Path::new("/a")));
        assert!(!is_marked(dir.path(), Path::new("/b")));
    }
}
