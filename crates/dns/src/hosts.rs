//! A hosts table. Pure.

use std::{collections::HashMap, net::IpAddr};

use hickory_proto::rr::{
    Name, RData, Record, RecordType,
    rdata::{A, AAAA, PTR},
};

/// A table of names.
#[derive(Debug)]
pub struct Hosts {
    /// The zones; all names if empty.
    pub zones: Vec<Name>,
    /// The TTL of answers, in seconds.
    pub ttl: u32,
    /// Whether reverse lookups are answered.
    pub reverse: bool,
    /// Zones whose missing names are passed to the next plugin.
    pub fallthrough: Vec<Name>,
    by_name: HashMap<Name, Vec<IpAddr>>,
    by_address: HashMap<IpAddr, Vec<Name>>,
}

/// The result of a lookup.
#[derive(Debug, PartialEq, Eq)]
pub enum HostLookup {
    /// These records; empty if the name has only records of other types.
    Records(Vec<Record>),
    /// The name does not exist, and is not passed on.
    Missing,
    /// Not for this table.
    Elsewhere,
}

impl Default for Hosts {
    fn default() -> Self {
        Self {
            zones: Vec::new(),
            ttl: 3600,
            reverse: true,
            fallthrough: Vec::new(),
            by_name: HashMap::new(),
            by_address: HashMap::new(),
        }
    }
}

/// Whether one of the zones contains this name.
pub(crate) fn within(zones: &[Name], name: &Name) -> bool {
    zones.iter().any(|zone| zone.zone_of(name))
}

impl Hosts {
    /// Adds the lines of a hosts file; invalid lines are skipped, as resolvers do.
    pub fn add_text(&mut self, text: &str) {
        for line in text.lines() {
            self.add_line(line);
        }
    }

    /// Adds `ADDRESS NAME…`.
    pub fn add_line(&mut self, line: &str) {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(address) = words.next().and_then(|word| word.parse::<IpAddr>().ok()) else {
            return;
        };
        for word in words {
            let Ok(mut name) = Name::from_ascii(word.to_lowercase()) else {
                continue;
            };
            name.set_fqdn(true);
            let names = self.by_address.entry(address).or_default();
            if !names.contains(&name) {
                names.push(name.clone());
            }
            let addresses = self.by_name.entry(name).or_default();
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
    }

    /// Answers a question.
    pub fn answer(&self, name: &Name, kind: RecordType) -> HostLookup {
        let lower = name.to_lowercase();
        if kind == RecordType::PTR {
            return self.names(&lower);
        }
        if !self.zones.is_empty() && !within(&self.zones, &lower) {
            return HostLookup::Elsewhere;
        }
        let Some(addresses) = self.by_name.get(&lower) else {
            return if within(&self.fallthrough, &lower) {
                HostLookup::Elsewhere
            } else {
                HostLookup::Missing
            };
        };
        let data = addresses.iter().filter_map(|ip| match (ip, kind) {
            (IpAddr::V4(ip), RecordType::A) => Some(RData::A(A(*ip))),
            (IpAddr::V6(ip), RecordType::AAAA) => Some(RData::AAAA(AAAA(*ip))),
            _ => None,
        });
        let record = |data| Record::from_rdata(name.clone(), self.ttl, data);
        HostLookup::Records(data.map(record).collect())
    }

    fn names(&self, name: &Name) -> HostLookup {
        let names = crate::zone::address_of_reverse(name)
            .filter(|_| self.reverse)
            .and_then(|address| self.by_address.get(&address));
        let Some(names) = names else {
            return HostLookup::Elsewhere;
        };
        let record = |target: &Name| {
            Record::from_rdata(name.clone(), self.ttl, RData::PTR(PTR(target.clone())))
        };
        HostLookup::Records(names.iter().map(record).collect())
    }
}
