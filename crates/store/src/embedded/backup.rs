//! Backups: one file in the form of a snapshot, made while the store runs, and the way back.

use std::path::Path;

use super::{
    disk::{Directory, Disk},
    record::Marks,
    snapshot::{self, snapshot_name},
};
use crate::{Codec, Error, Revision, memory::State};

/// What a restore did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestoreReport {
    /// The newest revision in the backup.
    pub backup_revision: Revision,
    /// The revision that the restored store starts at.
    pub revision: Revision,
    /// How many keys.
    pub entries: u64,
}

/// Writes a state to a file.
pub fn write<C: Codec>(
    file: &Path,
    codec: &C,
    state: &State<C::Object>,
) -> Result<Revision, Error> {
    let (directory, name) = split(file)?;
    let marks = Marks {
        floor: state.revision,
        ..Marks::default()
    };
    snapshot::write(
        &directory,
        &name,
        0,
        state.revision,
        &marks,
        state.saved(codec),
    )
    .map_err(|error| Error::Unavailable(format!("{}: {error}", file.display())))?;
    Ok(state.revision)
}

/// Makes a new store of a backup, in a directory that has none. Clients may have seen revisions that
/// the backup does not have: the store starts `bump` revisions later, and watches from before start over.
pub fn restore(file: &Path, into: &Path, bump: u64) -> Result<RestoreReport, Error> {
    let failed = |error: std::io::Error| Error::Unavailable(format!("{}: {error}", into.display()));
    let target = Directory::open(into).map_err(failed)?;
    let _lock = target.lock().map_err(failed)?;
    let is_store = |name: &String| name.starts_with("log-") || name.starts_with("snapshot-");
    if target.list().map_err(failed)?.iter().any(is_store) {
        let message = format!("{} already holds a store", into.display());
        return Err(Error::Invalid(message));
    }
    let (source, name) = split(file)?;
    let mut saved = Vec::new();
    let (_, backup_revision, _) = snapshot::read(&source, &name, |entry| {
        saved.push(entry);
        Ok(())
    })?;
    let revision = backup_revision + bump;
    let entries = saved.len() as u64;
    let marks = Marks {
        floor: revision,
        ..Marks::default()
    };
    snapshot::write(
        &target,
        &snapshot_name(1),
        1,
        revision,
        &marks,
        saved.into_iter(),
    )
    .map_err(failed)?;
    Ok(RestoreReport {
        backup_revision,
        revision,
        entries,
    })
}

fn split(file: &Path) -> Result<(Directory, String), Error> {
    let invalid = || Error::Invalid(format!("{} names no file", file.display()));
    let name = file
        .file_name()
        .and_then(|name| name.to_str())
        .ok_or_else(invalid)?;
    let parent = match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    Ok((Directory::existing(parent), name.to_owned()))
}
