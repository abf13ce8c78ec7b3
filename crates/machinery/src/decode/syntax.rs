//! Errors for invalid JSON, worded as Go's decoder does. Only for rejected documents: they are
//! scanned a second time, byte by byte.

use crate::text::quote;

/// The nesting limit of Go's decoder.
const DEEPEST: usize = 10_000;

/// The error of a document; `None` if Go accepts it.
pub(super) fn complaint(bytes: &[u8]) -> Option<String> {
    let mut scan = Scan { bytes, at: 0 };
    match scan.document() {
        Ok(()) => None,
        Err(Trouble::End) => Some("unexpected end of JSON input".to_owned()),
        Err(Trouble::At(byte, context)) => {
            Some(format!("invalid character {} {context}", shown(byte)))
        }
    }
}

enum Trouble {
    End,
    At(u8, String),
}

fn shown(byte: u8) -> String {
    match byte {
        b'\'' => r"'\''".to_owned(),
        b'"' => r#"'"'"#.to_owned(),
        _ => {
            let quoted = quote(&char::from(byte).to_string());
            format!("'{}'", &quoted[1..quoted.len() - 1])
        }
    }
}

/// What may follow inside an array or an object.
#[derive(Clone, Copy, PartialEq)]
enum Expect {
    FirstKey,
    Key,
    Colon,
    FirstElement,
    Value,
    AfterPair,
    AfterElement,
}

struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Scan<'_> {
    fn next(&mut self) -> Result<u8, Trouble> {
        let byte = self.bytes.get(self.at).copied().ok_or(Trouble::End)?;
        self.at += 1;
        Ok(byte)
    }

    fn next_visible(&mut self) -> Result<u8, Trouble> {
        loop {
            let byte = self.next()?;
            if !matches!(byte, b' ' | b'\t' | b'\r' | b'\n') {
                return Ok(byte);
            }
        }
    }

    fn document(&mut self) -> Result<(), Trouble> {
        let mut open: Vec<Expect> = Vec::new();
        let first = self.next_visible()?;
        self.value(first, &mut open)?;
        while let Some(expect) = open.last().copied() {
            let byte = self.next_visible()?;
            self.inside(expect, byte, &mut open)?;
        }
        match self.next_visible() {
            Ok(byte) => Err(Trouble::At(byte, "after top-level value".to_owned())),
            Err(_) => Ok(()),
        }
    }

    /// One step inside the innermost array or object.
    fn inside(&mut self, expect: Expect, byte: u8, open: &mut Vec<Expect>) -> Result<(), Trouble> {
        let wrong = |context: &str| Err(Trouble::At(byte, context.to_owned()));
        let mut go_on = |next: Expect| {
            if let Some(last) = open.last_mut() {
                *last = next;
            }
        };
        match (expect, byte) {
            (Expect::FirstKey | Expect::AfterPair, b'}')
            | (Expect::FirstElement | Expect::AfterElement, b']') => {
                open.pop();
                Ok(())
            }
            (Expect::FirstKey | Expect::Key, b'"') => {
                go_on(Expect::Colon);
                self.string()
            }
            (Expect::FirstKey | Expect::Key, _) => {
                wrong("looking for beginning of object key string")
            }
            (Expect::Colon, b':') => {
                go_on(Expect::AfterPair);
                let first = self.next_visible()?;
                self.value(first, open)
            }
            (Expect::Colon, _) => wrong("after object key"),
            (Expect::AfterPair, b',') => {
                go_on(Expect::Key);
                Ok(())
            }
            (Expect::AfterPair, _) => wrong("after object key:value pair"),
            (Expect::AfterElement, b',') => {
                go_on(Expect::Value);
                Ok(())
            }
            (Expect::AfterElement, _) => wrong("after array element"),
            (Expect::FirstElement | Expect::Value, _) => {
                go_on(Expect::AfterElement);
                self.value(byte, open)
            }
        }
    }

    /// The beginning of a value; a scalar is read completely.
    fn value(&mut self, first: u8, open: &mut Vec<Expect>) -> Result<(), Trouble> {
        match first {
            b'{' | b'[' => {
                if open.len() >= DEEPEST {
                    return Err(Trouble::At(first, "exceeded max depth".to_owned()));
                }
                let inside = first == b'{';
                open.push(if inside {
                    Expect::FirstKey
                } else {
                    Expect::FirstElement
                });
                Ok(())
            }
            b'"' => self.string(),
            b'-' | b'0'..=b'9' => self.number(first),
            b't' => self.literal("true"),
            b'f' => self.literal("false"),
            b'n' => self.literal("null"),
            _ => Err(Trouble::At(
                first,
                "looking for beginning of value".to_owned(),
            )),
        }
    }

    fn literal(&mut self, word: &str) -> Result<(), Trouble> {
        for expected in word.bytes().skip(1) {
            let byte = self.next()?;
            if byte != expected {
                let expected = char::from(expected);
                let context = format!("in literal {word} (expecting '{expected}')");
                return Err(Trouble::At(byte, context));
            }
        }
        Ok(())
    }

    fn string(&mut self) -> Result<(), Trouble> {
        loop {
            match self.next()? {
                b'"' => return Ok(()),
                b'\\' => match self.next()? {
                    b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"' => {}
                    b'u' => {
                        for _ in 0..4 {
                            let byte = self.next()?;
                            if !byte.is_ascii_hexdigit() {
                                let context = r"in \u hexadecimal character escape";
                                return Err(Trouble::At(byte, context.to_owned()));
                            }
                        }
                    }
                    byte => return Err(Trouble::At(byte, "in string escape code".to_owned())),
                },
                byte if byte < 0x20 => {
                    return Err(Trouble::At(byte, "in string literal".to_owned()));
                }
                _ => {}
            }
        }
    }

    fn digits(&mut self) {
        while self.bytes.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
    }

    fn digit(&mut self, context: &str) -> Result<u8, Trouble> {
        let byte = self.next()?;
        if byte.is_ascii_digit() {
            Ok(byte)
        } else {
            Err(Trouble::At(byte, context.to_owned()))
        }
    }

    fn number(&mut self, mut first: u8) -> Result<(), Trouble> {
        if first == b'-' {
            first = self.digit("in numeric literal")?;
        }
        if first != b'0' {
            self.digits();
        }
        if self.bytes.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.digit("after decimal point in numeric literal")?;
            self.digits();
        }
        if matches!(self.bytes.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.bytes.get(self.at), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digit("in exponent of numeric literal")?;
            self.digits();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_json_is_refused_with_gos_message() {
        let cases = [
            ("", "unexpected end of JSON input"),
            ("{", "unexpected end of JSON input"),
            (
                "hello",
                "invalid character 'h' looking for beginning of value",
            ),
            ("{} x", "invalid character 'x' after top-level value"),
            (
                "{'a':1}",
                r"invalid character '\'' looking for beginning of object key string",
            ),
            (
                r#"{"a":1,}"#,
                "invalid character '}' looking for beginning of object key string",
            ),
            (r#"{"a" 1}"#, "invalid character '1' after object key"),
            (
                r#"{"a":1 "b"}"#,
                r#"invalid character '"' after object key:value pair"#,
            ),
            ("[1 2]", "invalid character '2' after array element"),
            (
                "[1,]",
                "invalid character ']' looking for beginning of value",
            ),
            (r#""\q""#, "invalid character 'q' in string escape code"),
            ("\"\u{1}\"", r"invalid character '\x01' in string literal"),
            (
                "tru1",
                "invalid character '1' in literal true (expecting 'e')",
            ),
            ("-x", "invalid character 'x' in numeric literal"),
            (
                "1.x",
                "invalid character 'x' after decimal point in numeric literal",
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(
                complaint(text.as_bytes()).as_deref(),
                Some(expected),
                "{text}"
            );
        }
        for fine in ["{}", " [1, -2.5e3, \"\\u00e4\", null] ", "\"x\""] {
            assert_eq!(complaint(fine.as_bytes()), None, "{fine}");
        }
        let deep = "[".repeat(10_001);
        let expected = "invalid character '[' exceeded max depth";
        assert_eq!(complaint(deep.as_bytes()).as_deref(), Some(expected));
    }
}
