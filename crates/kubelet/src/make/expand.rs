//! `$(NAME)` references in commands, arguments and values. `$$` is a dollar; unknown references
//! stay as written.

use std::collections::BTreeMap;

/// Replaces references to `known` names.
pub fn expand(text: &str, known: &BTreeMap<String, String>) -> String {
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
                Some(value) => out.push_str(value),
                None => out.push_str(&format!("$({name})")),
            }
            rest = after;
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    out
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
            assert_eq!(expand(text, &known), expected, "{text}");
        }
    }
}
