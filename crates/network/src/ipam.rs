//! Assigns addresses to sandboxes, with one small file per sandbox.
//!
//! A record is written before the first link is made, so that the next start knows whatever a crash
//! leaves. The directory should be on a tmpfs: records describe links, and both are gone after a
//! reboot, so that nothing is synced. Every file is replaced by a rename, and so complete or
//! absent.

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::{Error, PortMapping, Result, shape::Limits};

/// The file of the pod CIDRs, beside the records.
const RANGES: &str = "ranges";

/// The record of an attached sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    /// The runtime's id of the sandbox.
    pub sandbox_id: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's uid.
    pub uid: String,
    /// The link on the node's side.
    pub host_link: String,
    /// The sandbox's addresses, the primary first.
    pub addresses: Vec<IpAddr>,
    /// The host ports that lead to it.
    pub port_mappings: Vec<PortMapping>,
    /// When it was attached, in nanoseconds since 1970: of several pods with one host port, the
    /// first has it.
    #[serde(default)]
    pub attached_at: u64,
    /// The bandwidth limits.
    #[serde(default)]
    pub limits: Limits,
    /// The ifb link for the egress limit, if there is one.
    #[serde(default)]
    pub egress_link: Option<String>,
}

/// The node's address assignments.
pub(crate) struct Ipam {
    directory: PathBuf,
    cidrs: Vec<IpNet>,
    records: BTreeMap<String, Record>,
    used: HashSet<IpAddr>,
    /// The last assigned offset per range: a freed address is reused as late as possible.
    last: BTreeMap<IpNet, u128>,
}

impl Ipam {
    /// Reads the records of an earlier run in `directory`.
    pub(crate) fn open(directory: impl Into<PathBuf>) -> Result<Self> {
        let directory = directory.into();
        fs::create_dir_all(&directory).map_err(Error::file(&directory))?;
        let mut ipam = Self {
            records: BTreeMap::new(),
            used: HashSet::new(),
            cidrs: Vec::new(),
            last: BTreeMap::new(),
            directory,
        };
        ipam.cidrs = match fs::read(ipam.directory.join(RANGES)) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_default(),
            Err(_) => Vec::new(),
        };
        for entry in fs::read_dir(&ipam.directory).map_err(Error::file(&ipam.directory))? {
            let path = entry.map_err(Error::file(&ipam.directory))?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == "json")
            {
                ipam.load(&path)?;
            }
        }
        Ok(ipam)
    }

    fn load(&mut self, path: &Path) -> Result<()> {
        let bytes = fs::read(path).map_err(Error::file(path))?;
        match serde_json::from_slice::<Record>(&bytes) {
            Ok(record) => {
                self.used.extend(&record.addresses);
                self.records.insert(record.sandbox_id.clone(), record);
            }
            // Only another program can have written this; a cleanup finds its links.
            Err(error) => warn!(path = %path.display(), %error, "invalid IPAM record"),
        }
        Ok(())
    }

    /// Sets the ranges for new sandboxes and persists them, so that pods can be attached after a
    /// restart before the API server is reachable. False if nothing changes.
    pub(crate) fn set_cidrs(&mut self, cidrs: Vec<IpNet>) -> Result<bool> {
        let cidrs: Vec<IpNet> = cidrs.iter().map(IpNet::trunc).collect();
        if self.cidrs == cidrs {
            return Ok(false);
        }
        replace(&self.directory.join(RANGES), &cidrs)?;
        self.cidrs = cidrs;
        Ok(true)
    }

    /// The ranges for new sandboxes.
    pub(crate) fn cidrs(&self) -> &[IpNet] {
        &self.cidrs
    }

    /// Every record.
    pub(crate) fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.values()
    }

    /// One record.
    pub(crate) fn get(&self, sandbox_id: &str) -> Option<&Record> {
        self.records.get(sandbox_id)
    }

    /// Whether another sandbox uses a link's name.
    pub(crate) fn link_taken(&self, link: &str) -> bool {
        let is_of = |record: &Record| {
            record.host_link == link || record.egress_link.as_deref() == Some(link)
        };
        self.records.values().any(is_of)
    }

    /// Assigns one free address per range and writes the record.
    pub(crate) fn assign(&mut self, mut record: Record) -> Result<Record> {
        if self.cidrs.is_empty() {
            return Err(Error::NoPodCidr);
        }
        record.addresses = Vec::with_capacity(self.cidrs.len());
        for cidr in self.cidrs.clone() {
            record.addresses.push(self.free_address(cidr)?);
        }
        self.write(&record)?;
        self.used.extend(&record.addresses);
        self.records
            .insert(record.sandbox_id.clone(), record.clone());
        Ok(record)
    }

    /// Removes a sandbox and frees its addresses.
    pub(crate) fn release(&mut self, sandbox_id: &str) -> Result<Option<Record>> {
        let Some(record) = self.records.get(sandbox_id) else {
            return Ok(None);
        };
        let path = self.path(sandbox_id);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::file(path)(error));
            }
            _ => {}
        }
        for address in &record.addresses {
            self.used.remove(address);
        }
        Ok(self.records.remove(sandbox_id))
    }

    fn free_address(&mut self, cidr: IpNet) -> Result<IpAddr> {
        let (base, size) = span(cidr);
        // The first address is the network's (and the overlay device's), the last is broadcast.
        let usable = size.saturating_sub(2);
        let last = self.last.get(&cidr).copied();
        let last = last.unwrap_or_else(|| self.newest(cidr));
        for step in 1..=usable.min(1 << 20) {
            let offset = (last + step - 1) % usable + 1;
            let address = at(cidr, base + offset);
            if !self.used.contains(&address) {
                self.last.insert(cidr, offset);
                return Ok(address);
            }
        }
        Err(Error::Exhausted(cidr))
    }

    /// The offset of the address that an earlier run assigned last; zero without one.
    fn newest(&self, cidr: IpNet) -> u128 {
        let inside = |record: &Record| {
            let mut addresses = record.addresses.iter();
            let address = addresses.find(|ip| cidr.contains(*ip)).copied()?;
            Some((record.attached_at, address))
        };
        let newest = self.records.values().filter_map(inside).max();
        newest.map_or(0, |(_, address)| {
            span(IpNet::from(address)).0 - span(cidr).0
        })
    }

    fn path(&self, sandbox_id: &str) -> PathBuf {
        self.directory.join(format!("{sandbox_id}.json"))
    }

    fn write(&self, record: &Record) -> Result<()> {
        replace(&self.path(&record.sandbox_id), record)
    }
}

/// Writes a file atomically.
fn replace(path: &Path, content: &impl Serialize) -> Result<()> {
    let draft = path.with_extension("draft");
    let bytes = serde_json::to_vec(content)
        .map_err(|error| Error::file(path)(std::io::Error::other(error)))?;
    fs::write(&draft, bytes).map_err(Error::file(&draft))?;
    fs::rename(&draft, path).map_err(Error::file(path))
}

/// The first address as a number, and the number of addresses (for an IPv6 /0 one less).
fn span(cidr: IpNet) -> (u128, u128) {
    match cidr {
        IpNet::V4(net) => (
            u128::from(u32::from(net.network())),
            1 << (32 - net.prefix_len()),
        ),
        IpNet::V6(net) => (
            u128::from(net.network()),
            1u128
                .checked_shl(128 - u32::from(net.prefix_len()))
                .unwrap_or(u128::MAX),
        ),
    }
}

fn at(cidr: IpNet, number: u128) -> IpAddr {
    match cidr {
        // Lossless: offsets stay inside the range.
        IpNet::V4(_) => IpAddr::V4((number as u32).into()),
        IpNet::V6(_) => IpAddr::V6(number.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(sandbox: &str) -> Record {
        Record {
            sandbox_id: sandbox.into(),
            namespace: "default".into(),
            name: "pod".into(),
            uid: "1".into(),
            host_link: format!("l-{sandbox}"),
            addresses: vec![],
            port_mappings: vec![],
            attached_at: 0,
            limits: Limits::default(),
            egress_link: None,
        }
    }

    fn addresses(ipam: &mut Ipam, sandbox: &str) -> Vec<String> {
        let record = ipam.assign(record(sandbox)).unwrap();
        record.addresses.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn addresses_are_given_in_turn_from_every_range() {
        let directory = tempfile::tempdir().unwrap();
        let mut ipam = Ipam::open(directory.path()).unwrap();
        assert!(matches!(ipam.assign(record("a")), Err(Error::NoPodCidr)));
        ipam.set_cidrs(vec![
            "10.42.0.0/24".parse().unwrap(),
            "fd00::/64".parse().unwrap(),
        ])
        .unwrap();
        assert_eq!(addresses(&mut ipam, "a"), ["10.42.0.1", "fd00::1"]);
        assert_eq!(addresses(&mut ipam, "b"), ["10.42.0.2", "fd00::2"]);
        ipam.release("a").unwrap();
        assert_eq!(addresses(&mut ipam, "c"), ["10.42.0.3", "fd00::3"]);
    }

    #[test]
    fn a_freed_address_rests_until_the_range_was_walked() {
        let directory = tempfile::tempdir().unwrap();
        let mut ipam = Ipam::open(directory.path()).unwrap();
        ipam.set_cidrs(vec!["10.42.0.0/30".parse().unwrap()])
            .unwrap();
        assert_eq!(addresses(&mut ipam, "a"), ["10.42.0.1"]);
        ipam.release("a").unwrap();
        assert_eq!(addresses(&mut ipam, "b"), ["10.42.0.2"]);
        assert_eq!(addresses(&mut ipam, "c"), ["10.42.0.1"]);
        assert!(matches!(ipam.assign(record("d")), Err(Error::Exhausted(_))));
    }

    #[test]
    fn an_address_that_was_freed_before_a_restart_rests_too() {
        let directory = tempfile::tempdir().unwrap();
        let ranges = || {
            vec![
                "10.42.0.0/24".parse().unwrap(),
                "fd00::/64".parse().unwrap(),
            ]
        };
        let mut ipam = Ipam::open(directory.path()).unwrap();
        ipam.set_cidrs(ranges()).unwrap();
        for (number, sandbox) in ["b", "c", "a"].iter().enumerate() {
            let mut record = record(sandbox);
            record.attached_at = number as u64;
            ipam.assign(record).unwrap();
        }
        let mut ipam = Ipam::open(directory.path()).unwrap();
        ipam.release("b").unwrap();
        assert_eq!(addresses(&mut ipam, "d"), ["10.42.0.4", "fd00::4"]);
    }

    #[test]
    fn records_survive_a_restart_and_a_torn_draft_is_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let mut ipam = Ipam::open(directory.path()).unwrap();
        ipam.set_cidrs(vec!["10.42.0.0/24".parse().unwrap()])
            .unwrap();
        let kept = ipam.assign(record("a")).unwrap();
        fs::write(directory.path().join("b.draft"), b"{").unwrap();
        fs::write(directory.path().join("c.json"), b"{").unwrap();
        let mut ipam = Ipam::open(directory.path()).unwrap();
        assert_eq!(ipam.get("a"), Some(&kept));
        assert_eq!(ipam.cidrs(), ["10.42.0.0/24".parse().unwrap()]);
        ipam.set_cidrs(vec!["10.42.0.0/24".parse().unwrap()])
            .unwrap();
        assert_eq!(addresses(&mut ipam, "d"), ["10.42.0.2"]);
        ipam.release("a").unwrap();
        assert!(Ipam::open(directory.path()).unwrap().get("a").is_none());
    }
}
