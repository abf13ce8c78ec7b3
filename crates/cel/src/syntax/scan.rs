//! Tokens without their values. A character that starts no token is an issue, and scanning
//! continues with the next one.

use crate::source::Issue;

/// The kinds of tokens, in upstream's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    End,
    Equals,
    NotEquals,
    In,
    Less,
    LessEquals,
    GreaterEquals,
    Greater,
    And,
    Or,
    LeftBracket,
    RightBracket,
    LeftBrace,
    RightBrace,
    LeftParen,
    RightParen,
    Dot,
    Comma,
    Minus,
    Not,
    Question,
    Colon,
    Plus,
    Star,
    Slash,
    Percent,
    True,
    False,
    Null,
    Float,
    Int,
    Uint,
    String,
    Bytes,
    Ident,
    QuotedIdent,
}

/// The names of the kinds in messages.
const NAMES: [&str; 36] = [
    "<EOF>",
    "'=='",
    "'!='",
    "'in'",
    "'<'",
    "'<='",
    "'>='",
    "'>'",
    "'&&'",
    "'||'",
    "'['",
    "']'",
    "'{'",
    "'}'",
    "'('",
    "')'",
    "'.'",
    "','",
    "'-'",
    "'!'",
    "'?'",
    "':'",
    "'+'",
    "'*'",
    "'/'",
    "'%'",
    "'true'",
    "'false'",
    "'null'",
    "NUM_FLOAT",
    "NUM_INT",
    "NUM_UINT",
    "STRING",
    "BYTES",
    "IDENTIFIER",
    "ESC_IDENTIFIER",
];

const SYMBOLS: &[(&str, Kind)] = &[
    ("==", Kind::Equals),
    ("!=", Kind::NotEquals),
    ("<=", Kind::LessEquals),
    (">=", Kind::GreaterEquals),
    ("&&", Kind::And),
    ("||", Kind::Or),
    ("<", Kind::Less),
    (">", Kind::Greater),
    ("[", Kind::LeftBracket),
    ("]", Kind::RightBracket),
    ("{", Kind::LeftBrace),
    ("}", Kind::RightBrace),
    ("(", Kind::LeftParen),
    (")", Kind::RightParen),
    (".", Kind::Dot),
    (",", Kind::Comma),
    ("-", Kind::Minus),
    ("!", Kind::Not),
    ("?", Kind::Question),
    (":", Kind::Colon),
    ("+", Kind::Plus),
    ("*", Kind::Star),
    ("/", Kind::Slash),
    ("%", Kind::Percent),
];

/// A set of token kinds, and whether a rule may end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Set {
    kinds: u64,
    pub(super) ends: bool,
}

impl Set {
    pub(super) fn from_kinds(kinds: &[Kind]) -> Self {
        let bits = kinds.iter().map(|kind| 1 << *kind as u64);
        Self {
            kinds: bits.fold(0, |all, bit: u64| all | bit),
            ends: false,
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.kinds |= other.kinds;
    }

    pub(super) fn has(self, kind: Kind) -> bool {
        self.kinds & (1 << kind as u64) != 0
    }

    /// As messages list them.
    pub(super) fn names(self) -> String {
        let kinds = (0..NAMES.len()).filter(|kind| self.kinds & (1 << kind) != 0);
        let names: Vec<&str> = kinds.map(|kind| NAMES[kind]).collect();
        match &names[..] {
            [one] => (*one).to_owned(),
            all => format!("{{{}}}", all.join(", ")),
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Token {
    pub(super) kind: Kind,
    /// Offsets in characters.
    pub(super) at: usize,
    pub(super) end: usize,
}

/// All tokens, ending with the end token, and the invalid characters.
pub(super) fn scan(text: &[char]) -> (Vec<Token>, Vec<Issue>) {
    let (mut tokens, mut issues) = (Vec::new(), Vec::new());
    let mut at = 0;
    loop {
        at += blank(&text[at..]);
        let rest = &text[at..];
        if rest.is_empty() {
            let kind = Kind::End;
            tokens.push(Token { kind, at, end: at });
            return (tokens, issues);
        }
        match token(rest) {
            Ok((kind, length)) => {
                let end = at + length;
                tokens.push(Token { kind, at, end });
                at = end;
            }
            Err(length) => {
                let seen: String = rest.iter().take(length + 1).collect();
                issues.push(Issue {
                    offset: at as u32,
                    message: format!("Syntax error: token recognition error at: '{seen}'"),
                });
                at = (at + length + 1).min(text.len());
            }
        }
    }
}

/// The number of leading characters of space and comments.
pub(super) fn blank(text: &[char]) -> usize {
    let mut at = 0;
    loop {
        let start = at;
        at += count(&text[at..], |c| {
            matches!(c, ' ' | '\t' | '\r' | '\n' | '\u{c}')
        });
        if text[at..].starts_with(&['/', '/']) {
            at += count(&text[at..], |c| c != '\n');
        }
        if at == start {
            return at;
        }
    }
}

/// The first token and its length; or how many characters match before it fails.
fn token(text: &[char]) -> Result<(Kind, usize), usize> {
    if let Some(quoted) = quoted(text) {
        return quoted;
    }
    let first = text[0];
    if let Some(number) = number(text) {
        return Ok(number);
    }
    if first.is_ascii_alphabetic() || first == '_' {
        let length = count(text, |c| c.is_ascii_alphanumeric() || c == '_');
        let word: String = text[..length].iter().collect();
        let kind = match word.as_str() {
            "in" => Kind::In,
            "true" => Kind::True,
            "false" => Kind::False,
            "null" => Kind::Null,
            _ => Kind::Ident,
        };
        return Ok((kind, length));
    }
    if first == '`' {
        let inside = |c: char| c.is_ascii_alphanumeric() || "_.-/ ".contains(c);
        let length = 1 + count(&text[1..], inside);
        return match text.get(length) {
            Some('`') if length > 1 => Ok((Kind::QuotedIdent, length + 1)),
            _ => Err(length),
        };
    }
    let is = |symbol: &str| symbol.chars().eq(text.iter().copied().take(symbol.len()));
    match SYMBOLS.iter().find(|(symbol, _)| is(symbol)) {
        Some((symbol, kind)) => Ok((*kind, symbol.len())),
        None => Err(usize::from(matches!(first, '=' | '&' | '|'))),
    }
}

fn count(text: &[char], holds: impl Fn(char) -> bool) -> usize {
    text.iter().take_while(|c| holds(**c)).count()
}

fn number(text: &[char]) -> Option<(Kind, usize)> {
    let digits = |from: usize| count(text.get(from..).unwrap_or_default(), |c| c.is_ascii_digit());
    let is = |at: usize, of: &str| text.get(at).is_some_and(|c| of.contains(*c));
    let unsigned = |length: usize| match is(length, "uU") {
        true => (Kind::Uint, length + 1),
        false => (Kind::Int, length),
    };
    if text.starts_with(&['0', 'x']) {
        let length = count(&text[2..], |c| c.is_ascii_hexdigit());
        if length > 0 {
            return Some(unsigned(2 + length));
        }
    }
    let whole = digits(0);
    let fraction = if is(whole, ".") { digits(whole + 1) } else { 0 };
    if whole == 0 && fraction == 0 {
        return None;
    }
    let mut length = whole + if fraction > 0 { fraction + 1 } else { 0 };
    if is(length, "eE") {
        let sign = usize::from(is(length + 1, "+-"));
        let exponent = digits(length + 1 + sign);
        if exponent > 0 {
            return Some((Kind::Float, length + 1 + sign + exponent));
        }
    }
    if fraction > 0 {
        return Some((Kind::Float, length));
    }
    length = whole;
    Some(unsigned(length))
}

/// A string or bytes, if one begins here.
fn quoted(text: &[char]) -> Option<Result<(Kind, usize), usize>> {
    let is_bytes = matches!(text[0], 'b' | 'B');
    let mut at = usize::from(is_bytes);
    let is_raw = matches!(text.get(at), Some('r' | 'R'));
    at += usize::from(is_raw);
    let quote = *text.get(at).filter(|c| matches!(c, '\'' | '"'))?;
    let kind = if is_bytes { Kind::Bytes } else { Kind::String };
    let ended = |end: Result<usize, usize>| end.map(|end| (kind, end));
    // If unterminated, the text before the quote is a name.
    let contents = |from: usize, is_triple: bool| contents(text, from, quote, is_raw, is_triple);
    if at > 0 && contents(at + 1, false).is_err() && contents(at + 3, true).is_err() {
        return None;
    }
    if text[at..].starts_with(&[quote; 3]) {
        let end = contents(at + 3, true);
        // If unterminated, it is an empty string followed by another.
        return Some(ended(end.or(Ok(at + 2))));
    }
    Some(ended(contents(at + 1, false)))
}

/// Where a string's contents end, or where they fail.
fn contents(
    text: &[char],
    mut at: usize,
    quote: char,
    is_raw: bool,
    is_triple: bool,
) -> Result<usize, usize> {
    while let Some(c) = text.get(at).copied() {
        if is_triple && text[at..].starts_with(&[quote; 3]) {
            return Ok(at + 3);
        }
        if !is_triple && c == quote {
            return Ok(at + 1);
        }
        if !is_triple && matches!(c, '\n' | '\r') {
            return Err(at);
        }
        at += match c == '\\' && !is_raw {
            true => escape(&text[at..]).map_err(|length| at + length)?,
            false => 1,
        };
    }
    Err(at)
}

/// The length of an escape, or of its valid part.
fn escape(text: &[char]) -> Result<usize, usize> {
    let is_hex = |c: char| c.is_ascii_hexdigit();
    let hex = |wanted: usize| match count(&text[2..text.len().min(2 + wanted)], is_hex) {
        found if found == wanted => Ok(2 + wanted),
        found => Err(2 + found),
    };
    match text.get(1) {
        Some('a' | 'b' | 'f' | 'n' | 'r' | 't' | 'v' | '"' | '\'' | '\\' | '?' | '`') => Ok(2),
        Some('x' | 'X') => hex(2),
        Some('u') => hex(4),
        Some('U') => hex(8),
        Some('0'..='3') => {
            let is_octal = |c: char| ('0'..='7').contains(&c);
            match count(&text[2..text.len().min(4)], is_octal) {
                2 => Ok(4),
                found => Err(2 + found),
            }
        }
        _ => Err(1),
    }
}
