//! `mainstay migrate`: moves the objects of a stopped cluster from the embedded store to etcd, or
//! back. Objects keep their resourceVersions and later ones are larger, so that clients can
//! continue; earlier watches must list again. Keys stay in the data directory.

use std::{
    fs,
    path::{Path, PathBuf},
};

use jiff::{SignedDuration, Timestamp};
use pki::Identity;
use store::etcd::{Moved, embedded_to_etcd, etcd_to_embedded, moved_to};

use crate::{
    Error,
    lock::DataLock,
    marker::Marker,
    skew::{self, Writer},
    storage::{self, Config},
};

/// The directory of the copy before it becomes the store.
pub const COPY: &str = "store.migrating";
/// A server whose Lease was renewed within this time may still run.
const RECENT: SignedDuration = SignedDuration::from_secs(60);

fn failed(path: &Path) -> impl Fn(std::io::Error) -> Error + '_ {
    move |source| Error::Directory {
        path: path.to_owned(),
        source,
    }
}

/// The hash of the cluster's CA.
fn cluster(data_dir: &Path) -> Result<String, Error> {
    let keys = data_dir.join("pki");
    match Identity::read(&keys)? {
        Some(identity) => Ok(identity.ca_hash()?),
        None => Err(Error::Migration(format!(
            "{} does not contain the keys of a cluster",
            keys.display()
        ))),
    }
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).map_or(true, |entries| {
        let mut names = entries.flatten().map(|entry| entry.file_name());
        !names.any(|name| name != "lock")
    })
}

/// Moves the objects of a data directory to etcd. The previous store is kept beside, and not used
/// by a start.
pub async fn to_etcd(data_dir: &Path, etcd: &Config) -> Result<(Moved, PathBuf), Error> {
    let etcd = storage::etcd_config(etcd)?;
    let cluster = cluster(data_dir)?;
    let _lock = DataLock::take(data_dir)?;
    let directory = data_dir.join("store");
    if is_empty(&directory) {
        return Err(Error::Migration(format!(
            "{} contains no objects of a cluster",
            directory.display()
        )));
    }
    skew::check(skew::writer_in(data_dir)?.as_ref())?;
    let moved = embedded_to_etcd(&directory, &etcd, &cluster).await?;
    let aside = crate::backup::unused(&directory, "before-migration");
    // First the marker: without the store it would indicate data loss.
    Marker::update(data_dir, |marker| {
        marker.store = false;
        marker.in_etcd = true;
    })?;
    fs::rename(&directory, &aside).map_err(failed(&aside))?;
    sync(data_dir)?;
    Ok((moved, aside))
}

/// Moves the objects of a cluster from etcd to the data directory of one of its servers. All
/// servers must be stopped.
pub async fn to_embedded(data_dir: &Path, etcd: &Config) -> Result<Moved, Error> {
    let etcd = storage::etcd_config(etcd)?;
    let cluster = cluster(data_dir)?;
    let _lock = DataLock::take(data_dir)?;
    let directory = data_dir.join("store");
    let writer = skew::writer_in_etcd(&etcd).await?;
    skew::check(writer.as_ref())?;
    if !is_empty(&directory) {
        let moved = interrupted(data_dir, &directory, &etcd, &cluster).await?;
        record_embedded(data_dir, writer)?;
        return Ok(moved);
    }
    crate::founding::check_cluster(&etcd, &cluster).await?;
    let copy = data_dir.join(COPY);
    let now = Timestamp::now();
    let look = |key: &store::Key, value: &[u8]| refuse_running(key, value, now);
    let moved = etcd_to_embedded(&etcd, &copy, &cluster, &look).await?;
    if directory.exists() {
        fs::remove_dir_all(&directory).map_err(failed(&directory))?;
    }
    fs::rename(&copy, &directory).map_err(failed(&directory))?;
    sync(data_dir)?;
    record_embedded(data_dir, writer)?;
    Ok(moved)
}

/// The result of a migration to the embedded store that was interrupted before its last step, the
/// marker. Rejects any other store.
async fn interrupted(
    data_dir: &Path,
    directory: &Path,
    etcd: &store::etcd::Config,
    cluster: &str,
) -> Result<Moved, Error> {
    let marker = Marker::read(data_dir)?.unwrap_or_default();
    let moved = match marker.in_etcd {
        true => moved_to(etcd, directory, cluster).await?,
        false => None,
    };
    moved.ok_or_else(|| {
        let directory = directory.display();
        Error::Migration(format!(
            "{directory} already contains the objects of a cluster"
        ))
    })
}

/// The directory's own record of the writer is from before the objects were in etcd.
fn record_embedded(data_dir: &Path, writer: Option<Writer>) -> Result<(), Error> {
    Marker::update(data_dir, |marker| {
        marker.store = true;
        marker.in_etcd = false;
        marker.writer = writer;
    })
}

fn sync(data_dir: &Path) -> Result<(), Error> {
    let synced = fs::File::open(data_dir).and_then(|directory| directory.sync_all());
    synced.map_err(failed(data_dir))
}

/// Fails while a server may run: its writes to etcd would be lost.
fn refuse_running(key: &[u8], value: &[u8], now: Timestamp) -> Result<(), String> {
    if !key.starts_with(&skew::server_leases()) {
        return Ok(());
    }
    let lease: serde_json::Value = serde_json::from_slice(value).unwrap_or_default();
    let text = |field: &serde_json::Value| field.as_str().unwrap_or_default().to_owned();
    let renewed: Option<Timestamp> = text(&lease["spec"]["renewTime"]).parse().ok();
    let Some(age) = renewed.map(|renewed| now.duration_since(renewed)) else {
        return Ok(());
    };
    if age > RECENT {
        return Ok(());
    }
    let host = text(&lease["metadata"]["labels"]["kubernetes.io/hostname"]);
    Err(format!(
        "a server on {host} ran {} s ago: stop all servers of the cluster first; a crashed one counts as running for {} s",
        age.as_secs().max(0),
        RECENT.as_secs()
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_server_that_ran_just_now_is_in_the_way() {
        let now: Timestamp = "2026-01-01T00:10:00Z".parse().unwrap();
        let lease = |renewed: &str| {
            let labels = json!({"kubernetes.io/hostname": "one"});
            json!({"metadata": {"labels": labels}, "spec": {"renewTime": renewed}}).to_string()
        };
        let refused = |name: &str, renewed: &str| {
            let key = format!("/registry/coordination.k8s.io/leases/kube-system/{name}");
            refuse_running(key.as_bytes(), lease(renewed).as_bytes(), now)
        };
        let why = refused("apiserver-x", "2026-01-01T00:09:58.000000Z").unwrap_err();
        assert!(why.contains("on one ran 2 s ago"), "{why}");
        refused("apiserver-x", "2026-01-01T00:08:00.000000Z").unwrap();
        refused("kube-scheduler", "2026-01-01T00:09:58.000000Z").unwrap();
    }

    #[tokio::test]
    async fn only_a_cluster_that_is_there_and_stopped_is_moved() {
        let directory = tempfile::tempdir().unwrap();
        let etcd = Config::Etcd {
            endpoints: vec!["http://127.0.0.1:1".into()],
            ca: None,
            identity: None,
        };
        let refused = to_etcd(directory.path(), &etcd).await.unwrap_err();
        assert!(
            refused.to_string().contains("keys of a cluster"),
            "{refused}"
        );
        pki::Pki::ensure(&directory.path().join("pki"), &pki::Names::default()).unwrap();
        let refused = to_etcd(directory.path(), &etcd).await.unwrap_err();
        assert!(
            refused.to_string().contains("contains no objects"),
            "{refused}"
        );
        let _running = DataLock::take(directory.path()).unwrap();
        let refused = to_etcd(directory.path(), &etcd).await;
        assert!(matches!(refused, Err(Error::InUse(_))), "{refused:?}");
    }
}
