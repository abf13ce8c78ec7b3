//! Service: one address for many pods. The service allocator assigns addresses and node ports; this
//! module validates them ([`validate`]) and decides what an update may omit ([`carry`]).

mod carry;
mod validate;

use crate::address::{cidr_warnings, ip_warnings};
use crate::builtin::{Builtin, STATUS};
use crate::columns::{AGE, NAME, age, column, labels, name_cell, wide};
use crate::metadata;
use crate::tree::{
    child, child_or_new, default_empty, default_to, each, get, int, is_set, list, text,
};
use crate::{Column, ServerSide, SubresourceInfo};
use machinery::field::Path;
use machinery::json::json;
use machinery::{Object, Value};
use std::collections::BTreeSet;

pub use validate::address_errors;
pub(crate) use validate::{balancer_hostname, port_or_name};

pub const KIND: Builtin = Builtin {
    kind: "Service",
    plural: "services",
    server_side: ServerSide {
        allocates_addresses: true,
        upstream_key: "services/specs",
        ..ServerSide::NONE
    },
    returns_deleted: true,
    short_names: &["svc"],
    categories: &["all"],
    schema: "core/v1.Service",
    subresources: &[
        SubresourceInfo {
            name: "proxy",
            group: "",
            version: "",
            kind: "ServiceProxyOptions",
            verbs: &["create", "delete", "get", "patch", "update"],
        },
        STATUS,
    ],
    has_status: true,
    allows_create_on_update: true,
    validate_name: metadata::label,
    default,
    prepare_create: |object, _| carry::prepare_create(object),
    prepare_update: carry::prepare_update,
    validate_create: |object| validate::all(object, None),
    validate_update: validate::update,
    warnings,
    status_warnings: Some(status_warnings),
    selectable: &["spec.clusterIP", "spec.type"],
    selectable_fields: |o| {
        let spec = get(o, "spec");
        vec![
            ("spec.clusterIP", text(&spec["clusterIP"]).to_owned()),
            ("spec.type", text(&spec["type"]).to_owned()),
        ]
    },
    columns: COLUMNS,
    row,
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Type", "string", "How the service is reached."),
    column("Cluster-IP", "string", "Address within the cluster."),
    column("External-IP", "string", "Addresses from outside."),
    column("Port(s)", "string", "Ports, and node ports behind a colon."),
    AGE,
    wide("Selector", "string", "Labels of the pods behind it."),
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let spec = get(object, "spec");
    let address = list(&spec["clusterIPs"]).first().map_or("<none>", text);
    let port = |p: &Value| {
        let (port, protocol) = (int(&p["port"]), text(&p["protocol"]));
        match int(&p["nodePort"]) {
            0 => format!("{port}/{protocol}"),
            node => format!("{port}:{node}/{protocol}"),
        }
    };
    let ports: Vec<String> = list(&spec["ports"]).iter().map(port).collect();
    let ports = if ports.is_empty() {
        "<none>".to_owned()
    } else {
        ports.join(",")
    };
    vec![
        name_cell(object),
        text(&spec["type"]).into(),
        address.into(),
        Value::from(external(object, spec)),
        Value::from(ports),
        age(object, now),
        Value::from(labels(&spec["selector"])),
    ]
}

fn external(object: &Object, spec: &Value) -> String {
    let mut own: Vec<&str> = list(&spec["externalIPs"]).iter().map(text).collect();
    match text(&spec["type"]) {
        "ClusterIP" | "NodePort" if own.is_empty() => "<none>".to_owned(),
        "ClusterIP" | "NodePort" => own.join(","),
        "LoadBalancer" => {
            let ingress = list(&get(object, "status")["loadBalancer"]["ingress"]);
            let name = |i: &Value| {
                let ip = text(&i["ip"]);
                if ip.is_empty() {
                    text(&i["hostname"]).to_owned()
                } else {
                    ip.to_owned()
                }
            };
            let balancer: BTreeSet<String> =
                ingress.iter().map(name).filter(|n| !n.is_empty()).collect();
            let mut all: Vec<&str> = balancer.iter().map(String::as_str).collect();
            all.append(&mut own);
            if all.is_empty() {
                "<pending>".to_owned()
            } else {
                all.join(",")
            }
        }
        "ExternalName" => text(&spec["externalName"]).to_owned(),
        _ => "<unknown>".to_owned(),
    }
}

fn default(object: &mut Object) {
    let spec = child_or_new(object, "spec");
    default_empty(spec, "sessionAffinity", "None");
    if get(spec, "sessionAffinity") == "None" {
        spec.shift_remove("sessionAffinityConfig");
    } else if get(spec, "sessionAffinity") == "ClientIP"
        && !is_set(&get(spec, "sessionAffinityConfig")["clientIP"]["timeoutSeconds"])
    {
        let config = json!({"clientIP": {"timeoutSeconds": 10800}});
        spec.insert("sessionAffinityConfig".to_owned(), config);
    }
    default_empty(spec, "type", "ClusterIP");
    for port in each(spec, "ports") {
        default_empty(port, "protocol", "TCP");
        let number = get(port, "port").clone();
        default_empty(port, "targetPort", number);
    }
    let kind = text(get(spec, "type")).to_owned();
    if is_reached_from_outside(&Value::Object(spec.clone())) {
        default_empty(spec, "externalTrafficPolicy", "Cluster");
    }
    if matches!(kind.as_str(), "ClusterIP" | "NodePort" | "LoadBalancer") {
        default_to(spec, "internalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        default_to(spec, "allocateLoadBalancerNodePorts", true);
        default_ingress(object);
    }
}

fn default_ingress(object: &mut Object) {
    if let Some(balancer) = child(object, "status").and_then(|s| child(s, "loadBalancer")) {
        for ingress in each(balancer, "ingress") {
            if !text(get(ingress, "ip")).is_empty() {
                default_to(ingress, "ipMode", "VIP");
            }
        }
    }
}

fn is_reached_from_outside(spec: &Value) -> bool {
    match text(&spec["type"]) {
        "LoadBalancer" | "NodePort" => true,
        "ClusterIP" => !list(&spec["externalIPs"]).is_empty(),
        _ => false,
    }
}

fn needs_health_check(spec: &Value) -> bool {
    spec["type"] == "LoadBalancer" && spec["externalTrafficPolicy"] == "Local"
}

fn is_headless(spec: &Value) -> bool {
    matches!(list(&spec["clusterIPs"]), [only] if only == "None")
}

fn warnings(object: &Object, _: Option<&Object>) -> Vec<String> {
    let spec = get(object, "spec");
    let path = Path::new("spec");
    let annotations = &get(object, "metadata")["annotations"];
    let mut out = Vec::new();
    if is_set(&annotations[validate::OLD_TOPOLOGY]) {
        out.push(format!(
            "annotation {} is deprecated, please use {} instead",
            validate::OLD_TOPOLOGY,
            validate::TOPOLOGY
        ));
    }
    let single = text(&spec["clusterIP"]);
    if !matches!(single, "" | "None") {
        out.extend(addresses(spec, "clusterIPs"));
    }
    let external = text(&spec["type"]) == "ExternalName";
    let headless = spec["type"] == "ClusterIP" && single == "None";
    let has_external_ips = !list(&spec["externalIPs"]).is_empty();
    if headless {
        // A headless service has no address to which these apply.
        let ignored = |name: &str| format!("spec.{name} is ignored for headless services");
        if !text(&spec["loadBalancerIP"]).is_empty() {
            out.push(ignored("loadBalancerIP"));
        }
        if has_external_ips {
            out.push(ignored("externalIPs"));
        }
        if spec["sessionAffinity"] != "None" {
            out.push(ignored("SessionAffinity"));
        }
    }
    out.extend(addresses(spec, "externalIPs"));
    if has_external_ips && !headless && !external {
        out.push(
            "spec.externalIPs is deprecated and may no longer be implemented in some clusters"
                .to_owned(),
        );
    }
    let balancer = text(&spec["loadBalancerIP"]);
    out.extend(ip_warnings(balancer, &path.child("loadBalancerIP")));
    for (i, range) in list(&spec["loadBalancerSourceRanges"]).iter().enumerate() {
        let at = path.child("loadBalancerSourceRanges");
        let at = at.index(i);
        out.extend(cidr_warnings(text(range), &at));
    }
    if external && has_external_ips {
        out.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".to_owned());
    }
    if !external && !text(&spec["externalName"]).is_empty() {
        out.push("spec.externalName is ignored when spec.type is not \"ExternalName\"".to_owned());
    }
    if spec["trafficDistribution"] == "PreferClose" {
        out.push(
            "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\""
                .to_owned(),
        );
    }
    out
}

fn addresses(spec: &Value, field: &str) -> Vec<String> {
    let path = Path::new("spec");
    let path = path.child(field);
    let all = list(&spec[field]).iter().enumerate();
    all.flat_map(|(i, ip)| ip_warnings(text(ip), &path.index(i)))
        .collect()
}

fn status_warnings(object: &Object) -> Vec<String> {
    let path = Path::new("status.loadBalancer.ingress");
    let all = list(&get(object, "status")["loadBalancer"]["ingress"])
        .iter()
        .enumerate();
    all.flat_map(|(i, ingress)| ip_warnings(text(&ingress["ip"]), &path.index(i)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};

    pub(super) fn defaulted(json: &str) -> Object {
        let mut service = object(json);
        default(&mut service);
        service
    }

    #[test]
    fn a_plain_service_gets_its_defaults_and_is_valid() {
        let service = defaulted(r#"{"spec": {"ports": [{"port": 80}]}}"#);
        assert_eq!(
            get(&service, "spec"),
            &json!({
                "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}],
                "sessionAffinity": "None", "type": "ClusterIP", "internalTrafficPolicy": "Cluster"
            })
        );
        assert_eq!(lines(validate::all(&service, None)), Vec::<String>::new());
    }

    #[test]
    fn ignored_and_deprecated_service_fields_are_warned_about() {
        let cases = [
            (
                r#"{"spec": {"externalName": "x"}}"#,
                r#"spec.externalName is ignored when spec.type is not "ExternalName""#,
            ),
            (
                r#"{"spec": {"clusterIP": "None", "sessionAffinity": "ClientIP"}}"#,
                "spec.SessionAffinity is ignored for headless services",
            ),
            (
                r#"{"spec": {"externalIPs": ["1.2.3.4"]}}"#,
                "spec.externalIPs is deprecated and may no longer be implemented in some clusters",
            ),
            (
                r#"{"spec": {"type": "ExternalName", "externalIPs": ["1.2.3.4"]}}"#,
                r#"spec.externalIPs is ignored when spec.type is "ExternalName""#,
            ),
            (
                r#"{"spec": {"trafficDistribution": "PreferClose"}}"#,
                r#"spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone""#,
            ),
            (
                r#"{"spec": {"loadBalancerIP": "FE80::1"}}"#,
                r#"spec.loadBalancerIP: IPv6 address "FE80::1" should be in RFC 5952 canonical format ("fe80::1")"#,
            ),
            (
                r#"{"metadata": {"annotations": {"service.kubernetes.io/topology-aware-hints": "a"}}}"#,
                "annotation service.kubernetes.io/topology-aware-hints is deprecated, please use service.kubernetes.io/topology-mode instead",
            ),
        ];
        for (json, warning) in cases {
            assert_eq!(warnings(&defaulted(json), None), [warning], "{json}");
        }
    }

    #[test]
    fn rows_show_ports_and_addresses() {
        let service = defaulted(
            r#"{"metadata": {"name": "s"}, "spec": {"type": "NodePort", "clusterIPs": ["10.0.0.1"],
                "ports": [{"port": 80, "nodePort": 30001}], "selector": {"a": "b"}}}"#,
        );
        let cells = row(&service, 0);
        assert_eq!(
            cells[2..5],
            [json!("10.0.0.1"), json!("<none>"), json!("80:30001/TCP")]
        );
        assert_eq!(cells[6], "a=b");
    }
}
