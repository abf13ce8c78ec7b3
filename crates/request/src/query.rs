//! Query strings.

/// The parameters of a request, decoded, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Parses a query string. Malformed parts are dropped.
    pub fn parse(query: &str) -> Self {
        let pair = |part: &str| {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            Some((form(key)?, form(value)?))
        };
        let parts = query.split('&');
        let parts = parts.filter(|part| !part.is_empty() && !part.contains(';'));
        Self(parts.filter_map(pair).collect())
    }

    /// The first value of a parameter.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(mine, _)| mine == key)
            .map(|(_, value)| value.as_str())
    }

    /// The first value of a parameter, unless it is empty.
    pub fn filled(&self, key: &str) -> Option<&str> {
        self.get(key).filter(|value| !value.is_empty())
    }

    /// All values of a parameter.
    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.0
            .iter()
            .filter(move |(mine, _)| mine == key)
            .map(|(_, value)| value.as_str())
    }

    /// A boolean parameter: present and neither `false` nor `0`.
    pub fn flag(&self, key: &str) -> bool {
        self.get(key)
            .is_some_and(|value| !matches!(value, "false" | "0"))
    }
}

fn form(text: &str) -> Option<String> {
    if !is_well_escaped(text) {
        return None;
    }
    Some(if text.contains('+') {
        decode(&text.replace('+', " "))
    } else {
        decode(text)
    })
}

/// Whether every percent sign is followed by two hex digits.
pub fn is_well_escaped(text: &str) -> bool {
    let digits = |rest: &str| {
        let digits = rest.as_bytes().get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    text.split('%').skip(1).all(digits)
}

/// Percent-decodes; invalid sequences stay as they are.
pub fn decode(text: &str) -> String {
    if !text.contains('%') {
        return text.to_owned();
    }
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = bytes
            .get(at + 1..at + 3)
            .and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) if bytes[at] == b'%' => {
                out.push(byte);
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
    fn parameters_are_decoded() {
        let query = Query::parse("a=1&labelSelector=app%3Dx+y&a=2&watch&dry=false");
        assert_eq!(query.get("labelSelector"), Some("app=x y"));
        assert_eq!(query.all("a").collect::<Vec<_>>(), ["1", "2"]);
        assert!(query.flag("watch") && !query.flag("dry") && !query.flag("none"));
        assert_eq!(decode("100%&%zz"), "100%&%zz");
    }
}
