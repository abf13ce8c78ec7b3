//! Regular expressions as Go writes them, for an engine with a somewhat other dialect: classes such
//! as `\d` are of ASCII, braces that repeat nothing and brackets in classes stand for themselves.

/// The same expression in the dialect of the `regex` crate.
pub fn from_go(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len() + 8);
    let mut rest = pattern;
    let mut class = false;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        let taken = match (c, class) {
            ('\\', _) => escape(after, class, &mut out),
            ('[', false) => {
                class = true;
                open_class(after, &mut out)
            }
            ('[', true) if after.starts_with(':') => posix(after, &mut out),
            ('[' | '&' | '~', true) => literal(&mut out, c),
            (']', true) => {
                class = false;
                push(&mut out, c)
            }
            ('{', false) if !repeats(after) => literal(&mut out, c),
            _ => push(&mut out, c),
        };
        rest = after.get(taken..).unwrap_or_default();
    }
    out
}

fn push(out: &mut String, c: char) -> usize {
    out.push(c);
    0
}

fn literal(out: &mut String, c: char) -> usize {
    out.push('\\');
    out.push(c);
    0
}

/// The beginning of a class, where a bracket that closes stands for itself. How much was taken.
fn open_class(after: &str, out: &mut String) -> usize {
    out.push('[');
    let negated = after.starts_with('^');
    if negated {
        out.push('^');
    }
    let taken = usize::from(negated);
    if after[taken..].starts_with(']') {
        out.push_str("\\]");
        return taken + 1;
    }
    taken
}

/// A class such as `[:alpha:]`, which is kept whole. How much was taken.
fn posix(after: &str, out: &mut String) -> usize {
    let end = after.find(":]").map_or(0, |end| end + 2);
    out.push_str(if end == 0 { "\\[" } else { "[" });
    out.push_str(&after[..end]);
    end
}

/// What stands behind a backslash. How much was taken.
fn escape(after: &str, class: bool, out: &mut String) -> usize {
    let Some(c) = after.chars().next() else {
        out.push('\\');
        return 0;
    };
    let known = match (c, class) {
        ('d', false) => "[0-9]",
        ('d', true) => "0-9",
        ('D', _) => "[^0-9]",
        ('w', false) => "[0-9A-Za-z_]",
        ('w', true) => "0-9A-Za-z_",
        ('W', _) => "[^0-9A-Za-z_]",
        ('s', false) => r"[\t\n\f\r ]",
        ('s', true) => r"\t\n\f\r ",
        ('S', _) => r"[^\t\n\f\r ]",
        ('b', false) => r"(?-u:\b)",
        ('<' | '>', _) => &after[..1],
        _ => "",
    };
    if known.is_empty() {
        out.push('\\');
        out.push(c);
    } else {
        out.push_str(known);
    }
    c.len_utf8()
}

/// Whether a brace says how often: `{3}`, `{3,}`, `{3,5}`.
fn repeats(after: &str) -> bool {
    let Some((inside, _)) = after.split_once('}') else {
        return false;
    };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match inside.split_once(',') {
        Some((least, most)) => is_number(least) && (most.is_empty() || is_number(most)),
        None => is_number(inside),
    }
}

#[cfg(test)]
mod tests {
    use super::from_go;

    #[test]
    fn the_dialect_changes_and_the_meaning_stays() {
        for (go, here) in [
            (r"^\d+$", "^[0-9]+$"),
            (r"^[\w.-]+\s$", r"^[0-9A-Za-z_.-]+[\t\n\f\r ]$"),
            ("[^[]x", r"[^\[]x"),
            ("[[:alpha:]&&a]", r"[[:alpha:]\&\&a]"),
            ("[]a]", r"[\]a]"),
            ("a{2,3}{x}", r"a{2,3}\{x}"),
            (r"\{\[\.", r"\{\[\."),
            (r"\bé\<", r"(?-u:\b)é<"),
        ] {
            assert_eq!(from_go(go), here, "{go}");
        }
    }
}
