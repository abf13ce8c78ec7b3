//! EndpointSlice: some of the addresses behind a Service.

use crate::builtin::Builtin;
use crate::columns::{AGE, NAME, age, column, first_of, name_cell};
use crate::tree::{default_to, each, get, int, is_set, list, text};
use crate::{Column, Subresource, check};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value, format};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};

pub const KIND: Builtin = Builtin {
    group: "discovery.k8s.io",
    kind: "EndpointSlice",
    plural: "endpointslices",
    schema: "discovery/v1.EndpointSlice",
    has_generation: true,
    default,
    validate_create: validate,
    validate_update,
    columns: COLUMNS,
    row,
    ..Builtin::EMPTY
};

const MAX_ENDPOINTS: usize = 1000;
const MAX_ADDRESSES: usize = 100;
const MAX_PORTS: usize = 20_000;

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

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let kind = text(get(object, "addressType"));
    let at = Path::new("addressType");
    if kind.is_empty() {
        errors.push(Error::required(&at, ""));
    } else {
        check::one_of(
            get(object, "addressType"),
            &["FQDN", "IPv4", "IPv6"],
            &at,
            &mut errors,
        );
    }
    let endpoints = list(get(object, "endpoints"));
    let path = Path::new("endpoints");
    if endpoints.len() > MAX_ENDPOINTS {
        errors.push(Error::too_many(&path, endpoints.len(), MAX_ENDPOINTS));
    }
    for (i, endpoint) in endpoints.iter().enumerate() {
        check_endpoint(endpoint, kind, &path.index(i), &mut errors);
    }
    check_ports(list(get(object, "ports")), &Path::new("ports"), &mut errors);
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
        let address = text(address);
        let at = at.index(i);
        match kind {
            "IPv4" if address.parse::<Ipv4Addr>().is_err() => {
                errors.push(Error::invalid(&at, address, "must be a valid IPv4 address"));
            }
            "IPv6" if address.parse::<Ipv6Addr>().is_err() => {
                errors.push(Error::invalid(&at, address, "must be a valid IPv6 address"));
            }
            "FQDN" => check::form(format::dns1123_subdomain(address), address, &at, errors),
            _ => {}
        }
    }
    let node = text(&endpoint["nodeName"]);
    if is_set(&endpoint["nodeName"]) {
        check::form(
            format::dns1123_subdomain(node),
            node,
            &path.child("nodeName"),
            errors,
        );
    }
    let host = text(&endpoint["hostname"]);
    if is_set(&endpoint["hostname"]) {
        check::form(
            format::dns1123_label(host),
            host,
            &path.child("hostname"),
            errors,
        );
    }
    check::labels(
        &endpoint["deprecatedTopology"],
        &path.child("deprecatedTopology"),
        errors,
    );
}

fn check_ports(ports: &[Value], path: &Path, errors: &mut Errors) {
    if ports.len() > MAX_PORTS {
        errors.push(Error::too_many(path, ports.len(), MAX_PORTS));
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
        check::one_of(
            &port["protocol"],
            &["SCTP", "TCP", "UDP"],
            &at.child("protocol"),
            errors,
        );
        if is_set(&port["port"]) {
            let number = int(&port["port"]);
            for complaint in format::port_number(number) {
                errors.push(Error::invalid(&at.child("port"), number, complaint));
            }
        }
    }
}

fn validate_update(object: &Object, old: &Object, _: Subresource<'_>) -> Errors {
    let mut errors = Vec::new();
    let at = Path::new("addressType");
    check::immutable(
        get(object, "addressType"),
        get(old, "addressType"),
        &at,
        &mut errors,
    );
    errors.extend(validate(object));
    errors
}
