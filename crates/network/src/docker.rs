//! Living beside Docker: it drops every forwarded packet that it does not know. Its `DOCKER-USER`
//! chain is where others may accept theirs, and ours are the links of this cluster's pods.
//!
//! Rules there carry the cluster's name as a comment, by which they are found again.

use crate::{
    Result, names,
    nft::{self, Batch, Nft},
};

const CHAIN: &str = "DOCKER-USER";
const FAMILIES: [&str; 2] = ["ip", "ip6"];

/// Makes sure that Docker, if it is here, lets pods through.
pub async fn pass(nft: &Nft, id: &str, tables: &[String]) -> Result<()> {
    let links = names::link_prefix(id);
    let mut batch = Batch::new();
    for family in with_filter(tables) {
        let Some(listing) = listing(family).await? else {
            continue;
        };
        if !handles(&listing, id).is_empty() {
            continue;
        }
        for direction in ["iifname", "oifname"] {
            batch.push(format!(
                "insert rule {family} filter {CHAIN} {direction} \"{links}*\" accept comment \"{}\"",
                names::table(id)
            ));
        }
    }
    nft.apply(&batch).await
}

/// Adds the removal of our rules to a batch.
pub async fn remove(batch: &mut Batch, id: &str, tables: &[String]) -> Result<()> {
    for family in with_filter(tables) {
        let Some(listing) = listing(family).await? else {
            continue;
        };
        for handle in handles(&listing, id) {
            batch.push(format!(
                "delete rule {family} filter {CHAIN} handle {handle}"
            ));
        }
    }
    Ok(())
}

fn with_filter(tables: &[String]) -> impl Iterator<Item = &'static str> {
    FAMILIES
        .into_iter()
        .filter(|family| tables.contains(&format!("{family} filter")))
}

async fn listing(family: &str) -> Result<Option<String>> {
    nft::list(&["-a", "list", "chain", family, "filter", CHAIN]).await
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
