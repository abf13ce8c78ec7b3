//! `mainstay backup` and `mainstay restore`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use cluster::Options;

use crate::cli::{Backup, Restore};

fn data_dir(given: Option<PathBuf>) -> Result<PathBuf> {
    let options = Options {
        data_dir: given,
        ..Options::default()
    };
    Ok(cluster::settings::data_dir(&options)?)
}

/// The first line of a password file.
fn password(file: Option<&Path>) -> Result<Option<String>> {
    let Some(file) = file else { return Ok(None) };
    let text = std::fs::read_to_string(file);
    let text = text.with_context(|| format!("--password-file {}", file.display()))?;
    match text.lines().next().filter(|line| !line.is_empty()) {
        Some(line) => Ok(Some(line.to_owned())),
        None => bail!(
            "--password-file {}: its first line is empty",
            file.display()
        ),
    }
}

/// Writes all objects and keys to a file.
pub(super) fn backup(flags: Backup) -> Result<()> {
    let data_dir = data_dir(flags.data_dir)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let password = password(flags.password_file.as_deref())?;
    let written = cluster::backup::backup(&data_dir, &flags.file, password.as_deref());
    let revision = runtime.block_on(written)?;
    println!("Wrote revision {revision} to {}", flags.file.display());
    match password {
        Some(_) => println!("It is encrypted: it cannot be restored without the password."),
        None => println!(
            "It contains the cluster's keys: anyone who can read it can become cluster administrator."
        ),
    }
    Ok(())
}

/// Restores a backup.
pub(super) fn restore(flags: Restore) -> Result<()> {
    let data_dir = data_dir(flags.data_dir)?;
    let password = password(flags.password_file.as_deref())?;
    let restored =
        cluster::backup::restore(&data_dir, &flags.file, password.as_deref(), flags.force)?;
    println!(
        "Restored {} objects to {}; the cluster continues from revision {}",
        restored.objects,
        data_dir.display(),
        restored.revision
    );
    if !restored.has_keys {
        let keys = data_dir.join("pki");
        println!(
            "The backup contains no keys: copy the cluster's keys to {} before it starts.",
            keys.display()
        );
    }
    for aside in restored.set_aside {
        println!("The previous content was moved to {}", aside.display());
    }
    Ok(())
}
