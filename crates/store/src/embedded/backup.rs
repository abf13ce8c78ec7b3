//! Backups and restores: one file in the snapshot format, written while the store runs.

use std::path::Path;

use super::{
    disk::{Directory, Disk},
    manifest::{Manifest, Synced},
    record::Marks,
    snapshot::{self, snapshot_name},
};
use crate::{
    Codec, Error, Revision,
    memory::{Saved, State},
};

/// The number of a new store's snapshot. Versions without a manifest used 1.
const FIRST: u64 = 2;

/// The result of a restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestoreReport {
    /// The newest revision in the backup.
    pub backup_revision: Revision,
    /// The revision that the restored store starts at.
    pub revision: Revision,
    /// The number of keys.
    pub entries: u64,
}

/// Writes a state to a file.
pub(super) fn write<C: Codec>(
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

/// Creates a store from a backup, in a directory without one. Clients may have seen revisions that
/// the backup lacks: the store starts `bump` revisions later, and watches from earlier revisions
/// must start over.
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

/// Creates a store from entries in key order, in a directory without one. Watches from before
/// `revision` must start over.
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
    // The manifest is written first: a store that a crash left incomplete is refused, and may be
    // created again.
    let mut manifest = Manifest::create(&target).map_err(failed)?;
    let synced = Synced {
        revision,
        segment: FIRST,
    };
    manifest.write(&target, synced).map_err(failed)?;
    let (name, entries) = (snapshot_name(FIRST), entries.into_iter());
    let written = snapshot::write(&target, &name, FIRST, revision, &marks, entries);
    written.map(drop).map_err(failed)
}

/// Whether a directory contains a store.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Plain, embedded::Embedded};

    #[test]
    fn a_new_store_that_loses_its_snapshot_or_its_manifest_is_refused() {
        for (lost, expected) in [
            ("manifest", "manifest is missing"),
            ("snapshot-0000000000000002", "is missing"),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let into = directory.path().join("store");
            create(&into, 7, Vec::new()).unwrap();
            std::fs::remove_file(into.join(lost)).unwrap();
            let refused = Embedded::open(&into, Plain).map(drop).unwrap_err();
            assert!(refused.to_string().contains(expected), "{refused}");
        }
        // A store that a crash left incomplete may be created again.
        let directory = tempfile::tempdir().unwrap();
        create(directory.path(), 9, Vec::new()).unwrap();
        std::fs::remove_file(directory.path().join("snapshot-0000000000000002")).unwrap();
        create(directory.path(), 7, Vec::new()).unwrap();
        let store = Embedded::open(directory.path(), Plain).unwrap();
        assert_eq!(store.published.revision(), 7);
    }

    #[test]
    fn a_store_that_was_restored_without_a_manifest_by_an_earlier_version_opens() {
        let directory = tempfile::tempdir().unwrap();
        let disk = Directory::open(directory.path()).unwrap();
        let (name, marks) = (snapshot_name(1), Marks::default());
        snapshot::write(&disk, &name, 1, 7, &marks, std::iter::empty()).unwrap();
        let store = Embedded::open(directory.path(), Plain).unwrap();
        assert_eq!(store.published.revision(), 7);
        store.close();
        // From now on it has a manifest.
        std::fs::remove_file(directory.path().join(name)).unwrap();
        let refused = Embedded::open(directory.path(), Plain).map(drop);
        assert!(matches!(refused, Err(Error::Lost { .. })), "{refused:?}");
    }
}
