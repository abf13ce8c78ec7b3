//! Endpoints: the addresses behind a Service, in the form before EndpointSlice.

use crate::builtin::Builtin;
use crate::columns::{AGE, NAME, age, column, name_cell};
use crate::tree::{default_empty, each, get, int, list, text};
use crate::{Column, Subresource, check};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value, format};

pub const KIND: Builtin = Builtin {
    kind: "Endpoints",
    plural: "endpoints",
    short_names: &["ep"],
    schema: "core/v1.Endpoints",
    creates_on_update: true,
    default,
    validate_create: validate,
    validate_update: |object, _, _: Subresource<'_>| validate(object),
    columns: COLUMNS,
    row,
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Endpoints", "string", "Ready addresses and ports."),
    AGE,
];

fn default(object: &mut Object) {
    for subset in each(object, "subsets") {
        for port in each(subset, "ports") {
            default_empty(port, "protocol", "TCP");
        }
    }
}

fn row(object: &Object, now: i64) -> Vec<Value> {
    vec![
        name_cell(object),
        Value::from(addresses(object)),
        age(object, now),
    ]
}

fn addresses(object: &Object) -> String {
    const SHOWN: usize = 3;
    let mut all = Vec::new();
    for subset in list(get(object, "subsets")) {
        let ports = list(&subset["ports"]);
        for address in list(&subset["addresses"]) {
            let ip = text(&address["ip"]);
            if ports.is_empty() {
                all.push(ip.to_owned());
            }
            for port in ports {
                let port = int(&port["port"]);
                all.push(if ip.contains(':') {
                    format!("[{ip}]:{port}")
                } else {
                    format!("{ip}:{port}")
                });
            }
        }
    }
    if all.is_empty() {
        return "<none>".to_owned();
    }
    let shown = all[..all.len().min(SHOWN)].join(",");
    if all.len() > SHOWN {
        format!("{shown} + {} more...", all.len() - SHOWN)
    } else {
        shown
    }
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    for (i, subset) in list(get(object, "subsets")).iter().enumerate() {
        let at = Path::new("subsets").index(i);
        if list(&subset["addresses"]).is_empty() && list(&subset["notReadyAddresses"]).is_empty() {
            let detail = "must specify `addresses` or `notReadyAddresses`";
            errors.push(Error::required(&at, detail));
        }
        for field in ["addresses", "notReadyAddresses"] {
            for (j, address) in list(&subset[field]).iter().enumerate() {
                let ip = text(&address["ip"]);
                if ip.parse::<std::net::IpAddr>().is_err() {
                    let detail = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
                    errors.push(Error::invalid(
                        &at.child(field).index(j).child("ip"),
                        ip,
                        detail,
                    ));
                }
            }
        }
        let ports = list(&subset["ports"]);
        for (j, port) in ports.iter().enumerate() {
            check_port(
                port,
                ports.len() > 1,
                &at.child("ports").index(j),
                &mut errors,
            );
        }
    }
    errors
}

fn check_port(port: &Value, needs_name: bool, path: &Path, errors: &mut Errors) {
    let name = text(&port["name"]);
    if needs_name && name.is_empty() {
        errors.push(Error::required(&path.child("name"), ""));
    } else if !name.is_empty() {
        check::form(
            format::dns1123_label(name),
            name,
            &path.child("name"),
            errors,
        );
    }
    let number = int(&port["port"]);
    for complaint in format::port_number(number) {
        errors.push(Error::invalid(&path.child("port"), number, complaint));
    }
    check::one_of(
        &port["protocol"],
        &["SCTP", "TCP", "UDP"],
        &path.child("protocol"),
        errors,
    );
}
