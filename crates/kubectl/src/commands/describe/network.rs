//! Services, endpoint slices and ingresses.

use anyhow::Result;
use serde_json::{Value, json};

use crate::{
    api::with_query,
    error,
    json::{list, str_of},
    output::table,
    session::Session,
};

use super::text::{Text, number, or_unset, plain};

/// How many endpoints are shown.
const MAX_ENDPOINTS: usize = 3;

pub(super) async fn service(session: &Session, text: &mut Text, object: &Value) -> Result<()> {
    let spec = &object["spec"];
    let joined = |value: &Value| match list(value).len() {
        0 => "<none>".to_owned(),
        _ => list(value).map(str_of).collect::<Vec<_>>().join(","),
    };
    text.head(object);
    text.maps(object);
    text.field(0, "Selector", &table::labels(&spec["selector"]));
    text.field(0, "Type", str_of(&spec["type"]));
    text.optional(0, "IP Family Policy", &spec["ipFamilyPolicy"]);
    text.field(0, "IP Families", &joined(&spec["ipFamilies"]));
    text.field(0, "IP", str_of(&spec["clusterIP"]));
    text.field(0, "IPs", &joined(&spec["clusterIPs"]));
    if list(&spec["externalIPs"]).len() > 0 {
        text.field(0, "External IPs", &joined(&spec["externalIPs"]));
    }
    text.optional(0, "Desired LoadBalancer IP", &spec["loadBalancerIP"]);
    text.optional(0, "External Name", &spec["externalName"]);
    let ingress = addresses(&object["status"]["loadBalancer"]);
    if !ingress.is_empty() {
        text.field(0, "LoadBalancer Ingress", &ingress.join(", "));
    }
    // Without permission to list them, there are none.
    let slices = slices_of(session, object).await.unwrap_or_default();
    for port in list(&spec["ports"]) {
        let name = match str_of(&port["name"]) {
            "" => "<unset>",
            name => name,
        };
        let protocol = str_of(&port["protocol"]);
        text.line(
            0,
            &format!("Port:\t{name}\t{}/{protocol}", number(&port["port"])),
        );
        text.field(
            0,
            "TargetPort",
            &format!("{}/{protocol}", plain(&port["targetPort"])),
        );
        text.optional(0, "AppProtocol", &port["appProtocol"]);
        if number(&port["nodePort"]) != 0 {
            text.line(
                0,
                &format!(
                    "NodePort:\t{name}\t{}/{protocol}",
                    number(&port["nodePort"])
                ),
            );
        }
        text.field(0, "Endpoints", &endpoints(&slices, str_of(&port["name"])));
    }
    text.field(0, "Session Affinity", str_of(&spec["sessionAffinity"]));
    text.optional(0, "External Traffic Policy", &spec["externalTrafficPolicy"]);
    text.optional(0, "Internal Traffic Policy", &spec["internalTrafficPolicy"]);
    if number(&spec["healthCheckNodePort"]) != 0 {
        text.field(
            0,
            "HealthCheck NodePort",
            &number(&spec["healthCheckNodePort"]).to_string(),
        );
    }
    if list(&spec["loadBalancerSourceRanges"]).len() > 0 {
        text.field(
            0,
            "LoadBalancer Source Ranges",
            &joined(&spec["loadBalancerSourceRanges"]),
        );
    }
    text.optional(0, "Traffic Distribution", &spec["trafficDistribution"]);
    Ok(())
}

async fn slices_of(session: &Session, service: &Value) -> Result<Vec<Value>> {
    let (namespace, name) = (
        str_of(&service["metadata"]["namespace"]),
        str_of(&service["metadata"]["name"]),
    );
    let path = format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices");
    session
        .api
        .items(&with_query(
            &path,
            &[(
                "labelSelector",
                format!("kubernetes.io/service-name={name}"),
            )],
        ))
        .await
}

/// Ready addresses with the port of this name.
fn endpoints(slices: &[Value], port_name: &str) -> String {
    if slices.is_empty() {
        return "<none>".to_owned();
    }
    let mut shown = Vec::new();
    let (mut count, mut has_more) = (0, false);
    let mut add = |endpoint: &Value, port: Option<&Value>| {
        // Upstream says that there are more also if those are not ready: `+ 0 more...`.
        has_more |= shown.len() == MAX_ENDPOINTS;
        if endpoint["conditions"]["ready"] == false {
            return;
        }
        count += 1;
        if !has_more {
            let address = str_of(&endpoint["addresses"][0]);
            shown.push(match port {
                None => address.to_owned(),
                Some(port) if address.contains(':') => format!("[{address}]:{}", number(port)),
                Some(port) => format!("{address}:{}", number(port)),
            });
        }
    };
    for slice in slices {
        if list(&slice["ports"]).len() == 0 {
            list(&slice["endpoints"]).for_each(|endpoint| add(endpoint, None));
        }
        let ports = list(&slice["ports"]).filter(|port| str_of(&port["name"]) == port_name);
        for port in ports {
            list(&slice["endpoints"]).for_each(|endpoint| add(endpoint, Some(&port["port"])));
        }
    }
    let text = shown.join(",");
    match has_more {
        true => format!("{text} + {} more...", count - MAX_ENDPOINTS),
        false => text,
    }
}

/// Addresses of a load balancer.
fn addresses(status: &Value) -> Vec<String> {
    let one = |ingress: &Value| match (str_of(&ingress["ip"]), str_of(&ingress["ipMode"])) {
        ("", _) => str_of(&ingress["hostname"]).to_owned(),
        (address, "") => address.to_owned(),
        (address, mode) => format!("{address} ({mode})"),
    };
    list(&status["ingress"]).map(one).collect()
}

pub(super) fn endpoint_slice(text: &mut Text, object: &Value) {
    text.head(object);
    text.maps(object);
    text.field(0, "AddressType", str_of(&object["addressType"]));
    match list(&object["ports"]).len() {
        0 => text.line(0, "Ports: <unset>"),
        _ => {
            text.line(0, "Ports:");
            text.line(1, "Name\tPort\tProtocol");
            text.line(1, "----\t----\t--------");
            for port in list(&object["ports"]) {
                let name = if str_of(&port["name"]).is_empty() {
                    "<unset>"
                } else {
                    str_of(&port["name"])
                };
                text.line(
                    1,
                    &format!(
                        "{name}\t{}\t{}",
                        or_unset(&port["port"]),
                        str_of(&port["protocol"])
                    ),
                );
            }
        }
    }
    if list(&object["endpoints"]).len() == 0 {
        return text.line(0, "Endpoints: <none>");
    }
    text.line(0, "Endpoints:");
    for endpoint in list(&object["endpoints"]) {
        let addresses: Vec<&str> = list(&endpoint["addresses"]).map(str_of).collect();
        let addresses = if addresses.is_empty() {
            "<none>".to_owned()
        } else {
            addresses.join(", ")
        };
        text.line(1, &format!("- Addresses:\t{addresses}"));
        text.line(2, "Conditions:");
        text.field(3, "Ready", &or_unset(&endpoint["conditions"]["ready"]));
        text.field(2, "Hostname", &or_unset(&endpoint["hostname"]));
        let target = &endpoint["targetRef"];
        if target.is_object() {
            text.field(
                2,
                "TargetRef",
                &format!("{}/{}", str_of(&target["kind"]), str_of(&target["name"])),
            );
        }
        text.field(2, "NodeName", &or_unset(&endpoint["nodeName"]));
        text.field(2, "Zone", &or_unset(&endpoint["zone"]));
    }
}

pub(super) async fn ingress(session: &Session, text: &mut Text, object: &Value) -> Result<()> {
    let spec = &object["spec"];
    let namespace = str_of(&object["metadata"]["namespace"]);
    text.field(0, "Name", str_of(&object["metadata"]["name"]));
    text.labels("Labels", &object["metadata"]["labels"]);
    text.field(0, "Namespace", namespace);
    let mut known = addresses(&object["status"]["loadBalancer"]);
    known.retain(|address| !address.is_empty());
    known.sort();
    known.dedup();
    text.field(0, "Address", &known.join(","));
    let class = if spec["ingressClassName"].is_null() {
        "<none>"
    } else {
        str_of(&spec["ingressClassName"])
    };
    text.field(0, "Ingress Class", class);
    let default = match spec["defaultBackend"].is_null() {
        true => "<default>".to_owned(),
        false => backend(session, namespace, &spec["defaultBackend"]).await,
    };
    text.field(0, "Default backend", &default);
    if list(&spec["tls"]).len() > 0 {
        text.line(0, "TLS:");
        for tls in list(&spec["tls"]) {
            let hosts: Vec<&str> = list(&tls["hosts"]).map(str_of).collect();
            match str_of(&tls["secretName"]) {
                "" => text.line(1, &format!("SNI routes {}", hosts.join(","))),
                secret => text.line(1, &format!("{secret} terminates {}", hosts.join(","))),
            }
        }
    }
    text.line(0, "Rules:\n  Host\tPath\tBackends");
    text.line(1, "----\t----\t--------");
    let mut count = 0;
    for rule in list(&spec["rules"]).filter(|rule| !rule["http"].is_null()) {
        count += 1;
        let host = if str_of(&rule["host"]).is_empty() {
            "*"
        } else {
            str_of(&rule["host"])
        };
        text.line(1, &format!("{host}\t"));
        for path in list(&rule["http"]["paths"]) {
            let backend = backend(session, namespace, &path["backend"]).await;
            text.line(2, &format!("\t{} \t{backend}", str_of(&path["path"])));
        }
    }
    if count == 0 {
        text.line(1, &format!("*\t*\t{default}"));
    }
    text.annotations("Annotations", &object["metadata"]["annotations"]);
    Ok(())
}

/// `web:80 (10.0.0.1:8080)`
async fn backend(session: &Session, namespace: &str, backend: &Value) -> String {
    if !backend["resource"].is_null() {
        let resource = &backend["resource"];
        let group = if resource["apiGroup"].is_null() {
            "<none>"
        } else {
            str_of(&resource["apiGroup"])
        };
        return format!(
            "APIGroup: {group}, Kind: {}, Name: {}",
            str_of(&resource["kind"]),
            str_of(&resource["name"])
        );
    }
    let (name, port) = (
        str_of(&backend["service"]["name"]),
        &backend["service"]["port"],
    );
    let port_text = if port["name"].is_null() {
        plain(&port["number"])
    } else {
        plain(&port["name"])
    };
    let text = format!("{name}:{port_text}");
    match endpoints_behind(session, namespace, name, port).await {
        Ok(endpoints) => format!("{text} ({endpoints})"),
        Err(error) => format!("{text} (<error: {}>)", error::message(&error)),
    }
}

/// The endpoints behind a port of a Service, by number or by name.
async fn endpoints_behind(
    session: &Session,
    namespace: &str,
    name: &str,
    port: &Value,
) -> Result<String> {
    let named = json!({"metadata": {"namespace": namespace, "name": name}});
    let slices = slices_of(session, &named).await?;
    let path = format!("/api/v1/namespaces/{namespace}/services/{name}");
    let service = session.api.get(&path).await?;
    let is_it = |one: &&Value| {
        one["port"] == port["number"] || (!port["name"].is_null() && one["name"] == port["name"])
    };
    let mut ports = list(&service["spec"]["ports"]);
    let port_name = ports.find(is_it).map_or("", |one| str_of(&one["name"]));
    Ok(endpoints(&slices, port_name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_endpoints_are_shown_and_the_others_counted() {
        let endpoint = |at: usize, ready: bool| json!({"addresses": [format!("10.0.0.{at}")], "conditions": {"ready": ready}});
        let slice =
            |all: Vec<Value>| json!({"ports": [{"name": "", "port": 80}], "endpoints": all});
        for (all, expected) in [
            (vec![endpoint(1, true), endpoint(2, false)], "10.0.0.1:80"),
            (
                (1..5).map(|at| endpoint(at, true)).collect(),
                "10.0.0.1:80,10.0.0.2:80,10.0.0.3:80 + 1 more...",
            ),
            (
                (1..5).map(|at| endpoint(at, at < 4)).collect(),
                "10.0.0.1:80,10.0.0.2:80,10.0.0.3:80 + 0 more...",
            ),
        ] {
            assert_eq!(endpoints(&[slice(all)], ""), expected);
        }
        assert_eq!(endpoints(&[slice(vec![endpoint(1, true)])], "https"), "");
        assert_eq!(endpoints(&[], ""), "<none>");
    }
}
