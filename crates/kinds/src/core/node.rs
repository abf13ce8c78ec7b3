//! Node: a machine that runs pods.

use crate::address::cidr_warnings;
use crate::builtin::{Builtin, STATUS};
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell, or_none, wide};
use crate::metadata::Check;
use crate::pod::check_quantity;
use crate::tree::{child, entries, get, is_set, keep, list, text, truth};
use crate::{Column, Scope, ServerSide, Subresource, SubresourceInfo};
use machinery::field::{Error, Errors, Path};
use machinery::json::json;
use machinery::{Object, Value, format};
use std::collections::BTreeSet;

pub const KIND: Builtin = Builtin {
    kind: "Node",
    plural: "nodes",
    server_side: ServerSide {
        upstream_key: "minions",
        ..ServerSide::NONE
    },
    short_names: &["no"],
    scope: Scope::Cluster,
    schema: "core/v1.Node",
    subresources: &[
        SubresourceInfo {
            name: "proxy",
            group: "",
            version: "",
            kind: "NodeProxyOptions",
            verbs: &["create", "delete", "get", "patch", "update"],
        },
        STATUS,
    ],
    default,
    prepare_create: |object, _| drop_config(object, &Object::new()),
    prepare_update: |object, old, subresource, _| {
        // A kubelet may set the status when it registers; later only through `status`.
        if subresource.is_none() {
            keep(object, old, "status");
        }
        drop_config(object, old);
    },
    validate_create: validate,
    validate_update,
    warnings: |object, _| warnings(object),
    status_warnings: Some(|_| Vec::new()),
    selectable: &["spec.unschedulable"],
    selectable_fields: |o| {
        vec![(
            "spec.unschedulable",
            truth(&get(o, "spec")["unschedulable"]).to_string(),
        )]
    },
    columns: COLUMNS,
    row,
    metadata_checks: &[Check::Whole, Check::Change],
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Status", "string", "Whether the node can run pods."),
    column("Roles", "string", "What the node is for."),
    AGE,
    column("Version", "string", "Version of the node's kubelet."),
    wide("Internal-IP", "string", "Address within the cluster."),
    wide("External-IP", "string", "Address from outside."),
    wide("OS-Image", "string", "Operating system."),
    wide("Kernel-Version", "string", "Kernel."),
    wide(
        "Container-Runtime",
        "string",
        "Container runtime and its version.",
    ),
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let status = get(object, "status");
    let info = &status["nodeInfo"];
    let ready = list(&status["conditions"])
        .iter()
        .find(|c| c["type"] == "Ready");
    let mut state = match ready {
        Some(condition) if condition["status"] == "True" => "Ready".to_owned(),
        Some(_) => "NotReady".to_owned(),
        None => "Unknown".to_owned(),
    };
    if truth(&get(object, "spec")["unschedulable"]) {
        state.push_str(",SchedulingDisabled");
    }
    let address = |kind: &str| {
        let found = list(&status["addresses"])
            .iter()
            .find(|a| a["type"] == kind);
        or_none(found.map_or("", |a| text(&a["address"])))
    };
    let or_unknown = |v: &Value| {
        if text(v).is_empty() {
            "<unknown>".to_owned()
        } else {
            text(v).to_owned()
        }
    };
    let mut kernel = or_unknown(&info["kernelVersion"]);
    if !text(&info["architecture"]).is_empty() {
        kernel = format!("{kernel} ({})", text(&info["architecture"]));
    }
    vec![
        name_cell(object),
        Value::from(state),
        Value::from(roles(object)),
        age(object, now),
        Value::from(text(&info["kubeletVersion"])),
        Value::from(address("InternalIP")),
        Value::from(address("ExternalIP")),
        Value::from(or_unknown(&info["osImage"])),
        Value::from(kernel),
        Value::from(or_unknown(&info["containerRuntimeVersion"])),
    ]
}

fn roles(object: &Object) -> String {
    let mut roles = BTreeSet::new();
    for (key, value) in entries(&get(object, "metadata")["labels"]) {
        match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) if !role.is_empty() => {
                roles.insert(role.to_owned());
            }
            None if key == "kubernetes.io/role" && !text(value).is_empty() => {
                roles.insert(text(value).to_owned());
            }
            _ => {}
        }
    }
    or_none(&roles.into_iter().collect::<Vec<_>>().join(","))
}

fn default(object: &mut Object) {
    if let Some(status) = child(object, "status") {
        let capacity = status.get("capacity").cloned().unwrap_or(Value::Null);
        if !is_set(status.get("allocatable").unwrap_or(&Value::Null)) && is_set(&capacity) {
            status.insert("allocatable".to_owned(), capacity);
        }
    }
    // A single range is in both fields.
    if let Some(spec) = child(object, "spec") {
        let single = text(get(spec, "podCIDR")).to_owned();
        let many = list(get(spec, "podCIDRs")).to_vec();
        match (single.is_empty(), many.first()) {
            (false, first) if first.map(text) != Some(single.as_str()) => {
                spec.insert("podCIDRs".to_owned(), Value::from(vec![single]));
            }
            (true, Some(first)) => {
                spec.insert("podCIDR".to_owned(), first.clone());
            }
            _ => {}
        }
    }
}

/// Dynamic kubelet configuration is removed: existing values are kept, new ones dropped.
fn drop_config(object: &mut Object, old: &Object) {
    for (part, field) in [("spec", "configSource"), ("status", "config")] {
        if !is_set(&get(old, part)[field])
            && let Some(part) = child(object, part)
        {
            part.shift_remove(field);
        }
    }
}

fn warnings(object: &Object) -> Vec<String> {
    let spec = get(object, "spec");
    let mut out = Vec::new();
    if is_set(&spec["configSource"]) {
        out.push("spec.configSource: the feature is removed".to_owned());
    }
    if !text(&spec["externalID"]).is_empty() {
        let why = "this field is deprecated, and is unused by Kubernetes";
        out.push(format!("spec.externalID: {why}"));
    }
    let path = Path::new("spec.podCIDRs");
    for (i, range) in list(&spec["podCIDRs"]).iter().enumerate() {
        out.extend(cidr_warnings(text(range), &path.index(i)));
    }
    out
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    // Upstream's errors name the metadata as the parent.
    let metadata = Path::new("metadata");
    let (spec, status) = (get(object, "spec"), get(object, "status"));
    taints(&spec["taints"], &metadata.child("taints"), &mut errors);
    check_amounts(status, &mut errors);
    let swap = &status["nodeInfo"]["swap"]["capacity"];
    if is_set(swap) {
        let at = metadata.child("nodeSwapStatus.capacity");
        check::positive(swap, &at, &mut errors);
    }
    check_features(status, &mut errors);
    check_ranges(&spec["podCIDRs"], &mut errors);
    errors
}

fn check_amounts(status: &Value, errors: &mut Errors) {
    for field in ["capacity", "allocatable"] {
        for (name, amount) in entries(&status[field]) {
            let at = Path::new("status");
            let at = at.child(field);
            let at = at.child(name);
            check_quantity(name, amount, &at, errors);
        }
    }
}

/// The declared features: sorted and unique.
fn check_features(status: &Value, errors: &mut Errors) {
    const LONGEST: usize = 253;
    let path = Path::new("status.declaredFeatures");
    let features: Vec<&str> = list(&status["declaredFeatures"]).iter().map(text).collect();
    for (i, feature) in features.iter().enumerate() {
        let wrong = if feature.len() > LONGEST {
            Some(format!("must be no more than {LONGEST} characters"))
        } else if !is_feature(feature) {
            Some(
                "must start with an UpperCamelCase segment, with subsequent segments separated \
                 by '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only \
                 alphanumeric characters and slashes"
                    .to_owned(),
            )
        } else {
            None
        };
        if let Some(wrong) = wrong {
            let detail = format!("invalid feature name {feature:?}: {wrong}");
            errors.push(Error::invalid(&path.index(i), *feature, detail));
        }
        let at = path.index(i + 1);
        match features.get(i + 1) {
            Some(next) if feature == next => errors.push(Error::duplicate(&at, *next)),
            Some(next) if feature > next => {
                let detail = "list must be sorted alphabetically";
                errors.push(Error::invalid(&at, *next, detail));
            }
            _ => {}
        }
    }
}

/// `MyFeature` or `MyFeature/mySubFeature`
fn is_feature(name: &str) -> bool {
    let fits = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic())
            && part.bytes().all(|b| b.is_ascii_alphanumeric())
    };
    name.starts_with(|c: char| c.is_ascii_uppercase()) && name.split('/').all(fits)
}

fn check_ranges(ranges: &Value, errors: &mut Errors) {
    let path = Path::new("spec.podCIDRs");
    let all = list(ranges);
    for (i, range) in all.iter().enumerate() {
        check::cidr(text(range), &path.index(i), errors);
    }
    if all.len() < 2 {
        return;
    }
    let family = |range: &Value| check::loose_network(text(range)).map(|(ip, _)| ip.is_ipv6());
    let families: Vec<Option<bool>> = all.iter().map(family).collect();
    let broken = families.iter().position(Option::is_none);
    if let Some(i) = broken {
        let detail = format!(
            "invalid PodCIDRs. failed to check with dual stack with error:\
             invalid CIDR[{i}]: <nil> (invalid CIDR address: {})",
            text(&all[i])
        );
        errors.push(Error::internal(&path, detail));
    }
    if broken.is_some() || all.len() > 2 || families[0] == families[1] {
        let detail = "may specify no more than one CIDR for each IP family";
        errors.push(Error::invalid(&path, ranges.clone(), detail));
    }
}

fn taints(value: &Value, path: &Path, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (i, taint) in list(value).iter().enumerate() {
        let at = path.index(i);
        let key = text(&taint["key"]);
        check::form(format::qualified_name(key), key, &at.child("key"), errors);
        let complaints = format::label_value(text(&taint["value"]));
        if !complaints.is_empty() {
            let detail = complaints.join(";");
            let value = text(&taint["value"]);
            errors.push(Error::invalid(&at.child("value"), value, detail));
        }
        let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
        check::known(&taint["effect"], &effects, &at.child("effect"), errors);
        if !seen.insert((key, text(&taint["effect"]))) {
            let printed = json!({"Key": key, "Value": text(&taint["value"]),
                "Effect": text(&taint["effect"]), "TimeAdded": taint["timeAdded"]});
            let mut error = Error::duplicate(&at, printed);
            error.detail = "taints must be unique by key and effect pair".to_owned();
            errors.push(error);
        }
    }
}

fn validate_update(object: &Object, old: &Object, subresource: Subresource<'_>) -> Errors {
    let mut errors = Vec::new();
    let status = get(object, "status");
    if subresource.is_none() {
        // An update of the object must satisfy the rules for new nodes too.
        errors = validate(object);
    }
    check_amounts(status, &mut errors);
    check_features(status, &mut errors);
    let mut seen = Vec::new();
    for (i, address) in list(&status["addresses"]).iter().enumerate() {
        if seen.contains(&address) {
            let at = Path::new("status.addresses");
            let at = at.index(i);
            let field = |name: &str| text(&address[name]).to_owned();
            let printed = json!({"Type": field("type"), "Address": field("address")});
            errors.push(Error::duplicate(&at, printed));
        }
        seen.push(address);
    }
    check_kept(get(object, "spec"), get(old, "spec"), &mut errors);
    errors
}

fn check_kept(new: &Value, old: &Value, errors: &mut Errors) {
    let path = Path::new("spec");
    let (ranges, were) = (list(&new["podCIDRs"]), list(&old["podCIDRs"]));
    let detail = "node updates may not change podCIDR except from \"\" to valid";
    let changes = match were.len() {
        0 => 0,
        n if n != ranges.len() => 1,
        _ => were.iter().zip(ranges).filter(|(a, b)| a != b).count(),
    };
    for _ in 0..changes {
        errors.push(Error::forbidden(&path.child("podCIDRs"), detail));
    }
    let (was, is) = (text(&old["providerID"]), text(&new["providerID"]));
    if !was.is_empty() && was != is {
        let detail = "node updates may not change providerID except from \"\" to valid";
        errors.push(Error::forbidden(&path.child("providerID"), detail));
    }
    taints(
        &new["taints"],
        &Path::new("metadata").child("taints"),
        errors,
    );
    if text(&new["externalID"]) != text(&old["externalID"]) {
        let at = path.child("externalID");
        errors.push(Error::forbidden(&at, "may not be updated"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};

    #[test]
    fn a_node_is_shown_with_state_and_roles() {
        let node = object(
            r#"{"metadata": {"name": "n", "labels": {"node-role.kubernetes.io/control-plane": ""}},
                "spec": {"unschedulable": true},
                "status": {"conditions": [{"type": "Ready", "status": "False"}],
                           "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                           "nodeInfo": {"kubeletVersion": "v1", "architecture": "amd64"}}}"#,
        );
        let cells = row(&node, 0);
        assert_eq!(cells[1], "NotReady,SchedulingDisabled");
        assert_eq!(cells[2], "control-plane");
        assert_eq!(cells[5], "10.0.0.1");
        assert_eq!(cells[8], "<unknown> (amd64)");
        assert_eq!(cells.len(), COLUMNS.len());
    }

    #[test]
    fn address_ranges_stay() {
        let old = object(r#"{"spec": {"podCIDRs": ["10.0.0.0/24"]}}"#);
        let new = object(r#"{"spec": {"podCIDRs": ["10.0.1.0/24"]}}"#);
        assert_eq!(lines(validate_update(&new, &old, None)).len(), 1);
    }

    #[test]
    fn invalid_fields_are_reported_with_their_paths() {
        let cases: &[(&str, &[&str])] = &[
            (
                r#"{"spec": {"podCIDRs": ["10.0.0.0/24", "2001:db8::/64"]}, "status": {"declaredFeatures": ["A", "B/c"]}}"#,
                &[],
            ),
            (
                r#"{"spec": {"taints": [{"key": "a", "effect": "NoExecute"}, {"key": "a", "effect": "NoExecute"}]}}"#,
                &[
                    r#"metadata.taints[1]: Duplicate value: {"Key":"a","Value":"","Effect":"NoExecute","TimeAdded":null}: taints must be unique by key and effect pair"#,
                ],
            ),
            (
                r#"{"spec": {"podCIDRs": ["10.0.0.0/24", "10.0.1.0/24"]}}"#,
                &[
                    r#"spec.podCIDRs: Invalid value: ["10.0.0.0/24","10.0.1.0/24"]: may specify no more than one CIDR for each IP family"#,
                ],
            ),
            (
                r#"{"status": {"capacity": {"cpu": "-1"}}}"#,
                &[
                    r#"status.capacity.cpu: Invalid value: "-1": must be greater than or equal to 0"#,
                ],
            ),
            (
                r#"{"status": {"declaredFeatures": ["B", "A", "A"]}}"#,
                &[
                    r#"status.declaredFeatures[1]: Invalid value: "A": list must be sorted alphabetically"#,
                    r#"status.declaredFeatures[2]: Duplicate value: "A""#,
                ],
            ),
        ];
        for (node, expected) in cases {
            assert_eq!(lines(validate(&object(node))), *expected, "{node}");
        }
    }

    #[test]
    fn dynamic_kubelet_configuration_is_dropped() {
        let mut node = object(
            r#"{"spec": {"configSource": {}, "externalID": "a"}, "status": {"config": {}}}"#,
        );
        drop_config(&mut node, &Object::new());
        assert_eq!(
            node,
            object(r#"{"spec": {"externalID": "a"}, "status": {}}"#)
        );
        assert_eq!(
            warnings(&node),
            ["spec.externalID: this field is deprecated, and is unused by Kubernetes"]
        );
    }
}
