//! The endpoints that a connection to a Service may reach.

use std::net::IpAddr;

use client::{Api, kube};
use k8s_openapi::api::{
    core::v1::{Pod, Service, ServicePort},
    discovery::v1::EndpointSlice,
};
use kube::{ResourceExt, api::ListParams};
use network::Protocol;

use super::{Server, end, of_pod};
use crate::{Answer, Result, question::Name, service};

/// An endpoint of a slice.
#[derive(Debug, PartialEq, Eq)]
struct Backend {
    address: IpAddr,
    port: u16,
    /// Namespace and name of its pod.
    pod: Option<(String, String)>,
}

/// The servers behind a port of the Service, or why there are none.
pub(super) async fn read(
    client: &kube::Client,
    namespace: &str,
    name: &str,
    port: &str,
    protocol: Option<Protocol>,
) -> Result<std::result::Result<Vec<Server>, Answer>> {
    let services: Api<Service> = Api::namespaced(client.clone(), namespace);
    let service = services.get(name).await?;
    let port = match find_port(&service, port, protocol) {
        Ok(port) => port,
        Err(answer) => return Ok(Err(answer)),
    };
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), namespace);
    let of_service = format!("kubernetes.io/service-name={name}");
    let slices = slices
        .list(&ListParams::default().labels(&of_service))
        .await?;
    let found = ready_backends(&slices, port);
    if found.is_empty() {
        let asked = Name {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let cause = service::answer(client, &asked).await?;
        let failed = Answer::new("fails: the Service has no ready endpoints");
        return Ok(Err(failed.because_of(cause)));
    }
    let protocol = Protocol::from_kubernetes(port.protocol.as_deref()).unwrap_or(Protocol::Tcp);
    let mut servers = Vec::new();
    for backend in found {
        let (name, end) = match &backend.pod {
            Some((namespace, name)) => {
                let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
                let pod = pods.get(name).await?;
                let end = of_pod(client, &pod, &[backend.address]).await?;
                (format!("pod/{name}"), end)
            }
            None => {
                let address = backend.address.to_string();
                let end = end(client, namespace, &address).await?;
                (address, end)
            }
        };
        servers.push(Server {
            name,
            end,
            protocol,
            port: backend.port,
        });
    }
    Ok(Ok(servers))
}

/// The port with this number or name.
fn find_port<'a>(
    service: &'a Service,
    port: &str,
    protocol: Option<Protocol>,
) -> std::result::Result<&'a ServicePort, Answer> {
    let name = format!("service/{}", service.name_any());
    let spec = service.spec.as_ref();
    if let Some(host) = spec.and_then(|spec| spec.external_name.as_deref()) {
        return Err(Answer::new(format!(
            "{name} is of type ExternalName for {host}: clients connect to an address of that name"
        )));
    }
    let ports = spec
        .and_then(|spec| spec.ports.as_deref())
        .unwrap_or_default();
    let is_meant = |known: &&ServicePort| {
        let of = Protocol::from_kubernetes(known.protocol.as_deref());
        let is_named = known.name.as_deref() == Some(port) || known.port.to_string() == port;
        is_named && protocol.is_none_or(|protocol| of == Some(protocol))
    };
    ports.iter().find(is_meant).ok_or_else(|| {
        let shown = |port: &ServicePort| {
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            match port.name.as_deref() {
                Some(name) => format!("{}/{protocol} ({name})", port.port),
                None => format!("{}/{protocol}", port.port),
            }
        };
        let shown: Vec<String> = ports.iter().map(shown).collect();
        Answer::new(format!("fails: {name} has no such port"))
            .because(format!("its ports are {}", shown.join(", ")))
    })
}

/// The ready endpoints of a port. Unnamed ports have an empty name in slices.
fn ready_backends(slices: &[EndpointSlice], port: &ServicePort) -> Vec<Backend> {
    let wanted = port.name.as_deref().unwrap_or_default();
    let mut found = Vec::new();
    for slice in slices {
        let mut ports = slice.ports.iter().flatten();
        let number = ports
            .find(|port| port.name.as_deref().unwrap_or_default() == wanted)
            .and_then(|port| port.port.and_then(|number| u16::try_from(number).ok()));
        let Some(port) = number else { continue };
        for endpoint in slice.endpoints.iter().flatten() {
            let conditions = endpoint.conditions.as_ref();
            let is_ready = conditions.is_none_or(|conditions| conditions.ready != Some(false));
            let address = endpoint
                .addresses
                .first()
                .and_then(|address| address.parse().ok());
            let (true, Some(address)) = (is_ready, address) else {
                continue;
            };
            let target = endpoint.target_ref.as_ref();
            let target = target.filter(|target| target.kind.as_deref() == Some("Pod"));
            let pod =
                target.and_then(|target| Some((target.namespace.clone()?, target.name.clone()?)));
            found.push(Backend { address, port, pod });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service() -> Service {
        serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": {"ports": [
            {"name": "http", "port": 80}, {"name": "dns", "port": 53, "protocol": "UDP"}]}}))
        .unwrap()
    }

    #[test]
    fn a_port_is_found_by_number_or_name_and_others_are_listed() {
        let service = service();
        assert_eq!(find_port(&service, "80", None).unwrap().port, 80);
        assert_eq!(find_port(&service, "dns", None).unwrap().port, 53);
        for (port, protocol) in [("81", None), ("53", Some(Protocol::Tcp))] {
            let text = find_port(&service, port, protocol).unwrap_err().to_string();
            let expected = "its ports are 80/TCP (http), 53/UDP (dns)";
            assert!(text.contains(expected), "{text}");
        }
        let external = json!({"spec": {"externalName": "a.b"}});
        let external = serde_json::from_value(external).unwrap();
        let text = find_port(&external, "80", None).unwrap_err().to_string();
        assert!(text.contains("ExternalName for a.b"), "{text}");
    }

    #[test]
    fn ready_endpoints_have_the_target_port_and_their_pod() {
        let slices = json!([{"addressType": "IPv4", "ports": [{"name": "http", "port": 8080}], "endpoints": [
            {"addresses": ["10.0.0.1"], "conditions": {"ready": true}, "targetRef": {"kind": "Pod", "namespace": "shop", "name": "a"}},
            {"addresses": ["10.0.0.2"], "conditions": {"ready": false}}, {"addresses": ["10.0.0.3"]}]}]);
        let slices: Vec<EndpointSlice> = serde_json::from_value(slices).unwrap();
        let service = service();
        let of = |port: &str| ready_backends(&slices, find_port(&service, port, None).unwrap());
        let backend = |address: &str, pod: Option<&str>| Backend {
            address: address.parse().unwrap(),
            port: 8080,
            pod: pod.map(|name| ("shop".to_owned(), name.to_owned())),
        };
        let expected = [backend("10.0.0.1", Some("a")), backend("10.0.0.3", None)];
        assert_eq!(of("http"), expected);
        assert_eq!(of("dns"), []);
    }
}
