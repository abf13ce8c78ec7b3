//! A blocking route netlink socket in the network namespace of the thread that opened it, for threads that do nothing
//! else. Changes that do not need each other's answers are sent together: the kernel makes them in their order, and
//! only the last is acknowledged.

use std::{io, time::Duration};

use rtnetlink::{
    packet_core::{
        NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage,
        NetlinkPayload,
    },
    packet_route::{
        RouteNetlinkMessage,
        link::{LinkAttribute, LinkExtentMask, LinkMessage},
    },
    sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE},
};

use crate::{
    Error, Result,
    netfilter::{find, limit_waiting},
    netns::ANSWERS_WITHIN,
};

/// More than the answer about any link.
const BUFFER: usize = 32 * 1024;
const HEADER: usize = 16;
/// The length of `struct ifinfomsg`, and where the index is in it.
const LINK_HEADER: usize = 16;
const LINK_INDEX: usize = 4;
const OPERSTATE: u16 = 16;
const IF_OPER_UP: u8 = 6;

/// The socket.
pub(crate) struct RouteSocket {
    socket: Socket,
    sequence: u32,
}

/// A change of links, addresses, neighbours or routes.
pub(crate) struct Change {
    request: RouteNetlinkMessage,
    flags: u16,
    /// What it does, for errors.
    action: String,
}

impl Change {
    /// Makes something new.
    pub(crate) fn add(request: RouteNetlinkMessage, action: impl Into<String>) -> Self {
        Self::with(request, NLM_F_CREATE | NLM_F_EXCL, action)
    }

    /// Makes something, or changes what is there.
    pub(crate) fn replace(request: RouteNetlinkMessage, action: impl Into<String>) -> Self {
        Self::with(request, NLM_F_CREATE | NLM_F_REPLACE, action)
    }

    /// Changes something that exists.
    pub(crate) fn set(request: RouteNetlinkMessage, action: impl Into<String>) -> Self {
        Self::with(request, 0, action)
    }

    fn with(request: RouteNetlinkMessage, flags: u16, action: impl Into<String>) -> Self {
        Self {
            request,
            flags,
            action: action.into(),
        }
    }
}

/// A link, as far as its state is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link {
    pub index: u32,
    /// Whether packets pass.
    pub is_up: bool,
}

impl RouteSocket {
    /// A socket in the thread's namespace.
    pub(crate) fn open() -> Result<Self> {
        Self::open_within(ANSWERS_WITHIN)
    }

    /// A socket that waits so long for each answer.
    fn open_within(within: Duration) -> Result<Self> {
        let open = || {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            limit_waiting(&socket, within)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            Ok(socket)
        };
        Ok(Self {
            socket: open().map_err(Error::Socket)?,
            sequence: 0,
        })
    }

    /// Makes the changes in order, all of them, and returns the first error.
    pub(crate) fn change(&mut self, changes: Vec<Change>) -> Result<()> {
        let first = self.sequence + 1;
        let last = changes.len().saturating_sub(1);
        let mut bytes = Vec::new();
        let mut actions = Vec::with_capacity(changes.len());
        for (place, change) in changes.into_iter().enumerate() {
            let acknowledged = if place == last { NLM_F_ACK } else { 0 };
            self.append(&mut bytes, change.request, change.flags | acknowledged);
            actions.push(change.action);
        }
        if actions.is_empty() {
            return Ok(());
        }
        self.send(&bytes)?;
        let mut outcome = Ok(());
        self.receive(|message| {
            let NetlinkPayload::Error(error) = message.payload else {
                return false;
            };
            let sequence = message.header.sequence_number;
            if error.code.is_some() && outcome.is_ok() {
                let place = sequence.wrapping_sub(first) as usize;
                let action = actions.get(place).cloned().unwrap_or_default();
                outcome = Err(Error::netlink(action)(rtnetlink::Error::NetlinkError(
                    error,
                )));
            }
            sequence == first + last as u32
        })?;
        outcome
    }

    /// A link by its name, if it exists.
    pub(crate) fn link(&mut self, name: &str) -> Result<Option<Link>> {
        let mut wanted = LinkMessage::default();
        wanted.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]),
        ];
        let mut bytes = Vec::new();
        self.append(&mut bytes, RouteNetlinkMessage::GetLink(wanted), 0);
        self.send(&bytes)?;
        let answer = self.read()?;
        let body = answer.get(HEADER..).unwrap_or_default();
        // The other attributes, of which there are many, are not decoded.
        let index = body.get(LINK_INDEX..).and_then(<[u8]>::first_chunk);
        if let (Some(index), Some(attributes), false) =
            (index, body.get(LINK_HEADER..), is_error(&answer))
        {
            return Ok(Some(Link {
                index: u32::from_ne_bytes(*index),
                is_up: find(attributes, OPERSTATE) == Some(&[IF_OPER_UP]),
            }));
        }
        match decode(&answer)?.payload {
            NetlinkPayload::Error(error) if error.raw_code() == -libc::ENODEV => Ok(None),
            NetlinkPayload::Error(error) => {
                let error = rtnetlink::Error::NetlinkError(error);
                Err(Error::netlink(format!("look up link {name}"))(error))
            }
            _ => Err(invalid()),
        }
    }

    fn append(&mut self, bytes: &mut Vec<u8>, request: RouteNetlinkMessage, flags: u16) {
        let mut message = NetlinkMessage::from(request);
        self.sequence += 1;
        message.header.sequence_number = self.sequence;
        message.header.flags = NLM_F_REQUEST | flags;
        message.finalize();
        let start = bytes.len();
        bytes.resize((start + message.buffer_len()).next_multiple_of(4), 0);
        message.serialize(&mut bytes[start..]);
    }

    fn send(&self, bytes: &[u8]) -> Result<()> {
        self.socket.send(bytes, 0).map_err(Error::Socket)?;
        Ok(())
    }

    fn read(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(BUFFER);
        self.socket.recv(&mut bytes, 0).map_err(Error::Socket)?;
        Ok(bytes)
    }

    /// Reads answers until one is the last.
    fn receive(
        &self,
        mut is_last: impl FnMut(NetlinkMessage<RouteNetlinkMessage>) -> bool,
    ) -> Result<()> {
        loop {
            let bytes = self.read()?;
            let mut rest = &bytes[..];
            while rest.len() >= HEADER {
                let message = decode(rest)?;
                let length = message.header.length as usize;
                if is_last(message) {
                    return Ok(());
                }
                rest = rest
                    .get(length.max(HEADER).next_multiple_of(4)..)
                    .unwrap_or_default();
            }
        }
    }
}

fn is_error(message: &[u8]) -> bool {
    const NLMSG_ERROR: u16 = 2;
    let kind = message.get(4..).and_then(<[u8]>::first_chunk);
    kind.is_none_or(|kind| u16::from_ne_bytes(*kind) == NLMSG_ERROR)
}

fn decode(bytes: &[u8]) -> Result<NetlinkMessage<RouteNetlinkMessage>> {
    NetlinkMessage::deserialize(bytes).map_err(|_| invalid())
}

fn invalid() -> Error {
    Error::Socket(io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use network_lab as lab;
    use rtnetlink::{AddressMessageBuilder, LinkUnspec, LinkVeth};

    use super::*;

    fn address(index: u32, ip: IpAddr) -> RouteNetlinkMessage {
        let IpAddr::V4(ip) = ip else { panic!() };
        let builder = AddressMessageBuilder::<Ipv4Addr>::new().index(index);
        RouteNetlinkMessage::NewAddress(builder.address(ip, 32).build())
    }

    #[test]
    fn an_answer_that_does_not_come_is_an_error() {
        lab::node(|_| async {
            let socket = RouteSocket::open_within(Duration::from_millis(20)).unwrap();
            let error = socket.receive(|_| true).unwrap_err();
            let Error::Socket(error) = error else {
                panic!("{error}")
            };
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            // A new socket gets answers.
            assert!(RouteSocket::open().unwrap().link("lo").unwrap().is_some());
        });
    }

    #[test]
    fn changes_are_made_together_and_the_first_error_names_its_change() {
        lab::node(|_| async {
            let mut socket = RouteSocket::open().unwrap();
            assert_eq!(socket.link("d0").unwrap(), None);
            socket.change(Vec::new()).unwrap();
            let made = RouteNetlinkMessage::NewLink(LinkVeth::new("d0", "d1").build());
            socket.change(vec![Change::add(made, "make d0")]).unwrap();
            let made = socket.link("d0").unwrap().unwrap();
            assert!(!made.is_up);
            let up = || {
                RouteNetlinkMessage::SetLink(LinkUnspec::new_with_index(made.index).up().build())
            };
            let ip: IpAddr = "192.0.2.77".parse().unwrap();
            socket
                .change(vec![
                    Change::set(up(), "raise"),
                    Change::replace(address(made.index, ip), "address"),
                ])
                .unwrap();
            assert!(lab::command("ip addr show d0").contains("192.0.2.77/32"));
            let error = socket
                .change(vec![
                    Change::set(up(), "raise"),
                    Change::add(address(made.index, ip), "again"),
                    Change::add(address(9999, ip), "nowhere"),
                    Change::replace(address(made.index, "192.0.2.78".parse().unwrap()), "more"),
                ])
                .unwrap_err()
                .to_string();
            assert!(error.starts_with("again: "), "{error}");
            // The changes behind it were made, and later requests get their own answers.
            assert!(lab::command("ip addr show d0").contains("192.0.2.78/32"));
            assert_eq!(socket.link("lo").unwrap().map(|link| link.index), Some(1));
        });
    }
}
