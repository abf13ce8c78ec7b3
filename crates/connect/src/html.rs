//! Links in proxied pages: links to the target's root are rewritten to the proxy's root. Only
//! attribute values are changed; anything but HTML is returned unchanged.

/// The attributes that hold URLs, by element.
const LINKS: &[(&str, &[&str])] = &[
    ("a", &["href"]),
    ("applet", &["codebase"]),
    ("area", &["href"]),
    ("audio", &["src"]),
    ("base", &["href"]),
    ("blockquote", &["cite"]),
    ("body", &["background"]),
    ("button", &["formaction"]),
    ("command", &["icon"]),
    ("del", &["cite"]),
    ("embed", &["src"]),
    ("form", &["action"]),
    ("frame", &["longdesc", "src"]),
    ("head", &["profile"]),
    ("html", &["manifest"]),
    ("iframe", &["longdesc", "src"]),
    ("img", &["longdesc", "src", "usemap"]),
    ("input", &["formaction", "src", "usemap"]),
    ("ins", &["cite"]),
    ("link", &["href"]),
    ("object", &["classid", "codebase", "data", "usemap"]),
    ("q", &["cite"]),
    ("script", &["src"]),
    ("source", &["src"]),
    ("video", &["poster", "src"]),
];

/// Elements whose content is text up to their end tag, whatever it looks like.
const RAW: &[&str] = &["script", "style", "textarea", "title", "xmp"];

/// Rewrites every link for which `through` returns a new URL.
pub(super) fn rewrite(page: &str, through: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(page.len() + 256);
    let mut rest = page;
    while let Some(start) = rest.find('<') {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        if let Some(comment) = tag.strip_prefix("<!--") {
            let length = comment.find("-->").map_or(tag.len(), |end| 4 + end + 3);
            out.push_str(&tag[..length]);
            rest = &tag[length..];
            continue;
        }
        let name = name(&tag[1..]);
        if name.is_empty() {
            out.push('<');
            rest = &tag[1..];
            continue;
        }
        let element = name.to_ascii_lowercase();
        let length = attributes(tag, 1 + name.len(), &element, &through, &mut out);
        rest = &tag[length..];
        if RAW.contains(&element.as_str()) {
            let end = end_of_raw(rest, &element);
            out.push_str(&rest[..end]);
            rest = &rest[end..];
        }
    }
    out.push_str(rest);
    out
}

fn name(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric());
    let name = &text[..end.unwrap_or(text.len())];
    if name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        name
    } else {
        ""
    }
}

fn end_of_raw(text: &str, element: &str) -> usize {
    let mut from = 0;
    while let Some(found) = text[from..].find("</") {
        let at = from + found;
        let tail = text.as_bytes()[at + 2..].get(..element.len());
        if tail.is_some_and(|tail| tail.eq_ignore_ascii_case(element.as_bytes())) {
            return at;
        }
        from = at + 2;
    }
    text.len()
}

/// Copies a tag, rewriting its attributes; returns its length.
fn attributes(
    tag: &str,
    start: usize,
    element: &str,
    through: impl Fn(&str) -> Option<String>,
    out: &mut String,
) -> usize {
    let links = LINKS.iter().find(|(name, _)| *name == element);
    let links = links.map_or(&[][..], |(_, links)| links);
    let bytes = tag.as_bytes();
    let mut at = start;
    let mut copied = 0;
    while at < bytes.len() && bytes[at] != b'>' {
        let key = span(bytes, at, |b| b.is_ascii_whitespace() || b == b'/');
        let end = key
            + span_len(bytes, key, |b| {
                !b.is_ascii_whitespace() && !matches!(b, b'=' | b'>' | b'/')
            });
        let equals = span(bytes, end, |b| b.is_ascii_whitespace());
        if bytes.get(equals) != Some(&b'=') {
            at = end.max(at + 1);
            continue;
        }
        let value = span(bytes, equals + 1, |b| b.is_ascii_whitespace());
        let (from, to, next) = match bytes.get(value) {
            Some(quote @ (b'"' | b'\'')) => {
                let to = span(bytes, value + 1, |b| b != *quote);
                (value + 1, to, (to + 1).min(bytes.len()))
            }
            _ => {
                let to = span(bytes, value, |b| !b.is_ascii_whitespace() && b != b'>');
                (value, to, to)
            }
        };
        let is_link = links
            .iter()
            .any(|link| tag[key..end].eq_ignore_ascii_case(link));
        if is_link && let Some(other) = through(&tag[from..to]) {
            out.push_str(&tag[copied..from]);
            out.push_str(&other);
            copied = to;
        }
        at = next.max(at + 1);
    }
    let length = (at + 1).min(bytes.len());
    out.push_str(&tag[copied..length]);
    length
}

/// The end of the run of bytes that satisfy `fits`.
fn span(bytes: &[u8], from: usize, fits: impl Fn(u8) -> bool) -> usize {
    from + span_len(bytes, from, fits)
}

fn span_len(bytes: &[u8], from: usize, fits: impl Fn(u8) -> bool) -> usize {
    let rest = bytes.get(from..).unwrap_or_default();
    rest.iter().take_while(|b| fits(**b)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(link: &str) -> Option<String> {
        link.starts_with('/').then(|| format!("/proxy{link}"))
    }

    #[test]
    fn root_relative_links_are_rewritten_to_the_proxy() {
        let cases = [
            ("<a href=\"/x\">t</a>", "<a href=\"/proxy/x\">t</a>"),
            ("<A HREF='/x' class=c>", "<A HREF='/proxy/x' class=c>"),
            (
                "<img src=/i.png alt=\"/no\"/>",
                "<img src=/proxy/i.png alt=\"/no\"/>",
            ),
            ("<a href=\"x\">", "<a href=\"x\">"),
            ("<p href=\"/x\">", "<p href=\"/x\">"),
            ("1 < 2 <a href=/x", "1 < 2 <a href=/proxy/x"),
            (
                "<!-- <a href=\"/x\"> --><a href=\"/y\">",
                "<!-- <a href=\"/x\"> --><a href=\"/proxy/y\">",
            ),
            (
                "<script src=\"/s.js\">'<a href=\"/x\">'</script><link href = \"/c\">",
                "<script src=\"/proxy/s.js\">'<a href=\"/x\">'</script><link href = \"/proxy/c\">",
            ),
            (
                "<video poster='/p' src='/v' controls>",
                "<video poster='/proxy/p' src='/proxy/v' controls>",
            ),
            ("", ""),
            ("<", "<"),
            ("<a", "<a"),
            ("<a href=", "<a href="),
            ("<a href=\"/x", "<a href=\"/proxy/x"),
            ("<ä href=\"/x\">", "<ä href=\"/x\">"),
            ("<!-- open", "<!-- open"),
            (
                "<script>never closed <a href='/x'>",
                "<script>never closed <a href='/x'>",
            ),
        ];
        for (page, wanted) in cases {
            assert_eq!(rewrite(page, through), wanted, "{page}");
        }
    }
}
