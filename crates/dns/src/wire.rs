//! A fast parser for plain requests: one question, optional EDNS, nothing else. Other requests are
//! parsed by the full codec.

/// A plain request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plain<'a> {
    /// The question's name as received, with its final empty label.
    pub name: &'a [u8],
    /// Type and class.
    pub kind: &'a [u8],
    /// The client's EDNS payload size, if any.
    pub payload: Option<u16>,
    /// Whether DNSSEC records or unchecked data are requested.
    pub dnssec: bool,
}

/// The length of a message's header.
pub const HEADER: usize = 12;
const CHECKING_DISABLED: u8 = 0x10;

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..)?.first_chunk::<2>()?;
    Some(u16::from_be_bytes(*bytes))
}

/// The end of a name without pointers.
fn end_of_name(message: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *message.get(at)? {
            0 => return Some(at + 1),
            length if length < 64 => at += 1 + usize::from(length),
            _ => return None,
        }
    }
}

/// Parses a plain request.
pub fn plain(request: &[u8]) -> Option<Plain<'_>> {
    let header = request.first_chunk::<HEADER>()?;
    // A query, not truncated, with one question and no records but one additional.
    let flags = (header[2] & !1, header[3] & !(CHECKING_DISABLED | 0x20));
    let additional = header[11];
    if flags != (0, 0) || header[4..11] != [0, 1, 0, 0, 0, 0, 0] || additional > 1 {
        return None;
    }
    let end = end_of_name(request, HEADER)?;
    let mut plain = Plain {
        name: &request[HEADER..end],
        kind: request.get(end..end + 4)?,
        payload: None,
        dnssec: header[3] & CHECKING_DISABLED != 0,
    };
    if plain.name.len() > 255 {
        return None;
    }
    let mut at = end + 4;
    if additional == 1 {
        let record = request.get(at..)?.first_chunk::<11>()?;
        // The root's name, type OPT, version 0.
        if record[..3] != [0, 0, 41] || record[6] != 0 {
            return None;
        }
        plain.payload = half(record, 3);
        plain.dnssec |= record[7] & 0x80 != 0;
        at += 11 + usize::from(half(record, 9)?);
    }
    (at == request.len()).then_some(plain)
}

impl Plain<'_> {
    /// Appends the key of a question: the name in lower case, type and class.
    pub fn write_key(&self, key: &mut Vec<u8>) {
        // Label lengths are below every letter.
        key.extend(self.name.iter().map(u8::to_ascii_lowercase));
        key.extend_from_slice(self.kind);
    }

    /// The end of the question in its message.
    pub fn end(&self) -> usize {
        HEADER + self.name.len() + self.kind.len()
    }
}

/// Sets id, the case of the question's name and flags of a reply to those of the request.
pub fn readdress(reply: &mut [u8], request: &[u8], question: &Plain<'_>) -> Option<()> {
    let name = reply.get_mut(HEADER..HEADER + question.name.len())?;
    if name.eq_ignore_ascii_case(question.name) {
        name.copy_from_slice(question.name);
    }
    let header = reply.first_chunk_mut::<HEADER>()?;
    let asked = request.first_chunk::<HEADER>()?;
    header[..2].copy_from_slice(&asked[..2]);
    header[2] = header[2] & !1 | asked[2] & 1;
    header[3] = header[3] & !CHECKING_DISABLED | asked[3] & CHECKING_DISABLED;
    Some(())
}

#[cfg(test)]
mod tests {
    use hickory_proto::{
        op::{Edns, Message, MessageType, OpCode, Query},
        rr::{Name, RecordType},
    };

    use super::*;

    fn request(name: &str) -> Message {
        let mut message = Message::new(99, MessageType::Query, OpCode::Query);
        let name = Name::from_ascii(name).unwrap();
        message.add_query(Query::query(name, RecordType::HTTPS));
        message
    }

    #[test]
    fn a_plain_request_is_read_with_and_without_edns() {
        let mut message = request("wWw.ExAmple.com.");
        message.metadata.recursion_desired = true;
        let bytes = message.to_vec().unwrap();
        let read = plain(&bytes).unwrap();
        assert_eq!((read.payload, read.dnssec), (None, false));
        let mut key = Vec::new();
        read.write_key(&mut key);
        // The type's number equals a letter and stays.
        assert_eq!(key, b"\x03www\x07example\x03com\x00\x00\x41\x00\x01");
        assert_eq!(read.end(), bytes.len());
        let mut edns = Edns::new();
        edns.set_max_payload(1400).set_dnssec_ok(true);
        message.set_edns(edns);
        let bytes = message.to_vec().unwrap();
        let read = plain(&bytes).unwrap();
        assert_eq!((read.payload, read.dnssec), (Some(1400), true));
    }

    #[test]
    fn everything_else_is_not_plain() {
        let bytes = request("a.example.").to_vec().unwrap();
        for cut in 0..bytes.len() {
            assert_eq!(plain(&bytes[..cut]), None);
        }
        assert_eq!(plain(&[&bytes[..], &[0]].concat()), None);
        for (at, value) in [(2, 0x80), (2, 0x28), (5, 2), (7, 1), (11, 1), (12, 0xc0)] {
            let mut changed = bytes.clone();
            changed[at] = value;
            assert_eq!(plain(&changed), None, "{at} {value}");
        }
    }

    #[test]
    fn a_reply_gets_the_id_and_the_letters_of_its_request() {
        let asked = request("wWw.ExAmple.com.").to_vec().unwrap();
        let mut reply = request("www.example.com.");
        (reply.metadata.id, reply.metadata.message_type) = (7, MessageType::Response);
        let mut reply = reply.to_vec().unwrap();
        readdress(&mut reply, &asked, &plain(&asked).unwrap()).unwrap();
        assert_eq!(reply[..2], asked[..2]);
        assert_eq!(reply[12..], asked[12..]);
        assert_eq!(reply[2] & 0x80, 0x80);
    }
}
