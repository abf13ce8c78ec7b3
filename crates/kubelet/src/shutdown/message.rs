//! D-Bus messages: the few types that are used here, little endian.

use super::dbus::{Call, Error};

const LITTLE_ENDIAN: u8 = b'l';
const METHOD_CALL: u8 = 1;
#[cfg(test)]
pub(super) const METHOD_RETURN: u8 = 2;
pub(super) const SIGNAL: u8 = 4;

/// Header fields.
const PATH: u8 = 1;
const INTERFACE: u8 = 2;
const MEMBER: u8 = 3;
const ERROR_NAME: u8 = 4;
const REPLY_SERIAL: u8 = 5;
const DESTINATION: u8 = 6;
const SIGNATURE: u8 = 8;
const UNIX_FDS: u8 = 9;

/// An argument of a method call.
#[derive(Debug, Clone, Copy)]
pub(super) enum Argument<'a> {
    Text(&'a str),
    I32(i32),
    #[cfg(test)]
    Bool(bool),
    #[cfg(test)]
    VariantU64(u64),
    #[cfg(test)]
    Descriptor,
}

/// A value of a reply. Parsing stops at a value of another type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Text(String),
    Bool(bool),
    /// A 32-bit number, or the index of a file descriptor.
    U32(u32),
    U64(u64),
}

/// A message that is being made.
pub(super) struct Builder {
    kind: u8,
    fields: Vec<u8>,
    body: Vec<u8>,
}

impl Builder {
    pub(super) fn call(call: &Call<'_>, arguments: &[Argument<'_>]) -> Self {
        let mut builder = Self::for_kind(METHOD_CALL);
        for (code, signature, text) in [
            (PATH, b'o', call.path),
            (INTERFACE, b's', call.interface),
            (MEMBER, b's', call.member),
            (DESTINATION, b's', call.destination),
        ] {
            builder.field(code, signature, |to| text_into(to, text));
        }
        builder.with(arguments)
    }

    fn for_kind(kind: u8) -> Self {
        Self {
            kind,
            fields: Vec::new(),
            body: Vec::new(),
        }
    }

    fn with(mut self, arguments: &[Argument<'_>]) -> Self {
        let mut signature = String::new();
        for argument in arguments {
            signature.push_str(argument.write(&mut self.body));
        }
        if !signature.is_empty() {
            self.field(SIGNATURE, b'g', |to| signature_into(to, &signature));
        }
        self
    }

    /// Appends a header field: its code and a variant.
    fn field(&mut self, code: u8, signature: u8, write: impl FnOnce(&mut Vec<u8>)) {
        align(&mut self.fields, 8);
        self.fields.extend([code, 1, signature, 0]);
        write(&mut self.fields);
    }

    /// The bytes.
    pub(super) fn finish(self, serial: u32) -> Vec<u8> {
        let mut bytes = vec![LITTLE_ENDIAN, self.kind, 0, 1];
        number_into(&mut bytes, self.body.len());
        bytes.extend(serial.to_le_bytes());
        number_into(&mut bytes, self.fields.len());
        // The fields start at a multiple of eight, so that their own padding is right in the
        // message, too.
        bytes.extend(self.fields);
        align(&mut bytes, 8);
        bytes.extend(self.body);
        bytes
    }
}

#[cfg(test)]
impl Builder {
    pub(super) fn answer(to: u32, arguments: &[Argument<'_>], descriptors: u32) -> Self {
        let mut builder = Self::for_kind(METHOD_RETURN);
        builder.field(REPLY_SERIAL, b'u', |bytes| {
            align(bytes, 4);
            bytes.extend(to.to_le_bytes());
        });
        if descriptors > 0 {
            builder.field(UNIX_FDS, b'u', |bytes| {
                align(bytes, 4);
                bytes.extend(descriptors.to_le_bytes());
            });
        }
        builder.with(arguments)
    }

    pub(super) fn signal(call: &Call<'_>, arguments: &[Argument<'_>]) -> Self {
        let mut builder = Self::call(call, arguments);
        builder.kind = SIGNAL;
        builder
    }
}

impl Argument<'_> {
    /// Appends the argument; returns its signature.
    fn write(&self, to: &mut Vec<u8>) -> &'static str {
        match self {
            Self::Text(text) => {
                text_into(to, text);
                "s"
            }
            Self::I32(number) => {
                align(to, 4);
                to.extend(number.to_le_bytes());
                "i"
            }
            #[cfg(test)]
            Self::Bool(yes) => {
                align(to, 4);
                to.extend(u32::from(*yes).to_le_bytes());
                "b"
            }
            #[cfg(test)]
            Self::VariantU64(number) => {
                signature_into(to, "t");
                align(to, 8);
                to.extend(number.to_le_bytes());
                "v"
            }
            #[cfg(test)]
            Self::Descriptor => {
                align(to, 4);
                to.extend(0_u32.to_le_bytes());
                "h"
            }
        }
    }
}

fn align(bytes: &mut Vec<u8>, to: usize) {
    bytes.resize(bytes.len().next_multiple_of(to), 0);
}

fn number_into(to: &mut Vec<u8>, number: usize) {
    // Messages are far smaller than 4 GiB.
    to.extend(u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
}

fn text_into(to: &mut Vec<u8>, text: &str) {
    align(to, 4);
    number_into(to, text.len());
    to.extend(text.as_bytes());
    to.push(0);
}

fn signature_into(to: &mut Vec<u8>, signature: &str) {
    to.push(u8::try_from(signature.len()).unwrap_or(u8::MAX));
    to.extend(signature.as_bytes());
    to.push(0);
}

/// A received message.
#[derive(Debug, Default)]
pub(super) struct Message {
    kind: u8,
    pub reply_to: Option<u32>,
    pub member: String,
    pub error: Option<String>,
    pub descriptors: u32,
    pub values: Vec<Value>,
}

impl Message {
    pub(super) fn is_signal(&self) -> bool {
        self.kind == SIGNAL
    }

    pub(super) fn read(bytes: &[u8]) -> Result<Self, Error> {
        let mut reader = Reader { bytes, at: 0 };
        let mut message = Self::default();
        let head = reader.take(12)?;
        message.kind = head[1];
        let length = reader.u32()? as usize;
        let end = reader.at + length;
        let mut signature = String::new();
        while reader.at < end {
            reader.align(8);
            let code = reader.take(1)?[0];
            let kind = reader.signature()?;
            let value = reader.value(&kind)?;
            match (code, value) {
                (MEMBER, Some(Value::Text(text))) => message.member = text,
                (ERROR_NAME, Some(Value::Text(text))) => message.error = Some(text),
                (REPLY_SERIAL, Some(Value::U32(serial))) => message.reply_to = Some(serial),
                (UNIX_FDS, Some(Value::U32(count))) => message.descriptors = count,
                (SIGNATURE, Some(Value::Text(text))) => signature = text,
                (_, Some(_)) => {}
                (_, None) => return Err(Error::Protocol("unknown type of a D-Bus header field")),
            }
        }
        reader.align(8);
        for kind in signature.chars() {
            match reader.value(kind.encode_utf8(&mut [0; 4]))? {
                Some(value) => message.values.push(value),
                None => break,
            }
        }
        Ok(message)
    }
}

/// Parses a message.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    /// The length of the whole message, from its first 16 bytes.
    pub(super) fn length(bytes: &[u8]) -> Result<usize, Error> {
        let mut reader = Reader { bytes, at: 0 };
        if reader.take(4)?[0] != LITTLE_ENDIAN {
            return Err(Error::Protocol("D-Bus message is not little-endian"));
        }
        let body = reader.u32()? as usize;
        reader.take(4)?;
        let fields = reader.u32()? as usize;
        Ok((16 + fields).next_multiple_of(8) + body)
    }

    fn take(&mut self, count: usize) -> Result<&[u8], Error> {
        let end = self.at.saturating_add(count);
        let taken = self.bytes.get(self.at..end);
        let taken = taken.ok_or(Error::Protocol("truncated D-Bus message"))?;
        self.at = end;
        Ok(taken)
    }

    fn align(&mut self, to: usize) {
        self.at = self.at.next_multiple_of(to);
    }

    fn u32(&mut self) -> Result<u32, Error> {
        self.align(4);
        let bytes = self.take(4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn text(&mut self, length: usize) -> Result<String, Error> {
        let text = self.take(length)?;
        let text = String::from_utf8(text.to_vec());
        let text = text.map_err(|_| Error::Protocol("D-Bus string is not UTF-8"))?;
        self.take(1)?;
        Ok(text)
    }

    fn signature(&mut self) -> Result<String, Error> {
        let length = self.take(1)?[0];
        self.text(length.into())
    }

    /// Parses a value; `None` for other types.
    fn value(&mut self, kind: &str) -> Result<Option<Value>, Error> {
        Ok(Some(match kind {
            "s" | "o" => {
                let length = self.u32()? as usize;
                Value::Text(self.text(length)?)
            }
            "g" => Value::Text(self.signature()?),
            "b" => Value::Bool(self.u32()? != 0),
            "i" | "u" | "h" => Value::U32(self.u32()?),
            "t" => {
                self.align(8);
                let bytes = self.take(8)?;
                let bytes = <[u8; 8]>::try_from(bytes);
                Value::U64(u64::from_le_bytes(bytes.unwrap_or_default()))
            }
            "v" => {
                let kind = self.signature()?;
                // Nested variants could recurse without end.
                if kind == "v" {
                    return Ok(None);
                }
                return self.value(&kind);
            }
            _ => return Ok(None),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: Call<'static> = Call {
        destination: "a.b",
        path: "/c",
        interface: "d.e",
        member: "F",
    };

    #[test]
    fn a_written_message_is_read_back() {
        let bytes = Builder::signal(
            &CALL,
            &[
                Argument::Text("x"),
                Argument::Bool(true),
                Argument::I32(3),
                Argument::VariantU64(7),
            ],
        )
        .finish(9);
        assert_eq!(Reader::length(&bytes).unwrap(), bytes.len());
        let message = Message::read(&bytes).unwrap();
        assert!(message.is_signal());
        assert_eq!(message.member, "F");
        assert_eq!(
            message.values,
            [
                Value::Text("x".into()),
                Value::Bool(true),
                Value::U32(3),
                Value::U64(7)
            ]
        );
    }

    #[test]
    fn broken_messages_are_errors() {
        let whole = Builder::call(&CALL, &[Argument::Text("x")]).finish(1);
        for end in 0..whole.len() {
            assert!(Message::read(&whole[..end]).is_err(), "{end}");
        }
        let mut big = whole;
        big[0] = b'B';
        assert!(Reader::length(&big).is_err());
    }
}
