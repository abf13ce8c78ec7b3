//! The grammar as a network of states, in the form of upstream's parser generator: messages of
//! syntax errors depend on the states on the way to them.

use std::sync::LazyLock;

use super::scan::{Kind, Set};

/// A rule of the grammar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    Start,
    Expr,
    Or,
    And,
    Relation,
    Calc,
    Unary,
    Member,
    Primary,
    ExprList,
    ListInit,
    FieldInit,
    OptField,
    MapInit,
    EscapeIdent,
    OptExpr,
    Literal,
}

const RULES: usize = 17;

/// A state by its number.
pub(super) type Place = u16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Plain,
    /// The end of a rule.
    Stop,
    Block,
    LoopEntry,
    LoopBack,
    PlusBlock,
    PlusBack,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Edge {
    Free(Place),
    Tokens(Set, Place),
    /// Passed if the requested precedence is at most this.
    Precedence(u8, Place),
    /// A rule with a precedence, and the state after it.
    Call(Rule, u8, Place),
}

impl Edge {
    pub(super) fn target(self) -> Place {
        match self {
            Self::Free(to)
            | Self::Tokens(_, to)
            | Self::Precedence(_, to)
            | Self::Call(_, _, to) => to,
        }
    }
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) role: Role,
    pub(super) rule: Rule,
    pub(super) edges: Vec<Edge>,
    /// The tokens that can come next within the rule; and whether the rule can end here.
    pub(super) next: Set,
}

pub(super) struct Grammar {
    pub(super) states: Vec<State>,
    pub(super) starts: [Place; RULES],
    /// The states after each rule.
    pub(super) follows: [Vec<Place>; RULES],
}

pub(super) static GRAMMAR: LazyLock<Grammar> = LazyLock::new(Grammar::new);

/// A part of a rule.
enum Part {
    Token(Kind),
    AnyOf(&'static [Kind]),
    Precedence(u8),
    Rule(Rule, u8),
    Sequence(Vec<Part>),
    Choice(Vec<Part>),
    Maybe(Vec<Part>),
    /// Any number of one of these.
    Loop(Vec<Part>),
    AtLeastOnce(Kind),
}

use Part::{AnyOf, AtLeastOnce, Choice, Loop, Maybe, Precedence, Sequence, Token};

fn rule(rule: Rule) -> Part {
    Part::Rule(rule, 0)
}

/// A sequence, repeated with a separator.
fn separated(parts: fn() -> Vec<Part>, separator: Kind) -> Part {
    let mut again = vec![Token(separator)];
    again.extend(parts());
    let mut all = parts();
    all.push(Loop(vec![Sequence(again)]));
    Sequence(all)
}

fn definition(of: Rule) -> Part {
    use Kind as K;
    match of {
        Rule::Start => Sequence(vec![rule(Rule::Expr), Token(K::End)]),
        Rule::Expr => Sequence(vec![
            rule(Rule::Or),
            Maybe(vec![
                Token(K::Question),
                rule(Rule::Or),
                Token(K::Colon),
                rule(Rule::Expr),
            ]),
        ]),
        Rule::Or => separated(|| vec![rule(Rule::And)], K::Or),
        Rule::And => separated(|| vec![rule(Rule::Relation)], K::And),
        Rule::Relation => Sequence(vec![
            rule(Rule::Calc),
            Loop(vec![binary(1, RELATIONS, Rule::Relation)]),
        ]),
        Rule::Calc => Sequence(vec![
            rule(Rule::Unary),
            Loop(vec![
                binary(2, &[K::Star, K::Slash, K::Percent], Rule::Calc),
                binary(1, &[K::Plus, K::Minus], Rule::Calc),
            ]),
        ]),
        Rule::Unary => Choice(vec![
            rule(Rule::Member),
            Sequence(vec![AtLeastOnce(K::Not), rule(Rule::Member)]),
            Sequence(vec![AtLeastOnce(K::Minus), rule(Rule::Member)]),
        ]),
        Rule::Member => Sequence(vec![rule(Rule::Primary), Loop(selections())]),
        Rule::Primary => Choice(primaries()),
        Rule::ExprList => separated(|| vec![rule(Rule::Expr)], K::Comma),
        Rule::ListInit => separated(|| vec![rule(Rule::OptExpr)], K::Comma),
        Rule::FieldInit => separated(
            || vec![rule(Rule::OptField), Token(K::Colon), rule(Rule::Expr)],
            K::Comma,
        ),
        Rule::OptField => Sequence(vec![
            Maybe(vec![Token(K::Question)]),
            rule(Rule::EscapeIdent),
        ]),
        Rule::MapInit => separated(
            || vec![rule(Rule::OptExpr), Token(K::Colon), rule(Rule::Expr)],
            K::Comma,
        ),
        Rule::EscapeIdent => Choice(vec![Token(K::Ident), Token(K::QuotedIdent)]),
        Rule::OptExpr => Sequence(vec![Maybe(vec![Token(K::Question)]), rule(Rule::Expr)]),
        Rule::Literal => Choice(vec![
            Sequence(vec![Maybe(vec![Token(K::Minus)]), Token(K::Int)]),
            Token(K::Uint),
            Sequence(vec![Maybe(vec![Token(K::Minus)]), Token(K::Float)]),
            Token(K::String),
            Token(K::Bytes),
            Token(K::True),
            Token(K::False),
            Token(K::Null),
        ]),
    }
}

const RELATIONS: &[Kind] = &[
    Kind::Less,
    Kind::LessEquals,
    Kind::GreaterEquals,
    Kind::Greater,
    Kind::Equals,
    Kind::NotEquals,
    Kind::In,
];

/// An operator and its right operand, which binds more tightly.
fn binary(precedence: u8, operators: &'static [Kind], right: Rule) -> Part {
    Sequence(vec![
        Precedence(precedence),
        AnyOf(operators),
        Part::Rule(right, precedence + 1),
    ])
}

fn selections() -> Vec<Part> {
    use Kind as K;
    vec![
        Sequence(vec![
            Precedence(3),
            Token(K::Dot),
            Maybe(vec![Token(K::Question)]),
            rule(Rule::EscapeIdent),
        ]),
        Sequence(vec![
            Precedence(2),
            Token(K::Dot),
            Token(K::Ident),
            Token(K::LeftParen),
            Maybe(vec![rule(Rule::ExprList)]),
            Token(K::RightParen),
        ]),
        Sequence(vec![
            Precedence(1),
            Token(K::LeftBracket),
            Maybe(vec![Token(K::Question)]),
            rule(Rule::Expr),
            Token(K::RightBracket),
        ]),
    ]
}

fn primaries() -> Vec<Part> {
    use Kind as K;
    let name = || vec![Maybe(vec![Token(K::Dot)]), Token(K::Ident)];
    let with = |mut first: Vec<Part>, rest: Vec<Part>| {
        first.extend(rest);
        Sequence(first)
    };
    let filled = |open: K, inside: Rule, close: K| {
        vec![
            Token(open),
            Maybe(vec![rule(inside)]),
            Maybe(vec![Token(K::Comma)]),
            Token(close),
        ]
    };
    let more = Loop(vec![Sequence(vec![Token(K::Dot), Token(K::Ident)])]);
    vec![
        Sequence(name()),
        with(
            name(),
            vec![
                Token(K::LeftParen),
                Maybe(vec![rule(Rule::ExprList)]),
                Token(K::RightParen),
            ],
        ),
        Sequence(vec![
            Token(K::LeftParen),
            rule(Rule::Expr),
            Token(K::RightParen),
        ]),
        Sequence(filled(K::LeftBracket, Rule::ListInit, K::RightBracket)),
        Sequence(filled(K::LeftBrace, Rule::MapInit, K::RightBrace)),
        with(
            with_loop(name(), more),
            filled(K::LeftBrace, Rule::FieldInit, K::RightBrace),
        ),
        rule(Rule::Literal),
    ]
}

fn with_loop(mut parts: Vec<Part>, more: Part) -> Vec<Part> {
    parts.push(more);
    parts
}

const ALL: [Rule; RULES] = [
    Rule::Start,
    Rule::Expr,
    Rule::Or,
    Rule::And,
    Rule::Relation,
    Rule::Calc,
    Rule::Unary,
    Rule::Member,
    Rule::Primary,
    Rule::ExprList,
    Rule::ListInit,
    Rule::FieldInit,
    Rule::OptField,
    Rule::MapInit,
    Rule::EscapeIdent,
    Rule::OptExpr,
    Rule::Literal,
];

impl Grammar {
    fn new() -> Self {
        let mut grammar = Self {
            states: Vec::new(),
            starts: [0; RULES],
            follows: [const { Vec::new() }; RULES],
        };
        for rule in ALL {
            grammar.starts[rule as usize] = grammar.state(rule, Role::Plain);
        }
        for rule in ALL {
            let stop = grammar.state(rule, Role::Stop);
            let start = grammar.starts[rule as usize];
            let end = grammar.build(rule, &definition(rule), start);
            grammar.link(end, Edge::Free(stop));
        }
        for place in 0..grammar.states.len() {
            let next = grammar.look(place as Place);
            grammar.states[place].next = next;
        }
        grammar
    }

    pub(super) fn state_of(&self, place: Place) -> &State {
        &self.states[usize::from(place)]
    }

    pub(super) fn start(&self, rule: Rule) -> Place {
        self.starts[rule as usize]
    }

    fn state(&mut self, rule: Rule, role: Role) -> Place {
        self.states.push(State {
            role,
            rule,
            edges: Vec::new(),
            next: Set::default(),
        });
        (self.states.len() - 1) as Place
    }

    fn link(&mut self, from: Place, edge: Edge) {
        self.states[usize::from(from)].edges.push(edge);
    }

    /// Adds the states of a part after a state; returns the last one.
    fn build(&mut self, rule: Rule, part: &Part, from: Place) -> Place {
        match part {
            Part::Sequence(parts) => parts
                .iter()
                .fold(from, |from, part| self.build(rule, part, from)),
            Part::Choice(choices) => {
                let choices: Vec<&[Part]> = choices.iter().map(std::slice::from_ref).collect();
                self.block(rule, &choices, from)
            }
            Part::Maybe(parts) => self.block(rule, &[parts, &[]], from),
            Part::Loop(choices) => self.star(rule, choices, from),
            Part::AtLeastOnce(kind) => self.plus(rule, *kind, from),
            simple => {
                let to = self.state(rule, Role::Plain);
                let edge = match simple {
                    Part::Token(kind) => Edge::Tokens(Set::from_kinds(&[*kind]), to),
                    Part::AnyOf(kinds) => Edge::Tokens(Set::from_kinds(kinds), to),
                    Part::Precedence(precedence) => Edge::Precedence(*precedence, to),
                    Part::Rule(called, precedence) => {
                        self.follows[*called as usize].push(to);
                        Edge::Call(*called, *precedence, to)
                    }
                    _ => Edge::Free(to),
                };
                self.link(from, edge);
                to
            }
        }
    }

    fn alternatives(&mut self, rule: Rule, of: Place, choices: &[&[Part]], end: Place) {
        for choice in choices {
            let first = self.state(rule, Role::Plain);
            self.link(of, Edge::Free(first));
            let build = |last, part| self.build(rule, part, last);
            let last = choice.iter().fold(first, build);
            self.link(last, Edge::Free(end));
        }
    }

    fn block(&mut self, rule: Rule, choices: &[&[Part]], from: Place) -> Place {
        let block = self.state(rule, Role::Block);
        let end = self.state(rule, Role::Plain);
        self.link(from, Edge::Free(block));
        self.alternatives(rule, block, choices, end);
        end
    }

    fn star(&mut self, rule: Rule, choices: &[Part], from: Place) -> Place {
        let entry = self.state(rule, Role::LoopEntry);
        let block = self.state(rule, Role::Block);
        let back = self.state(rule, Role::LoopBack);
        let exit = self.state(rule, Role::Plain);
        self.link(from, Edge::Free(entry));
        self.link(entry, Edge::Free(block));
        self.link(entry, Edge::Free(exit));
        let choices: Vec<&[Part]> = choices.iter().map(std::slice::from_ref).collect();
        self.alternatives(rule, block, &choices, back);
        self.link(back, Edge::Free(entry));
        exit
    }

    fn plus(&mut self, rule: Rule, kind: Kind, from: Place) -> Place {
        let block = self.state(rule, Role::PlusBlock);
        let back = self.state(rule, Role::PlusBack);
        let exit = self.state(rule, Role::Plain);
        self.link(from, Edge::Free(block));
        self.alternatives(rule, block, &[&[Part::Token(kind)]], back);
        self.link(back, Edge::Free(block));
        self.link(back, Edge::Free(exit));
        exit
    }

    /// The tokens that can come next.
    fn look(&self, place: Place) -> Set {
        let mut found = Set::default();
        let mut seen = Vec::new();
        let mut open = vec![(place, Vec::new())];
        while let Some((place, mut stack)) = open.pop() {
            if seen.contains(&(place, stack.clone())) {
                continue;
            }
            seen.push((place, stack.clone()));
            let state = self.state_of(place);
            if state.role == Role::Stop {
                match stack.pop() {
                    Some(back) => open.push((back, stack)),
                    None => found.ends = true,
                }
                continue;
            }
            for edge in &state.edges {
                match *edge {
                    Edge::Tokens(set, _) => found.add(set),
                    Edge::Call(rule, _, back) if !stack.contains(&back) => {
                        let mut inside = stack.clone();
                        inside.push(back);
                        open.push((self.start(rule), inside));
                    }
                    Edge::Call(..) => {}
                    Edge::Free(to) | Edge::Precedence(_, to) => open.push((to, stack.clone())),
                }
            }
        }
        found
    }
}
