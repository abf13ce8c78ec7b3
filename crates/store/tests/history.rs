//! Recorded histories of many concurrent clients: linearizable, watches in the order of revisions,
//! nothing missed across reconnects; with restarts and lost members in between.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::sync::Arc;

use bytes::Bytes;
use common::{disk::MemoryDisk, etcd::Cluster, history::Arena, *};
use store::{
    Plain,
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
async fn one_order_explains_what_clients_of_the_embedded_store_see() {
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
async fn one_order_explains_what_clients_of_etcd_see() {
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
                // Two lost at once would be one too many.
                cluster.wait_for(victim).await;
            }
            cluster
        }
    };
    arena.run(6, 10 * rounds(), losses).await;
}
