//! Version compatibility. Servers of one cluster and its agents are at most one minor version
//! apart, and a cluster is upgraded or downgraded one minor version at a time: the last writer is
//! recorded with the objects, with the version of the storage format.

use std::{path::Path, time::Duration};

use apiserver::Store;
use client::kube;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use stdx::Version;
use store::{Freshness, Key, ListRequest, etcd};

use crate::{
    Error, Settings,
    marker::Marker,
    storage::{self, Config, Storage},
};

/// The storage format. A change that an older program would misread increments it.
const FORMAT: u32 = 1;
/// The record's name in etcd.
const RECORD: &str = "version";
/// A server whose Lease was renewed within this time is running.
const RECENT: SignedDuration = SignedDuration::from_secs(15);
/// A server whose Lease changes within this time is running, whatever its clock says: servers renew theirs every four
/// seconds.
pub(crate) const RENEWAL: Duration = Duration::from_secs(6);

/// The last writer of the objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Writer {
    pub format: u32,
    pub version: String,
}

impl Writer {
    fn own() -> Self {
        Self {
            format: FORMAT,
            version: Version::own().to_string(),
        }
    }

    /// Rejects objects that this program may misread.
    fn check(&self, own: Version) -> Result<(), Error> {
        let written = &self.version;
        if self.format > FORMAT {
            return Err(Error::Version(format!(
                "the objects were stored by {written} in format {}, and this program ({own}) supports formats up to \
                 {FORMAT}: start {written} or later",
                self.format
            )));
        }
        let before: Version = written.parse().map_err(Error::Version)?;
        if own.works_with(before) {
            return Ok(());
        }
        let next = match own > before {
            true => before.minor + 1,
            false => before.minor.saturating_sub(1),
        };
        Err(Error::Version(format!(
            "the cluster last ran {before}, and this is {own}: change by one minor version at a time, to {}.{next} \
             first",
            before.major
        )))
    }
}

/// Rejects a store that was written by an incompatible version.
pub(crate) async fn check_store(settings: &Settings) -> Result<(), Error> {
    let marker = Marker::read(&settings.data_dir)?.unwrap_or_default();
    let found = match &settings.storage {
        Config::Embedded => marker.writer,
        etcd => {
            let found = writer_in_etcd(&storage::etcd_config(etcd)?).await?;
            // Not recorded yet by the first start after a migration.
            found.or(marker.writer.filter(|_| marker.in_etcd))
        }
    };
    check(found.as_ref())
}

/// Rejects objects that an incompatible version wrote last, if that is known.
pub(crate) fn check(writer: Option<&Writer>) -> Result<(), Error> {
    writer.map_or(Ok(()), |writer| writer.check(Version::own()))
}

/// The last writer of the objects of a data directory.
pub(crate) fn writer_in(data_dir: &Path) -> Result<Option<Writer>, Error> {
    Ok(Marker::read(data_dir)?.and_then(|marker| marker.writer))
}

/// The last writer of the objects in an etcd.
pub(crate) async fn writer_in_etcd(etcd: &etcd::Config) -> Result<Option<Writer>, Error> {
    let found = etcd.read_record(RECORD).await?;
    let parse = |bytes: Vec<u8>| {
        serde_json::from_slice::<Writer>(&bytes)
            .map_err(|error| Error::Version(format!("etcd's record of the version: {error}")))
    };
    found.map(parse).transpose()
}

/// Rejects incompatible running servers, and records this version as the writer.
pub(crate) async fn begin(settings: &Settings, storage: &Storage) -> Result<(), Error> {
    let writer = Writer::own();
    let Storage::Etcd(etcd) = storage else {
        return Marker::update(&settings.data_dir, |marker| marker.writer = Some(writer));
    };
    let others = incompatible(&storage.store()).await?;
    if let Some(server) = others
        .iter()
        .find(|server| server.is_recent(Timestamp::now()))
    {
        return Err(server.refusal());
    }
    if !others.is_empty() {
        // One that crashed, or one whose clock differs.
        tokio::time::sleep(RENEWAL).await;
        let now = incompatible(&storage.store()).await?;
        if let Some(server) = now.iter().find(|server| !others.contains(server)) {
            return Err(server.refusal());
        }
    }
    let record = serde_json::to_vec(&writer).unwrap_or_default();
    Ok(etcd.records().put(RECORD, record).await?)
}

/// The key prefix of servers' Leases.
pub(crate) fn server_leases() -> Key {
    apiserver::object_key("coordination.k8s.io", "leases", "kube-system", "apiserver-")
}

/// A server as its Lease shows it.
#[derive(Debug, PartialEq)]
struct Server {
    host: String,
    version: Version,
    renewed: Timestamp,
}

impl Server {
    fn new(lease: &[u8]) -> Option<Self> {
        let lease: serde_json::Value = serde_json::from_slice(lease).ok()?;
        let metadata = &lease["metadata"];
        let version = metadata["annotations"][apiserver::VERSION_ANNOTATION].as_str()?;
        Some(Self {
            host: metadata["labels"]["kubernetes.io/hostname"]
                .as_str()?
                .to_owned(),
            version: version.parse().ok()?,
            renewed: lease["spec"]["renewTime"].as_str()?.parse().ok()?,
        })
    }

    fn is_recent(&self, now: Timestamp) -> bool {
        now.duration_since(self.renewed) < RECENT
    }

    fn refusal(&self) -> Error {
        let (host, version, own) = (&self.host, self.version, Version::own());
        Error::Version(format!(
            "the server on {host} is {version}, and this is {own}: servers of a cluster may be at most one minor version \
             apart"
        ))
    }
}

/// Servers of versions that do not work with this one, also those that have ended without removing their Lease.
async fn incompatible(store: &Store) -> Result<Vec<Server>, Error> {
    let request = ListRequest {
        prefix: server_leases(),
        from: None,
        limit: None,
        freshness: Freshness::Newest,
        skip_unreadable: false,
    };
    let entries = store.list(request).await?.entries;
    let servers = entries
        .iter()
        .filter_map(|entry| Server::new(&entry.object.bytes()));
    Ok(servers
        .filter(|server| !Version::own().works_with(server.version))
        .collect())
}

/// Rejects a server that is incompatible with this agent.
pub(crate) async fn check_server(client: &kube::Client) -> Result<(), Error> {
    let found = client.apiserver_version().await?;
    judge_server(&found.git_version, Version::own())
}

fn judge_server(found: &str, own: Version) -> Result<(), Error> {
    match found.parse::<Version>() {
        Ok(server) if !own.works_with(server) => Err(Error::Version(format!(
            "the server is {server}, and this agent is {own}: agents and servers may be at most one minor version apart"
        ))),
        // Other servers are not checked.
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn version(text: &str) -> Version {
        text.parse().unwrap()
    }

    #[test]
    fn a_cluster_goes_one_minor_version_at_a_time() {
        let check = |format, before: &str, own: &str| {
            let writer = Writer {
                format,
                version: before.to_owned(),
            };
            writer
                .check(version(own))
                .map_err(|error| error.to_string())
        };
        for (before, own) in [
            ("v1.36.4", "v1.36.4"),
            ("v1.36.4", "v1.37.0"),
            ("v1.37.0", "v1.36.4"),
        ] {
            assert_eq!(check(FORMAT, before, own), Ok(()), "{before} {own}");
        }
        let refused = check(FORMAT, "v1.34.2", "v1.36.4").unwrap_err();
        assert!(refused.ends_with("to 1.35 first"), "{refused}");
        let refused = check(FORMAT, "v1.38.0", "v1.36.4").unwrap_err();
        assert!(refused.ends_with("to 1.37 first"), "{refused}");
        let refused = check(FORMAT + 1, "v1.37.0", "v1.36.4").unwrap_err();
        assert!(refused.contains("start v1.37.0 or later"), "{refused}");
    }

    #[test]
    fn a_running_server_has_its_version_in_its_lease() {
        let now: Timestamp = "2026-01-01T00:00:10Z".parse().unwrap();
        let lease = |renewed: &str| {
            let annotations = json!({apiserver::VERSION_ANNOTATION: "v1.35.1"});
            let labels = json!({"kubernetes.io/hostname": "one"});
            let metadata = json!({"annotations": annotations, "labels": labels});
            json!({"metadata": metadata, "spec": {"renewTime": renewed}}).to_string()
        };
        let server = |renewed| Server::new(lease(renewed).as_bytes()).unwrap();
        let found = server("2026-01-01T00:00:05.000000Z");
        assert_eq!((&*found.host, found.version), ("one", version("v1.35.1")));
        assert!(found.is_recent(now));
        let earlier = server("2025-12-31T23:59:00.000000Z");
        assert!(!earlier.is_recent(now) && earlier != found);
        assert_eq!(Server::new(b"{}"), None);
    }

    #[test]
    fn an_agent_joins_servers_of_neighbouring_versions() {
        let own = version("v1.36.4");
        for fine in ["v1.35.2+mainstay", "v1.37.0", "of another kind"] {
            judge_server(fine, own).unwrap();
        }
        let refused = judge_server("v1.34.0+mainstay", own)
            .unwrap_err()
            .to_string();
        assert!(refused.contains("v1.34.0") && refused.contains("v1.36.4"));
    }
}
