//! Label selectors: `a=b,c!=d,e in (f,g),!h,i>1`.

use crate::field::{self, Error, Path};
use crate::format;
use crate::json::Value;
use std::fmt;

/// The relation of a key and its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    In,
    NotIn,
    Equals,
    DoubleEquals,
    NotEquals,
    Exists,
    DoesNotExist,
    GreaterThan,
    LessThan,
}

/// One condition on one key. Values are sorted and unique.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    pub key: String,
    pub operator: Operator,
    pub values: Vec<String>,
}

/// Requirements that must all hold, sorted by key. The empty selector selects everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selector {
    requirements: Vec<Requirement>,
    nothing: bool,
}

impl Requirement {
    /// Validated by the rules for keys, values and their number.
    pub fn new(key: &str, operator: Operator, values: Vec<String>) -> Result<Self, String> {
        let mut errors = Vec::new();
        check_key(key, &Path::new("key"), &mut errors);
        let path = Path::new("values");
        let list = || Value::from(values.clone());
        match operator {
            Operator::In | Operator::NotIn if values.is_empty() => errors.push(Error::invalid(
                &path,
                list(),
                "for 'in', 'notin' operators, values set can't be empty",
            )),
            Operator::Exists | Operator::DoesNotExist if !values.is_empty() => {
                errors.push(Error::invalid(
                    &path,
                    list(),
                    "values set must be empty for exists and does not exist",
                ))
            }
            Operator::Equals | Operator::DoubleEquals | Operator::NotEquals
                if values.len() != 1 =>
            {
                errors.push(Error::invalid(
                    &path,
                    list(),
                    "exact-match compatibility requires one single value",
                ));
            }
            Operator::GreaterThan | Operator::LessThan => check_bound(&values, &path, &mut errors),
            _ => {}
        }
        for (i, value) in values.iter().enumerate() {
            let complaints = format::label_value(value);
            if !complaints.is_empty() {
                let at = path.index(i);
                let at = at.key(key);
                errors.push(Error::invalid(&at, value.as_str(), complaints.join("; ")));
            }
        }
        if errors.is_empty() {
            Ok(Self {
                key: key.to_owned(),
                operator,
                values,
            })
        } else {
            Err(field::aggregate(&errors))
        }
    }

    /// Whether the labels, looked up one at a time, satisfy this.
    pub fn matches<'a>(&self, lookup: impl Fn(&str) -> Option<&'a str>) -> bool {
        let found = lookup(&self.key);
        let has = |value: &str| self.values.iter().any(|v| v == value);
        match self.operator {
            Operator::In | Operator::Equals | Operator::DoubleEquals => found.is_some_and(has),
            Operator::NotIn | Operator::NotEquals => !found.is_some_and(has),
            Operator::Exists => found.is_some(),
            Operator::DoesNotExist => found.is_none(),
            Operator::GreaterThan | Operator::LessThan => {
                let bound = self.values.first().and_then(|v| v.parse::<i64>().ok());
                match (found.and_then(|v| v.parse::<i64>().ok()), bound) {
                    (Some(value), Some(bound)) if self.operator == Operator::GreaterThan => {
                        value > bound
                    }
                    (Some(value), Some(bound)) => value < bound,
                    _ => false,
                }
            }
        }
    }
}

fn check_key(key: &str, path: &Path, errors: &mut field::Errors) {
    let complaints = format::qualified_name(key);
    if !complaints.is_empty() {
        errors.push(Error::invalid(path, key, complaints.join("; ")));
    }
}

fn check_bound(values: &[String], path: &Path, errors: &mut field::Errors) {
    if values.len() != 1 {
        errors.push(Error::invalid(
            path,
            Value::from(values.to_vec()),
            "for 'Gt', 'Lt' operators, exactly one value is required",
        ));
    }
    for (i, value) in values.iter().enumerate() {
        if value.parse::<i64>().is_err() {
            errors.push(Error::invalid(
                &path.index(i),
                value.as_str(),
                "for 'Gt', 'Lt' operators, the value must be an integer",
            ));
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.operator == Operator::DoesNotExist {
            f.write_str("!")?;
        }
        f.write_str(&self.key)?;
        let values = self.values.join(",");
        match self.operator {
            Operator::Exists | Operator::DoesNotExist => Ok(()),
            Operator::Equals => write!(f, "={values}"),
            Operator::DoubleEquals => write!(f, "=={values}"),
            Operator::NotEquals => write!(f, "!={values}"),
            Operator::GreaterThan => write!(f, ">{values}"),
            Operator::LessThan => write!(f, "<{values}"),
            Operator::In => write!(f, " in ({values})"),
            Operator::NotIn => write!(f, " notin ({values})"),
        }
    }
}

impl Selector {
    /// Selects everything.
    pub fn everything() -> Self {
        Self::default()
    }

    /// Selects nothing.
    pub fn nothing() -> Self {
        Self {
            requirements: Vec::new(),
            nothing: true,
        }
    }

    /// Parses a query's selector; the error is shown to clients.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parser = Parser {
            tokens: lex(text),
            at: 0,
        };
        Ok(Self::from_requirements(parser.selector()?))
    }

    /// From requirements in any order.
    pub fn from_requirements(mut requirements: Vec<Requirement>) -> Self {
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Self {
            requirements,
            nothing: false,
        }
    }

    /// From a map of exact labels, such as a Service's or a ReplicationController's selector.
    pub fn from_map(map: &crate::Object) -> Self {
        let exact = |(key, value): (&crate::json::Key, &Value)| Requirement {
            key: key.to_string(),
            operator: Operator::Equals,
            values: vec![value.as_str().unwrap_or_default().to_owned()],
        };
        Self::from_requirements(map.iter().map(exact).collect())
    }

    /// From a `LabelSelector` object: absent selects nothing, empty selects everything.
    pub fn from_label_selector(selector: Option<&Value>) -> Result<Self, String> {
        let Some(Value::Object(selector)) = selector else {
            return Ok(Self::nothing());
        };
        let mut requirements = Vec::new();
        if let Some(Value::Object(exact)) = selector.get("matchLabels") {
            for (key, value) in exact {
                let value = value.as_str().unwrap_or_default().to_owned();
                requirements.push(Requirement::new(key, Operator::Equals, vec![value])?);
            }
        }
        if let Some(Value::Array(expressions)) = selector.get("matchExpressions") {
            for expression in expressions {
                requirements.push(from_expression(expression)?);
            }
        }
        Ok(Self::from_requirements(requirements))
    }

    /// The conditions.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Whether everything is selected.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty() && !self.nothing
    }

    /// Whether the labels, looked up one at a time, are selected.
    pub fn matches<'a>(&self, lookup: impl Fn(&str) -> Option<&'a str>) -> bool {
        !self.nothing && self.requirements.iter().all(|r| r.matches(&lookup))
    }

    /// Whether the labels in a JSON map are selected.
    pub fn matches_map(&self, labels: Option<&crate::Object>) -> bool {
        self.matches(|key| labels.and_then(|l| l.get(key)).and_then(Value::as_str))
    }

    /// The one value that a label must have, if the selector requires one.
    pub fn exact(&self, key: &str) -> Option<&str> {
        let requirement = self.requirements.iter().find(|r| r.key == key)?;
        match (requirement.operator, requirement.values.as_slice()) {
            (Operator::In | Operator::Equals | Operator::DoubleEquals, [value]) => Some(value),
            _ => None,
        }
    }
}

fn from_expression(expression: &Value) -> Result<Requirement, String> {
    let operator = expression["operator"].as_str().unwrap_or_default();
    let operator = match operator {
        "In" => Operator::In,
        "NotIn" => Operator::NotIn,
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        other => {
            return Err(format!(
                "{} is not a valid label selector operator",
                crate::text::quote(other)
            ));
        }
    };
    let values = expression["values"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let values = values
        .iter()
        .filter_map(|v| v.as_str().map(str::to_owned))
        .collect();
    Requirement::new(
        expression["key"].as_str().unwrap_or_default(),
        operator,
        sorted(values),
    )
}

fn sorted(mut values: Vec<String>) -> Vec<String> {
    values.sort();
    values.dedup();
    values
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, requirement) in self.requirements.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            requirement.fmt(f)?;
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    End,
    Word(&'a str),
    Symbol(&'a str),
    /// An unknown run of symbols.
    Unknown,
}

fn lex(text: &str) -> Vec<Token<'_>> {
    let bytes = text.as_bytes();
    let is_space = |b: u8| matches!(b, b' ' | b'\t' | b'\r' | b'\n');
    let is_symbol = |b: u8| matches!(b, b'=' | b'!' | b'(' | b')' | b',' | b'>' | b'<');
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < bytes.len() && bytes[at] != 0 {
        let b = bytes[at];
        if is_space(b) {
            at += 1;
            continue;
        }
        let start = at;
        if is_symbol(b) {
            // Longest of "==", "!=" and the single symbols.
            let two = &bytes[at..bytes.len().min(at + 2)];
            at += if two == b"==" || two == b"!=" { 2 } else { 1 };
            tokens.push(Token::Symbol(&text[start..at]));
        } else {
            while at < bytes.len()
                && bytes[at] != 0
                && !is_space(bytes[at])
                && !is_symbol(bytes[at])
            {
                at += 1;
            }
            tokens.push(Token::Word(&text[start..at]));
        }
    }
    if at < bytes.len() {
        tokens.push(Token::Unknown);
    }
    tokens.push(Token::End);
    tokens
}

impl<'a> Token<'a> {
    fn text(self) -> &'a str {
        match self {
            Self::End | Self::Unknown => "",
            Self::Word(text) | Self::Symbol(text) => text,
        }
    }
}

struct Parser<'a> {
    tokens: Vec<Token<'a>>,
    at: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Token<'a> {
        self.tokens.get(self.at).copied().unwrap_or(Token::End)
    }

    fn next(&mut self) -> Token<'a> {
        let token = self.peek();
        self.at += 1;
        token
    }

    fn selector(&mut self) -> Result<Vec<Requirement>, String> {
        let mut out = Vec::new();
        loop {
            match self.peek() {
                Token::Word(_) | Token::Symbol("!") => {
                    let requirement = self
                        .requirement()
                        .map_err(|e| format!("unable to parse requirement: {e}"))?;
                    out.push(requirement);
                    match self.next() {
                        Token::End => return Ok(out),
                        Token::Symbol(",") => {
                            let after = self.peek();
                            if !matches!(after, Token::Word(_) | Token::Symbol("!")) {
                                return Err(format!(
                                    "found '{}', expected: identifier after ','",
                                    after.text()
                                ));
                            }
                        }
                        other => {
                            return Err(format!(
                                "found '{}', expected: ',' or 'end of string'",
                                other.text()
                            ));
                        }
                    }
                }
                Token::End => return Ok(out),
                other => {
                    return Err(format!(
                        "found '{}', expected: !, identifier, or 'end of string'",
                        other.text()
                    ));
                }
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let negated = self.peek() == Token::Symbol("!");
        if negated {
            self.next();
        }
        let token = self.next();
        let Token::Word(key) = token else {
            return Err(format!("found '{}', expected: identifier", token.text()));
        };
        let mut errors = Vec::new();
        check_key(key, &Path::default(), &mut errors);
        if !errors.is_empty() {
            return Err(field::aggregate(&errors));
        }
        if negated {
            return Requirement::new(key, Operator::DoesNotExist, Vec::new());
        }
        if matches!(self.peek(), Token::End | Token::Symbol(",")) {
            return Requirement::new(key, Operator::Exists, Vec::new());
        }
        let operator = self.operator()?;
        let values = match operator {
            Operator::In | Operator::NotIn => self.values()?,
            _ => vec![self.exact_value()?],
        };
        Requirement::new(key, operator, sorted(values))
    }

    fn operator(&mut self) -> Result<Operator, String> {
        let token = self.next();
        match token.text() {
            "=" => Ok(Operator::Equals),
            "==" => Ok(Operator::DoubleEquals),
            "!=" => Ok(Operator::NotEquals),
            "in" => Ok(Operator::In),
            "notin" => Ok(Operator::NotIn),
            ">" => Ok(Operator::GreaterThan),
            "<" => Ok(Operator::LessThan),
            other => Err(format!(
                "found '{other}', expected: in, notin, =, ==, !=, gt, lt"
            )),
        }
    }

    fn exact_value(&mut self) -> Result<String, String> {
        match self.peek() {
            Token::End | Token::Symbol(",") => Ok(String::new()),
            _ => match self.next() {
                Token::Word(value) => Ok(value.to_owned()),
                other => Err(format!("found '{}', expected: identifier", other.text())),
            },
        }
    }

    /// `(a,b)`; nothing between commas is the empty value.
    fn values(&mut self) -> Result<Vec<String>, String> {
        let open = self.next();
        if open != Token::Symbol("(") {
            return Err(format!("found '{}' expected: '('", open.text()));
        }
        let mut values = Vec::new();
        match self.peek() {
            Token::Symbol(")") => {
                self.next();
                return Ok(vec![String::new()]);
            }
            Token::Word(_) | Token::Symbol(",") => {}
            other => {
                return Err(format!(
                    "found '{}', expected: ',', ')' or identifier",
                    other.text()
                ));
            }
        }
        loop {
            match self.next() {
                Token::Word(value) => {
                    values.push(value.to_owned());
                    match self.peek() {
                        Token::Symbol(",") => {}
                        Token::Symbol(")") => break,
                        other => {
                            return Err(format!("found '{}', expected: ',' or ')'", other.text()));
                        }
                    }
                }
                Token::Symbol(",") => {
                    if values.is_empty() {
                        values.push(String::new());
                    }
                    match self.peek() {
                        Token::Symbol(")") => {
                            values.push(String::new());
                            break;
                        }
                        Token::Symbol(",") => values.push(String::new()),
                        _ => {}
                    }
                }
                other => {
                    return Err(format!(
                        "found '{}', expected: ',', or identifier",
                        other.text()
                    ));
                }
            }
        }
        self.next();
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn selects(selector: &str, labels: &[(&str, &str)]) -> bool {
        let selector = Selector::parse(selector).unwrap();
        selector.matches(|key| labels.iter().find(|(k, _)| *k == key).map(|(_, v)| *v))
    }

    #[test]
    fn selectors_match_labels() {
        let labels = [("app", "web"), ("tier", "front"), ("n", "5"), ("e", "")];
        for yes in [
            "",
            "app",
            "app=web",
            "app==web",
            "app!=db",
            "app in (web,db)",
            "tier notin (back)",
            "!missing",
            "missing!=x",
            "missing notin (a)",
            "n>4",
            "n<6",
            "e=",
            "e in (,)",
            " app = web , tier in ( front ) ",
            "e in ()",
        ] {
            assert!(selects(yes, &labels), "{yes}");
        }
        for no in [
            "app=db",
            "!app",
            "missing",
            "app notin (web)",
            "n>5",
            "app>1",
            "missing=x",
        ] {
            assert!(!selects(no, &labels), "{no}");
        }
    }

    #[test]
    fn selector_errors_have_kubernetes_messages() {
        let cases = [
            ("a,", "found '', expected: identifier after ','"),
            (
                ",a",
                "found ',', expected: !, identifier, or 'end of string'",
            ),
            ("a=b c", "found 'c', expected: ',' or 'end of string'"),
            (
                "a x b",
                "unable to parse requirement: found 'x', expected: in, notin, =, ==, !=, gt, lt",
            ),
            (
                "a in b",
                "unable to parse requirement: found 'b' expected: '('",
            ),
            (
                "a in (b",
                "unable to parse requirement: found '', expected: ',' or ')'",
            ),
            (
                "!",
                "unable to parse requirement: found '', expected: identifier",
            ),
            (
                "a>b",
                "unable to parse requirement: values[0]: Invalid value: \"b\": for 'Gt', 'Lt' operators, the value must be an integer",
            ),
        ];
        for (text, message) in cases {
            assert_eq!(Selector::parse(text).unwrap_err(), message, "{text}");
        }
    }

    #[test]
    fn a_label_selector_object_becomes_requirements() {
        let object = crate::json::json!({
            "matchLabels": {"b": "1"},
            "matchExpressions": [{"key": "a", "operator": "In", "values": ["y", "x"]}],
        });
        let selector = Selector::from_label_selector(Some(&object)).unwrap();
        assert_eq!(selector.to_string(), "a in (x,y),b=1");
        assert!(
            !Selector::from_label_selector(None)
                .unwrap()
                .matches(|_| Some("x"))
        );
    }

    proptest! {
        #[test]
        fn parsing_never_panics_and_printed_selectors_parse_to_the_same(text in "[ab!=<>(), in\\x00ä0-9]{0,24}") {
            if let Ok(selector) = Selector::parse(&text) {
                let printed = selector.to_string();
                // A printed `a in ()` means one empty value and parses as such.
                prop_assert_eq!(Selector::parse(&printed).unwrap(), selector);
            }
        }
    }
}
