//! Prediction of decisions: all alternatives are followed at once until the tokens leave one. The
//! effect of a token on a set of alternatives does not depend on the text, so it is cached.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{LazyLock, Mutex, PoisonError},
};

use super::{
    Failure, Recovery,
    grammar::{Edge, GRAMMAR, Place, Role},
    scan::Kind,
};

/// Maximum lookahead in tokens.
const FARTHEST: usize = 300;
/// Maximum nesting of rules.
const DEEPEST: usize = 40;
/// Maximum number of cached sets.
const REMEMBERED: usize = 4000;

/// An open configuration: the state, its alternative, the return states, and whether it left the
/// rule of the decision.
type Way = (Place, usize, Vec<Place>, bool);
/// All open configurations. The precedence is that of the decision's rule.
type Ways = (u8, BTreeSet<Way>);

/// The effect of a token on a set.
#[derive(Clone, Copy)]
enum Next {
    Chosen(usize),
    /// No configuration continues.
    Failed,
    /// Several do: the number of the remaining set.
    Open(usize),
}

#[derive(Default)]
struct Known {
    ways: Vec<Ways>,
    numbers: HashMap<Ways, usize>,
    starts: HashMap<(Place, u8), usize>,
    next: HashMap<(usize, u8), Next>,
}

/// Guards the cache.
static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);

impl Recovery<'_> {
    /// The edge to take at a decision.
    pub(super) fn predict(&mut self, decision: Place) -> Result<usize, Failure> {
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if known.ways.len() > REMEMBERED {
            *known = Known::default();
        }
        let precedence = self.precedences.last().copied().unwrap_or_default();
        let mut number = match known.starts.get(&(decision, precedence)) {
            Some(number) => *number,
            None => {
                let edges = GRAMMAR.state_of(decision).edges.iter().enumerate();
                let first = edges.map(|(choice, edge)| (edge.target(), choice, Vec::new(), false));
                let ways = self.closure(precedence, first.collect())?;
                let number = known.number((precedence, ways));
                known.starts.insert((decision, precedence), number);
                number
            }
        };
        let start = self.at;
        for at in start..start + FARTHEST {
            self.work()?;
            let kind = self.tokens[at.min(self.tokens.len() - 1)].kind;
            let next = match known.next.get(&(number, kind as u8)) {
                Some(next) => *next,
                None => {
                    let next = self.follow(&mut known, number, kind)?;
                    known.next.insert((number, kind as u8), next);
                    next
                }
            };
            match next {
                Next::Chosen(choice) => return Ok(choice),
                Next::Failed => return Err(Failure::NoWay { start, at }),
                Next::Open(left) => number = left,
            }
        }
        let choices = known.ways[number].1.iter().map(|way| way.1);
        Ok(choices.min().unwrap_or_default())
    }

    fn follow(&mut self, known: &mut Known, number: usize, kind: Kind) -> Result<Next, Failure> {
        let (precedence, ways) = &known.ways[number];
        let reached = reach(ways, kind);
        let choices: BTreeSet<usize> = reached.iter().map(|way| way.1).collect();
        let Some(least) = choices.first().copied() else {
            let left = |way: &&Way| {
                let is_end = GRAMMAR.state_of(way.0).role == Role::Stop && way.2.is_empty();
                way.3 || is_end
            };
            let choice = ways.iter().filter(left).map(|way| way.1).min();
            return Ok(choice.map_or(Next::Failed, Next::Chosen));
        };
        if choices.len() == 1 || kind == Kind::End {
            return Ok(Next::Chosen(least));
        }
        let precedence = *precedence;
        let ways = self.closure(precedence, reached)?;
        Ok(match is_ambiguous(&ways) {
            true => Next::Chosen(least),
            false => Next::Open(known.number((precedence, ways))),
        })
    }

    /// All configurations reachable without a token.
    fn closure(&mut self, precedence: u8, first: Vec<Way>) -> Result<BTreeSet<Way>, Failure> {
        let mut found = BTreeSet::new();
        let mut open = first;
        while let Some(way) = open.pop() {
            if !found.insert(way.clone()) {
                continue;
            }
            self.work()?;
            let (place, choice, mut stack, left) = way;
            let state = GRAMMAR.state_of(place);
            if state.role == Role::Stop {
                match stack.pop() {
                    Some(back) => open.push((back, choice, stack, left)),
                    None => {
                        let follows = GRAMMAR.follows[state.rule as usize].iter();
                        open.extend(follows.map(|back| (*back, choice, Vec::new(), true)));
                    }
                }
                continue;
            }
            for edge in &state.edges {
                match *edge {
                    Edge::Free(to) => open.push((to, choice, stack.clone(), left)),
                    // The precedence of the decision's rule is known.
                    Edge::Precedence(least, _)
                        if stack.is_empty() && !left && least < precedence => {}
                    Edge::Precedence(_, to) => open.push((to, choice, stack.clone(), left)),
                    Edge::Call(rule, _, back) if stack.len() < DEEPEST => {
                        let mut inside = stack.clone();
                        inside.push(back);
                        open.push((GRAMMAR.start(rule), choice, inside, left));
                    }
                    Edge::Call(..) | Edge::Tokens(..) => {}
                }
            }
        }
        Ok(found)
    }
}

impl Known {
    fn number(&mut self, ways: Ways) -> usize {
        if let Some(number) = self.numbers.get(&ways) {
            return *number;
        }
        self.ways.push(ways.clone());
        self.numbers.insert(ways, self.ways.len() - 1);
        self.ways.len() - 1
    }
}

/// The configurations after a token.
fn reach(ways: &BTreeSet<Way>, kind: Kind) -> Vec<Way> {
    let mut reached = Vec::new();
    for (place, choice, stack, left) in ways {
        for edge in &GRAMMAR.state_of(*place).edges {
            if let Edge::Tokens(set, to) = edge
                && set.has(kind)
            {
                reached.push((*to, *choice, stack.clone(), *left));
            }
        }
    }
    reached
}

/// Whether no further token can distinguish the alternatives.
fn is_ambiguous(ways: &BTreeSet<Way>) -> bool {
    let mut by_place: BTreeMap<Place, BTreeSet<usize>> = BTreeMap::new();
    let mut by_stack: BTreeMap<(Place, &[Place]), BTreeSet<usize>> = BTreeMap::new();
    // Only states with a token are compared.
    let has_token = |place: Place| {
        let edges = &GRAMMAR.state_of(place).edges;
        edges.iter().any(|edge| matches!(edge, Edge::Tokens(..)))
    };
    for (place, choice, stack, _) in ways.iter().filter(|way| has_token(way.0)) {
        by_place.entry(*place).or_default().insert(*choice);
        by_stack.entry((*place, stack)).or_default().insert(*choice);
    }
    by_stack.values().any(|choices| choices.len() > 1)
        && by_place.values().all(|choices| choices.len() > 1)
}
