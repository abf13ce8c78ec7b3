//! The first two packets of an SCTP association, from raw sockets: connection tracking, translation and policies need no
//! more, and kernels without SCTP sockets track it, too.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::atomic::{AtomicU16, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::net::{AddressFamily, SocketType, ipproto, socket};

const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
/// The parameter with the server's text.
const COOKIE: u16 = 7;
const HEADER: usize = 12;
/// A chunk with its header, without parameters.
const CHUNK: usize = 20;
/// The initiate tag of both ends.
const TAG: u32 = 0x6d61_696e;

/// Ports of clients: each association has its own.
static NEXT_PORT: AtomicU16 = AtomicU16::new(20_000);

/// A packet with one chunk.
#[derive(Debug, PartialEq, Eq)]
struct Packet {
    /// The ports of the sender and of the receiver.
    ports: (u16, u16),
    kind: u8,
    text: String,
}

/// CRC32c, as SCTP uses it.
fn checksum(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| match crc & 1 {
            0 => crc >> 1,
            _ => crc >> 1 ^ 0x82f6_3b78,
        })
    };
    !bytes.iter().fold(u32::MAX, step)
}

impl Packet {
    fn encode(&self) -> Vec<u8> {
        let mut parameter = Vec::new();
        if !self.text.is_empty() {
            let length = u16::try_from(4 + self.text.len()).unwrap();
            parameter.extend([COOKIE.to_be_bytes(), length.to_be_bytes()].concat());
            parameter.extend(self.text.as_bytes());
        }
        let length = u16::try_from(CHUNK + parameter.len()).unwrap();
        parameter.resize(parameter.len().next_multiple_of(4), 0);
        // The first packet has no verification tag.
        let tag = if self.kind == INIT { 0 } else { TAG };
        let mut bytes = [self.ports.0.to_be_bytes(), self.ports.1.to_be_bytes()].concat();
        bytes.extend([tag, 0].map(u32::to_be_bytes).concat());
        bytes.extend([self.kind, 0]);
        bytes.extend(length.to_be_bytes());
        // The window, one stream in each direction, and the first sequence number.
        bytes.extend([TAG, 65_536, 0x0001_0001, 1].map(u32::to_be_bytes).concat());
        bytes.extend(parameter);
        let sum = checksum(&bytes).to_le_bytes();
        bytes[8..HEADER].copy_from_slice(&sum);
        bytes
    }

    /// `None` if it is not a packet of this kind, or its checksum is wrong.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let half = |at: usize| {
            let two = bytes.get(at..)?.first_chunk::<2>()?;
            Some(u16::from_be_bytes(*two))
        };
        let mut blank = bytes.to_vec();
        blank.get_mut(8..HEADER)?.fill(0);
        if checksum(&blank).to_le_bytes() != bytes[8..HEADER] {
            return None;
        }
        let text = match half(HEADER + CHUNK) {
            Some(COOKIE) => {
                let length = usize::from(half(HEADER + CHUNK + 2)?);
                bytes.get(HEADER + CHUNK + 4..HEADER + CHUNK + length)?
            }
            _ => &[],
        };
        Some(Self {
            ports: (half(0)?, half(2)?),
            kind: *bytes.get(HEADER)?,
            text: String::from_utf8(text.to_vec()).ok()?,
        })
    }
}

/// A raw socket for packets of one family, in the caller's namespace.
struct Raw(UdpSocket, bool);

impl Raw {
    fn open(v4: bool) -> Self {
        let family = if v4 {
            AddressFamily::INET
        } else {
            AddressFamily::INET6
        };
        let raw = socket(family, SocketType::RAW, Some(ipproto::SCTP)).unwrap();
        Self(raw.into(), v4)
    }

    fn send(&self, packet: &Packet, to: IpAddr) {
        // The node's own rules may refuse it at once.
        let _ = self.0.send_to(&packet.encode(), SocketAddr::new(to, 0));
    }

    /// The next packet and its sender; `None` when the socket's timeout is over.
    fn receive(&self) -> Option<(Packet, IpAddr)> {
        let mut buffer = [0; 2048];
        loop {
            let (length, from) = self.0.recv_from(&mut buffer).ok()?;
            // Only IPv4 shows the header of the packet.
            let header = if self.1 {
                usize::from(buffer[0] & 15) * 4
            } else {
                0
            };
            let packet = buffer.get(header..length).and_then(Packet::decode);
            if let Some(packet) = packet {
                return Some((packet, from.ip()));
            }
        }
    }
}

/// Answers requests for an association on a port in the caller's namespace with `name` and the client's address.
pub(crate) fn serve_here(name: &str, port: u16) {
    for v4 in [true, false] {
        let (raw, name) = (Raw::open(v4), name.to_owned());
        thread::spawn(move || {
            while let Some((packet, from)) = raw.receive() {
                if packet.kind == INIT && packet.ports.1 == port {
                    let answer = Packet {
                        ports: (port, packet.ports.0),
                        kind: INIT_ACK,
                        text: format!("{name} {from}"),
                    };
                    raw.send(&answer, from);
                }
            }
        });
    }
}

/// Requests an association from the caller's namespace and returns the answer; `None` without one.
pub(crate) fn ask_here(to: SocketAddr, patience: Duration) -> Option<String> {
    let raw = Raw::open(to.is_ipv4());
    let own = NEXT_PORT.fetch_add(1, Ordering::Relaxed);
    let request = Packet {
        ports: (own, to.port()),
        kind: INIT,
        text: String::new(),
    };
    raw.send(&request, to.ip());
    let deadline = Instant::now() + patience;
    loop {
        let left = deadline.checked_duration_since(Instant::now());
        let left = left.filter(|left| !left.is_zero())?;
        raw.0.set_read_timeout(Some(left)).unwrap();
        let (packet, from) = raw.receive()?;
        if packet.kind == INIT_ACK && packet.ports == (to.port(), own) && from == to.ip() {
            return Some(packet.text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_have_the_checksum_of_sctp() {
        assert_eq!(checksum(b"123456789"), 0xe306_9283);
        for text in ["", "a", "pod-0 10.42.0.1"] {
            let packet = Packet {
                ports: (1, 2),
                kind: INIT_ACK,
                text: text.into(),
            };
            let mut bytes = packet.encode();
            assert_eq!(Packet::decode(&bytes), Some(packet));
            bytes[0] ^= 1;
            assert_eq!(Packet::decode(&bytes), None);
        }
    }
}
