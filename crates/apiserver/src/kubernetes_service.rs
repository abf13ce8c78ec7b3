//! The Service `kubernetes` and its endpoints: all live servers. Servers on different ports are in
//! separate EndpointSlices, because a slice has one port for all of its addresses; the slice of the
//! lowest port has the plain name.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use http::Method;
use kinds::tree;
use machinery::json::json;
use machinery::{Status, Value};
use request::Client;

use crate::{
    LocalService,
    bootstrap::{Bootstrap, RequiredObject, create_or_correct},
};

const NAME: &str = "kubernetes";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";

/// The addresses of servers by their ports.
type Groups = BTreeMap<u16, Vec<String>>;

fn groups(servers: &BTreeSet<SocketAddr>) -> Groups {
    let mut groups = Groups::new();
    for server in servers {
        let addresses = groups.entry(server.port()).or_default();
        addresses.push(server.ip().to_string());
    }
    groups
}

/// The slice of each group, by its name.
fn slice_names(groups: &Groups) -> BTreeMap<String, u16> {
    let name = |(place, port): (usize, &u16)| match place {
        0 => (NAME.to_owned(), *port),
        _ => (format!("{NAME}-{port}"), *port),
    };
    groups.keys().enumerate().map(name).collect()
}

/// Writes these servers' addresses into the Service's endpoints.
pub(crate) async fn repair(
    bootstrap: &Bootstrap,
    servers: &BTreeSet<SocketAddr>,
) -> Result<(), Status> {
    let advertise = bootstrap.state.advertise();
    let groups = groups(servers);
    let own = bootstrap
        .state
        .port
        .get()
        .copied()
        .unwrap_or(advertise.port());
    let port = groups.keys().next().copied().unwrap_or(own);
    let Some((base, _)) = bootstrap.service_cidrs.first() else {
        return Ok(());
    };
    create_or_correct(
        bootstrap,
        service(first(*base), port),
        &[&["spec", "ports"]],
    )
    .await?;
    if advertise.ip().is_loopback() {
        // A loopback address is of no use to clients elsewhere.
        return Ok(());
    }
    create_or_correct(bootstrap, endpoints(&groups), &[&["subsets"]]).await?;
    let family = if advertise.is_ipv4() { "IPv4" } else { "IPv6" };
    let names = slice_names(&groups);
    for (name, port) in &names {
        let wanted = slice(name, family, *port, &groups[port]);
        create_or_correct(bootstrap, wanted, &[&["endpoints"], &["ports"]]).await?;
    }
    if let Err(why) = remove_stale(&bootstrap.api, &names).await {
        // The next repair retries.
        tracing::warn!(why, "cannot remove EndpointSlices of stopped API servers");
    }
    Ok(())
}

fn service(address: IpAddr, port: u16) -> RequiredObject {
    let ports = json!([{"name": "https", "protocol": "TCP", "port": 443, "targetPort": port}]);
    let object = json!({
        "metadata": {
            "name": NAME, "namespace": "default",
            "labels": {"component": "apiserver", "provider": "kubernetes"},
        },
        "spec": {
            "type": "ClusterIP", "clusterIP": address.to_string(), "ports": ports,
            "sessionAffinity": "None",
        },
    });
    RequiredObject {
        group: "",
        plural: "services",
        object,
    }
}

fn endpoints(groups: &Groups) -> RequiredObject {
    let subset = |(port, ips): (&u16, &Vec<String>)| {
        let addresses: Vec<Value> = ips.iter().map(|ip| json!({"ip": ip})).collect();
        json!({
            "addresses": addresses,
            "ports": [{"name": "https", "port": *port, "protocol": "TCP"}],
        })
    };
    let subsets: Vec<Value> = groups.iter().map(subset).collect();
    let object = json!({
        "metadata": {
            "name": NAME, "namespace": "default",
            "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"},
        },
        "subsets": subsets,
    });
    RequiredObject {
        group: "",
        plural: "endpoints",
        object,
    }
}

fn slice(name: &str, family: &str, port: u16, ips: &[String]) -> RequiredObject {
    let endpoint = |ip: &String| json!({"addresses": [ip], "conditions": {"ready": true}});
    let each: Vec<Value> = ips.iter().map(endpoint).collect();
    let object = json!({
        "metadata": {
            "name": name, "namespace": "default",
            "labels": {"kubernetes.io/service-name": NAME},
        },
        "addressType": family,
        "endpoints": each,
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    });
    RequiredObject {
        group: "discovery.k8s.io",
        plural: "endpointslices",
        object,
    }
}

/// Deletes the slices of ports that no server has any more.
async fn remove_stale(api: &LocalService, names: &BTreeMap<String, u16>) -> Result<(), String> {
    let list = format!("{SLICES}?labelSelector=kubernetes.io%2Fservice-name%3D{NAME}");
    let (status, list) = api.ask(Method::GET, &list, None).await?;
    if !status.is_success() {
        return Err(tree::text(tree::get(&list, "message")).to_owned());
    }
    for slice in tree::list(tree::get(&list, "items")) {
        let name = tree::text(&slice["metadata"]["name"]);
        let port = name.strip_prefix("kubernetes-");
        let is_ours = port.is_some_and(|port| port.parse::<u16>().is_ok());
        if is_ours && !names.contains_key(name) {
            // A slice that another server deletes at the same time is not an error.
            api.ask(Method::DELETE, &format!("{SLICES}/{name}"), None)
                .await?;
        }
    }
    Ok(())
}

/// The first address of a network.
fn first(base: IpAddr) -> IpAddr {
    match base {
        IpAddr::V4(base) => std::net::Ipv4Addr::from_bits(base.to_bits() + 1).into(),
        IpAddr::V6(base) => std::net::Ipv6Addr::from_bits(base.to_bits() + 1).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_on_different_ports_have_slices_of_their_own() {
        let servers = ["192.0.2.1:6443", "192.0.2.2:6443", "192.0.2.3:7443"];
        let servers = servers.map(|text| text.parse().unwrap());
        let groups = groups(&BTreeSet::from(servers));
        let names = slice_names(&groups);
        let expected = [("kubernetes", 6443), ("kubernetes-7443", 7443)];
        let expected = expected.map(|(name, port)| (name.to_owned(), port));
        assert_eq!(names, BTreeMap::from(expected));
        let subsets = endpoints(&groups).object["subsets"].clone();
        assert_eq!(subsets[0]["addresses"].as_array().map(Vec::len), Some(2));
        assert_eq!(subsets[1]["ports"][0]["port"], 7443);
        let slice = slice("kubernetes-7443", "IPv4", 7443, &groups[&7443]).object;
        assert_eq!(slice["endpoints"][0]["addresses"][0], "192.0.2.3");
    }
}
