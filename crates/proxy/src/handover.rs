//! Connections that outlive the move of a load balancer address to another node. The new announcer gets their packets,
//! but only the former one knows their endpoints: TCP packets that belong to no connection of this node, and begin none,
//! are passed on to it, unchanged and over the link that both share. Replies go directly to the client.
//!
//! Only while the former announcer is Ready: otherwise clients notice by a reset that the connection is lost. Tables of
//! their own, since only those of one family can do it; without them (a kernel without the expression) nothing else
//! is missing.

use std::{collections::BTreeMap, net::IpAddr};

use k8s_openapi::api::core::v1::Node;
use network::{
    announce::SharedLink,
    names,
    nft::{Batch, Nft},
};
use tracing::warn;

/// The former announcers' addresses by load balancer address.
pub(crate) type Formers = BTreeMap<IpAddr, IpAddr>;

/// The tables as they were last written.
pub(crate) struct Handover {
    table: String,
    node_ips: Vec<IpAddr>,
    written: Option<Formers>,
}

/// The address of a Ready node in one family.
pub(crate) fn address_of(node: &Node, v4: bool) -> Option<IpAddr> {
    let status = node.status.as_ref()?;
    let mut conditions = status.conditions.iter().flatten();
    let is_ready = conditions.any(|one| one.type_ == "Ready" && one.status == "True");
    let addresses = status.addresses.iter().flatten();
    let mut addresses = addresses.filter(|one| one.type_ == "InternalIP");
    let parsed = addresses.find_map(|one| {
        one.address
            .parse()
            .ok()
            .filter(|ip: &IpAddr| ip.is_ipv4() == v4)
    });
    parsed.filter(|_| is_ready)
}

/// Writes both tables, or removes those that are not needed.
fn batch(table: &str, link: Option<&SharedLink>, formers: &Formers) -> Batch {
    let mut batch = Batch::new();
    for (family, kind, v4) in [("ip", "ipv4_addr", true), ("ip6", "ipv6_addr", false)] {
        // A router would send the packets back here.
        let near = formers.iter().filter(|(address, former)| {
            address.is_ipv4() == v4 && link.is_some_and(|link| link.reaches(**former))
        });
        let elements: Vec<String> = near
            .map(|(ip, former)| format!("{ip} : {former}"))
            .collect();
        let (Some(link), false) = (link, elements.is_empty()) else {
            batch.push(format!("add table {family} {table}"));
            batch.push(format!("delete table {family} {table}"));
            continue;
        };
        let (name, elements) = (&link.name, elements.join(", "));
        batch.replace_table(family, table);
        batch.push(format!(
            "add map {family} {table} former {{ type {kind} : {kind}; }}"
        ));
        batch.push(format!(
            "add chain {family} {table} prerouting {{ type filter hook prerouting priority -150; policy accept; }}"
        ));
        batch.push(format!(
            "add rule {family} {table} prerouting iifname \"{name}\" tcp flags & syn == 0 ct state new,invalid \
             dup to {family} daddr map @former device \"{name}\" drop"
        ));
        batch.push(format!(
            "add element {family} {table} former {{ {elements} }}"
        ));
    }
    batch
}

impl Handover {
    /// For the cluster with this id; `node_ips` determine the link.
    pub(crate) fn new(id: &str, node_ips: &[IpAddr]) -> Self {
        Self {
            table: names::table_of(id, "handover"),
            node_ips: node_ips.to_vec(),
            written: None,
        }
    }

    /// Writes the tables if they are other ones than before.
    pub(crate) async fn set(&mut self, nft: &Nft, formers: Formers) {
        if self.node_ips.is_empty() || self.written.as_ref() == Some(&formers) {
            return;
        }
        let link = match formers.is_empty() {
            true => Ok(None),
            false => SharedLink::find(&self.node_ips).await,
        };
        let written = match link {
            Ok(link) => {
                nft.apply(&batch(&self.table, link.as_ref(), &formers))
                    .await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = written {
            warn!(%error, "connections to load balancer addresses that moved here are lost");
        }
        self.written = Some(formers);
    }

    /// Forgets what was written, so that it is written again.
    pub(crate) fn forget(&mut self) {
        self.written = None;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn formers(pairs: &[(&str, &str)]) -> Formers {
        let parse =
            |(address, former): &(&str, &str)| (address.parse().unwrap(), former.parse().unwrap());
        pairs.iter().map(parse).collect()
    }

    #[test]
    fn packets_are_passed_on_only_to_neighbours_and_in_their_family() {
        let link = SharedLink {
            name: "eth0".to_owned(),
            networks: vec![
                "192.0.2.0/24".parse().unwrap(),
                "fd00::/64".parse().unwrap(),
            ],
        };
        for (pairs, elements) in [
            (&[][..], &[][..]),
            (
                &[("192.0.2.77", "192.0.2.3")],
                &["ip t former { 192.0.2.77 : 192.0.2.3 }"],
            ),
            (
                &[
                    ("192.0.2.77", "192.0.2.3"),
                    ("fd00::77", "fd00::3"),
                    ("192.0.2.78", "192.0.2.3"),
                ],
                &[
                    "ip t former { 192.0.2.77 : 192.0.2.3, 192.0.2.78 : 192.0.2.3 }",
                    "ip6 t former { fd00::77 : fd00::3 }",
                ],
            ),
            // Behind a router.
            (&[("192.0.2.77", "198.51.100.3")], &[]),
        ] {
            let batch = batch("t", Some(&link), &formers(pairs));
            let found: Vec<&str> = batch
                .statements()
                .iter()
                .filter_map(|statement| statement.strip_prefix("add element "))
                .collect();
            assert_eq!(found, elements, "{pairs:?}");
            let removed = batch
                .statements()
                .iter()
                .filter(|statement| statement.starts_with("delete table"));
            assert_eq!(removed.count(), 2, "each table is removed or replaced");
        }
    }

    #[test]
    fn a_node_that_is_not_ready_has_no_connections() {
        let node = |ready: &str| -> Node {
            serde_json::from_value(json!({"status": {
                "conditions": [{"type": "Ready", "status": ready}],
                "addresses": [{"type": "Hostname", "address": "a"}, {"type": "InternalIP", "address": "fd00::3"},
                              {"type": "InternalIP", "address": "192.0.2.3"}]}}))
            .unwrap()
        };
        let shown = |node: &Node, v4| address_of(node, v4).map(|ip| ip.to_string());
        assert_eq!(shown(&node("True"), true).as_deref(), Some("192.0.2.3"));
        assert_eq!(shown(&node("True"), false).as_deref(), Some("fd00::3"));
        assert_eq!(shown(&node("Unknown"), true), None);
    }
}
