//! Deletes conntrack entries. UDP has no end of a connection: a client that keeps sending would be
//! directed to a removed backend until the entry expires.
//!
//! Speaks ctnetlink itself, so that no `conntrack` program is needed. Also sets how long the kernel tracks connections.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use crate::{
    Error, Result,
    netfilter::{ACK, DUMP, GENERIC, REQUEST, attributes, find, message, open, receive},
    sysctl,
};

const MESSAGE_GET: u16 = 0x0101;
const MESSAGE_NEW: u16 = 0x0100;
const MESSAGE_DELETE: u16 = 0x0102;
const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const UDP: u8 = 17;

/// How long TCP connections are tracked, in seconds, as kube-proxy sets it. The kernel's minute for connections that
/// one side has closed is too short for a server that takes its time: its answer would no longer be translated.
const TIMEOUTS: [(&str, &str); 2] = [
    (
        "net/netfilter/nf_conntrack_tcp_timeout_established",
        "86400",
    ),
    ("net/netfilter/nf_conntrack_tcp_timeout_close_wait", "3600"),
];

/// Sets how long TCP connections are tracked. Connections work without it.
pub fn set_timeouts() {
    for (name, value) in TIMEOUTS {
        if let Err(error) = sysctl::set(name, value) {
            tracing::warn!(%error, "cannot set how long connections are tracked");
        }
    }
}

/// The minimum of tracked connections, for the machine and for each core, as kube-proxy sets it.
const ENTRIES: usize = 131_072;
const ENTRIES_PER_CORE: usize = 32_768;
const LIMIT: &str = "net/netfilter/nf_conntrack_max";

/// Raises the kernel's limit of tracked connections, which follows from the memory of the machine: when it is reached,
/// no new connection of any pod works. A higher limit stays.
pub fn raise_limit() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let wanted = wanted_entries(cores);
    let now = std::fs::read_to_string(format!("/proc/sys/{LIMIT}"));
    let now = now.ok().and_then(|now| now.trim().parse::<usize>().ok());
    if now.is_some_and(|now| now < wanted)
        && let Err(error) = sysctl::set(LIMIT, &wanted.to_string())
    {
        // Only the machine's own network namespace may change it.
        tracing::debug!(%error, "cannot raise the limit of tracked connections");
    }
}

fn wanted_entries(cores: usize) -> usize {
    ENTRIES.max(cores * ENTRIES_PER_CORE)
}

/// A tracked UDP conversation, as its first packet had it and as the answer comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// The original destination, before translation.
    pub sent_to: (IpAddr, u16),
    /// The source of the replies, after translation.
    pub answered_by: (IpAddr, u16),
}

/// Deletes every UDP entry for which `stale` returns true; returns their number.
pub async fn forget_udp(stale: impl Fn(&Flow) -> bool + Send + 'static) -> Result<usize> {
    tokio::task::spawn_blocking(move || forget(&stale))
        .await
        .map_err(|_| Error::ThreadLost)?
        .map_err(Error::Socket)
}

fn forget(stale: &dyn Fn(&Flow) -> bool) -> io::Result<usize> {
    let socket = open()?;
    let mut doomed = Vec::new();
    for family in [libc::AF_INET as u8, libc::AF_INET6 as u8] {
        socket.send(&message(MESSAGE_GET, REQUEST | DUMP, family, &[]), 0)?;
        receive(&socket, |kind, body| {
            if kind == MESSAGE_NEW
                && let Some((flow, original)) = parse(body)
                && stale(&flow)
            {
                doomed.push((family, original.to_vec()));
            }
        })?;
    }
    let mut forgotten = 0;
    for (family, original) in doomed {
        socket.send(
            &message(MESSAGE_DELETE, REQUEST | ACK, family, &original),
            0,
        )?;
        match receive(&socket, |_, _| {}) {
            Ok(()) => forgotten += 1,
            // The entry expired meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(forgotten)
}

/// The flow of a UDP entry, and its original tuple for deletion.
fn parse(body: &[u8]) -> Option<(Flow, &[u8])> {
    let bytes = body.get(GENERIC..)?;
    let (_, original, payload) = attributes(bytes).find(|(kind, ..)| *kind == TUPLE_ORIGINAL)?;
    let reply = find(bytes, TUPLE_REPLY)?;
    let sent_to = (address(payload, [2, 4])?, port(payload, 3)?);
    let answered_by = (address(reply, [1, 3])?, port(reply, 2)?);
    Some((
        Flow {
            sent_to,
            answered_by,
        },
        original,
    ))
}

/// An address of a tuple, by the attribute's number for IPv4 and IPv6.
fn address(tuple: &[u8], kinds: [u16; 2]) -> Option<IpAddr> {
    let addresses = find(tuple, 1)?;
    let v4 = find(addresses, kinds[0]).and_then(|bytes| bytes.first_chunk::<4>());
    let v6 = find(addresses, kinds[1]).and_then(|bytes| bytes.first_chunk::<16>());
    v4.map(|bytes| Ipv4Addr::from(*bytes).into())
        .or(v6.map(|bytes| Ipv6Addr::from(*bytes).into()))
}

/// A port of a UDP tuple; `None` for other protocols.
fn port(tuple: &[u8], kind: u16) -> Option<u16> {
    let protocol = find(tuple, 2)?;
    if find(protocol, 1)? != [UDP] {
        return None;
    }
    find(protocol, kind)?
        .first_chunk::<2>()
        .map(|bytes| u16::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_connections_grows_with_the_cores() {
        assert_eq!(wanted_entries(1), 131_072);
        assert_eq!(wanted_entries(4), 131_072);
        assert_eq!(wanted_entries(64), 2_097_152);
    }
}
