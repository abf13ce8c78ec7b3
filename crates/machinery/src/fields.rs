//! Field selectors: `metadata.name=x,status.phase!=Running`.

use std::fmt;

/// One condition on one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Term {
    pub field: String,
    pub value: String,
    pub equal: bool,
}

/// Terms that must all hold. The empty selector selects everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selector {
    terms: Vec<Term>,
}

impl Selector {
    /// Selects everything.
    pub fn everything() -> Self {
        Self::default()
    }

    /// One field with one value.
    pub fn one(field: &str, value: &str) -> Self {
        let term = Term {
            field: field.to_owned(),
            value: value.to_owned(),
            equal: true,
        };
        Self { terms: vec![term] }
    }

    /// Parses a query's selector; the error is shown to clients.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = split_terms(text);
        parts.sort_unstable();
        let mut terms = Vec::new();
        for part in parts.into_iter().filter(|p| !p.is_empty()) {
            let Some((field, equal, value)) = split_term(part) else {
                return Err(format!(
                    "invalid selector: '{text}'; can't understand '{part}'"
                ));
            };
            terms.push(Term {
                field: field.to_owned(),
                value: unescape(value)?,
                equal,
            });
        }
        Ok(Self { terms })
    }

    /// Adds the requirement that a field has this value.
    pub fn require(&mut self, field: &str, value: &str) {
        self.terms.extend(Self::one(field, value).terms);
    }

    /// The conditions.
    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// Whether everything is selected.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Whether the fields, looked up one at a time, match; an absent field is empty.
    pub fn matches<'a>(&self, lookup: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.terms
            .iter()
            .all(|t| (lookup(&t.field).unwrap_or_default() == t.value) == t.equal)
    }

    /// The one value that a field must have, if the selector requires one.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.terms
            .iter()
            .find(|t| t.equal && t.field == field)
            .map(|t| t.value.as_str())
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, term) in self.terms.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            let operator = if term.equal { "=" } else { "!=" };
            write!(f, "{}{operator}{}", term.field, escape(&term.value))?;
        }
        Ok(())
    }
}

fn split_terms(text: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (i, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                terms.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

fn split_term(term: &str) -> Option<(&str, bool, &str)> {
    let at = term.char_indices().find_map(|(i, c)| {
        (c == '=' || (c == '!' && term[i + 1..].starts_with('='))).then_some(i)
    })?;
    let (field, rest) = term.split_at(at);
    if let Some(value) = rest.strip_prefix("!=") {
        return Some((field, false, value));
    }
    Some((field, true, rest.strip_prefix("==").unwrap_or(&rest[1..])))
}

fn unescape(value: &str) -> Result<String, String> {
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => out.push(c),
                other => {
                    let sequence: String = std::iter::once('\\').chain(other).collect();
                    return Err(format!(
                        "invalid field selector: invalid escape sequence: {sequence}"
                    ));
                }
            },
            ',' | '=' => {
                // The number of the character, as Go prints a rune.
                return Err(format!(
                    "invalid field selector: unescaped character in value: {}",
                    c as u32
                ));
            }
            c => out.push(c),
        }
    }
    Ok(out)
}

fn escape(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace(',', "\\,")
        .replace('=', "\\=")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn terms_are_split_and_matched() {
        let selector = Selector::parse("b!=2,a==1,c=x\\,y").unwrap();
        assert_eq!(selector.to_string(), "a=1,b!=2,c=x\\,y");
        let fields = |f: &str| match f {
            "a" => Some("1"),
            "c" => Some("x,y"),
            _ => None,
        };
        assert!(selector.matches(fields));
        assert_eq!(selector.exact("a"), Some("1"));
        assert!(!Selector::parse("missing=1").unwrap().matches(fields));
        assert!(Selector::parse("missing=").unwrap().matches(fields));
    }

    #[test]
    fn invalid_field_selectors_are_rejected() {
        assert_eq!(
            Selector::parse("a").unwrap_err(),
            "invalid selector: 'a'; can't understand 'a'"
        );
        assert_eq!(
            Selector::parse("a=b=c").unwrap_err(),
            "invalid field selector: unescaped character in value: 61"
        );
    }

    proptest! {
        #[test]
        fn a_printed_field_selector_parses_to_the_same(field in "[a-z.]{1,8}", value in "[a-z\\\\,=ä]{0,8}") {
            let selector = Selector::one(&field, &value);
            prop_assert_eq!(Selector::parse(&selector.to_string()).unwrap(), selector);
        }
    }
}
