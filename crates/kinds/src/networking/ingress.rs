//! Ingress: HTTP from outside to services.

use crate::builtin::{Builtin, STATUS};
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell, or_none};
use crate::tree::{get, int, is_set, list, text};
use crate::{Column, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value, format};
use std::collections::BTreeSet;

pub const KIND: Builtin = Builtin {
    group: "networking.k8s.io",
    kind: "Ingress",
    plural: "ingresses",
    short_names: &["ing"],
    schema: "networking/v1.Ingress",
    subresources: &[STATUS],
    has_status: true,
    has_generation: true,
    validate_create: validate,
    validate_update: |object, _, subresource: Subresource<'_>| {
        if subresource.is_none() {
            validate(object)
        } else {
            Vec::new()
        }
    },
    columns: COLUMNS,
    row,
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Class", "string", "Which controller serves it."),
    column("Hosts", "string", "Host names it answers to."),
    column("Address", "string", "Where it is reached."),
    column("Ports", "string", "Ports that are open."),
    AGE,
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let (spec, status) = (get(object, "spec"), get(object, "status"));
    let balancer: BTreeSet<&str> = list(&status["loadBalancer"]["ingress"])
        .iter()
        .map(|i| {
            if text(&i["ip"]).is_empty() {
                text(&i["hostname"])
            } else {
                text(&i["ip"])
            }
        })
        .filter(|a| !a.is_empty())
        .collect();
    let ports = if list(&spec["tls"]).is_empty() {
        "80"
    } else {
        "80, 443"
    };
    vec![
        name_cell(object),
        Value::from(or_none(text(&spec["ingressClassName"]))),
        Value::from(hosts(&spec["rules"])),
        Value::from(balancer.into_iter().collect::<Vec<_>>().join(",")),
        ports.into(),
        age(object, now),
    ]
}

fn hosts(rules: &Value) -> String {
    const SHOWN: usize = 3;
    let rules = list(rules);
    let named: Vec<&str> = rules
        .iter()
        .map(|r| text(&r["host"]))
        .filter(|h| !h.is_empty())
        .collect();
    if named.is_empty() {
        return "*".to_owned();
    }
    let shown = named[..named.len().min(SHOWN)].join(",");
    if named.len() > SHOWN {
        format!("{shown} + {} more...", rules.len() - SHOWN)
    } else {
        shown
    }
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    if list(&spec["rules"]).is_empty() && !is_set(&spec["defaultBackend"]) {
        let detail = "either `defaultBackend` or `rules` must be specified";
        errors.push(Error::invalid(&path, spec["rules"].clone(), detail));
    }
    if is_set(&spec["defaultBackend"]) {
        check_backend(
            &spec["defaultBackend"],
            &path.child("defaultBackend"),
            &mut errors,
        );
    }
    for (i, rule) in list(&spec["rules"]).iter().enumerate() {
        check_rule(rule, &path.child("rules").index(i), &mut errors);
    }
    let class = text(&spec["ingressClassName"]);
    if is_set(&spec["ingressClassName"]) {
        let at = path.child("ingressClassName");
        check::form(format::dns1123_subdomain(class), class, &at, &mut errors);
    }
    errors
}

fn check_rule(rule: &Value, path: &Path, errors: &mut Errors) {
    let host = text(&rule["host"]);
    let at = path.child("host");
    if host.parse::<std::net::IpAddr>().is_ok() {
        errors.push(Error::invalid(
            &at,
            host,
            "must be a DNS name, not an IP address",
        ));
    } else if host.contains('*') {
        check::form(format::wildcard_subdomain(host), host, &at, errors);
    } else if !host.is_empty() {
        check::form(format::dns1123_subdomain(host), host, &at, errors);
    }
    let http = &rule["http"];
    if !is_set(http) {
        return;
    }
    let at = path.child("http").child("paths");
    if list(&http["paths"]).is_empty() {
        errors.push(Error::required(&at, ""));
    }
    for (i, entry) in list(&http["paths"]).iter().enumerate() {
        check_path(entry, &at.index(i), errors);
    }
}

fn check_path(entry: &Value, path: &Path, errors: &mut Errors) {
    let target = text(&entry["path"]);
    let at = path.child("path");
    match text(&entry["pathType"]) {
        "" => errors.push(Error::required(
            &path.child("pathType"),
            "pathType must be specified",
        )),
        "Exact" | "Prefix" => {
            if !target.starts_with('/') {
                errors.push(Error::invalid(&at, target, "must be an absolute path"));
            }
            for bad in ["//", "/./", "/../", "%2f", "%2F"] {
                if target.contains(bad) {
                    errors.push(Error::invalid(
                        &at,
                        target,
                        format!("must not contain '{bad}'"),
                    ));
                }
            }
        }
        "ImplementationSpecific" => {
            if !target.is_empty() && !target.starts_with('/') {
                errors.push(Error::invalid(&at, target, "must be an absolute path"));
            }
        }
        other => errors.push(Error::not_supported(
            &path.child("pathType"),
            other,
            &["Exact", "ImplementationSpecific", "Prefix"],
        )),
    }
    check_backend(&entry["backend"], &path.child("backend"), errors);
}

fn check_backend(backend: &Value, path: &Path, errors: &mut Errors) {
    let (service, resource) = (&backend["service"], &backend["resource"]);
    if is_set(service) && is_set(resource) {
        let detail = "cannot set both resource and service backends";
        errors.push(Error::invalid(path, "", detail));
    } else if !is_set(service) && !is_set(resource) {
        errors.push(Error::required(
            path,
            "resource or service backend is required",
        ));
    } else if is_set(service) {
        let at = path.child("service");
        let name = text(&service["name"]);
        if name.is_empty() {
            errors.push(Error::required(&at.child("name"), ""));
        } else {
            check::form(format::dns1035_label(name), name, &at.child("name"), errors);
        }
        let (port, number) = (
            text(&service["port"]["name"]),
            int(&service["port"]["number"]),
        );
        let at = at.child("port");
        if !port.is_empty() && number != 0 {
            let detail = "cannot set both port name & port number";
            errors.push(Error::invalid(&at, "", detail));
        } else if !port.is_empty() {
            check::form(format::port_name(port), port, &at.child("name"), errors);
        } else if number != 0 {
            for complaint in format::port_number(number) {
                errors.push(Error::invalid(&at.child("number"), number, complaint));
            }
        } else {
            errors.push(Error::required(&at, "port name or number is required"));
        }
    }
}
