//! Mail addresses of RFC 5322: `a@b`, `"a b"@c`, `Name <a@b>`, with trailing comments.

/// Whether a text is one address.
pub(super) fn is_address(text: &str) -> bool {
    let text = text.trim_matches([' ', '\t']);
    if addr_spec(text).is_some_and(is_end) {
        return true;
    }
    let Some(open) = angle(text) else {
        return false;
    };
    let (name, rest) = text.split_at(open);
    is_phrase(name)
        && addr_spec(&rest[1..])
            .and_then(|rest| skip(rest).strip_prefix('>'))
            .is_some_and(is_end)
}

/// Where the address in angle brackets begins.
fn angle(text: &str) -> Option<usize> {
    let (mut quoted, mut escaped) = (false, false);
    for (i, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            '<' if !quoted => return Some(i),
            _ => {}
        }
    }
    None
}

/// Only blanks and comments may follow.
fn is_end(rest: &str) -> bool {
    let rest = skip(rest);
    rest.is_empty()
        || (rest.starts_with('(') && rest.ends_with(')') && rest.matches('(').count() == 1)
}

fn skip(text: &str) -> &str {
    text.trim_start_matches([' ', '\t'])
}

/// A name: words and quoted strings.
fn is_phrase(mut text: &str) -> bool {
    loop {
        text = skip(text);
        if text.is_empty() {
            return true;
        }
        let after = match text.strip_prefix('"') {
            Some(rest) => quoted(rest),
            None => atom(text),
        };
        match after {
            Some(after) => text = after,
            None => return false,
        }
    }
}

/// Parses `local@domain`; returns the rest.
fn addr_spec(text: &str) -> Option<&str> {
    let text = skip(text);
    let rest = match text.strip_prefix('"') {
        Some(rest) => quoted(rest)?,
        None => atom(text)?,
    };
    let domain = skip(rest.strip_prefix('@')?);
    match domain.strip_prefix('[') {
        Some(literal) => {
            let (inside, after) = literal.split_once(']')?;
            inside.parse::<std::net::IpAddr>().ok().map(|_| after)
        }
        None => atom(domain),
    }
}

/// The rest after a quoted string.
fn quoted(text: &str) -> Option<&str> {
    let mut escaped = false;
    for (i, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Some(&text[i + 1..]),
            c if (c as u32) < 0x20 && c != '\t' => return None,
            _ => {}
        }
    }
    None
}

/// The rest after an atom, which may contain single dots.
fn atom(text: &str) -> Option<&str> {
    let is_text =
        |c: char| !c.is_ascii() || c.is_ascii_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c);
    let end = text.find(|c: char| !is_text(c) && c != '.');
    let (word, rest) = text.split_at(end.unwrap_or(text.len()));
    let right =
        !word.is_empty() && !word.starts_with('.') && !word.ends_with('.') && !word.contains("..");
    right.then_some(rest)
}

#[cfg(test)]
mod tests {
    #[test]
    fn only_email_addresses_are_accepted() {
        let right = [
            "a@b",
            "a.b@c.d",
            "\"a b\"@c",
            "Name <a@b>",
            "\"x, y\" <a@b>",
            "<a@b>",
            "a@[1.2.3.4]",
        ];
        let wrong = [
            "", "a", "a@", "@b", "a..b@c", "a b@c", "a @b", "a@b@c", "a@b,c@d", ".a@b", "Name a@b",
            "a@b>",
        ];
        for text in right {
            assert!(super::is_address(text), "{text}");
        }
        for text in wrong {
            assert!(!super::is_address(text), "{text}");
        }
    }
}
