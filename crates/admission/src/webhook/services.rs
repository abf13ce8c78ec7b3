//! Backends of a Service: a random ready endpoint. So no cluster IP routing is needed, also on a
//! machine that is not a node.

use std::net::IpAddr;

use async_trait::async_trait;
use kinds::tree;
use machinery::{Object, Status, Value};
use rand::seq::IndexedRandom;
use webhook::Services;

use crate::Reader;

/// Finds endpoints in the store.
pub struct Endpoints {
    reader: Reader,
}

impl Endpoints {
    pub fn new(reader: Reader) -> Self {
        Self { reader }
    }
}

#[async_trait]
impl Services for Endpoints {
    async fn resolve(
        &self,
        namespace: &str,
        name: &str,
        port: u16,
    ) -> Result<(String, u16), String> {
        let failed = |status: Status| status.message;
        let service = self.reader.get("", "services", namespace, name);
        let service = service.await.map_err(failed)?;
        let service = service.ok_or_else(|| format!("service {name:?} not found"))?;
        let service = service.parse();
        let port_name = match route(&service, port)? {
            Route::External(host) => return Ok((host, port)),
            Route::Port(port_name) => port_name,
        };
        let slices = self
            .reader
            .list("discovery.k8s.io", "endpointslices", namespace);
        let (_, slices) = slices.await.map_err(failed)?;
        let own = |slice: &&std::sync::Arc<crate::Stored>| {
            slice.label("kubernetes.io/service-name") == Some(name)
        };
        let slices: Vec<Object> = slices
            .iter()
            .filter(own)
            .map(|slice| slice.parse())
            .collect();
        let ready = ready(&slices, &port_name);
        let chosen = ready.choose(&mut rand::rng()).cloned();
        chosen.ok_or_else(|| format!("no endpoints available for service {name:?}"))
    }
}

/// How a Service is reached.
#[derive(Debug, PartialEq)]
enum Route {
    /// By an external name.
    External(String),
    /// By endpoints with a port of this name.
    Port(String),
}

fn route(service: &Object, port: u16) -> Result<Route, String> {
    let spec = tree::get(service, "spec");
    match tree::text(&spec["type"]) {
        "ExternalName" => {
            return Ok(Route::External(
                tree::text(&spec["externalName"]).to_owned(),
            ));
        }
        "" | "ClusterIP" | "NodePort" | "LoadBalancer" => {}
        other => return Err(format!("unsupported service type {other:?}")),
    }
    let mut ports = tree::list(&spec["ports"]).iter();
    let found = ports.find(|known| known["port"].as_u64() == Some(port.into()));
    match found {
        Some(found) => Ok(Route::Port(tree::text(&found["name"]).to_owned())),
        None => Err(format!(
            "no service port {port} found for service {:?}",
            tree::name(service)
        )),
    }
}

/// Ready addresses with a port. Slices of the type FQDN are ignored, as by a proxy: with a name, an author of slices
/// could direct requests to this machine.
fn ready(slices: &[Object], port_name: &str) -> Vec<(String, u16)> {
    let of_slice = |slice: &Object| {
        let mut ports = tree::list(tree::get(slice, "ports")).iter();
        let port = ports.find(|port| tree::text(&port["name"]) == port_name);
        let port = port.and_then(|port| u16::try_from(port["port"].as_u64()?).ok());
        let endpoints = tree::list(tree::get(slice, "endpoints")).iter();
        let endpoints = endpoints.filter(|one| one["conditions"]["ready"] != Value::Bool(false));
        let addresses = endpoints.filter_map(|one| one["addresses"][0].as_str());
        let addresses = addresses.filter(|address| address.parse::<IpAddr>().is_ok());
        let addresses = addresses.filter_map(|address| Some((address.to_owned(), port?)));
        addresses.collect::<Vec<_>>()
    };
    slices.iter().flat_map(of_slice).collect()
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;
    use crate::testing::object;

    #[test]
    fn a_service_leads_to_its_ready_endpoints() {
        let service = object(
            json!({"metadata": {"name": "s"}, "spec": {"type": "ClusterIP",
            "ports": [{"name": "a", "port": 443, "targetPort": 8443}]}}),
        );
        assert_eq!(route(&service, 443), Ok(Route::Port("a".to_owned())));
        assert_eq!(
            route(&service, 1),
            Err("no service port 1 found for service \"s\"".to_owned())
        );
        let slice = object(
            json!({"ports": [{"name": "a", "port": 8443}, {"name": "b", "port": 1}],
            "endpoints": [
                {"addresses": ["10.0.0.1"], "conditions": {"ready": true}},
                {"addresses": ["10.0.0.2"], "conditions": {"ready": false}},
                {"addresses": ["10.0.0.3"]}, {"addresses": ["localhost"]}]}),
        );
        let found = ready(&[slice], "a");
        let expected = [("10.0.0.1".to_owned(), 8443), ("10.0.0.3".to_owned(), 8443)];
        assert_eq!(found, expected);
        let external = object(json!({"spec": {"type": "ExternalName", "externalName": "x.y"}}));
        assert_eq!(route(&external, 443), Ok(Route::External("x.y".to_owned())));
    }
}
