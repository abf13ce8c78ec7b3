//! Fields of a Service that are kept or dropped when an update omits them or changes the type.

use super::{is_reached_from_outside, needs_health_check};
use crate::tree::{child_or_new, each, get, int, is_set, list, same, text};
use crate::{Context, Subresource};
use machinery::json::json;
use machinery::{Object, Value};
use std::collections::{BTreeMap, BTreeSet};

/// A client that sets only `clusterIP` sets `clusterIPs` too.
pub(super) fn prepare_create(object: &mut Object) {
    let spec = child_or_new(object, "spec");
    drop_internal_policy(spec);
    let single = text(get(spec, "clusterIP")).to_owned();
    if !single.is_empty() && list(get(spec, "clusterIPs")).is_empty() {
        spec.insert("clusterIPs".to_owned(), json!([single]));
    }
}

/// An ExternalName has no internalTrafficPolicy. Unknown policies are left for validation.
fn drop_internal_policy(spec: &mut Object) {
    let known = matches!(
        text(get(spec, "internalTrafficPolicy")),
        "Cluster" | "Local"
    );
    if get(spec, "type") == "ExternalName" && known {
        spec.shift_remove("internalTrafficPolicy");
    }
}

pub(super) fn prepare_update(
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
    keep_given(spec, before);
    mirror_changed_address(spec, before);
    drop_foreign(spec, before);
    drop_internal_policy(spec);
    if get(spec, "type") != "LoadBalancer"
        && let Some(status) = object.get_mut("status").and_then(Value::as_object_mut)
    {
        status.insert("loadBalancer".to_owned(), json!({}));
    }
}

fn needs_address(spec: &Value) -> bool {
    spec["type"] != "ExternalName"
}

fn needs_port(spec: &Value) -> bool {
    matches!(text(&spec["type"]), "NodePort" | "LoadBalancer")
}

fn node_ports(spec: &Value) -> BTreeSet<i64> {
    let ports = list(&spec["ports"]).iter().map(|p| int(&p["nodePort"]));
    ports.filter(|port| *port != 0).collect()
}

/// Allocated values are kept if the update omits them.
fn keep_given(spec: &mut Object, before: &Value) {
    let now = Value::Object(spec.clone());
    if needs_address(before) && needs_address(&now) {
        if text(&now["clusterIP"]).is_empty() && is_set(&before["clusterIP"]) {
            spec.insert("clusterIP".to_owned(), before["clusterIP"].clone());
        }
        if list(&now["clusterIPs"]).is_empty() && is_set(&before["clusterIPs"]) {
            spec.insert("clusterIPs".to_owned(), before["clusterIPs"].clone());
        }
    }
    if needs_port(before) && needs_port(&now) {
        let used: BTreeSet<i64> = &node_ports(before) & &node_ports(&now);
        let given: BTreeMap<&str, i64> = list(&before["ports"])
            .iter()
            .map(|p| (text(&p["name"]), int(&p["nodePort"])))
            .collect();
        for port in each(spec, "ports") {
            let old = given.get(text(get(port, "name"))).copied().unwrap_or(0);
            if int(get(port, "nodePort")) == 0 && old != 0 && !used.contains(&old) {
                port.insert("nodePort".to_owned(), old.into());
            }
        }
    }
    if needs_health_check(before)
        && needs_health_check(&now)
        && int(&now["healthCheckNodePort"]) == 0
        && is_set(&before["healthCheckNodePort"])
    {
        let port = before["healthCheckNodePort"].clone();
        spec.insert("healthCheckNodePort".to_owned(), port);
    }
}

/// If a client changes only one of the two fields, both change.
fn mirror_changed_address(spec: &mut Object, before: &Value) {
    let was = text(&before["clusterIP"]);
    let is = text(get(spec, "clusterIP")).to_owned();
    let many_were = list(&before["clusterIPs"]);
    if !many_were.is_empty() && list(get(spec, "clusterIPs")).is_empty() && was == is {
        spec.insert("clusterIPs".to_owned(), before["clusterIPs"].clone());
    }
    if was == is || list(get(spec, "clusterIPs")) != many_were {
        return;
    }
    if is.is_empty() {
        spec.shift_remove("clusterIPs");
    } else {
        spec.insert("clusterIPs".to_owned(), json!([is]));
    }
}

/// A change of type drops fields that only the old type had, unless the update changes them.
fn drop_foreign(spec: &mut Object, before: &Value) {
    let now = Value::Object(spec.clone());
    let unchanged = |field: &str| same(&now[field], &before[field]);
    let mut dropped = Vec::new();
    if needs_address(before) && !needs_address(&now) {
        if unchanged("clusterIP") && unchanged("clusterIPs") {
            dropped.extend(["clusterIP", "clusterIPs"]);
        }
        let fields = ["ipFamilies", "ipFamilyPolicy"];
        dropped.extend(fields.into_iter().filter(|field| unchanged(field)));
    }
    if needs_health_check(before) && !needs_health_check(&now) && unchanged("healthCheckNodePort") {
        dropped.push("healthCheckNodePort");
    }
    if before["type"] == "LoadBalancer" && now["type"] != "LoadBalancer" {
        let fields = ["allocateLoadBalancerNodePorts", "loadBalancerClass"];
        dropped.extend(fields.into_iter().filter(|field| unchanged(field)));
    }
    if is_reached_from_outside(before)
        && !is_reached_from_outside(&now)
        && unchanged("externalTrafficPolicy")
    {
        dropped.push("externalTrafficPolicy");
    }
    for field in dropped {
        spec.shift_remove(field);
    }
    if needs_port(before) && !needs_port(&now) && node_ports(&now).is_subset(&node_ports(before)) {
        for port in each(spec, "ports") {
            port.shift_remove("nodePort");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::defaulted;
    use super::*;

    fn updated(old: &str, new: &str) -> Value {
        let mut new = defaulted(new);
        let context = Context { now: "", user: "" };
        prepare_update(&mut new, &defaulted(old), None, &context);
        get(&new, "spec").clone()
    }

    const NODE_PORT: &str = r#"{"spec": {"type": "NodePort", "clusterIP": "10.0.0.1",
        "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
        "ports": [{"name": "a", "port": 80, "nodePort": 30001}, {"name": "b", "port": 81, "nodePort": 30002}]}}"#;

    #[test]
    fn an_update_keeps_the_address_and_node_ports_it_does_not_speak_of() {
        let spec = updated(
            NODE_PORT,
            r#"{"spec": {"type": "NodePort", "ports": [{"name": "a", "port": 8080}]}}"#,
        );
        assert_eq!(spec["clusterIP"], "10.0.0.1");
        assert_eq!(spec["clusterIPs"], json!(["10.0.0.1"]));
        assert_eq!(spec["ports"][0]["nodePort"], 30001);
    }

    #[test]
    fn a_moved_node_port_is_not_assigned_twice() {
        let spec = updated(
            NODE_PORT,
            r#"{"spec": {"type": "NodePort", "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81, "nodePort": 30001}]}}"#,
        );
        assert_eq!(spec["ports"][0]["nodePort"], Value::Null);
    }

    #[test]
    fn a_change_of_service_type_drops_fields_of_the_old_type() {
        let spec = updated(
            NODE_PORT,
            r#"{"spec": {"type": "ExternalName", "externalName": "x", "clusterIP": "10.0.0.1",
                "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
                "externalTrafficPolicy": "Cluster", "ports": [{"name": "a", "port": 80, "nodePort": 30001}]}}"#,
        );
        for field in [
            "clusterIP",
            "clusterIPs",
            "ipFamilies",
            "externalTrafficPolicy",
        ] {
            assert_eq!(spec[field], Value::Null, "{field}");
        }
        assert_eq!(spec["ports"][0]["nodePort"], Value::Null);
        let spec = updated(
            NODE_PORT,
            r#"{"spec": {"type": "ClusterIP", "ports": [{"name": "a", "port": 80, "nodePort": 30009}]}}"#,
        );
        assert_eq!(
            spec["ports"][0]["nodePort"], 30009,
            "a new one is for validation to refuse"
        );
    }

    #[test]
    fn a_name_elsewhere_has_no_traffic_policy() {
        let mut service =
            defaulted(r#"{"spec": {"type": "ExternalName", "internalTrafficPolicy": "Local"}}"#);
        prepare_create(&mut service);
        assert_eq!(get(&service, "spec")["internalTrafficPolicy"], Value::Null);
    }

    #[test]
    fn cluster_ips_follow_a_changed_cluster_ip() {
        let spec = updated(
            NODE_PORT,
            r#"{"spec": {"type": "NodePort", "clusterIP": "10.0.0.9", "clusterIPs": ["10.0.0.1"]}}"#,
        );
        assert_eq!(spec["clusterIPs"], json!(["10.0.0.9"]));
    }
}
