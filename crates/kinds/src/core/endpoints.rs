//! Endpoints: the addresses of a Service, superseded by EndpointSlice.

use crate::address::{endpoint_ip, ip_warnings};
use crate::builtin::Builtin;
use crate::columns::{AGE, NAME, age, column, name_cell};
use crate::metadata::Check;
use crate::tree::{default_empty, each, get, int, list, same, text};
use crate::{Column, ServerSide, Subresource, check};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value, format};

pub const KIND: Builtin = Builtin {
    kind: "Endpoints",
    plural: "endpoints",
    server_side: ServerSide {
        upstream_key: "services/endpoints",
        ..ServerSide::NONE
    },
    deprecation: Some(
        "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
    ),
    short_names: &["ep"],
    schema: "core/v1.Endpoints",
    allows_create_on_update: true,
    default,
    validate_create: validate,
    validate_update: |object, old, _: Subresource<'_>| {
        // Values that were valid under older rules are kept on update.
        if same(get(object, "subsets"), get(old, "subsets")) {
            Vec::new()
        } else {
            validate(object)
        }
    },
    warnings: |object, _| warnings(object),
    columns: COLUMNS,
    row,
    metadata_checks: &[Check::Change, Check::Whole],
    ..Builtin::EMPTY
};

const ADDRESSES: [&str; 2] = ["addresses", "notReadyAddresses"];

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
        let ips = || {
            list(&subset["addresses"])
                .iter()
                .map(|address| text(&address["ip"]))
        };
        if ports.is_empty() {
            all.extend(ips().map(str::to_owned));
        }
        for port in ports {
            let port = int(&port["port"]);
            all.extend(ips().map(|ip| match ip.contains(':') {
                true => format!("[{ip}]:{port}"),
                false => format!("{ip}:{port}"),
            }));
        }
    }
    if list(get(object, "subsets")).is_empty() {
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
        let at = Path::new("subsets");
        let at = at.index(i);
        if list(&subset["addresses"]).is_empty() && list(&subset["notReadyAddresses"]).is_empty() {
            let detail = "must specify `addresses` or `notReadyAddresses`";
            errors.push(Error::required(&at, detail));
        }
        for field in ADDRESSES {
            for (j, address) in list(&subset[field]).iter().enumerate() {
                check_address(address, &at.child(field).index(j), &mut errors);
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

fn check_address(address: &Value, path: &Path, errors: &mut Errors) {
    let at = path.child("ip");
    check::ip(text(&address["ip"]), &at, errors);
    let hostname = path.child("hostname");
    check::optional(
        format::dns1123_label,
        &address["hostname"],
        &hostname,
        errors,
    );
    if let Some(node) = address["nodeName"].as_str() {
        let form = format::dns1123_subdomain(node);
        check::form(form, node, &path.child("nodeName"), errors);
    }
    endpoint_ip(text(&address["ip"]), &at, errors);
}

fn warnings(object: &Object) -> Vec<String> {
    let labels = &get(object, "metadata")["labels"];
    if labels["endpoints.kubernetes.io/managed-by"] == "endpoint-controller" {
        return Vec::new();
    }
    let mut out = Vec::new();
    for (i, subset) in list(get(object, "subsets")).iter().enumerate() {
        for field in ADDRESSES {
            for (j, address) in list(&subset[field]).iter().enumerate() {
                let at = Path::new("subsets");
                let at = at.index(i);
                let at = at.child(field);
                let at = at.index(j);
                out.extend(ip_warnings(text(&address["ip"]), &at.child("ip")));
            }
        }
    }
    out
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
    let protocols = ["SCTP", "TCP", "UDP"];
    check::known(
        &port["protocol"],
        &protocols,
        &path.child("protocol"),
        errors,
    );
    if let Some(app) = port["appProtocol"].as_str() {
        let form = format::qualified_name(app);
        check::form(form, app, &path.child("appProtocol"), errors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};

    fn messages(subset: &str) -> Vec<String> {
        let mut endpoints = object(&format!(r#"{{"subsets": [{subset}]}}"#));
        default(&mut endpoints);
        lines(validate(&endpoints))
    }

    #[test]
    fn invalid_fields_are_reported_with_their_paths() {
        let cases: &[(&str, &[&str])] = &[
            (
                r#"{"addresses": [{"ip": "10.0.0.1", "hostname": "h", "nodeName": "n"}], "ports": [{"port": 1}]}"#,
                &[],
            ),
            (
                "{}",
                &["subsets[0]: Required value: must specify `addresses` or `notReadyAddresses`"],
            ),
            (
                r#"{"addresses": [{"ip": "x"}]}"#,
                &[
                    "subsets[0].addresses[0].ip: Invalid value: \"x\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
                    "subsets[0].addresses[0].ip: Invalid value: \"x\": must be a valid IP address",
                ],
            ),
            (
                r#"{"notReadyAddresses": [{"ip": "127.0.0.1"}]}"#,
                &[
                    "subsets[0].notReadyAddresses[0].ip: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, ::1/128)",
                ],
            ),
            (
                r#"{"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 1, "appProtocol": "/x"}]}"#,
                &[
                    "subsets[0].ports[0].appProtocol: Invalid value: \"/x\": prefix part must be non-empty",
                ],
            ),
        ];
        for (subset, expected) in cases {
            assert_eq!(messages(subset), *expected, "{subset}");
        }
    }

    #[test]
    fn invalid_values_that_were_stored_before_are_accepted() {
        let old = object(r#"{"subsets": [{}]}"#);
        assert!((KIND.validate_update)(&old, &old, None).is_empty());
        assert!(
            !(KIND.validate_update)(&object(r#"{"subsets": [{}, {}]}"#), &old, None).is_empty()
        );
    }

    #[test]
    fn addresses_are_shown_port_by_port() {
        let shown = |subsets: &str| addresses(&object(&format!(r#"{{"subsets": {subsets}}}"#)));
        assert_eq!(shown("[]"), "<none>");
        assert_eq!(shown(r#"[{"ports": [{"port": 1}]}]"#), "");
        assert_eq!(
            shown(
                r#"[{"addresses": [{"ip": "1.1.1.1"}, {"ip": "::1"}], "ports": [{"port": 1}, {"port": 2}]}]"#
            ),
            "1.1.1.1:1,[::1]:1,1.1.1.1:2 + 1 more..."
        );
    }
}
