//! The append-only log: numbered segments, written by one owner.
//!
//! Space is reserved before a frame is begun, so that a full disk refuses a batch and never tears
//! one. A segment is cut to its length and synced before its successor gets a name: only the last
//! segment can have a torn tail.

use std::{io, sync::Arc};

use super::{
    disk::{Disk, File, is_full},
    frame::{self, FILE_HEADER, FileHeader, FileKind},
};
use crate::Error;

/// Why the log did not take a batch.
#[derive(Debug)]
pub enum Fault {
    /// Nothing was written, nothing is broken: try again when there is space.
    Full(String),
    /// Nothing was written, nothing is broken.
    Refused(String),
    /// Nobody knows what is on the disk now: no more writes.
    Broken(String),
}

/// The open end of the log.
pub struct Log {
    disk: Arc<dyn Disk>,
    segment_bytes: u64,
    reserve_bytes: u64,
    /// Bytes in ended segments that no snapshot covers yet.
    ended: u64,
    /// The number of the segment that comes next.
    next: u64,
    /// The segment that is being written. There is none before the first write, so that a store can
    /// be opened and read on a full disk.
    open: Option<Segment>,
}

struct Segment {
    file: Box<dyn File>,
    header: FileHeader,
    /// Where the next frame goes.
    end: u64,
    /// Everything before this is on the disk for good.
    synced: u64,
    /// Everything before this has its space.
    reserved: u64,
}

/// The file name of a segment.
pub fn segment_name(number: u64) -> String {
    format!("log-{number:016x}")
}

impl Log {
    /// A log that goes on with segment `next`, behind segments of `ended` bytes.
    pub fn new(
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
            open: None,
        }
    }

    /// Bytes of log that no snapshot covers.
    pub fn bytes(&self) -> u64 {
        self.ended + self.open.as_ref().map_or(0, |segment| segment.end)
    }

    /// Whether something was appended and not synced.
    pub fn is_dirty(&self) -> bool {
        self.open
            .as_ref()
            .is_some_and(|segment| segment.synced < segment.end)
    }

    /// Whether nothing was written since it was opened.
    pub fn is_untouched(&self) -> bool {
        self.open.is_none()
    }

    /// Makes sure that a frame with a payload of this length has its space.
    pub fn prepare(&mut self, payload: usize) -> Result<(), Fault> {
        let length = frame::frame_len(payload) as u64;
        let is_full = |segment: &Segment| {
            segment.end > FILE_HEADER as u64 && segment.end + length > self.segment_bytes
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

    /// Writes a frame begun by [`frame::begin`], its space prepared; not durable before [`Log::sync`].
    pub fn append(&mut self, mut frame: Vec<u8>) -> Result<(), Fault> {
        let Some(segment) = &mut self.open else {
            return Err(Fault::Refused("no space was prepared".into()));
        };
        frame::seal(&mut frame, segment.header.salt, segment.end, segment.synced);
        segment
            .file
            .write_all_at(&frame, segment.end)
            .map_err(|error| broken(&*self.disk, segment, "append to", error))?;
        segment.end += frame.len() as u64;
        Ok(())
    }

    /// Makes everything appended durable. After an error the kernel may have dropped the dirty
    /// pages, and a second sync would succeed without having written them: hence never again.
    pub fn sync(&mut self) -> Result<(), Fault> {
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

    /// Ends the open segment and starts the next.
    fn rotate(&mut self) -> Result<(), Fault> {
        let (file, header) = create(&*self.disk, self.next, self.reserve_bytes)?;
        self.end()?;
        name(&*self.disk, self.next)?;
        let end = FILE_HEADER as u64;
        let reserved = self.reserve_bytes;
        self.open = Some(Segment {
            file,
            header,
            end,
            synced: end,
            reserved,
        });
        self.next += 1;
        Ok(())
    }

    /// Ends the open segment: gives unused space back and syncs. Returns the number of the segment
    /// that comes next, and how many bytes all segments before it have.
    pub fn end(&mut self) -> Result<(u64, u64), Fault> {
        if let Some(segment) = &mut self.open {
            segment
                .file
                .cut(segment.end)
                .map_err(|error| broken(&*self.disk, segment, "cut", error))?;
            self.ended += segment.end;
            self.open = None;
        }
        Ok((self.next, self.ended))
    }

    /// A snapshot covers `bytes` of the ended segments now.
    pub fn forget(&mut self, bytes: u64) {
        self.ended = self.ended.saturating_sub(bytes);
    }
}

fn broken(disk: &dyn Disk, segment: &Segment, step: &str, error: io::Error) -> Fault {
    let path = disk.path(&segment_name(segment.header.number));
    Fault::Broken(format!("cannot {step} {}: {error}", path.display()))
}

/// Makes a segment under a temporary name, so that a half-made one is never taken for part of the log.
fn create(
    disk: &dyn Disk,
    number: u64,
    reserve: u64,
) -> Result<(Box<dyn File>, FileHeader), Fault> {
    let temporary = format!("{}.tmp", segment_name(number));
    let header = FileHeader::new(FileKind::Log, number);
    let make = || {
        let mut file = disk.create(&temporary)?;
        file.reserve(0, reserve)?;
        file.write_all_at(&header.encode(), 0)?;
        file.sync()?;
        Ok(file)
    };
    match make() {
        Ok(file) => Ok((file, header)),
        Err(error) => {
            // What is left of it is also removed at the next start.
            let _ = disk.remove(&temporary);
            Err(refused(disk, &temporary, "create", error))
        }
    }
}

fn name(disk: &dyn Disk, number: u64) -> Result<(), Fault> {
    let name = segment_name(number);
    let named = disk
        .rename(&format!("{name}.tmp"), &name)
        .and_then(|()| disk.sync());
    named.map_err(|error| {
        Fault::Broken(format!(
            "cannot name {}: {error}",
            disk.path(&name).display()
        ))
    })
}

fn refused(disk: &dyn Disk, name: &str, step: &str, error: io::Error) -> Fault {
    let message = format!("cannot {step} {}: {error}", disk.path(name).display());
    if is_full(&error) {
        Fault::Full(message)
    } else {
        Fault::Refused(message)
    }
}

/// Reads a segment: `take` gets each batch. The last segment's torn tail is cut.
/// Returns the segment's length.
pub fn replay(
    disk: &dyn Disk,
    number: u64,
    is_last: bool,
    mut take: impl FnMut(&[u8]) -> Result<(), String>,
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
    let salt = bytes
        .first_chunk()
        .and_then(|head| FileHeader::decode(FileKind::Log, head))
        .filter(|header| header.number == number)
        .ok_or_else(|| corrupt(0, "the header is damaged"))?
        .salt;
    let mut offset = FILE_HEADER;
    while let Some((header, payload)) = frame::read(&bytes, salt, offset) {
        take(payload).map_err(|why| corrupt(offset, &why))?;
        offset += frame::frame_len(header.len());
    }
    if offset < bytes.len() {
        if !is_last || frame::synced_past(&bytes, salt, offset) {
            return Err(corrupt(offset, "a record that had been synced is damaged"));
        }
        if bytes[offset..].iter().any(|byte| *byte != 0) {
            tracing::warn!(file = %disk.path(&name).display(), offset, "cut a torn tail");
        }
    }
    if is_last {
        // Also syncs what the last process wrote and did not sync: from here on, others build on it.
        file.cut(offset as u64).map_err(failed)?;
    }
    Ok(offset as u64)
}
