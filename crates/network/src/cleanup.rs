//! Takes everything off the machine that carries a cluster's id: links, routes, tables.

use rtnetlink::packet_route::route::RouteMessage;
use tokio::process::Command;

use crate::{
    Error, Result, links, names,
    netns::Netlink,
    nft::{Batch, Nft},
    routes,
};

/// Removes all links, routes and tables of cluster `id` in the caller's network namespace. Sysctls
/// that were changed stay.
pub async fn cleanup(id: &str) -> Result<()> {
    let netlink = Netlink::here()?;
    for (index, name) in links::with_prefix(&netlink, &names::link_prefix(id)).await? {
        match netlink.handle.link().del(index).execute().await {
            Err(rtnetlink::Error::NetlinkError(error)) if links::is(&error, libc::ENODEV) => {}
            other => other.map_err(Error::netlink(format!("remove link {name}")))?,
        }
    }
    for (cidr, route) in routes::tagged(&netlink, id).await? {
        remove_route(&netlink, route, &cidr.to_string()).await?;
    }
    let mut batch = Batch::new();
    for table in tables(id).await? {
        batch.push(format!("delete table {table}"));
    }
    Nft::new().apply(&batch).await
}

async fn remove_route(netlink: &Netlink, route: RouteMessage, cidr: &str) -> Result<()> {
    match netlink.handle.route().del(route).execute().await {
        Err(rtnetlink::Error::NetlinkError(error)) if links::is(&error, libc::ESRCH) => Ok(()),
        other => other.map_err(Error::netlink(format!("remove route {cidr}"))),
    }
}

/// Family and name of the cluster's tables.
async fn tables(id: &str) -> Result<Vec<String>> {
    let output = Command::new("nft")
        .args(["list", "tables"])
        .output()
        .await
        .map_err(|error| Error::NftSession(format!("cannot run nft: {error}")))?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(Error::NftRefused { message });
    }
    Ok(tables_in(&String::from_utf8_lossy(&output.stdout), id))
}

fn tables_in(listing: &str, id: &str) -> Vec<String> {
    let own = names::table(id);
    let part = names::table_of(id, "");
    let names = listing
        .lines()
        .filter_map(|line| line.strip_prefix("table "));
    names
        .filter(|table| {
            let name = table.split_whitespace().nth(1).unwrap_or_default();
            name == own || name.starts_with(&part)
        })
        .map(ToOwned::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_tables_of_the_cluster_are_found() {
        let listing = "table ip filter\ntable inet mainstay-0123abcd\n\
                       table inet mainstay-0123abcd-services\ntable inet mainstay-0123abce\n";
        assert_eq!(
            tables_in(listing, "0123abcd"),
            ["inet mainstay-0123abcd", "inet mainstay-0123abcd-services"]
        );
    }
}
