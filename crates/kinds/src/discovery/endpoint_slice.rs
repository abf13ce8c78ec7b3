//! EndpointSlice: a part of the endpoints of a Service.

use crate::address::{endpoint_ip, ip_warnings, strict_ip};
use crate::builtin::Builtin;
use crate::columns::{AGE, NAME, age, column, first_of, name_cell};
use crate::metadata::Check;
use crate::tree::{child_or_new, default_to, each, entries, get, int, list, same, text};
use crate::{Column, Subresource, check};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value, format};
use std::collections::BTreeSet;

pub const KIND: Builtin = Builtin {
    group: "discovery.k8s.io",
    kind: "EndpointSlice",
    plural: "endpointslices",
    schema: "discovery/v1.EndpointSlice",
    has_generation: true,
    default,
    prepare_create: |object, _| drop_topology(object, None),
    prepare_update: |object, old, _, _| {
        let changed = !same(get(object, "endpoints"), get(old, "endpoints"));
        if changed {
            drop_topology(object, Some(old));
        }
        count(object, old, changed);
    },
    validate_create: validate,
    validate_update,
    warnings,
    columns: COLUMNS,
    row,
    metadata_checks: &[Check::Whole],
    ..Builtin::EMPTY
};

const MAX_ENDPOINTS: usize = 1000;
const MAX_ADDRESSES: usize = 100;
const MAX_PORTS: usize = 20_000;
const MAX_TOPOLOGY: usize = 16;
const MAX_HINTS: usize = 8;

const COLUMNS: &[Column] = &[
    NAME,
    column("AddressType", "string", "Kind of the addresses."),
    column("Ports", "string", "Ports of every endpoint."),
    column("Endpoints", "string", "Addresses."),
    AGE,
];

fn default(object: &mut Object) {
    for port in each(object, "ports") {
        default_to(port, "name", "");
        default_to(port, "protocol", "TCP");
    }
}

fn row(object: &Object, now: i64) -> Vec<Value> {
    let port = |p: &Value| match (p["port"].as_i64(), p["name"].as_str()) {
        (Some(number), _) => number.to_string(),
        (None, Some(name)) => name.to_owned(),
        (None, None) => "*".to_owned(),
    };
    let ports: Vec<String> = list(get(object, "ports")).iter().map(port).collect();
    let addresses: Vec<String> = list(get(object, "endpoints"))
        .iter()
        .flat_map(|e| list(&e["addresses"]))
        .map(|a| text(a).to_owned())
        .collect();
    vec![
        name_cell(object),
        text(get(object, "addressType")).into(),
        Value::from(first_of(&ports, 3)),
        Value::from(first_of(&addresses, 3)),
        age(object, now),
    ]
}

const HOSTNAME: &str = "kubernetes.io/hostname";

/// Drops the deprecated topology; its node name is kept.
fn drop_topology(object: &mut Object, old: Option<&Object>) {
    let known: BTreeSet<String> = old
        .map(|old| list(get(old, "endpoints")))
        .unwrap_or_default()
        .iter()
        .map(|endpoint| text(&endpoint["deprecatedTopology"][HOSTNAME]).to_owned())
        .filter(|name| !name.is_empty())
        .collect();
    for endpoint in each(object, "endpoints") {
        let topology = endpoint
            .shift_remove("deprecatedTopology")
            .unwrap_or_default();
        let node = text(&topology[HOSTNAME]);
        if known.contains(node) && format::dns1123_subdomain(node).is_empty() {
            default_to(endpoint, "nodeName", node);
        }
    }
}

/// The generation also counts changes of labels, which name the slice's Service, and changes that
/// are then dropped.
fn count(object: &mut Object, old: &Object, changed: bool) {
    let before = get(old, "metadata");
    if !changed && same(&get(object, "metadata")["labels"], &before["labels"]) {
        return;
    }
    let generation = int(&before["generation"]) + 1;
    child_or_new(object, "metadata").insert("generation".to_owned(), generation.into());
}

fn warnings(object: &Object, old: Option<&Object>) -> Vec<String> {
    let mut out = Vec::new();
    if old.is_none() && get(object, "addressType") == "FQDN" {
        out.push("spec.addressType: FQDN endpoints are deprecated".to_owned());
    }
    let manager = &get(object, "metadata")["labels"]["endpointslice.kubernetes.io/managed-by"];
    let ours = [
        "endpointslice-controller.k8s.io",
        "endpointslicemirroring-controller.k8s.io",
    ];
    if ours.contains(&text(manager)) {
        return out;
    }
    for (i, endpoint) in list(get(object, "endpoints")).iter().enumerate() {
        for (j, address) in list(&endpoint["addresses"]).iter().enumerate() {
            let at = Path::new("endpoints");
            let at = at.index(i);
            let at = at.child("addresses");
            let at = at.index(j);
            out.extend(ip_warnings(text(address), &at));
        }
    }
    out
}

fn validate(object: &Object) -> Errors {
    let mut errors = check_frame(object);
    errors.extend(check_endpoints(object));
    errors
}

fn check_frame(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let kinds = ["FQDN", "IPv4", "IPv6"];
    check::known(
        get(object, "addressType"),
        &kinds,
        &Path::new("addressType"),
        &mut errors,
    );
    check_ports(list(get(object, "ports")), &Path::new("ports"), &mut errors);
    errors
}

fn check_endpoints(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let kind = text(get(object, "addressType"));
    let endpoints = list(get(object, "endpoints"));
    let path = Path::new("endpoints");
    if endpoints.len() > MAX_ENDPOINTS {
        errors.push(Error::too_many(&path, endpoints.len(), MAX_ENDPOINTS));
        return errors;
    }
    for (i, endpoint) in endpoints.iter().enumerate() {
        check_endpoint(endpoint, kind, &path.index(i), &mut errors);
    }
    errors
}

fn check_endpoint(endpoint: &Value, kind: &str, path: &Path, errors: &mut Errors) {
    let at = path.child("addresses");
    let addresses = list(&endpoint["addresses"]);
    if addresses.is_empty() {
        errors.push(Error::required(&at, "must contain at least 1 address"));
    } else if addresses.len() > MAX_ADDRESSES {
        errors.push(Error::too_many(&at, addresses.len(), MAX_ADDRESSES));
    }
    for (i, address) in addresses.iter().enumerate() {
        match kind {
            "FQDN" => check_domain(text(address), &at.index(i), errors),
            "IPv4" | "IPv6" => check_address(text(address), kind, &at, i, errors),
            _ => {}
        }
    }
    if let Some(node) = endpoint["nodeName"].as_str() {
        let form = format::dns1123_subdomain(node);
        check::form(form, node, &path.child("nodeName"), errors);
    }
    let topology = path.child("deprecatedTopology");
    let labels = entries(&endpoint["deprecatedTopology"]).count();
    if labels > MAX_TOPOLOGY {
        errors.push(Error::too_many(&topology, labels, MAX_TOPOLOGY));
    }
    check::labels(&endpoint["deprecatedTopology"], &topology, errors);
    if let Some(host) = endpoint["hostname"].as_str() {
        check::form(
            format::dns1123_label(host),
            host,
            &path.child("hostname"),
            errors,
        );
    }
    check_hints(&endpoint["hints"], &path.child("hints"), errors);
}

fn check_address(address: &str, kind: &str, path: &Path, index: usize, errors: &mut Errors) {
    let known = errors.len();
    let at = path.index(index);
    if kind == "IPv4" {
        check::ip(address, &at, errors);
    } else {
        strict_ip(address, &at, errors);
    }
    if errors.len() > known {
        return;
    }
    if address.contains(':') != (kind == "IPv6") {
        let detail = format!("must be an {kind} address");
        errors.push(Error::invalid(path, address, detail));
    }
    endpoint_ip(address, &at, errors);
}

/// A name of at least two labels.
fn check_domain(name: &str, path: &Path, errors: &mut Errors) {
    if name.is_empty() {
        errors.push(Error::required(path, ""));
        return;
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    let complaints = format::dns1123_subdomain(name);
    if !complaints.is_empty() {
        errors.push(Error::invalid(path, name, complaints.join(",")));
        return;
    }
    if !name.contains('.') {
        let detail = "should be a domain with at least two segments separated by dots";
        errors.push(Error::invalid(path, name, detail));
        return;
    }
    for label in name.split('.') {
        let complaints = format::dns1123_label(label);
        if !complaints.is_empty() {
            errors.push(Error::invalid(path, label, complaints.join(",")));
            return;
        }
    }
}

fn check_hints(hints: &Value, path: &Path, errors: &mut Errors) {
    type Form = fn(&str) -> Vec<String>;
    let forms: [(&str, Form); 2] = [
        ("forZones", format::label_value),
        ("forNodes", format::dns1123_subdomain),
    ];
    for (field, form) in forms {
        let at = path.child(field);
        let hints = list(&hints[field]);
        if hints.len() > MAX_HINTS {
            errors.push(Error::too_many(&at, hints.len(), MAX_HINTS));
            return;
        }
        let mut names = BTreeSet::new();
        for (i, hint) in hints.iter().enumerate() {
            let at = at.index(i);
            let (name, at) = (text(&hint["name"]), at.child("name"));
            if !names.insert(name) {
                errors.push(Error::duplicate(&at, name));
            }
            check::form(form(name), name, &at, errors);
        }
    }
}

fn check_ports(ports: &[Value], path: &Path, errors: &mut Errors) {
    if ports.len() > MAX_PORTS {
        errors.push(Error::too_many(path, ports.len(), MAX_PORTS));
        return;
    }
    let mut names = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let at = path.index(i);
        let name = text(&port["name"]);
        if !name.is_empty() {
            check::form(format::dns1123_label(name), name, &at.child("name"), errors);
        }
        if !names.insert(name) {
            errors.push(Error::duplicate(&at.child("name"), name));
        }
        let protocols = ["SCTP", "TCP", "UDP"];
        check::one_of(&port["protocol"], &protocols, &at.child("protocol"), errors);
        if let Some(app) = port["appProtocol"].as_str() {
            let form = format::qualified_name(app);
            check::form(form, app, &at.child("appProtocol"), errors);
        }
    }
}

fn validate_update(object: &Object, old: &Object, _: Subresource<'_>) -> Errors {
    let mut errors = check_frame(object);
    // Values that were valid under older rules are kept on update.
    if !same(get(object, "endpoints"), get(old, "endpoints")) {
        errors.extend(check_endpoints(object));
    }
    let kind = |o| get(o, "addressType").clone();
    check::immutable(
        &kind(object),
        &kind(old),
        &Path::new("addressType"),
        &mut errors,
    );
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};
    use machinery::json::json;

    fn messages(kind: &str, endpoint: &str) -> String {
        let slice = format!(r#"{{"addressType": "{kind}", "endpoints": [{endpoint}]}}"#);
        lines(validate(&object(&slice))).join(" ")
    }

    #[test]
    fn addresses_match_the_address_type() {
        let at = "endpoints[0].addresses";
        let cases = [
            ("IPv4", "10.0.0.1", String::new()),
            ("IPv6", "2001:db8::1", String::new()),
            ("FQDN", "a.example.com.", String::new()),
            (
                "IPv4",
                "2001:db8::1",
                format!(r#"{at}: Invalid value: "2001:db8::1": must be an IPv4 address"#),
            ),
            (
                "IPv6",
                "2001:DB8::1",
                format!(
                    r#"{at}[0]: Invalid value: "2001:DB8::1": must be in canonical form ("2001:db8::1")"#
                ),
            ),
            (
                "IPv4",
                "127.0.0.1",
                format!(
                    r#"{at}[0]: Invalid value: "127.0.0.1": may not be in the loopback range (127.0.0.0/8, ::1/128)"#
                ),
            ),
            (
                "IPv4",
                "x",
                format!(
                    r#"{at}[0]: Invalid value: "x": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"#
                ),
            ),
            (
                "FQDN",
                "a",
                format!(
                    r#"{at}[0]: Invalid value: "a": should be a domain with at least two segments separated by dots"#
                ),
            ),
        ];
        for (kind, address, expected) in cases {
            let endpoint = format!(r#"{{"addresses": ["{address}"]}}"#);
            assert_eq!(messages(kind, &endpoint), expected, "{address}");
        }
    }

    #[test]
    fn hints_are_names_and_each_once() {
        let endpoint = |hints: &str| format!(r#"{{"addresses": ["10.0.0.1"], "hints": {hints}}}"#);
        assert_eq!(
            messages(
                "IPv4",
                &endpoint(r#"{"forZones": [{"name": "a"}, {"name": "a"}]}"#)
            ),
            r#"endpoints[0].hints.forZones[1].name: Duplicate value: "a""#
        );
        assert!(
            messages("IPv4", &endpoint(r#"{"forNodes": [{"name": "A"}]}"#))
                .starts_with(r#"endpoints[0].hints.forNodes[0].name: Invalid value: "A""#)
        );
    }

    #[test]
    fn the_old_topology_is_not_written_any_more() {
        let endpoints = |endpoint: &str| object(&format!(r#"{{"endpoints": [{endpoint}]}}"#));
        let written = r#"{"deprecatedTopology": {"kubernetes.io/hostname": "n", "a": "b"}}"#;
        let mut slice = endpoints(written);
        drop_topology(&mut slice, None);
        assert_eq!(get(&slice, "endpoints"), &json!([{}]));
        let mut slice = endpoints(written);
        drop_topology(&mut slice, Some(&endpoints(written)));
        assert_eq!(get(&slice, "endpoints"), &json!([{"nodeName": "n"}]));
    }

    #[test]
    fn a_change_of_labels_is_a_change() {
        let old = object(r#"{"metadata": {"generation": 3, "labels": {"a": "b"}}}"#);
        let mut new = object(r#"{"metadata": {"generation": 3, "labels": {"a": "c"}}}"#);
        count(&mut new, &old, false);
        assert_eq!(get(&new, "metadata")["generation"], 4);
    }
}
