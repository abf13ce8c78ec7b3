//! Disks that fail, are full, or corrupt data.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    disk::{MemoryDisk, STEPS, Step},
    *,
};
use futures::future::join_all;
use stdx::FakeClock;
use store::{
    Durability, Error, Plain, Precondition, Store,
    embedded::{Config, Embedded},
};

fn small() -> Config {
    Config {
        segment_bytes: 4 << 10,
        reserve_bytes: 1 << 10,
        ..Config::default()
    }
}

fn open(disk: &MemoryDisk) -> Arc<Embedded<Plain>> {
    small().open_on(Arc::new(disk.clone()), Plain).unwrap()
}

#[tokio::test]
async fn a_failed_disk_step_stops_the_writer_for_good_and_reads_go_on() {
    stops_for_good().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_disk_step_stops_the_writer_also_when_a_caller_does_its_work() {
    stops_for_good().await;
}

async fn stops_for_good() {
    for step in STEPS {
        let disk = MemoryDisk::new(1);
        let store = open(&disk);
        let mut watch = store.watch("/".into(), 0).await.unwrap();
        write(&*store, "/a", "1").await;
        next_events(&mut watch).await;
        disk.fail_at(Some(step));
        let failed = commit(&*store, vec![put("/a", "2")]).await;
        assert!(
            matches!(failed, Err(Error::Unavailable(_))),
            "{step:?}: {failed:?}"
        );
        disk.fail_at(None);
        let later = commit(&*store, vec![put("/b", "1")]).await;
        assert!(
            matches!(&later, Err(Error::Unavailable(why)) if why.contains("log-")),
            "{step:?}: the sync is not tried again: {later:?}"
        );
        assert!(store.failure().is_some());
        assert_eq!(
            value(&*store, "/a").await.as_deref(),
            Some("1"),
            "{step:?}: not shown"
        );
        assert_eq!(store.revision().await.unwrap(), 1);
        store.close();
        assert!(
            matches!(next(&mut watch).await, Err(Error::Unavailable(_))),
            "{step:?}"
        );

        let store = open(&disk);
        let found = value(&*store, "/a").await;
        let expected: &[&str] = match step {
            Step::BeforeAppend => &["1"],
            _ => &["1", "2"],
        };
        assert!(
            expected.contains(&found.as_deref().unwrap()),
            "{step:?}: {found:?}"
        );
        assert!(write(&*store, "/b", "1").await > 1);
    }
}

#[tokio::test]
async fn a_late_sync_that_fails_stops_the_writer_as_well() {
    let disk = MemoryDisk::new(1);
    let clock = FakeClock::at(jiff::Timestamp::UNIX_EPOCH);
    let config = Config {
        clock: Arc::new(clock.clone()),
        ..small()
    };
    let store = config.open_on(Arc::new(disk.clone()), Plain).unwrap();
    for n in 0..2 {
        // The first is synced for its high-water mark.
        let ops = vec![put(&format!("/{n}"), "1")];
        store.commit(ops, Durability::Relaxed).await.unwrap();
    }
    disk.fail_at(Some(Step::BeforeSync));
    let deadline = Instant::now() + PATIENCE;
    while store.failure().is_none() {
        assert!(Instant::now() < deadline, "it is never synced");
        clock.advance(Duration::from_secs(1));
        tokio::task::yield_now().await;
    }
    disk.fail_at(None);
    let later = commit(&*store, vec![put("/b", "1")]).await;
    assert!(
        matches!(&later, Err(Error::Unavailable(why)) if why.contains("log-")),
        "{later:?}"
    );
    assert_eq!(store.revision().await.unwrap(), 2);
}

#[tokio::test]
async fn a_full_disk_refuses_writes_loses_nothing_and_recovers() {
    let disk = MemoryDisk::new(1);
    disk.set_capacity(20 << 10);
    let store = open(&disk);
    let text = "x".repeat(300);
    let mut written = 0;
    let full = loop {
        match commit(&*store, vec![put(&format!("/{written}"), &text)]).await {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(
        matches!(&full, Error::Full(why) if why.contains("log-")),
        "{full:?}"
    );
    assert!(written > 20);
    assert_eq!(
        store.list(list_request("/")).await.unwrap().entries.len(),
        written
    );
    assert_eq!(store.revision().await.unwrap(), written as u64);
    assert!(store.failure().is_none());

    store.close();
    let store = open(&disk);
    assert_eq!(
        store.list(list_request("/")).await.unwrap().entries.len(),
        written
    );
    disk.set_capacity(0);
    let still = commit(&*store, vec![put("/more", &text)]).await;
    assert!(matches!(still, Err(Error::Full(_))), "{still:?}");
    disk.set_capacity(usize::MAX);
    assert_eq!(write(&*store, "/more", &text).await, written as u64 + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_that_depend_on_a_refused_batch_are_refused_with_it() {
    let disk = MemoryDisk::new(1);
    disk.set_capacity(40 << 10);
    let store = open(&disk);
    let text = "x".repeat(100);
    let (mut written, mut refused) = (vec![], 0);
    // In waves, so that batches are filled while others are being written.
    for wave in 0..10 {
        let key = |n| format!("/{wave}/{n}");
        let create = |n| commit(&*store, vec![put_if(&key(n), &text, Precondition::Absent)]);
        let answers = join_all((0..100).map(create)).await;
        for (n, answer) in answers.into_iter().enumerate() {
            match answer {
                Ok(committed) => written.push((committed.revision, key(n))),
                Err(Error::Full(_)) => refused += 1,
                Err(other) => panic!("{other:?}"),
            }
        }
    }
    assert!(refused > 0 && !written.is_empty());
    written.sort();
    let revisions = written.iter().map(|(revision, _)| *revision);
    assert!(revisions.eq(1..=written.len() as u64), "none is left out");
    disk.set_capacity(usize::MAX);
    // A rejected commit does not block later ones.
    let last = commit(&*store, vec![put_if("/9/99/", &text, Precondition::Absent)]).await;
    written.push((last.unwrap().revision, "/9/99/".into()));
    store.close();
    let store = open(&disk);
    let listed = store.list(list_request("/")).await.unwrap();
    let found = listed
        .entries
        .iter()
        .map(|entry| (entry.mod_revision, &entry.key[..]));
    let mut found: Vec<_> = found.collect();
    found.sort();
    let written: Vec<_> = written
        .iter()
        .map(|(at, key)| (*at, key.as_bytes()))
        .collect();
    assert_eq!(found, written);
}

#[tokio::test]
async fn a_damaged_record_in_the_middle_is_refused_by_file_and_offset() {
    let disk = MemoryDisk::new(1);
    let store = open(&disk);
    for n in 0..5 {
        write(&*store, &format!("/{n}"), "some value").await;
    }
    store.close();
    let name = "log-0000000000000001";
    for offset in [64, 150, 200, 330] {
        disk.flip(name, offset);
        let refused = small().open_on(Arc::new(disk.clone()), Plain).map(drop);
        let Err(Error::Corrupt(message)) = &refused else {
            panic!("{offset}: {refused:?}")
        };
        assert!(
            message.contains("/memory/log-0000000000000001 at offset "),
            "{message}"
        );
        let (_, at) = message.split_once("at offset ").unwrap();
        let at: usize = at.split(':').next().unwrap().parse().unwrap();
        assert!(
            (offset.saturating_sub(96)..=offset).contains(&at),
            "{offset} is in the record at {at}"
        );
        disk.flip(name, offset);
    }
    open(&disk);
}

#[tokio::test]
async fn a_damaged_record_of_an_ended_segment_is_refused_also_at_its_end() {
    let disk = MemoryDisk::new(1);
    let store = open(&disk);
    for n in 0..50 {
        write(&*store, &format!("/{n}"), &"x".repeat(300)).await;
    }
    store.close();
    let name = "log-0000000000000002";
    disk.flip(name, disk.frames_end(name) - 100);
    let refused = small().open_on(Arc::new(disk.clone()), Plain).map(drop);
    assert!(
        matches!(&refused, Err(Error::Corrupt(message)) if message.contains(name)),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_damaged_snapshot_is_refused_by_file_and_offset() {
    let disk = MemoryDisk::new(1);
    let store = open(&disk);
    for n in 0..50 {
        write(&*store, &format!("/{n}"), &"x".repeat(300)).await;
    }
    store.snapshot().await.unwrap();
    store.close();
    let name = disk_snapshot(&disk);
    // In the file header, the first frame's header, an entry, and the last frame; never in padding.
    for offset in [3, 70, 1000, disk.length(&name) - 38] {
        disk.flip(&name, offset);
        let refused = small().open_on(Arc::new(disk.clone()), Plain).map(drop);
        assert!(
            matches!(&refused, Err(Error::Corrupt(why)) if why.contains(&name) && why.contains("offset")),
            "{offset}: {refused:?}"
        );
        disk.flip(&name, offset);
    }
    open(&disk);
}

fn disk_snapshot(disk: &MemoryDisk) -> String {
    use store::embedded::disk::Disk;
    disk.list()
        .unwrap()
        .into_iter()
        .find(|name| name.starts_with("snapshot-"))
        .unwrap()
}

#[tokio::test]
async fn many_updates_of_one_key_leave_little_on_the_disk() {
    let disk = MemoryDisk::new(1);
    let config = Config {
        min_log_bytes: 16 << 10,
        snapshot_rest: Duration::ZERO,
        ..small()
    };
    let store = config.open_on(Arc::new(disk.clone()), Plain).unwrap();
    for n in 0..2000 {
        write(&*store, "/one", &format!("{n} {}", "x".repeat(300))).await;
    }
    // Snapshots are written in the background: soon after the last write, no old files are left.
    let deadline = std::time::Instant::now() + PATIENCE;
    while disk.used() > 40 << 10 {
        let used = disk.used();
        assert!(
            std::time::Instant::now() < deadline,
            "{used} bytes for one key"
        );
        tokio::task::yield_now().await;
    }
    store.close();
    let store = config_again(&disk);
    assert_eq!(store.revision().await.unwrap(), 2000);
}

#[tokio::test]
async fn a_burst_shares_the_disk_with_few_snapshots_and_leaves_as_little() {
    for rest in [Duration::from_millis(200), Duration::from_secs(3600)] {
        let disk = MemoryDisk::new(1);
        let config = Config {
            min_log_bytes: 16 << 10,
            snapshot_rest: rest,
            max_log_bytes: 128 << 10,
            ..small()
        };
        let store = config.open_on(Arc::new(disk.clone()), Plain).unwrap();
        for n in 0..2000 {
            write(&*store, "/one", &format!("{n} {}", "x".repeat(300))).await;
        }
        // After the minimum interval the log is removed without another write. A log that is too
        // long does not wait.
        let bound = if rest.as_secs() == 0 { 40 } else { 180 } << 10;
        let deadline = std::time::Instant::now() + PATIENCE;
        while disk.used() > bound {
            assert!(std::time::Instant::now() < deadline, "{}", disk.used());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        store.close();
    }
}

fn config_again(disk: &MemoryDisk) -> Arc<Embedded<Plain>> {
    Config {
        min_log_bytes: 16 << 10,
        snapshot_rest: Duration::ZERO,
        ..small()
    }
    .open_on(Arc::new(disk.clone()), Plain)
    .unwrap()
}

#[tokio::test]
async fn a_missing_segment_is_refused_by_name() {
    let disk = MemoryDisk::new(1);
    let store = open(&disk);
    for n in 0..50 {
        write(&*store, &format!("/{n}"), &"x".repeat(300)).await;
    }
    store.close();
    {
        use store::embedded::disk::Disk;
        disk.remove("log-0000000000000002").unwrap();
    }
    let refused = small().open_on(Arc::new(disk.clone()), Plain).map(drop);
    assert!(
        matches!(&refused, Err(Error::Corrupt(why)) if why.contains("log-0000000000000002 is missing")),
        "{refused:?}"
    );
}

/// A store of some segments that was closed cleanly.
async fn closed_store() -> (MemoryDisk, Vec<String>) {
    use store::embedded::disk::Disk;
    let disk = MemoryDisk::new(1);
    let store = open(&disk);
    for n in 0..50 {
        write(&*store, &format!("/{n}"), &"x".repeat(300)).await;
    }
    store.close();
    let names = disk.list().unwrap();
    let mut segments: Vec<_> = names
        .into_iter()
        .filter(|n| n.starts_with("log-"))
        .collect();
    segments.sort();
    (disk, segments)
}

fn refused_as_lost(disk: &MemoryDisk, newest: u64) -> String {
    let refused = small().open_on(Arc::new(disk.clone()), Plain).map(drop);
    match refused {
        Err(Error::Lost {
            what,
            found,
            written,
        }) => {
            assert_eq!((found < 50, written), (true, 50), "{what}");
            assert!(found <= newest, "{found} of {newest}");
            what
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_log_whose_last_segments_were_deleted_is_refused_until_the_loss_is_accepted() {
    use store::embedded::disk::Disk;
    let (disk, segments) = closed_store().await;
    let last = segments.last().unwrap();
    disk.remove(last).unwrap();
    let what = refused_as_lost(&disk, 49);
    assert!(what.contains(&format!("{last} is missing")), "{what}");
    for segment in &segments[..segments.len() - 1] {
        disk.remove(segment).unwrap();
    }
    let what = refused_as_lost(&disk, 0);
    assert!(what.contains("is missing"), "{what}");

    let config = Config {
        accept_loss: true,
        ..small()
    };
    let store = config.open_on(Arc::new(disk.clone()), Plain).unwrap();
    assert_eq!(value(&*store, "/1").await, None);
    let next = write(&*store, "/1", "again").await;
    assert!(next > 50, "revision {next} was used before");
    store.close();
    let store = open(&disk);
    assert_eq!(value(&*store, "/1").await.as_deref(), Some("again"));
}

#[tokio::test]
async fn a_log_without_its_manifest_is_refused_until_the_loss_is_accepted() {
    use store::embedded::disk::Disk;
    let (disk, segments) = closed_store().await;
    disk.remove("manifest").unwrap();
    let refused = |disk: &MemoryDisk| {
        let refused = small().open_on(Arc::new(disk.clone()), Plain).map(drop);
        match refused {
            Err(Error::ManifestMissing { path, found }) => {
                assert!(path.ends_with("manifest"), "{}", path.display());
                found
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused(&disk), 50);
    disk.remove(segments.last().unwrap()).unwrap();
    let found = refused(&disk);
    assert!((1..50).contains(&found), "{found}");

    let config = Config {
        accept_loss: true,
        ..small()
    };
    let store = config.open_on(Arc::new(disk.clone()), Plain).unwrap();
    // Nothing records how many revisions there were.
    let next = write(&*store, "/1", "again").await;
    assert!(
        next > 1_000_000,
        "revision {next} may have been used before"
    );
    store.close();
    let store = open(&disk);
    assert_eq!(value(&*store, "/1").await.as_deref(), Some("again"));
}

/// Captures log output.
#[derive(Clone, Default)]
struct Log(Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_torn_tail_that_is_cut_is_logged_with_its_file_and_the_last_revision() {
    use store::embedded::disk::Disk;
    let disk = MemoryDisk::new(1);
    let store = open(&disk);
    for n in 0..3 {
        write(&*store, &format!("/{n}"), "some value").await;
    }
    disk.cut_power();
    drop(store);
    let disk = disk.restarted();
    let name = "log-0000000000000001";
    let end = disk.frames_end(name) as u64;
    let mut file = disk.open(name).unwrap();
    file.write_all_at(&[0xab; 40], end).unwrap();
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let store = tracing::subscriber::with_default(subscriber, || open(&disk));
    assert_eq!(value(&*store, "/2").await.as_deref(), Some("some value"));
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let warned = log.lines().find(|line| line.contains("WARN")).unwrap();
    let expected = [name, "never acknowledged", "revision=3", "offset="];
    for part in expected {
        assert!(warned.contains(part), "{part}: {log}");
    }
}

#[tokio::test]
async fn a_store_that_is_killed_in_its_first_moments_starts_again() {
    let disk = MemoryDisk::new(1);
    let store = open(&disk);
    disk.cut_power();
    drop(store);
    // An empty manifest, and no log.
    let disk = disk.restarted();
    assert_eq!(disk.durable("manifest").iter().max(), Some(&0));
    let config = Config {
        clock: Arc::new(FakeClock::at(jiff::Timestamp::UNIX_EPOCH)),
        ..small()
    };
    let store = config.open_on(Arc::new(disk.clone()), Plain).unwrap();
    write(&*store, "/a", "1").await;
    disk.cut_power();
    drop(store);
    let store = open(&disk.restarted());
    assert_eq!(value(&*store, "/a").await.as_deref(), Some("1"));
}

#[tokio::test]
async fn a_last_segment_that_was_cut_between_two_records_is_refused() {
    use store::embedded::disk::Disk;
    let (disk, segments) = closed_store().await;
    let last = segments.last().unwrap();
    let first = disk.frames_start(last, 1);
    disk.open(last).unwrap().cut(first as u64).unwrap();
    let what = refused_as_lost(&disk, 49);
    assert!(what.contains(&format!("{last} was cut")), "{what}");
}

#[tokio::test]
async fn a_log_that_was_deleted_under_a_killed_store_is_refused_as_well() {
    use store::embedded::disk::Disk;
    let disk = MemoryDisk::new(1);
    let clock = FakeClock::at(jiff::Timestamp::UNIX_EPOCH);
    let config = Config {
        clock: Arc::new(clock.clone()),
        ..small()
    };
    let store = config.open_on(Arc::new(disk.clone()), Plain).unwrap();
    write(&*store, "/a", "1").await;
    // The manifest follows the log after a moment; it is created with zeros.
    let deadline = Instant::now() + PATIENCE;
    while disk.durable("manifest").iter().all(|byte| *byte == 0) {
        assert!(Instant::now() < deadline, "there is no manifest");
        clock.advance(Duration::from_secs(1));
        tokio::task::yield_now().await;
    }
    disk.cut_power();
    drop(store);
    let disk = disk.restarted();
    disk.remove("log-0000000000000001").unwrap();
    let refused = small().open_on(Arc::new(disk.clone()), Plain).map(drop);
    assert!(
        matches!(
            &refused,
            Err(Error::Lost {
                found: 0,
                written: 1,
                ..
            })
        ),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_segment_that_lost_its_end_is_noticed_by_the_revisions_that_are_missing() {
    use store::embedded::disk::Disk;
    let disk = MemoryDisk::new(1);
    let store = open(&disk);
    for n in 0..50 {
        write(&*store, &format!("/{n}"), &"x".repeat(300)).await;
    }
    store.close();
    // Exactly between two frames: the rest is valid.
    let frame = disk.frames_start("log-0000000000000002", 3);
    let mut segment = disk.open("log-0000000000000002").unwrap();
    segment.cut(frame as u64).unwrap();
    let refused = small().open_on(Arc::new(disk.clone()), Plain).map(drop);
    assert!(
        matches!(&refused, Err(Error::Corrupt(why)) if why.contains("log-0000000000000003 at offset") && why.contains("revision")),
        "{refused:?}"
    );
}

#[tokio::test]
async fn old_frames_in_reused_segments_are_ignored() {
    use store::embedded::disk::Disk;
    let disk = MemoryDisk::new(1);
    let store = config_again(&disk);
    let spares = |disk: &MemoryDisk| {
        let names = disk.list().unwrap();
        names
            .iter()
            .filter(|name| name.starts_with("spare-"))
            .count()
    };
    for n in 0..60 {
        write(
            &*store,
            &format!("/{}", n % 7),
            &format!("{n}{}", "x".repeat(300)),
        )
        .await;
    }
    store.snapshot().await.unwrap();
    let before = spares(&disk);
    assert!(before > 1, "{:?}", disk.list());
    for n in 60..80 {
        write(
            &*store,
            &format!("/{}", n % 7),
            &format!("{n}{}", "x".repeat(300)),
        )
        .await;
    }
    assert!(spares(&disk) < before, "{:?}", disk.list());
    // Power loss: the current segment has frames from before its reuse after its end.
    disk.cut_power();
    store.close();
    let store = Config {
        min_log_bytes: 16 << 10,
        snapshot_rest: Duration::ZERO,
        ..small()
    }
    .open_on(Arc::new(disk.restarted()), Plain)
    .unwrap();
    assert_eq!(store.revision().await.unwrap(), 80);
    for n in 73..80 {
        let found = value(&*store, &format!("/{}", n % 7)).await.unwrap();
        assert_eq!(found.trim_end_matches('x'), n.to_string());
    }
}
