//! Ranges and addresses of a cluster with one or two IP families: `10.42.0.0/16,fd42::/56`. The
//! first is primary: single addresses are of that family.

use std::{fmt, net::IpAddr, str::FromStr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// One range, or one of each IP family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Ranges(Vec<IpNet>);

/// One address, or one of each IP family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Addresses(Vec<IpAddr>);

impl Ranges {
    /// The primary one.
    pub fn primary(&self) -> IpNet {
        // There is at least one.
        self.0[0]
    }

    /// All of them, the primary first.
    pub fn all(&self) -> &[IpNet] {
        &self.0
    }

    /// Whether one of them contains this address.
    pub fn contains(&self, ip: &IpAddr) -> bool {
        self.0.iter().any(|range| range.contains(ip))
    }

    /// A pair of overlapping ranges.
    pub fn overlap(&self, others: &Self) -> Option<(IpNet, IpNet)> {
        let pairs = self
            .0
            .iter()
            .flat_map(|own| others.0.iter().map(move |other| (*own, *other)));
        let meets = |(own, other): &(IpNet, IpNet)| {
            own.contains(&other.network()) || other.contains(&own.network())
        };
        let mut meeting = pairs.filter(meets);
        meeting.next()
    }
}

impl From<IpNet> for Ranges {
    fn from(range: IpNet) -> Self {
        Self(vec![range.trunc()])
    }
}

impl Addresses {
    /// All of them, the primary first.
    pub fn all(&self) -> &[IpAddr] {
        &self.0
    }
}

impl From<IpAddr> for Addresses {
    fn from(address: IpAddr) -> Self {
        Self(vec![address])
    }
}

/// Parses a list of one or two, of different IP families.
fn families<T: FromStr>(text: &str, is_ipv4: impl Fn(&T) -> bool) -> Result<Vec<T>, String> {
    let words = text.split(',').map(str::trim);
    let parsed = words.map(|word| word.parse().map_err(|_| format!("{word:?} is invalid")));
    let parsed: Vec<T> = parsed.collect::<Result<_, _>>()?;
    match parsed.as_slice() {
        [_] => Ok(parsed),
        [first, second] if is_ipv4(first) != is_ipv4(second) => Ok(parsed),
        _ => Err(format!(
            "{text:?}: expected one, or one of each address family"
        )),
    }
}

impl FromStr for Ranges {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ranges = families(text, |range: &IpNet| range.addr().is_ipv4())?;
        Ok(Self(ranges.iter().map(IpNet::trunc).collect()))
    }
}

impl FromStr for Addresses {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        families(text, IpAddr::is_ipv4).map(Self)
    }
}

impl TryFrom<String> for Ranges {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl TryFrom<String> for Addresses {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Ranges> for String {
    fn from(ranges: Ranges) -> Self {
        ranges.to_string()
    }
}

impl From<Addresses> for String {
    fn from(addresses: Addresses) -> Self {
        addresses.to_string()
    }
}

fn joined<T: ToString>(all: &[T]) -> String {
    all.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}

impl fmt::Display for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&joined(&self.0))
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&joined(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_range_or_one_of_each_family() {
        for (text, shown) in [
            ("10.42.1.1/16", Some("10.42.0.0/16")),
            ("10.42.0.0/16, fd42::/56", Some("10.42.0.0/16,fd42::/56")),
            ("fd42::/56,10.42.0.0/16", Some("fd42::/56,10.42.0.0/16")),
            ("10.42.0.0/16,10.43.0.0/16", None),
            ("10.42.0.0/16,fd42::/56,fd43::/56", None),
            ("10.42.0.0", None),
            ("", None),
        ] {
            let found = text.parse::<Ranges>().ok().map(|ranges| ranges.to_string());
            assert_eq!(found.as_deref(), shown, "{text:?}");
        }
        assert!("192.0.2.1,192.0.2.2".parse::<Addresses>().is_err());
        let both: Addresses = "192.0.2.1,2001:db8::1".parse().unwrap();
        assert_eq!(both.to_string(), "192.0.2.1,2001:db8::1");
    }

    #[test]
    fn ranges_that_share_addresses_are_found() {
        let ranges = |text: &str| text.parse::<Ranges>().unwrap();
        let pods = ranges("10.42.0.0/16,fd42::/56");
        assert!(pods.overlap(&ranges("10.43.0.0/16,fd43::/112")).is_none());
        assert!(
            pods.overlap(&ranges("10.43.0.0/16,fd42::1:0/112"))
                .is_some()
        );
        assert!(pods.contains(&"fd42::7".parse().unwrap()));
    }
}
