//! The plugin `template`: answers that are made from the name of a query. Pure.

use hickory_proto::{
    op::ResponseCode,
    rr::{
        Name, RData, Record, RecordType,
        rdata::{A, AAAA, CNAME, MX, NS, PTR, SOA, SRV, TXT},
    },
};
use regex::{Captures, Regex};

use crate::hosts::within;

/// The TTL of a record without one, as in zone files.
const TTL: u32 = 3600;

/// A template.
#[derive(Debug, Clone)]
pub struct Template {
    /// The query type; all for `ANY`.
    pub kind: RecordType,
    /// The zones; those of the server if empty.
    pub zones: Vec<Name>,
    /// The response code.
    pub code: ResponseCode,
    /// One of these must match the name; all names if empty.
    pub patterns: Vec<Regex>,
    /// Records of the answer.
    pub answers: Vec<RecordTemplate>,
    /// Records of the additional section.
    pub additionals: Vec<RecordTemplate>,
    /// Records of the authority section.
    pub authorities: Vec<RecordTemplate>,
    /// Zones whose names that no pattern matches are passed to the next template.
    pub fallthrough: Vec<Name>,
}

/// A record with placeholders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordTemplate(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Name,
    Type,
    Class,
    Zone,
    /// A named group of the pattern, or one by its number.
    Group(String),
}

/// What a template does with a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Applied {
    /// It is for other queries.
    Elsewhere,
    /// No pattern matches, and there is no fallthrough: the query fails.
    Unmatched,
    /// These records. `None` if one of them is invalid for this name.
    Reply(Option<Sections>),
}

/// Records of a reply.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sections {
    pub answers: Vec<Record>,
    pub additionals: Vec<Record>,
    pub authorities: Vec<Record>,
}

/// The values of placeholders.
struct Query<'a> {
    name: &'a str,
    kind: RecordType,
    zone: String,
    found: Option<Captures<'a>>,
}

impl Template {
    /// Applies it to a query.
    pub fn apply(&self, name: &Name, kind: RecordType) -> Applied {
        let is_kind = self.kind == RecordType::ANY || self.kind == kind;
        if !is_kind || !(self.zones.is_empty() || within(&self.zones, name)) {
            return Applied::Elsewhere;
        }
        let mut name = name.to_lowercase();
        name.set_fqdn(true);
        let text = name.to_ascii();
        let mut patterns = self.patterns.iter();
        let found = patterns.find_map(|pattern| pattern.captures(&text));
        if found.is_none() && !self.patterns.is_empty() {
            return match within(&self.fallthrough, &name) {
                true => Applied::Elsewhere,
                false => Applied::Unmatched,
            };
        }
        let zones = self.zones.iter().filter(|zone| zone.zone_of(&name));
        let zone = zones.max_by_key(|zone| zone.num_labels());
        let query = Query {
            name: &text,
            kind,
            zone: zone.map_or_else(|| ".".to_owned(), Name::to_ascii),
            found,
        };
        let made = |templates: &[RecordTemplate]| -> Option<Vec<Record>> {
            let records = templates.iter();
            records.map(|one| record(&one.fill(&query))).collect()
        };
        let sections = || {
            Some(Sections {
                answers: made(&self.answers)?,
                additionals: made(&self.additionals)?,
                authorities: made(&self.authorities)?,
            })
        };
        Applied::Reply(sections())
    }
}

impl RecordTemplate {
    /// Parses a record with placeholders of Go's templates: `{{ .Name }}`, `.Type`, `.Class`, `.Zone`, `.Group.NAME` and
    /// `index .Match N`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((before, after)) = rest.split_once("{{") {
            let Some((inside, after)) = after.split_once("}}") else {
                return Err("a {{ without its }}".to_owned());
            };
            parts.push(Part::Text(before.to_owned()));
            parts.push(placeholder(inside)?);
            rest = after;
        }
        parts.push(Part::Text(rest.to_owned()));
        let template = Self(parts);
        let query = Query {
            name: "0.",
            kind: RecordType::A,
            zone: ".".to_owned(),
            found: None,
        };
        // What groups contain is known only with a query.
        let filled = template.fill(&query);
        let words: Vec<&str> = filled.split_whitespace().collect();
        match words.as_slice() {
            [_, rest @ ..] if kind_of(rest).is_some() => Ok(template),
            _ => Err("expected NAME [TTL] [IN] TYPE DATA of a known type".to_owned()),
        }
    }

    fn fill(&self, query: &Query<'_>) -> String {
        let fill = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::Name => query.name.to_owned(),
            Part::Type => query.kind.to_string(),
            Part::Class => "IN".to_owned(),
            Part::Zone => query.zone.clone(),
            Part::Group(name) => {
                let found = query.found.as_ref();
                let group = found.and_then(|found| match name.parse() {
                    Ok(number) => found.get(number),
                    Err(_) => found.name(name),
                });
                group.map_or_else(String::new, |group| group.as_str().to_owned())
            }
        };
        self.0.iter().map(fill).collect()
    }
}

fn placeholder(inside: &str) -> Result<Part, String> {
    let words: Vec<&str> = inside.split_whitespace().collect();
    match words.as_slice() {
        [".Name"] => Ok(Part::Name),
        [".Type"] => Ok(Part::Type),
        [".Class"] => Ok(Part::Class),
        [".Zone"] => Ok(Part::Zone),
        ["index", ".Match", number] if number.parse::<usize>().is_ok() => {
            Ok(Part::Group((*number).to_owned()))
        }
        [one] if one.starts_with(".Group.") => Ok(Part::Group(one[".Group.".len()..].to_owned())),
        _ => Err(format!("{{{{{inside}}}}} is not supported")),
    }
}

/// The TTL, the type and the data in `[TTL] [IN] TYPE DATA…`, if the type is known.
fn kind_of<'a>(words: &'a [&'a str]) -> Option<(u32, &'a str, &'a [&'a str])> {
    let (ttl, words) = match words {
        [ttl, rest @ ..] if ttl.parse::<u32>().is_ok() => (ttl.parse().ok()?, rest),
        _ => (TTL, words),
    };
    let words = match words {
        [class, rest @ ..] if class.eq_ignore_ascii_case("IN") => rest,
        _ => words,
    };
    let (kind, data) = words.split_first()?;
    let known = ["A", "AAAA", "CNAME", "MX", "NS", "PTR", "SOA", "SRV", "TXT"];
    let is_known = known.iter().any(|one| one.eq_ignore_ascii_case(kind));
    is_known.then_some((ttl, *kind, data))
}

/// A record in the form of zone files.
fn record(text: &str) -> Option<Record> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let (owner, rest) = words.split_first()?;
    let (ttl, kind, data) = kind_of(rest)?;
    let data = match (kind.to_ascii_uppercase().as_str(), data) {
        ("A", [ip]) => RData::A(A(ip.parse().ok()?)),
        ("AAAA", [ip]) => RData::AAAA(AAAA(ip.parse().ok()?)),
        ("CNAME", [to]) => RData::CNAME(CNAME(name(to)?)),
        ("NS", [to]) => RData::NS(NS(name(to)?)),
        ("PTR", [to]) => RData::PTR(PTR(name(to)?)),
        ("MX", [preference, to]) => RData::MX(MX::new(preference.parse().ok()?, name(to)?)),
        ("SRV", [priority, weight, port, to]) => RData::SRV(SRV::new(
            priority.parse().ok()?,
            weight.parse().ok()?,
            port.parse().ok()?,
            name(to)?,
        )),
        ("TXT", [_, ..]) => RData::TXT(TXT::new(strings(text, kind)?)),
        ("SOA", [server, mailbox, serial, times @ ..]) => {
            let times: Vec<i32> = times
                .iter()
                .filter_map(|word| word.trim_matches(['(', ')']).parse().ok())
                .collect();
            let [refresh, retry, expire, minimum] = times[..] else {
                return None;
            };
            let serial = serial.trim_matches('(').parse().ok()?;
            let (server, mailbox) = (name(server)?, name(mailbox)?);
            let minimum = u32::try_from(minimum).ok()?;
            RData::SOA(SOA::new(
                server, mailbox, serial, refresh, retry, expire, minimum,
            ))
        }
        _ => return None,
    };
    Some(Record::from_rdata(name(owner)?, ttl, data))
}

fn name(text: &str) -> Option<Name> {
    let mut name = Name::from_ascii(text).ok()?;
    name.set_fqdn(true);
    Some(name)
}

/// The strings of a TXT record, in quotes or without.
fn strings(text: &str, kind: &str) -> Option<Vec<String>> {
    let (_, data) = text.split_once(&format!(" {kind} "))?;
    if !data.contains('"') {
        return Some(data.split_whitespace().map(str::to_owned).collect());
    }
    let quoted = data.split('"').skip(1).step_by(2);
    Some(quoted.map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(pattern: &str, answer: &str) -> Template {
        Template {
            kind: RecordType::A,
            zones: vec![name("example.").unwrap()],
            code: ResponseCode::NoError,
            patterns: vec![Regex::new(pattern).unwrap()],
            answers: vec![RecordTemplate::parse(answer).unwrap()],
            additionals: Vec::new(),
            authorities: Vec::new(),
            fallthrough: vec![name("next.example.").unwrap()],
        }
    }

    #[test]
    fn records_are_made_from_the_name() {
        for (pattern, answer, asked, expected) in [
            (
                r"^ip-(?P<a>[0-9]+)-(?P<b>[0-9]+)[.]example[.]$",
                "{{ .Name }} 60 IN A 10.0.{{ .Group.a }}.{{.Group.b}}",
                "IP-3-4.example.",
                "ip-3-4.example. 60 IN A 10.0.3.4",
            ),
            (
                r"^(.*)\.dev\.example\.$",
                "{{ .Name }} CNAME {{ index .Match 1 }}.{{ .Zone }}",
                "web.dev.example.",
                "web.dev.example. 3600 IN CNAME web.example.",
            ),
            (
                ".*",
                "{{ .Name }} 5 TXT \"type {{ .Type }}\" more",
                "a.example.",
                "a.example. 5 IN TXT type A",
            ),
        ] {
            let applied = template(pattern, answer).apply(&name(asked).unwrap(), RecordType::A);
            let Applied::Reply(Some(sections)) = applied else {
                panic!("{asked}: {applied:?}");
            };
            assert_eq!(sections.answers[0].to_string(), expected);
        }
    }

    #[test]
    fn queries_for_others_and_invalid_records_have_no_answer() {
        let template = template(
            "^([0-9]+)[.]example",
            "{{ .Name }} A 10.0.0.{{ index .Match 1 }}",
        );
        for (asked, kind, expected) in [
            ("1.example.", RecordType::AAAA, Applied::Elsewhere),
            ("1.other.", RecordType::A, Applied::Elsewhere),
            ("a.example.", RecordType::A, Applied::Unmatched),
            ("a.next.example.", RecordType::A, Applied::Elsewhere),
            ("999.example.", RecordType::A, Applied::Reply(None)),
        ] {
            assert_eq!(
                template.apply(&name(asked).unwrap(), kind),
                expected,
                "{asked}"
            );
        }
    }

    #[test]
    fn other_placeholders_and_types_are_refused() {
        for text in [
            "{{ .Message.Id }} A 192.0.2.1",
            "{{ .Name",
            "{{ .Name }} 60 IN LOC 1",
            "x",
            "",
        ] {
            assert!(RecordTemplate::parse(text).is_err(), "{text}");
        }
    }
}
