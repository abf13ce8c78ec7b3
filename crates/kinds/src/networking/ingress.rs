//! Ingress: routes HTTP from outside to services.

use crate::address::{ip_warnings, legacy_ip};
use crate::builtin::{Builtin, STATUS};
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell, or_none};
use crate::core::service::balancer_hostname;
use crate::metadata::Check;
use crate::tree::{get, int, is_set, list, text};
use crate::{Column, ServerSide, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value, format};
use std::collections::BTreeSet;

pub const KIND: Builtin = Builtin {
    group: "networking.k8s.io",
    kind: "Ingress",
    plural: "ingresses",
    server_side: ServerSide {
        upstream_key: "ingress",
        ..ServerSide::NONE
    },
    short_names: &["ing"],
    schema: "networking/v1.Ingress",
    subresources: &[STATUS],
    has_status: true,
    has_generation: true,
    validate_create: |object| {
        let mut errors = validate(object, None);
        check_class_annotation(object, &mut errors);
        errors
    },
    validate_update: |object, old, subresource: Subresource<'_>| {
        if subresource.is_none() {
            validate(object, Some(old))
        } else {
            check_status(object, old)
        }
    },
    warnings: |object, old| {
        let named = is_set(&get(object, "spec")["ingressClassName"]);
        if old.is_none() && is_set(class_annotation(object)) && !named {
            vec![format!(
                "annotation {CLASS:?} is deprecated, please use 'spec.ingressClassName' instead"
            )]
        } else {
            Vec::new()
        }
    },
    status_warnings: Some(|object| {
        let path = Path::new("status.loadBalancer.ingress");
        let all = balancers(object).iter().enumerate();
        all.flat_map(|(i, b)| ip_warnings(text(&b["ip"]), &path.index(i)))
            .collect()
    }),
    columns: COLUMNS,
    row,
    metadata_checks: &[Check::Change, Check::Whole],
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Class", "string", "Which controller serves it."),
    column("Hosts", "string", "Host names it answers to."),
    column("Address", "string", "Address of the load balancer."),
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

const CLASS: &str = "kubernetes.io/ingress.class";

fn class_annotation(object: &Object) -> &Value {
    &get(object, "metadata")["annotations"][CLASS]
}

fn balancers(object: &Object) -> &[Value] {
    list(&get(object, "status")["loadBalancer"]["ingress"])
}

fn check_class_annotation(object: &Object, errors: &mut Errors) {
    let (old, new) = (
        class_annotation(object),
        &get(object, "spec")["ingressClassName"],
    );
    if is_set(old) && is_set(new) && old != new {
        let at = Path::new("annotations");
        let at = at.child(CLASS);
        let detail = "must match `ingressClassName` when both are specified";
        errors.push(Error::invalid(&at, old.clone(), detail));
    }
}

fn validate(object: &Object, old: Option<&Object>) -> Errors {
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    if list(&spec["rules"]).is_empty() && !is_set(&spec["defaultBackend"]) {
        let detail = "either `defaultBackend` or `rules` must be specified";
        errors.push(Error::invalid(&path, spec["rules"].clone(), detail));
    }
    if is_set(&spec["defaultBackend"]) {
        let at = path.child("defaultBackend");
        check_backend(&spec["defaultBackend"], &at, &mut errors);
    }
    let lenient = old.is_some_and(has_odd_wildcard_rule);
    for (i, rule) in list(&spec["rules"]).iter().enumerate() {
        let at = path.child("rules");
        let at = at.index(i);
        check_host(text(&rule["host"]), &at.child("host"), &mut errors);
        if !(lenient && is_wildcard(rule)) {
            check_rule(rule, &at, &mut errors);
        }
    }
    check_tls(spec, old, &path.child("tls"), &mut errors);
    if let Some(class) = spec["ingressClassName"].as_str() {
        let at = path.child("ingressClassName");
        check::form(format::dns1123_subdomain(class), class, &at, &mut errors);
    }
    errors
}

fn is_wildcard(rule: &Value) -> bool {
    text(&rule["host"]).contains('*')
}

/// Whether an old Ingress has wildcard rules that older validation accepted; they are kept.
fn has_odd_wildcard_rule(old: &Object) -> bool {
    let rules = list(&get(old, "spec")["rules"]);
    rules.iter().filter(|rule| is_wildcard(rule)).any(|rule| {
        let mut errors = Vec::new();
        check_rule(rule, &Path::new("rule"), &mut errors);
        !errors.is_empty()
    })
}

fn check_tls(spec: &Value, old: Option<&Object>, path: &Path, errors: &mut Errors) {
    let fits = |tls: &Value| match text(&tls["secretName"]) {
        "" => Vec::new(),
        name => format::dns1123_subdomain(name),
    };
    let was_odd = old.is_some_and(|old| {
        let before = list(&get(old, "spec")["tls"]);
        before.iter().any(|tls| !fits(tls).is_empty())
    });
    for (i, tls) in list(&spec["tls"]).iter().enumerate() {
        let at = path.index(i);
        let hosts = at.child("hosts");
        for (j, host) in list(&tls["hosts"]).iter().enumerate() {
            let (host, at) = (text(host), hosts.index(j));
            let form = if host.contains('*') {
                format::wildcard_subdomain(host)
            } else {
                format::dns1123_subdomain(host)
            };
            check::form(form, host, &at, errors);
        }
        if !was_odd {
            let secret = text(&tls["secretName"]);
            check::form(fits(tls), secret, &at.child("secretName"), errors);
        }
    }
}

fn check_host(host: &str, path: &Path, errors: &mut Errors) {
    if host.is_empty() {
        return;
    }
    if check::loose_ip(host).is_some() {
        let detail = "must be a DNS name, not an IP address";
        errors.push(Error::invalid(path, host, detail));
    }
    let form = if host.contains('*') {
        format::wildcard_subdomain(host)
    } else {
        format::dns1123_subdomain(host)
    };
    check::form(form, host, path, errors);
}

fn check_rule(rule: &Value, path: &Path, errors: &mut Errors) {
    let http = &rule["http"];
    if !is_set(http) {
        return;
    }
    let at = path.child("http.paths");
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
    if !is_set(&entry["pathType"]) {
        let detail = "pathType must be specified";
        errors.push(Error::required(&path.child("pathType"), detail));
        return;
    }
    let mut refuse = |detail: String| errors.push(Error::invalid(&at, target, detail));
    match text(&entry["pathType"]) {
        "Exact" | "Prefix" => {
            if !target.starts_with('/') {
                refuse("must be an absolute path".to_owned());
            }
            for bad in ["//", "/./", "/../", "%2f", "%2F"] {
                if target.contains(bad) {
                    refuse(format!("must not contain '{bad}'"));
                }
            }
            for bad in ["/..", "/."] {
                if target.ends_with(bad) {
                    refuse(format!("cannot end with '{bad}'"));
                }
            }
        }
        "ImplementationSpecific" => {
            if !target.is_empty() && !target.starts_with('/') {
                refuse("must be an absolute path".to_owned());
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
    match (is_set(service), is_set(resource)) {
        (true, true) => {
            let detail = "cannot set both resource and service backends";
            errors.push(Error::invalid(path, "", detail));
        }
        (false, false) => {
            let detail = "resource or service backend is required";
            errors.push(Error::invalid(path, "", detail));
        }
        (false, true) => check_resource(resource, &path.child("resource"), errors),
        (true, false) => check_service(service, path, errors),
    }
}

fn check_resource(resource: &Value, path: &Path, errors: &mut Errors) {
    if let Some(group) = resource["apiGroup"].as_str() {
        let form = format::dns1123_subdomain(group);
        check::form(form, group, &path.child("apiGroup"), errors);
    }
    for field in ["kind", "name"] {
        check::needed_segment(&resource[field], &path.child(field), errors);
    }
}

fn check_service(service: &Value, path: &Path, errors: &mut Errors) {
    let at = path.child("service");
    check::required(&service["name"], &at.child("name"), errors);
    let name = at.child("name");
    check::optional(format::dns1123_label, &service["name"], &name, errors);
    let port = &service["port"];
    let at = at.child("port");
    match (text(&port["name"]), int(&port["number"])) {
        ("", 0) => errors.push(Error::required(path, "port name or number is required")),
        ("", number) => {
            for complaint in format::port_number(number) {
                errors.push(Error::invalid(&at.child("number"), number, complaint));
            }
        }
        (name, 0) => check::form(format::port_name(name), name, &at.child("name"), errors),
        _ => {
            let detail = "cannot set both port name & port number";
            errors.push(Error::invalid(path, "", detail));
        }
    }
}

fn check_status(object: &Object, old: &Object) -> Errors {
    let mut errors = Vec::new();
    let path = Path::new("status.loadBalancer.ingress");
    let before: Vec<Value> = balancers(old).iter().map(|b| b["ip"].clone()).collect();
    for (i, balancer) in balancers(object).iter().enumerate() {
        let at = path.index(i);
        if !text(&balancer["ip"]).is_empty() {
            legacy_ip(&balancer["ip"], &before, &at.child("ip"), &mut errors);
        }
        let name = text(&balancer["hostname"]);
        balancer_hostname(name, &at.child("hostname"), &mut errors);
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};

    fn ingress(spec: &str) -> Object {
        object(&format!(r#"{{"spec": {spec}}}"#))
    }

    #[test]
    fn invalid_fields_are_reported_with_their_paths() {
        let cases = [
            (
                "{}",
                "spec: Invalid value: null: either `defaultBackend` or `rules` must be specified",
            ),
            (
                r#"{"defaultBackend": {}}"#,
                "spec.defaultBackend: Invalid value: \"\": resource or service backend is required",
            ),
            (
                r#"{"defaultBackend": {"service": {"name": "1a"}}}"#,
                "spec.defaultBackend: Required value: port name or number is required",
            ),
            (
                r#"{"defaultBackend": {"service": {"name": "a", "port": {"name": "a", "number": 1}}}}"#,
                "spec.defaultBackend: Invalid value: \"\": cannot set both port name & port number",
            ),
            (
                r#"{"defaultBackend": {"resource": {"kind": "a/b"}}}"#,
                "spec.defaultBackend.resource.kind: Invalid value: \"a/b\": may not contain '/' spec.defaultBackend.resource.name: Required value",
            ),
            (
                r#"{"rules": [{"http": {"paths": [{"path": "/a/..", "pathType": "Exact", "backend": {"service": {"name": "a", "port": {"number": 1}}}}]}}]}"#,
                "spec.rules[0].http.paths[0].path: Invalid value: \"/a/..\": cannot end with '/..'",
            ),
            (
                r#"{"rules": [{"http": {"paths": [{}]}}]}"#,
                "spec.rules[0].http.paths[0].pathType: Required value: pathType must be specified",
            ),
            (
                r#"{"rules": [{"host": "1.2.3.4"}]}"#,
                "spec.rules[0].host: Invalid value: \"1.2.3.4\": must be a DNS name, not an IP address",
            ),
        ];
        for (spec, expected) in cases {
            assert_eq!(
                lines(validate(&ingress(spec), None)).join(" "),
                expected,
                "{spec}"
            );
        }
    }

    #[test]
    fn certificates_and_hosts_have_names() {
        let spec = |secret: &str| {
            format!(
                r#"{{"rules": [{{}}], "tls": [{{"hosts": ["*.a.b"], "secretName": "{secret}"}}]}}"#
            )
        };
        assert!(validate(&ingress(&spec("a")), None).is_empty());
        let odd = ingress(&spec("A"));
        assert!(
            lines(validate(&odd, None))[0].starts_with("spec.tls[0].secretName: Invalid value")
        );
        assert!(
            validate(&odd, Some(&odd)).is_empty(),
            "what was taken once may stay"
        );
    }

    #[test]
    fn the_old_way_to_name_a_class_agrees_or_is_warned_about() {
        let annotated = |spec: &str| {
            object(&format!(
                r#"{{"metadata": {{"annotations": {{"kubernetes.io/ingress.class": "a"}}}}, "spec": {spec}}}"#
            ))
        };
        let both = annotated(r#"{"rules": [{}], "ingressClassName": "b"}"#);
        assert_eq!(
            lines((KIND.validate_create)(&both)),
            [
                "annotations.kubernetes.io/ingress.class: Invalid value: \"a\": must match `ingressClassName` when both are specified"
            ]
        );
        assert_eq!(
            (KIND.warnings)(&annotated("{}"), None),
            [
                "annotation \"kubernetes.io/ingress.class\" is deprecated, please use 'spec.ingressClassName' instead"
            ]
        );
    }
}
