//! The embedded engine on a real directory.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use common::*;
use stdx::{Clock, FakeClock};
use store::{
    Action, Durability, Error, Freshness, Op, Plain, Precondition, Store,
    embedded::{self, Config, Embedded},
};

fn open(directory: &std::path::Path) -> Arc<Embedded<Plain>> {
    Embedded::open(directory, Plain).expect("opens")
}

#[tokio::test(flavor = "multi_thread")]
async fn it_behaves_as_every_backend_does() {
    let directory = tempfile::tempdir().unwrap();
    conformance::all(&*open(directory.path())).await;
}

#[tokio::test]
async fn everything_is_there_after_a_restart_and_watches_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let first = write(&*store, "/a", "1").await;
    let created = write(&*store, "/b", "1").await;
    write(&*store, "/b", "2").await;
    commit(&*store, vec![delete("/a")]).await.unwrap();
    store.close();
    let store = open(directory.path());
    assert_eq!(store.revision().await.unwrap(), 4);
    assert_eq!(value(&*store, "/a").await, None);
    let (_, entry) = store.get(&"/b".into(), Freshness::Newest).await.unwrap();
    let entry = entry.unwrap();
    assert_eq!((entry.create_revision, entry.mod_revision), (created, 3));
    let mut watch = store.watch("/".into(), first).await.unwrap();
    assert_eq!(shown(&next_events(&mut watch).await.1), ["+/b=1"]);
    assert_eq!(write(&*store, "/c", "1").await, 5);
}

#[tokio::test]
async fn a_second_opener_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let first = open(directory.path());
    let second = Embedded::open(directory.path(), Plain).map(drop);
    assert!(
        matches!(&second, Err(Error::Unavailable(why)) if why.contains("in use")),
        "{second:?}"
    );
    first.close();
    open(directory.path());
}

#[tokio::test]
async fn a_closed_store_refuses_writes_and_ends_watches() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let mut watch = store.watch("/".into(), 0).await.unwrap();
    store.close();
    let refused = commit(&*store, vec![put("/a", "1")]).await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    assert!(matches!(next(&mut watch).await, Err(Error::Unavailable(_))));
}

#[tokio::test]
async fn a_key_expires_by_the_injected_clock_also_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let clock = FakeClock::at("2026-01-01T00:00:00Z".parse().unwrap());
    let config = Config {
        clock: Arc::new(clock.clone()),
        ..Config::default()
    };
    let store = config.clone().open(directory.path(), Plain).unwrap();
    for (key, seconds) in [("/soon", 60), ("/later", 3600)] {
        let expires_in = Some(Duration::from_secs(seconds));
        let action = Action::Put {
            draft: Bytes::from("x"),
            expires_in,
        };
        let op = Op {
            key: key.into(),
            precondition: Precondition::Any,
            action,
        };
        store.commit(vec![op], Durability::Relaxed).await.unwrap();
    }
    let mut watch = store.watch("/".into(), 2).await.unwrap();
    // The writer may not have begun its wait yet: only then is time seen to move later.
    while store
        .get(&"/soon".into(), Freshness::Newest)
        .await
        .unwrap()
        .1
        .is_some()
    {
        clock.advance(Duration::from_secs(61));
        tokio::task::yield_now().await;
        if clock.now() > "2026-01-01T00:50:00Z".parse().unwrap() {
            break;
        }
    }
    assert_eq!(shown(&next_events(&mut watch).await.1), ["-/soon=x"]);
    store.close();
    clock.advance(Duration::from_secs(7200));
    let store = config.open(directory.path(), Plain).unwrap();
    let start = store.revision().await.unwrap();
    if value(&*store, "/later").await.is_some() {
        clock.advance(Duration::from_secs(1));
        let mut watch = store.watch("/".into(), start).await.unwrap();
        assert_eq!(shown(&next_events(&mut watch).await.1), ["-/later=x"]);
    }
}

#[tokio::test]
async fn a_backup_restores_to_later_revisions() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory.path().join("one"));
    write(&*store, "/a", "1").await;
    write(&*store, "/b", "1").await;
    let file = directory.path().join("backup");
    assert_eq!(store.backup(&file).await.unwrap(), 2);
    write(&*store, "/c", "1").await;
    let into = directory.path().join("two");
    let report = embedded::restore(&file, &into, 1000).unwrap();
    assert_eq!(
        (report.backup_revision, report.revision, report.entries),
        (2, 1002, 2)
    );
    let restored = open(&into);
    assert_eq!(value(&*restored, "/a").await.as_deref(), Some("1"));
    assert_eq!(value(&*restored, "/c").await, None);
    assert_eq!(write(&*restored, "/d", "1").await, 1003);
    let old = restored.watch("/".into(), 3).await.map(drop);
    assert!(
        matches!(
            old,
            Err(Error::Compacted {
                requested: 3,
                oldest: 1002
            })
        ),
        "{old:?}"
    );
    restored.close();
    let again = embedded::restore(&file, &into, 1000);
    assert!(matches!(again, Err(Error::Invalid(_))), "{again:?}");
}

#[tokio::test]
async fn snapshots_take_the_place_of_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    for n in 0..100 {
        write(&*store, &format!("/{}", n % 10), &n.to_string()).await;
    }
    store.snapshot().await.unwrap();
    write(&*store, "/0", "after").await;
    store.close();
    let mut names: Vec<_> = std::fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["lock", "log-0000000000000002", "snapshot-0000000000000002"]
    );
    let store = open(directory.path());
    assert_eq!(store.revision().await.unwrap(), 101);
    assert_eq!(value(&*store, "/0").await.as_deref(), Some("after"));
    assert_eq!(value(&*store, "/9").await.as_deref(), Some("99"));
}
