//! NetworkPolicy: allowed traffic of pods.

use crate::address::{cidr_warnings, legacy_cidr};
use crate::builtin::Builtin;
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell, selector};
use crate::tree::{
    child_or_new, default_empty, default_to, each, entries, get, int, is_set, list, text,
};
use crate::{Column, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::json::json;
use machinery::{Object, Value, format};

pub const KIND: Builtin = Builtin {
    group: "networking.k8s.io",
    kind: "NetworkPolicy",
    plural: "networkpolicies",
    short_names: &["netpol"],
    schema: "networking/v1.NetworkPolicy",
    has_generation: true,
    default,
    validate_create: |object| validate(object, &[]),
    validate_update: |object, old, _: Subresource<'_>| validate(object, &ranges(old)),
    warnings: |object, _| warnings(object),
    columns: COLUMNS,
    row,
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Pod-Selector", "string", "Selector of the pods."),
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

/// Calls `visit` with the path and the value of every address block.
fn each_block<'a>(object: &'a Object, mut visit: impl FnMut(&Path, &'a Value)) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        let at = path.child(direction);
        for (i, rule) in list(&spec[direction]).iter().enumerate() {
            let at = at.index(i);
            let at = at.child(peers);
            for (j, peer) in list(&rule[peers]).iter().enumerate() {
                if is_set(&peer["ipBlock"]) {
                    visit(&at.index(j).child("ipBlock"), &peer["ipBlock"]);
                }
            }
        }
    }
}

/// The ranges of a policy; older rules may have accepted them.
fn ranges(object: &Object) -> Vec<&str> {
    let mut ranges = Vec::new();
    each_block(object, |_, block| {
        ranges.push(text(&block["cidr"]));
        ranges.extend(list(&block["except"]).iter().map(text));
    });
    ranges
}

fn warnings(object: &Object) -> Vec<String> {
    let mut out = Vec::new();
    each_block(object, |at, block| {
        out.extend(cidr_warnings(text(&block["cidr"]), &at.child("cidr")));
        for (i, except) in list(&block["except"]).iter().enumerate() {
            out.extend(cidr_warnings(text(except), &at.child("except").index(i)));
        }
    });
    out
}

fn validate(object: &Object, before: &[&str]) -> Errors {
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
            let at = path.child(direction);
            let at = at.index(i);
            for (j, port) in list(&rule["ports"]).iter().enumerate() {
                check_port(port, &at.child("ports").index(j), &mut errors);
            }
            for (j, peer) in list(&rule[peers]).iter().enumerate() {
                check_peer(peer, before, &at.child(peers).index(j), &mut errors);
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
        return errors;
    }
    for (i, kind) in types.iter().enumerate() {
        let at = path.child("policyTypes");
        let at = at.index(i);
        check::one_of(kind, &["Ingress", "Egress"], &at, &mut errors);
    }
    errors
}

fn check_port(port: &Value, path: &Path, errors: &mut Errors) {
    if is_set(&port["protocol"]) {
        let at = path.child("protocol");
        check::one_of(&port["protocol"], &["TCP", "UDP", "SCTP"], &at, errors);
    }
    let number = |value: i64, at: &Path, errors: &mut Errors| {
        for complaint in format::port_number(value) {
            errors.push(Error::invalid(at, value, complaint));
        }
    };
    let (at, end_at) = (path.child("port"), path.child("endPort"));
    let end = port["endPort"].as_i64();
    match &port["port"] {
        Value::Null => {
            if let Some(end) = end {
                let detail = "may not be specified when `port` is not specified";
                errors.push(Error::invalid(&end_at, end, detail));
            }
        }
        Value::String(name) => {
            if let Some(end) = end {
                let detail = "may not be specified when `port` is non-numeric";
                errors.push(Error::invalid(&end_at, end, detail));
            }
            check::form(format::port_name(name), name, &at, errors);
        }
        first => {
            number(int(first), &at, errors);
            if let Some(end) = end {
                if end < int(first) {
                    let detail = "must be greater than or equal to `port`";
                    errors.push(Error::invalid(&end_at, int(first), detail));
                }
                number(end, &end_at, errors);
            }
        }
    }
}

fn check_peer(peer: &Value, before: &[&str], path: &Path, errors: &mut Errors) {
    for field in ["podSelector", "namespaceSelector"] {
        check::label_selector(&peer[field], &path.child(field), errors);
    }
    if is_set(&peer["ipBlock"]) {
        check_block(&peer["ipBlock"], before, &path.child("ipBlock"), errors);
    }
    let count = entries(peer).filter(|(_, v)| is_set(v)).count();
    if count == 0 {
        errors.push(Error::required(path, "must specify a peer"));
    } else if count > 1 && is_set(&peer["ipBlock"]) {
        let detail = "may not specify both ipBlock and another peer";
        errors.push(Error::forbidden(path, detail));
    }
}

fn check_block(block: &Value, before: &[&str], path: &Path, errors: &mut Errors) {
    let at = path.child("cidr");
    let range = text(&block["cidr"]);
    if range.is_empty() {
        errors.push(Error::required(&at, ""));
        return;
    }
    legacy_cidr(range, before, &at, errors);
    let Some((address, length)) = check::loose_network(range) else {
        return;
    };
    for (i, except) in list(&block["except"]).iter().enumerate() {
        let at = path.child("except");
        let at = at.index(i);
        legacy_cidr(text(except), before, &at, errors);
        let Some((inner, inner_length)) = check::loose_network(text(except)) else {
            continue;
        };
        let inside = inner.is_ipv4() == address.is_ipv4()
            && check::masked(inner, length) == check::masked(address, length);
        if !inside || length >= inner_length {
            let detail = "must be a strict subset of `cidr`";
            errors.push(Error::invalid(&at, text(except), detail));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};

    fn messages(rule: &str) -> Vec<String> {
        let mut policy = object(&format!(r#"{{"spec": {{"ingress": [{rule}]}}}}"#));
        default(&mut policy);
        lines(validate(&policy, &[]))
    }

    #[test]
    fn invalid_fields_are_reported_with_their_paths() {
        let cases: &[(&str, &[&str])] = &[
            (
                r#"{"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]}"#,
                &[],
            ),
            (
                r#"{"from": [{}]}"#,
                &["spec.ingress[0].from[0]: Required value: must specify a peer"],
            ),
            (
                r#"{"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.0.0.0/8", "a"]}}]}"#,
                &[
                    "spec.ingress[0].from[0].ipBlock.except[0]: Invalid value: \"10.0.0.0/8\": must be a strict subset of `cidr`",
                    "spec.ingress[0].from[0].ipBlock.except[1]: Invalid value: \"a\": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
                ],
            ),
            (
                r#"{"ports": [{"endPort": 1}]}"#,
                &[
                    "spec.ingress[0].ports[0].endPort: Invalid value: 1: may not be specified when `port` is not specified",
                ],
            ),
            (
                r#"{"ports": [{"port": "a", "endPort": 1}]}"#,
                &[
                    "spec.ingress[0].ports[0].endPort: Invalid value: 1: may not be specified when `port` is non-numeric",
                ],
            ),
            (
                r#"{"ports": [{"port": 9, "endPort": 1}]}"#,
                &[
                    "spec.ingress[0].ports[0].endPort: Invalid value: 9: must be greater than or equal to `port`",
                ],
            ),
            (
                r#"{"ports": [{"port": 1, "protocol": "a"}]}"#,
                &[
                    r#"spec.ingress[0].ports[0].protocol: Unsupported value: "a": supported values: "TCP", "UDP", "SCTP""#,
                ],
            ),
        ];
        for (rule, expected) in cases {
            assert_eq!(messages(rule), *expected, "{rule}");
        }
    }

    #[test]
    fn a_range_that_stood_there_may_stay() {
        let policy =
            object(r#"{"spec": {"egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.1/8"}}]}]}}"#);
        assert_eq!(
            lines(validate(&policy, &ranges(&policy))),
            Vec::<String>::new()
        );
        assert_eq!(lines(validate(&policy, &[])).len(), 1);
        assert!(warnings(&policy)[0].contains("is ambiguous in this context"));
    }
}
