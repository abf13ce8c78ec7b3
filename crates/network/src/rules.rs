//! The nftables table of the pod network: host ports, and masquerading of traffic that leaves the
//! cluster. Pure: builds batches, applies nothing.

use ipnet::IpNet;

use crate::{host_ports, ipam::Record, names, nft::Batch, overlay::VXLAN_PORT};

/// The two address families in nftables' terms.
const FAMILIES: [(&str, &str, &str); 2] = [("4", "ip", "ipv4_addr"), ("6", "ip6", "ipv6_addr")];

/// The whole table, written from scratch.
pub(crate) fn full(
    id: &str,
    cluster_cidrs: &[IpNet],
    service_cidrs: &[IpNet],
    records: &[Record],
) -> Batch {
    let table = names::table(id);
    let mut batch = Batch::new();
    batch.replace_table("inet", &table);
    for (suffix, _, kind) in FAMILIES {
        let target = format!("{kind} . inet_service");
        for (map, key) in [
            ("hostports", "inet_proto . inet_service".to_owned()),
            (
                "hostports-at",
                format!("{kind} . inet_proto . inet_service"),
            ),
        ] {
            batch.push(format!(
                "add map inet {table} {map}{suffix} {{ type {key} : {target}; }}"
            ));
        }
        for set in ["hairpin", "itself"] {
            batch.push(format!(
                "add set inet {table} {set}{suffix} {{ type {kind} . {kind}; }}"
            ));
        }
    }
    chains(&mut batch, &table, cluster_cidrs);
    loopback(&mut batch, id);
    circles(&mut batch, &table, service_cidrs);
    sources(&mut batch, id, cluster_cidrs);
    overlay(&mut batch, id, cluster_cidrs);
    errors(&mut batch, id);
    host_ports::add_all(&mut batch, &table, records);
    batch
}

fn chains(batch: &mut Batch, table: &str, cluster_cidrs: &[IpNet]) {
    let mut rule = |text: String| batch.push(format!("add {text}"));
    for (chain, kind) in [
        ("prerouting", "{ type nat hook prerouting priority -110; }"),
        ("output", "{ type nat hook output priority -110; }"),
        ("postrouting", "{ type nat hook postrouting priority 100; }"),
        ("sources", "{ type filter hook prerouting priority -310; }"),
        ("hostports", ""),
    ] {
        rule(format!("chain inet {table} {chain} {kind}"));
    }
    for chain in ["prerouting", "output"] {
        rule(format!(
            "rule inet {table} {chain} fib daddr type local jump hostports"
        ));
    }
    for (suffix, family, _) in FAMILIES {
        let port = "meta l4proto . th dport";
        let protocol = if family == "ip" { "ipv4" } else { "ipv6" };
        let to = format!("rule inet {table} hostports meta nfproto {protocol} dnat {family} to");
        rule(format!(
            "{to} {family} daddr . {port} map @hostports-at{suffix}"
        ));
        rule(format!("{to} {port} map @hostports{suffix}"));
        rule(format!(
            "rule inet {table} postrouting ct status dnat {family} saddr . {family} daddr \
             @hairpin{suffix} masquerade fully-random"
        ));
        let inside: Vec<String> = cluster_cidrs
            .iter()
            .filter(|cidr| matches!(cidr, IpNet::V4(_)) == (family == "ip"))
            .map(ToString::to_string)
            .collect();
        if !inside.is_empty() {
            let multicast = if family == "ip" {
                "224.0.0.0/4"
            } else {
                "ff00::/8"
            };
            let inside = inside.join(", ");
            rule(format!(
                "rule inet {table} postrouting {family} saddr {{ {inside} }} \
                 {family} daddr != {{ {inside}, {multicast} }} oifname != \"lo\" \
                 masquerade fully-random"
            ));
        }
    }
}

/// Connections from 127.0.0.1 to a pod get the node's address as source; in return no pod may send
/// to the node's loopback, which its link would allow.
fn loopback(batch: &mut Batch, id: &str) {
    let (table, links) = (names::table(id), names::link_prefix(id));
    batch.push(format!(
        "add chain inet {table} loopback {{ type filter hook prerouting priority -300; }}"
    ));
    batch.push(format!(
        "add rule inet {table} loopback iifname \"{links}*\" ip daddr 127.0.0.0/8 counter drop"
    ));
    batch.push(format!(
        "add rule inet {table} postrouting oifname \"{links}*\" ip saddr 127.0.0.0/8 \
         masquerade fully-random"
    ));
}

/// The route of service addresses leads to the loopback link. A packet that was not translated, such as an answer without
/// a question, would come back from there and be sent there again until its time to live has ended.
fn circles(batch: &mut Batch, table: &str, service_cidrs: &[IpNet]) {
    for cidr in service_cidrs {
        let family = if cidr.addr().is_ipv4() { "ip" } else { "ip6" };
        batch.push(format!(
            "add rule inet {table} sources iifname \"lo\" {family} daddr {cidr} fib daddr type != local counter drop"
        ));
    }
}

/// A packet of a pod must have a source address that is routed to the pod's own link, and a packet
/// from outside, or from another node, must not have the address of a local pod. Checked before conntrack, so that no
/// forged packet becomes part of a connection. Pods have no use for link-local IPv6 sources, since
/// both sides of a link have permanent neighbour entries; a pod could choose a new one for each packet,
/// and each would take an entry of the node's neighbour table.
fn sources(batch: &mut Batch, id: &str, cluster_cidrs: &[IpNet]) {
    let (table, links) = (names::table(id), names::link_prefix(id));
    let overlay = names::vxlan_link(id);
    let mut rule = |text: String| batch.push(format!("add rule inet {table} sources {text}"));
    // The overlay's name begins like those of pod links.
    for cidr in cluster_cidrs {
        let family = if cidr.addr().is_ipv4() { "ip" } else { "ip6" };
        let packed = format!("iifname \"{overlay}\" {family} saddr {cidr}");
        rule(format!("{packed} fib saddr oifname \"{overlay}\" return"));
        rule(format!(
            "{packed} fib saddr oifname \"{links}*\" counter drop"
        ));
    }
    rule(format!("iifname \"{overlay}\" return"));
    rule(format!(
        "iifname \"{links}*\" fib saddr . iif oif missing counter drop"
    ));
    rule(format!(
        "iifname \"{links}*\" ip6 saddr fe80::/10 counter drop"
    ));
    for cidr in cluster_cidrs {
        let family = if cidr.addr().is_ipv4() { "ip" } else { "ip6" };
        let foreign = format!("iifname != {{ \"{links}*\", \"lo\" }} {family} saddr {cidr}");
        rule(format!("{foreign} fib saddr oifname \"{overlay}\" return"));
        rule(format!(
            "{foreign} fib saddr oifname \"{links}*\" counter drop"
        ));
    }
}

/// Pods may not send VXLAN packets to nodes: after decapsulation they would count as sent by the
/// pod in their inner header. Between pods the port is allowed.
fn overlay(batch: &mut Batch, id: &str, cluster_cidrs: &[IpNet]) {
    let (table, links) = (names::table(id), names::link_prefix(id));
    let packed = format!("udp dport {VXLAN_PORT} counter drop");
    let from_pods = format!("iifname \"{links}*\"");
    for hook in ["input", "forward"] {
        batch.push(format!(
            "add chain inet {table} overlay-{hook} {{ type filter hook {hook} priority -10; }}"
        ));
    }
    batch.push(format!(
        "add rule inet {table} overlay-input {from_pods} {packed}"
    ));
    for (_, family, _) in FAMILIES {
        let of_family = cluster_cidrs
            .iter()
            .filter(|cidr| cidr.addr().is_ipv4() == (family == "ip"));
        let inside: Vec<String> = of_family.map(ToString::to_string).collect();
        let to_nodes = match (inside.is_empty(), family) {
            (false, _) => format!("{family} daddr != {{ {} }}", inside.join(", ")),
            (true, "ip") => "meta nfproto ipv4".to_owned(),
            (true, _) => "meta nfproto ipv6".to_owned(),
        };
        batch.push(format!(
            "add rule inet {table} overlay-forward {from_pods} {to_nodes} {packed}"
        ));
    }
}

/// A pod may send ICMP errors only about its own connections. The kernel looks only at the connection that an error
/// quotes: with errors about those of others, a pod could end them or make their packets smaller, also those of the node.
/// Errors of pods of other nodes, which come from the overlay, were checked there.
fn errors(batch: &mut Batch, id: &str) {
    let (table, links) = (names::table(id), names::link_prefix(id));
    let overlay = names::vxlan_link(id);
    let mut add = |text: String| batch.push(format!("add {text}"));
    add(format!("chain inet {table} foreign-errors"));
    for (suffix, family, _) in FAMILIES {
        for end in ["original", "reply"] {
            add(format!(
                "rule inet {table} foreign-errors {family} saddr . ct {end} {family} saddr @itself{suffix} return"
            ));
        }
    }
    add(format!("rule inet {table} foreign-errors counter drop"));
    add(format!(
        "chain inet {table} errors {{ type filter hook prerouting priority -150; }}"
    ));
    add(format!(
        "rule inet {table} errors meta l4proto {{ 1, 58 }} iifname \"{links}*\" iifname != \"{overlay}\" \
         ct state related jump foreign-errors"
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_that_leaves_the_cluster_is_masqueraded() {
        let batch = full("0123abcd", &["10.42.0.0/16".parse().unwrap()], &[], &[]);
        assert!(batch.statements().iter().any(|statement| statement.ends_with(
            "ip saddr { 10.42.0.0/16 } ip daddr != { 10.42.0.0/16, 224.0.0.0/4 } oifname != \"lo\" masquerade fully-random"
        )));
    }
}
