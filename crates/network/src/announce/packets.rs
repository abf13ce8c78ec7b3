//! ARP and neighbour discovery packets on Ethernet, as far as announcing needs them. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A hardware address.
pub(super) type Mac = [u8; 6];

const BROADCAST: Mac = [0xff; 6];
const ETHERTYPE_ARP: [u8; 2] = [0x08, 0x06];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const ARP_REQUEST: u8 = 1;
const ARP_REPLY: u8 = 2;
const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const TARGET_LINK_ADDRESS: u8 = 2;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ETHERNET: usize = 14;
const IPV6: usize = 40;

/// An ARP request or neighbour solicitation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Question {
    /// The requested address.
    pub about: IpAddr,
    /// The sender's address; unspecified for duplicate address detection.
    pub asker: IpAddr,
    /// The sender's hardware address.
    pub mac: Mac,
}

/// Parses a frame; `None` unless it is a request.
pub(super) fn question(frame: &[u8]) -> Option<Question> {
    let mac: Mac = *frame.get(6..)?.first_chunk()?;
    match frame.get(12..14)? {
        kind if kind == ETHERTYPE_ARP => arp_question(&frame[ETHERNET..], mac),
        kind if kind == ETHERTYPE_IPV6 => solicitation(&frame[ETHERNET..], mac),
        _ => None,
    }
}

fn arp_question(packet: &[u8], mac: Mac) -> Option<Question> {
    // Ethernet, IPv4, their lengths, a request.
    if packet.get(..8)? != [0, 1, 8, 0, 6, 4, 0, ARP_REQUEST] {
        return None;
    }
    let at = |offset: usize| -> Option<Ipv4Addr> {
        let bytes: [u8; 4] = *packet.get(offset..)?.first_chunk()?;
        Some(bytes.into())
    };
    let (asker, about) = (at(14)?, at(24)?);
    // A gratuitous ARP is not a request.
    (asker != about).then_some(Question {
        about: about.into(),
        asker: asker.into(),
        mac,
    })
}

fn solicitation(packet: &[u8], mac: Mac) -> Option<Question> {
    let (next_header, hop_limit) = (*packet.get(6)?, *packet.get(7)?);
    let message = packet.get(IPV6..)?;
    // A hop limit of 255 shows that it crossed no router.
    if next_header != ICMPV6 || hop_limit != 255 || message.get(..2)? != [SOLICITATION, 0] {
        return None;
    }
    let asker: [u8; 16] = *packet.get(8..)?.first_chunk()?;
    let about: [u8; 16] = *message.get(8..)?.first_chunk()?;
    Some(Question {
        about: IpAddr::V6(about.into()),
        asker: IpAddr::V6(asker.into()),
        mac,
    })
}

/// The reply to a request.
pub(super) fn answer(question: &Question, own: Mac) -> Vec<u8> {
    match (question.about, question.asker) {
        (IpAddr::V4(about), IpAddr::V4(asker)) => {
            arp(ARP_REPLY, own, about, question.mac, asker, question.mac)
        }
        (IpAddr::V6(about), IpAddr::V6(asker)) if !asker.is_unspecified() => {
            advertisement(own, about, question.mac, asker, SOLICITED | OVERRIDE)
        }
        (about, _) => announcement(about, own),
    }
}

/// A gratuitous announcement of an address.
pub(super) fn announcement(address: IpAddr, own: Mac) -> Vec<u8> {
    match address {
        IpAddr::V4(ip) => arp(ARP_REQUEST, own, ip, BROADCAST, ip, [0; 6]),
        IpAddr::V6(ip) => advertisement(own, ip, multicast_mac(ALL_NODES), ALL_NODES, OVERRIDE),
    }
}

/// The hardware address of a multicast group.
pub(super) fn multicast_mac(group: Ipv6Addr) -> Mac {
    let octets = group.octets();
    [0x33, 0x33, octets[12], octets[13], octets[14], octets[15]]
}

/// The solicited-node multicast group of an address.
pub(super) fn solicited_group(ip: Ipv6Addr) -> Ipv6Addr {
    let octets = ip.octets();
    let mut group = [0; 16];
    group[..13].copy_from_slice(&[0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff]);
    group[13..].copy_from_slice(&octets[13..]);
    group.into()
}

fn arp(
    operation: u8,
    own: Mac,
    sender: Ipv4Addr,
    to: Mac,
    target: Ipv4Addr,
    target_mac: Mac,
) -> Vec<u8> {
    let mut frame = Vec::with_capacity(42);
    frame.extend(to);
    frame.extend(own);
    frame.extend(ETHERTYPE_ARP);
    frame.extend([0, 1, 8, 0, 6, 4, 0, operation]);
    frame.extend(own);
    frame.extend(sender.octets());
    frame.extend(target_mac);
    frame.extend(target.octets());
    frame
}

fn advertisement(own: Mac, about: Ipv6Addr, to: Mac, asker: Ipv6Addr, flags: u8) -> Vec<u8> {
    let mut message = vec![ADVERTISEMENT, 0, 0, 0, flags, 0, 0, 0];
    message.extend(about.octets());
    message.extend([TARGET_LINK_ADDRESS, 1]);
    message.extend(own);
    let sum = checksum(about, asker, &message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frame = Vec::with_capacity(ETHERNET + IPV6 + message.len());
    frame.extend(to);
    frame.extend(own);
    frame.extend(ETHERTYPE_IPV6);
    frame.extend([0x60, 0, 0, 0, 0, message.len() as u8, ICMPV6, 255]);
    frame.extend(about.octets());
    frame.extend(asker.octets());
    frame.extend(message);
    frame
}

/// The checksum over an ICMPv6 message and its pseudo header.
fn checksum(from: Ipv6Addr, to: Ipv6Addr, message: &[u8]) -> u16 {
    let length = (message.len() as u32).to_be_bytes();
    let (from, to) = (from.octets(), to.octets());
    let parts: [&[u8]; 5] = [&from, &to, &length, &[0, 0, 0, ICMPV6], message];
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let sum: u32 = words
        .map(|word| u32::from(word[0]) << 8 | word.get(1).copied().map_or(0, u32::from))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !(((folded & 0xffff) + (folded >> 16)) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Mac = [2, 0, 0, 0, 0, 1];
    const OTHER: Mac = [2, 0, 0, 0, 0, 2];

    #[test]
    fn a_question_about_an_ipv4_address_is_answered_to_its_asker() {
        let (about, asker) = (Ipv4Addr::new(192, 0, 2, 9), Ipv4Addr::new(192, 0, 2, 2));
        let frame = arp(ARP_REQUEST, OTHER, asker, BROADCAST, about, [0; 6]);
        let asked = question(&frame).unwrap();
        assert_eq!(
            (asked.about, asked.asker, asked.mac),
            (about.into(), asker.into(), OTHER)
        );
        let reply = answer(&asked, OWN);
        assert_eq!((&reply[..6], &reply[6..12]), (&OTHER[..], &OWN[..]));
        assert_eq!(reply[21], ARP_REPLY);
        assert_eq!(&reply[28..32], about.octets());
        assert_eq!(question(&reply), None, "an answer is no question");
    }

    #[test]
    fn an_announcement_is_broadcast_and_no_question() {
        let frame = announcement("192.0.2.9".parse().unwrap(), OWN);
        assert_eq!(&frame[..6], BROADCAST);
        assert_eq!(question(&frame), None);
        let frame = announcement("fd00::9".parse().unwrap(), OWN);
        assert_eq!(&frame[..6], [0x33, 0x33, 0, 0, 0, 1]);
        assert_eq!(question(&frame), None);
    }

    #[test]
    fn a_solicitation_is_answered_with_a_right_checksum() {
        let about: Ipv6Addr = "fd00::9:8:7".parse().unwrap();
        let asker: Ipv6Addr = "fd00::2".parse().unwrap();
        let mut frame = advertisement(
            OTHER,
            asker,
            multicast_mac(solicited_group(about)),
            about,
            0,
        );
        frame[ETHERNET + IPV6] = SOLICITATION;
        frame[ETHERNET + IPV6 + 8..ETHERNET + IPV6 + 24].copy_from_slice(&about.octets());
        let asked = question(&frame).unwrap();
        assert_eq!((asked.about, asked.asker), (about.into(), asker.into()));
        let reply = answer(&asked, OWN);
        let message = &reply[ETHERNET + IPV6..];
        assert_eq!(message[4], SOLICITED | OVERRIDE);
        // With the checksum in place the sum is zero.
        assert_eq!(checksum(about, asker, message), 0);
        frame[ETHERNET + 7] = 64;
        assert_eq!(question(&frame), None, "it came over a router");
    }

    #[test]
    fn a_duplicate_address_detection_is_answered_to_all_nodes() {
        let asked = Question {
            about: "fd00::9".parse().unwrap(),
            asker: Ipv6Addr::UNSPECIFIED.into(),
            mac: OTHER,
        };
        assert_eq!(answer(&asked, OWN), announcement(asked.about, OWN));
    }

    #[test]
    fn the_group_of_an_address_has_its_last_three_bytes() {
        let group = solicited_group("fd00::1234:5678".parse().unwrap());
        assert_eq!(group, "ff02::1:ff34:5678".parse::<Ipv6Addr>().unwrap());
        assert_eq!(multicast_mac(group), [0x33, 0x33, 0xff, 0x34, 0x56, 0x78]);
    }

    #[test]
    fn truncated_and_other_packets_are_ignored() {
        let about = Ipv4Addr::new(192, 0, 2, 9);
        let asker = Ipv4Addr::new(192, 0, 2, 2);
        let frame = arp(ARP_REQUEST, OTHER, asker, BROADCAST, about, [0; 6]);
        for length in 0..frame.len() {
            assert_eq!(question(&frame[..length]), None, "{length}");
        }
        let about: Ipv6Addr = "fd00::9".parse().unwrap();
        let frame = advertisement(OTHER, about, BROADCAST, about, 0);
        for length in 0..frame.len() {
            assert_eq!(question(&frame[..length]), None, "{length}");
        }
    }
}
