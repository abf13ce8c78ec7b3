//! Rewrites queries before they are answered, and the answers back. Pure.

use std::ops::RangeInclusive;

use hickory_proto::{
    op::{Message, Query},
    rr::{
        Name, RData, Record, RecordType,
        rdata::{CNAME, MX, NS, PTR, SRV},
    },
};
use regex::Regex;

/// A rewrite rule.
#[derive(Debug)]
pub struct Rewrite {
    /// What it changes.
    pub change: Change,
    /// Whether later rules are skipped after a match.
    pub stop: bool,
}

/// What a rule rewrites.
#[derive(Debug)]
pub enum Change {
    /// The question's name.
    Name {
        /// The matching names.
        matching: Matching,
        /// The replacement of the matching part; `{1}` is a group of a regular expression.
        to: String,
        /// Whether records of the new name are renamed to the original one.
        auto: bool,
        /// Further rules for the answer.
        answers: Vec<AnswerRule>,
    },
    /// The question's type.
    Type(RecordType, RecordType),
    /// The answer's TTLs.
    Ttl(Matching, RangeInclusive<u32>),
}

/// Which names a rule matches. Names are lower case and end with a dot.
#[derive(Debug)]
pub enum Matching {
    Exact(String),
    Prefix(String),
    Suffix(String),
    Substring(String),
    Regex(Regex),
}

/// A rule for the answer.
#[derive(Debug, Clone)]
pub struct AnswerRule {
    /// Whether it applies to names in records' data instead of record names.
    pub value: bool,
    pub pattern: Regex,
    pub replacement: String,
}

/// The changes of the answer to a rewritten query.
#[derive(Debug, Default)]
pub(crate) struct Undo {
    steps: Vec<Step>,
}

#[derive(Debug)]
enum Step {
    /// Renames records at or below the first name to the second.
    Rename(Name, Name),
    Answer(AnswerRule),
    Ttl(RangeInclusive<u32>),
}

impl Matching {
    /// The new name, if this one matches.
    fn replace(&self, name: &str, to: &str) -> Option<String> {
        match self {
            Self::Exact(from) => (name == from).then(|| to.to_owned()),
            Self::Prefix(from) => name.strip_prefix(from).map(|rest| format!("{to}{rest}")),
            Self::Suffix(from) => name.strip_suffix(from).map(|rest| format!("{rest}{to}")),
            Self::Substring(from) => name.contains(from).then(|| name.replace(from, to)),
            Self::Regex(pattern) => replace_groups(pattern, name, to),
        }
    }
}

/// The replacement with the groups of the first match, as in CoreDNS.
fn replace_groups(pattern: &Regex, text: &str, replacement: &str) -> Option<String> {
    let groups = pattern.captures(text)?;
    let mut filled = replacement.to_owned();
    for (index, group) in groups.iter().enumerate() {
        let group = group.map_or("", |group| group.as_str());
        filled = filled.replace(&format!("{{{index}}}"), group);
    }
    Some(filled)
}

fn parse(text: &str) -> Option<Name> {
    let mut name = Name::from_ascii(text).ok()?;
    name.set_fqdn(true);
    Some(name)
}

/// Applies rules to a question. `Err` if a rule makes an invalid name.
pub(crate) fn apply(rules: &[Rewrite], question: &Query) -> Result<(Query, Undo), ()> {
    let mut changed = question.clone();
    let mut undo = Undo::default();
    for rule in rules {
        let lower = changed.name().to_lowercase();
        let text = lower.to_ascii();
        let matched = match &rule.change {
            Change::Name {
                matching,
                to,
                auto,
                answers,
            } => match matching.replace(&text, to) {
                None => false,
                Some(new) => {
                    let new = parse(&new).ok_or(())?;
                    let rules = answers.iter().cloned().map(Step::Answer);
                    undo.steps.extend(rules);
                    if *auto {
                        undo.steps.push(Step::Rename(new.clone(), lower));
                    }
                    changed.set_name(new);
                    true
                }
            },
            Change::Type(from, to) => {
                let matched = changed.query_type() == *from;
                if matched {
                    changed.set_query_type(*to);
                }
                matched
            }
            Change::Ttl(matching, range) => {
                let matched = matching.replace(&text, "").is_some();
                if matched {
                    undo.steps.push(Step::Ttl(range.clone()));
                }
                matched
            }
        };
        if matched && rule.stop {
            break;
        }
    }
    Ok((changed, undo))
}

impl Undo {
    /// Whether the answer stays as it is.
    pub(crate) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Changes an answer, the last rule first.
    pub(crate) fn apply(&self, reply: &mut Message) {
        for step in self.steps.iter().rev() {
            let records = reply.answers.iter_mut();
            let records = records.chain(&mut reply.authorities);
            for record in records.chain(&mut reply.additionals) {
                step.apply(record);
            }
        }
    }
}

impl Step {
    fn apply(&self, record: &mut Record) {
        match self {
            Self::Rename(from, to) => {
                if let Some(name) = renamed(&record.name, from, to) {
                    record.name = name;
                }
            }
            Self::Answer(rule) if rule.value => rule.change_value(record),
            Self::Answer(rule) => {
                if let Some(name) = rule.change(&record.name) {
                    record.name = name;
                }
            }
            Self::Ttl(range) => record.ttl = record.ttl.clamp(*range.start(), *range.end()),
        }
    }
}

fn renamed(name: &Name, from: &Name, to: &Name) -> Option<Name> {
    if !from.zone_of(name) || from.is_root() {
        return None;
    }
    let below = usize::from(name.num_labels() - from.num_labels());
    let own = Name::from_labels(name.iter().take(below)).ok()?;
    own.append_domain(to).ok()
}

impl AnswerRule {
    fn change(&self, name: &Name) -> Option<Name> {
        let text = name.to_lowercase().to_ascii();
        parse(&replace_groups(&self.pattern, &text, &self.replacement)?)
    }

    fn change_value(&self, record: &mut Record) {
        let data = match &record.data {
            RData::CNAME(target) => self.change(target).map(|name| RData::CNAME(CNAME(name))),
            RData::PTR(target) => self.change(target).map(|name| RData::PTR(PTR(name))),
            RData::NS(target) => self.change(target).map(|name| RData::NS(NS(name))),
            RData::MX(mx) => self
                .change(&mx.exchange)
                .map(|name| RData::MX(MX::new(mx.preference, name))),
            RData::SRV(srv) => self
                .change(&srv.target)
                .map(|name| RData::SRV(SRV::new(srv.priority, srv.weight, srv.port, name))),
            _ => None,
        };
        if let Some(data) = data {
            record.data = data;
        }
    }
}
