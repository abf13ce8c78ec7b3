//! Settings from CoreDNS' Corefile, of the ConfigMap `kube-system/coredns`.
//!
//! The directives that people put there are understood ([`directive::ALL`]); CoreDNS' fixed order of
//! plugins decides, not the order of lines. A text that is no Corefile is refused as a whole. A
//! directive or an option that this server does not have is left out and named in [`Parsed::problems`].

mod directive;
mod rewriting;
pub mod syntax;

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use hickory_proto::{
    op::ResponseCode,
    rr::{Name, RecordType},
};

use crate::{hosts::Hosts, rewrite::Rewrite};
use syntax::{Line, SyntaxError};

/// What a cluster has when its ConfigMap says nothing else.
const DEFAULT: &str = include_str!("default.corefile");
/// The file's key in the ConfigMap.
pub const KEY: &str = "Corefile";

/// The Corefile that a cluster with this domain begins with.
pub fn default_text(cluster_domain: &str) -> String {
    DEFAULT.replace("cluster.local", cluster_domain)
}

/// A Corefile that could be read.
#[derive(Debug)]
pub struct Parsed {
    /// What it says.
    pub servers: Vec<Server>,
    /// What of it has no effect here, each with its line.
    pub problems: Vec<String>,
}

/// A server block: what happens to questions of its zones.
#[derive(Debug)]
pub struct Server {
    /// Names below one of these are answered by this block, unless another has a longer one.
    pub zones: Vec<Name>,
    /// Which answers are logged.
    pub log: Option<LogClasses>,
    /// Whether failures are logged.
    pub errors: bool,
    /// Changes of questions, in order.
    pub rewrites: Vec<Rewrite>,
    /// Replies that are made from the question alone.
    pub templates: Vec<Template>,
    /// Names with addresses.
    pub hosts: Option<Hosts>,
    /// Names of the cluster.
    pub kubernetes: Option<Kubernetes>,
    /// Answers of others that are kept.
    pub cache: Option<Cache>,
    /// Who else is asked; the first that has the name.
    pub forwards: Vec<Forward>,
}

/// Which answers `log` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogClasses {
    /// Those with records.
    pub success: bool,
    /// Those without.
    pub denial: bool,
    /// Failures.
    pub error: bool,
}

/// `template` without a pattern for records: a response code for a type of questions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// The type; all when it is `ANY`.
    pub kind: RecordType,
    /// The names; those of the server when there are none.
    pub zones: Vec<Name>,
    /// The response code.
    pub code: ResponseCode,
}

/// `kubernetes`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kubernetes {
    /// How long clients may keep answers, in seconds.
    pub ttl: u32,
    /// Whether `1-2-3-4.NAMESPACE.pod` has an address.
    pub pods: bool,
    /// Names below these that do not exist are looked for elsewhere.
    pub fallthrough: Vec<Name>,
}

/// `cache`. Times are in seconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    /// The names; those of the server when there are none.
    pub zones: Vec<Name>,
    /// Answers with records.
    pub success: Keeping,
    /// Answers without.
    pub denial: Keeping,
    /// An answer that was asked for this often is renewed before it ends; never when zero.
    pub prefetch: u32,
    /// In the last so many hundredths of its life.
    pub prefetch_percent: u32,
    /// How long an answer goes on after its end.
    pub stale: Duration,
    /// Whether an answer after its end is given at once, and renewed afterwards.
    pub stale_at_once: bool,
}

/// How answers of one sort are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keeping {
    /// The most of them.
    pub capacity: usize,
    /// The longest, whatever the answer says.
    pub longest: u32,
    /// The shortest, whatever the answer says.
    pub shortest: u32,
    /// Names below these are not kept.
    pub disabled: Vec<Name>,
}

impl Default for Cache {
    fn default() -> Self {
        let keeping = |longest| Keeping {
            capacity: 9984,
            longest,
            shortest: 5,
            disabled: Vec::new(),
        };
        Self {
            zones: Vec::new(),
            success: keeping(3600),
            denial: keeping(1800),
            prefetch: 0,
            prefetch_percent: 10,
            stale: Duration::ZERO,
            stale_at_once: false,
        }
    }
}

/// `forward`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forward {
    /// Names below this one.
    pub from: Name,
    /// But not below these.
    pub except: Vec<Name>,
    /// Who is asked.
    pub to: Vec<Resolver>,
    /// In which order.
    pub policy: Policy,
    /// Questions that may be under way at once; others are refused.
    pub max_concurrent: Option<usize>,
    /// Which transport is used.
    pub transport: Preference,
    /// How long one server is waited for.
    pub read_timeout: Duration,
}

/// Who is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolver {
    /// A server.
    Server(SocketAddr),
    /// Those of a `resolv.conf`, read again when it changes.
    ResolvConf(PathBuf),
}

/// The order of servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Another one each time, by chance.
    Random,
    /// Another one each time, in turn.
    RoundRobin,
    /// The first that answers.
    Sequential,
}

/// The transport to servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preference {
    /// The client's.
    AsAsked,
    /// Streams alone.
    ForceTcp,
    /// Datagrams, and a stream for what did not fit.
    PreferUdp,
}

/// What a Corefile is read with.
pub struct Surroundings<'a> {
    /// The cluster's zone.
    pub cluster_domain: &'a Name,
    /// The other keys of the ConfigMap: files that directives name.
    pub files: &'a BTreeMap<String, String>,
    /// What `/etc/resolv.conf` means on this node.
    pub resolv_conf: PathBuf,
    /// Addresses of this server itself, which are never asked.
    pub own: Vec<IpAddr>,
}

/// Reads a Corefile.
pub fn parse(text: &str, around: &Surroundings<'_>) -> Result<Parsed, SyntaxError> {
    let lines = syntax::parse(text)?;
    let mut parsed = Parsed {
        servers: Vec::new(),
        problems: Vec::new(),
    };
    for line in &lines {
        match &line.block {
            Some(block) => server(line, block, around, &mut parsed)?,
            // CoreDNS allows a file without braces for a single server; nobody writes it.
            None => {
                return Err(SyntaxError {
                    line: line.number,
                    message: "expected a server block: ZONES { … }".to_owned(),
                });
            }
        }
    }
    let mut seen: Vec<&Name> = Vec::new();
    for (server, line) in parsed.servers.iter().zip(&lines) {
        for zone in &server.zones {
            if seen.contains(&zone) {
                return Err(SyntaxError {
                    line: line.number,
                    message: format!("zone {zone} is served by another block already"),
                });
            }
            seen.push(zone);
        }
    }
    if parsed.servers.is_empty() {
        return Err(SyntaxError {
            line: 1,
            message: "no server block".to_owned(),
        });
    }
    Ok(parsed)
}

fn server(
    line: &Line,
    block: &[Line],
    around: &Surroundings<'_>,
    parsed: &mut Parsed,
) -> Result<(), SyntaxError> {
    let mut server = Server {
        zones: Vec::new(),
        log: None,
        errors: false,
        rewrites: Vec::new(),
        templates: Vec::new(),
        hosts: None,
        kubernetes: None,
        cache: None,
        forwards: Vec::new(),
    };
    for word in &line.words {
        match directive::server_zone(word) {
            Ok((zone, problem)) => {
                server.zones.push(zone);
                let shown = |problem| format!("line {}: {problem}", line.number);
                parsed.problems.extend(problem.map(shown));
            }
            Err(message) => {
                return Err(SyntaxError {
                    line: line.number,
                    message,
                });
            }
        }
    }
    for line in block {
        let name = line.words.first().map(String::as_str).unwrap_or_default();
        let known = directive::ALL.iter().find(|known| known.name == name);
        let Some(known) = known else {
            let problem = format!(
                "line {}: directive {name:?} has no effect here",
                line.number
            );
            parsed.problems.push(problem);
            continue;
        };
        let mut reading = directive::Reading {
            line,
            around,
            problems: &mut parsed.problems,
        };
        (known.read)(&mut server, &mut reading)?;
    }
    parsed.servers.push(server);
    Ok(())
}

#[cfg(test)]
mod tests;
