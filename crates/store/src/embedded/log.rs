//! The append-only log: numbered segments with one writer.
//!
//! Space is reserved before a frame is written, so that a full disk rejects a batch and never tears
//! it. A segment is ended with an empty frame and synced before its successor gets its name: only
//! the last segment can have a torn tail. Segments that a snapshot made obsolete are reused: their
//! blocks are already allocated, so that a sync writes only data. Old frames in them have another
//! salt and are ignored.

use std::{collections::VecDeque, io, sync::Arc};

use super::{
    disk::{Disk, File, is_full},
    frame::{self, Buffer, FileHeader, FileKind},
};
use crate::{Error, Revision};

/// Why the log did not accept a batch.
#[derive(Debug)]
pub(super) enum Fault {
    /// Nothing was written: try again when there is space.
    Full(String),
    /// Nothing was written.
    Refused(String),
    /// The state on disk is unknown: no more writes.
    Broken(String),
}

/// The end of the log that is written to.
pub(super) struct Log {
    disk: Arc<dyn Disk>,
    segment_bytes: u64,
    reserve_bytes: u64,
    /// Bytes in ended segments that no snapshot covers yet.
    ended: u64,
    /// The number of the next segment.
    next: u64,
    /// Files for reuse.
    spares: VecDeque<String>,
    /// The current segment. `None` before the first write, so that a store can be opened and read
    /// on a full disk.
    open: Option<Segment>,
}

struct Segment {
    file: Box<dyn File>,
    header: FileHeader,
    /// The offset of the next frame.
    end: u64,
    /// Everything before this is synced.
    synced: u64,
    /// Everything before this is allocated.
    reserved: u64,
}

/// The file name of a segment.
pub(super) fn segment_name(number: u64) -> String {
    format!("log-{number:016x}")
}

/// The file name of an old segment for reuse.
pub(super) fn spare_name(number: u64) -> String {
    format!("spare-{number:016x}")
}

impl Log {
    /// A log that continues with segment `next`, after segments of `ended` bytes.
    pub(super) fn new(
        disk: Arc<dyn Disk>,
        next: u64,
        ended: u64,
        segment_bytes: u64,
        reserve_bytes: u64,
    ) -> Self {
        Self {
            disk,
            segment_bytes,
            reserve_bytes,
            ended,
            next,
            spares: VecDeque::new(),
            open: None,
        }
    }

    /// Bytes of log that no snapshot covers.
    pub(super) fn bytes(&self) -> u64 {
        self.ended + self.open.as_ref().map_or(0, |segment| segment.end)
    }

    /// The number of the last segment.
    pub(super) fn segment(&self) -> u64 {
        self.next - 1
    }

    /// The number of files for reuse.
    pub(super) fn spares(&self) -> usize {
        self.spares.len()
    }

    /// Whether nothing was written since it was opened.
    pub(super) fn is_untouched(&self) -> bool {
        self.open.is_none()
    }

    /// Reserves space for a frame of this length.
    pub(super) fn prepare(&mut self, length: usize) -> Result<(), Fault> {
        // The frame, and the one that ends the segment.
        let block = u64::from(self.disk.block());
        let length = (length as u64).next_multiple_of(block) + block;
        let is_full = |segment: &Segment| {
            segment.end > segment.header.first() as u64 && segment.end + length > self.segment_bytes
        };
        if self.open.as_ref().is_none_or(is_full) {
            self.rotate()?;
        }
        let Some(segment) = &mut self.open else {
            return Ok(());
        };
        let needed = segment.end + length;
        if needed > segment.reserved {
            let more = (needed - segment.reserved).next_multiple_of(self.reserve_bytes);
            let name = segment_name(segment.header.number);
            segment
                .file
                .reserve(segment.reserved, more)
                .map_err(|error| refused(&*self.disk, &name, "reserve space for", error))?;
            segment.reserved += more;
        }
        Ok(())
    }

    /// Writes a frame into reserved space; not durable before [`Log::sync`].
    pub(super) fn append(&mut self, frame: &mut Buffer) -> Result<(), Fault> {
        let Some(segment) = &mut self.open else {
            return Err(Fault::Refused("no space was prepared".into()));
        };
        let FileHeader { salt, block, .. } = segment.header;
        let frame = frame.seal(salt, segment.end, segment.synced, block as usize);
        segment
            .file
            .write_all_at(frame, segment.end)
            .map_err(|error| broken(&*self.disk, segment, "append to", error))?;
        segment.end += frame.len() as u64;
        Ok(())
    }

    /// Makes everything appended durable. Never retried after an error: the kernel may have dropped
    /// the dirty pages, and a second sync would succeed without having written them.
    pub(super) fn sync(&mut self) -> Result<(), Fault> {
        let Some(segment) = &mut self.open else {
            return Ok(());
        };
        segment
            .file
            .sync()
            .map_err(|error| broken(&*self.disk, segment, "sync", error))?;
        segment.synced = segment.end;
        Ok(())
    }

    /// Ends the current segment and starts the next.
    fn rotate(&mut self) -> Result<(), Fault> {
        let next = self.begin_segment()?;
        self.end()?;
        let name = segment_name(self.next);
        let named = self
            .disk
            .rename(&next.0, &name)
            .and_then(|()| self.disk.sync());
        named.map_err(|error| {
            let path = self.disk.path(&name);
            Fault::Broken(format!("cannot rename {}: {error}", path.display()))
        })?;
        self.open = Some(next.1);
        self.next += 1;
        Ok(())
    }

    /// Creates a segment under a temporary name, so that a half-made one is never part of the log:
    /// a reused file with a new header, or a new one.
    fn begin_segment(&mut self) -> Result<(String, Segment), Fault> {
        let header = FileHeader::new(FileKind::Log, self.next, self.disk.block());
        while let Some(spare) = self.spares.pop_front() {
            match write_over(&*self.disk, &spare, header) {
                Ok(segment) => return Ok((spare, segment)),
                Err(error) => {
                    tracing::warn!(%error, spare, "cannot reuse old log segment");
                    // If this fails, the next start removes it.
                    let _ = self.disk.remove(&spare);
                }
            }
        }
        let temporary = format!("{}.tmp", segment_name(self.next));
        match create(&*self.disk, &temporary, header, self.reserve_bytes) {
            Ok(segment) => Ok((temporary, segment)),
            Err(error) => {
                let _ = self.disk.remove(&temporary);
                Err(refused(&*self.disk, &temporary, "create", error))
            }
        }
    }

    /// Ends the current segment, durably. Returns the number of the next segment, and the bytes of
    /// all before it.
    pub(super) fn end(&mut self) -> Result<(u64, u64), Fault> {
        if self.open.is_some() {
            self.append(&mut Buffer::new())?;
            self.sync()?;
            self.ended += self.open.take().map_or(0, |segment| segment.end);
        }
        Ok((self.next, self.ended))
    }

    /// Ends the current segment, and frees its unused space.
    pub(super) fn close(&mut self) -> Result<(), Fault> {
        self.append(&mut Buffer::new())?;
        if let Some(segment) = &mut self.open {
            segment
                .file
                .cut(segment.end)
                .map_err(|error| broken(&*self.disk, segment, "cut", error))?;
        }
        self.open = None;
        Ok(())
    }

    /// A snapshot now covers `bytes` of the ended segments, and left these files for reuse.
    pub(super) fn forget(&mut self, bytes: u64, spares: Vec<String>) {
        self.ended = self.ended.saturating_sub(bytes);
        self.spares.extend(spares);
    }
}

fn create(disk: &dyn Disk, name: &str, header: FileHeader, reserve: u64) -> io::Result<Segment> {
    let mut file = disk.create_log(name)?;
    file.reserve(0, reserve)?;
    start(file, header, reserve)
}

fn write_over(disk: &dyn Disk, name: &str, header: FileHeader) -> io::Result<Segment> {
    let file = disk.open_log(name)?;
    let size = file.size()? / u64::from(header.block) * u64::from(header.block);
    start(file, header, size)
}

fn start(mut file: Box<dyn File>, header: FileHeader, reserved: u64) -> io::Result<Segment> {
    let mut first = header.encode().to_vec();
    first.resize(header.first(), 0);
    file.write_all_at(&first, 0)?;
    file.sync()?;
    let end = first.len() as u64;
    Ok(Segment {
        file,
        header,
        end,
        synced: end,
        reserved,
    })
}

fn broken(disk: &dyn Disk, segment: &Segment, step: &str, error: io::Error) -> Fault {
    let path = disk.path(&segment_name(segment.header.number));
    Fault::Broken(format!("cannot {step} {}: {error}", path.display()))
}

fn refused(disk: &dyn Disk, name: &str, step: &str, error: io::Error) -> Fault {
    let message = format!("cannot {step} {}: {error}", disk.path(name).display());
    if is_full(&error) {
        Fault::Full(message)
    } else {
        Fault::Refused(message)
    }
}

/// Reads a segment: `take` gets each batch. A torn tail of the last segment is truncated. Returns
/// the segment's length.
pub(super) fn replay(
    disk: &dyn Disk,
    number: u64,
    is_last: bool,
    mut take: impl FnMut(&[u8]) -> Result<Revision, String>,
) -> Result<u64, Error> {
    let name = segment_name(number);
    let corrupt = |offset: usize, why: &str| {
        let path = disk.path(&name);
        Error::Corrupt(format!("{} at offset {offset}: {why}", path.display()))
    };
    let failed = |error: io::Error| {
        Error::Unavailable(format!(
            "cannot read {}: {error}",
            disk.path(&name).display()
        ))
    };
    let mut file = disk.open(&name).map_err(failed)?;
    let mut bytes = vec![0; file.size().map_err(failed)? as usize];
    file.read_exact_at(&mut bytes, 0).map_err(failed)?;
    let header = bytes
        .first_chunk()
        .and_then(|head| FileHeader::decode(FileKind::Log, head))
        .filter(|header| header.number == number)
        .ok_or_else(|| corrupt(0, "the header is damaged"))?;
    let (mut offset, mut ended, mut revision) = (header.first(), false, None);
    while !ended && let Some((frame, payload)) = frame::read(&bytes, header.salt, offset) {
        ended = payload.is_empty();
        if !ended {
            revision = Some(take(payload).map_err(|why| corrupt(offset, &why))?);
        }
        offset = header.after(offset, frame);
    }
    if !ended && offset < bytes.len() {
        if !is_last || frame::synced_past(&bytes, &header, offset) {
            return Err(corrupt(offset, "a record that had been synced is damaged"));
        }
        // A torn tail, reserved space, or frames from before the file was reused.
        let torn = bytes[offset..].iter().any(|byte| *byte != 0);
        let file = disk.path(&name);
        let (file, cut) = (file.display(), bytes.len() - offset);
        if torn {
            tracing::warn!(%file, offset, cut, revision, "unclean stop: truncated a record that was never acknowledged; the log ends at this revision");
        } else {
            tracing::info!(%file, offset, revision, "unclean stop: the log ends at this revision");
        }
    }
    if is_last {
        // Also syncs what the last process wrote without syncing, before anything builds on it.
        file.cut(offset as u64).map_err(failed)?;
    }
    Ok(offset as u64)
}
