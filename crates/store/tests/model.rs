//! The embedded engine compared with the model, including restarts and snapshots.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::sync::Arc;

use common::{
    disk::MemoryDisk,
    model::{Model, Step, steps},
};
use proptest::prelude::*;
use store::{
    Plain,
    embedded::{Config, Embedded},
};

fn open(disk: &MemoryDisk) -> Arc<Embedded<Plain>> {
    let config = Config {
        segment_bytes: 1 << 10,
        reserve_bytes: 256,
        pages: 2,
        ..Config::default()
    };
    config.open_on(Arc::new(disk.clone()), Plain).unwrap()
}

async fn run(steps: Vec<Step>) {
    let disk = MemoryDisk::new(0);
    let mut store = open(&disk);
    let mut model = Model::new("/r/", 0);
    for step in &steps {
        match step {
            Step::Reopen => {
                store.close();
                store = open(&disk);
            }
            Step::Snapshot => store.snapshot().await.unwrap(),
            other => model.step(&*store, other).await,
        }
        if matches!(step, Step::Reopen) {
            model.forget_before(&*store).await;
        }
    }
    model.compare_watches(&*store).await;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10 * common::rounds() as u32))]

    #[test]
    fn the_store_agrees_with_the_model(steps in steps(40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(steps));
    }
}
