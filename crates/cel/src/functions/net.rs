//! IP addresses and networks.

use std::net::IpAddr;

use ipnet::IpNet;

use machinery::text::quote;

use super::{Row, address, convert::string, library::Library};
use crate::value::{Error, Result, Value};

pub(super) const ROWS: &[Row] = &[
    (
        "ip",
        ip,
        &[
            ("string_to_ip", "string -> net.IP"),
            (".cidr_ip", "net.CIDR -> net.IP"),
        ],
    ),
    (
        "isIP",
        |args| Ok(Value::Bool(parse_ip(string(args, 0)?).is_ok())),
        &[("is_ip", "string -> bool")],
    ),
    (
        "ip.isCanonical",
        is_canonical,
        &[("ip_is_canonical", "string -> bool")],
    ),
    (
        "family",
        |args| Ok(Value::Int(if address(args)?.is_ipv4() { 4 } else { 6 })),
        &[(".ip_family", "net.IP -> int")],
    ),
    (
        "isUnspecified",
        |args| Ok(Value::Bool(address(args)?.is_unspecified())),
        &[(".ip_is_unspecified", "net.IP -> bool")],
    ),
    (
        "isLoopback",
        |args| Ok(Value::Bool(address(args)?.is_loopback())),
        &[(".ip_is_loopback", "net.IP -> bool")],
    ),
    (
        "isLinkLocalMulticast",
        |args| Ok(Value::Bool(link_local_multicast(address(args)?))),
        &[(".ip_is_link_local_multicast", "net.IP -> bool")],
    ),
    (
        "isLinkLocalUnicast",
        |args| Ok(Value::Bool(link_local_unicast(address(args)?))),
        &[(".ip_is_link_local_unicast", "net.IP -> bool")],
    ),
    (
        "isGlobalUnicast",
        |args| Ok(Value::Bool(global_unicast(address(args)?))),
        &[(".ip_is_global_unicast", "net.IP -> bool")],
    ),
    ("cidr", cidr, &[("string_to_cidr", "string -> net.CIDR")]),
    (
        "isCIDR",
        |args| Ok(Value::Bool(parse_cidr(string(args, 0)?).is_ok())),
        &[("is_cidr", "string -> bool")],
    ),
    (
        "containsIP",
        contains_ip,
        &[
            (".cidr_contains_ip_string", "net.CIDR, string -> bool"),
            (".cidr_contains_ip_ip", "net.CIDR, net.IP -> bool"),
        ],
    ),
    (
        "containsCIDR",
        contains_cidr,
        &[
            (".cidr_contains_cidr_string", "net.CIDR, string -> bool"),
            (".cidr_contains_cidr", "net.CIDR, net.CIDR -> bool"),
        ],
    ),
    (
        "prefixLength",
        |args| Ok(Value::Int(network(args)?.prefix_len().into())),
        &[(".cidr_prefix_length", "net.CIDR -> int")],
    ),
    (
        "masked",
        |args| Ok(Value::Library(Library::Cidr(network(args)?.trunc()))),
        &[(".cidr_masked", "net.CIDR -> net.CIDR")],
    ),
];

fn parse_ip(text: &str) -> Result<IpAddr> {
    let quoted = quote(text);
    let address = address::parse(text).map_err(|why| {
        Error::new(format!(
            "IP Address {quoted} parse error during conversion from string: {why}"
        ))
    })?;
    if text.contains('%') {
        return Err(Error::new(format!(
            "IP address {quoted} with zone value is not allowed"
        )));
    }
    reject_mapped(address, text).map_err(Error::new)?;
    Ok(address)
}

fn reject_mapped(address: IpAddr, text: &str) -> Result<(), String> {
    match address {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => Err(format!(
            "IPv4-mapped IPv6 address {} is not allowed",
            quote(text)
        )),
        _ => Ok(()),
    }
}

fn parse_cidr(text: &str) -> Result<IpNet> {
    // Upstream repeats the prefix for unparsable text.
    const FAILED: &str = "network address parse error during conversion from string:";
    let network = address::parse_network(text)
        .map_err(|why| Error::new(format!("{FAILED} {FAILED} {why}")))?;
    reject_mapped(network.addr(), text).map_err(|why| Error::new(format!("{FAILED} {why}")))?;
    Ok(network)
}

fn address(args: &[Value<'_>]) -> Result<IpAddr> {
    match args.first() {
        Some(Value::Library(Library::Ip(address))) => Ok(*address),
        _ => Err(Error::no_such_overload()),
    }
}

fn network(args: &[Value<'_>]) -> Result<IpNet> {
    match args.first() {
        Some(Value::Library(Library::Cidr(network))) => Ok(*network),
        _ => Err(Error::no_such_overload()),
    }
}

pub(super) fn ip<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let address = parse_ip(string(args, 0)?)?;
    Ok(Value::Library(Library::Ip(address)))
}

/// `ip` as a member: only networks have it.
pub(super) fn member_ip<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(Value::Library(Library::Ip(network(args)?.addr())))
}

fn is_canonical<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let text = string(args, 0)?;
    Ok(Value::Bool(parse_ip(text)?.to_string() == **text))
}

fn link_local_multicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.octets()[..3] == [224, 0, 0],
        IpAddr::V6(v6) => v6.segments()[0] & 0xff0f == 0xff02,
    }
}

fn link_local_unicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.segments()[0] & 0xffc0 == 0xfe80,
    }
}

fn global_unicast(address: IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    !(address.is_unspecified()
        || address.is_loopback()
        || address.is_multicast()
        || broadcast
        || link_local_unicast(address))
}

fn cidr<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(Value::Library(Library::Cidr(parse_cidr(string(args, 0)?)?)))
}

fn contains_ip<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let other = match args.get(1) {
        Some(Value::Library(Library::Ip(address))) => *address,
        _ => parse_ip(string(args, 1)?).map_err(|_| Error::no_such_overload())?,
    };
    Ok(Value::Bool(network(args)?.contains(&other)))
}

fn contains_cidr<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let other = match args.get(1) {
        Some(Value::Library(Library::Cidr(network))) => *network,
        _ => parse_cidr(string(args, 1)?)?,
    };
    Ok(Value::Bool(network(args)?.contains(&other)))
}
