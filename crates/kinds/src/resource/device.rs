//! A device in a slice: attributes, capacities, taints, counters, node selection.

use super::claim_spec::EFFECTS;
use super::names;
use super::request_policy::check_request_policy;
use super::{check_items, check_set};
use crate::check;
use crate::internal::internal;
use crate::pod::check_node_selector;
use crate::tree::{entries, is_set, list, same, text, truth};
use machinery::field::{Error, Errors, Path};
use machinery::{Value, format};

const PROPERTIES_MAX: usize = 32;
const VALUES_MAX: usize = 48;
const VALUE_LENGTH_MAX: usize = 64;
/// A domain, a slash and an identifier.
const KEY_SHOWN_MAX: usize = 63 + 1 + 32;
const TAINTS_MAX: usize = 16;
const COUNTER_SETS_MAX: usize = 2;
const COUNTERS_MAX: usize = 32;
const BINDING_CONDITIONS_MAX: usize = 4;

/// Validates a device; `was` is the previous device of this name, and `chooses_nodes` says whether
/// each device selects its nodes.
pub(super) fn check_device(
    device: &Value,
    was: Option<&Value>,
    chooses_nodes: bool,
    path: &Path,
    errors: &mut Errors,
) {
    names::label(text(&device["name"]), &path.child("name"), errors);
    check_properties(device, path, errors);
    if was.is_none_or(|was| !same(&was["taints"], &device["taints"])) {
        let at = path.child("taints");
        check_items(
            list(&device["taints"]),
            TAINTS_MAX,
            &at,
            errors,
            check_taint,
        );
    }
    let set = |consumption: &Value| Value::from(text(&consumption["counterSet"]));
    let (given, at) = (
        list(&device["consumesCounters"]),
        path.child("consumesCounters"),
    );
    check_set(
        given,
        COUNTER_SETS_MAX,
        set,
        &at,
        errors,
        |consumption, path, errors| {
            check_counters(consumption, "counterSet", path, errors);
        },
    );
    check_nodes(device, chooses_nodes, path, errors);
    check_binding_conditions(device, path, errors);
}

fn check_properties(device: &Value, path: &Path, errors: &mut Errors) {
    let count = entries(&device["attributes"]).count() + entries(&device["capacity"]).count();
    if count > PROPERTIES_MAX {
        let detail = format!(
            "the total number of attributes and capacities must not exceed {PROPERTIES_MAX}"
        );
        errors.push(Error::invalid(path, count as i64, detail));
    }
    let values = entries(&device["attributes"]).count();
    if values > VALUES_MAX {
        let detail = format!("the total number of attribute values must not exceed {VALUES_MAX}");
        errors.push(Error::invalid(path, values as i64, detail));
    }
    let at = path.child("attributes");
    for (name, attribute) in entries(&device["attributes"]) {
        names::qualified(name, &at, errors);
        check_attribute(
            attribute,
            &at.key(&names::shortened(name, KEY_SHOWN_MAX)),
            errors,
        );
    }
    let at = path.child("capacity");
    for (name, capacity) in entries(&device["capacity"]) {
        names::qualified(name, &at, errors);
        let policy = &capacity["requestPolicy"];
        if !is_set(policy) {
            continue;
        }
        let key = names::shortened(name, KEY_SHOWN_MAX);
        let at = at.key(&key);
        let at = at.child("requestPolicy");
        if truth(&device["allowMultipleAllocations"]) {
            check_request_policy(policy, &capacity["value"], &at, errors);
        } else {
            errors.push(Error::forbidden(
                &at,
                "allowMultipleAllocations must be true",
            ));
        }
    }
}

fn check_attribute(attribute: &Value, path: &Path, errors: &mut Errors) {
    if let Some(value) = attribute["string"].as_str() {
        check_length(value, &path.child("string"), errors);
    }
    if let Some(value) = attribute["version"].as_str() {
        let at = path.child("version");
        if !is_semantic_version(value) {
            let detail = "must be a string compatible with semver.org spec 2.0.0";
            errors.push(Error::invalid(&at, value, detail));
        }
        check_length(value, &at, errors);
    }
    let given = ["bool", "int", "string", "version"]
        .iter()
        .filter(|f| is_set(&attribute[**f]))
        .count();
    let detail = "exactly one value must be specified";
    match given {
        0 => errors.push(Error::invalid(path, "", detail)),
        1 => {}
        _ => {
            let shown = internal("resource/v1.DeviceAttribute", attribute);
            errors.push(Error::invalid(path, shown, detail));
        }
    }
}

fn check_length(value: &str, path: &Path, errors: &mut Errors) {
    if value.len() > VALUE_LENGTH_MAX {
        errors.push(Error::too_long(path, VALUE_LENGTH_MAX));
    }
}

/// Three numbers, then pre-release, then build metadata.
fn is_semantic_version(value: &str) -> bool {
    let is_number = |part: &str| {
        part.bytes().all(|b| b.is_ascii_digit())
            && !part.is_empty()
            && (part == "0" || !part.starts_with('0'))
    };
    let is_identifier = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    let (rest, build) = match value.split_once('+') {
        Some((rest, build)) => (rest, Some(build)),
        None => (value, None),
    };
    let (numbers, before) = match rest.split_once('-') {
        Some((numbers, before)) => (numbers, Some(before)),
        None => (rest, None),
    };
    let numbers: Vec<&str> = numbers.split('.').collect();
    numbers.len() == 3
        && numbers.into_iter().all(is_number)
        && build.is_none_or(|build| build.split('.').all(is_identifier))
        && before.is_none_or(|before| {
            before.split('.').all(|part| {
                is_identifier(part)
                    && (is_number(part) || part.bytes().any(|b| !b.is_ascii_digit()))
            })
        })
}

fn check_taint(taint: &Value, path: &Path, errors: &mut Errors) {
    names::label_key(text(&taint["key"]), &path.child("key"), errors);
    check::optional(
        format::label_value,
        &taint["value"],
        &path.child("value"),
        errors,
    );
    check::known(&taint["effect"], EFFECTS, &path.child("effect"), errors);
}

/// Validates the counters of a set, whose name is in this field.
pub(super) fn check_counters(set: &Value, name: &str, path: &Path, errors: &mut Errors) {
    let at = path.child(name);
    check::required(&set[name], &at, errors);
    check::optional(format::dns1123_label, &set[name], &at, errors);
    let at = path.child("counters");
    match entries(&set["counters"]).count() {
        0 => errors.push(Error::required(&at, "")),
        count if count > COUNTERS_MAX => errors.push(Error::too_many(&at, count, COUNTERS_MAX)),
        _ => {
            for (name, _) in entries(&set["counters"]) {
                names::label(name, &at, errors);
            }
        }
    }
}

fn check_nodes(device: &Value, chooses_nodes: bool, path: &Path, errors: &mut Errors) {
    let fields = ["nodeName", "nodeSelector", "allNodes"];
    if !chooses_nodes {
        if fields.iter().any(|field| is_set(&device[*field])) {
            let detail = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
            errors.push(Error::invalid(path, Value::Null, detail));
        }
        return;
    }
    let mut given = Vec::new();
    check_node_name(
        &device["nodeName"],
        "must not be empty",
        path,
        &mut given,
        errors,
    );
    if is_set(&device["nodeSelector"]) {
        given.push("`nodeSelector`");
        check_node_selector(&device["nodeSelector"], &path.child("nodeSelector"), errors);
    }
    check_only_true(
        &device["allNodes"],
        "allNodes",
        "`allNodes`",
        path,
        &mut given,
        errors,
    );
    let detail = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
    match given.len() {
        0 => errors.push(Error::required(path, detail)),
        1 => {}
        _ => errors.push(Error::invalid(
            path,
            format!("{{{}}}", given.join(", ")),
            detail,
        )),
    }
}

/// Validates an optional node name; an empty one is an error.
pub(super) fn check_node_name(
    name: &Value,
    empty: &str,
    path: &Path,
    given: &mut Vec<&str>,
    errors: &mut Errors,
) {
    let at = path.child("nodeName");
    match name.as_str() {
        None => {}
        Some("") => errors.push(Error::invalid(&at, "", empty)),
        Some(name) => {
            given.push("`nodeName`");
            check::form(format::dns1123_subdomain(name), name, &at, errors);
        }
    }
}

/// A boolean that must be true if set.
pub(super) fn check_only_true<'a>(
    value: &Value,
    field: &str,
    shown: &'a str,
    path: &Path,
    given: &mut Vec<&'a str>,
    errors: &mut Errors,
) {
    match value.as_bool() {
        None => {}
        Some(true) => given.push(shown),
        Some(false) => {
            let detail = "must be either unset or set to true";
            errors.push(Error::invalid(&path.child(field), false, detail));
        }
    }
}

/// Validates the conditions that must hold before a pod is bound, and those that abort binding.
pub(super) fn check_binding_conditions(device: &Value, path: &Path, errors: &mut Errors) {
    let (wanted, failed) = ("bindingConditions", "bindingFailureConditions");
    for field in [wanted, failed] {
        let at = path.child(field);
        check_items(
            list(&device[field]),
            BINDING_CONDITIONS_MAX,
            &at,
            errors,
            |name, path, errors| {
                names::label_key(text(name), path, errors);
            },
        );
    }
    let good = list(&device[wanted]);
    for field in [wanted, failed] {
        let (at, names) = (path.child(field), list(&device[field]));
        for (i, name) in names.iter().enumerate() {
            if names[..i].contains(name) {
                errors.push(Error::duplicate(&at.index(i), name.clone()));
            }
            if field == failed && good.contains(name) {
                let detail = "bindingFailureConditions must not overlap with bindingConditions";
                errors.push(Error::invalid(&at.index(i), name.clone(), detail));
            }
        }
    }
    for (field, other) in [(wanted, failed), (failed, wanted)] {
        if list(&device[field]).is_empty() && !list(&device[other]).is_empty() {
            let detail = format!("{field} are required to use {other}");
            errors.push(Error::invalid(
                &path.child(field),
                device[field].clone(),
                detail,
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::lines;
    use machinery::json::json;

    fn messages(device: &Value, chooses_nodes: bool) -> Vec<String> {
        let mut errors = Vec::new();
        check_device(device, None, chooses_nodes, &Path::new("d"), &mut errors);
        lines(errors)
    }

    #[test]
    fn versions_are_semantic() {
        for good in [
            "1.0.0",
            "0.0.1",
            "1.2.3-alpha.1",
            "1.2.3-0a.b-c+001.x",
            "1.2.3+build",
            "1.2.3--",
        ] {
            assert!(is_semantic_version(good), "{good}");
        }
        for bad in [
            "",
            "1",
            "1.0",
            "01.0.0",
            "1.0.0-",
            "1.0.0-01",
            "1.0.0+",
            "1.0.0-a..b",
            "v1.0.0",
            "1.0.0.0",
        ] {
            assert!(!is_semantic_version(bad), "{bad}");
        }
    }

    #[test]
    fn invalid_devices_are_rejected_with_field_paths() {
        let cases = [
            (json!({"name": "d"}), vec![]),
            (
                json!({"name": "d", "attributes": {"a": {}, "b": {"int": 1, "bool": true}, "c": {"version": "1"}}}),
                vec![
                    r#"d.attributes[a]: Invalid value: "": exactly one value must be specified"#,
                    r#"d.attributes[b]: Invalid value: {"IntValue":1,"BoolValue":true,"StringValue":null,"VersionValue":null,"IntValues":null,"BoolValues":null,"StringValues":null,"VersionValues":null}: exactly one value must be specified"#,
                    r#"d.attributes[c].version: Invalid value: "1": must be a string compatible with semver.org spec 2.0.0"#,
                ],
            ),
            (
                json!({"name": "d", "capacity": {"a": {"value": "1", "requestPolicy": {}}}}),
                vec![
                    "d.capacity[a].requestPolicy: Forbidden: allowMultipleAllocations must be true",
                ],
            ),
            (
                json!({"name": "d", "taints": [{"key": "k"}, {"key": "k", "effect": "All"}]}),
                vec![
                    "d.taints[0].effect: Required value",
                    r#"d.taints[1].effect: Unsupported value: "All": supported values: "NoExecute", "NoSchedule", "None""#,
                ],
            ),
            (
                json!({"name": "d", "consumesCounters": [{}, {"counterSet": "s", "counters": {"a": {"value": "1"}}}]}),
                vec![
                    "d.consumesCounters[0].counterSet: Required value",
                    "d.consumesCounters[0].counters: Required value",
                ],
            ),
            (
                json!({"name": "d", "nodeName": "n"}),
                vec![
                    "d: Invalid value: null: `nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec",
                ],
            ),
            (
                json!({"name": "d", "bindingConditions": ["a", "a"], "bindingFailureConditions": ["a"]}),
                vec![
                    r#"d.bindingConditions[1]: Duplicate value: "a""#,
                    r#"d.bindingFailureConditions[0]: Invalid value: "a": bindingFailureConditions must not overlap with bindingConditions"#,
                ],
            ),
            (
                json!({"name": "d", "bindingFailureConditions": ["a"]}),
                vec![
                    "d.bindingConditions: Invalid value: null: bindingConditions are required to use bindingFailureConditions",
                ],
            ),
        ];
        for (device, expected) in cases {
            assert_eq!(messages(&device, false), expected, "{device}");
        }
    }

    #[test]
    fn a_device_names_its_nodes_in_one_way() {
        let one = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
        let cases = [
            (json!({"name": "d", "nodeName": "n"}), vec![]),
            (
                json!({"name": "d"}),
                vec![format!("d: Required value: {one}")],
            ),
            (
                json!({"name": "d", "nodeName": "n", "allNodes": true}),
                vec![format!(
                    "d: Invalid value: \"{{`nodeName`, `allNodes`}}\": {one}"
                )],
            ),
            (
                json!({"name": "d", "nodeName": "", "allNodes": false}),
                vec![
                    "d.nodeName: Invalid value: \"\": must not be empty".to_owned(),
                    "d.allNodes: Invalid value: false: must be either unset or set to true"
                        .to_owned(),
                    format!("d: Required value: {one}"),
                ],
            ),
        ];
        for (device, expected) in cases {
            assert_eq!(messages(&device, true), expected, "{device}");
        }
    }

    #[test]
    fn taints_that_were_there_before_may_stay() {
        let device = json!({"name": "d", "taints": [{"key": "k", "effect": "Old"}]});
        let mut errors = Vec::new();
        check_device(&device, Some(&device), false, &Path::new("d"), &mut errors);
        assert_eq!(lines(errors), [""; 0]);
    }

    #[test]
    fn attributes_and_capacities_of_a_device_are_limited() {
        let attributes: machinery::Object = (0..33)
            .map(|i| {
                (
                    machinery::json::Key::from(format!("a{i}")),
                    json!({"int": 1}),
                )
            })
            .collect();
        assert_eq!(
            messages(&json!({"name": "d", "attributes": attributes}), false),
            [
                "d: Invalid value: 33: the total number of attributes and capacities must not exceed 32"
            ]
        );
    }
}
