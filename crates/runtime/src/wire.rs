//! Framed messages with file descriptors over a Unix stream socket, for daemon, shim and helper. A
//! frame is a big-endian `u32` length and that many bytes of JSON; the descriptors of a frame are
//! sent with its first byte.
//!
//! The framing never changes; what may change depends on the version that hello exchanges.

use std::{
    collections::VecDeque,
    io::{self, IoSlice, IoSliceMut},
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

use nix::{
    cmsg_space,
    sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg},
};
use serde::{Serialize, de::DeserializeOwned};

/// The maximum number of descriptors per frame.
pub(crate) const MAX_FDS: usize = 4;

/// The maximum frame size; a larger length means that the peer speaks something else.
const MAX_FRAME: usize = 1 << 20;

/// The frame of a message.
pub(crate) fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let length = u32::try_from(frame.len() - 4).map_err(io::Error::other)?;
    frame[..4].copy_from_slice(&length.to_be_bytes());
    Ok(frame)
}

/// Sends as much of `bytes` as the socket takes, the descriptors with the first byte.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[RawFd]) -> io::Result<usize> {
    let rights = [ControlMessage::ScmRights(fds)];
    let control = if fds.is_empty() { &[][..] } else { &rights };
    let flags = MsgFlags::MSG_NOSIGNAL;
    let parts = [IoSlice::new(bytes)];
    Ok(sendmsg::<()>(
        socket.as_raw_fd(),
        &parts,
        control,
        flags,
        None,
    )?)
}

/// Sends a whole message over a blocking socket.
pub(crate) fn send_all(
    socket: BorrowedFd<'_>,
    message: &impl Serialize,
    fds: &[RawFd],
) -> io::Result<()> {
    let frame = encode(message)?;
    let mut sent = send(socket, &frame, fds)?;
    while sent < frame.len() {
        sent += send(socket, &frame[sent..], &[])?;
    }
    Ok(())
}

/// Received data and descriptors that were not taken yet.
#[derive(Default)]
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    fds: VecDeque<OwnedFd>,
}

impl Inbox {
    /// Reads once from the socket. Zero bytes mean that the peer has disconnected.
    pub(crate) fn fill(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let mut chunk = [0; 16 * 1024];
        let mut control = cmsg_space!([RawFd; MAX_FDS]);
        let mut parts = [IoSliceMut::new(&mut chunk)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let got = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags)?;
        for message in got.cmsgs()? {
            if let ControlMessageOwned::ScmRights(raw) = message {
                // SAFETY: the kernel has just created these descriptors for us; nothing else owns
                // them.
                self.fds.extend(
                    raw.into_iter()
                        .map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }),
                );
            }
        }
        let length = got.bytes;
        self.bytes.extend_from_slice(&chunk[..length]);
        Ok(length)
    }

    /// The next complete message, if it has arrived.
    pub(crate) fn take<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let Some(prefix) = self.bytes.first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*prefix) as usize;
        if length > MAX_FRAME {
            return Err(io::Error::other(format!("a frame of {length} bytes")));
        }
        if self.bytes.len() < 4 + length {
            return Ok(None);
        }
        let message = serde_json::from_slice(&self.bytes[4..4 + length])?;
        self.bytes.drain(..4 + length);
        if self.bytes.is_empty() {
            // A shim's connection is idle most of the time, and there are many.
            self.bytes = Vec::new();
        }
        Ok(Some(message))
    }

    /// The next descriptor that came with the messages taken so far.
    pub(crate) fn fd(&mut self) -> io::Result<OwnedFd> {
        self.fds
            .pop_front()
            .ok_or_else(|| io::Error::other("a descriptor is missing"))
    }

    /// Waits for a whole message on a blocking socket.
    #[cfg(test)]
    pub(crate) fn wait<T: DeserializeOwned>(&mut self, socket: BorrowedFd<'_>) -> io::Result<T> {
        loop {
            if let Some(message) = self.take()? {
                return Ok(message);
            }
            if self.fill(socket)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        os::{fd::AsFd, unix::net::UnixStream},
    };

    use super::*;

    #[test]
    fn messages_and_their_descriptors_arrive_together() {
        let (here, there) = UnixStream::pair().unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        send_all(here.as_fd(), &"first", &[writer.as_raw_fd()]).unwrap();
        send_all(here.as_fd(), &"second", &[]).unwrap();
        drop(writer);
        let mut inbox = Inbox::default();
        assert_eq!(inbox.wait::<String>(there.as_fd()).unwrap(), "first");
        let mut passed = std::fs::File::from(inbox.fd().unwrap());
        assert_eq!(inbox.wait::<String>(there.as_fd()).unwrap(), "second");
        assert!(inbox.fd().is_err());
        passed.write_all(b"through").unwrap();
        drop(passed);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
    }

    #[test]
    fn an_inbox_without_messages_holds_no_memory() {
        let (here, there) = UnixStream::pair().unwrap();
        let mut inbox = Inbox::default();
        send_all(here.as_fd(), &"x".repeat(9000), &[]).unwrap();
        inbox.wait::<String>(there.as_fd()).unwrap();
        assert_eq!(inbox.bytes.capacity(), 0);
    }

    #[test]
    fn a_frame_may_arrive_in_pieces_and_a_huge_one_is_refused() {
        let (mut here, there) = UnixStream::pair().unwrap();
        let frame = encode(&vec![1, 2, 3]).unwrap();
        let mut inbox = Inbox::default();
        here.write_all(&frame[..5]).unwrap();
        inbox.fill(there.as_fd()).unwrap();
        assert_eq!(inbox.take::<Vec<u8>>().unwrap(), None);
        here.write_all(&frame[5..]).unwrap();
        inbox.fill(there.as_fd()).unwrap();
        assert_eq!(inbox.take::<Vec<u8>>().unwrap(), Some(vec![1, 2, 3]));
        here.write_all(&u32::MAX.to_be_bytes()).unwrap();
        inbox.fill(there.as_fd()).unwrap();
        assert!(inbox.take::<Vec<u8>>().is_err());
    }
}
