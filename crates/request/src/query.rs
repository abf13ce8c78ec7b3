//! Query strings.

pub use stdx::percent::{decode, is_well_escaped};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded() {
        let query = Query::parse("a=1&labelSelector=app%3Dx+y&a=2&watch&dry=false");
        assert_eq!(query.get("labelSelector"), Some("app=x y"));
        assert_eq!(query.all("a").collect::<Vec<_>>(), ["1", "2"]);
        assert!(query.flag("watch") && !query.flag("dry") && !query.flag("none"));
    }
}
