//! The address ranges of clusters on one machine must not overlap. A start checks the kernel's
//! routes, and the recorded ranges of other clusters: one without pods has no routes yet.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{Error, Settings};

/// In the state directory, as long as the cluster may have anything on the machine.
const FILE: &str = "networks.json";

/// The ranges of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Networks {
    data_dir: PathBuf,
    /// The network namespace: clusters in other namespaces do not conflict.
    namespace: u64,
    ranges: Vec<IpNet>,
}

/// Fails if the ranges are in use, and records ours.
pub(crate) async fn claim(settings: &Settings) -> Result<(), Error> {
    let services = settings.service_cidr.all().iter();
    let mut ranges: Vec<(&str, IpNet)> = services.map(|range| ("--service-cidr", *range)).collect();
    if settings.cni.is_none() {
        // Not with CNI plugins, whose own links have addresses of the pod range.
        let pods = settings.cluster_cidr.all().iter();
        ranges.extend(pods.map(|range| ("--cluster-cidr", *range)));
    }
    let mut found = Vec::new();
    let own = Networks {
        data_dir: settings.data_dir.clone(),
        namespace: fs::metadata("/proc/self/ns/net").map_or(0, |metadata| metadata.ino()),
        ranges: [settings.cluster_cidr.all(), settings.service_cidr.all()].concat(),
    };
    for (flag, range) in &ranges {
        let conflicts = network::conflicts(&settings.id, *range).await?;
        found.extend(
            conflicts
                .iter()
                .map(|what| format!("{flag} {range}: {what}")),
        );
        let others = others(&settings.state_dir);
        found.extend(
            others
                .iter()
                .filter_map(|other| own.meets(other, flag, *range)),
        );
    }
    if !found.is_empty() {
        return Err(Error::Overlap(found));
    }
    let path = settings.state_dir.join(FILE);
    let text = serde_json::to_vec(&own).unwrap_or_default();
    fs::write(&path, text).map_err(|source| Error::Directory { path, source })
}

impl Networks {
    fn meets(&self, other: &Self, flag: &str, range: IpNet) -> Option<String> {
        let overlap = |their: &&IpNet| their.contains(&range) || range.contains(*their);
        let their = other.ranges.iter().find(overlap)?;
        (other.namespace == self.namespace && other.data_dir != self.data_dir).then(|| {
            let place = other.data_dir.display();
            let left = match crate::lock::holder(&other.data_dir) {
                Some(_) => String::new(),
                None => format!(
                    ", and is stopped: `mainstay reset --data-dir {place}` removes its pods and data"
                ),
            };
            format!("{flag} {range}: the cluster of {place} has {their}{left}")
        })
    }
}

/// The recorded ranges of the machine's other clusters.
fn others(state_dir: &Path) -> Vec<Networks> {
    let entries = state_dir.parent().and_then(|all| fs::read_dir(all).ok());
    let paths = entries
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    let read = |path: PathBuf| serde_json::from_slice(&fs::read(path.join(FILE)).ok()?).ok();
    paths
        .filter(|path| path != state_dir)
        .filter_map(read)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_of_one_namespace_must_not_share_addresses() {
        let networks = |dir: &str, namespace: u64, range: &str| Networks {
            data_dir: dir.into(),
            namespace,
            ranges: vec![range.parse().unwrap()],
        };
        let own = networks("/a", 1, "10.42.0.0/16");
        let range = own.ranges[0];
        let meets = |other: &Networks| own.meets(other, "--cluster-cidr", range).is_some();
        let stopped = networks("/b", 1, "10.42.7.0/24");
        let why = own.meets(&stopped, "--cluster-cidr", range);
        assert!(why.is_some_and(|why| why.contains("`mainstay reset --data-dir /b`")));
        assert!(meets(&networks("/b", 1, "10.0.0.0/8")));
        assert!(!meets(&networks("/b", 2, "10.42.7.0/24")));
        assert!(!meets(&networks("/b", 1, "10.44.0.0/16")));
        assert!(!meets(&own));
    }
}
