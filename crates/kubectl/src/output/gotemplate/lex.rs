//! The lexer: text and actions, and the tokens of an action.

use anyhow::{Result, bail};
use serde_json::Value;

/// A piece of a template.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Piece {
    Text(String),
    Action(Vec<Token>),
}

/// A token inside `{{…}}`.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    /// `.a.b` as its names; the dot alone has none.
    Field(Vec<String>),
    /// `$x.a` as the variable's name and its fields.
    Variable(String, Vec<String>),
    Word(String),
    Literal(Value),
    Pipe,
    Comma,
    Declare,
    Assign,
    Open,
    /// `)` and the fields after it.
    Close(Vec<String>),
}

/// Splits a template into pieces.
pub(super) fn lex(text: &str) -> Result<Vec<Piece>> {
    let mut pieces = Vec::new();
    let mut rest = text;
    let mut trims_next = false;
    loop {
        let start = rest.find("{{");
        let mut before = &rest[..start.unwrap_or(rest.len())];
        if trims_next {
            before = before.trim_start();
        }
        let Some(start) = start else {
            push_text(&mut pieces, before);
            return Ok(pieces);
        };
        let mut action = &rest[start + 2..];
        if let Some(trimmed) = action
            .strip_prefix('-')
            .filter(|a| a.starts_with(char::is_whitespace))
        {
            before = before.trim_end();
            action = trimmed;
        }
        push_text(&mut pieces, before);
        let end = action_end(action)?;
        let mut inside = &action[..end];
        trims_next =
            inside.ends_with('-') && inside[..inside.len() - 1].ends_with(char::is_whitespace);
        if trims_next {
            inside = &inside[..inside.len() - 1];
        }
        let inside = inside.trim();
        if !(inside.starts_with("/*") && inside.ends_with("*/")) {
            pieces.push(Piece::Action(tokens(inside)?));
        }
        rest = &action[end + 2..];
    }
}

fn push_text(pieces: &mut Vec<Piece>, text: &str) {
    if !text.is_empty() {
        pieces.push(Piece::Text(text.to_owned()));
    }
}

/// The position of the action's `}}`, ignoring quotes and comments.
fn action_end(action: &str) -> Result<usize> {
    let bytes = action.as_bytes();
    let mut at = 0;
    if action.trim_start().starts_with("/*") {
        let Some(close) = action.find("*/") else {
            bail!("unclosed comment");
        };
        at = close + 2;
    }
    while at < bytes.len() {
        match bytes[at] {
            b'"' | b'`' | b'\'' => at = quote_end(action, at)?,
            b'}' if bytes.get(at + 1) == Some(&b'}') => return Ok(at),
            _ => at += 1,
        }
    }
    bail!("unclosed action")
}

/// The position after a quoted string that begins at `start`.
fn quote_end(text: &str, start: usize) -> Result<usize> {
    let bytes = text.as_bytes();
    let quote = bytes[start];
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if quote != b'`' => at += 2,
            byte if byte == quote => return Ok(at + 1),
            _ => at += 1,
        }
    }
    bail!("unterminated quoted string")
}

fn tokens(text: &str) -> Result<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut at = 0;
    let bytes = text.as_bytes();
    while at < bytes.len() {
        let rest = &text[at..];
        let (token, used) = match bytes[at] {
            byte if byte.is_ascii_whitespace() => {
                at += 1;
                continue;
            }
            b'|' => (Token::Pipe, 1),
            b',' => (Token::Comma, 1),
            b'(' => (Token::Open, 1),
            b')' => {
                let (fields, used) = fields(&rest[1..]);
                (Token::Close(fields), 1 + used)
            }
            b':' if rest.starts_with(":=") => (Token::Declare, 2),
            b'=' => (Token::Assign, 1),
            b'"' | b'`' | b'\'' => {
                let end = quote_end(rest, 0)?;
                (Token::Literal(unquote(&rest[..end])?), end)
            }
            b'.' if !rest[1..].starts_with(|c: char| c.is_ascii_digit()) => {
                let (fields, used) = fields(rest);
                let is_attached = text[..at]
                    .ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | '"' | ')'));
                if fields.is_empty() && is_attached {
                    bail!("unexpected <.> in operand");
                }
                (Token::Field(fields), used.max(1))
            }
            b'$' => {
                let name = word_end(&rest[1..]);
                let (fields, used) = fields(&rest[1 + name..]);
                (
                    Token::Variable(rest[1..1 + name].to_owned(), fields),
                    1 + name + used,
                )
            }
            byte if byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b'.') => {
                let end = rest
                    .find(|c: char| {
                        !(c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.' | '_'))
                    })
                    .unwrap_or(rest.len());
                (Token::Literal(number(&rest[..end])?), end)
            }
            _ => {
                let end = word_end(rest);
                if end == 0 {
                    let first = rest.chars().next().unwrap_or_default();
                    bail!("unexpected {:?} in command", first.to_string());
                }
                let token = match &rest[..end] {
                    "true" => Token::Literal(Value::Bool(true)),
                    "false" => Token::Literal(Value::Bool(false)),
                    "nil" => Token::Literal(Value::Null),
                    word => Token::Word(word.to_owned()),
                };
                (token, end)
            }
        };
        tokens.push(token);
        at += used;
    }
    Ok(tokens)
}

fn word_end(text: &str) -> usize {
    text.find(|c: char| !(c.is_alphanumeric() || c == '_'))
        .unwrap_or(text.len())
}

/// `.a.b` and its length in bytes.
fn fields(text: &str) -> (Vec<String>, usize) {
    let (mut names, mut at) = (Vec::new(), 0);
    while let Some(rest) = text[at..].strip_prefix('.') {
        let end = word_end(rest);
        if end == 0 {
            break;
        }
        names.push(rest[..end].to_owned());
        at += 1 + end;
    }
    (names, at)
}

fn number(text: &str) -> Result<Value> {
    let plain = text.replace('_', "").to_lowercase();
    let (sign, digits) = match plain.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", plain.strip_prefix('+').unwrap_or(&plain)),
    };
    let prefixes = [("0x", 16), ("0b", 2), ("0o", 8)];
    let known = prefixes
        .iter()
        .find_map(|(prefix, radix)| Some((digits.strip_prefix(prefix)?, *radix)));
    let is_octal = digits.len() > 1 && digits.starts_with('0') && !digits.contains(['.', 'e']);
    let (digits, radix) = known.unwrap_or((digits, if is_octal { 8 } else { 10 }));
    if let Ok(number) = i64::from_str_radix(&format!("{sign}{digits}"), radix) {
        return Ok(number.into());
    }
    match plain.parse::<f64>() {
        Ok(number) if radix == 10 => Ok(number.into()),
        _ if radix != 10 => bail!("illegal number syntax: {text:?}"),
        _ => bail!("bad number syntax: {text:?}"),
    }
}

/// The value of a quoted string; a quoted character is its code point.
fn unquote(text: &str) -> Result<Value> {
    let inner = &text[1..text.len() - 1];
    if text.starts_with('`') {
        return Ok(Value::String(inner.to_owned()));
    }
    let mut out = String::new();
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => out.push('\n'),
            Some('t') => out.push('\t'),
            Some('r') => out.push('\r'),
            Some(c @ ('\\' | '"' | '\'')) => out.push(c),
            Some(c @ ('x' | 'u' | 'U')) => {
                let length = [('x', 2), ('u', 4), ('U', 8)]
                    .into_iter()
                    .find(|(name, _)| *name == c);
                let digits: String = chars.by_ref().take(length.map_or(2, |(_, n)| n)).collect();
                let code = u32::from_str_radix(&digits, 16)
                    .ok()
                    .and_then(char::from_u32);
                match code {
                    Some(c) => out.push(c),
                    None => bail!("invalid escape in {text}"),
                }
            }
            _ => bail!("invalid escape in {text}"),
        }
    }
    if text.starts_with('\'') {
        let mut chars = out.chars();
        return match (chars.next(), chars.next()) {
            (Some(c), None) => Ok(Value::from(c as u32)),
            _ => bail!("malformed character constant: {text}"),
        };
    }
    Ok(Value::String(out))
}
