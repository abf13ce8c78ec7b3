//! The lexer, with the literals of CEL: raw and triple-quoted strings, bytes, escapes, hexadecimal
//! and unsigned numbers.

use std::sync::Arc;

use crate::source::Issue;

pub(crate) const INVALID_INT: &str = "invalid int literal";
pub(crate) const INVALID_UINT: &str = "invalid uint literal";
pub(crate) const INVALID_DOUBLE: &str = "invalid double literal";

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Token {
    /// An operator or punctuation.
    Symbol(&'static str),
    Ident(Arc<str>),
    /// `` `a-b` `` after a dot.
    Quoted(Arc<str>),
    Int(i64),
    /// An integer too large for `int`: valid after a minus if it is the smallest.
    BigInt(u64),
    /// A number outside of its type, with the error.
    Unreadable(&'static str),
    Uint(u64),
    Double(f64),
    String(Arc<str>),
    Bytes(Arc<[u8]>),
    True,
    False,
    Null,
    In,
    End,
}

#[derive(Debug, Clone)]
pub(crate) struct Spanned {
    pub token: Token,
    /// Offset in characters.
    pub at: u32,
    pub end: u32,
}

const SYMBOLS: &[&str] = &[
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "!", "+", "-", "*", "/", "%", "?", ":", "(", ")",
    "[", "]", "{", "}", ".", ",",
];

/// Reserved words.
const RESERVED: &[&str] = &[
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

pub(crate) fn is_reserved(word: &str) -> bool {
    RESERVED.contains(&word)
}

struct Lexer<'a> {
    text: &'a [char],
    at: usize,
}

/// Reads all tokens; the last is [`Token::End`].
pub(crate) fn tokens(text: &[char]) -> Result<Vec<Spanned>, Issue> {
    let mut lexer = Lexer { text, at: 0 };
    let mut tokens = Vec::new();
    loop {
        lexer.skip_blank();
        let at = lexer.at as u32;
        let token = lexer.token()?;
        let done = token == Token::End;
        tokens.push(Spanned {
            token,
            at,
            end: lexer.at as u32,
        });
        if done {
            return Ok(tokens);
        }
    }
}

impl Lexer<'_> {
    fn peek(&self, ahead: usize) -> char {
        self.text.get(self.at + ahead).copied().unwrap_or('\0')
    }

    fn issue(&self, at: usize, message: impl Into<String>) -> Issue {
        Issue {
            offset: at as u32,
            message: message.into(),
        }
    }

    fn skip_blank(&mut self) {
        loop {
            while matches!(self.peek(0), ' ' | '\t' | '\r' | '\n' | '\u{c}') {
                self.at += 1;
            }
            if self.peek(0) != '/' || self.peek(1) != '/' {
                return;
            }
            while self.at < self.text.len() && self.peek(0) != '\n' {
                self.at += 1;
            }
        }
    }

    fn token(&mut self) -> Result<Token, Issue> {
        let c = self.peek(0);
        if self.at >= self.text.len() {
            return Ok(Token::End);
        }
        if let Some(token) = self.quoted_literal()? {
            return Ok(token);
        }
        if c.is_ascii_digit() || c == '.' && self.peek(1).is_ascii_digit() {
            return Ok(self.number());
        }
        if c.is_ascii_alphabetic() || c == '_' {
            return Ok(self.word());
        }
        if c == '`' {
            return self.quoted_identifier();
        }
        let rest = &self.text[self.at..];
        let symbol = SYMBOLS.iter().find(|symbol| {
            symbol.len() <= rest.len() && symbol.chars().zip(rest).all(|(a, b)| a == *b)
        });
        match symbol {
            Some(symbol) => {
                self.at += symbol.len();
                Ok(Token::Symbol(symbol))
            }
            None => Err(self.issue(
                self.at,
                format!("Syntax error: token recognition error at: '{c}'"),
            )),
        }
    }

    fn word(&mut self) -> Token {
        let start = self.at;
        while self.peek(0).is_ascii_alphanumeric() || self.peek(0) == '_' {
            self.at += 1;
        }
        let word: String = self.text[start..self.at].iter().collect();
        match word.as_str() {
            "true" => Token::True,
            "false" => Token::False,
            "null" => Token::Null,
            "in" => Token::In,
            _ => Token::Ident(word.into()),
        }
    }

    fn quoted_identifier(&mut self) -> Result<Token, Issue> {
        let start = self.at;
        self.at += 1;
        let inside =
            |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '/' | ' ');
        while inside(self.peek(0)) {
            self.at += 1;
        }
        if self.peek(0) != '`' || self.at == start + 1 {
            let seen: String = self.text[start..self.at].iter().collect();
            return Err(self.issue(
                start,
                format!("Syntax error: token recognition error at: '{seen}'"),
            ));
        }
        let name: String = self.text[start + 1..self.at].iter().collect();
        self.at += 1;
        Ok(Token::Quoted(name.into()))
    }

    fn number(&mut self) -> Token {
        let start = self.at;
        if self.peek(0) == '0'
            && matches!(self.peek(1), 'x' | 'X')
            && self.peek(2).is_ascii_hexdigit()
        {
            self.at += 2;
            while self.peek(0).is_ascii_hexdigit() {
                self.at += 1;
            }
            let digits: String = self.text[start + 2..self.at].iter().collect();
            return self.whole(u64::from_str_radix(&digits, 16).ok());
        }
        let mut float = false;
        self.digits();
        if self.peek(0) == '.' && self.peek(1).is_ascii_digit() {
            float = true;
            self.at += 1;
            self.digits();
        }
        let sign = usize::from(matches!(self.peek(1), '+' | '-'));
        if matches!(self.peek(0), 'e' | 'E') && self.peek(1 + sign).is_ascii_digit() {
            float = true;
            self.at += 1 + sign;
            self.digits();
        }
        let digits: String = self.text[start..self.at].iter().collect();
        if !float {
            return self.whole(digits.parse().ok());
        }
        match digits.parse::<f64>() {
            Ok(number) if number.is_finite() => Token::Double(number),
            _ => Token::Unreadable(INVALID_DOUBLE),
        }
    }

    fn digits(&mut self) {
        while self.peek(0).is_ascii_digit() {
            self.at += 1;
        }
    }

    /// An integer literal, unsigned with a trailing `u`.
    fn whole(&mut self, number: Option<u64>) -> Token {
        if matches!(self.peek(0), 'u' | 'U') {
            self.at += 1;
            return match number {
                Some(number) => Token::Uint(number),
                None => Token::Unreadable(INVALID_UINT),
            };
        }
        let Some(number) = number else {
            return Token::Unreadable(INVALID_INT);
        };
        match i64::try_from(number) {
            Ok(number) => Token::Int(number),
            Err(_) => Token::BigInt(number),
        }
    }

    /// A string or bytes, if one begins here.
    fn quoted_literal(&mut self) -> Result<Option<Token>, Issue> {
        let start = self.at;
        let (mut raw, mut bytes, mut prefix) = (false, false, 0);
        while prefix < 2 {
            match self.peek(prefix) {
                'r' | 'R' if !raw => raw = true,
                'b' | 'B' if !bytes && !raw => bytes = true,
                _ => break,
            }
            prefix += 1;
        }
        let quote = self.peek(prefix);
        if quote != '"' && quote != '\'' {
            return Ok(None);
        }
        self.at += prefix;
        let triple = self.peek(1) == quote && self.peek(2) == quote;
        self.at += if triple { 3 } else { 1 };
        let mut content = Vec::new();
        loop {
            let c = self.peek(0);
            let ended = if triple {
                c == quote && self.peek(1) == quote && self.peek(2) == quote
            } else {
                c == quote
            };
            if ended {
                self.at += if triple { 3 } else { 1 };
                break;
            }
            if self.at >= self.text.len() || !triple && matches!(c, '\n' | '\r') {
                let seen: String = self.text[start..self.at].iter().collect();
                return Err(self.issue(
                    start,
                    format!("Syntax error: token recognition error at: '{seen}'"),
                ));
            }
            // An escape without a meaning is an error of the whole literal.
            self.character(raw, bytes, &mut content).map_err(|issue| {
                match issue.message.starts_with("Syntax error") {
                    true => issue,
                    false => self.issue(start, issue.message),
                }
            })?;
        }
        if bytes {
            return Ok(Some(Token::Bytes(content.into())));
        }
        match String::from_utf8(content) {
            Ok(text) => Ok(Some(Token::String(text.into()))),
            Err(_) => Err(self.issue(start, "invalid string literal")),
        }
    }

    /// One character or escape of a literal.
    fn character(&mut self, raw: bool, bytes: bool, content: &mut Vec<u8>) -> Result<(), Issue> {
        let start = self.at;
        let c = self.peek(0);
        self.at += 1;
        if c != '\\' || raw {
            push_char(content, c);
            return Ok(());
        }
        let escape = self.peek(0);
        self.at += 1;
        let simple = match escape {
            'a' => Some('\u{7}'),
            'b' => Some('\u{8}'),
            'f' => Some('\u{c}'),
            'n' => Some('\n'),
            'r' => Some('\r'),
            't' => Some('\t'),
            'v' => Some('\u{b}'),
            '\\' | '\'' | '"' | '`' | '?' => Some(escape),
            _ => None,
        };
        if let Some(c) = simple {
            push_char(content, c);
            return Ok(());
        }
        let (radix, length) = match escape {
            'x' | 'X' => (16, 2),
            'u' => (16, 4),
            'U' => (16, 8),
            '0'..='3' => {
                self.at -= 1;
                (8, 3)
            }
            _ => {
                return Err(self.issue(
                    start,
                    format!("Syntax error: token recognition error at: '\\{escape}'"),
                ));
            }
        };
        let digits: String = (0..length).map(|ahead| self.peek(ahead)).collect();
        let are_digits = digits.chars().all(|c| c.is_digit(radix));
        let code = u32::from_str_radix(&digits, radix).ok();
        let code = code.filter(|_| are_digits).ok_or_else(|| {
            let seen: String = self.text[start..self.at.min(self.text.len())]
                .iter()
                .collect();
            self.issue(
                start,
                format!("Syntax error: token recognition error at: '{seen}'"),
            )
        })?;
        self.at += length;
        if bytes && length > 3 {
            return Err(self.issue(start, "unable to unescape string"));
        }
        if bytes {
            content.push(code as u8);
            return Ok(());
        }
        let c =
            char::from_u32(code).ok_or_else(|| self.issue(start, "invalid unicode code point"))?;
        push_char(content, c);
        Ok(())
    }
}

fn push_char(content: &mut Vec<u8>, c: char) {
    content.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
}
