//! NetworkPolicy: who may talk to whom.

use super::{CIDR_FORM, is_cidr};
use crate::builtin::Builtin;
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell, selector};
use crate::core::service::port_or_name;
use crate::tree::{
    child_or_new, default_empty, default_to, each, entries, get, int, is_set, list, text,
};
use crate::{Column, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::json::json;
use machinery::{Object, Value};

pub const KIND: Builtin = Builtin {
    group: "networking.k8s.io",
    kind: "NetworkPolicy",
    plural: "networkpolicies",
    short_names: &["netpol"],
    schema: "networking/v1.NetworkPolicy",
    has_generation: true,
    default,
    validate_create: validate,
    validate_update: |object, _, _: Subresource<'_>| validate(object),
    columns: COLUMNS,
    row,
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Pod-Selector", "string", "Pods it is about."),
    AGE,
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let pods = selector(&get(object, "spec")["podSelector"]);
    vec![name_cell(object), pods.into(), age(object, now)]
}

fn default(object: &mut Object) {
    let spec = child_or_new(object, "spec");
    let types = if list(get(spec, "egress")).is_empty() {
        json!(["Ingress"])
    } else {
        json!(["Ingress", "Egress"])
    };
    default_empty(spec, "policyTypes", types);
    for direction in ["ingress", "egress"] {
        for rule in each(spec, direction) {
            for port in each(rule, "ports") {
                default_to(port, "protocol", "TCP");
            }
        }
    }
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    check::label_selector(
        &spec["podSelector"],
        &path.child("podSelector"),
        &mut errors,
    );
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        for (i, rule) in list(&spec[direction]).iter().enumerate() {
            let at = path.child(direction).index(i);
            for (j, port) in list(&rule["ports"]).iter().enumerate() {
                check_port(port, &at.child("ports").index(j), &mut errors);
            }
            for (j, peer) in list(&rule[peers]).iter().enumerate() {
                check_peer(peer, &at.child(peers).index(j), &mut errors);
            }
        }
    }
    let types = list(&spec["policyTypes"]);
    if types.len() > 2 {
        let detail = "may not specify more than two policyTypes";
        errors.push(Error::invalid(
            &path.child("policyTypes"),
            spec["policyTypes"].clone(),
            detail,
        ));
    }
    for (i, kind) in types.iter().enumerate() {
        let at = path.child("policyTypes").index(i);
        check::one_of(kind, &["Egress", "Ingress"], &at, &mut errors);
    }
    errors
}

fn check_port(port: &Value, path: &Path, errors: &mut Errors) {
    if is_set(&port["protocol"]) {
        let at = path.child("protocol");
        check::one_of(&port["protocol"], &["SCTP", "TCP", "UDP"], &at, errors);
    }
    if is_set(&port["port"]) {
        port_or_name(&port["port"], &path.child("port"), errors);
    }
    if is_set(&port["endPort"]) {
        let at = path.child("endPort");
        if !port["port"].is_i64() {
            let detail = "may not be specified when `port` is not specified or non-numeric";
            errors.push(Error::invalid(&at, int(&port["endPort"]), detail));
        } else if int(&port["endPort"]) < int(&port["port"]) {
            let detail = "must be greater than or equal to `port`";
            errors.push(Error::invalid(&at, int(&port["endPort"]), detail));
        }
    }
}

fn check_peer(peer: &Value, path: &Path, errors: &mut Errors) {
    let count = entries(peer).filter(|(_, v)| is_set(v)).count();
    if count == 0 {
        errors.push(Error::required(path, "must specify a peer"));
    } else if count > 1 && is_set(&peer["ipBlock"]) {
        let detail = "may not specify both ipBlock and another peer";
        errors.push(Error::forbidden(path, detail));
    }
    check::label_selector(&peer["podSelector"], &path.child("podSelector"), errors);
    check::label_selector(
        &peer["namespaceSelector"],
        &path.child("namespaceSelector"),
        errors,
    );
    let block = &peer["ipBlock"];
    if is_set(block) {
        let at = path.child("ipBlock");
        let range = text(&block["cidr"]);
        if range.is_empty() {
            errors.push(Error::required(&at.child("cidr"), ""));
        } else if !is_cidr(range) {
            errors.push(Error::invalid(&at.child("cidr"), range, CIDR_FORM));
        }
        for (i, except) in list(&block["except"]).iter().enumerate() {
            if !is_cidr(text(except)) {
                let at = at.child("except").index(i);
                errors.push(Error::invalid(&at, text(except), CIDR_FORM));
            }
        }
    }
}
