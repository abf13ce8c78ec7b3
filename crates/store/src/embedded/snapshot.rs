//! Snapshot files: the live keys at one revision, in order. Backups have the same format.

use std::io;

use super::{
    disk::Disk,
    frame::{Buffer, FILE_HEADER, FRAME_HEADER, FileHeader, FileKind, FrameHeader},
    record::{self, Marks, SnapshotFrame},
};
use crate::{Error, Revision, memory::Saved};

/// Entries are grouped into frames of about this length.
const FRAME_BYTES: usize = 256 << 10;
/// The bytes between two syncs: a large amount of dirty data would delay syncs of the log.
const SYNC_BYTES: u64 = 4 << 20;

/// The file name of the snapshot that covers all segments before `number`.
pub(super) fn snapshot_name(number: u64) -> String {
    format!("snapshot-{number:016x}")
}

/// Writes a snapshot under a temporary name and renames it, so that only complete ones are ever
/// found.
pub(super) fn write(
    disk: &dyn Disk,
    name: &str,
    number: u64,
    revision: Revision,
    marks: &Marks,
    entries: impl Iterator<Item = Saved>,
) -> io::Result<u64> {
    let temporary = format!("{name}.tmp");
    let written =
        write_temporary(disk, &temporary, number, revision, marks, entries).and_then(|length| {
            disk.rename(&temporary, name)?;
            disk.sync()?;
            Ok(length)
        });
    if written.is_err() {
        // If this fails, the next start removes it.
        let _ = disk.remove(&temporary);
    }
    written
}

fn write_temporary(
    disk: &dyn Disk,
    temporary: &str,
    number: u64,
    revision: Revision,
    marks: &Marks,
    entries: impl Iterator<Item = Saved>,
) -> io::Result<u64> {
    let header = FileHeader::new(FileKind::Snapshot, number, disk.block());
    let block = header.block as usize;
    let mut file = disk.create_log(temporary)?;
    let mut head = header.encode().to_vec();
    head.resize(header.first(), 0);
    file.write_all_at(&head, 0)?;
    let (mut end, mut synced) = (head.len() as u64, 0);
    let mut put = |frame: &mut Buffer| {
        let bytes = frame.seal(header.salt, end, 0, block);
        file.write_all_at(bytes, end)?;
        end += bytes.len() as u64;
        if end - synced >= SYNC_BYTES {
            file.sync()?;
            synced = end;
        }
        frame.begin();
        io::Result::Ok(())
    };
    let mut frame = Buffer::new();
    record::put_head(&mut frame, revision, marks);
    put(&mut frame)?;
    let mut count = 0;
    record::put_entries(&mut frame);
    for saved in entries {
        record::put_saved(&mut frame, &saved);
        count += 1;
        if frame.len() >= FRAME_BYTES {
            put(&mut frame)?;
            record::put_entries(&mut frame);
        }
    }
    put(&mut frame)?;
    record::put_end(&mut frame, count);
    put(&mut frame)?;
    file.sync()?;
    Ok(end)
}

/// Reads a snapshot; `take` gets each entry. Returns its revision and marks.
pub(super) fn read(
    disk: &dyn Disk,
    name: &str,
    mut take: impl FnMut(Saved) -> Result<(), String>,
) -> Result<(FileHeader, Revision, Marks), Error> {
    let corrupt = |offset: u64, why: &str| {
        let path = disk.path(name);
        Error::Corrupt(format!("{} at offset {offset}: {why}", path.display()))
    };
    let failed = |error: io::Error| {
        Error::Unavailable(format!(
            "cannot read {}: {error}",
            disk.path(name).display()
        ))
    };
    let file = disk.open(name).map_err(failed)?;
    let length = file.size().map_err(failed)?;
    let mut head = [0; FILE_HEADER];
    if length >= FILE_HEADER as u64 {
        file.read_exact_at(&mut head, 0).map_err(failed)?;
    }
    let header = FileHeader::decode(FileKind::Snapshot, &head)
        .ok_or_else(|| corrupt(0, "not a snapshot, or its header is damaged"))?;
    let (mut offset, mut count, mut moment) = (header.first() as u64, 0, None);
    loop {
        let damaged = || corrupt(offset, "a record is damaged or missing");
        let room = length.saturating_sub(offset) as usize;
        if room < FRAME_HEADER {
            return Err(damaged());
        }
        let mut bytes = [0; FRAME_HEADER];
        file.read_exact_at(&mut bytes, offset).map_err(failed)?;
        let frame = FrameHeader::decode(bytes).ok_or_else(damaged)?;
        if frame.len() > room - FRAME_HEADER {
            return Err(damaged());
        }
        let mut payload = vec![0; frame.len()];
        file.read_exact_at(&mut payload, offset + FRAME_HEADER as u64)
            .map_err(failed)?;
        if !frame.matches(header.salt, offset, &payload) {
            return Err(damaged());
        }
        match (
            record::read_snapshot_frame(&payload).ok_or_else(damaged)?,
            moment,
        ) {
            (SnapshotFrame::Head { revision, marks }, None) => moment = Some((revision, marks)),
            (SnapshotFrame::Entries(entries), Some(_)) => {
                for saved in entries {
                    take(saved).map_err(|why| corrupt(offset, &why))?;
                    count += 1;
                }
            }
            (SnapshotFrame::End { entries }, Some((revision, marks))) if entries == count => {
                return Ok((header, revision, marks));
            }
            _ => return Err(damaged()),
        }
        offset = header.after(offset as usize, frame) as u64;
    }
}
