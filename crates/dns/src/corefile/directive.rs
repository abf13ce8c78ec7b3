//! The directives of a server block. One function each, listed in [`ALL`].

use std::{net::SocketAddr, path::PathBuf, str::FromStr, time::Duration};

use hickory_proto::rr::Name;

use super::{
    Cache, CacheSettings, Forward, Kubernetes, LogClasses, ParseContext, Policy, Preference,
    Resolver, Server, rewriting,
    syntax::{Line, SyntaxError},
    templating,
};
use crate::hosts::Hosts;

/// The default port.
pub(super) const PORT: u16 = 53;
/// CoreDNS' limit of forward servers.
const FORWARD_LIMIT: usize = 15;

/// A directive.
pub(super) struct Directive {
    pub name: &'static str,
    pub read: fn(&mut Server, &mut Reading<'_>) -> Result<(), SyntaxError>,
}

/// Every supported directive, including those that are always in effect.
pub(super) const ALL: &[Directive] = &[
    Directive {
        name: "bind",
        read: always,
    },
    Directive {
        name: "bufsize",
        read: always,
    },
    Directive {
        name: "cache",
        read: cache,
    },
    Directive {
        name: "cancel",
        read: always,
    },
    Directive {
        name: "errors",
        read: errors,
    },
    Directive {
        name: "forward",
        read: forward,
    },
    Directive {
        name: "health",
        read: always,
    },
    Directive {
        name: "hosts",
        read: hosts,
    },
    Directive {
        name: "kubernetes",
        read: kubernetes,
    },
    Directive {
        name: "loadbalance",
        read: loadbalance,
    },
    Directive {
        name: "log",
        read: log,
    },
    Directive {
        name: "loop",
        read: always,
    },
    Directive {
        name: "multisocket",
        read: always,
    },
    Directive {
        name: "prometheus",
        read: prometheus,
    },
    Directive {
        name: "ready",
        read: always,
    },
    Directive {
        name: "reload",
        read: always,
    },
    Directive {
        name: "rewrite",
        read: rewriting::rewrite,
    },
    Directive {
        name: "template",
        read: templating::template,
    },
];

/// A directive's line, and the list of parts that have no effect.
pub(super) struct Reading<'a> {
    pub line: &'a Line,
    pub around: &'a ParseContext<'a>,
    pub problems: &'a mut Vec<String>,
}

impl<'a> Reading<'a> {
    /// The arguments after the directive's name.
    pub(super) fn arguments(&self) -> &'a [String] {
        self.line.words.get(1..).unwrap_or_default()
    }

    pub(super) fn options(&self) -> &'a [Line] {
        self.line.block.as_deref().unwrap_or_default()
    }

    /// Reports that a line, or a part of it, has no effect.
    pub(super) fn problem(&mut self, line: &Line, what: impl std::fmt::Display) {
        self.problems.push(format!("line {}: {what}", line.number));
    }

    pub(super) fn no_option(&mut self, option: &Line) {
        let directive = self.line.words.first().map_or("", String::as_str);
        let shown = option.words.join(" ");
        self.problem(option, format!("{directive}: {shown:?} has no effect here"));
    }
}

/// A syntax error on a line.
pub(super) fn wrong(line: &Line, message: impl std::fmt::Display) -> SyntaxError {
    SyntaxError {
        line: line.number,
        message: format!("{}: {message}", line.words.join(" ")),
    }
}

/// A zone of a server block and its port: `example.org`, `example.org:53`, `dns://example.org:53`.
pub(super) fn server_zone(word: &str) -> Result<(Name, u16), String> {
    let plain = word.strip_prefix("dns://").unwrap_or(word);
    if plain.contains("://") {
        return Err(format!("{word}: only plain DNS is served"));
    }
    let (zone, port) = match plain.rsplit_once(':') {
        Some((zone, port)) => (
            zone,
            port.parse().map_err(|_| format!("{word}: invalid port"))?,
        ),
        None => (plain, PORT),
    };
    let zone = if zone.is_empty() { "." } else { zone };
    Ok((name(zone).ok_or(format!("{word} is not a zone"))?, port))
}

/// A domain name in lower case; a CIDR stands for its reverse zone.
pub(super) fn name(text: &str) -> Option<Name> {
    if let Ok(range) = text.parse::<ipnet::IpNet>() {
        return Some(reverse_zone(range));
    }
    let mut name = Name::from_ascii(text.to_lowercase()).ok()?;
    name.set_fqdn(true);
    Some(name)
}

fn reverse_zone(range: ipnet::IpNet) -> Name {
    let mut whole = Name::from(range.network());
    whole.set_fqdn(true);
    let (bits, per_label) = match range {
        ipnet::IpNet::V4(_) => (32, 8),
        ipnet::IpNet::V6(_) => (128, 4),
    };
    let kept = usize::from(range.prefix_len() / per_label);
    let labels = usize::from(whole.num_labels());
    whole.trim_to(labels - bits / usize::from(per_label) + kept)
}

pub(super) fn names(line: &Line, words: &[String]) -> Result<Vec<Name>, SyntaxError> {
    let parsed = words.iter().map(|word| name(word).ok_or(word));
    let parsed: Result<Vec<Name>, &String> = parsed.collect();
    parsed.map_err(|word| wrong(line, format!("{word:?} is not a domain name")))
}

/// `30s`, `1h30m`, or seconds.
fn duration(line: &Line, text: &str) -> Result<Duration, SyntaxError> {
    let bad = || wrong(line, format!("{text:?} is not a duration"));
    if let Ok(seconds) = text.parse::<u64>() {
        return Ok(Duration::from_secs(seconds));
    }
    machinery::duration::positive(text).map_err(|_| bad())
}

fn number<T: FromStr>(line: &Line, text: &str) -> Result<T, SyntaxError> {
    let bad = || wrong(line, format!("{text:?} is not a number in range"));
    text.parse().map_err(|_| bad())
}

/// Directives that are always in effect here: the daemon serves health, loops are detected, changes
/// are watched, datagrams are short. The addresses of the server do not depend on the Corefile.
fn always(_: &mut Server, _: &mut Reading<'_>) -> Result<(), SyntaxError> {
    Ok(())
}

fn loadbalance(_: &mut Server, reading: &mut Reading<'_>) -> Result<(), SyntaxError> {
    match reading.arguments() {
        [] => {}
        [policy] if policy == "round_robin" => {}
        _ => reading.no_option(reading.line),
    }
    Ok(())
}

fn prometheus(_: &mut Server, reading: &mut Reading<'_>) -> Result<(), SyntaxError> {
    let ends = |at: &String| at.ends_with(":9153");
    if !reading.arguments().iter().all(ends) {
        reading.problem(reading.line, "metrics are served at port 9153 of the node");
    }
    Ok(())
}

fn errors(server: &mut Server, reading: &mut Reading<'_>) -> Result<(), SyntaxError> {
    server.errors = true;
    for option in reading.options() {
        reading.no_option(option);
    }
    Ok(())
}

fn log(server: &mut Server, reading: &mut Reading<'_>) -> Result<(), SyntaxError> {
    if !matches!(reading.arguments(), [] | [_] if reading.arguments().iter().all(|name| name == "."))
    {
        reading.no_option(reading.line);
    }
    let mut classes: Option<LogClasses> = None;
    for option in reading.options() {
        let [word, named @ ..] = option.words.as_slice() else {
            continue;
        };
        if word != "class" {
            reading.no_option(option);
            continue;
        }
        let found = classes.get_or_insert(LogClasses {
            success: false,
            denial: false,
            error: false,
        });
        for class in named {
            let all = class == "all";
            if !all && !["success", "denial", "error"].contains(&class.as_str()) {
                return Err(wrong(option, format!("{class:?} is not a class")));
            }
            found.success |= all || class == "success";
            found.denial |= all || class == "denial";
            found.error |= all || class == "error";
        }
    }
    server.log = Some(classes.unwrap_or(LogClasses {
        success: true,
        denial: true,
        error: true,
    }));
    Ok(())
}

fn kubernetes(server: &mut Server, reading: &mut Reading<'_>) -> Result<(), SyntaxError> {
    let line = reading.line;
    let zones = names(line, reading.arguments())?;
    let own = reading.around.cluster_domain;
    for zone in &zones {
        let reverse = ["in-addr.arpa.", "ip6.arpa."];
        let is_reverse = reverse.iter().any(|all| zone.to_ascii().ends_with(all));
        if zone != own && !is_reverse {
            reading.problem(
                line,
                format!("kubernetes: the zone of the cluster is {own}, not {zone}"),
            );
        }
    }
    let mut read = Kubernetes {
        ttl: crate::zone::TTL,
        pods: false,
        pod_names: false,
        fallthrough: Vec::new(),
    };
    for option in reading.options() {
        let words: Vec<&str> = option.words.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["pods", "disabled"] => read.pods = false,
            ["pods", "insecure"] => read.pods = true,
            ["pods", "verified"] => {
                read.pods = true;
                reading.problem(
                    option,
                    "kubernetes: pods are not verified, \"insecure\" is used",
                );
            }
            ["endpoint_pod_names"] => read.pod_names = true,
            ["ttl", seconds] => {
                read.ttl = number(option, seconds)?;
                if read.ttl > 3600 {
                    return Err(wrong(option, "the longest time to live is 3600"));
                }
            }
            ["fallthrough"] => read.fallthrough.push(Name::root()),
            ["fallthrough", ..] => read.fallthrough.extend(names(option, &option.words[1..])?),
            _ => reading.no_option(option),
        }
    }
    server.kubernetes = Some(read);
    Ok(())
}

fn hosts(server: &mut Server, reading: &mut Reading<'_>) -> Result<(), SyntaxError> {
    let line = reading.line;
    let mut read = Hosts::default();
    let (file, zones) = match reading.arguments() {
        [file, zones @ ..] if file.contains('/') || reading.around.files.contains_key(file) => {
            (Some(file), zones)
        }
        zones => (None, zones),
    };
    read.zones = names(line, zones)?;
    if let Some(file) = file {
        // CoreDNS' pod has the ConfigMap's keys as files in a directory.
        let key = file.rsplit('/').next().unwrap_or(file);
        match reading.around.files.get(key) {
            Some(text) => read.add_text(text),
            None => reading.problem(line, format!("hosts: the ConfigMap has no key {key:?}")),
        }
    }
    for option in reading.options() {
        let words: Vec<&str> = option.words.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["ttl", seconds] => read.ttl = number(option, seconds)?,
            ["no_reverse"] => read.reverse = false,
            // The ConfigMap is watched, never polled.
            ["reload", period] => drop(duration(option, period)?),
            ["fallthrough"] => read.fallthrough.push(Name::root()),
            ["fallthrough", ..] => read.fallthrough.extend(names(option, &option.words[1..])?),
            [address, ..] if address.parse::<std::net::IpAddr>().is_ok() => {
                read.add_line(&option.words.join(" "));
            }
            _ => reading.no_option(option),
        }
    }
    server.hosts = Some(read);
    Ok(())
}

fn cache(server: &mut Server, reading: &mut Reading<'_>) -> Result<(), SyntaxError> {
    let line = reading.line;
    let mut read = Cache::default();
    let mut zones = reading.arguments();
    if let Some(ttl) = zones.first().and_then(|word| word.parse::<u32>().ok()) {
        if ttl == 0 {
            return Err(wrong(line, "cache TTL can not be zero or negative: 0"));
        }
        (read.success.longest, read.denial.longest) = (ttl, ttl);
        zones = &zones[1..];
    }
    read.zones = names(line, zones)?;
    for option in reading.options() {
        let words: Vec<&str> = option.words.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["success", limits @ ..] => keeping(option, limits, &mut read.success)?,
            ["denial", limits @ ..] => keeping(option, limits, &mut read.denial)?,
            ["prefetch", amount, rest @ ..] => {
                read.prefetch = number(option, amount)?;
                for word in rest {
                    match word.strip_suffix('%') {
                        Some(percent) => read.prefetch_percent = number(option, percent)?,
                        // Prefetching depends on the number of queries, not on their interval.
                        None => reading.problem(option, "cache: the gap of prefetch has no effect"),
                    }
                }
                if !(10..=90).contains(&read.prefetch_percent) {
                    return Err(wrong(option, "percentage should fall in range [10, 90]"));
                }
            }
            ["serve_stale", rest @ ..] => {
                read.stale = match rest.first() {
                    Some(time) => duration(option, time)?,
                    None => Duration::from_secs(3600),
                };
                read.stale_at_once = match rest.get(1..).unwrap_or_default() {
                    [] | ["immediate"] => true,
                    ["verify"] => false,
                    _ => {
                        reading.no_option(option);
                        rest.get(1) != Some(&"verify")
                    }
                };
            }
            ["disable", sort, ..] => {
                let keeping = match *sort {
                    "success" => &mut read.success,
                    "denial" => &mut read.denial,
                    _ => return Err(wrong(option, "expected success or denial")),
                };
                match names(option, &option.words[2..])? {
                    all if all.is_empty() => keeping.disabled.push(Name::root()),
                    some => keeping.disabled.extend(some),
                }
            }
            _ => reading.no_option(option),
        }
    }
    server.cache = Some(read);
    Ok(())
}

fn keeping(option: &Line, limits: &[&str], keeping: &mut CacheSettings) -> Result<(), SyntaxError> {
    let [capacity, times @ ..] = limits else {
        return Err(wrong(option, "expected a capacity"));
    };
    keeping.capacity = number(option, capacity)?;
    if let Some(longest) = times.first() {
        keeping.longest = number(option, longest)?;
    }
    if let Some(shortest) = times.get(1) {
        keeping.shortest = number(option, shortest)?;
    }
    Ok(())
}

fn forward(server: &mut Server, reading: &mut Reading<'_>) -> Result<(), SyntaxError> {
    let line = reading.line;
    let [from, to @ ..] = reading.arguments() else {
        return Err(wrong(line, "expected forward FROM TO…"));
    };
    let from = name(from).ok_or_else(|| wrong(line, "FROM is not a domain name"))?;
    let mut read = Forward {
        from,
        except: Vec::new(),
        to: Vec::new(),
        policy: Policy::Random,
        max_concurrent: None,
        transport: Preference::AsAsked,
        read_timeout: Duration::from_secs(2),
    };
    for word in to {
        let resolver = resolver(word, reading.around).map_err(|message| wrong(line, message))?;
        match resolver {
            Resolver::Server(at) if reading.around.own.contains(&at.ip()) => {
                reading.problem(line, format!("forward: {word} is this server itself"));
            }
            resolver => read.to.push(resolver),
        }
    }
    if to.is_empty() || to.len() > FORWARD_LIMIT {
        return Err(wrong(line, "expected between 1 and 15 servers"));
    }
    for option in reading.options() {
        let words: Vec<&str> = option.words.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["except", ..] => read.except.extend(names(option, &option.words[1..])?),
            ["policy", "random"] => read.policy = Policy::Random,
            ["policy", "round_robin"] => read.policy = Policy::RoundRobin,
            ["policy", "sequential"] => read.policy = Policy::Sequential,
            ["max_concurrent", most] => read.max_concurrent = Some(number(option, most)?),
            ["force_tcp"] => read.transport = Preference::ForceTcp,
            ["prefer_udp"] if read.transport == Preference::AsAsked => {
                read.transport = Preference::PreferUdp;
            }
            ["prefer_udp"] => {}
            ["read_timeout", time] => read.read_timeout = duration(option, time)?,
            // Servers that do not answer are tried last for a while, without queries of our own; sockets are short-lived.
            [
                "max_fails" | "health_check" | "expire" | "max_idle_conns",
                _,
                ..,
            ] => {}
            _ => reading.no_option(option),
        }
    }
    server.forwards.push(read);
    Ok(())
}

fn resolver(word: &str, around: &ParseContext<'_>) -> Result<Resolver, String> {
    if word == "/etc/resolv.conf" {
        return Ok(Resolver::ResolvConf(around.resolv_conf.clone()));
    }
    if word.starts_with('/') {
        return Ok(Resolver::ResolvConf(PathBuf::from(word)));
    }
    let plain = word.strip_prefix("dns://").unwrap_or(word);
    if let Ok(ip) = plain.trim_matches(['[', ']']).parse() {
        return Ok(Resolver::Server(SocketAddr::new(ip, PORT)));
    }
    let parsed = plain.parse().map(Resolver::Server);
    parsed.map_err(|_| {
        format!("{word:?} is neither an address nor a file: names and TLS are not supported")
    })
}
