//! ResourceSlice: devices that a driver offers.

use super::check_set;
use super::device::{check_counters, check_device, check_node_name, check_only_true};
use super::names;
use crate::builtin::Builtin;
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell};
use crate::internal::internal_list;
use crate::pod::check_node_selector;
use crate::tree::{child, default_to, each, get, int, is_set, list, text, truth};
use crate::{Column, Scope, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value};

const DEVICES_MAX: usize = 128;
/// The maximum if devices have taints or consume counters.
const RICH_DEVICES_MAX: usize = 64;
const COUNTER_SETS_MAX: usize = 8;

pub const KIND: Builtin = Builtin {
    group: "resource.k8s.io",
    kind: "ResourceSlice",
    plural: "resourceslices",
    returns_deleted: true,
    scope: Scope::Cluster,
    schema: "resource/v1.ResourceSlice",
    has_generation: true,
    default_at: |object, now| {
        let Some(spec) = child(object, "spec") else {
            return;
        };
        for device in each(spec, "devices") {
            each(device, "taints").for_each(|taint| default_to(taint, "timeAdded", now));
        }
    },
    validate_create: |object| validate(object, &Value::Null),
    validate_update: |object, old, _: Subresource<'_>| validate(object, get(old, "spec")),
    warnings: |object, _| {
        let driver = text(&get(object, "spec")["driver"]);
        let mixed = (driver != driver.to_lowercase()).then(|| {
            let driver = machinery::text::quote(driver);
            format!("spec.driver: driver names should be lowercase; {driver} contains uppercase characters")
        });
        mixed.into_iter().collect()
    },
    selectable: &["spec.nodeName", "spec.driver"],
    selectable_fields: |o| {
        let spec = get(o, "spec");
        vec![
            ("spec.nodeName", text(&spec["nodeName"]).to_owned()),
            ("spec.driver", text(&spec["driver"]).to_owned()),
        ]
    },
    columns: COLUMNS,
    row,
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Node", "string", "The node that has the devices."),
    column("Driver", "string", "The driver."),
    column("Pool", "string", "The pool they belong to."),
    AGE,
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let spec = get(object, "spec");
    vec![
        name_cell(object),
        text(&spec["nodeName"]).into(),
        text(&spec["driver"]).into(),
        text(&spec["pool"]["name"]).into(),
        age(object, now),
    ]
}

/// Validates a slice; `was` is its previous spec, or null.
fn validate(object: &Object, was: &Value) -> Errors {
    let mut errors = Vec::new();
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    names::driver(text(&spec["driver"]), &path.child("driver"), &mut errors);
    check_pool(&spec["pool"], &path.child("pool"), &mut errors);
    if was.is_object() {
        let at = path.child("pool.name");
        check::immutable(
            &spec["pool"]["name"],
            &was["pool"]["name"],
            &at,
            &mut errors,
        );
        for name in ["driver", "nodeName"] {
            check::immutable(&spec[name], &was[name], &path.child(name), &mut errors);
        }
    }
    check_nodes(spec, &path, &mut errors);
    if is_set(&spec["sharedCounters"]) && is_set(&spec["devices"]) {
        let detail = "only one of `sharedCounters` or `devices` is allowed";
        errors.push(Error::invalid(&path, "", detail));
    }
    let devices = list(&spec["devices"]);
    let is_rich = |device: &Value| {
        !list(&device["taints"]).is_empty() || !list(&device["consumesCounters"]).is_empty()
    };
    let max = if devices.iter().any(is_rich) {
        RICH_DEVICES_MAX
    } else {
        DEVICES_MAX
    };
    let name = |of: &Value| Value::from(text(&of["name"]));
    check_set(
        devices,
        max,
        name,
        &path.child("devices"),
        &mut errors,
        |device, path, errors| {
            let same = |old: &&Value| text(&old["name"]) == text(&device["name"]);
            let old = list(&was["devices"]).iter().find(same);
            check_device(
                device,
                old,
                truth(&spec["perDeviceNodeSelection"]),
                path,
                errors,
            );
        },
    );
    let (sets, at) = (list(&spec["sharedCounters"]), path.child("sharedCounters"));
    check_set(
        sets,
        COUNTER_SETS_MAX,
        name,
        &at,
        &mut errors,
        |set, path, errors| {
            check_counters(set, "name", path, errors);
        },
    );
    errors
}

fn check_pool(pool: &Value, path: &Path, errors: &mut Errors) {
    names::pool(text(&pool["name"]), &path.child("name"), errors);
    check::positive(
        &pool["resourceSliceCount"],
        &path.child("resourceSliceCount"),
        errors,
    );
    let generation = int(&pool["generation"]);
    if generation < 0 {
        let detail = "must be greater than or equal to zero";
        errors.push(Error::invalid(
            &path.child("generation"),
            generation,
            detail,
        ));
    }
}

/// The nodes of the devices must be selected in exactly one way.
fn check_nodes(spec: &Value, path: &Path, errors: &mut Errors) {
    let mut given = Vec::new();
    let empty = "must be either unset or set to a non-empty string";
    check_node_name(&spec["nodeName"], empty, path, &mut given, errors);
    let selector = &spec["nodeSelector"];
    if is_set(selector) {
        given.push("`nodeSelector`");
        let at = path.child("nodeSelector");
        check_node_selector(selector, &at, errors);
        let terms = &selector["nodeSelectorTerms"];
        if list(terms).len() != 1 {
            let shown = internal_list("core/v1.NodeSelectorTerm", terms);
            let detail = "must have exactly one node selector term";
            errors.push(Error::invalid(
                &at.child("nodeSelectorTerms"),
                shown,
                detail,
            ));
        }
    }
    for (field, shown) in [
        ("allNodes", "`allNodes`"),
        ("perDeviceNodeSelection", "`perDeviceNodeSelection`"),
    ] {
        check_only_true(&spec[field], field, shown, path, &mut given, errors);
    }
    let detail = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    match given.len() {
        0 => errors.push(Error::required(path, detail)),
        1 => {}
        _ => {
            let detail = format!("{detail}, but multiple fields are set");
            errors.push(Error::invalid(
                path,
                format!("{{{}}}", given.join(", ")),
                detail,
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};
    use machinery::json::json;

    fn slice(fields: Value) -> Object {
        let mut slice = object(
            r#"{"spec": {"driver": "d", "pool": {"name": "p", "resourceSliceCount": 1}, "nodeName": "n"}}"#,
        );
        for (key, value) in fields.as_object().unwrap() {
            child(&mut slice, "spec")
                .unwrap()
                .insert(key.clone(), value.clone());
        }
        slice
    }

    #[test]
    fn invalid_slices_are_rejected_with_field_paths() {
        let one = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
        let cases = [
            (json!({}), vec![]),
            (
                json!({"driver": "", "pool": {"generation": -1}}),
                vec![
                    "spec.driver: Required value".to_owned(),
                    "spec.pool.name: Required value".to_owned(),
                    "spec.pool.resourceSliceCount: Invalid value: 0: must be greater than zero".to_owned(),
                    "spec.pool.generation: Invalid value: -1: must be greater than or equal to zero".to_owned(),
                ],
            ),
            (json!({"nodeName": null}), vec![format!("spec: Required value: {one}")]),
            (
                json!({"allNodes": true}),
                vec![format!("spec: Invalid value: \"{{`nodeName`, `allNodes`}}\": {one}, but multiple fields are set")],
            ),
            (
                json!({"nodeName": "", "perDeviceNodeSelection": true}),
                vec!["spec.nodeName: Invalid value: \"\": must be either unset or set to a non-empty string".to_owned()],
            ),
            (
                json!({"nodeName": null, "nodeSelector": {}}),
                vec![
                    "spec.nodeSelector.nodeSelectorTerms: Required value: must have at least one node selector term".to_owned(),
                    "spec.nodeSelector.nodeSelectorTerms: Invalid value: null: must have exactly one node selector term".to_owned(),
                ],
            ),
            (
                json!({"devices": [{"name": "d"}, {"name": "d"}], "sharedCounters": [{"name": "c"}]}),
                vec![
                    "spec: Invalid value: \"\": only one of `sharedCounters` or `devices` is allowed".to_owned(),
                    "spec.devices[1]: Duplicate value: \"d\"".to_owned(),
                    "spec.sharedCounters[0].counters: Required value".to_owned(),
                ],
            ),
        ];
        for (fields, expected) in cases {
            assert_eq!(
                lines((KIND.validate_create)(&slice(fields.clone()))),
                expected,
                "{fields}"
            );
        }
    }

    #[test]
    fn a_slice_stays_with_its_driver_pool_and_node() {
        let new = slice(
            json!({"driver": "e", "nodeName": "m", "pool": {"name": "q", "resourceSliceCount": 1}}),
        );
        assert_eq!(
            lines((KIND.validate_update)(&new, &slice(json!({})), None)),
            [
                "spec.pool.name: Invalid value: \"q\": field is immutable",
                "spec.driver: Invalid value: \"e\": field is immutable",
                "spec.nodeName: Invalid value: \"m\": field is immutable",
            ]
        );
    }

    #[test]
    fn rich_devices_are_fewer_in_a_slice() {
        let many = |count: usize, taint: bool| -> Value {
            let taints = json!([{"key": "k", "effect": "None"}]);
            let device = |i: usize| match taint {
                true => json!({"name": format!("d{i}"), "taints": taints}),
                false => json!({"name": format!("d{i}")}),
            };
            (0..count).map(device).collect()
        };
        let reported =
            |devices: Value| lines((KIND.validate_create)(&slice(json!({"devices": devices}))));
        assert_eq!(reported(many(128, false)), [""; 0]);
        assert_eq!(
            reported(many(129, false)),
            ["spec.devices: Too many: 129: must have at most 128 items"]
        );
        assert_eq!(
            reported(many(65, true)),
            ["spec.devices: Too many: 65: must have at most 64 items"]
        );
    }

    #[test]
    fn device_taints_get_a_time_added() {
        let mut given =
            slice(json!({"devices": [{"name": "d", "taints": [{"key": "k", "effect": "None"}]}]}));
        (KIND.default_at)(&mut given, "2020-01-01T00:00:00Z");
        assert_eq!(
            get(&given, "spec")["devices"][0]["taints"][0]["timeAdded"],
            "2020-01-01T00:00:00Z"
        );
    }

    #[test]
    fn capitals_in_a_drivers_name_are_warned_about() {
        assert_eq!(
            (KIND.warnings)(&slice(json!({"driver": "Ab"})), None),
            ["spec.driver: driver names should be lowercase; \"Ab\" contains uppercase characters"]
        );
    }
}
