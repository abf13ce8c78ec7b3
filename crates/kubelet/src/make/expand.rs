//! `$(NAME)` references in commands, arguments and values. `$$` is a dollar; unknown references
//! stay as written. Results have a limit: references to references double in size with each step.

use std::collections::BTreeMap;

/// The most bytes of an environment, of the words of a command, and of a path. The kernel passes six megabytes of words and
/// environment to a program.
pub const LIMIT: usize = 8 << 20;

/// A result is larger than its limit.
#[derive(Debug, PartialEq, Eq)]
pub struct TooLong;

/// Replaces references to `known` names. The result has at most `limit` bytes.
pub fn expand(
    text: &str,
    known: &BTreeMap<String, String>,
    limit: usize,
) -> Result<String, TooLong> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest
            .strip_prefix('(')
            .and_then(|inner| inner.split_once(')'))
        {
            match known.get(name) {
                Some(value) if value.len() > limit.saturating_sub(out.len()) => {
                    return Err(TooLong);
                }
                Some(value) => out.push_str(value),
                None => out.push_str(&format!("$({name})")),
            }
            rest = after;
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    match out.len() <= limit {
        true => Ok(out),
        false => Err(TooLong),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_replaced_escapes_kept_and_unknown_ones_left() {
        let known = BTreeMap::from([
            ("A".to_owned(), "1".to_owned()),
            ("B".into(), "$(A)".into()),
        ]);
        let cases = [
            ("x $(A) y", "x 1 y"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$(NOPE)", "$(NOPE)"),
            ("$(A", "$(A"),
            ("$A $", "$A $"),
            ("$(B)", "$(A)"),
            ("", ""),
            ("ä$(A)ö", "ä1ö"),
        ];
        for (text, expected) in cases {
            assert_eq!(expand(text, &known, LIMIT).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn results_have_a_limit() {
        let known = BTreeMap::from([("A".to_owned(), "12345".to_owned())]);
        assert_eq!(expand("$(A)$(A)", &known, 10).unwrap(), "1234512345");
        assert_eq!(expand("$(A)$(A)", &known, 9), Err(TooLong));
        assert_eq!(expand("123456", &known, 5), Err(TooLong));
    }
}
