//! The marker of a data directory: says that the directory is ours, and whether a store was created
//! in it. `reset` removes nothing without it, and a start compares it with the directory.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{Error, Role, agreed::Agreed, skew::Writer};

/// The marker's name in the data directory.
pub const FILE: &str = "mainstay.json";

/// The content of a data directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Marker {
    /// The version of this file.
    pub version: u32,
    /// An embedded store was created here: from then on its absence is data loss.
    pub store: bool,
    /// The objects were moved from here to etcd.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub in_etcd: bool,
    /// The last program version that wrote to the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writer: Option<Writer>,
    /// The settings that the cluster keeps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agreed: Option<Agreed>,
    /// The command that last started this server: `up` or `server`. Empty in directories of earlier versions.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub command: String,
    /// The ID of this server within its cluster.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub server: String,
    /// All servers of the cluster, as last seen.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<String>,
    /// The uids of users whose kubeconfig has a context of this cluster.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kubeconfig_users: Vec<u32>,
    /// The kubelet's directory, if it is not in the data directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubelet_root: Option<PathBuf>,
    /// Random, and part of the cgroup's name: mount namespaces can have different directories of the
    /// same path, and usually share the cgroups. Empty in directories of earlier versions.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cgroup_suffix: String,
}

impl Marker {
    /// The marker of a directory; `None` if the directory is not ours.
    pub fn read(data_dir: &Path) -> Result<Option<Self>, Error> {
        let path = data_dir.join(FILE);
        let failed = |source| Error::Directory {
            path: path.clone(),
            source,
        };
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(|error| failed(io::Error::other(error))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            // A path below a file: there is no such directory.
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// Changes the marker, or creates it. A crash leaves the old or the new one.
    pub fn update(data_dir: &Path, change: impl FnOnce(&mut Self)) -> Result<(), Error> {
        let before = Self::read(data_dir)?;
        let mut after = before.clone().unwrap_or_else(|| Self {
            cgroup_suffix: format!("{:08x}", rand::random::<u32>()),
            ..Self::default()
        });
        after.version = 1;
        change(&mut after);
        if before.as_ref() == Some(&after) {
            return Ok(());
        }
        let path = data_dir.join(FILE);
        let write = || {
            let temporary = data_dir.join(format!("{FILE}.new"));
            let mut file = fs::File::create(&temporary)?;
            serde_json::to_writer(&mut file, &after)?;
            file.sync_all()?;
            fs::rename(&temporary, &path)?;
            fs::File::open(data_dir)?.sync_all()
        };
        write().map_err(|source: io::Error| Error::Directory {
            path: path.clone(),
            source,
        })
    }
}

/// The name of the cgroup of a directory's pods, below the roots of the cgroup hierarchies.
pub fn cgroup(id: &str, marker: Option<&Marker>) -> String {
    let suffix = marker.map_or("", |marker| marker.cgroup_suffix.as_str());
    // It is part of a path.
    let is_name = suffix.chars().all(|c| c.is_ascii_alphanumeric());
    let suffix = if is_name { suffix } else { "" };
    format!("mainstay-{id}{suffix}")
}

/// Rejects a server in the directory of a node that joined another cluster, and the reverse: it would end the pods of
/// that node, which are not among its own.
pub fn check_role(data_dir: &Path, role: Role) -> Result<(), Error> {
    let wrong = |what: &str, command: &str| {
        let place = data_dir.display();
        Err(Error::WrongRole(format!(
            "{what}, with its data in {place}: start it with `mainstay {command}`, use another --data-dir, or run \
             `mainstay reset` first, which removes its pods and data"
        )))
    };
    let joined = crate::agent::joined_name(data_dir)?;
    // Earlier versions let a directory have both roles: it may go on with either.
    let is_server = data_dir.join("pki").join("ca.key").exists();
    match (role, joined) {
        (Role::Up | Role::Server, Some(name)) if !is_server => {
            let what = format!("this machine has joined a cluster as node {name:?}");
            wrong(&what, "agent")
        }
        (Role::Agent, None) if is_server => wrong(
            "this machine is a server of a cluster",
            "up` or `mainstay server",
        ),
        _ => Ok(()),
    }
}

/// The ID of this directory's server within its cluster; generated on first use.
pub fn server_id(data_dir: &Path) -> Result<String, Error> {
    let fresh = format!("{:016x}", rand::random::<u64>());
    let mut id = String::new();
    Marker::update(data_dir, |marker| {
        if marker.server.is_empty() {
            marker.server = fresh;
        }
        id.clone_from(&marker.server);
    })?;
    Ok(id)
}

/// Whether an entry of a data directory is one of ours.
pub fn is_ours(name: &str) -> bool {
    const ENTRIES: &[&str] = &[
        "agent",
        "cni",
        "kubelet",
        "local-path",
        "lock",
        "logs",
        "mainstay.log",
        "pki",
        "runtime",
        "store",
        "store.migrating",
        "store.restoring",
    ];
    let stem = name.strip_suffix(".new").unwrap_or(name);
    ENTRIES.contains(&name)
        || stem == FILE
        || stem
            .strip_suffix(".kubeconfig")
            .is_some_and(|user| !user.is_empty() && !user.contains('.'))
        || name.starts_with("store.before-restore-")
        || name.starts_with("store.before-migration-")
        || name.starts_with("pki.before-restore-")
        || name.starts_with("objects.restoring")
        || crate::archive::is_private(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_is_made_once_and_kept_up_to_date() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(Marker::read(directory.path()).unwrap(), None);
        Marker::update(directory.path(), |_| {}).unwrap();
        Marker::update(directory.path(), |marker| marker.store = true).unwrap();
        let server = server_id(directory.path()).unwrap();
        assert_eq!(server_id(directory.path()).unwrap(), server);
        let marker = Marker::read(directory.path()).unwrap().unwrap();
        assert!(marker.store && marker.version == 1);
        fs::write(directory.path().join(FILE), "{").unwrap();
        assert!(Marker::read(directory.path()).is_err());
    }

    #[test]
    fn directories_of_one_path_have_different_cgroups_and_those_of_earlier_versions_keep_theirs() {
        let groups: Vec<String> = (0..2)
            .map(|_| {
                let directory = tempfile::tempdir().unwrap();
                Marker::update(directory.path(), |_| {}).unwrap();
                let made = Marker::read(directory.path()).unwrap();
                Marker::update(directory.path(), |marker| marker.store = true).unwrap();
                let changed = Marker::read(directory.path()).unwrap();
                assert_eq!(cgroup("1a", made.as_ref()), cgroup("1a", changed.as_ref()));
                cgroup("1a", made.as_ref())
            })
            .collect();
        assert_ne!(groups[0], groups[1]);
        assert!(groups.iter().all(|group| group.starts_with("mainstay-1a")));
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(FILE), r#"{"version":1,"store":true}"#).unwrap();
        Marker::update(directory.path(), |marker| marker.store = false).unwrap();
        let old = Marker::read(directory.path()).unwrap();
        assert_eq!(cgroup("1a", old.as_ref()), "mainstay-1a");
        let path = Marker {
            cgroup_suffix: "/../system.slice".to_owned(),
            ..Marker::default()
        };
        assert_eq!(cgroup("1a", Some(&path)), "mainstay-1a");
    }

    #[test]
    fn a_directory_of_a_node_is_no_servers_and_the_reverse() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for role in [Role::Up, Role::Server, Role::Agent] {
            check_role(directory.path(), role).unwrap();
        }
        fs::create_dir(at("pki")).unwrap();
        fs::write(at("pki/ca.key"), "").unwrap();
        check_role(directory.path(), Role::Up).unwrap();
        check_role(directory.path(), Role::Server).unwrap();
        let refused = check_role(directory.path(), Role::Agent).unwrap_err();
        assert!(refused.to_string().contains("is a server"), "{refused}");
        fs::remove_dir_all(at("pki")).unwrap();
        fs::create_dir(at("agent")).unwrap();
        let facts = r#"{"nodeName":"two","server":"https://a:1","clusterCidr":"10.42.0.0/16",
            "serviceCidr":"10.43.0.0/16","clusterDomain":"cluster.local"}"#;
        fs::write(at("agent/cluster.json"), facts).unwrap();
        fs::write(at("agent/ca.crt"), "").unwrap();
        check_role(directory.path(), Role::Agent).unwrap();
        for role in [Role::Up, Role::Server] {
            let refused = check_role(directory.path(), role).unwrap_err().to_string();
            assert!(
                refused.contains("joined a cluster as node \"two\""),
                "{refused}"
            );
        }
        // A directory of an earlier version may have both.
        fs::create_dir(at("pki")).unwrap();
        fs::write(at("pki/ca.key"), "").unwrap();
        for role in [Role::Up, Role::Server, Role::Agent] {
            check_role(directory.path(), role).unwrap();
        }
    }

    #[test]
    fn only_entries_that_we_make_are_ours() {
        for name in [
            "pki",
            "admin.kubeconfig",
            "mainstay.json.new",
            "store",
            "backup.0123456789abcdef",
        ] {
            assert!(is_ours(name), "{name}");
        }
        for name in [
            "photos",
            ".kubeconfig",
            "a.b.kubeconfig",
            "store2",
            "backup.bin",
            "backup.d",
        ] {
            assert!(!is_ours(name), "{name}");
        }
    }
}
