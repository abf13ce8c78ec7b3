//! Services, endpoint slices and ingresses.

use anyhow::Result;
use serde_json::Value;

use crate::{
    api::with_query,
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
    let slices = slices_of(session, object).await?;
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
        text.field(
            0,
            "Endpoints",
            &endpoints(&slices, Some(str_of(&port["name"]))),
        );
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

/// Ready addresses with their ports; `None` is every port.
fn endpoints(slices: &[Value], port_name: Option<&str>) -> String {
    if slices.is_empty() {
        return "<none>".to_owned();
    }
    let mut found = Vec::new();
    for slice in slices {
        let ready = || {
            list(&slice["endpoints"]).filter(|endpoint| endpoint["conditions"]["ready"] != false)
        };
        if list(&slice["ports"]).len() == 0 {
            found.extend(ready().map(|endpoint| str_of(&endpoint["addresses"][0]).to_owned()));
        }
        for port in list(&slice["ports"]) {
            if port_name.is_some_and(|name| str_of(&port["name"]) != name) {
                continue;
            }
            found.extend(ready().map(|endpoint| {
                let address = str_of(&endpoint["addresses"][0]);
                match address.contains(':') {
                    true => format!("[{address}]:{}", number(&port["port"])),
                    false => format!("{address}:{}", number(&port["port"])),
                }
            }));
        }
    }
    let shown = found[..found.len().min(MAX_ENDPOINTS)].join(",");
    match found.len() > MAX_ENDPOINTS {
        true => format!("{shown} + {} more...", found.len() - MAX_ENDPOINTS),
        false => shown,
    }
}

/// Addresses of a load balancer.
fn addresses(status: &Value) -> Vec<String> {
    let one = |ingress: &Value| {
        let address = [&ingress["ip"], &ingress["hostname"]]
            .into_iter()
            .map(str_of)
            .find(|text| !text.is_empty());
        let mode = match str_of(&ingress["ipMode"]) {
            "" => String::new(),
            mode => format!(" ({mode})"),
        };
        format!("{}{mode}", address.unwrap_or_default())
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
    text.field(
        0,
        "Address",
        &addresses(&object["status"]["loadBalancer"]).join(","),
    );
    let class = if spec["ingressClassName"].is_null() {
        "<none>"
    } else {
        str_of(&spec["ingressClassName"])
    };
    text.field(0, "Ingress Class", class);
    let default = match spec["defaultBackend"].is_null() {
        true => "<default>".to_owned(),
        false => backend(session, namespace, &spec["defaultBackend"]).await?,
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
            let backend = backend(session, namespace, &path["backend"]).await?;
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
async fn backend(session: &Session, namespace: &str, backend: &Value) -> Result<String> {
    if !backend["resource"].is_null() {
        let resource = &backend["resource"];
        let group = if resource["apiGroup"].is_null() {
            "<none>"
        } else {
            str_of(&resource["apiGroup"])
        };
        return Ok(format!(
            "APIGroup: {group}, Kind: {}, Name: {}",
            str_of(&resource["kind"]),
            str_of(&resource["name"])
        ));
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
    let path = format!("/api/v1/namespaces/{namespace}/services/{name}");
    let Some(service) = session.api.find(&path).await? else {
        return Ok(format!(
            "{name}:{port_text} (<error: services \"{name}\" not found>)"
        ));
    };
    let is_it = |one: &&Value| {
        one["port"] == port["number"] || (!port["name"].is_null() && one["name"] == port["name"])
    };
    let port_name = list(&service["spec"]["ports"])
        .find(is_it)
        .map(|one| str_of(&one["name"]).to_owned());
    let slices = slices_of(session, &service).await?;
    Ok(format!(
        "{name}:{port_text} ({})",
        endpoints(&slices, port_name.as_deref())
    ))
}
