//! Values as bytes, as serde_json writes them, without its detours.

use super::{Map, Value};
use std::io::Write as _;

pub(crate) fn value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Number(n) => {
            // Writing to a Vec cannot fail.
            let _ = write!(out, "{n}");
        }
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

/// What a byte of a string becomes behind a backslash; 0 when it stands for itself.
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

pub(crate) fn text(out: &mut Vec<u8>, text: &str) {
    let mut rest = text.as_bytes();
    out.reserve(rest.len() + 2);
    out.push(b'"');
    let escaped = |byte: &u8| ESCAPES[usize::from(*byte)] != 0;
    while let Some(at) = rest.iter().position(escaped) {
        out.extend_from_slice(&rest[..at]);
        let byte = rest[at];
        out.extend_from_slice(&[b'\\', ESCAPES[usize::from(byte)]]);
        if ESCAPES[usize::from(byte)] == b'u' {
            let _ = write!(out, "{byte:04x}");
        }
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}
