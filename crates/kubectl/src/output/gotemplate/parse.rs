//! The parser: from pieces to a tree of nodes.

use std::collections::HashMap;

use anyhow::{Result, bail};
use serde_json::Value;

use super::{
    funcs,
    lex::{Piece, Token, lex},
};

/// The main template and its defined ones.
#[derive(Debug, Clone, Default)]
pub(super) struct Set {
    pub main: Vec<Node>,
    pub named: HashMap<String, Vec<Node>>,
}

/// A part of a template.
#[derive(Debug, Clone)]
pub(super) enum Node {
    Text(String),
    Print(Pipeline),
    If(Pipeline, Vec<Node>, Vec<Node>),
    With(Pipeline, Vec<Node>, Vec<Node>),
    Range(Pipeline, Vec<Node>, Vec<Node>),
    Template(String, Option<Pipeline>),
    Break,
    Continue,
}

/// Commands, each with the value of the previous one.
#[derive(Debug, Clone)]
pub(super) struct Pipeline {
    /// Variables that are set to the value.
    pub variables: Vec<String>,
    pub declares: bool,
    pub commands: Vec<Command>,
}

/// A function or a value with its arguments.
pub(super) type Command = Vec<Operand>;

/// One operand of a command.
#[derive(Debug, Clone)]
pub(super) enum Operand {
    Dot(Vec<String>),
    Variable(String, Vec<String>),
    Literal(Value),
    Function(String),
    Group(Box<Pipeline>, Vec<String>),
}

/// Parses a template.
pub(super) fn parse(text: &str) -> Result<Set> {
    let mut parser = Parser {
        pieces: lex(text)?.into_iter(),
        set: Set::default(),
        scopes: vec![vec![String::new()]],
        loops: 0,
    };
    let (main, end) = parser.nodes()?;
    if let Some(word) = end {
        bail!("unexpected {{{{{word}}}}}");
    }
    parser.set.main = main;
    Ok(parser.set)
}

struct Parser {
    pieces: std::vec::IntoIter<Piece>,
    set: Set,
    /// The variables in scope; `$` alone is the empty name.
    scopes: Vec<Vec<String>>,
    loops: usize,
}

impl Parser {
    /// Nodes up to `end`, `else` or the end of the text.
    fn nodes(&mut self) -> Result<(Vec<Node>, Option<String>)> {
        let (nodes, end, _) = self.block()?;
        Ok((nodes, end))
    }

    fn block(&mut self) -> Result<(Vec<Node>, Option<String>, Vec<Token>)> {
        let mut nodes = Vec::new();
        while let Some(piece) = self.pieces.next() {
            let tokens = match piece {
                Piece::Text(text) => {
                    nodes.push(Node::Text(text));
                    continue;
                }
                Piece::Action(tokens) => tokens,
            };
            let word = match tokens.first() {
                Some(Token::Word(word)) => word.as_str(),
                _ => "",
            };
            match word {
                "end" | "else" => {
                    let word = word.to_owned();
                    return Ok((nodes, Some(word), tokens[1..].to_vec()));
                }
                _ => nodes.extend(self.action(word.to_owned().as_str(), &tokens)?),
            }
        }
        Ok((nodes, None, Vec::new()))
    }

    fn action(&mut self, word: &str, tokens: &[Token]) -> Result<Option<Node>> {
        Ok(Some(match word {
            "if" | "with" | "range" => self.control(word, &tokens[1..])?,
            "define" | "block" => return self.define(word, &tokens[1..]),
            "template" => {
                let Some(Token::Literal(Value::String(name))) = tokens.get(1) else {
                    bail!("unexpected {:?} in template clause", "}}");
                };
                Node::Template(name.clone(), self.argument(&tokens[2..])?)
            }
            "break" | "continue" if self.loops == 0 => {
                bail!("{{{{{word}}}}} outside {{{{range}}}}")
            }
            "break" => Node::Break,
            "continue" => Node::Continue,
            _ => Node::Print(self.pipeline(tokens)?),
        }))
    }

    fn argument(&mut self, tokens: &[Token]) -> Result<Option<Pipeline>> {
        if tokens.is_empty() {
            return Ok(None);
        }
        self.pipeline(tokens).map(Some)
    }

    fn control(&mut self, word: &str, tokens: &[Token]) -> Result<Node> {
        let known = self.scopes.len();
        self.scopes.push(Vec::new());
        if tokens.is_empty() {
            bail!("missing value for {word}");
        }
        let pipeline = self.pipeline(tokens)?;
        self.loops += usize::from(word == "range");
        let (body, end, rest) = self.block()?;
        self.loops -= usize::from(word == "range");
        let otherwise = match end.as_deref() {
            Some("end") => Vec::new(),
            Some("else") => match rest.first() {
                None => match self.block()? {
                    (nodes, Some(end), _) if end == "end" => nodes,
                    _ => bail!("expected end after else"),
                },
                // `else if` shares the `end` of its `if`.
                Some(Token::Word(inner)) if inner == word || inner == "if" || inner == "with" => {
                    vec![self.control(&inner.clone(), &rest[1..])?]
                }
                Some(_) => bail!("unexpected tokens after else"),
            },
            _ => bail!("unexpected EOF"),
        };
        self.scopes.truncate(known);
        Ok(match word {
            "if" => Node::If(pipeline, body, otherwise),
            "with" => Node::With(pipeline, body, otherwise),
            _ => Node::Range(pipeline, body, otherwise),
        })
    }

    fn define(&mut self, word: &str, tokens: &[Token]) -> Result<Option<Node>> {
        let Some(Token::Literal(Value::String(name))) = tokens.first() else {
            bail!("{word} needs a name");
        };
        let argument = self.argument(&tokens[1..])?;
        let outer = std::mem::replace(&mut self.scopes, vec![vec![String::new()]]);
        let (body, end) = self.nodes()?;
        self.scopes = outer;
        if end.as_deref() != Some("end") {
            bail!("unexpected EOF");
        }
        self.set.named.insert(name.clone(), body);
        Ok((word == "block").then(|| Node::Template(name.clone(), argument)))
    }

    fn pipeline(&mut self, tokens: &[Token]) -> Result<Pipeline> {
        let (variables, declares, rest) = declaration(tokens);
        let mut at = 0;
        let commands = self.commands(rest, &mut at, 0)?;
        if at < rest.len() {
            bail!("unexpected right paren");
        }
        let scope = self.scopes.len() - 1;
        for name in &variables {
            if declares {
                self.scopes[scope].push(name.clone());
            } else if !self.knows(name) {
                bail!("undefined variable \"${name}\"");
            }
        }
        Ok(Pipeline {
            variables,
            declares,
            commands,
        })
    }

    fn knows(&self, name: &str) -> bool {
        self.scopes.iter().flatten().any(|known| known == name)
    }

    fn commands(&mut self, tokens: &[Token], at: &mut usize, depth: usize) -> Result<Vec<Command>> {
        if depth > 100 {
            bail!("parentheses are nested too deeply");
        }
        let mut commands = vec![Vec::new()];
        while let Some(token) = tokens.get(*at) {
            let operand = match token {
                Token::Close(_) => break,
                Token::Pipe => {
                    commands.push(Vec::new());
                    *at += 1;
                    continue;
                }
                Token::Open => {
                    *at += 1;
                    let inner = self.commands(tokens, at, depth + 1)?;
                    let Some(Token::Close(fields)) = tokens.get(*at) else {
                        bail!("unclosed left paren");
                    };
                    let inner = Pipeline {
                        variables: Vec::new(),
                        declares: false,
                        commands: inner,
                    };
                    Operand::Group(Box::new(inner), fields.clone())
                }
                Token::Field(names) => Operand::Dot(names.clone()),
                Token::Variable(name, fields) if self.knows(name) => {
                    Operand::Variable(name.clone(), fields.clone())
                }
                Token::Variable(name, _) => bail!("undefined variable \"${name}\""),
                Token::Literal(value) => Operand::Literal(value.clone()),
                Token::Word(word) if funcs::is_known(word) => Operand::Function(word.clone()),
                Token::Word(word) => bail!("function {word:?} not defined"),
                Token::Comma | Token::Declare | Token::Assign => {
                    bail!("unexpected token in command")
                }
            };
            if let Some(command) = commands.last_mut() {
                command.push(operand);
            }
            *at += 1;
        }
        if commands.iter().any(Vec::is_empty) {
            bail!("missing value for command");
        }
        Ok(commands)
    }
}

/// `$a, $b :=` before a pipeline.
fn declaration(tokens: &[Token]) -> (Vec<String>, bool, &[Token]) {
    let name = |at: usize| match tokens.get(at) {
        Some(Token::Variable(name, fields)) if fields.is_empty() => Some(name.clone()),
        _ => None,
    };
    if let (Some(first), Some(sign @ (Token::Declare | Token::Assign))) = (name(0), tokens.get(1)) {
        return (vec![first], *sign == Token::Declare, &tokens[2..]);
    }
    if let (
        Some(first),
        Some(Token::Comma),
        Some(second),
        Some(sign @ (Token::Declare | Token::Assign)),
    ) = (name(0), tokens.get(1), name(2), tokens.get(3))
    {
        return (vec![first, second], *sign == Token::Declare, &tokens[4..]);
    }
    (Vec::new(), false, tokens)
}
