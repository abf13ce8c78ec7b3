//! Backups: one file in the form of a snapshot, made while the store runs, and the way back.

use std::path::Path;

use super::{
    disk::{Directory, Disk},
    record::Marks,
    snapshot::{self, snapshot_name},
};
use crate::{
    Codec, Error, Revision,
    memory::{Saved, State},
};

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
    let (source, name) = split(file)?;
    let mut saved = Vec::new();
    let (_, backup_revision, _) = snapshot::read(&source, &name, |entry| {
        saved.push(entry);
        Ok(())
    })?;
    let (revision, entries) = (backup_revision + bump, saved.len() as u64);
    create(into, revision, saved)?;
    Ok(RestoreReport {
        backup_revision,
        revision,
        entries,
    })
}

/// Makes a new store of entries in the order of their keys, in a directory that has none. Watches from before
/// `revision` start over.
pub(crate) fn create(into: &Path, revision: Revision, entries: Vec<Saved>) -> Result<(), Error> {
    let failed = |error: std::io::Error| Error::Unavailable(format!("{}: {error}", into.display()));
    let target = Directory::open(into).map_err(failed)?;
    let _lock = target.lock().map_err(failed)?;
    if is_store(&target.list().map_err(failed)?) {
        let message = format!("{} already holds a store", into.display());
        return Err(Error::Invalid(message));
    }
    let marks = Marks {
        floor: revision,
        ..Marks::default()
    };
    let (name, entries) = (snapshot_name(1), entries.into_iter());
    let written = snapshot::write(&target, &name, 1, revision, &marks, entries);
    written.map(drop).map_err(failed)
}

/// Whether there is a store in a directory.
pub(crate) fn holds_store(directory: &Path) -> Result<bool, Error> {
    let names = match Directory::existing(directory).list() {
        Ok(names) => names,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => {
            let message = format!("{}: {error}", directory.display());
            return Err(Error::Unavailable(message));
        }
    };
    Ok(is_store(&names))
}

fn is_store(names: &[String]) -> bool {
    let mut names = names.iter();
    names.any(|name| name.starts_with("log-") || name.starts_with("snapshot-"))
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
