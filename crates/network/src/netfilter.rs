//! Netfilter netlink messages, and the generation of the nftables ruleset.

use std::{io, time::Duration};

use nix::sys::{
    socket::{setsockopt, sockopt::ReceiveTimeout},
    time::TimeVal,
};
use rtnetlink::sys::{Socket, SocketAddr};

use crate::netns::ANSWERS_WITHIN;

const NETLINK_NETFILTER: isize = 12;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const HEADER: usize = 16;
const KIND: u16 = 0x3fff;
const GET_GENERATION: u16 = 0x0a10;
const NEW_GENERATION: u16 = 0x0a0f;
const GENERATION_ID: u16 = 1;

pub(crate) const REQUEST: u16 = 1;
pub(crate) const ACK: u16 = 4;
pub(crate) const DUMP: u16 = 0x300;
/// The length of the netfilter header after netlink's.
pub(crate) const GENERIC: usize = 4;

/// A netfilter socket in the caller's network namespace.
pub(crate) fn open() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    limit_waiting(&socket, ANSWERS_WITHIN)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    Ok(socket)
}

/// Lets a blocking socket wait only so long for an answer, which the kernel may lose.
pub(crate) fn limit_waiting(socket: &Socket, within: Duration) -> io::Result<()> {
    let seconds = i64::try_from(within.as_secs()).unwrap_or(i64::MAX);
    let within = TimeVal::new(seconds, i64::from(within.subsec_micros()));
    Ok(setsockopt(socket, ReceiveTimeout, &within)?)
}

/// The ruleset generation, which every change of nftables by any program increments.
pub(crate) fn generation() -> io::Result<u32> {
    let socket = open()?;
    socket.send(&message(GET_GENERATION, REQUEST | ACK, 0, &[]), 0)?;
    let mut generation = None;
    receive(&socket, |kind, body| {
        if kind == NEW_GENERATION
            && let Some(found) = body
                .get(GENERIC..)
                .and_then(|bytes| find(bytes, GENERATION_ID))
        {
            generation = found.first_chunk().copied().map(u32::from_be_bytes);
        }
    })?;
    generation.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// A request to a subsystem.
pub(crate) fn message(kind: u16, flags: u16, family: u8, attributes: &[u8]) -> Vec<u8> {
    let length = (HEADER + GENERIC + attributes.len()) as u32;
    let mut bytes = Vec::with_capacity(length as usize);
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([family, 0, 0, 0]);
    bytes.extend(attributes);
    bytes
}

/// Reads messages until the response is complete.
pub(crate) fn receive(socket: &Socket, mut each: impl FnMut(u16, &[u8])) -> io::Result<()> {
    loop {
        let (bytes, _) = socket.recv_from_full()?;
        let mut rest = &bytes[..];
        while rest.len() >= HEADER {
            let length = u32::from_ne_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
            if length < HEADER || length > rest.len() {
                return Err(io::Error::from(io::ErrorKind::InvalidData));
            }
            let kind = u16::from_ne_bytes([rest[4], rest[5]]);
            let body = &rest[HEADER..length];
            match kind {
                NLMSG_DONE => return Ok(()),
                NLMSG_ERROR => return answer(body),
                _ => each(kind, body),
            }
            rest = &rest[align(length).min(rest.len())..];
        }
    }
}

fn answer(body: &[u8]) -> io::Result<()> {
    match body
        .first_chunk::<4>()
        .map(|code| i32::from_ne_bytes(*code))
    {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(-code)),
        None => Err(io::Error::from(io::ErrorKind::InvalidData)),
    }
}

fn align(length: usize) -> usize {
    (length + 3) & !3
}

/// The attributes of a message: kind, whole attribute, payload.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8], &[u8])> {
    std::iter::from_fn(move || {
        let header = bytes.first_chunk::<4>()?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & KIND;
        if length < 4 || length > bytes.len() {
            return None;
        }
        let (whole, payload) = (&bytes[..length], &bytes[4..length]);
        bytes = &bytes[align(length).min(bytes.len())..];
        Some((kind, whole, payload))
    })
}

/// The payload of the first attribute of a kind.
pub(crate) fn find(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes)
        .find(|(kind, ..)| *kind == wanted)
        .map(|(_, _, payload)| payload)
}

#[cfg(test)]
mod tests {
    use super::*;
    use network_lab as lab;

    #[test]
    fn every_change_of_rules_is_one_generation() {
        lab::node(|_| async {
            let before = generation().unwrap();
            assert_eq!(generation().unwrap(), before);
            lab::command("nft 'add table inet a; add chain inet a b; add rule inet a b drop'");
            assert_eq!(generation().unwrap(), before.wrapping_add(1));
            // It exists: nothing changes.
            lab::command("nft list ruleset");
            assert_eq!(generation().unwrap(), before.wrapping_add(1));
        });
    }
}
