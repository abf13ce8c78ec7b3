//! The nftables rules of the overlay: the source address of this node's own packets, and which
//! machines may send overlay packets to this node.
//!
//! VXLAN has no authentication. Without these rules any machine that reaches the port could send
//! packets to pods with the addresses of other pods, past network policies.

use std::{collections::BTreeSet, net::IpAddr};

use tokio::sync::Mutex;

use crate::{
    Result, names,
    nft::{Batch, Nft},
    overlay::VXLAN_PORT,
    routes::Config,
};

/// Keeps the overlay's table.
pub(crate) struct Table {
    name: String,
    nft: Nft,
    /// Guards the rules that were written last; held while they are written.
    written: Mutex<Option<Batch>>,
}

impl Table {
    pub(crate) fn new(id: &str, nft: Nft) -> Self {
        Self {
            name: names::table_of(id, "overlay"),
            nft,
            written: Mutex::default(),
        }
    }

    /// Writes the rules if they have changed. `senders` are the addresses of the other nodes.
    pub(crate) async fn sync(
        &self,
        config: &Config,
        device: &str,
        senders: &BTreeSet<IpAddr>,
    ) -> Result<()> {
        let rules = rules(&self.name, config, device, senders);
        let mut written = self.written.lock().await;
        if written.as_ref() != Some(&rules) {
            self.nft.apply(&rules).await?;
            *written = Some(rules);
        }
        Ok(())
    }

    /// Writes the rules again if another program has changed or removed them.
    pub(crate) async fn repair(&self) -> Result<()> {
        let written = self.written.lock().await;
        let Some(rules) = written.as_ref() else {
            return Ok(());
        };
        if let Some(full) = self.nft.find_drift(&self.name, || rules.clone()).await? {
            self.nft.apply(&full).await?;
        }
        Ok(())
    }
}

fn rules(table: &str, config: &Config, device: &str, senders: &BTreeSet<IpAddr>) -> Batch {
    let mut batch = Batch::new();
    batch.replace_table("inet", table);
    batch.push(format!(
        "add chain inet {table} postrouting {{ type nat hook postrouting priority 101; }}"
    ));
    // This node's own packets into the overlay must have the device's address as source; otherwise
    // the reply would take another way.
    for cidr in &config.cluster_cidrs {
        let family = if cidr.addr().is_ipv4() { "ip" } else { "ip6" };
        batch.push(format!(
            "add rule inet {table} postrouting oifname \"{device}\" {family} saddr != {cidr} \
             masquerade fully-random"
        ));
    }
    batch.push(format!(
        "add chain inet {table} input {{ type filter hook input priority 0; policy accept; }}"
    ));
    // Only this cluster's network identifier: the port may also be used by others. It is at bits
    // 32 to 55 of the VXLAN header, which follows the 64 bits of the UDP header.
    let identifier = names::vni(&config.cluster);
    let (four, six): (Vec<IpAddr>, Vec<IpAddr>) = senders.iter().partition(|ip| ip.is_ipv4());
    for (family, kind, senders) in [("ip", "ipv4_addr", four), ("ip6", "ipv6_addr", six)] {
        let set = format!("{family}_nodes");
        batch.push(format!("add set inet {table} {set} {{ type {kind}; }}"));
        let senders: Vec<String> = senders.iter().map(ToString::to_string).collect();
        if !senders.is_empty() {
            let senders = senders.join(", ");
            batch.push(format!("add element inet {table} {set} {{ {senders} }}"));
        }
        batch.push(format!(
            "add rule inet {table} input udp dport {VXLAN_PORT} @th,96,24 {identifier:#x} \
             {family} saddr != @{set} drop"
        ));
    }
    batch
}
