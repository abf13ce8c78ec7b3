//! Percent-encoding in URLs.

/// Replaces every byte by its escape, except for letters, digits, `-`, `.`, `_`, `~` and those in
/// `keep`.
pub fn encode(text: &str, keep: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        let kept = |also: &str| also.as_bytes().contains(&byte);
        if byte.is_ascii_alphanumeric() || kept("-._~") || kept(keep) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// Whether every percent sign is followed by two hex digits.
pub fn is_well_escaped(text: &str) -> bool {
    let digits = |rest: &str| {
        let digits = rest.as_bytes().get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    text.split('%').skip(1).all(digits)
}

/// Replaces every escape by its byte; invalid escapes stay as they are.
pub fn decode(text: &str) -> String {
    if !text.contains('%') {
        return text.to_owned();
    }
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        match (digit(bytes.get(at + 1)), digit(bytes.get(at + 2))) {
            (Some(high), Some(low)) if bytes[at] == b'%' => {
                out.push((high * 16 + low) as u8);
                at += 3;
            }
            _ => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        assert_eq!(encode("a b/c=ü~", ""), "a%20b%2Fc%3D%C3%BC~");
        assert_eq!(encode("a b/c", "/ "), "a b/c");
        let all: String = (0..=255).filter_map(char::from_u32).collect();
        assert_eq!(decode(&encode(&all, "")), all);
    }

    #[test]
    fn invalid_escapes_stay_as_they_are() {
        for (text, decoded, is_valid) in [
            ("app%3Dx+y", "app=x+y", true),
            ("100%&%zz", "100%&%zz", false),
            ("%", "%", false),
            ("%4", "%4", false),
            ("%+1", "%+1", false),
            ("%ff", "\u{fffd}", true),
        ] {
            assert_eq!(decode(text), decoded);
            assert_eq!(is_well_escaped(text), is_valid, "{text}");
        }
    }
}
