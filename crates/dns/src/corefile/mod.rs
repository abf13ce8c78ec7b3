//! Parses CoreDNS' Corefile from the ConfigMap `kube-system/coredns`.
//!
//! The common directives are supported ([`directive::ALL`]); as in CoreDNS the order of plugins is
//! fixed, not the order of lines. Invalid syntax is rejected as a whole. An unsupported directive
//! or option is skipped and listed in [`Parsed::problems`].

mod directive;
mod imports;
mod rewriting;
pub mod syntax;
mod templating;

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use hickory_proto::rr::Name;

use crate::{hosts::Hosts, rewrite::Rewrite, template::Template};
use syntax::{Line, SyntaxError};

/// The default Corefile.
const DEFAULT: &str = include_str!("default.corefile");
/// The Corefile's key in the ConfigMap.
pub const KEY: &str = "Corefile";

/// The default Corefile of a cluster with this domain.
pub fn default_text(cluster_domain: &str) -> String {
    DEFAULT.replace("cluster.local", cluster_domain)
}

/// A parsed Corefile.
#[derive(Debug)]
pub struct Parsed {
    /// The server blocks.
    pub servers: Vec<Server>,
    /// The parts that have no effect, each with its line.
    pub problems: Vec<String>,
}

/// A server block.
#[derive(Debug)]
pub struct Server {
    /// The zones; the block with the longest matching zone answers a name.
    pub zones: Vec<Name>,
    /// Which replies are logged.
    pub log: Option<LogClasses>,
    /// Whether errors are logged.
    pub errors: bool,
    /// Rewrite rules, in order.
    pub rewrites: Vec<Rewrite>,
    /// Templates.
    pub templates: Vec<Template>,
    /// The hosts table.
    pub hosts: Option<Hosts>,
    /// The `kubernetes` plugin.
    pub kubernetes: Option<Kubernetes>,
    /// The cache.
    pub cache: Option<Cache>,
    /// The forwarders; the first with a matching name is used.
    pub forwards: Vec<Forward>,
}

/// The classes of replies that `log` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogClasses {
    /// Replies with records.
    pub success: bool,
    /// Denials.
    pub denial: bool,
    /// Errors.
    pub error: bool,
}

/// `kubernetes`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kubernetes {
    /// The TTL of answers, in seconds.
    pub ttl: u32,
    /// Whether `1-2-3-4.NAMESPACE.pod` resolves.
    pub pods: bool,
    /// Whether endpoints without a host name have the names of their pods.
    pub pod_names: bool,
    /// Zones whose missing names are passed to the next plugin.
    pub fallthrough: Vec<Name>,
}

/// `cache`. Times are in seconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    /// The zones; those of the server if empty.
    pub zones: Vec<Name>,
    /// For answers with records.
    pub success: CacheSettings,
    /// For denials.
    pub denial: CacheSettings,
    /// An answer with this many queries is prefetched before it expires; never if zero.
    pub prefetch: u32,
    /// The last percentage of the TTL in which answers are prefetched.
    pub prefetch_percent: u32,
    /// How long an expired answer may be served.
    pub stale: Duration,
    /// Whether an expired answer is served at once, and renewed afterwards.
    pub stale_at_once: bool,
}

/// How answers of one class are cached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheSettings {
    /// The maximum number.
    pub capacity: usize,
    /// The maximum TTL.
    pub longest: u32,
    /// The minimum TTL.
    pub shortest: u32,
    /// Zones that are not cached.
    pub disabled: Vec<Name>,
}

impl Default for Cache {
    fn default() -> Self {
        let keeping = |longest| CacheSettings {
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
    /// The zone.
    pub from: Name,
    /// Excluded zones.
    pub except: Vec<Name>,
    /// The servers.
    pub to: Vec<Resolver>,
    /// The order of servers.
    pub policy: Policy,
    /// The maximum number of concurrent queries; others are refused.
    pub max_concurrent: Option<usize>,
    /// The transport.
    pub transport: Preference,
    /// The timeout per server.
    pub read_timeout: Duration,
}

/// A forward server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolver {
    /// An address.
    Server(SocketAddr),
    /// The servers of a `resolv.conf`, read again when it changes.
    ResolvConf(PathBuf),
}

/// The order of servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// At random.
    Random,
    /// In turn.
    RoundRobin,
    /// Always in the given order.
    Sequential,
}

/// The transport to servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preference {
    /// The same as the client's.
    AsAsked,
    /// TCP only.
    ForceTcp,
    /// UDP, and TCP for truncated replies.
    PreferUdp,
}

/// The context of parsing a Corefile.
pub struct ParseContext<'a> {
    /// The cluster's zone.
    pub cluster_domain: &'a Name,
    /// The other keys of the ConfigMap, as files that directives name.
    pub files: &'a BTreeMap<String, String>,
    /// The file to use for `/etc/resolv.conf`.
    pub resolv_conf: PathBuf,
    /// Addresses of this server itself, which are never asked.
    pub own: Vec<IpAddr>,
}

/// Parses a Corefile.
pub fn parse(text: &str, around: &ParseContext<'_>) -> Result<Parsed, SyntaxError> {
    let lines = imports::expand(syntax::parse(text)?, around.files)?;
    let mut parsed = Parsed {
        servers: Vec::new(),
        problems: Vec::new(),
    };
    // A file without the usual port is for a server that clients reach through another one.
    let words = lines.iter().flat_map(|line| &line.words);
    let mut zones = words.filter_map(|word| directive::server_zone(word).ok());
    let has_port = zones.any(|(_, port)| port == directive::PORT);
    let mut seen: Vec<Name> = Vec::new();
    for line in &lines {
        let wrong = |message: String| SyntaxError {
            line: line.number,
            message,
        };
        let Some(block) = &line.block else {
            // CoreDNS also allows a single server without braces; not supported.
            return Err(wrong("expected a server block: ZONES { … }".to_owned()));
        };
        let zones = zones_of(line, has_port, &mut parsed.problems).map_err(wrong)?;
        for zone in &zones {
            if seen.contains(zone) {
                return Err(wrong(format!(
                    "zone {zone} is served by another block already"
                )));
            }
            seen.push(zone.clone());
        }
        if !zones.is_empty() {
            server(zones, block, around, &mut parsed)?;
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

/// The zones of a block that are served: those of other ports are not, if the file `has_port` 53.
fn zones_of(line: &Line, has_port: bool, problems: &mut Vec<String>) -> Result<Vec<Name>, String> {
    let mut zones = Vec::new();
    for word in &line.words {
        let (zone, port) = directive::server_zone(word)?;
        let is_served = port == directive::PORT || !has_port;
        if port != directive::PORT {
            let what = if is_served {
                "served at port 53"
            } else {
                "left out"
            };
            problems.push(format!(
                "line {}: {word}: port {port} is not served, the zone is {what}",
                line.number
            ));
        }
        if is_served {
            zones.push(zone);
        }
    }
    Ok(zones)
}

fn server(
    zones: Vec<Name>,
    block: &[Line],
    around: &ParseContext<'_>,
    parsed: &mut Parsed,
) -> Result<(), SyntaxError> {
    let mut server = Server {
        zones,
        log: None,
        errors: false,
        rewrites: Vec::new(),
        templates: Vec::new(),
        hosts: None,
        kubernetes: None,
        cache: None,
        forwards: Vec::new(),
    };
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
