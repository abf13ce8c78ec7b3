//! Power loss: everything that was not synced may be gone, in part or whole. What was acknowledged
//! must be there, and a store that omits a sync must be detected.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use common::{disk::MemoryDisk, *};
use futures::StreamExt;
use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng};
use store::{
    Durability, Freshness, Plain, Revision, Store, WatchItem,
    embedded::{Config, Embedded},
};

/// Small files, so that segments and snapshots change often.
fn config() -> Config {
    Config {
        segment_bytes: 4 << 10,
        reserve_bytes: 1 << 10,
        min_log_bytes: 16 << 10,
        snapshot_rest: Duration::ZERO,
        high_water_step: 7,
        ..Config::default()
    }
}

/// What clients know of the store, over all boots.
#[derive(Default)]
struct Known {
    /// Acknowledged and synced: the newest revision and value by key.
    acknowledged: BTreeMap<String, (Revision, String)>,
    /// Every attempted write.
    attempted: BTreeSet<(String, String)>,
    /// The newest revision that a client has seen, in a response or a watch.
    shown: Revision,
}

async fn writer(store: Arc<Embedded<Plain>>, known: Arc<Mutex<Known>>, id: usize, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    for n in 0.. {
        let relaxed = rng.random_bool(0.3);
        let kind = if relaxed { "lease" } else { "pod" };
        let key = format!("/{kind}/{id}/{}", rng.random_range(0..4));
        let value = format!("{seed}-{n}-{}", "x".repeat(rng.random_range(0..600)));
        let pair = format!("{key}/pair");
        known.lock().attempted.insert((key.clone(), value.clone()));
        let durability = if relaxed {
            Durability::Relaxed
        } else {
            Durability::Synced
        };
        let ops = vec![put(&key, &value), put(&pair, &value)];
        let Ok(committed) = store.commit(ops, durability).await else {
            return;
        };
        let mut known = known.lock();
        known.shown = known.shown.max(committed.revision);
        if !relaxed {
            known.acknowledged.insert(key, (committed.revision, value));
        }
    }
}

async fn watcher(store: Arc<Embedded<Plain>>, known: Arc<Mutex<Known>>) {
    let start = store.revision().await.unwrap();
    let mut watch = store.watch(Bytes::new(), start).await.unwrap();
    while let Some(Ok(item)) = watch.next().await {
        let WatchItem::Events { revision, .. } = item else {
            continue;
        };
        let mut known = known.lock();
        known.shown = known.shown.max(revision);
    }
}

/// One boot: writes until power is lost, then checks the store.
async fn live(disk: &MemoryDisk, known: &Arc<Mutex<Known>>, seed: u64) -> Result<(), String> {
    let mut rng = StdRng::seed_from_u64(seed);
    let store = config()
        .open_on(Arc::new(disk.restarted()), Plain)
        .map_err(|error| format!("does not open: {error}"))?;
    // Nothing else runs during the check.
    let mut looked_at = std::mem::take(&mut *known.lock());
    let verified = verify(&store, &mut looked_at).await;
    *known.lock() = looked_at;
    verified?;
    disk.set_fuse(rng.random_range(5..300));
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(watcher(store.clone(), known.clone()));
    for id in 0..3 {
        tasks.spawn(writer(store.clone(), known.clone(), id, rng.random()));
    }
    // The writers end when the store fails, the watcher when it is closed.
    while tasks.len() > 1 {
        tasks.join_next().await;
    }
    store.close();
    tasks.shutdown().await;
    disk.cut_power();
    Ok(())
}

async fn verify(store: &Embedded<Plain>, known: &mut Known) -> Result<(), String> {
    let revision = store.revision().await.unwrap();
    if revision < known.shown {
        return Err(format!(
            "at revision {revision}, but {} was shown",
            known.shown
        ));
    }
    known.shown = revision;
    for (key, (acknowledged, value)) in &known.acknowledged {
        let found = store
            .get(&Bytes::from(key.clone()), Freshness::Newest)
            .await
            .unwrap()
            .1;
        let found = found.ok_or(format!("{key} of revision {acknowledged} is gone"))?;
        if found.mod_revision < *acknowledged {
            return Err(format!(
                "{key} is at {}, not {acknowledged}",
                found.mod_revision
            ));
        }
        if found.mod_revision == *acknowledged && found.object[..] != *value.as_bytes() {
            return Err(format!(
                "{key} has another value at revision {acknowledged}"
            ));
        }
    }
    let listed = store.list(list_request("/")).await.unwrap();
    let by_key: BTreeMap<_, _> = listed
        .entries
        .iter()
        .map(|entry| (&entry.key[..], entry))
        .collect();
    for entry in &listed.entries {
        let key = String::from_utf8(entry.key.to_vec()).unwrap();
        let value = String::from_utf8(entry.object.to_vec()).unwrap();
        let Some(first) = key.strip_suffix("/pair") else {
            continue;
        };
        let other = by_key
            .get(first.as_bytes())
            .map(|other| (other.mod_revision, &other.object));
        if other != Some((entry.mod_revision, &entry.object)) {
            return Err(format!("half a commit is there at {key}"));
        }
        if !known.attempted.contains(&(first.to_owned(), value)) {
            return Err(format!("the value at {key} was never written"));
        }
    }
    Ok(())
}

async fn lives(seeds: std::ops::Range<u64>, lie: Option<u32>) -> Vec<String> {
    let mut failures = Vec::new();
    for seed in seeds {
        let disk = MemoryDisk::new(seed);
        disk.lie_once_in(lie);
        let known = Arc::new(Mutex::new(Known::default()));
        for life in 0..5 {
            if let Err(failure) = live(&disk, &known, seed * 100 + life).await {
                failures.push(format!("seed {seed}, life {life}: {failure}"));
                break;
            }
        }
    }
    failures
}

#[tokio::test(flavor = "multi_thread")]
async fn no_power_loss_loses_acknowledged_writes() {
    assert_eq!(lives(0..common::rounds(), None).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_omits_a_sync_is_detected() {
    let failures = lives(0..20, Some(10)).await;
    assert!(!failures.is_empty(), "the mutation survived");
}
