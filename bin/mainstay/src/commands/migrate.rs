//! `mainstay migrate`: moves the objects of a stopped cluster from the embedded store to etcd, or
//! back.

use anyhow::Result;
use cluster::{Options, StoreKind, migrate, settings, storage};

use crate::cli::Migrate;

/// Moves them, and prints the next steps.
pub(super) fn run(flags: Migrate) -> Result<()> {
    let options = Options {
        data_dir: flags.data_dir,
        store: Some(StoreKind::Etcd),
        etcd_endpoints: Some(flags.etcd_endpoints),
        etcd_cafile: flags.etcd_cafile,
        etcd_certfile: flags.etcd_certfile,
        etcd_keyfile: flags.etcd_keyfile,
        ..Options::default()
    };
    let etcd = storage::Config::resolve(&options)?;
    let data_dir = settings::data_dir(&options)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    if flags.to_etcd {
        let (moved, aside) = runtime.block_on(migrate::to_etcd(&data_dir, &etcd))?;
        println!(
            "Moved {} objects to etcd; the cluster continues after revision {}.",
            moved.objects, moved.revision
        );
        println!(
            "Start it with --store etcd and the same flags of etcd. Further servers join with the token of"
        );
        println!(
            "`mainstay token server`. The previous content was moved to {}",
            aside.display()
        );
        return Ok(());
    }
    let moved = runtime.block_on(migrate::to_embedded(&data_dir, &etcd))?;
    println!(
        "Moved {} objects to {}; the cluster continues after revision {}.",
        moved.objects,
        data_dir.display(),
        moved.revision
    );
    println!("Start it without --store etcd. That etcd no longer serves a cluster.");
    Ok(())
}
