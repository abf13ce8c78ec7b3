//! D-Bus messages: the few types that are used here, little endian.

use crate::{Call, Error};

const LITTLE_ENDIAN: u8 = b'l';
const METHOD_CALL: u8 = 1;
const METHOD_RETURN: u8 = 2;
const ERROR: u8 = 3;
const SIGNAL: u8 = 4;

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
pub enum Argument<'a> {
    /// A string.
    Text(&'a str),
    /// A signed number.
    I32(i32),
    /// A boolean.
    Bool(bool),
    /// The path of an object.
    Path(&'a str),
    /// An unsigned number.
    U32(u32),
    /// A number as a variant.
    VariantU64(u64),
    /// The first file descriptor that is sent along.
    Descriptor,
    /// Properties of a unit: `a(sv)`.
    Properties(&'a [Property]),
    /// No auxiliary units: an empty `a(sa(sv))`.
    NoUnits,
}

/// A property with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Property {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: Variant,
}

/// The value of a property.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Variant {
    /// A string.
    Text(String),
    /// Strings.
    Texts(Vec<String>),
    /// A boolean.
    Bool(bool),
    /// A number.
    U64(u64),
    /// Numbers.
    U32s(Vec<u32>),
}

/// A value of a reply. Parsing stops at a value of another type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A string, the path of an object, or a signature.
    Text(String),
    /// A boolean.
    Bool(bool),
    /// A 32-bit number, or the index of a file descriptor.
    U32(u32),
    /// A 64-bit number.
    U64(u64),
}

/// A message that is being made.
pub struct Builder {
    kind: u8,
    fields: Vec<u8>,
    body: Vec<u8>,
}

impl Builder {
    /// A method call.
    pub fn call(call: &Call<'_>, arguments: &[Argument<'_>]) -> Self {
        let mut builder = Self::for_kind(METHOD_CALL);
        for (code, signature, text) in [
            (PATH, b'o', call.path),
            (INTERFACE, b's', call.interface),
            (MEMBER, b's', call.member),
            (DESTINATION, b's', call.destination),
        ] {
            // A service that is reached without a bus has no name.
            if !text.is_empty() {
                builder.field(code, signature, |to| text_into(to, text));
            }
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
    pub fn finish(self, serial: u32) -> Vec<u8> {
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

/// The messages of services.
impl Builder {
    /// The reply to a call.
    pub fn answer(to: u32, arguments: &[Argument<'_>], descriptors: u32) -> Self {
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

    /// An error as the reply to a call.
    pub fn error(to: u32, name: &str, message: &str) -> Self {
        let mut builder = Self::answer(to, &[Argument::Text(message)], 0);
        builder.kind = ERROR;
        builder.field(ERROR_NAME, b's', |bytes| text_into(bytes, name));
        builder
    }

    /// A signal.
    pub fn signal(call: &Call<'_>, arguments: &[Argument<'_>]) -> Self {
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
            Self::Path(path) => {
                text_into(to, path);
                "o"
            }
            Self::I32(number) => {
                align(to, 4);
                to.extend(number.to_le_bytes());
                "i"
            }
            Self::U32(number) => {
                align(to, 4);
                to.extend(number.to_le_bytes());
                "u"
            }
            Self::Bool(yes) => {
                align(to, 4);
                to.extend(u32::from(*yes).to_le_bytes());
                "b"
            }
            Self::VariantU64(number) => {
                Variant::U64(*number).write(to);
                "v"
            }
            Self::Descriptor => {
                align(to, 4);
                to.extend(0_u32.to_le_bytes());
                "h"
            }
            Self::Properties(all) => {
                array_into(to, 8, |to| all.iter().for_each(|one| one.write(to)));
                "a(sv)"
            }
            Self::NoUnits => {
                array_into(to, 8, |_| {});
                "a(sa(sv))"
            }
        }
    }
}

impl Property {
    fn write(&self, to: &mut Vec<u8>) {
        // A struct begins at a multiple of eight.
        align(to, 8);
        text_into(to, self.name);
        self.value.write(to);
    }
}

impl Variant {
    fn write(&self, to: &mut Vec<u8>) {
        match self {
            Self::Text(text) => {
                signature_into(to, "s");
                text_into(to, text);
            }
            Self::Texts(texts) => {
                signature_into(to, "as");
                array_into(to, 4, |to| {
                    texts.iter().for_each(|text| text_into(to, text))
                });
            }
            Self::Bool(yes) => {
                signature_into(to, "b");
                align(to, 4);
                to.extend(u32::from(*yes).to_le_bytes());
            }
            Self::U64(number) => {
                signature_into(to, "t");
                align(to, 8);
                to.extend(number.to_le_bytes());
            }
            Self::U32s(numbers) => {
                signature_into(to, "au");
                array_into(to, 4, |to| {
                    for number in numbers {
                        to.extend(number.to_le_bytes());
                    }
                });
            }
        }
    }
}

/// Appends an array: its length in bytes, the padding before its first element, which does not
/// count, and the elements.
fn array_into(to: &mut Vec<u8>, alignment: usize, elements: impl FnOnce(&mut Vec<u8>)) {
    align(to, 4);
    let length_at = to.len();
    number_into(to, 0);
    align(to, alignment);
    let begin = to.len();
    elements(to);
    // Messages are far smaller than 4 GiB.
    let length = u32::try_from(to.len() - begin).unwrap_or(u32::MAX);
    to[length_at..length_at + 4].copy_from_slice(&length.to_le_bytes());
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
pub struct Message {
    kind: u8,
    /// The serial number of the call that this replies to.
    pub reply_to: Option<u32>,
    /// The method or signal.
    pub member: String,
    /// The name of the error.
    pub error: Option<String>,
    /// The service that it is for.
    pub destination: Option<String>,
    /// The number of file descriptors that belong to it.
    pub descriptors: u32,
    /// The arguments.
    pub values: Vec<Value>,
}

impl Message {
    /// Whether it is a signal.
    pub fn is_signal(&self) -> bool {
        self.kind == SIGNAL
    }

    /// The message itself, unless it is an error.
    pub fn into_answer(self) -> Result<Self, Error> {
        let Some(name) = self.error else {
            return Ok(self);
        };
        let message = match self.values.into_iter().next() {
            Some(Value::Text(text)) => text,
            _ => String::new(),
        };
        Err(Error::Answer { name, message })
    }

    /// Parses a message.
    pub fn read(bytes: &[u8]) -> Result<Self, Error> {
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
                (DESTINATION, Some(Value::Text(text))) => message.destination = Some(text),
                (REPLY_SERIAL, Some(Value::U32(serial))) => message.reply_to = Some(serial),
                (UNIX_FDS, Some(Value::U32(count))) => message.descriptors = count,
                (SIGNATURE, Some(Value::Text(text))) => signature = text,
                (_, Some(_)) => {}
                (_, None) => return Err(Error::Protocol("unknown type of a D-Bus header field")),
            }
        }
        reader.align(8);
        // Parsing stops before the first value of another type, such as an array.
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
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    /// The length of the whole message, from its first 16 bytes.
    pub fn length(bytes: &[u8]) -> Result<usize, Error> {
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

    /// The body that systemd 252's busctl sends for `busctl call … StartTransientUnit "ssa(sv)a(sa(sv))"
    /// a.scope replace 4 Delegate b true Wants as 1 w.slice PIDs au 1 7 MemoryMax t 9 0`.
    #[test]
    fn properties_are_encoded_as_systemd_expects() {
        let all = [
            ("Delegate", Variant::Bool(true)),
            ("Wants", Variant::Texts(vec!["w.slice".into()])),
            ("PIDs", Variant::U32s(vec![7])),
            ("MemoryMax", Variant::U64(9)),
        ];
        let all = all.map(|(name, value)| Property { name, value });
        let builder = Builder::call(
            &CALL,
            &[
                Argument::Text("a.scope"),
                Argument::Text("replace"),
                Argument::Properties(&all),
                Argument::NoUnits,
            ],
        );
        let shown: String = builder
            .body
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let expected = "07000000612e73636f706500070000007265706c616365007000000000000000\
        0800000044656c65676174650001620001000000000000000500000057616e74\
        73000261730000000c00000007000000772e736c696365000400000050494473\
        00026175000000000400000007000000090000004d656d6f72794d6178000174\
        000000000000000009000000000000000000000000000000";
        assert_eq!(shown, expected);
    }
}
