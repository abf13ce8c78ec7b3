//! Lone surrogates in JSON escapes, as JavaScript writes them for a split character. Go reads each
//! as the replacement character.

/// The document with its lone surrogates replaced; `None` if it has none.
pub(super) fn replace_lone_surrogates(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut mended: Option<Vec<u8>> = None;
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] != b'\\' {
            at += 1;
            continue;
        }
        match unit(bytes, at) {
            Some(0xd800..=0xdbff) if matches!(unit(bytes, at + 6), Some(0xdc00..=0xdfff)) => {
                at += 12;
            }
            Some(0xd800..=0xdfff) => {
                let mended = mended.get_or_insert_with(|| bytes.to_vec());
                mended[at..at + 6].copy_from_slice(br"\ufffd");
                at += 6;
            }
            Some(_) => at += 6,
            None => at += 2,
        }
    }
    mended
}

/// The code unit of an escape `\uXXXX`.
fn unit(bytes: &[u8], at: usize) -> Option<u16> {
    let digits = bytes.get(at..at + 6)?.strip_prefix(br"\u")?;
    let digits = std::str::from_utf8(digits).ok()?;
    u16::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lone_halves_become_the_replacement_character() {
        for (given, expected) in [
            (r#""\ud800""#, Some(r#""\ufffd""#)),
            (r#""\udc00x""#, Some(r#""\ufffdx""#)),
            (r#""\ud83d\ude00""#, None),
            (r#""\ud83d\ud83d\ude00""#, Some(r#""\ufffd\ud83d\ude00""#)),
            (r#""\\ud800""#, None),
            (r#""\u00e9\q""#, None),
            (r#""\ud8""#, None),
        ] {
            let mended = replace_lone_surrogates(given.as_bytes());
            assert_eq!(mended.as_deref(), expected.map(str::as_bytes), "{given}");
        }
    }
}
