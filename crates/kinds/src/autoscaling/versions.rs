//! Conversion of HorizontalPodAutoscalers between autoscaling/v1 and v2. v1 has one metric field,
//! for CPU; the rest is kept in annotations: metrics in v1's form, behaviour with the names of Go's
//! fields.

use crate::Subresource;
use crate::tree::{child, child_or_new, get, is_set, list};
use machinery::json::{from_str, json};
use machinery::{Object, Value, text};

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
/// The annotations that the conversion writes; removed before writing.
const NOTES: &[&str] = &[
    METRICS,
    CURRENT,
    CONDITIONS,
    BEHAVIOR,
    "autoscaling.alpha.kubernetes.io/scale-down-tolerance",
    "autoscaling.alpha.kubernetes.io/scale-up-tolerance",
];

/// A member of a metric: its path in v2, its path in v1, and what v1 always writes.
type Member = (&'static [&'static str], &'static [&'static str], Written);

#[derive(PartialEq, Clone, Copy)]
enum Written {
    IfSet,
    Text,
    Quantity,
}
use Written::{IfSet, Quantity, Text};

const SPEC: &[(&str, &[Member])] = &[
    (
        "object",
        &[
            (&["describedObject"], &["target"], IfSet),
            (&["metric", "name"], &["metricName"], Text),
            (&["target", "value"], &["targetValue"], Quantity),
            (&["metric", "selector"], &["selector"], IfSet),
            (&["target", "averageValue"], &["averageValue"], IfSet),
        ],
    ),
    (
        "pods",
        &[
            (&["metric", "name"], &["metricName"], Text),
            (
                &["target", "averageValue"],
                &["targetAverageValue"],
                Quantity,
            ),
            (&["metric", "selector"], &["selector"], IfSet),
        ],
    ),
    (
        "resource",
        &[
            (&["name"], &["name"], Text),
            (
                &["target", "averageUtilization"],
                &["targetAverageUtilization"],
                IfSet,
            ),
            (&["target", "averageValue"], &["targetAverageValue"], IfSet),
        ],
    ),
    (
        "containerResource",
        &[
            (&["name"], &["name"], Text),
            (
                &["target", "averageUtilization"],
                &["targetAverageUtilization"],
                IfSet,
            ),
            (&["target", "averageValue"], &["targetAverageValue"], IfSet),
            (&["container"], &["container"], Text),
        ],
    ),
    (
        "external",
        &[
            (&["metric", "name"], &["metricName"], Text),
            (&["metric", "selector"], &["metricSelector"], IfSet),
            (&["target", "value"], &["targetValue"], IfSet),
            (&["target", "averageValue"], &["targetAverageValue"], IfSet),
        ],
    ),
];

const STATUS: &[(&str, &[Member])] = &[
    (
        "object",
        &[
            (&["describedObject"], &["target"], IfSet),
            (&["metric", "name"], &["metricName"], Text),
            (&["current", "value"], &["currentValue"], Quantity),
            (&["metric", "selector"], &["selector"], IfSet),
            (&["current", "averageValue"], &["averageValue"], IfSet),
        ],
    ),
    (
        "pods",
        &[
            (&["metric", "name"], &["metricName"], Text),
            (
                &["current", "averageValue"],
                &["currentAverageValue"],
                Quantity,
            ),
            (&["metric", "selector"], &["selector"], IfSet),
        ],
    ),
    (
        "resource",
        &[
            (&["name"], &["name"], Text),
            (
                &["current", "averageUtilization"],
                &["currentAverageUtilization"],
                IfSet,
            ),
            (
                &["current", "averageValue"],
                &["currentAverageValue"],
                Quantity,
            ),
        ],
    ),
    (
        "containerResource",
        &[
            (&["name"], &["name"], Text),
            (
                &["current", "averageUtilization"],
                &["currentAverageUtilization"],
                IfSet,
            ),
            (
                &["current", "averageValue"],
                &["currentAverageValue"],
                Quantity,
            ),
            (&["container"], &["container"], Text),
        ],
    ),
    (
        "external",
        &[
            (&["metric", "name"], &["metricName"], Text),
            (&["metric", "selector"], &["metricSelector"], IfSet),
            (&["current", "value"], &["currentValue"], Quantity),
            (
                &["current", "averageValue"],
                &["currentAverageValue"],
                IfSet,
            ),
        ],
    ),
];

fn at<'a>(value: &'a Value, path: &[&str]) -> &'a Value {
    path.iter().fold(value, |value, name| &value[*name])
}

fn put(value: &mut Value, path: &[&str], new: Value) {
    let place = path.iter().fold(value, |value, name| &mut value[*name]);
    *place = new;
}

/// A metric in v1's form.
fn old_metric(metric: &Value, members: &[(&str, &[Member])]) -> Value {
    let mut out = json!({"type": metric["type"].clone()});
    for (name, members) in members {
        let source = &metric[*name];
        if !source.is_object() {
            continue;
        }
        out[*name] = json!({});
        for (new, old, written) in *members {
            let value = match (at(source, new), written) {
                (Value::Null, IfSet) => continue,
                (Value::Null, Text) => json!(""),
                (Value::Null, Quantity) => json!("0"),
                (value, _) => value.clone(),
            };
            put(&mut out[*name], old, value);
        }
    }
    out
}

/// A metric in v2's form.
fn new_metric(metric: &Value, members: &[(&str, &[Member])], has_target: bool) -> Value {
    let mut out = json!({"type": metric["type"].clone()});
    for (name, members) in members {
        let source = &metric[*name];
        if !source.is_object() {
            continue;
        }
        out[*name] = json!({});
        for (new, old, _) in *members {
            let value = at(source, old);
            // v1 cannot omit the value; with an average it means nothing.
            let unsaid = *new == ["target", "value"]
                && (*value == "0" || *value == 0)
                && is_set(&source["averageValue"]);
            if is_set(value) && !unsaid {
                put(&mut out[*name], new, value.clone());
            }
        }
        if let Some(target) = target_type(name, source).filter(|_| has_target) {
            put(&mut out[*name], &["target", "type"], json!(target));
        }
    }
    out
}

/// The target type of a v1 source.
fn target_type(name: &str, source: &Value) -> Option<&'static str> {
    let has = |field: &str| is_set(&source[field]);
    Some(match name {
        "object" if has("averageValue") => "AverageValue",
        "object" => "Value",
        "pods" => "AverageValue",
        "resource" | "containerResource" if has("targetAverageUtilization") => "Utilization",
        "resource" | "containerResource" => "AverageValue",
        "external" if has("targetValue") => "Value",
        "external" => "AverageValue",
        _ => return None,
    })
}

/// The behaviour with Go's field names, including absent fields.
fn go_behavior(behavior: &Value) -> Value {
    let rules = |rules: &Value| match rules {
        Value::Object(_) => {
            let policies = match &rules["policies"] {
                Value::Array(policies) => {
                    let of = |policy: &Value| {
                        json!({"Type": policy["type"].clone(), "Value": policy["value"].clone(),
                            "PeriodSeconds": policy["periodSeconds"].clone()})
                    };
                    Value::Array(policies.iter().map(of).collect())
                }
                _ => Value::Null,
            };
            json!({"StabilizationWindowSeconds": rules["stabilizationWindowSeconds"].clone(),
                "SelectPolicy": rules["selectPolicy"].clone(), "Policies": policies,
                "Tolerance": rules["tolerance"].clone()})
        }
        _ => Value::Null,
    };
    json!({"ScaleUp": rules(&behavior["scaleUp"]), "ScaleDown": rules(&behavior["scaleDown"])})
}

/// The behaviour with v2's field names, matched without case; null fields are dropped.
fn named_behavior(value: &Value) -> Value {
    const NAMES: &[&str] = &[
        "scaleUp",
        "scaleDown",
        "stabilizationWindowSeconds",
        "selectPolicy",
        "policies",
        "tolerance",
        "type",
        "value",
        "periodSeconds",
    ];
    match value {
        Value::Object(map) => {
            let mut out = Object::new();
            for (name, value) in map.iter().filter(|(_, value)| is_set(value)) {
                let known = NAMES.iter().find(|known| known.eq_ignore_ascii_case(name));
                if let Some(known) = known {
                    out.insert(*known, named_behavior(value));
                }
            }
            Value::Object(out)
        }
        Value::Array(items) => Value::Array(items.iter().map(named_behavior).collect()),
        other => other.clone(),
    }
}

pub(super) fn cpu(percent: Value) -> Value {
    json!({"type": "Resource", "resource": {"name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": percent}}})
}

fn is_cpu(metric: &Value, part: &str) -> bool {
    metric["type"] == "Resource"
        && metric["resource"]["name"] == "cpu"
        && is_set(&metric["resource"][part]["averageUtilization"])
}

/// Removes all conversion annotations; returns them.
pub(super) fn take_notes(object: &mut Object) -> Object {
    let mut notes = Object::new();
    let Some(metadata) = child(object, "metadata") else {
        return notes;
    };
    let Some(annotations) = child(metadata, "annotations") else {
        return notes;
    };
    for name in NOTES {
        if let Some(Value::String(text)) = annotations.shift_remove(name)
            && let Ok(value) = from_str(&text)
        {
            notes.insert(*name, value);
        }
    }
    if annotations.is_empty() {
        metadata.shift_remove("annotations");
    }
    notes
}

/// Restores from `old` the annotations that a write may not change: those of the status for a write
/// of the object, those of the spec for a write of `status`.
pub(super) fn keep_notes(object: &mut Object, old: Option<&Object>, subresource: Subresource<'_>) {
    let kept: &[&str] = match subresource {
        None => &[CURRENT, CONDITIONS],
        Some(_) => &[METRICS, BEHAVIOR],
    };
    let metadata = child_or_new(object, "metadata");
    let annotations = child_or_new(metadata, "annotations");
    for name in kept {
        match old.map(|old| &get(old, "metadata")["annotations"][*name]) {
            Some(Value::String(note)) => drop(annotations.insert(*name, note.clone().into())),
            _ => drop(annotations.shift_remove(name)),
        }
    }
    if annotations.is_empty() {
        metadata.shift_remove("annotations");
    }
}

pub(super) fn v1_to_v2(mut object: Object) -> Object {
    let notes = take_notes(&mut object);
    let note = |name: &str| notes.get(name).unwrap_or(&Value::Null);
    let spec = child_or_new(&mut object, "spec");
    let others = list(note(METRICS)).iter();
    let mut metrics: Vec<Value> = others
        .map(|metric| new_metric(metric, SPEC, true))
        .collect();
    let percent = spec.shift_remove("targetCPUUtilizationPercentage");
    metrics.extend(percent.filter(is_set).map(cpu));
    if metrics.is_empty() {
        metrics.push(cpu(json!(80)));
    }
    spec.insert("metrics", Value::Array(metrics));
    let behavior = named_behavior(note(BEHAVIOR));
    if behavior.as_object().is_some_and(|map| !map.is_empty()) {
        spec.insert("behavior", behavior);
    }
    let status = child_or_new(&mut object, "status");
    let percent = status.shift_remove("currentCPUUtilizationPercentage");
    let current = match (note(CURRENT), percent.filter(is_set)) {
        (Value::Array(metrics), _) => {
            let metrics = metrics
                .iter()
                .map(|metric| new_metric(metric, STATUS, false));
            Value::Array(metrics.collect())
        }
        (_, Some(percent)) => json!([{"type": "Resource", "resource": {"name": "cpu",
            "current": {"averageUtilization": percent}}}]),
        (_, None) => Value::Null,
    };
    status.insert("currentMetrics", current);
    if let conditions @ Value::Array(_) = note(CONDITIONS) {
        status.insert("conditions", conditions.clone());
    }
    object.insert("apiVersion", json!("autoscaling/v2"));
    object
}

pub(super) fn v2_to_v1(mut object: Object) -> Object {
    take_notes(&mut object);
    let spec = child_or_new(&mut object, "spec");
    let metrics = spec.shift_remove("metrics").unwrap_or_default();
    let behavior = spec.shift_remove("behavior").unwrap_or_default();
    let (own, others): (Vec<&Value>, Vec<&Value>) = list(&metrics)
        .iter()
        .partition(|metric| is_cpu(metric, "target"));
    if let Some(metric) = own.first() {
        let percent = metric["resource"]["target"]["averageUtilization"].clone();
        spec.insert("targetCPUUtilizationPercentage", percent);
    }
    let status = child_or_new(&mut object, "status");
    let current = status.shift_remove("currentMetrics").unwrap_or_default();
    let conditions = status.shift_remove("conditions").unwrap_or_default();
    if let Some(metric) = list(&current).iter().rfind(|m| is_cpu(m, "current")) {
        let percent = metric["resource"]["current"]["averageUtilization"].clone();
        status.insert("currentCPUUtilizationPercentage", percent);
    }
    let mut note = |name: &'static str, value: Value| {
        let is_empty = value.as_array().is_some_and(Vec::is_empty);
        if is_set(&value) && !is_empty {
            child_or_new(child_or_new(&mut object, "metadata"), "annotations")
                .insert(name, Value::from(text::json(&value)));
        }
    };
    let others = others.into_iter().map(|metric| old_metric(metric, SPEC));
    note(METRICS, Value::Array(others.collect()));
    let current = list(&current).iter();
    let current = current.map(|metric| old_metric(metric, STATUS));
    note(CURRENT, Value::Array(current.collect()));
    if behavior.is_object() {
        note(BEHAVIOR, go_behavior(&behavior));
    }
    let conditions = list(&conditions).iter().map(|condition| {
        let mut out = json!({"type": condition["type"].clone(), "status": condition["status"].clone(),
            "lastTransitionTime": condition["lastTransitionTime"].clone()});
        for name in ["reason", "message"] {
            if is_set(&condition[name]) {
                out[name] = condition[name].clone();
            }
        }
        out
    });
    note(CONDITIONS, Value::Array(conditions.collect()));
    object.insert("apiVersion", json!("autoscaling/v1"));
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::object;

    /// Metrics of v2 and the annotation that v1 keeps of them.
    const METRICS_AND_NOTES: &[(&str, &str)] = &[
        (
            r#"{"type": "Resource", "resource": {"name": "memory", "target": {"type": "Utilization", "averageUtilization": 60}}}"#,
            r#"{"type":"Resource","resource":{"name":"memory","targetAverageUtilization":60}}"#,
        ),
        (
            r#"{"type": "Pods", "pods": {"metric": {"name": "m"}, "target": {"type": "AverageValue", "averageValue": "1"}}}"#,
            r#"{"type":"Pods","pods":{"metricName":"m","targetAverageValue":"1"}}"#,
        ),
        (
            r#"{"type": "Object", "object": {"describedObject": {"kind": "S", "name": "s", "apiVersion": "v1"}, "metric": {"name": "m"}, "target": {"type": "AverageValue", "averageValue": "1"}}}"#,
            r#"{"type":"Object","object":{"target":{"kind":"S","name":"s","apiVersion":"v1"},"metricName":"m","targetValue":"0","averageValue":"1"}}"#,
        ),
        (
            r#"{"type": "External", "external": {"metric": {"name": "m", "selector": {"matchLabels": {"a": "b"}}}, "target": {"type": "Value", "value": "5"}}}"#,
            r#"{"type":"External","external":{"metricName":"m","metricSelector":{"matchLabels":{"a":"b"}},"targetValue":"5"}}"#,
        ),
    ];

    #[test]
    fn fields_that_v1_lacks_are_kept_in_annotations() {
        for (metric, note) in METRICS_AND_NOTES {
            let v2 = object(&format!(
                r#"{{"apiVersion": "autoscaling/v2", "metadata": {{"name": "h"}}, "spec": {{"metrics": [{metric}]}}, "status": {{"currentMetrics": null}}}}"#
            ));
            let v1 = v2_to_v1(v2.clone());
            let annotations = &get(&v1, "metadata")["annotations"];
            assert_eq!(annotations[METRICS], format!("[{note}]"));
            assert_eq!(Value::Object(v1_to_v2(v1)), Value::Object(v2));
        }
    }

    #[test]
    fn behaviour_is_kept_by_the_names_of_gos_fields() {
        let v2 = object(
            r#"{"apiVersion": "autoscaling/v2", "metadata": {"name": "h"}, "spec": {"behavior": {"scaleDown":
                {"stabilizationWindowSeconds": 20, "selectPolicy": "Max", "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}]}}}, "status": {}}"#,
        );
        let v1 = v2_to_v1(v2.clone());
        assert_eq!(
            get(&v1, "metadata")["annotations"][BEHAVIOR],
            r#"{"ScaleUp":null,"ScaleDown":{"StabilizationWindowSeconds":20,"SelectPolicy":"Max","Policies":[{"Type":"Pods","Value":4,"PeriodSeconds":15}],"Tolerance":null}}"#
        );
        let back = v1_to_v2(v1);
        assert_eq!(get(&back, "spec")["behavior"], get(&v2, "spec")["behavior"]);
    }

    #[test]
    fn the_cpu_metric_of_v1_comes_after_the_others() {
        let v1 = object(
            r#"{"metadata": {"annotations": {"autoscaling.alpha.kubernetes.io/metrics": "[{\"type\":\"Pods\",\"pods\":{\"metricName\":\"m\",\"targetAverageValue\":\"1\"}}]"}},
                "spec": {"targetCPUUtilizationPercentage": 50}}"#,
        );
        let v2 = v1_to_v2(v1);
        assert_eq!(get(&v2, "metadata").get("annotations"), None);
        let metrics = list(&get(&v2, "spec")["metrics"]).iter();
        let types: Vec<&str> = metrics.filter_map(|m| m["type"].as_str()).collect();
        assert_eq!(types, ["Pods", "Resource"]);
        assert_eq!(get(&v2, "status")["currentMetrics"], Value::Null);
    }

    #[test]
    fn annotations_of_the_other_half_are_kept_on_spec_and_status_updates() {
        let noted = |current: &str, metrics: &str| {
            object(&format!(
                r#"{{"metadata": {{"annotations": {{"{CURRENT}": "{current}", "{METRICS}": "{metrics}"}}}}}}"#
            ))
        };
        let note =
            |object: &Object, name: &str| get(object, "metadata")["annotations"][name].clone();
        let old = noted("[1]", "[1]");
        for (subresource, expected) in [(None, ["[1]", "[2]"]), (Some("status"), ["[2]", "[1]"])] {
            let mut new = noted("[2]", "[2]");
            keep_notes(&mut new, Some(&old), subresource);
            assert_eq!([note(&new, CURRENT), note(&new, METRICS)], expected);
        }
        let mut new = noted("[2]", "[2]");
        keep_notes(&mut new, None, None);
        assert_eq!(note(&new, CURRENT), Value::Null);
    }
}
