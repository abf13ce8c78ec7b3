//! The embedded engine on a real directory.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use common::*;
use futures::future::join_all;
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
    let refused = store.snapshot().await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    assert!(matches!(next(&mut watch).await, Err(Error::Unavailable(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_a_batch_takes_is_committed_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let large = "x".repeat(1 << 20);
    // The first is being written while the others wait.
    let commits = (0..12).map(|n| commit(&*store, vec![put(&format!("/large/{n}"), &large)]));
    let small = (0..9000).map(|n| commit(&*store, vec![put(&format!("/small/{n}"), "x")]));
    let committed = join_all(commits.chain(small)).await.into_iter();
    let revisions: Vec<_> = committed
        .map(|committed| committed.unwrap().revision)
        .collect();
    assert!(revisions.is_sorted(), "{revisions:?}");
    assert_eq!(revisions.last(), Some(&9012));
    store.close();
    let store = open(directory.path());
    assert_eq!(store.revision().await.unwrap(), 9012);
    let listed = store.list(list_request("/small/")).await.unwrap();
    assert_eq!(listed.entries.len(), 9000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_goes_on_when_its_caller_no_longer_waits() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    for n in 1..=20 {
        let mut lost = Box::pin(commit(&*store, vec![put("/a", "x")]));
        assert!(futures::poll!(&mut lost).is_pending());
        drop(lost);
        let deadline = std::time::Instant::now() + PATIENCE;
        while store.revision().await.unwrap() < n {
            assert!(std::time::Instant::now() < deadline, "it is not written");
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_of_one_task_share_their_syncs() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    // Alone at first.
    write(&*store, "/alone", "x").await;
    let commits = (0..100).map(|n| commit(&*store, vec![put(&format!("/{n}"), "x")]));
    assert!(join_all(commits).await.iter().all(Result::is_ok));
    store.close();
    let log = |file: &std::fs::DirEntry| file.file_name().to_string_lossy().starts_with("log-");
    let files = std::fs::read_dir(directory.path()).unwrap();
    let files = files.map(Result::unwrap).filter(log);
    let found: usize = files
        .map(|file| frames(&std::fs::read(file.path()).unwrap()).len())
        .sum();
    assert!((2..50).contains(&found), "{found} frames");
}

#[test]
fn a_blocked_runtime_thread_delays_no_other_writer() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .unwrap();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let writing = store.clone();
    let stuck = runtime.spawn(async move {
        let puts = (0..20).map(|n| commit(&*writing, vec![put(&format!("/{n}"), "x")]));
        let mut commits = join_all(puts);
        assert!(futures::poll!(&mut commits).is_pending());
        // Blocks the only thread of the runtime that would publish them.
        released.recv().unwrap();
        commits.await
    });
    let deadline = std::time::Instant::now() + PATIENCE;
    while futures::executor::block_on(store.revision()).unwrap() < 20 {
        assert!(
            std::time::Instant::now() < deadline,
            "they are not published"
        );
        std::thread::yield_now();
    }
    release.send(()).unwrap();
    let committed = runtime.block_on(stuck).unwrap();
    assert!(committed.iter().all(Result::is_ok));
}

#[tokio::test]
async fn a_key_written_again_has_the_time_of_its_last_write_or_none() {
    let directory = tempfile::tempdir().unwrap();
    let clock = FakeClock::at("2026-01-01T00:00:00Z".parse().unwrap());
    let config = Config {
        clock: Arc::new(clock.clone()),
        ..Config::default()
    };
    let store = config.open(directory.path(), Plain).unwrap();
    let put = async |key: &'static str, seconds: Option<u64>| {
        let action = Action::Put {
            draft: Bytes::from("x"),
            expires_in: seconds.map(Duration::from_secs),
        };
        let op = Op {
            key: key.into(),
            precondition: Precondition::Any,
            action,
        };
        store.commit(vec![op], Durability::Relaxed).await.unwrap();
    };
    for key in ["/gone", "/kept", "/longer"] {
        put(key, Some(60)).await;
    }
    put("/kept", None).await;
    put("/longer", Some(600)).await;
    let mut watch = store.watch("/".into(), 5).await.unwrap();
    clock.advance(Duration::from_secs(61));
    // Wakes the writer, which may not have started waiting when the clock moved.
    put("/other", None).await;
    let mut seen = Vec::new();
    while !seen.contains(&"-/gone=x".to_owned()) {
        seen.extend(shown(&next_events(&mut watch).await.1));
    }
    put("/last", None).await;
    while !seen.contains(&"+/last=x".to_owned()) {
        seen.extend(shown(&next_events(&mut watch).await.1));
    }
    assert!(!seen.contains(&"-/kept=x".to_owned()), "{seen:?}");
    assert!(!seen.contains(&"-/longer=x".to_owned()), "{seen:?}");
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
    // The writer may not have started waiting yet, and then sees the time later.
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
async fn snapshots_replace_the_log() {
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
        [
            "lock",
            "log-0000000000000002",
            "manifest",
            "snapshot-0000000000000002"
        ]
    );
    let store = open(directory.path());
    assert_eq!(store.revision().await.unwrap(), 101);
    assert_eq!(value(&*store, "/0").await.as_deref(), Some("after"));
    assert_eq!(value(&*store, "/9").await.as_deref(), Some("99"));
}

#[tokio::test]
async fn an_unclean_stop_after_relaxed_writes_jumps_and_a_clean_one_does_not() {
    let disk = disk::MemoryDisk::new(1);
    let config = Config {
        high_water_step: 100,
        ..Config::default()
    };
    let open = |disk: &disk::MemoryDisk| {
        config
            .clone()
            .open_on(Arc::new(disk.restarted()), Plain)
            .unwrap()
    };
    let store = open(&disk);
    write(&*store, "/a", "1").await;
    for n in 0..10 {
        let ops = vec![put("/lease", &n.to_string())];
        store.commit(ops, Durability::Relaxed).await.unwrap();
    }
    assert_eq!(store.revision().await.unwrap(), 11);
    store.close();
    let store = open(&disk);
    assert_eq!(
        store.revision().await.unwrap(),
        11,
        "a clean stop loses nothing"
    );
    drop(store.watch("/".into(), 1).await.unwrap());
    store
        .commit(vec![put("/lease", "x")], Durability::Relaxed)
        .await
        .unwrap();
    disk.cut_power();
    store.close();

    let store = open(&disk);
    let jumped = store.revision().await.unwrap();
    assert_eq!(jumped, 112, "past everything that may have been shown");
    let before = store.watch("/".into(), 11).await.map(drop);
    assert!(
        matches!(
            before,
            Err(Error::Compacted {
                requested: 11,
                oldest: 112
            })
        ),
        "{before:?}"
    );
    assert_eq!(value(&*store, "/a").await.as_deref(), Some("1"));
    assert_eq!(write(&*store, "/b", "1").await, 113);
    store.close();
    let store = open(&disk);
    let before = store.watch("/".into(), 11).await.map(drop);
    assert!(
        matches!(before, Err(Error::Compacted { .. })),
        "also after the next start"
    );
    drop(store.watch("/".into(), 112).await.unwrap());
}

#[tokio::test]
async fn history_is_bounded_by_count_bytes_and_age() {
    let clock = FakeClock::at("2026-01-01T00:00:00Z".parse().unwrap());
    let limits = |revisions, bytes, seconds| Config {
        clock: Arc::new(clock.clone()),
        history: embedded::Limits {
            revisions,
            bytes,
            age: Duration::from_secs(seconds),
        },
        ..Config::default()
    };
    let cases = [
        limits(5, 1 << 20, 600),
        limits(1000, 1000, 600),
        limits(1000, 1 << 20, 10),
    ];
    for config in cases {
        let store = config
            .open_on(Arc::new(disk::MemoryDisk::new(1)), Plain)
            .unwrap();
        for _ in 0..20 {
            clock.advance(Duration::from_secs(1));
            write(&*store, "/a", &"x".repeat(100)).await;
        }
        let early = store.watch("/".into(), 2).await.map(drop);
        let Err(Error::Compacted {
            requested: 2,
            oldest,
        }) = early
        else {
            panic!("{early:?}")
        };
        assert!((5..20).contains(&oldest), "{oldest}");
        drop(store.watch("/".into(), oldest).await.unwrap());
        let exactly = store
            .get(&"/a".into(), Freshness::Exactly(oldest - 1))
            .await;
        assert!(
            matches!(exactly, Err(Error::Compacted { .. })),
            "{exactly:?}"
        );
        let (_, entry) = store
            .get(&"/a".into(), Freshness::Exactly(oldest))
            .await
            .unwrap();
        assert_eq!(entry.unwrap().mod_revision, oldest);
    }
}

#[tokio::test]
async fn a_lagging_watcher_catches_up_from_history_or_gets_an_error() {
    let config = Config {
        watch_queue: 4,
        history: embedded::Limits {
            revisions: 50,
            ..embedded::Limits::default()
        },
        ..Config::default()
    };
    let store = config
        .open_on(Arc::new(disk::MemoryDisk::new(1)), Plain)
        .unwrap();
    let mut slow = store.watch("/".into(), 0).await.unwrap();
    for n in 1..=40 {
        write(&*store, "/a", &n.to_string()).await;
    }
    for n in 1..=40 {
        assert_eq!(next_events(&mut slow).await.0, n);
    }
    for n in 0..200 {
        write(&*store, "/a", &n.to_string()).await;
    }
    let mut last = 40;
    let end = loop {
        match next(&mut slow).await {
            Ok(store::WatchItem::Events { revision, .. }) => {
                assert_eq!(revision, last + 1, "no gap before the end");
                last = revision;
            }
            Ok(store::WatchItem::Progress(_)) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(end, Error::Lagged), "{end:?}");
}

#[tokio::test]
async fn idle_watchers_get_progress_notifications() {
    let config = Config {
        progress: Duration::from_millis(5),
        ..Config::default()
    };
    let store = config
        .open_on(Arc::new(disk::MemoryDisk::new(1)), Plain)
        .unwrap();
    let mut watch = store.watch("/quiet/".into(), 0).await.unwrap();
    let revision = write(&*store, "/loud/a", "1").await;
    let heard = async {
        while !matches!(next(&mut watch).await, Ok(store::WatchItem::Progress(heard)) if heard == revision)
        {
        }
    };
    tokio::time::timeout(PATIENCE, heard).await.unwrap();
}

/// A real full filesystem: needs root for a tmpfs in a mount namespace of its own.
#[test]
fn a_real_full_disk_refuses_writes_and_recovers() {
    const INSIDE: &str = "STORE_FULL_DISK";
    if let Some(directory) = std::env::var_os(INSIDE) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        return runtime.block_on(fill_and_free(std::path::Path::new(&directory)));
    }
    assert!(
        rustix::process::geteuid().is_root(),
        "a filesystem of its own needs root"
    );
    let directory = tempfile::tempdir().unwrap();
    let script = r#"mount -t tmpfs -o size=16m tmpfs "$STORE_FULL_DISK" && exec "$0" --exact a_real_full_disk_refuses_writes_and_recovers"#;
    let status = std::process::Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .env(INSIDE, directory.path())
        .status()
        .unwrap();
    assert!(status.success());
}

async fn fill_and_free(directory: &std::path::Path) {
    let ballast = directory.join("ballast");
    std::fs::write(&ballast, vec![1; 4 << 20]).unwrap();
    let store = open(&directory.join("store"));
    let text = "x".repeat(100 << 10);
    let mut written = 0;
    let full = loop {
        match commit(&*store, vec![put(&format!("/{written}"), &text)]).await {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, Error::Full(_)), "{full:?}");
    assert_eq!(
        store.list(list_request("/")).await.unwrap().entries.len(),
        written
    );
    std::fs::remove_file(&ballast).unwrap();
    write(&*store, "/more", &text).await;
    store.close();
    let store = open(&directory.join("store"));
    assert_eq!(
        store.list(list_request("/")).await.unwrap().entries.len(),
        written + 1
    );
}
