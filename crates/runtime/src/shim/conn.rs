//! A nonblocking connection of a daemon; what does not fit into the socket is queued in order.

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
    /// Received data.
    pub inbox: Inbox,
    outbox: VecDeque<(Vec<u8>, Option<OwnedFd>)>,
}

impl Conn {
    /// Takes ownership of an accepted connection.
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

    /// Whether messages are queued.
    pub(super) fn is_behind(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Reads what is available; false if the daemon has disconnected.
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

    /// The next complete request: its id, and the call if this build knows it.
    pub(super) fn request(&mut self) -> io::Result<Option<(u64, Result<Call, String>)>> {
        let Some(request) = self.inbox.take::<Request<serde_json::Value>>()? else {
            return Ok(None);
        };
        let call = serde_json::from_value(request.call);
        Ok(Some((request.id, call.map_err(|error| error.to_string()))))
    }

    /// Sends or queues a message.
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
                    // The descriptor was sent with the first byte.
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
