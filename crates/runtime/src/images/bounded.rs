//! Limits what may be read of an archive between two files. Tar readers keep long names and
//! extended attributes in memory, and a small compressed file can contain any amount of them.

use std::{
    cell::Cell,
    io::{self, Read},
    rc::Rc,
};

/// More than any legitimate name or set of attributes.
const MAX_HEADERS: u64 = 1 << 20;

/// A reader with a limit.
pub(super) struct Bounded<T> {
    inner: T,
    left: Rc<Cell<u64>>,
}

/// Sets the limit for the next part of the archive.
pub(super) struct Bound(Rc<Cell<u64>>);

impl<T> Bounded<T> {
    pub(super) fn new(inner: T) -> (Self, Bound) {
        let left = Rc::new(Cell::new(u64::MAX));
        let bound = Bound(left.clone());
        (Self { inner, left }, bound)
    }
}

impl Bound {
    /// Until the next call, only headers may follow.
    pub(super) fn headers_only(&self) {
        self.0.set(MAX_HEADERS);
    }

    /// A file's content follows, which its reader limits.
    pub(super) fn lift(&self) {
        self.0.set(u64::MAX);
    }
}

impl<T: Read> Read for Bounded<T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.left.get();
        if left == 0 {
            return Err(io::Error::other("a header is larger than allowed"));
        }
        let most = usize::try_from(left)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let length = self.inner.read(&mut buffer[..most])?;
        self.left.set(left - length as u64);
        Ok(length)
    }
}
