//! The manifest: records up to which revision the log has been synced, in a file of its own. A log
//! that was deleted or truncated cannot show that something is missing; the manifest can. It lags
//! behind the log by about a second and is exact after a clean shutdown, so that it never claims
//! more than exists. It is created before the first log file: a log without a manifest has lost
//! files.
//!
//! It has two slots that are written in turn, so that a torn write leaves the other one. Commits
//! are not rejected if it cannot be written: the older record is still true.

use super::{
    disk::{Disk, File},
    log::segment_name,
    snapshot::snapshot_name,
};
use crate::{Error, Revision};

/// Its file name.
pub(super) const NAME: &str = "manifest";

const MAGIC: [u8; 8] = *b"mainman1";
/// A slot has a sector of its own, since sectors are written atomically.
const SECTOR: u64 = 512;
const SLOT: usize = 8 + 8 + 8 + 8 + 4;

/// What is known to be durable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Synced {
    /// The newest revision.
    pub revision: Revision,
    /// Its log segment.
    pub segment: u64,
}

/// The open manifest.
pub(super) struct Manifest {
    file: Option<Box<dyn File>>,
    /// The number of writes; the newer slot has the higher number.
    sequence: u64,
    /// The recorded state.
    pub written: Synced,
}

impl Manifest {
    /// Opens the manifest of a directory and reads it.
    pub(super) fn open(disk: &dyn Disk) -> Result<Self, Error> {
        let failed = |error: std::io::Error| {
            Error::Unavailable(format!("{}: {error}", disk.path(NAME).display()))
        };
        let mut manifest = Self {
            file: None,
            sequence: 0,
            written: Synced::default(),
        };
        if !disk.list().map_err(failed)?.iter().any(|name| name == NAME) {
            return Ok(manifest);
        }
        let file = disk.open(NAME).map_err(failed)?;
        let length = file.size().map_err(failed)?;
        for slot in 0..2 {
            let offset = slot * SECTOR;
            if length < offset + SLOT as u64 {
                continue;
            }
            let mut bytes = [0; SLOT];
            file.read_exact_at(&mut bytes, offset).map_err(failed)?;
            if let Some((sequence, synced)) = decode(&bytes)
                && sequence >= manifest.sequence
            {
                (manifest.sequence, manifest.written) = (sequence, synced);
            }
        }
        manifest.file = Some(file);
        Ok(manifest)
    }

    /// An empty manifest, replacing an existing one.
    pub(super) fn create(disk: &dyn Disk) -> std::io::Result<Self> {
        let mut file = disk.create(NAME)?;
        file.write_all_at(&[0; 2 * SECTOR as usize], 0)?;
        file.sync()?;
        disk.sync()?;
        Ok(Self {
            file: Some(file),
            sequence: 0,
            written: Synced::default(),
        })
    }

    /// Whether the file exists.
    pub(super) fn exists(&self) -> bool {
        self.file.is_some()
    }

    /// Records that everything up to `synced` is durable.
    pub(super) fn write(&mut self, disk: &dyn Disk, synced: Synced) -> std::io::Result<()> {
        if synced.revision <= self.written.revision {
            return Ok(());
        }
        if self.file.is_none() {
            *self = Self::create(disk)?;
        }
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        let sequence = self.sequence + 1;
        file.write_all_at(&encode(sequence, synced), sequence % 2 * SECTOR)?;
        file.sync()?;
        (self.sequence, self.written) = (sequence, synced);
        Ok(())
    }
}

/// Compares the recovered revision with the recorded one.
pub(super) fn check(disk: &dyn Disk, written: Synced, found: Revision) -> Result<(), Error> {
    if found >= written.revision {
        return Ok(());
    }
    let names = disk.list().unwrap_or_default();
    let (segment, snapshot) = (
        segment_name(written.segment),
        snapshot_name(written.segment),
    );
    let what = if names.contains(&segment) {
        format!("{} was cut", disk.path(&segment).display())
    } else if names.contains(&snapshot) {
        format!(
            "the files after {} are missing",
            disk.path(&snapshot).display()
        )
    } else {
        format!("{} is missing", disk.path(&segment).display())
    };
    Err(Error::Lost {
        what,
        found,
        written: written.revision,
    })
}

fn encode(sequence: u64, synced: Synced) -> [u8; SLOT] {
    let mut bytes = [0; SLOT];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..16].copy_from_slice(&sequence.to_le_bytes());
    bytes[16..24].copy_from_slice(&synced.revision.to_le_bytes());
    bytes[24..32].copy_from_slice(&synced.segment.to_le_bytes());
    let sum = crc32fast::hash(&bytes[..32]);
    bytes[32..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8; SLOT]) -> Option<(u64, Synced)> {
    let number = |at: usize| {
        let mut eight = [0; 8];
        eight.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(eight)
    };
    let sum = crc32fast::hash(&bytes[..32]).to_le_bytes();
    (bytes[..8] == MAGIC && bytes[32..] == sum).then(|| {
        let synced = Synced {
            revision: number(16),
            segment: number(24),
        };
        (number(8), synced)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::disk::Directory;

    #[test]
    fn a_torn_slot_leaves_the_one_before() {
        let directory = tempfile::tempdir().unwrap();
        let disk = Directory::open(directory.path()).unwrap();
        let mut manifest = Manifest::open(&disk).unwrap();
        assert_eq!(manifest.written, Synced::default());
        let at = |revision| Synced {
            revision,
            segment: 1,
        };
        manifest.write(&disk, at(5)).unwrap();
        manifest.write(&disk, at(9)).unwrap();
        // Never backwards.
        manifest.write(&disk, at(7)).unwrap();
        assert_eq!(Manifest::open(&disk).unwrap().written, at(9));
        let path = directory.path().join(NAME);
        let mut bytes = std::fs::read(&path).unwrap();
        // The second write went to slot 0.
        bytes[20] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(Manifest::open(&disk).unwrap().written, at(5));
    }
}
