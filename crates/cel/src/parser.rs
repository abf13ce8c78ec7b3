//! The parser. Macros are expanded while parsing, as in every CEL implementation, so that checking,
//! costing and evaluation only know comprehensions.

use std::sync::Arc;

use crate::{
    ast::{Element, Expr, Id, Kind, Literal, MapEntry, StructField, op},
    env::Env,
    lexer::{self, INVALID_DOUBLE, INVALID_INT, Spanned, Token},
    macros,
    source::{Issue, Issues, Source},
    syntax,
};

/// A parsed expression, with macros expanded.
#[derive(Debug, Clone)]
pub struct Parsed {
    pub source: Source,
    pub root: Expr,
    /// Offset in characters by node id.
    pub positions: Vec<u32>,
}

/// Deeper trees are rejected, as upstream does: everything that walks them recurses.
const DEEPEST: u16 = 250;
/// Maximum nesting of parentheses, brackets and arguments; half of upstream's, since each takes a
/// dozen stack frames.
const DEEPEST_NESTING: u16 = 125;
/// Longer expressions are rejected, as upstream does.
const LONGEST: usize = 100_000;

/// Larger trees are rejected: `optMap` duplicates its operand.
const LARGEST: u32 = 100_000;

/// The tokens that may start an expression, in upstream's words.
const STARTS: &str = "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}";

const RESERVED: &str = "reserved identifier";

pub(crate) struct Parser {
    tokens: Vec<Spanned>,
    next: usize,
    nesting: u16,
    text: Vec<char>,
    positions: Vec<u32>,
    /// Height of the tree below a node, by id.
    heights: Vec<u16>,
    /// Number of nodes of the tree below a node, by id.
    sizes: Vec<u32>,
    pub(crate) issues: Vec<Issue>,
    /// Whether `cel.bind` is a macro.
    pub(crate) bindings: bool,
}

/// Parses an expression with the macros that every environment has.
pub fn parse(text: &str) -> Result<Parsed, Issues> {
    parse_in(&Env::new(), text)
}

/// Parses an expression with the macros of an environment.
pub(crate) fn parse_in(env: &Env, text: &str) -> Result<Parsed, Issues> {
    let source = Source::new(text);
    let fail = |issue| Issues::new(source.clone(), vec![issue]);
    let characters: Vec<char> = text.chars().collect();
    if characters.len() > LONGEST {
        return Err(fail(Issue {
            offset: 0,
            message: format!(
                "expression code point size exceeds limit: size: {}, limit {LONGEST}",
                characters.len()
            ),
        }));
    }
    let tokens = match lexer::tokens(&characters) {
        Ok(tokens) => tokens,
        Err(issue) => {
            let mut issues = beside_unrecognized(env, &characters, &issue);
            issues.push(issue);
            return Err(mistakes(&source, &characters, issues));
        }
    };
    let mut parser = Parser::new(env, tokens, characters);
    let root = parser.whole().map_err(|issue| {
        let mut issues = std::mem::take(&mut parser.issues);
        issues.push(issue);
        mistakes(&source, &parser.text, issues)
    })?;
    if !parser.issues.is_empty() {
        return Err(Issues::new(source, parser.issues));
    }
    Ok(Parsed {
        source,
        root,
        positions: parser.positions,
    })
}

/// How often text that is no token is skipped.
const SKIPPED: usize = 16;

/// The errors that the parser finds in a text without the parts that are no tokens. Syntax errors are left to
/// [`syntax`].
fn beside_unrecognized(env: &Env, text: &[char], first: &Issue) -> Vec<Issue> {
    let mut text = text.to_vec();
    let mut issue = first.clone();
    for _ in 0..SKIPPED {
        let seen = issue
            .message
            .strip_prefix("Syntax error: token recognition error at: '");
        let Some(seen) = seen.and_then(|seen| seen.strip_suffix('\'')) else {
            return Vec::new();
        };
        let start = issue.offset as usize;
        let end = text.len().min(start + seen.chars().count().max(1));
        text[start.min(end)..end].fill(' ');
        match lexer::tokens(&text) {
            Err(next) => issue = next,
            Ok(tokens) => {
                let mut parser = Parser::new(env, tokens, text);
                let last = parser.whole().err();
                let mut issues = std::mem::take(&mut parser.issues);
                issues.extend(last);
                issues.retain(|issue| !issue.message.starts_with("Syntax error"));
                return issues;
            }
        }
    }
    Vec::new()
}

/// The errors of a text that does not parse. The parser itself finds only the first syntax error.
fn mistakes(source: &Source, text: &[char], mut issues: Vec<Issue>) -> Issues {
    let is_syntax = |issue: &Issue| issue.message.starts_with("Syntax error");
    if issues.iter().any(is_syntax)
        && let Some(all) = syntax::mistakes(text).filter(|all| !all.is_empty())
    {
        issues.retain(|issue| !is_syntax(issue));
        issues.extend(all);
        issues.sort_by_key(|issue| issue.offset);
    }
    Issues::new(source.clone(), issues)
}

type Result<T, E = Issue> = std::result::Result<T, E>;

fn too_deep(offset: u32) -> Issue {
    Issue {
        offset,
        message: format!("expression recursion limit exceeded: {DEEPEST}"),
    }
}

fn too_large(offset: u32) -> Issue {
    Issue {
        offset,
        message: format!("expression size limit exceeded: {LARGEST}"),
    }
}

impl Parser {
    fn new(env: &Env, tokens: Vec<Spanned>, text: Vec<char>) -> Self {
        Self {
            tokens,
            next: 0,
            nesting: 0,
            text,
            positions: Vec::new(),
            heights: Vec::new(),
            sizes: Vec::new(),
            issues: Vec::new(),
            bindings: env.has_bindings(),
        }
    }

    // --- ids and nodes

    pub(crate) fn id(&mut self, at: u32) -> Id {
        self.positions.push(at);
        self.heights.push(0);
        self.sizes.push(1);
        (self.positions.len() - 1) as Id
    }

    pub(crate) fn position(&self, id: Id) -> u32 {
        self.positions[id as usize]
    }

    pub(crate) fn node(&mut self, at: u32, kind: Kind) -> Expr {
        let id = self.id(at);
        self.finish(id, kind)
    }

    /// A node whose id was assigned before its children were parsed.
    fn finish(&mut self, id: Id, kind: Kind) -> Expr {
        let (mut height, mut size) = (0, 1_u32);
        kind.for_each_child(&mut |child| {
            height = height.max(self.heights[child.id as usize]);
            size = size.saturating_add(self.sizes[child.id as usize]);
        });
        if height < DEEPEST && size <= LARGEST {
            self.heights[id as usize] = height + 1;
            self.sizes[id as usize] = size;
            return Expr { id, kind };
        }
        self.issues.push(match height < DEEPEST {
            true => too_large(self.position(id)),
            false => too_deep(self.position(id)),
        });
        Expr {
            id,
            kind: Kind::Literal(Literal::Null),
        }
    }

    pub(crate) fn call(&mut self, at: u32, function: &str, args: Vec<Expr>) -> Expr {
        let kind = Kind::Call {
            function: function.into(),
            target: None,
            args,
        };
        self.node(at, kind)
    }

    // --- tokens

    fn peek(&self) -> &Token {
        &self.tokens[self.next].token
    }

    fn at(&self) -> u32 {
        self.tokens[self.next].at
    }

    fn advance(&mut self) -> Token {
        let token = self.tokens[self.next].token.clone();
        if token != Token::End {
            self.next += 1;
        }
        token
    }

    fn take(&mut self, symbol: &'static str) -> Option<u32> {
        let at = self.at();
        if *self.peek() != Token::Symbol(symbol) {
            return None;
        }
        self.next += 1;
        Some(at)
    }

    /// The token as in error messages.
    fn shown(&self) -> String {
        let spanned = &self.tokens[self.next];
        if spanned.token == Token::End {
            return "<EOF>".to_owned();
        }
        self.text[spanned.at as usize..spanned.end as usize]
            .iter()
            .collect()
    }

    fn mismatched(&self, expecting: &str) -> Issue {
        Issue {
            offset: self.at(),
            message: format!(
                "Syntax error: mismatched input '{}' expecting {expecting}",
                self.shown()
            ),
        }
    }

    fn expect(&mut self, symbol: &'static str) -> Result<u32> {
        self.take(symbol)
            .ok_or_else(|| self.mismatched(&format!("'{symbol}'")))
    }

    // --- grammar

    fn whole(&mut self) -> Result<Expr> {
        let expr = self.expr()?;
        match self.peek() {
            Token::End => Ok(expr),
            _ => Err(Issue {
                offset: self.at(),
                message: format!(
                    "Syntax error: extraneous input '{}' expecting <EOF>",
                    self.shown()
                ),
            }),
        }
    }

    fn expr(&mut self) -> Result<Expr> {
        self.nesting += 1;
        if self.nesting > DEEPEST_NESTING {
            return Err(too_deep(self.at()));
        }
        let condition = self.logical(op::OR, "||")?;
        let expr = match self.take("?") {
            None => condition,
            Some(at) => {
                let then = self.logical(op::OR, "||")?;
                self.expect(":")?;
                let otherwise = self.expr()?;
                self.call(at, op::CONDITIONAL, vec![condition, then, otherwise])
            }
        };
        self.nesting -= 1;
        Ok(expr)
    }

    /// A chain of `||` or `&&`, as a balanced tree.
    fn logical(&mut self, function: &'static str, symbol: &'static str) -> Result<Expr> {
        let mut terms = vec![self.logical_term(function)?];
        let mut ops = Vec::new();
        while let Some(at) = self.take(symbol) {
            terms.push(self.logical_term(function)?);
            ops.push(at);
        }
        let mut terms: Vec<Option<Expr>> = terms.into_iter().map(Some).collect();
        Ok(self.balanced(function, &mut terms, &ops))
    }

    fn logical_term(&mut self, function: &'static str) -> Result<Expr> {
        if function == op::OR {
            self.logical(op::AND, "&&")
        } else {
            self.relation()
        }
    }

    /// `terms` has one more element than `ops`.
    fn balanced(&mut self, function: &str, terms: &mut [Option<Expr>], ops: &[u32]) -> Expr {
        if ops.is_empty() {
            // Each term is taken once: the halves do not overlap.
            return terms[0].take().unwrap_or(Expr {
                id: 0,
                kind: Kind::Literal(Literal::Null),
            });
        }
        let middle = ops.len() / 2;
        let (left, right) = terms.split_at_mut(middle + 1);
        let left = self.balanced(function, left, &ops[..middle]);
        let right = self.balanced(function, right, &ops[middle + 1..]);
        self.call(ops[middle], function, vec![left, right])
    }

    fn relation(&mut self) -> Result<Expr> {
        let mut left = self.sum()?;
        loop {
            let function = match self.peek() {
                Token::Symbol("<") => op::LESS,
                Token::Symbol("<=") => op::LESS_EQUALS,
                Token::Symbol(">") => op::GREATER,
                Token::Symbol(">=") => op::GREATER_EQUALS,
                Token::Symbol("==") => op::EQUALS,
                Token::Symbol("!=") => op::NOT_EQUALS,
                Token::In => op::IN,
                _ => return Ok(left),
            };
            let at = self.at();
            self.advance();
            let right = self.sum()?;
            left = self.call(at, function, vec![left, right]);
        }
    }

    fn sum(&mut self) -> Result<Expr> {
        let mut left = self.product()?;
        loop {
            let function = match self.peek() {
                Token::Symbol("+") => op::ADD,
                Token::Symbol("-") => op::SUBTRACT,
                _ => return Ok(left),
            };
            let at = self.at();
            self.advance();
            let right = self.product()?;
            left = self.call(at, function, vec![left, right]);
        }
    }

    fn product(&mut self) -> Result<Expr> {
        let mut left = self.unary()?;
        loop {
            let function = match self.peek() {
                Token::Symbol("*") => op::MULTIPLY,
                Token::Symbol("/") => op::DIVIDE,
                Token::Symbol("%") => op::MODULO,
                _ => return Ok(left),
            };
            let at = self.at();
            self.advance();
            let right = self.unary()?;
            left = self.call(at, function, vec![left, right]);
        }
    }

    /// Repeated `!` or `-` cancel in pairs.
    fn unary(&mut self) -> Result<Expr> {
        let at = self.at();
        for (symbol, function) in [("!", op::NOT), ("-", op::NEGATE)] {
            let mut count = 0;
            while *self.peek() == Token::Symbol(symbol) {
                let number = matches!(
                    self.tokens[self.next + 1].token,
                    Token::Int(_)
                        | Token::BigInt(_)
                        | Token::Double(_)
                        | Token::Unreadable(INVALID_INT | INVALID_DOUBLE)
                );
                // A single minus before a number is part of the literal.
                if symbol == "-" && number && count == 0 {
                    break;
                }
                self.advance();
                count += 1;
            }
            if count > 0 {
                let operand = self.member()?;
                return Ok(if count % 2 == 0 {
                    operand
                } else {
                    self.call(at, function, vec![operand])
                });
            }
        }
        self.member()
    }

    fn member(&mut self) -> Result<Expr> {
        let mut expr = self.primary()?;
        loop {
            if let Some(at) = self.take(".") {
                expr = match self.take("?") {
                    None => self.select_or_call(expr, at)?,
                    Some(_) => {
                        let field = self.field_name()?;
                        let name = self.node(at, Kind::Literal(Literal::String(field)));
                        self.call(at, op::OPTIONAL_SELECT, vec![expr, name])
                    }
                };
            } else if let Some(at) = self.take("[") {
                let function = match self.take("?") {
                    Some(_) => op::OPTIONAL_INDEX,
                    None => op::INDEX,
                };
                let index = self.expr()?;
                self.expect("]")?;
                expr = self.call(at, function, vec![expr, index]);
            } else if *self.peek() == Token::Symbol("{")
                && let Some(name) = expr.qualified_name()
            {
                self.allow_reserved(&expr);
                expr = self.construct(name)?;
            } else {
                return Ok(expr);
            }
        }
    }

    fn select_or_call(&mut self, operand: Expr, dot: u32) -> Result<Expr> {
        let field = self.field_name()?;
        let Some(open) = self.take("(") else {
            let kind = Kind::Select {
                operand: Box::new(operand),
                field,
                test: false,
            };
            return Ok(self.node(dot, kind));
        };
        let args = self.arguments(")")?;
        let at = open;
        Ok(macros::expand(self, at, &field, Some(operand), args))
    }

    /// A type name may begin with a reserved word.
    fn allow_reserved(&mut self, name: &Expr) {
        let mut first = name;
        while let Kind::Select { operand, .. } = &first.kind {
            first = operand;
        }
        let at = self.position(first.id);
        let is_reserved =
            |issue: &mut Issue| issue.offset == at && issue.message.starts_with(RESERVED);
        self.issues.pop_if(is_reserved);
    }

    fn field_name(&mut self) -> Result<Arc<str>> {
        match self.peek().clone() {
            Token::Ident(name) => {
                self.advance();
                Ok(name)
            }
            Token::Quoted(name) => {
                self.issues.push(Issue {
                    offset: self.at(),
                    message: "unsupported syntax: '`'".to_owned(),
                });
                self.advance();
                Ok(name)
            }
            _ => Err(self.mismatched("IDENTIFIER")),
        }
    }

    fn arguments(&mut self, close: &'static str) -> Result<Vec<Expr>> {
        let mut args = Vec::new();
        if self.take(close).is_some() {
            return Ok(args);
        }
        loop {
            args.push(self.expr()?);
            if self.take(",").is_none() {
                self.expect(close)?;
                return Ok(args);
            }
        }
    }

    fn primary(&mut self) -> Result<Expr> {
        let at = self.at();
        let literal = match self.peek().clone() {
            Token::Symbol("(") => {
                self.advance();
                let expr = self.expr()?;
                self.expect(")")?;
                return Ok(expr);
            }
            Token::Symbol("[") => {
                self.advance();
                return self.list(at);
            }
            Token::Symbol("{") => return self.map(at),
            Token::Symbol(".") | Token::Ident(_) => return self.identifier(),
            Token::Symbol("-") => return self.negative(),
            Token::Int(number) => Literal::Int(number),
            Token::BigInt(_) => self.unreadable(at, INVALID_INT),
            Token::Unreadable(message) => self.unreadable(at, message),
            Token::Uint(number) => Literal::Uint(number),
            Token::Double(number) => Literal::Double(number),
            Token::String(text) => Literal::String(text),
            Token::Bytes(bytes) => Literal::Bytes(bytes),
            Token::True => Literal::Bool(true),
            Token::False => Literal::Bool(false),
            Token::Null => Literal::Null,
            _ => return Err(self.mismatched(STARTS)),
        };
        self.advance();
        Ok(self.node(at, Kind::Literal(literal)))
    }

    /// Reports a number outside of its type; parsing continues.
    fn unreadable(&mut self, at: u32, message: &str) -> Literal {
        self.issues.push(Issue {
            offset: at,
            message: message.to_owned(),
        });
        Literal::Null
    }

    /// A number with a minus before it.
    fn negative(&mut self) -> Result<Expr> {
        let at = self.at();
        self.advance();
        let literal = match *self.peek() {
            Token::Int(number) => Literal::Int(-number),
            Token::BigInt(number) if number == 1 << 63 => Literal::Int(i64::MIN),
            Token::Double(number) => Literal::Double(-number),
            Token::BigInt(_) => self.unreadable(at, INVALID_INT),
            Token::Unreadable(message) => self.unreadable(at, message),
            _ => return Err(self.mismatched(STARTS)),
        };
        self.advance();
        Ok(self.node(at, Kind::Literal(literal)))
    }

    fn identifier(&mut self) -> Result<Expr> {
        let leading = self.take(".").is_some();
        let at = self.at();
        let Token::Ident(name) = self.peek().clone() else {
            return Err(self.mismatched("IDENTIFIER"));
        };
        self.advance();
        if lexer::is_reserved(&name) {
            self.issues.push(Issue {
                offset: at,
                message: format!("{RESERVED}: {name}"),
            });
        }
        let name: Arc<str> = if leading {
            format!(".{name}").into()
        } else {
            name
        };
        let Some(open) = self.take("(") else {
            return Ok(self.node(at, Kind::Ident(name)));
        };
        let args = self.arguments(")")?;
        Ok(macros::expand(self, open, &name, None, args))
    }

    fn list(&mut self, at: u32) -> Result<Expr> {
        let id = self.id(at);
        let mut elements = Vec::new();
        self.take_lone_comma("]");
        loop {
            if self.take("]").is_some() {
                break;
            }
            let optional = self.take("?").is_some();
            let value = self.expr()?;
            elements.push(Element { value, optional });
            if self.take(",").is_none() {
                self.expect("]")?;
                break;
            }
        }
        Ok(self.finish(id, Kind::List { elements }))
    }

    /// The grammar allows a comma before the closing bracket, also in an empty literal.
    fn take_lone_comma(&mut self, close: &'static str) {
        let [comma, end] = [0, 1].map(|ahead| self.tokens.get(self.next + ahead));
        let is = |found: Option<&Spanned>, symbol| {
            found.is_some_and(|found| found.token == Token::Symbol(symbol))
        };
        if is(comma, ",") && is(end, close) {
            self.next += 1;
        }
    }

    /// Whether the entry that follows `{` or a comma is optional; `None` at the end.
    fn entry_start(&mut self, first: bool) -> Option<bool> {
        if first {
            self.take("{");
            self.take_lone_comma("}");
        }
        if self.take("}").is_some() {
            return None;
        }
        Some(self.take("?").is_some())
    }

    fn map(&mut self, at: u32) -> Result<Expr> {
        let id = self.id(at);
        let mut entries = Vec::new();
        while let Some(optional) = self.entry_start(entries.is_empty()) {
            let key = self.expr()?;
            let colon = self.expect(":")?;
            let value = self.expr()?;
            let id = self.id(colon);
            entries.push(MapEntry {
                id,
                key,
                value,
                optional,
            });
            if self.take(",").is_none() {
                self.expect("}")?;
                break;
            }
        }
        Ok(self.finish(id, Kind::Map { entries }))
    }

    fn construct(&mut self, name: String) -> Result<Expr> {
        let id = self.id(self.at());
        let mut fields = Vec::new();
        while let Some(optional) = self.entry_start(fields.is_empty()) {
            let field = self.field_name()?;
            let colon = self.expect(":")?;
            let value = self.expr()?;
            let id = self.id(colon);
            fields.push(StructField {
                id,
                name: field,
                value,
                optional,
            });
            if self.take(",").is_none() {
                self.expect("}")?;
                break;
            }
        }
        let name = name.into();
        Ok(self.finish(id, Kind::Struct { name, fields }))
    }
}
