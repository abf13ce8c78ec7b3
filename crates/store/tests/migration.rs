//! Migrating a store from the embedded engine to a real etcd and back: revisions stay the same.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::{path::Path, time::Duration};

use bytes::Bytes;
use common::{etcd::Cluster, *};
use store::{
    Action, Durability, Error, Freshness, Op, Plain, Precondition, Revision, Store,
    embedded::Embedded,
    etcd::{Config, embedded_to_etcd, etcd_to_embedded, moved_to},
};

const CLUSTER: &str = "sha256:one";

fn config(cluster: &Cluster) -> Config {
    Config {
        endpoints: cluster.endpoints(),
        patience: PATIENCE,
        ..Config::default()
    }
}

/// Keys and their mod revisions.
async fn revisions(store: &Dyn) -> Vec<(String, Revision)> {
    let listed = store.list(list_request("/registry/")).await.unwrap();
    let entry = |entry: store::Entry<Bytes>| {
        let key = String::from_utf8(entry.key.to_vec()).unwrap();
        (key, entry.mod_revision)
    };
    listed.entries.into_iter().map(entry).collect()
}

/// A store with gaps between revisions, several keys of one revision, and one key with an expiry.
async fn make_store(directory: &Path) -> Revision {
    let store = Embedded::open(directory, Plain).unwrap();
    for number in 0..40 {
        write(&*store, &format!("/registry/{number:02}"), "first").await;
    }
    for number in [3, 1, 2] {
        write(&*store, &format!("/registry/{number:02}"), "second").await;
    }
    let both = vec![put("/registry/a", "1"), put("/registry/b", "1")];
    commit(&*store, both).await.unwrap();
    commit(&*store, vec![delete("/registry/07")]).await.unwrap();
    let event = Op {
        key: Bytes::from_static(b"/registry/event"),
        precondition: Precondition::Any,
        action: Action::Put {
            draft: Bytes::from_static(b"gone soon"),
            expires_in: Some(Duration::from_secs(600)),
        },
    };
    store.commit(vec![event], Durability::Synced).await.unwrap();
    let revision = store.revision().await.unwrap();
    store.close();
    revision
}

/// A server that was not reachable while the objects were moved away.
async fn refuses_writes(store: &Dyn) {
    for op in [put("/registry/00", "late"), delete("/registry/01")] {
        let refused = commit(store, vec![op]).await.unwrap_err().to_string();
        assert!(refused.contains("were moved"), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_keep_their_revisions_there_and_back() {
    let directory = tempfile::tempdir().unwrap();
    let (one, two) = (directory.path().join("one"), directory.path().join("two"));
    let newest = make_store(&one).await;
    let before = {
        let store = Embedded::open(&one, Plain).unwrap();
        revisions(&*store).await
    };
    let cluster = Cluster::start(1);
    let moved = embedded_to_etcd(&one, &config(&cluster), CLUSTER)
        .await
        .unwrap();
    assert_eq!(
        (moved.objects, moved.revision),
        (before.len() as u64, newest)
    );

    let store = config(&cluster).connect(Plain).await.unwrap();
    assert_eq!(store.origin(), Some(CLUSTER));
    assert_eq!(revisions(&*store).await, before);
    assert!(store.revision().await.unwrap() > newest);
    // Revisions from before the migration cannot be watched, new ones can.
    for after in [1, newest] {
        let watched = store.watch("/registry/".into(), after).await;
        let Err(Error::Compacted { requested, oldest }) = watched.map(drop) else {
            panic!("a watch from {after}");
        };
        assert!(requested == after && oldest > newest);
        let key = Bytes::from_static(b"/registry/a");
        let read = store.get(&key, Freshness::Exactly(after)).await;
        assert!(matches!(read, Err(Error::Compacted { .. })));
    }
    let start = store.revision().await.unwrap();
    let mut watch = store.watch("/registry/".into(), start).await.unwrap();
    let of = |key: &str| before.iter().find(|(known, _)| known == key).unwrap().1;
    let known = Precondition::Revision(of("/registry/02"));
    let stale = vec![put_if("/registry/03", "x", known)];
    let refused = commit(&*store, stale).await.unwrap_err();
    let current = Some(of("/registry/03"));
    assert!(matches!(&refused, Error::Conflict { current: found, .. } if *found == current));
    let written = commit(&*store, vec![put_if("/registry/02", "third", known)]).await;
    let written = written.unwrap();
    assert!(written.revision > newest);
    let (revision, events) = next_events(&mut watch).await;
    let previous = events[0].previous.as_ref().unwrap();
    assert_eq!(revision, written.revision);
    assert_eq!(previous.mod_revision, of("/registry/02"));
    let after = revisions(&*store).await;
    let last = store.revision().await.unwrap();

    let fine = |_: &Bytes, _: &[u8]| Ok(());
    let moved = etcd_to_embedded(&config(&cluster), &two, CLUSTER, &fine)
        .await
        .unwrap();
    assert_eq!((moved.objects, moved.revision), (after.len() as u64, last));
    refuses_writes(&*store).await;
    store.close();
    // Again, as after a crash in between.
    let again = etcd_to_embedded(&config(&cluster), &two, CLUSTER, &fine).await;
    assert_eq!(again.unwrap(), moved);
    let refused = config(&cluster).connect(Plain).await.map(drop).unwrap_err();
    assert!(refused.to_string().contains("embedded store"), "{refused}");
    let store = Embedded::open(&two, Plain).unwrap();
    assert_eq!(revisions(&*store).await, after);
    assert!(write(&*store, "/registry/new", "1").await > last);
    let watched = store.watch("/registry/".into(), of("/registry/02")).await;
    assert!(matches!(watched, Err(Error::Compacted { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_was_moved_behaves_as_every_backend_does() {
    let directory = tempfile::tempdir().unwrap();
    make_store(directory.path()).await;
    let cluster = Cluster::start(1);
    let moved = embedded_to_etcd(directory.path(), &config(&cluster), CLUSTER).await;
    moved.unwrap();
    let everything = Config {
        root: Bytes::from_static(b"/"),
        ..config(&cluster)
    };
    let store = everything.connect(Plain).await.unwrap();
    conformance::all(&*store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_an_empty_etcd_is_moved_to_and_nothing_that_changes_is_moved() {
    let directory = tempfile::tempdir().unwrap();
    let (one, two) = (directory.path().join("one"), directory.path().join("two"));
    make_store(&one).await;
    let cluster = Cluster::start(1);
    let store = cluster.connect(Config::default()).await;
    write(&*store, "/registry/other", "1").await;
    let refused = embedded_to_etcd(&one, &config(&cluster), CLUSTER).await;
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.contains("holds 1 keys under /registry/"),
        "{refused}"
    );
    assert_eq!(
        value(&*store, "/registry/other").await.as_deref(),
        Some("1")
    );

    // A server that still writes is detected, and nothing was moved away.
    let writer = store.clone();
    let look = move |_: &Bytes, _: &[u8]| {
        let writing = async { write(&*writer, "/registry/other", "2").await };
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(writing));
        Ok(())
    };
    let refused = etcd_to_embedded(&config(&cluster), &two, CLUSTER, &look).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("stop all servers"), "{refused}");
    assert!(!two.exists(), "a copy of objects that are still in etcd");
    // Its objects are not moved: it goes on.
    write(&*store, "/registry/other", "3").await;
    config(&cluster).connect(Plain).await.unwrap();
    let refuse = |_: &Bytes, _: &[u8]| Err("a server runs".to_owned());
    let three = directory.path().join("three");
    let refused = etcd_to_embedded(&config(&cluster), &three, CLUSTER, &refuse).await;
    assert!(refused.unwrap_err().to_string().contains("a server runs"));
    assert!(!three.exists());
    // An etcd to which nothing was ever moved.
    let fine = |_: &Bytes, _: &[u8]| Ok(());
    let moved = etcd_to_embedded(&config(&cluster), &three, CLUSTER, &fine).await;
    moved.unwrap();
    refuses_writes(&*store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_that_was_interrupted_is_not_served_and_can_be_made_again() {
    let directory = tempfile::tempdir().unwrap();
    let newest = make_store(directory.path()).await;
    let cluster = Cluster::start(1);
    // What such a migration leaves: its record, and some of the objects.
    let everything = Config {
        root: Bytes::from_static(b"/"),
        ..Config::default()
    };
    let store = cluster.connect(everything).await;
    let record = format!("mainstay-migration-1 copying {CLUSTER} 42 {newest} 0 0");
    write(&*store, "/mainstay/migration", &record).await;
    write(&*store, "/registry/00", "half").await;
    write(&*store, "/registry/zz", "of an earlier try").await;
    store.close();
    let refused = config(&cluster).connect(Plain).await.map(drop).unwrap_err();
    assert!(
        refused.to_string().contains("migrate --to-etcd"),
        "{refused}"
    );
    let other = embedded_to_etcd(directory.path(), &config(&cluster), "sha256:other").await;
    assert!(other.unwrap_err().to_string().contains("not empty"));
    let moved = embedded_to_etcd(directory.path(), &config(&cluster), CLUSTER).await;
    let moved = moved.unwrap();
    let store = config(&cluster).connect(Plain).await.unwrap();
    assert_eq!(
        value(&*store, "/registry/00").await.as_deref(),
        Some("first")
    );
    assert_eq!(value(&*store, "/registry/zz").await, None);
    // Complete: a repetition changes nothing.
    let again = embedded_to_etcd(directory.path(), &config(&cluster), CLUSTER).await;
    assert_eq!(again.unwrap(), moved);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_went_on_after_its_migration_is_moved_again_unless_both_went_on() {
    let directory = tempfile::tempdir().unwrap();
    make_store(directory.path()).await;
    let cluster = Cluster::start(1);
    let migrate = async || embedded_to_etcd(directory.path(), &config(&cluster), CLUSTER).await;
    let first = migrate().await.unwrap();
    // The command was killed before it retired the store, and a server ran on it again.
    let go_on = async |key: &str| {
        let store = Embedded::open(directory.path(), Plain).unwrap();
        write(&*store, key, "1").await;
        store.close();
    };
    go_on("/registry/later").await;
    let second = migrate().await.unwrap();
    assert!(second.revision > first.revision);
    let store = config(&cluster).connect(Plain).await.unwrap();
    let later = value(&*store, "/registry/later").await;
    assert_eq!(later.as_deref(), Some("1"));
    // A server of that etcd writes its record.
    store.records().put("cluster", b"{}".into()).await.unwrap();
    write(&*store, "/registry/in-etcd", "1").await;
    assert_eq!(migrate().await.unwrap(), second);
    go_on("/registry/latest").await;
    let refused = migrate().await.unwrap_err().to_string();
    assert!(refused.contains("served from it"), "{refused}");
    let kept = value(&*store, "/registry/in-etcd").await;
    assert_eq!(kept.as_deref(), Some("1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_an_interrupted_migration_from_etcd_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(1);
    let store = cluster.connect(Config::default()).await;
    write(&*store, "/registry/a", "old").await;
    // A copy that was complete when the command was killed, before etcd was retired.
    let copy = Embedded::open(directory.path(), Plain).unwrap();
    write(&*copy, "/registry/a", "old").await;
    copy.close();
    write(&*store, "/registry/a", "new").await;
    store.close();
    let fine = |_: &Bytes, _: &[u8]| Ok(());
    let config = config(&cluster);
    let found = moved_to(&config, directory.path(), CLUSTER).await.unwrap();
    assert_eq!(found, None, "etcd is still served from");
    let moved = etcd_to_embedded(&config, directory.path(), CLUSTER, &fine).await;
    let moved = moved.unwrap();
    let result = async |cluster: &str| moved_to(&config, directory.path(), cluster).await;
    assert_eq!(result(CLUSTER).await.unwrap(), Some(moved));
    assert_eq!(result("sha256:other").await.unwrap(), None);
    let copy = Embedded::open(directory.path(), Plain).unwrap();
    assert_eq!(value(&*copy, "/registry/a").await.as_deref(), Some("new"));
    write(&*copy, "/registry/b", "1").await;
    copy.close();
    assert_eq!(result(CLUSTER).await.unwrap(), None, "it went on");
}

/// The record that a migration from etcd leaves there.
fn left(objects: u64, revision: Revision) -> String {
    format!("mainstay-migration-1 left {CLUSTER} {objects} {revision} 0 0")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delayed_write_of_an_interrupted_migration_completes_the_next_one() {
    let directory = tempfile::tempdir().unwrap();
    let (one, two) = (directory.path().join("one"), directory.path().join("two"));
    let cluster = Cluster::start(1);
    let everything = Config {
        root: Bytes::from_static(b"/"),
        ..Config::default()
    };
    let store = cluster.connect(everything).await;
    let revision = write(&*store, "/registry/a", "1").await;
    // The copy of a first run, to whose write of the record etcd did not answer.
    let copy = Embedded::open(&one, Plain).unwrap();
    write(&*copy, "/registry/a", "1").await;
    copy.close();
    // etcd applies that write during the next run, after the objects were read.
    let look = |_: &Bytes, _: &[u8]| {
        let record = left(1, revision);
        let writing = async { write(&*store, "/mainstay/migration", &record).await };
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(writing));
        Ok(())
    };
    let moved = etcd_to_embedded(&config(&cluster), &one, CLUSTER, &look).await;
    let moved = moved.unwrap();
    let found = moved_to(&config(&cluster), &one, CLUSTER).await.unwrap();
    assert_eq!(found, Some(moved));
    let copy = Embedded::open(&one, Plain).unwrap();
    assert_eq!(value(&*copy, "/registry/a").await.as_deref(), Some("1"));
    copy.close();

    // Without an earlier run, the record is of the migration to another server.
    commit(&*store, vec![delete("/mainstay/migration")])
        .await
        .unwrap();
    let refused = etcd_to_embedded(&config(&cluster), &two, CLUSTER, &look).await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    assert!(!two.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_copy_is_not_the_result_of_a_migration_from_etcd() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(1);
    let everything = Config {
        root: Bytes::from_static(b"/"),
        ..Config::default()
    };
    let store = cluster.connect(everything).await;
    write(&*store, "/registry/a", "old").await;
    let copy = Embedded::open(directory.path(), Plain).unwrap();
    write(&*copy, "/registry/a", "old").await;
    copy.close();
    let revision = write(&*store, "/registry/a", "new").await + 1000;
    write(&*store, "/mainstay/migration", &left(1, revision)).await;
    let fine = |_: &Bytes, _: &[u8]| Ok(());
    let refused = etcd_to_embedded(&config(&cluster), directory.path(), CLUSTER, &fine).await;
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.contains("the copy of another migration"),
        "{refused}"
    );
    Embedded::open(directory.path(), Plain).unwrap().close();
}
