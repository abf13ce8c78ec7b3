//! The contents of frames: batches of commits in the log, entries in snapshots.

use bytes::Bytes;

use super::frame::Buffer;
use crate::{
    Key, Revision,
    memory::{Millis, Saved},
};

const PUT: u8 = 1;
const DELETE: u8 = 2;

const SNAPSHOT_HEAD: u8 = b'H';
const SNAPSHOT_ENTRIES: u8 = b'E';
const SNAPSHOT_END: u8 = b'F';

/// What each batch of the log records beside its commits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Marks {
    /// No revision above this one was visible without being synced. After an unclean stop the next
    /// revision is above it.
    pub high_water: Revision,
    /// Watches from before this revision are rejected.
    pub floor: Revision,
    /// When the batch was written.
    pub time: Millis,
}

/// The stored form of a change of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// A new value.
    Put {
        /// The key.
        key: Key,
        /// When the key expires; 0 for never.
        expires: Millis,
        /// The value.
        value: Bytes,
    },
    /// A deleted key.
    Delete {
        /// The key.
        key: Key,
    },
}

/// The stored form of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Commit {
    /// Its revision.
    pub revision: Revision,
    /// Its changes, never empty.
    pub changes: Vec<Change>,
}

/// A frame of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SnapshotFrame {
    /// The first frame: the snapshot's revision.
    Head {
        /// The newest revision in it.
        revision: Revision,
        /// The log's marks at that revision.
        marks: Marks,
    },
    /// Some entries, in key order.
    Entries(Vec<Saved>),
    /// The last frame: the number of entries.
    End {
        /// The count.
        entries: u64,
    },
}

/// The length of the marks at the start of a batch.
pub(super) const MARKS: usize = 24;

/// The encoded marks.
pub(super) fn marks(marks: &Marks) -> [u8; MARKS] {
    let mut bytes = [0; MARKS];
    bytes[..8].copy_from_slice(&marks.high_water.to_le_bytes());
    bytes[8..16].copy_from_slice(&marks.floor.to_le_bytes());
    bytes[16..].copy_from_slice(&marks.time.to_le_bytes());
    bytes
}

/// Starts a commit of this many changes in a batch.
pub(super) fn put_commit(out: &mut Buffer, revision: Revision, changes: usize) {
    let out = out.room(12);
    put_u64(out, revision);
    put_u32(out, changes as u32);
}

/// Adds a put to a commit.
pub(super) fn put_put(out: &mut Buffer, key: &[u8], expires: Millis, value: &[u8]) {
    let out = out.room(17 + key.len() + value.len());
    out.push(PUT);
    put_bytes(out, key);
    put_u64(out, expires as u64);
    put_bytes(out, value);
}

/// Adds a delete to a commit.
pub(super) fn put_delete(out: &mut Buffer, key: &[u8]) {
    let out = out.room(5 + key.len());
    out.push(DELETE);
    put_bytes(out, key);
}

/// Decodes a batch. `None` if the bytes are invalid.
pub(super) fn read_batch(payload: &[u8]) -> Option<(Marks, Vec<Commit>)> {
    let mut input = Input(payload);
    let marks = input.marks()?;
    let mut commits = Vec::new();
    while !input.0.is_empty() {
        let revision = input.u64()?;
        let count = input.u32()?;
        let changes = (0..count).map(|_| input.change()).collect::<Option<_>>()?;
        commits.push(Commit { revision, changes });
    }
    Some((marks, commits))
}

/// Writes a snapshot's first frame.
pub(super) fn put_head(out: &mut Buffer, revision: Revision, marks: &Marks) {
    let out = out.room(9 + MARKS);
    out.push(SNAPSHOT_HEAD);
    put_u64(out, revision);
    out.extend_from_slice(&self::marks(marks));
}

/// Starts a frame of entries.
pub(super) fn put_entries(out: &mut Buffer) {
    out.room(1).push(SNAPSHOT_ENTRIES);
}

/// Adds an entry to such a frame.
pub(super) fn put_saved(out: &mut Buffer, saved: &Saved) {
    let out = out.room(32 + saved.key.len() + saved.value.len());
    put_u64(out, saved.create_revision);
    put_u64(out, saved.mod_revision);
    put_u64(out, saved.expires as u64);
    put_bytes(out, &saved.key);
    put_bytes(out, &saved.value);
}

/// Writes a snapshot's last frame.
pub(super) fn put_end(out: &mut Buffer, entries: u64) {
    let out = out.room(9);
    out.push(SNAPSHOT_END);
    put_u64(out, entries);
}

/// Decodes a frame of a snapshot. `None` if the bytes are invalid.
pub(super) fn read_snapshot_frame(payload: &[u8]) -> Option<SnapshotFrame> {
    let mut input = Input(payload);
    let frame = match input.u8()? {
        SNAPSHOT_HEAD => SnapshotFrame::Head {
            revision: input.u64()?,
            marks: input.marks()?,
        },
        SNAPSHOT_ENTRIES => {
            let mut entries = Vec::new();
            while !input.0.is_empty() {
                entries.push(input.saved()?);
            }
            SnapshotFrame::Entries(entries)
        }
        SNAPSHOT_END => SnapshotFrame::End {
            entries: input.u64()?,
        },
        _ => return None,
    };
    input.0.is_empty().then_some(frame)
}

fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u32(out, bytes.len() as u32);
    out.extend_from_slice(bytes);
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    /// Copies: a slice would keep the whole frame in memory as long as one value lives.
    fn bytes(&mut self) -> Option<Bytes> {
        let length = self.u32()? as usize;
        Some(Bytes::copy_from_slice(self.take(length)?))
    }

    fn marks(&mut self) -> Option<Marks> {
        Some(Marks {
            high_water: self.u64()?,
            floor: self.u64()?,
            time: self.u64()? as Millis,
        })
    }

    fn change(&mut self) -> Option<Change> {
        let kind = self.u8()?;
        let key = self.bytes()?;
        match kind {
            PUT => {
                let expires = self.u64()? as Millis;
                Some(Change::Put {
                    key,
                    expires,
                    value: self.bytes()?,
                })
            }
            DELETE => Some(Change::Delete { key }),
            _ => None,
        }
    }

    fn saved(&mut self) -> Option<Saved> {
        let (create_revision, mod_revision) = (self.u64()?, self.u64()?);
        let expires = self.u64()? as Millis;
        let (key, value) = (self.bytes()?, self.bytes()?);
        Some(Saved {
            key,
            create_revision,
            mod_revision,
            expires,
            value,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_round_trips() {
        let marks = Marks {
            high_water: 9,
            floor: 2,
            time: -5,
        };
        let mut out = Buffer::new();
        out.room(MARKS).extend_from_slice(&super::marks(&marks));
        put_commit(&mut out, 7, 2);
        put_put(&mut out, b"a", 12, b"value");
        put_delete(&mut out, b"bb");
        let put = Change::Put {
            key: "a".into(),
            expires: 12,
            value: "value".into(),
        };
        let changes = vec![put, Change::Delete { key: "bb".into() }];
        assert_eq!(
            read_batch(out.payload()),
            Some((
                marks,
                vec![Commit {
                    revision: 7,
                    changes
                }]
            ))
        );
        let length = out.payload().len();
        assert_eq!(read_batch(&out.payload()[..length - 1]), None);
    }

    #[test]
    fn snapshot_frames_round_trip() {
        let saved = Saved {
            key: "k".into(),
            create_revision: 1,
            mod_revision: 2,
            expires: 0,
            value: "v".into(),
        };
        let mut out = Buffer::new();
        put_entries(&mut out);
        put_saved(&mut out, &saved);
        assert_eq!(
            read_snapshot_frame(out.payload()),
            Some(SnapshotFrame::Entries(vec![saved]))
        );
        let mut out = Buffer::new();
        put_end(&mut out, 3);
        assert_eq!(
            read_snapshot_frame(out.payload()),
            Some(SnapshotFrame::End { entries: 3 })
        );
        assert_eq!(read_snapshot_frame(b"?"), None);
    }
}
