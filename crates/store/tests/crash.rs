//! kill -9 at random times: a child process writes as fast as it can and reports every acknowledged
//! write; the parent kills it, opens the store, and checks that everything acknowledged is there.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use common::*;
use rand::{Rng, SeedableRng, rngs::StdRng};
use store::{
    Error, Freshness, Plain, Revision, Store,
    embedded::{Config, Embedded},
};

const CHILD: &str = "STORE_CRASH_CHILD";

fn config() -> Config {
    Config {
        segment_bytes: 64 << 10,
        reserve_bytes: 16 << 10,
        min_log_bytes: 256 << 10,
        snapshot_rest: Duration::ZERO,
        ..Config::default()
    }
}

fn open(directory: &Path) -> Result<Arc<Embedded<Plain>>, Error> {
    config().open(directory, Plain)
}

/// Not a test: run by the child process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    let Some(directory) = std::env::var_os(CHILD) else {
        return;
    };
    let store = open(&PathBuf::from(directory)).unwrap();
    let mut writers = tokio::task::JoinSet::new();
    for id in 0..8 {
        let store = store.clone();
        writers.spawn(async move {
            for n in 0_u64.. {
                let key = format!("/{id}/{}", n % 5);
                let value = format!("{id}-{n}-{}", "x".repeat((n * 37 % 1500) as usize));
                let ops = vec![put(&key, &value), put(&format!("{key}/pair"), &value)];
                let revision = commit(&*store, ops).await.unwrap().revision;
                let line = format!("{key} {revision} {id}-{n}\n");
                std::io::stderr().write_all(line.as_bytes()).unwrap();
            }
        });
    }
    writers.join_all().await;
}

/// Runs a child for a while, kills it, and adds what it reported.
fn run_and_kill(
    directory: &Path,
    rng: &mut StdRng,
    known: &mut BTreeMap<String, (Revision, String)>,
) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(CHILD, directory)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut left = rng.random_range(1..2000);
    // Read the rest of the pipe after the kill: what was reported was acknowledged.
    while let Some(Ok(line)) = lines.next() {
        let mut words = line.split(' ');
        let (Some(key), Some(revision), Some(value)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        let Ok(revision) = revision.parse() else {
            continue;
        };
        let newest = known.entry(key.to_owned()).or_default();
        if newest.0 < revision {
            *newest = (revision, value.to_owned());
        }
        left -= 1;
        if left == 0 {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    assert!(left <= 0, "the child ended by itself");
}

async fn verify(store: &Embedded<Plain>, known: &BTreeMap<String, (Revision, String)>) {
    let newest = store.revision().await.unwrap();
    for (key, (revision, value)) in known {
        assert!(newest >= *revision, "revisions go upwards");
        let found = store
            .get(&Bytes::from(key.clone()), Freshness::Newest)
            .await
            .unwrap()
            .1;
        let found = found.unwrap_or_else(|| panic!("{key} of revision {revision} is gone"));
        assert!(found.mod_revision >= *revision, "{key} fell back");
        if found.mod_revision == *revision {
            assert!(
                found.object.starts_with(format!("{value}-").as_bytes()),
                "{key} differs"
            );
        }
    }
    assert_whole(store).await;
}

/// No commit is partially there.
async fn assert_whole(store: &Embedded<Plain>) {
    let listed = store.list(list_request("/")).await.unwrap();
    for pair in listed.entries.chunks(2) {
        let [first, second] = pair else {
            panic!("a key without its pair")
        };
        assert_eq!([&first.key[..], b"/pair"].concat(), &second.key[..]);
        assert_eq!(
            (first.mod_revision, &first.object),
            (second.mod_revision, &second.object)
        );
    }
}

#[tokio::test]
async fn acknowledged_writes_survive_kill_9() {
    let directory = tempfile::tempdir().unwrap();
    let mut rng = StdRng::seed_from_u64(7);
    let mut known = BTreeMap::new();
    for _ in 0..rounds() {
        run_and_kill(directory.path(), &mut rng, &mut known);
        let store = open(directory.path()).unwrap();
        verify(&store, &known).await;
        let newest = store.revision().await.unwrap();
        assert_eq!(write(&*store, "/own", "1").await, newest + 1);
        commit(&*store, vec![delete("/own")]).await.unwrap();
        store.close();
    }
}

#[tokio::test]
async fn a_damaged_tail_is_cut_or_refused_and_never_believed() {
    let directory = tempfile::tempdir().unwrap();
    let mut rng = StdRng::seed_from_u64(8);
    let (mut cut, mut refused) = (0, 0);
    for round in 0..rounds() {
        let home = directory.path().join(round.to_string());
        run_and_kill(&home, &mut rng, &mut BTreeMap::new());
        let last = std::fs::read_dir(&home)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            // Temporary files are not part of the log.
            .filter(|path| path.extension().is_none())
            .filter(|path| {
                path.file_name()
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .starts_with("log-")
            })
            .max()
            .unwrap();
        let mut bytes = std::fs::read(&last).unwrap();
        let used = frames_end(&bytes) - 1;
        if used < 64 {
            continue; // Killed right after a new segment was started.
        }
        let at = rng.random_range(used.saturating_sub(40_000).max(32)..=used);
        if rng.random_bool(0.5) {
            bytes.truncate(at);
        } else {
            bytes[at] ^= 1 << rng.random_range(0..8);
        }
        std::fs::write(&last, bytes).unwrap();
        match open(&home) {
            Ok(store) => {
                assert_whole(&store).await;
                cut += 1;
            }
            Err(Error::Corrupt(why)) => {
                assert!(
                    why.contains(last.to_str().unwrap()) && why.contains("offset"),
                    "{why}"
                );
                refused += 1;
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    assert!(
        cut > 0 && refused > 0,
        "both happen: {cut} cut, {refused} refused"
    );
}
