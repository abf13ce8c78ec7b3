//! A daemon's connection, without waiting: what does not fit into the socket is kept in order.

use std::{
    collections::VecDeque,
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
};

use super::protocol::{Call, Message, Request};
use crate::wire::{Inbox, encode, send};

/// One connected daemon.
pub(super) struct Conn {
    stream: UnixStream,
    /// What it has sent.
    pub inbox: Inbox,
    outbox: VecDeque<(Vec<u8>, Option<OwnedFd>)>,
}

impl Conn {
    /// Takes an accepted connection over.
    pub(super) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            inbox: Inbox::default(),
            outbox: VecDeque::new(),
        })
    }

    /// For `poll`.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Whether it waits for room.
    pub(super) fn is_behind(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Reads what there is. `false` means that the daemon is gone.
    pub(super) fn fill(&mut self) -> bool {
        loop {
            match self.inbox.fill(self.stream.as_fd()) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    }

    /// The next request, if a whole one is there: its number, and the call if this build knows it.
    pub(super) fn request(&mut self) -> io::Result<Option<(u64, Result<Call, String>)>> {
        let Some(request) = self.inbox.take::<Request<serde_json::Value>>()? else {
            return Ok(None);
        };
        let call = serde_json::from_value(request.call);
        Ok(Some((request.id, call.map_err(|error| error.to_string()))))
    }

    /// Sends a message, now or when there is room.
    pub(super) fn send(&mut self, message: &Message, fd: Option<OwnedFd>) -> io::Result<()> {
        self.outbox.push_back((encode(message)?, fd));
        self.flush()
    }

    /// Sends what fits.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while let Some((bytes, fd)) = self.outbox.front_mut() {
            let raw = fd.as_ref().map(|fd| fd.as_raw_fd());
            match send(self.stream.as_fd(), bytes, raw.as_slice()) {
                Ok(sent) => {
                    // The descriptor went with the first byte.
                    *fd = None;
                    bytes.drain(..sent);
                    if bytes.is_empty() {
                        self.outbox.pop_front();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
