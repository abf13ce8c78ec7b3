//! Service: one address for many pods. Addresses and node ports are given by the server around
//! these rules; here is what they may look like and what an update may leave out.

use crate::builtin::{Builtin, STATUS};
use crate::check;
use crate::columns::{AGE, NAME, age, column, labels, name_cell, wide};
use crate::metadata;
use crate::tree::{
    child, child_or_new, default_empty, default_to, each, get, int, is_set, list, text,
};
use crate::{Column, Context, Subresource, SubresourceInfo};
use machinery::field::{Error, Errors, Path};
use machinery::json::json;
use machinery::{Object, Value, format};
use std::collections::BTreeSet;
use std::net::IpAddr;

pub const KIND: Builtin = Builtin {
    kind: "Service",
    plural: "services",
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
    creates_on_update: true,
    name_format: metadata::label,
    default,
    prepare_create: |object, _| mirror_address(object),
    prepare_update,
    validate_create: validate,
    validate_update,
    warnings,
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
    if kind != "ExternalName" {
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

/// `clusterIP` is the first of `clusterIPs`.
fn mirror_address(object: &mut Object) {
    let spec = child_or_new(object, "spec");
    let single = text(get(spec, "clusterIP")).to_owned();
    let many = list(get(spec, "clusterIPs"));
    if !single.is_empty() && many.is_empty() {
        spec.insert("clusterIPs".to_owned(), json!([single]));
    }
}

fn prepare_update(
    object: &mut Object,
    old: &Object,
    subresource: Subresource<'_>,
    _: &Context<'_>,
) {
    if subresource.is_some() {
        return;
    }
    let before = get(old, "spec");
    let spec = child_or_new(object, "spec");
    mirror_changed_address(spec, before);
    keep_given(spec, before);
    drop_foreign(spec, before);
}

/// A client that knows only one of the two fields changes both.
fn mirror_changed_address(spec: &mut Object, before: &Value) {
    let (was, is) = (
        text(&before["clusterIP"]),
        text(get(spec, "clusterIP")).to_owned(),
    );
    let many_same = list(get(spec, "clusterIPs")) == list(&before["clusterIPs"]);
    if was.is_empty() && !is.is_empty() && list(get(spec, "clusterIPs")).is_empty() {
        spec.insert("clusterIPs".to_owned(), json!([is]));
    } else if !was.is_empty() && is.is_empty() && many_same {
        spec.shift_remove("clusterIPs");
    } else if !was.is_empty() && is != was && many_same {
        spec.insert("clusterIPs".to_owned(), json!([is]));
    }
}

/// What the server gave stays when the update does not speak of it.
fn keep_given(spec: &mut Object, before: &Value) {
    let needs_address = |kind: &str| matches!(kind, "ClusterIP" | "NodePort" | "LoadBalancer");
    let needs_port = |kind: &str| matches!(kind, "NodePort" | "LoadBalancer");
    let (was, is) = (text(&before["type"]), text(get(spec, "type")).to_owned());
    if needs_address(was) && needs_address(&is) && text(get(spec, "clusterIP")).is_empty() {
        for field in ["clusterIP", "clusterIPs"] {
            if is_set(&before[field]) {
                spec.insert(field.to_owned(), before[field].clone());
            }
        }
    }
    if needs_address(was) && needs_address(&is) {
        for field in ["ipFamilies", "ipFamilyPolicy"] {
            if is_set(&before[field]) && !is_set(get(spec, field)) {
                spec.insert(field.to_owned(), before[field].clone());
            }
        }
    }
    if needs_port(was) && needs_port(&is) {
        let given: Vec<Value> = list(&before["ports"]).to_vec();
        for port in each(spec, "ports") {
            let same = |p: &&Value| {
                p["port"] == *get(port, "port") && p["protocol"] == *get(port, "protocol")
            };
            if let Some(found) = given.iter().find(same) {
                default_empty(port, "nodePort", found["nodePort"].clone());
            }
        }
    }
    if needs_health_check(before) && needs_health_check(&Value::Object(spec.clone())) {
        default_empty(
            spec,
            "healthCheckNodePort",
            before["healthCheckNodePort"].clone(),
        );
    }
}

/// A change of type drops what only the old type had, unless the update sets it anew.
fn drop_foreign(spec: &mut Object, before: &Value) {
    let same = |spec: &Object, field: &str| get(spec, field) == &before[field];
    let (was, is) = (text(&before["type"]), text(get(spec, "type")).to_owned());
    if was == is {
        return;
    }
    if is == "ExternalName" {
        for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            if same(spec, field) {
                spec.shift_remove(field);
            }
        }
    }
    if matches!(is.as_str(), "ClusterIP" | "ExternalName") {
        let given: Vec<Value> = list(&before["ports"]).to_vec();
        for port in each(spec, "ports") {
            if given
                .iter()
                .any(|p| p["nodePort"] == *get(port, "nodePort"))
            {
                port.shift_remove("nodePort");
            }
        }
        if !is_reached_from_outside(&Value::Object(spec.clone()))
            && same(spec, "externalTrafficPolicy")
        {
            spec.shift_remove("externalTrafficPolicy");
        }
    }
    if is != "LoadBalancer" {
        for field in [
            "allocateLoadBalancerNodePorts",
            "loadBalancerClass",
            "healthCheckNodePort",
        ] {
            if same(spec, field) {
                spec.shift_remove(field);
            }
        }
    }
}

fn needs_health_check(spec: &Value) -> bool {
    spec["type"] == "LoadBalancer" && spec["externalTrafficPolicy"] == "Local"
}

fn is_headless(spec: &Value) -> bool {
    list(&spec["clusterIPs"])
        .first()
        .is_some_and(|ip| ip == "None")
}

/// Headless services have no address for these to work on.
fn warnings(object: &Object, _: Option<&Object>) -> Vec<String> {
    let spec = get(object, "spec");
    if !is_headless(spec) {
        return Vec::new();
    }
    let ignored = |name: &str| format!("spec.{name} is ignored for headless services");
    let mut out = Vec::new();
    if !text(&spec["loadBalancerIP"]).is_empty() {
        out.push(ignored("loadBalancerIP"));
    }
    if !list(&spec["externalIPs"]).is_empty() {
        out.push(ignored("externalIPs"));
    }
    if spec["sessionAffinity"] != "None" {
        out.push(ignored("SessionAffinity"));
    }
    out
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    check_type(spec, &path, &mut errors);
    check_ports(spec, &path, &mut errors);
    check::labels(&spec["selector"], &path.child("selector"), &mut errors);
    check_affinity(spec, &path, &mut errors);
    check_addresses(spec, &path, &mut errors);
    check_traffic(spec, &path, &mut errors);
    errors
}

fn check_type(spec: &Value, path: &Path, errors: &mut Errors) {
    let kind = text(&spec["type"]);
    if list(&spec["ports"]).is_empty() && !is_headless(spec) && kind != "ExternalName" {
        errors.push(Error::required(&path.child("ports"), ""));
    }
    match kind {
        "LoadBalancer" | "NodePort" if is_headless(spec) => {
            let detail = format!("may not be set to 'None' for {kind} services");
            errors.push(Error::invalid(
                &path.child("clusterIPs").index(0),
                "None",
                detail,
            ));
        }
        "ExternalName" => {
            let detail = "may not be set for ExternalName services";
            for field in ["clusterIPs", "ipFamilies"] {
                if !list(&spec[field]).is_empty() {
                    errors.push(Error::forbidden(&path.child(field), detail));
                }
            }
            if is_set(&spec["ipFamilyPolicy"]) {
                errors.push(Error::forbidden(&path.child("ipFamilyPolicy"), detail));
            }
            let at = path.child("externalName");
            match text(&spec["externalName"]).trim_end_matches('.') {
                "" => errors.push(Error::required(&at, "")),
                name => check::form(format::dns1123_subdomain(name), name, &at, errors),
            }
        }
        _ => {}
    }
    let types = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    check::one_of(&spec["type"], &types, &path.child("type"), errors);
}

fn check_ports(spec: &Value, path: &Path, errors: &mut Errors) {
    let ports = list(&spec["ports"]);
    let mut names = BTreeSet::new();
    let mut numbers = BTreeSet::new();
    let mut node_ports = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let at = path.child("ports").index(i);
        let name = text(&port["name"]);
        if name.is_empty() {
            if ports.len() > 1 {
                errors.push(Error::required(&at.child("name"), ""));
            }
        } else {
            check::form(format::dns1123_label(name), name, &at.child("name"), errors);
            if !names.insert(name) {
                errors.push(Error::duplicate(&at.child("name"), name));
            }
        }
        check_number(int(&port["port"]), &at.child("port"), errors);
        let protocols = ["SCTP", "TCP", "UDP"];
        check::one_of(&port["protocol"], &protocols, &at.child("protocol"), errors);
        port_or_name(&port["targetPort"], &at.child("targetPort"), errors);
        let app = text(&port["appProtocol"]);
        if is_set(&port["appProtocol"]) {
            check::form(
                format::qualified_name(app),
                app,
                &at.child("appProtocol"),
                errors,
            );
        }
        let protocol = text(&port["protocol"]);
        let node = int(&port["nodePort"]);
        if node != 0 {
            if spec["type"] == "ClusterIP" {
                let detail = "may not be used when `type` is 'ClusterIP'";
                errors.push(Error::forbidden(&at.child("nodePort"), detail));
            }
            if !node_ports.insert((protocol, node)) {
                errors.push(Error::duplicate(&at.child("nodePort"), node));
            }
        }
        if !numbers.insert((protocol, int(&port["port"]))) {
            let key = json!({"protocol": protocol, "port": int(&port["port"]), "targetPort": 0});
            errors.push(Error::duplicate(&at, key));
        }
    }
}

fn check_number(port: i64, path: &Path, errors: &mut Errors) {
    errors.extend(
        format::port_number(port)
            .into_iter()
            .map(|m| Error::invalid(path, port, m)),
    );
}

/// A port by number or by the name that a container gives it.
pub(crate) fn port_or_name(value: &Value, path: &Path, errors: &mut Errors) {
    match value.as_str() {
        Some(name) => check::form(format::port_name(name), name, path, errors),
        None => check_number(int(value), path, errors),
    }
}

fn check_affinity(spec: &Value, path: &Path, errors: &mut Errors) {
    let at = path.child("sessionAffinity");
    check::one_of(&spec["sessionAffinity"], &["ClientIP", "None"], &at, errors);
    let config = &spec["sessionAffinityConfig"];
    if spec["sessionAffinity"] == "ClientIP" {
        let timeout = int(&config["clientIP"]["timeoutSeconds"]);
        if !(1..=86400).contains(&timeout) {
            let at = path
                .child("sessionAffinityConfig")
                .child("clientIP")
                .child("timeoutSeconds");
            let detail = "must be greater than 0 and less than or equal to 86400";
            errors.push(Error::invalid(&at, timeout, detail));
        }
    } else if is_set(config) {
        let detail = "must not be set when session affinity is None";
        errors.push(Error::forbidden(
            &path.child("sessionAffinityConfig"),
            detail,
        ));
    }
}

const IP_FORM: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";

fn check_addresses(spec: &Value, path: &Path, errors: &mut Errors) {
    let external = path.child("externalIPs");
    for (i, ip) in list(&spec["externalIPs"]).iter().enumerate() {
        if text(ip).parse::<IpAddr>().is_err() {
            errors.push(Error::invalid(&external.index(i), text(ip), IP_FORM));
        }
    }
    if spec["type"] == "ExternalName" {
        return;
    }
    let at = path.child("clusterIPs");
    let many = list(&spec["clusterIPs"]);
    match (text(&spec["clusterIP"]), many.first()) {
        ("", None) => {}
        ("", Some(_)) => errors.push(Error::invalid(
            &at,
            spec["clusterIPs"].clone(),
            "must be empty when `clusterIP` is not specified",
        )),
        (_, None) => errors.push(Error::required(&at, "")),
        (single, Some(first)) if single != text(first) => errors.push(Error::invalid(
            &at,
            spec["clusterIPs"].clone(),
            "first value must match `clusterIP`",
        )),
        _ => {}
    }
    check_families(spec, path, errors);
    for (i, ip) in many.iter().enumerate() {
        if i == 0 && ip == "None" {
            if many.len() > 1 {
                let detail = "'None' must be the first and only value";
                errors.push(Error::invalid(&at, spec["clusterIPs"].clone(), detail));
            }
            continue;
        }
        match text(ip).parse::<IpAddr>() {
            Err(_) => errors.push(Error::invalid(&at.index(i), text(ip), IP_FORM)),
            Ok(address) => {
                let family = text(list(&spec["ipFamilies"]).get(i).unwrap_or(&Value::Null));
                let fits = family.is_empty() || (family == "IPv6") == address.is_ipv6();
                if !fits {
                    let detail =
                        format!("expected an {family} value as indicated by `ipFamilies[{i}]`");
                    errors.push(Error::invalid(&at.index(i), text(ip), detail));
                }
            }
        }
    }
    if many.len() > 2 {
        let detail = "may only hold up to 2 values";
        errors.push(Error::invalid(&at, spec["clusterIPs"].clone(), detail));
    }
}

fn check_families(spec: &Value, path: &Path, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    let at = path.child("ipFamilies");
    for (i, family) in list(&spec["ipFamilies"]).iter().enumerate() {
        check::one_of(family, &["IPv4", "IPv6"], &at.index(i), errors);
        if !seen.insert(text(family)) {
            errors.push(Error::duplicate(&at.index(i), text(family)));
        }
    }
    if is_set(&spec["ipFamilyPolicy"]) {
        let policies = ["PreferDualStack", "RequireDualStack", "SingleStack"];
        check::one_of(
            &spec["ipFamilyPolicy"],
            &policies,
            &path.child("ipFamilyPolicy"),
            errors,
        );
    }
}

fn check_traffic(spec: &Value, path: &Path, errors: &mut Errors) {
    let policies = ["Cluster", "Local"];
    let external = path.child("externalTrafficPolicy");
    let policy = text(&spec["externalTrafficPolicy"]);
    if !is_reached_from_outside(spec) {
        if !policy.is_empty() {
            let detail = "may only be set for externally-accessible services";
            errors.push(Error::invalid(&external, policy, detail));
        }
    } else if policy.is_empty() {
        errors.push(Error::required(&external, ""));
    } else {
        check::one_of(&spec["externalTrafficPolicy"], &policies, &external, errors);
    }
    let health = int(&spec["healthCheckNodePort"]);
    if health != 0 && !needs_health_check(spec) {
        let detail =
            "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        errors.push(Error::invalid(
            &path.child("healthCheckNodePort"),
            health,
            detail,
        ));
    }
    if is_set(&spec["internalTrafficPolicy"]) {
        let at = path.child("internalTrafficPolicy");
        check::one_of(&spec["internalTrafficPolicy"], &policies, &at, errors);
    }
    if spec["type"] != "LoadBalancer" {
        let detail = "may only be used when `type` is 'LoadBalancer'";
        for field in ["allocateLoadBalancerNodePorts", "loadBalancerClass"] {
            if is_set(&spec[field]) {
                errors.push(Error::forbidden(&path.child(field), detail));
            }
        }
        if !list(&spec["loadBalancerSourceRanges"]).is_empty() {
            errors.push(Error::forbidden(
                &path.child("LoadBalancerSourceRanges"),
                detail,
            ));
        }
    }
}

fn validate_update(object: &Object, old: &Object, subresource: Subresource<'_>) -> Errors {
    let mut errors = Vec::new();
    if subresource.is_some() {
        return errors;
    }
    let (new, was) = (get(object, "spec"), get(old, "spec"));
    let external = |spec: &Value| spec["type"] == "ExternalName";
    let exempt = external(new) || external(was) || (is_headless(new) && is_headless(was));
    if !exempt {
        check_same_address(new, was, &mut errors);
    }
    if needs_health_check(new)
        && needs_health_check(was)
        && new["healthCheckNodePort"] != was["healthCheckNodePort"]
    {
        let at = Path::new("spec").child("healthCheckNodePort");
        errors.push(Error::forbidden(&at, "field is immutable"));
    }
    errors.extend(validate(object));
    errors
}

fn check_same_address(new: &Value, was: &Value, errors: &mut Errors) {
    let at = Path::new("spec").child("clusterIPs").index(0);
    match (
        list(&was["clusterIPs"]).first(),
        list(&new["clusterIPs"]).first(),
    ) {
        (Some(_), None) => {
            let detail = "primary clusterIP can not be unset";
            errors.push(Error::invalid(&at, new["clusterIPs"].clone(), detail));
        }
        (Some(a), Some(b)) if a != b => {
            let detail = "may not change once set";
            errors.push(Error::invalid(&at, new["clusterIPs"].clone(), detail));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};

    fn defaulted(json: &str) -> Object {
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
        assert_eq!(lines(validate(&service)), Vec::<String>::new());
    }

    #[test]
    fn mistakes_are_named() {
        let service = defaulted(
            r#"{"spec": {"ports": [{"port": 80, "nodePort": 30000}, {"port": 80, "targetPort": "A"}]}}"#,
        );
        let found = lines(validate(&service));
        assert_eq!(found[0], "spec.ports[0].name: Required value");
        assert!(
            found
                .iter()
                .any(|l| l.starts_with("spec.ports[0].nodePort: Forbidden"))
        );
        assert!(
            found
                .iter()
                .any(|l| l.starts_with("spec.ports[1]: Duplicate value"))
        );
        let empty = defaulted(r#"{"spec": {}}"#);
        assert_eq!(lines(validate(&empty)), ["spec.ports: Required value"]);
    }

    #[test]
    fn an_update_keeps_the_address_and_node_ports_it_does_not_speak_of() {
        let old = defaulted(
            r#"{"spec": {"type": "NodePort", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"],
                "ports": [{"port": 80, "nodePort": 30001}]}}"#,
        );
        let mut new = defaulted(r#"{"spec": {"type": "NodePort", "ports": [{"port": 80}]}}"#);
        prepare_update(&mut new, &old, None, &Context { now: "", user: "" });
        let spec = get(&new, "spec");
        assert_eq!(spec["clusterIP"], "10.0.0.1");
        assert_eq!(spec["ports"][0]["nodePort"], 30001);
        assert_eq!(
            lines(validate_update(&new, &old, None)),
            Vec::<String>::new()
        );
    }

    #[test]
    fn the_address_does_not_change() {
        let old = defaulted(
            r#"{"spec": {"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ports": [{"port": 80}]}}"#,
        );
        let new = defaulted(
            r#"{"spec": {"clusterIP": "10.0.0.2", "clusterIPs": ["10.0.0.2"], "ports": [{"port": 80}]}}"#,
        );
        assert_eq!(
            lines(validate_update(&new, &old, None)),
            ["spec.clusterIPs[0]: Invalid value: [\"10.0.0.2\"]: may not change once set"]
        );
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
