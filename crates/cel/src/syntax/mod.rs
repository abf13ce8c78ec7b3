//! Syntax errors as upstream's parser reports them: every error, where parsing continues after it,
//! and the expected tokens. Upstream's parser is generated and walks a network of states; this one
//! walks the same network by the same rules. It runs only after the actual parser has failed, makes
//! no tree, and gives up if it would take long.

mod grammar;
mod predict;
mod scan;

use crate::source::Issue;
use grammar::{Edge, GRAMMAR, Place, Role, Rule};
use scan::{Kind, Set, Token};

/// How many errors are recovered from.
const ATTEMPTS: u32 = 30;
/// Maximum steps, and maximum nesting of rules.
const MOST_WORK: u32 = 500_000;
const DEEPEST: usize = 1500;

/// The errors in a text, by position; `None` if that would take long.
pub(crate) fn mistakes(text: &[char]) -> Option<Vec<Issue>> {
    let (tokens, issues) = scan::scan(text);
    let mut recovery = Recovery {
        text,
        tokens,
        at: 0,
        issues,
        unnamed: Vec::new(),
        is_recovering: false,
        place: GRAMMAR.start(Rule::Start),
        contexts: Vec::new(),
        precedences: Vec::new(),
        last: None,
        attempts: 0,
        work: 0,
    };
    match recovery.rule(Rule::Start, 0) {
        Ok(()) | Err(Failure::TooManyMistakes) => {}
        Err(_) => return None,
    }
    let mut issues = recovery.issues;
    issues.extend(recovery.unnamed.into_iter().map(|offset| Issue {
        offset,
        message: "unsupported ident kind".to_owned(),
    }));
    issues.sort_by_key(|issue| issue.offset);
    Some(issues)
}

/// Why a rule ends early.
enum Failure {
    /// The token does not match anything expected there.
    Mismatch {
        token: usize,
        expected: Set,
    },
    /// The tokens match no alternative.
    NoWay {
        start: usize,
        at: usize,
    },
    TooManyMistakes,
    TooMuchWork,
}

struct Recovery<'t> {
    text: &'t [char],
    tokens: Vec<Token>,
    /// The next token.
    at: usize,
    issues: Vec<Issue>,
    /// Where the name of a field is missing, which is an error of its own.
    unnamed: Vec<u32>,
    /// No further errors are reported until a token matches again.
    is_recovering: bool,
    place: Place,
    /// The return states of the enclosing rules.
    contexts: Vec<Place>,
    /// The precedences they were called with.
    precedences: Vec<u8>,
    /// The token of the last error, and the states at which it occurred.
    last: Option<(usize, Vec<Place>)>,
    attempts: u32,
    work: u32,
}

impl Recovery<'_> {
    fn work(&mut self) -> Result<(), Failure> {
        self.work += 1;
        match self.work > MOST_WORK {
            true => Err(Failure::TooMuchWork),
            false => Ok(()),
        }
    }

    fn ahead(&self, by: usize) -> Kind {
        self.tokens[(self.at + by).min(self.tokens.len() - 1)].kind
    }

    fn consume(&mut self) {
        self.at = (self.at + 1).min(self.tokens.len() - 1);
    }

    fn end_recovery(&mut self) {
        self.is_recovering = false;
        self.last = None;
    }

    fn attempt(&mut self) -> Result<(), Failure> {
        self.attempts += 1;
        if self.attempts > ATTEMPTS {
            let limit = format!("error recovery attempt limit exceeded: {ATTEMPTS}");
            self.record(self.at, &limit);
            return Err(Failure::TooManyMistakes);
        }
        Ok(())
    }

    fn record(&mut self, token: usize, message: &str) {
        self.issues.push(Issue {
            offset: self.tokens[token].at as u32,
            message: format!("Syntax error: {message}"),
        });
    }

    /// The text from one token to another, in quotes.
    fn quoted(&self, from: usize, to: usize) -> String {
        let mut text = String::new();
        if self.tokens[from].kind == Kind::End {
            text += "<EOF>";
        }
        // Space between tokens is included; invalid characters are not.
        for at in from..=to {
            let Token { at: start, end, .. } = self.tokens[at];
            let space = if at < to {
                scan::blank(&self.text[end..])
            } else {
                0
            };
            text.extend(&self.text[start..end + space]);
        }
        let text = text.replace('\n', "\\n").replace('\r', "\\r");
        format!("'{}'", text.replace('\t', "\\t"))
    }

    /// The tokens expected at a state, including those after the enclosing rules.
    fn expected(&self, place: Place) -> Set {
        let mut next = GRAMMAR.state_of(place).next;
        let mut expected = next;
        for context in self.contexts.iter().rev() {
            if !next.ends {
                return expected;
            }
            next = GRAMMAR.state_of(*context).next;
            expected.add(next);
        }
        if next.ends {
            expected.add(Set::from_kinds(&[Kind::End]));
        }
        expected
    }

    /// The tokens that may follow the enclosing rules.
    fn recovery_set(&self) -> Set {
        let mut all = Set::default();
        for context in &self.contexts {
            all.add(GRAMMAR.state_of(*context).next);
        }
        all
    }

    fn consume_until(&mut self, wanted: Set) {
        while self.ahead(0) != Kind::End && !wanted.has(self.ahead(0)) {
            self.consume();
        }
    }

    fn say_unwanted(&mut self) {
        if self.is_recovering {
            return;
        }
        self.is_recovering = true;
        let shown = self.quoted(self.at, self.at);
        let names = self.expected(self.place).names();
        self.record(
            self.at,
            &format!("extraneous input {shown} expecting {names}"),
        );
    }

    /// Drops a token if the next one is expected.
    fn drop_one(&mut self) -> bool {
        let fits = self.expected(self.place).has(self.ahead(1));
        if fits {
            self.say_unwanted();
            self.consume();
            self.end_recovery();
        }
        fits
    }

    fn mismatch(&self) -> Failure {
        Failure::Mismatch {
            token: self.at,
            expected: self.expected(self.place),
        }
    }

    fn take(&mut self, wanted: Set, behind: Place) -> Result<(), Failure> {
        if wanted.has(self.ahead(0)) {
            self.end_recovery();
            self.consume();
            return Ok(());
        }
        self.attempt()?;
        if self.drop_one() {
            self.consume();
            return Ok(());
        }
        // A token is missing if the current one could follow it.
        if !self.expected(behind).has(self.ahead(0)) {
            return Err(self.mismatch());
        }
        if !self.is_recovering {
            self.is_recovering = true;
            let shown = self.quoted(self.at, self.at);
            let names = self.expected(self.place).names();
            self.record(self.at, &format!("missing {names} at {shown}"));
        }
        Ok(())
    }

    /// Checks whether the next token matches a decision at all.
    fn sync(&mut self) -> Result<(), Failure> {
        let state = GRAMMAR.state_of(self.place);
        if self.is_recovering || state.next.ends || state.next.has(self.ahead(0)) {
            return Ok(());
        }
        match state.role {
            Role::Block | Role::PlusBlock | Role::LoopEntry => match self.drop_one() {
                true => Ok(()),
                false => Err(self.mismatch()),
            },
            Role::LoopBack | Role::PlusBack => {
                self.say_unwanted();
                let mut wanted = self.expected(self.place);
                wanted.add(self.recovery_set());
                self.consume_until(wanted);
                Ok(())
            }
            Role::Plain | Role::Stop => Ok(()),
        }
    }

    fn rule(&mut self, rule: Rule, precedence: u8) -> Result<(), Failure> {
        if self.contexts.len() > DEEPEST {
            return Err(Failure::TooMuchWork);
        }
        self.precedences.push(precedence);
        let start = self.at;
        let result = self.walk(GRAMMAR.start(rule));
        self.precedences.pop();
        if rule == Rule::EscapeIdent && result.is_err() {
            self.unnamed.push(self.tokens[start].at as u32);
        }
        match result {
            Ok(()) => return Ok(()),
            Err(Failure::Mismatch { token, expected }) => {
                let shown = self.quoted(token, token);
                let names = expected.names();
                let message = format!("mismatched input {shown} expecting {names}");
                self.report(token, &message);
            }
            Err(Failure::NoWay { start, at }) => {
                let at = at.min(self.tokens.len() - 1);
                let shown = self.quoted(start, at);
                let message = match shown.as_str() {
                    "'.true'" | "'.false'" | "'.null'" => {
                        let word = shown[2..].trim_end_matches('\'');
                        format!("mismatched input '{word}' expecting IDENTIFIER")
                    }
                    _ => format!("no viable alternative at input {shown}"),
                };
                self.report(at, &message);
            }
            Err(failure) => return Err(failure),
        }
        self.recover()
    }

    fn report(&mut self, token: usize, message: &str) {
        if !self.is_recovering {
            self.is_recovering = true;
            self.record(token, message);
        }
    }

    /// Continues at a token that may follow the enclosing rules.
    fn recover(&mut self) -> Result<(), Failure> {
        self.attempt()?;
        let (at, place) = (self.at, self.place);
        let mut places = match self.last.take() {
            Some((last, places)) => {
                if last == at && places.contains(&place) {
                    self.consume();
                }
                places
            }
            None => Vec::new(),
        };
        places.push(place);
        self.last = Some((self.at, places));
        self.consume_until(self.recovery_set());
        Ok(())
    }

    fn walk(&mut self, mut place: Place) -> Result<(), Failure> {
        loop {
            self.work()?;
            let state = GRAMMAR.state_of(place);
            let decision = match state.role {
                Role::Stop => return Ok(()),
                Role::LoopBack => state.edges.first().map(|edge| edge.target()),
                _ if state.edges.len() > 1 => Some(place),
                Role::PlusBlock => {
                    self.place = place;
                    self.sync()?;
                    None
                }
                _ => None,
            };
            if let Some(decision) = decision {
                self.place = place;
                self.sync()?;
                let choice = self.predict(decision)?;
                place = GRAMMAR.state_of(decision).edges[choice].target();
                continue;
            }
            let Some(edge) = state.edges.first().copied() else {
                return Ok(());
            };
            match edge {
                Edge::Free(_) | Edge::Precedence(..) => {}
                Edge::Tokens(wanted, behind) => {
                    self.place = place;
                    self.take(wanted, behind)?;
                }
                Edge::Call(rule, precedence, behind) => {
                    self.place = place;
                    self.contexts.push(behind);
                    let result = self.rule(rule, precedence);
                    self.contexts.pop();
                    result?;
                }
            }
            place = edge.target();
        }
    }
}
