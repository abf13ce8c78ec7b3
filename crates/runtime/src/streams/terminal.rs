//! The master side of a terminal as an async stream.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, unix::AsyncFd};

use crate::shim::set_nonblocking;

/// The master side.
pub(super) struct Terminal(AsyncFd<OwnedFd>);

impl Terminal {
    pub(super) fn new(fd: OwnedFd) -> io::Result<Self> {
        set_nonblocking(fd.as_fd())?;
        // SAFETY: an OwnedFd keeps the same descriptor open until it is dropped, and nothing takes
        // it out of the AsyncFd before that.
        Ok(Self(unsafe { AsyncFd::register(fd) }?))
    }

    pub(super) fn resize(&self, width: u16, height: u16) -> io::Result<()> {
        crate::terminal::resize(self.0.get_ref().as_fd(), width, height)
    }

    /// A stream that reads and writes; one per direction.
    pub(super) fn stream(&self) -> TerminalStream<'_> {
        TerminalStream(self)
    }
}

/// One user of a terminal.
pub(super) struct TerminalStream<'a>(&'a Terminal);

impl AsyncRead for TerminalStream<'_> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let fd = &self.0.0;
        loop {
            let mut guard = ready!(fd.poll_read_ready(context))?;
            let space = buffer.initialize_unfilled();
            match guard.try_io(|fd| Ok(nix::unistd::read(fd.get_ref(), space)?)) {
                Ok(Ok(length)) => {
                    buffer.advance(length);
                    return Poll::Ready(Ok(()));
                }
                // The last user of the slave side is gone.
                Ok(Err(error)) if error.raw_os_error() == Some(libc::EIO) => {
                    return Poll::Ready(Ok(()));
                }
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_) => {}
            }
        }
    }
}

impl AsyncWrite for TerminalStream<'_> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let fd = &self.0.0;
        loop {
            let mut guard = ready!(fd.poll_write_ready(context))?;
            let written = guard.try_io(|fd| Ok(nix::unistd::write(fd.get_ref(), bytes)?));
            if let Ok(result) = written {
                return Poll::Ready(result);
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
