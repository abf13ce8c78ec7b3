//! `mainstay backup` and `mainstay restore`.

use std::path::PathBuf;

use anyhow::Result;
use cluster::Options;

use crate::cli::{Backup, Restore};

fn data_dir(given: Option<PathBuf>) -> Result<PathBuf> {
    let options = Options {
        data_dir: given,
        ..Options::default()
    };
    Ok(cluster::settings::data_dir(&options)?)
}

/// Writes all objects to a file.
pub fn backup(flags: Backup) -> Result<()> {
    let data_dir = data_dir(flags.data_dir)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let revision = runtime.block_on(cluster::backup::backup(&data_dir, &flags.file))?;
    println!("Wrote revision {revision} to {}", flags.file.display());
    println!(
        "It holds the objects; keep {} as well.",
        data_dir.join("pki").display()
    );
    Ok(())
}

/// Brings a backup's objects back.
pub fn restore(flags: Restore) -> Result<()> {
    let data_dir = data_dir(flags.data_dir)?;
    let restored = cluster::backup::restore(&data_dir, &flags.file, flags.force)?;
    println!(
        "Restored {} objects to {}; the cluster goes on from revision {}",
        restored.objects,
        data_dir.display(),
        restored.revision
    );
    if let Some(aside) = restored.set_aside {
        println!("What was there before is in {}", aside.display());
    }
    Ok(())
}
