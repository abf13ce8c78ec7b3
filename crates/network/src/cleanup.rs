//! Removes everything from the machine that has a cluster's id in its name: links, routes, tables.

use rtnetlink::packet_route::route::RouteMessage;

use crate::{
    Error, Result, firewalls, links, names,
    netns::{Netlink, answered},
    nft::{self, Batch, Nft},
    routes,
};

/// Removes all links, routes and tables of cluster `id` in the caller's network namespace. Changed
/// sysctls stay.
pub async fn cleanup(id: &str) -> Result<()> {
    let netlink = Netlink::here()?;
    let prefix = names::link_prefix(id);
    for (index, name) in answered("list links", links::with_prefix(&netlink, &prefix)).await? {
        let action = format!("remove link {name}");
        let removed = async {
            match netlink.handle.link().del(index).execute().await {
                Err(rtnetlink::Error::NetlinkError(error)) if links::is(&error, libc::ENODEV) => {
                    Ok(())
                }
                other => other.map_err(Error::netlink(&action)),
            }
        };
        answered(&action, removed).await?;
    }
    for (cidr, route) in answered("list routes", routes::tagged(&netlink, id)).await? {
        let cidr = cidr.to_string();
        answered("remove a route", remove_route(&netlink, route, &cidr)).await?;
    }
    let tables = nft::tables().await?;
    let mut batch = Batch::new();
    firewalls::remove(&mut batch, id, &tables).await?;
    for table in tables_of(&tables, id) {
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

/// The tables that belong to the cluster.
fn tables_of<'a>(tables: &'a [String], id: &str) -> Vec<&'a str> {
    let own = names::table(id);
    let part = names::table_of(id, "");
    let is_ours = |table: &&str| {
        let name = table.split_whitespace().nth(1).unwrap_or_default();
        name == own || name.starts_with(&part)
    };
    tables.iter().map(String::as_str).filter(is_ours).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_tables_of_the_cluster_are_found() {
        let tables = [
            "ip filter",
            "inet mainstay-0123abcd",
            "inet mainstay-0123abcd-services",
            "inet mainstay-0123abce",
        ]
        .map(str::to_owned);
        assert_eq!(
            tables_of(&tables, "0123abcd"),
            ["inet mainstay-0123abcd", "inet mainstay-0123abcd-services"]
        );
    }
}
