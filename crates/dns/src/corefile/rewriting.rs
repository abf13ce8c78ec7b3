//! The directive `rewrite`, on one line or as a block with answer rules.

use std::ops::RangeInclusive;

use hickory_proto::rr::RecordType;
use regex::Regex;

use super::{
    Server,
    directive::{Reading, wrong},
    syntax::{Line, SyntaxError},
};
use crate::rewrite::{AnswerRule, Change, Matching, Rewrite};

/// CoreDNS' maximum length of a pattern.
const LONGEST_PATTERN: usize = 10_000;

/// Parses `rewrite [continue|stop] FIELD …`.
pub(super) fn rewrite(server: &mut Server, reading: &mut Reading<'_>) -> Result<(), SyntaxError> {
    let line = reading.line;
    let mut words: Vec<&str> = reading.arguments().iter().map(String::as_str).collect();
    let mut stop = true;
    if let Some(action @ (&"continue" | &"stop")) = words.first() {
        stop = *action == "stop";
        words.remove(0);
    }
    for option in line.block.iter().flatten() {
        words.extend(option.words.iter().map(String::as_str));
    }
    let change = match words.as_slice() {
        ["name", rest @ ..] => name(line, rest)?,
        ["ttl", rest @ ..] => ttl(line, rest)?,
        ["type", from, to] => {
            let kind = |text: &str| {
                let parsed = text.to_uppercase().parse::<RecordType>();
                parsed.map_err(|_| wrong(line, format!("{text:?} is not a type")))
            };
            Change::Type(kind(from)?, kind(to)?)
        }
        [] => return Err(wrong(line, "expected a field")),
        [field, ..] => {
            let problem = format!("rewrite: field {field:?} has no effect here");
            reading.problem(line, problem);
            return Ok(());
        }
    };
    server.rewrites.push(Rewrite { change, stop });
    Ok(())
}

fn name(line: &Line, words: &[&str]) -> Result<Change, SyntaxError> {
    let (sort, rest) = matching_sort(words);
    let [from, to, options @ ..] = rest else {
        return Err(wrong(line, "expected name [TYPE] FROM TO"));
    };
    let matching = matching(line, sort, from)?;
    let mut answers = Vec::new();
    // By default the client sees the name that it asked for.
    let mut auto = matches!(matching, Matching::Exact(_));
    let mut left = options;
    while !left.is_empty() {
        left = match left {
            ["answer", "auto", rest @ ..] | ["auto", rest @ ..] => {
                auto = true;
                rest
            }
            ["answer", "name", "auto", rest @ ..] | ["name", "auto", rest @ ..] => {
                auto = true;
                rest
            }
            ["answer", field @ ("name" | "value"), from, to, rest @ ..]
            | [field @ ("name" | "value"), from, to, rest @ ..] => {
                answers.push(AnswerRule {
                    value: *field == "value",
                    pattern: pattern(line, from)?,
                    replacement: (*to).to_owned(),
                });
                rest
            }
            _ => return Err(wrong(line, "expected answer auto|(name|value FROM TO)")),
        };
    }
    Ok(Change::Name {
        matching,
        to: (*to).to_owned(),
        auto,
        answers,
    })
}

fn ttl(line: &Line, words: &[&str]) -> Result<Change, SyntaxError> {
    let (sort, rest) = matching_sort(words);
    let [from, seconds] = rest else {
        return Err(wrong(line, "expected ttl [TYPE] STRING SECONDS|MIN-MAX"));
    };
    let range = ttl_range(seconds).ok_or_else(|| wrong(line, "not a time to live"))?;
    Ok(Change::Ttl(matching(line, sort, from)?, range))
}

fn ttl_range(text: &str) -> Option<RangeInclusive<u32>> {
    let Some((least, most)) = text.split_once('-') else {
        let seconds = text.parse().ok()?;
        return Some(seconds..=seconds);
    };
    let bound = |text: &str, open: u32| match text {
        "" => Some(open),
        text => text.parse().ok(),
    };
    let (least, most) = (bound(least, 0)?, bound(most, i32::MAX.cast_unsigned())?);
    (least <= most && text != "-").then_some(least..=most)
}

fn matching_sort<'a, 'b>(words: &'a [&'b str]) -> (&'b str, &'a [&'b str]) {
    match words {
        [
            sort @ ("exact" | "prefix" | "suffix" | "substring" | "regex"),
            rest @ ..,
        ] if rest.len() >= 2 => (sort, rest),
        rest => ("exact", rest),
    }
}

fn matching(line: &Line, sort: &str, from: &str) -> Result<Matching, SyntaxError> {
    let lower = from.to_lowercase();
    Ok(match sort {
        "prefix" => Matching::Prefix(lower),
        "suffix" => Matching::Suffix(with_dot(lower)),
        "substring" => Matching::Substring(lower),
        "regex" => Matching::Regex(pattern(line, from)?),
        _ => Matching::Exact(with_dot(lower)),
    })
}

fn with_dot(mut name: String) -> String {
    if !name.ends_with('.') {
        name.push('.');
    }
    name
}

pub(super) fn pattern(line: &Line, text: &str) -> Result<Regex, SyntaxError> {
    if text.len() > LONGEST_PATTERN {
        return Err(wrong(line, "pattern is too long"));
    }
    Regex::new(text).map_err(|_| wrong(line, format!("{text:?} is not a regular expression")))
}
