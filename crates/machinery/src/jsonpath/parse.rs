//! The syntax of templates. Only the form is checked: a path may still fail on a tree.

use super::{Error, Part, wrong};

/// One step of a path.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    Field(String),
    /// `.*`
    All,
    /// `..`
    Descend,
    Slice(Slice),
    /// `[0,2]`, `['a','b']`
    Union(Vec<Vec<Step>>),
    Filter(Filter),
    /// `range` or `end`, or another word.
    Word(String),
    Text(String),
    Int(i64),
    Float(f64),
    Bool(bool),
}

/// `[1]`, `[1:3]`, `[*]`
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Slice {
    pub(super) start: Option<i64>,
    pub(super) end: End,
    pub(super) step: Option<i64>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum End {
    /// To the end of the list.
    Open,
    At(i64),
    /// One after the start, if no end was given.
    After(i64),
}

/// `[?(@.a == "b")]`
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Filter {
    pub(super) left: Vec<Step>,
    pub(super) compare: Option<(String, Vec<Step>)>,
}

/// Parses text with parts in braces.
pub(super) fn template(text: &str) -> Result<Vec<Part>, Error> {
    let mut parts = Vec::new();
    let mut input = Input { rest: text };
    loop {
        let (before, rest) = match input.rest.find('{') {
            Some(at) => (&input.rest[..at], Some(&input.rest[at + 1..])),
            None => (input.rest, None),
        };
        if !before.is_empty() {
            parts.push(Part::Text(before.to_owned()));
        }
        let Some(rest) = rest else {
            return Ok(parts);
        };
        input.rest = rest;
        parts.push(Part::Steps(input.action()?));
    }
}

/// Parses the content of braces.
fn action(text: &str) -> Result<Vec<Step>, Error> {
    let text = format!("{text}}}");
    Input { rest: &text }.action()
}

struct Input<'a> {
    rest: &'a str,
}

impl<'a> Input<'a> {
    fn next(&mut self) -> Option<char> {
        let next = self.rest.chars().next()?;
        self.rest = &self.rest[next.len_utf8()..];
        Some(next)
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn eat(&mut self, token: &str) -> bool {
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// The input up to the first character that ends it.
    fn until(&mut self, ends: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(ends).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    /// Parses up to the closing brace.
    fn action(&mut self) -> Result<Vec<Step>, Error> {
        let mut steps = Vec::new();
        loop {
            if self.eat("}") {
                return Ok(steps);
            }
            if self.eat("[?(") {
                steps.push(Step::Filter(self.filter()?));
                continue;
            }
            if self.eat("..") {
                if steps.last() == Some(&Step::Descend) {
                    return wrong("invalid multiple recursive descent");
                }
                steps.push(Step::Descend);
                if self.peek().is_some_and(is_word) {
                    steps.push(self.field());
                }
                continue;
            }
            match self.peek() {
                None | Some('\r' | '\n') => return wrong("unclosed action"),
                Some(' ' | '@' | '$') => drop(self.next()),
                Some('[') => self.bracket(&mut steps)?,
                Some(quote @ ('"' | '\'')) => steps.push(Step::Text(self.quoted(quote)?)),
                Some('.') => {
                    self.next();
                    steps.push(self.field());
                }
                Some(c) if c == '+' || c == '-' || c.is_numeric() => steps.push(self.number()?),
                Some(c) if is_word(c) => {
                    steps.push(match self.until(is_end) {
                        "true" => Step::Bool(true),
                        "false" => Step::Bool(false),
                        word => Step::Word(word.to_owned()),
                    });
                }
                Some(c) => {
                    return wrong(format!(
                        "unrecognized character in action: U+{:04X} '{c}'",
                        u32::from(c)
                    ));
                }
            }
        }
    }

    /// A name up to its end; a backslash escapes the next character.
    fn field(&mut self) -> Step {
        let mut name = String::new();
        loop {
            name += self.until(|c| c == '\\' || is_end(c));
            if !self.eat("\\") {
                break;
            }
            // Two backslashes are dropped.
            name.extend(self.next().filter(|c| *c != '\\'));
        }
        match name.as_str() {
            "*" => Step::All,
            _ => Step::Field(name),
        }
    }

    fn number(&mut self) -> Result<Step, Error> {
        let whole = self.rest;
        if matches!(self.peek(), Some('+' | '-')) {
            self.next();
        }
        self.until(|c| c != '.' && !c.is_numeric());
        let text = &whole[..whole.len() - self.rest.len()];
        if let Ok(i) = text.parse() {
            return Ok(Step::Int(i));
        }
        match text.parse() {
            Ok(f) => Ok(Step::Float(f)),
            Err(_) => wrong(format!("cannot parse number {text}")),
        }
    }

    fn bracket(&mut self, steps: &mut Vec<Step>) -> Result<(), Error> {
        self.eat("[");
        let text = self.until(|c| matches!(c, ']' | '\n'));
        if !self.eat("]") {
            return wrong("unterminated array");
        }
        let text = if text == "*" { ":" } else { text };
        if text.contains(',') {
            let part = |part: &str| action(&format!("[{}]", part.trim_matches(' ')));
            let parts = text.split(',').map(part).collect::<Result<_, _>>()?;
            steps.push(Step::Union(parts));
            return Ok(());
        }
        let quoted = text.strip_prefix('\'').and_then(|t| t.strip_suffix('\''));
        if let Some(name) = quoted.filter(|name| !name.contains('\'')) {
            steps.extend(action(&format!(".{name}"))?);
            return Ok(());
        }
        steps.push(Step::Slice(slice(text)?));
        Ok(())
    }

    fn filter(&mut self) -> Result<Filter, Error> {
        let whole = self.rest;
        let (mut open, mut closed, mut quote, mut before) = (false, false, '"', '(');
        let text = loop {
            let at = whole.len() - self.rest.len();
            let next = match self.next() {
                None | Some('\n') => return wrong("unterminated filter"),
                Some(next) => next,
            };
            match next {
                '"' | '\'' if !open => (open, quote) = (true, next),
                '"' | '\'' if next == quote && before != '\\' => closed = true,
                ')' if open == closed => break &whole[..at],
                _ => {}
            }
            before = next;
        };
        if !self.eat("]") {
            return wrong("unclosed array expect ]");
        }
        let is_operator = |c: char| "!<>=".contains(c);
        let compared = text.find(is_operator).filter(|at| *at > 0).and_then(|at| {
            let after = &text[at..];
            let end = after.find(|c| !is_operator(c)).unwrap_or(after.len());
            // The last character is left for the right-hand side.
            let end = if end == after.len() { end - 1 } else { end };
            (end > 0).then(|| (&text[..at], &after[..end], &after[end..]))
        });
        Ok(match compared {
            None => Filter {
                left: action(text)?,
                compare: None,
            },
            Some((left, operator, right)) => Filter {
                left: action(left)?,
                compare: Some((operator.to_owned(), action(right)?)),
            },
        })
    }

    fn quoted(&mut self, quote: char) -> Result<String, Error> {
        let whole = self.rest;
        self.next();
        let mut before = quote;
        loop {
            match self.next() {
                None | Some('\n') => return wrong("unterminated quoted string"),
                Some(c) if c == quote && before != '\\' => break,
                Some(c) => before = c,
            }
        }
        let text = &whole[..whole.len() - self.rest.len()];
        unescape(&text[1..text.len() - 1], quote)
            .ok_or_else(|| Error(format!("unquote string {text} error invalid syntax")))
    }
}

fn is_word(c: char) -> bool {
    c == '_' || c.is_alphabetic() || c.is_numeric()
}

/// Whether a character ends a name.
fn is_end(c: char) -> bool {
    matches!(
        c,
        ' ' | '\t' | '\r' | '\n' | '.' | ',' | '[' | ']' | '$' | '@' | '{' | '}'
    )
}

fn slice(text: &str) -> Result<Slice, Error> {
    let invalid = || wrong(format!("invalid array index {text}"));
    let is_index = |part: &str| {
        let digits = part.strip_prefix('-').unwrap_or(part);
        digits.bytes().all(|b| b.is_ascii_digit())
    };
    let parts: Vec<&str> = text.split(':').collect();
    if parts.len() > 3 || !parts.iter().all(|part| is_index(part)) {
        return invalid();
    }
    let number = |at: usize| match parts.get(at).copied().unwrap_or_default() {
        "" => Ok(None),
        part => match part.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => wrong(format!("array index {part} is not a number")),
        },
    };
    let start: Option<i64> = number(0)?;
    let end = match number(1)? {
        Some(end) => End::At(end),
        None if parts.len() > 1 => End::Open,
        None => End::After(start.unwrap_or(0).saturating_add(1)),
    };
    let step = number(2)?;
    Ok(Slice { start, end, step })
}

/// Text with Go's escapes resolved.
fn unescape(text: &str, quote: char) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c == quote {
            return None;
        }
        if c != '\\' {
            out.push(c);
            continue;
        }
        let code = |first: u32, count: usize, radix: u32, chars: &mut std::str::Chars<'_>| {
            (0..count).try_fold(first, |code, _| {
                Some(code * radix + chars.next()?.to_digit(radix)?)
            })
        };
        out.push(match chars.next()? {
            'a' => '\x07',
            'b' => '\x08',
            'f' => '\x0c',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\x0b',
            '\\' => '\\',
            c if c == quote => c,
            'x' => char::from_u32(code(0, 2, 16, &mut chars)?)?,
            'u' => char::from_u32(code(0, 4, 16, &mut chars)?)?,
            'U' => char::from_u32(code(0, 8, 16, &mut chars)?)?,
            c @ '0'..='7' => char::from_u32(code(c.to_digit(8)?, 2, 8, &mut chars)?)?,
            _ => return None,
        });
    }
    Some(out)
}
