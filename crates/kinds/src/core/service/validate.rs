//! Validation of Services.

use super::{is_headless, is_reached_from_outside, needs_health_check};
use crate::Subresource;
use crate::address::{endpoint_ip, legacy_cidr, legacy_ip};
use crate::check;
use crate::tree::{get, int, is_set, list, same, text};
use machinery::field::{Error, Errors, Path};
use machinery::json::json;
use machinery::{Object, Value, format};
use std::collections::BTreeSet;

pub(super) const OLD_TOPOLOGY: &str = "service.kubernetes.io/topology-aware-hints";
pub(super) const TOPOLOGY: &str = "service.kubernetes.io/topology-mode";
const SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
const BALANCER_ONLY: &str = "may only be used when `type` is 'LoadBalancer'";
const ONCE: &str = "may not change once set";
const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];

pub(super) fn all(object: &Object, old: Option<&Object>) -> Errors {
    static NONE: Value = Value::Null;
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let before = old.map_or(&NONE, |old| get(old, "spec"));
    let path = Path::new("spec");
    check_topology(object, &mut errors);
    check_for_type(spec, &path, &mut errors);
    check_ports(spec, &path, &mut errors);
    check::labels(&spec["selector"], &path.child("selector"), &mut errors);
    check_affinity(spec, &path, &mut errors);
    errors.extend(address_errors(spec, before));
    check_external_ips(spec, before, &path, &mut errors);
    let types = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    check::known(&spec["type"], &types, &path.child("type"), &mut errors);
    check_port_numbers(spec, &path, &mut errors);
    check_source_ranges(object, old, &path, &mut errors);
    check_balancer(spec, &path, &mut errors);
    check_traffic(spec, &path, &mut errors);
    errors
}

fn check_topology(object: &Object, errors: &mut Errors) {
    let annotations = &get(object, "metadata")["annotations"];
    let (old, new) = (&annotations[OLD_TOPOLOGY], &annotations[TOPOLOGY]);
    if is_set(old) && is_set(new) && old != new {
        let at = Path::new("metadata.annotations");
        let at = at.key(TOPOLOGY);
        let detail = format!("must match annotations[{OLD_TOPOLOGY}] when both are specified");
        errors.push(Error::invalid(&at, new.clone(), detail));
    }
}

fn check_for_type(spec: &Value, path: &Path, errors: &mut Errors) {
    let kind = text(&spec["type"]);
    if list(&spec["ports"]).is_empty() && !is_headless(spec) && kind != "ExternalName" {
        errors.push(Error::required(&path.child("ports"), ""));
    }
    match kind {
        "LoadBalancer" | "NodePort" if is_headless(spec) => {
            let detail = format!("may not be set to 'None' for {kind} services");
            let at = path.child("clusterIPs");
            let at = at.index(0);
            errors.push(Error::invalid(&at, "None", detail));
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
            let name = text(&spec["externalName"]);
            match name.strip_suffix('.').unwrap_or(name) {
                "" => errors.push(Error::required(&at, "")),
                name => check::form(format::dns1123_subdomain(name), name, &at, errors),
            }
        }
        _ => {}
    }
}

fn check_ports(spec: &Value, path: &Path, errors: &mut Errors) {
    let ports = list(&spec["ports"]);
    let mut names = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let at = path.child("ports");
        let at = at.index(i);
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
        check::known(&port["protocol"], &PROTOCOLS, &at.child("protocol"), errors);
        port_or_name(&port["targetPort"], &at.child("targetPort"), errors);
        if let Some(app) = port["appProtocol"].as_str() {
            let at = at.child("appProtocol");
            check::form(format::qualified_name(app), app, &at, errors);
        }
    }
}

/// Service ports and node ports must be unique per protocol.
fn check_port_numbers(spec: &Value, path: &Path, errors: &mut Errors) {
    let path = path.child("ports");
    let ports = || {
        let at = |(i, port)| (path.index(i), port);
        list(&spec["ports"]).iter().enumerate().map(at)
    };
    let node = |port: &Value| int(&port["nodePort"]);
    if spec["type"] == "ClusterIP" {
        for (at, _) in ports().filter(|(_, port)| node(port) != 0) {
            let detail = "may not be used when `type` is 'ClusterIP'";
            errors.push(Error::forbidden(&at.child("nodePort"), detail));
        }
    }
    let mut seen = BTreeSet::new();
    for (at, port) in ports().filter(|(_, port)| node(port) != 0) {
        if !seen.insert((text(&port["protocol"]), node(port))) {
            errors.push(Error::duplicate(&at.child("nodePort"), node(port)));
        }
    }
    let mut seen = BTreeSet::new();
    for (at, port) in ports() {
        let (protocol, number) = (text(&port["protocol"]), int(&port["port"]));
        if !seen.insert((protocol, number)) {
            let key = json!({"Name": "", "Protocol": protocol, "AppProtocol": null,
                "Port": number, "TargetPort": 0, "NodePort": 0});
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

/// A port by number or by a container port's name.
pub(crate) fn port_or_name(value: &Value, path: &Path, errors: &mut Errors) {
    match value.as_str() {
        Some(name) => check::form(format::port_name(name), name, path, errors),
        None => check_number(int(value), path, errors),
    }
}

fn check_affinity(spec: &Value, path: &Path, errors: &mut Errors) {
    const LONGEST: i64 = 86400;
    let at = path.child("sessionAffinity");
    check::known(&spec["sessionAffinity"], &["ClientIP", "None"], &at, errors);
    let config = &spec["sessionAffinityConfig"];
    let at = path.child("sessionAffinityConfig");
    match text(&spec["sessionAffinity"]) {
        "ClientIP" => {
            let timeout = int(&config["clientIP"]["timeoutSeconds"]);
            if !(1..=LONGEST).contains(&timeout) {
                let detail = format!("must be greater than 0 and less than {LONGEST}");
                let at = at.child("clientIP.timeoutSeconds");
                errors.push(Error::invalid(&at, timeout, detail));
            }
        }
        "None" if is_set(config) => {
            let detail = "must not be set when session affinity is None";
            errors.push(Error::forbidden(&at, detail));
        }
        _ => {}
    }
}

/// Errors in `clusterIP`, `clusterIPs`, `ipFamilies` and `ipFamilyPolicy` among themselves. Checked
/// before addresses are allocated.
pub fn address_errors(spec: &Value, before: &Value) -> Errors {
    let mut errors = Vec::new();
    if spec["type"] == "ExternalName" {
        return errors;
    }
    let path = Path::new("spec");
    let at = path.child("clusterIPs");
    let many = list(&spec["clusterIPs"]);
    let refuse = |detail: &str| Error::invalid(&at, spec["clusterIPs"].clone(), detail);
    match (text(&spec["clusterIP"]), many.first()) {
        ("", None) => {}
        ("", Some(_)) => errors.push(refuse("must be empty when `clusterIP` is not specified")),
        (_, None) => errors.push(Error::required(&at, "")),
        (single, Some(first)) if single != text(first) => {
            errors.push(refuse("first value must match `clusterIP`"));
        }
        _ => {}
    }
    check_families(spec, &path, &mut errors);
    let known = errors.len();
    for (i, ip) in many.iter().enumerate() {
        if i == 0 && ip == "None" {
            if many.len() > 1 {
                errors.push(refuse("'None' must be the first and only value"));
            }
            continue;
        }
        legacy_ip(ip, list(&before["clusterIPs"]), &at.index(i), &mut errors);
    }
    let are_addresses = errors.len() == known;
    if many.len() > 2 {
        errors.push(refuse("may only hold up to 2 values"));
    }
    if !are_addresses {
        return errors;
    }
    let is_v6 = |ip: &Value| check::loose_ip(text(ip)).is_some_and(|ip| ip.is_ipv6());
    if many.len() > 1 && many.iter().all(|ip| is_v6(ip) == is_v6(&many[0])) {
        errors.push(refuse("may specify no more than one IP for each IP family"));
    }
    if !is_headless(spec) {
        for (i, (ip, family)) in many.iter().zip(list(&spec["ipFamilies"])).enumerate() {
            let other = match text(family) {
                "IPv4" => is_v6(ip),
                "IPv6" => !is_v6(ip),
                _ => false,
            };
            if other {
                let family = text(family);
                let detail =
                    format!("expected an {family} value as indicated by `ipFamilies[{i}]`");
                errors.push(Error::invalid(&at.index(i), text(ip), detail));
            }
        }
    }
    errors
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
        let at = path.child("ipFamilyPolicy");
        check::one_of(&spec["ipFamilyPolicy"], &policies, &at, errors);
    }
}

fn check_external_ips(spec: &Value, before: &Value, path: &Path, errors: &mut Errors) {
    let at = path.child("externalIPs");
    for (i, ip) in list(&spec["externalIPs"]).iter().enumerate() {
        let known = errors.len();
        legacy_ip(ip, list(&before["externalIPs"]), &at.index(i), errors);
        if errors.len() == known {
            endpoint_ip(text(ip), &at.index(i), errors);
        }
    }
}

/// In the field or in the older annotation.
fn check_source_ranges(object: &Object, old: Option<&Object>, path: &Path, errors: &mut Errors) {
    let spec = get(object, "spec");
    let annotation =
        |object: &Object| get(object, "metadata")["annotations"][SOURCE_RANGES].clone();
    let ranges = list(&spec["loadBalancerSourceRanges"]);
    if !ranges.is_empty() {
        let at = path.child("LoadBalancerSourceRanges");
        if spec["type"] != "LoadBalancer" {
            errors.push(Error::forbidden(&at, BALANCER_ONLY));
        }
        let before = old.map(|old| list(&get(old, "spec")["loadBalancerSourceRanges"]));
        let before: Vec<&str> = before.unwrap_or_default().iter().map(trimmed).collect();
        for (i, range) in ranges.iter().enumerate() {
            legacy_cidr(trimmed(range), &before, &at.index(i), errors);
        }
    } else if let Some(ranges) = annotation(object).as_str() {
        let at = Path::new("metadata.annotations");
        let at = at.key(SOURCE_RANGES);
        if spec["type"] != "LoadBalancer" {
            errors.push(Error::forbidden(&at, BALANCER_ONLY));
        }
        let changed = old.is_none_or(|old| annotation(old) != ranges);
        if changed && !ranges.trim().is_empty() {
            for range in ranges.trim().split(',') {
                check::cidr(range.trim(), &at, errors);
            }
        }
    }
}

fn trimmed(value: &Value) -> &str {
    text(value).trim()
}

fn check_balancer(spec: &Value, path: &Path, errors: &mut Errors) {
    let is_balancer = spec["type"] == "LoadBalancer";
    let allocates = &spec["allocateLoadBalancerNodePorts"];
    if is_set(allocates) && !is_balancer {
        let at = path.child("allocateLoadBalancerNodePorts");
        errors.push(Error::forbidden(&at, BALANCER_ONLY));
    }
    if is_balancer && !is_set(allocates) {
        let at = Path::new("allocateLoadBalancerNodePorts");
        errors.push(Error::required(&at, ""));
    }
    check_class(spec, path, errors);
}

fn check_class(spec: &Value, path: &Path, errors: &mut Errors) {
    let Some(class) = spec["loadBalancerClass"].as_str() else {
        return;
    };
    let at = path.child("loadBalancerClass");
    if spec["type"] == "LoadBalancer" {
        check::form(format::qualified_name(class), class, &at, errors);
    } else {
        errors.push(Error::forbidden(&at, BALANCER_ONLY));
    }
}

fn check_traffic(spec: &Value, path: &Path, errors: &mut Errors) {
    let policies = ["Cluster", "Local"];
    let at = path.child("externalTrafficPolicy");
    let policy = text(&spec["externalTrafficPolicy"]);
    if is_reached_from_outside(spec) {
        check::known(&spec["externalTrafficPolicy"], &policies, &at, errors);
    } else if !policy.is_empty() {
        let detail = "may only be set for externally-accessible services";
        errors.push(Error::invalid(&at, policy, detail));
    }
    let at = path.child("healthCheckNodePort");
    match (needs_health_check(spec), int(&spec["healthCheckNodePort"])) {
        (false, 0) => {}
        (false, port) => {
            let detail = "may only be set when `type` is 'LoadBalancer' and \
                          `externalTrafficPolicy` is 'Local'";
            errors.push(Error::invalid(&at, port, detail));
        }
        (true, 0) => errors.push(Error::required(&at, "")),
        (true, port) => check_number(port, &at, errors),
    }
    let at = path.child("internalTrafficPolicy");
    let policy = &spec["internalTrafficPolicy"];
    if is_set(policy) {
        check::one_of(policy, &policies, &at, errors);
    } else if matches!(
        text(&spec["type"]),
        "NodePort" | "LoadBalancer" | "ClusterIP"
    ) {
        errors.push(Error::required(&at, ""));
    }
    if is_set(&spec["trafficDistribution"]) {
        let known = ["PreferClose", "PreferSameZone", "PreferSameNode"];
        let at = path.child("trafficDistribution");
        check::one_of(&spec["trafficDistribution"], &known, &at, errors);
    }
}

pub(super) fn update(object: &Object, old: &Object, subresource: Subresource<'_>) -> Errors {
    let mut errors = Vec::new();
    if subresource.is_some() {
        check_status(object, old, &mut errors);
        return errors;
    }
    let (new, was) = (get(object, "spec"), get(old, "spec"));
    let path = Path::new("spec");
    if new["type"] != "ExternalName" && was["type"] != "ExternalName" {
        check_addresses_stay(new, was, &path, &mut errors);
        check_families_stay(new, was, &path, &mut errors);
    }
    let class = path.child("loadBalancerClass");
    if new["type"] == "LoadBalancer"
        && was["type"] == "LoadBalancer"
        && !same(&new["loadBalancerClass"], &was["loadBalancerClass"])
    {
        let value = new["loadBalancerClass"].clone();
        errors.push(Error::invalid(&class, value, ONCE));
    }
    check_class(new, &path, &mut errors);
    if needs_health_check(new)
        && needs_health_check(was)
        && int(&new["healthCheckNodePort"]) != int(&was["healthCheckNodePort"])
    {
        let at = path.child("healthCheckNodePort");
        errors.push(Error::forbidden(&at, check::IMMUTABLE));
    }
    errors.extend(all(object, Some(old)));
    errors
}

fn check_addresses_stay(new: &Value, was: &Value, path: &Path, errors: &mut Errors) {
    if is_headless(new) && is_headless(was) {
        return;
    }
    let at = path.child("clusterIPs");
    let (before, now) = (list(&was["clusterIPs"]), list(&new["clusterIPs"]));
    let refuse = |i: usize, detail| Error::invalid(&at.index(i), new["clusterIPs"].clone(), detail);
    if before.len() == now.len() {
        let pairs = before.iter().zip(now).enumerate();
        errors.extend(
            pairs
                .filter(|(_, (a, b))| a != b)
                .map(|(i, _)| refuse(i, ONCE)),
        );
        return;
    }
    if now.is_empty() {
        errors.push(refuse(0, "primary clusterIP can not be unset"));
    } else if before.first().is_some_and(|first| *first != now[0]) {
        errors.push(refuse(0, ONCE));
    }
    check_released(new, before, now, "clusterIP", path, errors);
}

fn check_families_stay(new: &Value, was: &Value, path: &Path, errors: &mut Errors) {
    if is_headless(new) || is_headless(was) {
        return;
    }
    let at = path.child("ipFamilies");
    let at = at.index(0);
    let (before, now) = (list(&was["ipFamilies"]), list(&new["ipFamilies"]));
    if before.len() == now.len() {
        let changed = before.iter().zip(now).filter(|(a, b)| a != b);
        errors.extend(changed.map(|_| Error::invalid(&at, new["ipFamilies"].clone(), ONCE)));
        return;
    }
    if before.len() > now.len() && list(&new["clusterIPs"]).is_empty() {
        let detail = "primary ipFamily can not be unset";
        errors.push(Error::invalid(&at, new["ipFamilies"].clone(), detail));
    }
    if let (Some(a), Some(b)) = (before.first(), now.first())
        && a != b
    {
        errors.push(Error::invalid(&at, new["clusterIPs"].clone(), ONCE));
    }
    check_released(new, before, now, "ipFamily", path, errors);
}

/// The secondary address or family can be released only with policy SingleStack.
fn check_released(
    new: &Value,
    before: &[Value],
    now: &[Value],
    what: &str,
    path: &Path,
    errors: &mut Errors,
) {
    let policy = &new["ipFamilyPolicy"];
    if before.len() > 1 && now.len() == 1 && policy != "SingleStack" {
        let detail = format!("must be set to 'SingleStack' when releasing the secondary {what}");
        let at = path.child("ipFamilyPolicy");
        errors.push(Error::invalid(&at, policy.clone(), detail));
    }
}

fn check_status(object: &Object, old: &Object, errors: &mut Errors) {
    let path = Path::new("status.loadBalancer.ingress");
    let of = |object: &Object| get(object, "status")["loadBalancer"]["ingress"].clone();
    let (ingress, before) = (of(object), of(old));
    let is_balancer = get(object, "spec")["type"] == "LoadBalancer";
    if !is_balancer && !list(&ingress).is_empty() {
        let detail = "may only be used when `spec.type` is 'LoadBalancer'";
        errors.push(Error::forbidden(&path, detail));
        return;
    }
    let before: Vec<Value> = list(&before).iter().map(|i| i["ip"].clone()).collect();
    for (i, ingress) in list(&ingress).iter().enumerate() {
        check_ingress(ingress, &before, &path.index(i), errors);
    }
}

fn check_ingress(ingress: &Value, before: &[Value], path: &Path, errors: &mut Errors) {
    let has_ip = !text(&ingress["ip"]).is_empty();
    if has_ip {
        legacy_ip(&ingress["ip"], before, &path.child("ip"), errors);
    }
    let at = path.child("ipMode");
    match (is_set(&ingress["ipMode"]), has_ip) {
        (false, true) => {
            errors.push(Error::required(&at, "must be specified when `ip` is set"));
        }
        (true, false) => {
            let detail = "may not be specified when `ip` is not set";
            errors.push(Error::forbidden(&at, detail));
        }
        (true, true) => check::one_of(&ingress["ipMode"], &["Proxy", "VIP"], &at, errors),
        (false, false) => {}
    }
    balancer_hostname(text(&ingress["hostname"]), &path.child("hostname"), errors);
}

/// Validates the host name of a load balancer.
pub(crate) fn balancer_hostname(name: &str, path: &Path, errors: &mut Errors) {
    if name.is_empty() {
        return;
    }
    check::form(format::dns1123_subdomain(name), name, path, errors);
    if check::loose_ip(name).is_some() {
        let detail = "must be a DNS name, not an IP address";
        errors.push(Error::invalid(path, name, detail));
    }
}

#[cfg(test)]
mod tests;
