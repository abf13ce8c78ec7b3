//! Serializes values as serde_json does, but faster.

use super::{Map, Number, Value};
use std::io::Write as _;

pub(crate) fn value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Number(n) => number(out, n),
        Value::String(s) => text(out, s),
        Value::Array(list) => {
            out.push(b'[');
            for (at, element) in list.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                self::value(out, element);
            }
            out.push(b']');
        }
        Value::Object(entries) => map(out, entries),
    }
}

/// Most numbers are non-negative integers.
fn digits(out: &mut Vec<u8>, mut n: u64) {
    let mut room = [0; 20];
    let mut at = room.len();
    loop {
        at -= 1;
        room[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            break;
        }
    }
    out.extend_from_slice(&room[at..]);
}

/// Floats are written as Go does.
fn number(out: &mut Vec<u8>, n: &Number) {
    match (n.as_u64(), n.as_f64()) {
        (Some(n), _) => digits(out, n),
        (None, Some(f)) if n.is_f64() => {
            out.extend_from_slice(crate::text::json_float(f).as_bytes());
        }
        // Writing to a Vec cannot fail.
        _ => drop(write!(out, "{n}")),
    }
}

pub(crate) fn map(out: &mut Vec<u8>, map: &Map) {
    out.push(b'{');
    for (at, (key, below)) in map.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        text(out, key);
        out.push(b':');
        value(out, below);
    }
    out.push(b'}');
}

/// The escape letter of each byte in a string; 0 for bytes that need none.
const ESCAPES: [u8; 256] = {
    let mut table = [0; 256];
    let mut at = 0;
    while at < 0x20 {
        table[at] = b'u';
        at += 1;
    }
    table[0x08] = b'b';
    table[b'\t' as usize] = b't';
    table[b'\n' as usize] = b'n';
    table[0x0c] = b'f';
    table[b'\r' as usize] = b'r';
    table[b'"' as usize] = b'"';
    table[b'\\' as usize] = b'\\';
    table
};

const ONES: u64 = u64::MAX / 255;

/// Whether any of eight bytes needs an escape. Bytes after the first such byte may give false
/// positives.
#[inline]
fn needs_escape(word: u64) -> bool {
    const HIGH: u64 = ONES * 0x80;
    let below = |limit: u8, word: u64| word.wrapping_sub(ONES * u64::from(limit)) & !word;
    let quote = below(1, word ^ (ONES * u64::from(b'"')));
    let backslash = below(1, word ^ (ONES * u64::from(b'\\')));
    (below(0x20, word) | quote | backslash) & HIGH != 0
}

/// Whether no byte needs an escape.
#[inline]
fn is_plain(bytes: &[u8]) -> bool {
    let word = |at: usize| match bytes.get(at..at + 8) {
        Some(word) => u64::from_le_bytes(word.try_into().unwrap_or_default()),
        // Eight bytes that need no escape.
        None => ONES * u64::from(b'x'),
    };
    match bytes.len() {
        // The last eight bytes may overlap with those checked before.
        8.. => {
            (0..bytes.len() / 8).all(|at| !needs_escape(word(at * 8)))
                && !needs_escape(word(bytes.len() - 8))
        }
        _ => bytes.iter().all(|byte| ESCAPES[usize::from(*byte)] == 0),
    }
}

/// The length of a prefix that needs no escape; at most a few bytes too short.
fn plain(bytes: &[u8]) -> usize {
    let words = bytes.chunks_exact(8);
    let is_plain =
        |word: &&[u8]| !needs_escape(u64::from_le_bytes((*word).try_into().unwrap_or_default()));
    8 * words.take_while(is_plain).count()
}

pub(crate) fn text(out: &mut Vec<u8>, text: &str) {
    out.reserve(text.len() + 2);
    out.push(b'"');
    within(out, text.as_bytes());
    out.push(b'"');
}

/// The content of a string, without quotes.
#[inline]
pub(crate) fn within(out: &mut Vec<u8>, text: &[u8]) {
    match is_plain(text) {
        true => out.extend_from_slice(text),
        false => escaped(out, text),
    }
}

fn escaped(out: &mut Vec<u8>, text: &[u8]) {
    let mut rest = text;
    let escaped = |byte: &u8| ESCAPES[usize::from(*byte)] != 0;
    loop {
        let from = plain(rest);
        let Some(at) = rest[from..].iter().position(escaped) else {
            break;
        };
        let at = from + at;
        out.extend_from_slice(&rest[..at]);
        let byte = rest[at];
        out.extend_from_slice(&[b'\\', ESCAPES[usize::from(byte)]]);
        if ESCAPES[usize::from(byte)] == b'u' {
            let _ = write!(out, "{byte:04x}");
        }
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_character_is_written_as_serde_json_writes_it_wherever_it_stands() {
        for code in 0..0x800 {
            let Some(c) = char::from_u32(code) else {
                continue;
            };
            for before in [0, 3, 7, 8, 15, 20] {
                let said = format!("{}{c}{}", "x".repeat(before), "y".repeat(9));
                let mut ours = Vec::new();
                text(&mut ours, &said);
                assert_eq!(ours, serde_json::to_vec(&said).unwrap(), "{code}");
            }
        }
    }

    #[test]
    fn whole_numbers_are_written_by_hand() {
        for n in [0, 7, 10, 99, 100, 12_345, u64::from(u32::MAX), u64::MAX] {
            let mut ours = Vec::new();
            value(&mut ours, &n.into());
            assert_eq!(ours, n.to_string().as_bytes());
        }
    }
}
