//! Node: a machine that runs pods.

use crate::builtin::{Builtin, STATUS};
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell, or_none, wide};
use crate::tree::{child, entries, get, is_empty, is_set, list, same, text, truth};
use crate::{Column, Scope, Subresource, SubresourceInfo};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value, format};
use std::collections::BTreeSet;

pub const KIND: Builtin = Builtin {
    kind: "Node",
    plural: "nodes",
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
    prepare_create: |_, _| {},
    prepare_update: |object, old, subresource, _| {
        // A kubelet may bring its status along when it registers; later only through `status`.
        if subresource.is_none() {
            crate::tree::keep(object, old, "status");
        }
    },
    validate_create: validate,
    validate_update,
    selectable: &["spec.unschedulable"],
    selectable_fields: |o| {
        vec![(
            "spec.unschedulable",
            truth(&get(o, "spec")["unschedulable"]).to_string(),
        )]
    },
    columns: COLUMNS,
    row,
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
    // One address range stands in both fields.
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

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    taints(
        &spec["taints"],
        &Path::new("spec").child("taints"),
        &mut errors,
    );
    errors
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
            errors.push(Error::invalid(
                &at.child("value"),
                text(&taint["value"]),
                detail,
            ));
        }
        let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
        match text(&taint["effect"]) {
            "" => errors.push(Error::required(&at.child("effect"), "")),
            _ => check::one_of(&taint["effect"], &effects, &at.child("effect"), errors),
        }
        if !seen.insert((key, text(&taint["effect"]))) {
            errors.push(Error::duplicate(&at, taint.clone()));
        }
    }
}

fn validate_update(object: &Object, old: &Object, _: Subresource<'_>) -> Errors {
    let mut errors = validate(object);
    let (new, old) = (get(object, "spec"), get(old, "spec"));
    let path = Path::new("spec");
    if !is_empty(&old["podCIDRs"]) && !same(&new["podCIDRs"], &old["podCIDRs"]) {
        let detail = "node updates may not change podCIDR except from \"\" to valid";
        errors.push(Error::forbidden(&path.child("podCIDRs"), detail));
    }
    let (was, is) = (text(&old["providerID"]), text(&new["providerID"]));
    if !was.is_empty() && was != is {
        let detail = "node updates may not change providerID except from \"\" to valid";
        errors.push(Error::forbidden(&path.child("providerID"), detail));
    }
    errors
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
}
