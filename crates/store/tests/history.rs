//! Recorded histories of many concurrent clients: linearizable, watches in revision order without
//! gaps across reconnects; with restarts and lost members in between.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use bytes::Bytes;
use common::{disk::MemoryDisk, etcd::Cluster, history::Arena, *};
use parking_lot::Mutex;
use store::{
    Committed, Durability, Entry, Error, Freshness, Key, ListRequest, Listed, Op, Plain, Revision,
    Store, Watch,
    embedded::{Config, Embedded},
    etcd,
};

fn open(disk: &MemoryDisk) -> Arc<Embedded<Plain>> {
    let config = Config {
        segment_bytes: 16 << 10,
        reserve_bytes: 4 << 10,
        min_log_bytes: 1 << 30,
        watch_queue: 4,
        ..Config::default()
    };
    config.open_on(Arc::new(disk.clone()), Plain).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn histories_of_the_embedded_store_are_linearizable() {
    let disk = MemoryDisk::new(1);
    let store = open(&disk);
    let arena = Arena::new(store.clone());
    let restarts = {
        let arena = arena.clone();
        async move {
            let mut store = store;
            while !arena.is_done() {
                arena.more_calls(200).await;
                store.close();
                store = open(&disk);
                arena.replace(store.clone());
            }
        }
    };
    arena.run(8, 20 * rounds(), restarts).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn histories_of_etcd_are_linearizable() {
    let mut cluster = Cluster::start(3);
    let config = etcd::Config {
        root: Bytes::from_static(b"/"),
        ..etcd::Config::default()
    };
    let store = cluster.connect(config).await;
    let arena = Arena::new(store);
    let losses = {
        let arena = arena.clone();
        async move {
            for victim in (0..3).cycle() {
                arena.more_calls(100).await;
                if arena.is_done() {
                    break;
                }
                cluster.kill(victim);
                arena.more_calls(100).await;
                cluster.spawn(victim);
                // Losing two at once would lose the quorum.
                cluster.wait_for(victim).await;
            }
            cluster
        }
    };
    arena.run(6, 10 * rounds(), losses).await;
}

type Answer = (Revision, Option<Entry<Bytes>>);

/// A store that sometimes repeats the result of an earlier read.
struct Stale {
    store: Arc<Embedded<Plain>>,
    reads: AtomicU64,
    answers: Mutex<HashMap<Key, Answer>>,
}

#[async_trait]
impl Store<Plain> for Stale {
    async fn get(&self, key: &Key, freshness: Freshness) -> Result<Answer, Error> {
        let is_stale = self.reads.fetch_add(1, Ordering::Relaxed) % 20 == 19;
        let old = self.answers.lock().get(key).cloned();
        if let Some(old) = old.filter(|_| is_stale) {
            return Ok(old);
        }
        let answer = self.store.get(key, freshness).await?;
        self.answers.lock().insert(key.clone(), answer.clone());
        Ok(answer)
    }

    async fn list(&self, request: ListRequest) -> Result<Listed<Bytes>, Error> {
        self.store.list(request).await
    }

    async fn commit(
        &self,
        ops: Vec<Op<Bytes>>,
        durability: Durability,
    ) -> Result<Committed<Bytes>, Error> {
        self.store.commit(ops, durability).await
    }

    async fn watch(&self, prefix: Key, after: Revision) -> Result<Watch<Bytes>, Error> {
        self.store.watch(prefix, after).await
    }

    async fn revision(&self) -> Result<Revision, Error> {
        self.store.revision().await
    }

    async fn compact(&self, revision: Revision) -> Result<(), Error> {
        self.store.compact(revision).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[should_panic(expected = "was heard")]
async fn a_store_with_stale_reads_is_detected() {
    let store = open(&MemoryDisk::new(1));
    let stale = Stale {
        store,
        reads: AtomicU64::new(0),
        answers: Mutex::default(),
    };
    Arena::new(Arc::new(stale)).run(8, 400, async {}).await;
}
