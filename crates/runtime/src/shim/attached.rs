//! Clients attached to a container's streams. A client that does not keep up is dropped: it must
//! never slow the container down.

use std::{
    io::{self, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use nix::fcntl::{FcntlArg, OFlag, fcntl};

/// The maximum backlog of a client.
const MAX_PENDING: usize = 1 << 20;

/// The maximum number of clients of a container: each may have a backlog in memory.
pub(super) const MAX_ATTACHED: usize = 32;

/// One attached client.
#[derive(Default)]
pub(super) struct Attached {
    /// Its input.
    pub stdin: Option<OwnedFd>,
    /// Its standard output.
    pub stdout: Option<Sink>,
    /// Its standard error.
    pub stderr: Option<Sink>,
}

impl Attached {
    /// Whether all of its streams are closed.
    pub(super) fn is_gone(&self) -> bool {
        self.stdin.is_none() && self.stdout.is_none() && self.stderr.is_none()
    }
}

/// A nonblocking descriptor to write to.
pub(super) struct Sink {
    fd: std::fs::File,
    pending: Vec<u8>,
}

impl Sink {
    /// Takes ownership of the descriptor.
    pub(super) fn new(fd: OwnedFd) -> io::Result<Self> {
        set_nonblocking(fd.as_fd())?;
        Ok(Self {
            fd: fd.into(),
            pending: Vec::new(),
        })
    }

    /// For `poll`.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Whether it has a backlog.
    pub(super) fn is_behind(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The bytes in its backlog.
    pub(super) fn backlog(&self) -> usize {
        self.pending.len()
    }

    /// Writes what fits and buffers the rest. An error means that the reader is gone or too slow.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.pending.extend_from_slice(bytes);
        self.flush()?;
        if self.pending.len() > MAX_PENDING {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }

    /// Writes what fits of the backlog.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while !self.pending.is_empty() {
            match self.fd.write(&self.pending) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    self.pending.drain(..written);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Sets O_NONBLOCK.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_leaves_or_falls_behind_is_an_error_not_a_wait() {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut sink = Sink::new(writer.into()).unwrap();
        sink.write(&vec![0; 512 * 1024]).unwrap();
        assert!(sink.is_behind());
        assert!(sink.write(&vec![0; 1 << 20]).is_err());
        drop(reader);
        assert!(sink.flush().is_err());
    }
}
