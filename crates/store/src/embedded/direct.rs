//! A file written with `O_DIRECT`: the log is not read while it is written, so that a copy in the
//! page cache would only cost time. On filesystems without `O_DIRECT` the same blocks go through
//! the page cache.

use std::{fs, io, os::unix::fs::FileExt};

use rustix::fs::OFlags;

use super::{
    disk::{File, allocate},
    frame::BLOCK,
};

/// The maximum bytes of one write.
const STAGE: usize = 1 << 20;

/// A log file.
pub(super) struct DirectFile {
    file: fs::File,
    /// A buffer for bytes that are not aligned to [`BLOCK`].
    stage: Vec<u8>,
}

impl DirectFile {
    /// Wraps a file that is written in aligned blocks.
    pub(super) fn new(file: fs::File) -> Self {
        set_direct(&file, true);
        Self {
            file,
            stage: Vec::new(),
        }
    }

    fn write_blocks(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if bytes.as_ptr().align_offset(BLOCK) == 0 {
            return write_aligned(&self.file, bytes, offset);
        }
        if self.stage.len() < bytes.len() + BLOCK {
            self.stage.resize(bytes.len() + BLOCK, 0);
        }
        let start = self.stage.as_ptr().align_offset(BLOCK);
        let staged = &mut self.stage[start..start + bytes.len()];
        staged.copy_from_slice(bytes);
        write_aligned(&self.file, staged, offset)
    }
}

fn write_aligned(file: &fs::File, bytes: &[u8], offset: u64) -> io::Result<()> {
    match FileExt::write_all_at(file, bytes, offset) {
        // This filesystem or disk does not support it: use the page cache.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            set_direct(file, false);
            FileExt::write_all_at(file, bytes, offset)
        }
        written => written,
    }
}

/// Whether `O_DIRECT` works shows at the first write.
fn set_direct(file: &fs::File, direct: bool) {
    if let Ok(mut flags) = rustix::fs::fcntl_getfl(file) {
        flags.set(OFlags::DIRECT, direct);
        let _ = rustix::fs::fcntl_setfl(file, flags);
    }
}

impl File for DirectFile {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(&self.file, buffer, offset)
    }

    fn write_all_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut at = offset;
        for part in bytes.chunks(STAGE) {
            self.write_blocks(part, at)?;
            at += part.len() as u64;
        }
        Ok(())
    }

    fn reserve(&mut self, offset: u64, length: u64) -> io::Result<()> {
        allocate(&self.file, offset, length)?;
        self.write_all_at(&vec![0; length as usize], offset)
    }

    fn cut(&mut self, length: u64) -> io::Result<()> {
        self.file.cut(length)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync()
    }
}
