//! Coexistence with other firewalls. A packet passes only if every firewall accepts it: Docker and
//! ufw drop unknown forwarded packets, ufw and firewalld also packets from pods to their node, such
//! as DNS queries. Each has a chain where others may accept packets, and we accept those of the
//! links of this cluster's pods. Network policies are separate, in our own tables and earlier.
//!
//! Our rules have the cluster's name as a comment, by which they are found again.

use crate::{
    Result, names,
    nft::{self, Batch, Nft},
};

/// A chain of another firewall.
struct ForeignChain {
    /// The family and name of its table.
    table: &'static str,
    chain: &'static str,
    /// The directions in which the link is ours.
    links: &'static [&'static str],
}

const FORWARD: &[&str] = &["iifname", "oifname"];
const INPUT: &[&str] = &["iifname"];

const fn foreign_chain(
    table: &'static str,
    chain: &'static str,
    links: &'static [&'static str],
) -> ForeignChain {
    ForeignChain {
        table,
        chain,
        links,
    }
}

/// All known chains.
const ALL: &[ForeignChain] = &[
    foreign_chain("ip filter", "DOCKER-USER", FORWARD),
    foreign_chain("ip6 filter", "DOCKER-USER", FORWARD),
    foreign_chain("ip filter", "ufw-user-forward", FORWARD),
    foreign_chain("ip filter", "ufw-user-input", INPUT),
    foreign_chain("ip6 filter", "ufw6-user-forward", FORWARD),
    foreign_chain("ip6 filter", "ufw6-user-input", INPUT),
    foreign_chain("inet firewalld", "filter_FORWARD", FORWARD),
    foreign_chain("inet firewalld", "filter_INPUT", INPUT),
];

/// Adds our rules to the firewalls that exist.
pub(crate) async fn pass(nft: &Nft, id: &str, tables: &[String]) -> Result<()> {
    let links = names::link_prefix(id);
    let mut batch = Batch::new();
    for chain in present(tables) {
        let Some(listing) = chain.listing().await? else {
            continue;
        };
        if !handles(&listing, id).is_empty() {
            continue;
        }
        for side in chain.links {
            batch.push(format!(
                "insert rule {} {} {side} \"{links}*\" accept comment \"{}\"",
                chain.table,
                chain.chain,
                names::table(id)
            ));
        }
    }
    nft.apply(&batch).await
}

/// Adds the removal of our rules to a batch.
pub(crate) async fn remove(batch: &mut Batch, id: &str, tables: &[String]) -> Result<()> {
    for chain in present(tables) {
        let Some(listing) = chain.listing().await? else {
            continue;
        };
        for handle in handles(&listing, id) {
            let (table, chain) = (chain.table, chain.chain);
            batch.push(format!("delete rule {table} {chain} handle {handle}"));
        }
    }
    Ok(())
}

fn present(tables: &[String]) -> impl Iterator<Item = &'static ForeignChain> {
    ALL.iter()
        .filter(|chain| tables.iter().any(|table| table == chain.table))
}

impl ForeignChain {
    async fn listing(&self) -> Result<Option<String>> {
        let table = self.table.split(' ');
        let arguments: Vec<&str> = ["-a", "list", "chain"]
            .into_iter()
            .chain(table)
            .chain([self.chain])
            .collect();
        nft::list(&arguments).await
    }
}

/// The handles of rules with our comment.
fn handles(listing: &str, id: &str) -> Vec<u64> {
    let comment = format!("comment \"{}\"", names::table(id));
    let ours = listing.lines().filter(|line| line.contains(&comment));
    ours.filter_map(|line| line.rsplit_once("# handle ")?.1.trim().parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rules_with_our_comment_are_ours() {
        let listing = "\tchain DOCKER-USER { # handle 3\n\
            \t\tiifname \"m0123abcd*\" accept comment \"mainstay-0123abcd\" # handle 12\n\
            \t\tiifname \"m0123abce*\" accept comment \"mainstay-0123abce\" # handle 13\n\
            \t\tcounter packets 0 bytes 0 return # handle 4\n";
        assert_eq!(handles(listing, "0123abcd"), [12]);
    }
}
