//! The file format: a header, then frames with a checksum each.
//!
//! Checksums cover the offset of a frame and a random salt of its file, so that neither blocks left
//! over from another file nor values that imitate a frame are taken for one. Each frame also
//! records how much of its file was synced when it was written, which tells a torn tail (never
//! synced, never acknowledged) from corruption in the middle.

/// Length of a file's header.
pub(super) const FILE_HEADER: usize = 32;
/// Length of a frame's header.
pub(super) const FRAME_HEADER: usize = 24;

const FRAME_MAGIC: u32 = 0x6d73_6601;
/// The minimum alignment of frames.
pub(super) const ALIGNMENT: usize = 8;

/// The two kinds of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileKind {
    /// A log segment.
    Log,
    /// A snapshot or a backup.
    Snapshot,
}

impl FileKind {
    const fn magic(self) -> &'static [u8; 8] {
        match self {
            Self::Log => b"mnstlog2",
            Self::Snapshot => b"mnstsnp2",
        }
    }
}

/// The first bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileHeader {
    /// What file it is.
    pub kind: FileKind,
    /// The segment's number; for a snapshot, the first segment that it does not cover.
    pub number: u64,
    /// Random; part of every checksum.
    pub salt: u64,
    /// The alignment of frames.
    pub block: u32,
}

impl FileHeader {
    /// A header with a new salt.
    pub(super) fn new(kind: FileKind, number: u64, block: u32) -> Self {
        Self {
            kind,
            number,
            salt: rand::random(),
            block,
        }
    }

    /// The offset of the first frame.
    pub(super) fn first(&self) -> usize {
        FILE_HEADER.next_multiple_of(self.block as usize)
    }

    /// The offset of the frame after the one at `offset`.
    pub(super) fn after(&self, offset: usize, frame: FrameHeader) -> usize {
        (offset + frame_len(frame.len())).next_multiple_of(self.block as usize)
    }

    /// As bytes.
    pub(super) fn encode(&self) -> [u8; FILE_HEADER] {
        let mut bytes = [0; FILE_HEADER];
        bytes[..8].copy_from_slice(self.kind.magic());
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.salt.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.block.to_le_bytes());
        let checksum = crc32fast::hash(&bytes[..28]);
        bytes[28..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// From bytes; `None` if they are not a valid header.
    pub(super) fn decode(kind: FileKind, bytes: &[u8; FILE_HEADER]) -> Option<Self> {
        let valid =
            &bytes[..8] == kind.magic() && crc32fast::hash(&bytes[..28]) == u32_at(bytes, 28);
        let header = valid.then(|| Self {
            kind,
            number: u64_at(bytes, 8),
            salt: u64_at(bytes, 16),
            block: u32_at(bytes, 24),
        });
        header.filter(|header| header.block as usize >= ALIGNMENT)
    }
}

/// The length of a frame with a payload of this length.
pub(super) fn frame_len(payload: usize) -> usize {
    (FRAME_HEADER + payload).next_multiple_of(ALIGNMENT)
}

/// The alignment of frames in memory: sufficient for every common disk.
pub(super) const BLOCK: usize = 4096;
/// A larger buffer is not kept for the next frame.
const KEPT: usize = 2 << 20;

fn fill_header(frame: &mut [u8], salt: u64, offset: u64, synced: u64) {
    let length = frame.len() - FRAME_HEADER;
    frame[0..4].copy_from_slice(&FRAME_MAGIC.to_le_bytes());
    frame[4..8].copy_from_slice(&(length as u32).to_le_bytes());
    frame[8..16].copy_from_slice(&synced.to_le_bytes());
    let sum = checksum(salt, offset, &frame[4..16], &frame[FRAME_HEADER..]);
    frame[16..20].copy_from_slice(&sum.to_le_bytes());
}

/// A frame in memory, aligned to [`BLOCK`], so that it can be written as it is.
#[derive(Default)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    /// The start of the frame.
    start: usize,
}

impl Buffer {
    /// An empty frame.
    pub(super) fn new() -> Self {
        let mut buffer = Self::default();
        buffer.begin();
        buffer
    }

    /// Starts a new frame in the same memory.
    pub(super) fn begin(&mut self) {
        if self.bytes.capacity() > KEPT {
            self.bytes = Vec::new();
        }
        self.bytes.clear();
        self.bytes.reserve(2 * BLOCK);
        self.start = self.bytes.as_ptr().align_offset(BLOCK);
        self.bytes.resize(self.start + FRAME_HEADER, 0);
    }

    /// Returns the buffer with space for `more` bytes.
    pub(super) fn room(&mut self, more: usize) -> &mut Vec<u8> {
        let needed = self.bytes.len() + more;
        if needed > self.bytes.capacity() {
            let mut larger: Vec<u8> = Vec::with_capacity(2 * needed + BLOCK);
            let start = larger.as_ptr().align_offset(BLOCK);
            larger.resize(start, 0);
            larger.extend_from_slice(&self.bytes[self.start..]);
            (self.bytes, self.start) = (larger, start);
        }
        &mut self.bytes
    }

    /// The frame's length so far.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// Truncates the frame.
    pub(super) fn truncate(&mut self, length: usize) {
        self.bytes.truncate(self.start + length);
    }

    /// The payload so far.
    pub(super) fn payload(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start + FRAME_HEADER..]
    }

    /// Completes the frame: fills in its header and pads it to whole blocks.
    pub(super) fn seal(&mut self, salt: u64, offset: u64, synced: u64, block: usize) -> &[u8] {
        fill_header(&mut self.bytes[self.start..], salt, offset, synced);
        let padding = self.len().next_multiple_of(block) - self.len();
        let frame = self.room(padding);
        frame.resize(frame.len() + padding, 0);
        &self.bytes[self.start..]
    }
}

/// A frame's header, not verified yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct FrameHeader {
    bytes: [u8; FRAME_HEADER],
}

impl FrameHeader {
    /// `None` if these bytes cannot be a frame's header.
    pub(super) fn decode(bytes: [u8; FRAME_HEADER]) -> Option<Self> {
        (u32_at(&bytes, 0) == FRAME_MAGIC).then_some(Self { bytes })
    }

    /// Length of the payload.
    pub(super) fn len(&self) -> usize {
        u32_at(&self.bytes, 4) as usize
    }

    /// How much of the file was synced when the frame was written.
    pub(super) fn synced(&self) -> u64 {
        u64_at(&self.bytes, 8)
    }

    /// Whether the checksum matches at this offset.
    pub(super) fn matches(&self, salt: u64, offset: u64, payload: &[u8]) -> bool {
        checksum(salt, offset, &self.bytes[4..16], payload) == u32_at(&self.bytes, 16)
    }
}

/// Reads the frame at `offset` of a file's bytes; `None` if there is no valid one.
pub(super) fn read(file: &[u8], salt: u64, offset: usize) -> Option<(FrameHeader, &[u8])> {
    let bytes = file.get(offset..offset + FRAME_HEADER)?;
    let header = FrameHeader::decode(bytes.try_into().ok()?)?;
    let start = offset + FRAME_HEADER;
    let payload = file.get(start..start.checked_add(header.len())?)?;
    header
        .matches(salt, offset as u64, payload)
        .then_some((header, payload))
}

/// Whether a valid frame behind `offset` records that the byte at `offset` had been synced.
pub(super) fn synced_past(file: &[u8], header: &FileHeader, offset: usize) -> bool {
    let block = header.block as usize;
    (offset.next_multiple_of(block)..file.len())
        .step_by(block)
        .filter_map(|candidate| read(file, header.salt, candidate))
        .any(|(frame, _)| frame.synced() > offset as u64)
}

fn checksum(salt: u64, offset: u64, header: &[u8], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&salt.to_le_bytes());
    hasher.update(&offset.to_le_bytes());
    hasher.update(header);
    hasher.update(payload);
    hasher.finalize()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_of(payloads: &[&[u8]], salt: u64) -> (Vec<u8>, Vec<usize>) {
        let (mut file, mut places) = (vec![0; FILE_HEADER], Vec::new());
        for payload in payloads {
            let mut frame = Buffer::new();
            frame.room(payload.len()).extend_from_slice(payload);
            let end = file.len() as u64;
            places.push(file.len());
            file.extend(frame.seal(salt, end, end, ALIGNMENT));
        }
        (file, places)
    }

    #[test]
    fn every_flipped_bit_of_a_frame_is_noticed() {
        let (file, places) = file_of(&[b"some payload"], 7);
        for bit in 0..(FRAME_HEADER - 4 + b"some payload".len()) * 8 {
            // The four bytes after the checksum are padding.
            let byte = if bit / 8 < 20 { bit / 8 } else { bit / 8 + 4 };
            let mut damaged = file.clone();
            damaged[places[0] + byte] ^= 1 << (bit % 8);
            assert!(read(&damaged, 7, places[0]).is_none(), "byte {byte}");
        }
        assert!(read(&file, 7, places[0]).is_some());
    }

    #[test]
    fn a_frame_stays_whole_and_in_its_place_however_it_grows() {
        let text: Vec<u8> = (0..50_000_u32).map(|n| n as u8).collect();
        for step in [1, 100, 4073, 9000, 50_000] {
            let mut frame = Buffer::new();
            for (n, part) in text.chunks(step).enumerate() {
                frame.room(part.len()).extend_from_slice(part);
                let mut sealed = Buffer::new();
                let length = frame.payload().len();
                if n % 100 == 0 || length == text.len() {
                    sealed.room(length).extend_from_slice(frame.payload());
                    let bytes = sealed.seal(7, 0, 0, BLOCK);
                    assert_eq!(bytes.as_ptr().align_offset(BLOCK), 0);
                    assert_eq!(bytes.len() % BLOCK, 0);
                    let (_, payload) = read(bytes, 7, 0).unwrap();
                    assert_eq!(payload, &text[..length]);
                }
            }
        }
    }

    #[test]
    fn a_frame_of_another_file_or_place_is_not_taken() {
        let (file, places) = file_of(&[b"one", b"two"], 7);
        assert!(read(&file, 8, places[0]).is_none());
        let mut moved = file.clone();
        moved.copy_within(places[1]..places[1] + frame_len(3), places[0]);
        assert!(read(&moved, 7, places[0]).is_none());
    }

    #[test]
    fn only_a_frame_that_was_synced_over_proves_a_damaged_middle() {
        let (file, places) = file_of(&[b"one", b"two"], 7);
        let header = FileHeader {
            salt: 7,
            ..FileHeader::new(FileKind::Log, 1, 8)
        };
        assert!(synced_past(&file, &header, places[0]));
        assert!(!synced_past(&file, &header, places[1]));
    }

    #[test]
    fn a_file_header_round_trips() {
        let header = FileHeader::new(FileKind::Log, 3, 4096);
        assert_eq!(
            FileHeader::decode(FileKind::Log, &header.encode()),
            Some(header)
        );
        assert_eq!(
            FileHeader::decode(FileKind::Snapshot, &header.encode()),
            None
        );
    }
}
