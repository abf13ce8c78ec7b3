//! The address pool for load balancers, as the operator writes it: ranges
//! (`192.0.2.10-192.0.2.20`), networks (`192.0.2.64/28`) and single addresses. Pure.

use std::{fmt, net::IpAddr, str::FromStr};

/// The first and the last address of a range, of one IP family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    v4: bool,
    first: u128,
    last: u128,
}

/// A set of address ranges.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pool {
    spans: Vec<Span>,
}

fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

fn address(v4: bool, bits: u128) -> IpAddr {
    match u32::try_from(bits) {
        Ok(bits) if v4 => IpAddr::V4(bits.into()),
        _ => IpAddr::V6(bits.into()),
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is neither an address, a network nor FIRST-LAST");
        let parse = |text: &str| text.trim().parse::<IpAddr>().map_err(|_| wrong());
        let (first, last) = if let Some((first, last)) = text.split_once('-') {
            let (first, last) = (parse(first)?, parse(last)?);
            if first.is_ipv4() != last.is_ipv4() || first > last {
                return Err(wrong());
            }
            (first, last)
        } else if let Some((base, length)) = text.split_once('/') {
            let base = parse(base)?;
            let width = if base.is_ipv4() { 32 } else { 128 };
            let length: u32 = length.trim().parse().map_err(|_| wrong())?;
            let host = u32::checked_sub(width, length).ok_or_else(wrong)?;
            let mask = u128::MAX.checked_shl(host).unwrap_or(0);
            let first = bits(base) & mask;
            let last = first | (!mask & (u128::MAX >> (128 - width)));
            // Exclude the network and broadcast addresses of an IPv4 network.
            let hosts = base.is_ipv4() && host > 1;
            let (first, last) = if hosts {
                (first + 1, last - 1)
            } else {
                (first, last)
            };
            (
                address(base.is_ipv4(), first),
                address(base.is_ipv4(), last),
            )
        } else {
            let only = parse(text)?;
            (only, only)
        };
        Ok(Self {
            v4: first.is_ipv4(),
            first: bits(first),
            last: bits(last),
        })
    }
}

impl FromStr for Pool {
    type Err = String;

    /// Parses ranges separated by commas.
    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty());
        let spans = parts.map(str::parse).collect::<Result<_, _>>()?;
        Ok(Self { spans })
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, span) in self.spans.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let (first, last) = (address(span.v4, span.first), address(span.v4, span.last));
            write!(f, "{comma}{first}-{last}")?;
        }
        Ok(())
    }
}

impl Pool {
    /// Whether it has no addresses.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Whether an address is one of them.
    pub fn contains(&self, ip: IpAddr) -> bool {
        let inside =
            |span: &Span| span.v4 == ip.is_ipv4() && (span.first..=span.last).contains(&bits(ip));
        self.spans.iter().any(inside)
    }

    /// The first free address of an IP family.
    pub fn first_free(&self, v4: bool, is_taken: impl Fn(&IpAddr) -> bool) -> Option<IpAddr> {
        let spans = self.spans.iter().filter(|span| span.v4 == v4);
        // Takes at most one step more than there are taken addresses.
        let mut addresses = spans.flat_map(|span| span.first..=span.last);
        addresses
            .by_ref()
            .map(|bits| address(v4, bits))
            .find(|ip| !is_taken(ip))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ranges_networks_and_addresses_are_read() {
        for (text, expected) in [
            ("192.0.2.10-192.0.2.12", "192.0.2.10-192.0.2.12"),
            ("192.0.2.64/30", "192.0.2.65-192.0.2.66"),
            (
                "192.0.2.7/32, fd00::1",
                "192.0.2.7-192.0.2.7,fd00::1-fd00::1",
            ),
            ("fd00::/126", "fd00::-fd00::3"),
            ("0.0.0.0/0", "0.0.0.1-255.255.255.254"),
            ("::/0", "::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        ] {
            assert_eq!(
                text.parse::<Pool>().unwrap().to_string(),
                expected,
                "{text}"
            );
        }
        for wrong in [
            "x",
            "192.0.2.9-192.0.2.1",
            "192.0.2.1-fd00::1",
            "192.0.2.0/33",
        ] {
            assert!(wrong.parse::<Pool>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn free_addresses_are_found_in_order_by_family() {
        let pool: Pool = "192.0.2.1-192.0.2.2,192.0.2.9,fd00::1".parse().unwrap();
        let mut taken = BTreeSet::new();
        let mut found = Vec::new();
        while let Some(ip) = pool.first_free(true, |ip| taken.contains(ip)) {
            found.push(ip.to_string());
            taken.insert(ip);
        }
        assert_eq!(found, ["192.0.2.1", "192.0.2.2", "192.0.2.9"]);
        assert_eq!(
            pool.first_free(false, |ip| taken.contains(ip)),
            "fd00::1".parse().ok()
        );
        assert!(pool.contains("192.0.2.9".parse().unwrap()));
        assert!(!pool.contains("192.0.2.3".parse().unwrap()));
    }
}
