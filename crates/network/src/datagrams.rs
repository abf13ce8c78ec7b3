//! Receives and sends many datagrams with one system call, in preallocated buffers.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    os::fd::{AsFd, AsRawFd},
    ptr,
};

/// The maximum number of datagrams per call.
pub const BATCH: usize = 32;
/// The maximum length of a datagram; longer ones are truncated.
pub const LONGEST: usize = 4096;

/// A peer's address in the kernel's format.
#[derive(Clone, Copy)]
pub struct Peer {
    /// Large enough for IPv4 as well, whose format has the family at the same offset.
    name: libc::sockaddr_in6,
    length: libc::socklen_t,
}

impl Peer {
    fn unknown() -> Self {
        Self {
            // SAFETY: all zeros are a valid address of this kind.
            name: unsafe { std::mem::zeroed() },
            length: size_of::<libc::sockaddr_in6>() as libc::socklen_t,
        }
    }

    /// Whether it is an IPv6 address.
    pub fn is_ipv6(&self) -> bool {
        i32::from(self.name.sin6_family) == libc::AF_INET6
    }

    /// The address; `None` for another family.
    pub fn address(&self) -> Option<SocketAddr> {
        match i32::from(self.name.sin6_family) {
            libc::AF_INET => {
                // SAFETY: the family shows that the kernel wrote this format, which is shorter and
                // has the same alignment.
                let name = unsafe { &*ptr::from_ref(&self.name).cast::<libc::sockaddr_in>() };
                let ip = Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr));
                Some(SocketAddrV4::new(ip, u16::from_be(name.sin_port)).into())
            }
            libc::AF_INET6 => {
                let ip = Ipv6Addr::from(self.name.sin6_addr.s6_addr);
                let port = u16::from_be(self.name.sin6_port);
                let (flow, scope) = (self.name.sin6_flowinfo, self.name.sin6_scope_id);
                Some(SocketAddrV6::new(ip, port, flow, scope).into())
            }
            _ => None,
        }
    }
}

/// A message header for `buffer` and a peer.
fn header(peer: &mut Peer, buffer: &mut libc::iovec) -> libc::mmsghdr {
    // SAFETY: all zeros are a message without parts.
    let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
    header.msg_hdr.msg_name = ptr::from_mut(&mut peer.name).cast();
    header.msg_hdr.msg_namelen = peer.length;
    header.msg_hdr.msg_iov = buffer;
    header.msg_hdr.msg_iovlen = 1;
    header
}

fn part(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    }
}

/// Received datagrams.
pub struct Inbox {
    buffers: Vec<[u8; LONGEST]>,
    peers: [Peer; BATCH],
    lengths: [usize; BATCH],
    count: usize,
}

impl Default for Inbox {
    fn default() -> Self {
        Self {
            buffers: vec![[0; LONGEST]; BATCH],
            peers: [Peer::unknown(); BATCH],
            lengths: [0; BATCH],
            count: 0,
        }
    }
}

impl Inbox {
    /// Takes the datagrams that are there. Does not wait: `WouldBlock` when there are none.
    pub fn receive(&mut self, socket: &impl AsFd) -> io::Result<()> {
        self.count = 0;
        self.peers = [Peer::unknown(); BATCH];
        let mut buffers = self.buffers.iter_mut().map(|buffer| part(buffer));
        let mut parts: [libc::iovec; BATCH] =
            std::array::from_fn(|_| buffers.next().unwrap_or_else(|| part(&mut [])));
        let mut places = self.peers.iter_mut().zip(&mut parts);
        // SAFETY: all zeros are a message without parts.
        let nothing = || unsafe { std::mem::zeroed() };
        let mut headers: [libc::mmsghdr; BATCH] = std::array::from_fn(|_| {
            let place = places.next();
            place.map_or_else(nothing, |(peer, buffer)| header(peer, buffer))
        });
        // SAFETY: names and parts of all headers live through the call, with the lengths that they
        // state; the kernel writes no further than those.
        let received = unsafe {
            libc::recvmmsg(
                socket.as_fd().as_raw_fd(),
                headers.as_mut_ptr(),
                BATCH as u32,
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            )
        };
        self.count = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        for (index, header) in headers.iter().enumerate().take(self.count) {
            self.lengths[index] = (header.msg_len as usize).min(LONGEST);
            self.peers[index].length = header.msg_hdr.msg_namelen;
        }
        Ok(())
    }

    /// Whether there may be more than was received last.
    pub fn is_full(&self) -> bool {
        self.count == BATCH
    }

    /// The last received datagram and its sender.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], Peer)> {
        let received = self.buffers.iter().zip(&self.lengths).zip(&self.peers);
        received
            .map(|((buffer, length), peer)| (&buffer[..*length], *peer))
            .take(self.count)
    }
}

/// Datagrams to send.
pub struct Outbox {
    buffers: Vec<Vec<u8>>,
    peers: [Peer; BATCH],
    count: usize,
}

impl Default for Outbox {
    fn default() -> Self {
        Self {
            buffers: (0..BATCH).map(|_| Vec::with_capacity(512)).collect(),
            peers: [Peer::unknown(); BATCH],
            count: 0,
        }
    }
}

impl Outbox {
    /// An empty buffer for the next datagram, which counts when it is [added](Self::add). At most
    /// [`BATCH`] are added before they are sent.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        let buffer = &mut self.buffers[self.count.min(BATCH - 1)];
        buffer.clear();
        buffer
    }

    /// The content of the current buffer.
    pub fn filled(&self) -> &[u8] {
        &self.buffers[self.count.min(BATCH - 1)]
    }

    /// Adds the current buffer as a datagram to this peer.
    pub fn add(&mut self, to: Peer) {
        if self.count < BATCH {
            self.peers[self.count] = to;
            self.count += 1;
        }
    }

    /// Sends and clears all of them. One that the kernel rejects is skipped; the last such error is
    /// returned.
    pub fn send(&mut self, socket: &impl AsFd) -> io::Result<()> {
        let (mut sent, mut result) = (0, Ok(()));
        while sent < self.count {
            match self.send_from(sent, socket) {
                Ok(count) => sent += count.max(1),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    sent += 1;
                    result = Err(error);
                }
            }
        }
        self.count = 0;
        result
    }

    fn send_from(&mut self, first: usize, socket: &impl AsFd) -> io::Result<usize> {
        let waiting = first..self.count;
        let mut buffers = self.buffers[waiting.clone()].iter_mut();
        let mut parts: [libc::iovec; BATCH] =
            std::array::from_fn(|_| buffers.next().map_or_else(|| part(&mut []), |b| part(b)));
        let mut places = self.peers[waiting.clone()].iter_mut().zip(&mut parts);
        // SAFETY: all zeros are a message without parts.
        let nothing = || unsafe { std::mem::zeroed() };
        let mut headers: [libc::mmsghdr; BATCH] = std::array::from_fn(|_| {
            let place = places.next();
            place.map_or_else(nothing, |(peer, buffer)| header(peer, buffer))
        });
        // SAFETY: as many headers as there are datagrams have a name and a part, which live through
        // the call; the kernel only reads them.
        let sent = unsafe {
            libc::sendmmsg(
                socket.as_fd().as_raw_fd(),
                headers.as_mut_ptr(),
                waiting.len() as u32,
                0,
            )
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    fn echo(address: &str) {
        let (server, client) = (
            UdpSocket::bind(address).unwrap(),
            UdpSocket::bind(address).unwrap(),
        );
        client.connect(server.local_addr().unwrap()).unwrap();
        let (mut inbox, mut outbox) = (Inbox::default(), Outbox::default());
        for round in 0..3_u8 {
            for number in 0..5 {
                client.send(&[round, number]).unwrap();
            }
            // All have arrived.
            inbox.receive(&server).unwrap();
            let received: Vec<_> = inbox.iter().collect();
            assert_eq!(received.len(), 5);
            for (bytes, from) in received {
                assert_eq!(from.address(), client.local_addr().ok());
                assert_eq!(from.is_ipv6(), address.starts_with('['));
                outbox.buffer().extend([bytes, &[7]].concat());
                outbox.add(from);
            }
            outbox.send(&server).unwrap();
            for number in 0..5 {
                let mut buffer = [0; 8];
                let length = client.recv(&mut buffer).unwrap();
                assert_eq!(buffer[..length], [round, number, 7]);
            }
        }
    }

    #[test]
    fn several_datagrams_are_received_and_answered_at_once() {
        echo("127.0.0.1:0");
    }

    #[test]
    fn several_datagrams_of_ipv6_are_received_and_answered_at_once() {
        echo("[::1]:0");
    }

    #[test]
    fn a_datagram_that_cannot_be_sent_does_not_keep_the_others() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(server.local_addr().unwrap()).unwrap();
        client.send(b"?").unwrap();
        let (mut inbox, mut outbox) = (Inbox::default(), Outbox::default());
        inbox.receive(&server).unwrap();
        let (_, from) = inbox.iter().next().unwrap();
        for length in [1, 70_000, 2] {
            outbox.buffer().resize(length, 1);
            outbox.add(from);
        }
        assert!(outbox.send(&server).is_err());
        let mut buffer = [0; 8];
        assert_eq!(client.recv(&mut buffer).unwrap(), 1);
        assert_eq!(client.recv(&mut buffer).unwrap(), 2);
    }

    #[test]
    fn a_datagram_that_is_too_long_is_cut() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client
            .send_to(&[1; LONGEST + 500], server.local_addr().unwrap())
            .unwrap();
        let mut inbox = Inbox::default();
        inbox.receive(&server).unwrap();
        assert_eq!(inbox.iter().next().unwrap().0.len(), LONGEST);
    }
}
