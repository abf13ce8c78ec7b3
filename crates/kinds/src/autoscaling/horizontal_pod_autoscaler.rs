//! HorizontalPodAutoscaler: scales replicas by metrics. Stored as autoscaling/v2; autoscaling/v1
//! shows the fields it has and keeps the rest in annotations.

use super::metrics::{ApiVersion, check_metric, check_reference, check_rules, of_described};
use super::versions::{cpu, keep_notes, take_notes, v1_to_v2, v2_to_v1};
use crate::builtin::{Builtin, STATUS};
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell};
use crate::tree::{child, child_or_new, default_empty, default_to, get, int, is_set, list, text};
use crate::{Column, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::json::json;
use machinery::{Object, Value};

pub const KIND: Builtin = Builtin {
    group: "autoscaling",
    version: "v2",
    kind: "HorizontalPodAutoscaler",
    plural: "horizontalpodautoscalers",
    short_names: &["hpa"],
    categories: &["all"],
    schema: "autoscaling/v2.HorizontalPodAutoscaler",
    subresources: &[STATUS],
    has_status: true,
    // v1's annotations are fields in v2.
    default: |object| {
        take_notes(object);
        default(object);
    },
    validate_create: validate,
    validate_update: |object, old, subresource: Subresource<'_>| match subresource {
        None => validate_spec(get(object, "spec"), Some(get(old, "spec"))),
        Some(_) => check_status(get(object, "status")),
    },
    columns: COLUMNS,
    row,
    ..Builtin::EMPTY
};

pub const V1: Builtin = Builtin {
    version: "v1",
    schema: "autoscaling/v1.HorizontalPodAutoscaler",
    stored_as: Some("autoscaling/v2.HorizontalPodAutoscaler"),
    to_stored: v1_to_v2,
    from_stored: v2_to_v1,
    // v1's annotations are set on create already, so that managedFields include them.
    default: |object| {
        default_to(child_or_new(object, "spec"), "minReplicas", 1);
        *object = v2_to_v1(v1_to_v2(std::mem::take(object)));
    },
    prepare_create: |object, _| keep_notes(object, None, None),
    prepare_update: |object, old, subresource, _| keep_notes(object, Some(old), subresource),
    validate_create: |object| validate(&v1_to_v2(object.clone())),
    validate_update: |object, old, subresource: Subresource<'_>| match subresource {
        None => {
            let new = v1_to_v2(object.clone());
            let old = v1_to_v2(old.clone());
            validate_spec(get(&new, "spec"), Some(get(&old, "spec")))
        }
        Some(_) => check_status(get(object, "status")),
    },
    row: |object, now| row(&v1_to_v2(object.clone()), now),
    ..KIND
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Reference", "string", "Object that is scaled."),
    column("Targets", "string", "Metrics, current and wanted."),
    column("MinPods", "string", "Minimum number of pods."),
    column("MaxPods", "string", "Maximum number of pods."),
    column("Replicas", "string", "Pods there are."),
    AGE,
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let (spec, status) = (get(object, "spec"), get(object, "status"));
    let target = &spec["scaleTargetRef"];
    let least = spec["minReplicas"]
        .as_i64()
        .map_or("<unset>".to_owned(), |n| n.to_string());
    vec![
        name_cell(object),
        Value::from(format!(
            "{}/{}",
            text(&target["kind"]),
            text(&target["name"])
        )),
        Value::from(targets(spec, status)),
        Value::from(least),
        int(&spec["maxReplicas"]).into(),
        int(&status["currentReplicas"]).into(),
        age(object, now),
    ]
}

fn targets(spec: &Value, status: &Value) -> String {
    const SHOWN: usize = 2;
    let metrics = list(&spec["metrics"]);
    if metrics.is_empty() {
        return "<none>".to_owned();
    }
    let current = list(&status["currentMetrics"]);
    let all: Vec<String> = metrics
        .iter()
        .enumerate()
        .map(|(i, m)| target_cell(m, current.get(i).unwrap_or(&Value::Null)))
        .collect();
    let shown = all[..all.len().min(SHOWN)].join(", ");
    if all.len() > SHOWN {
        format!("{shown} + {} more...", all.len() - SHOWN)
    } else {
        shown
    }
}

fn target_cell(metric: &Value, current: &Value) -> String {
    let source = match text(&metric["type"]) {
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        "Pods" => "pods",
        "Object" => "object",
        "External" => "external",
        _ => return "<unknown type>".to_owned(),
    };
    let (target, now) = (&metric[source]["target"], &current[source]["current"]);
    let or_unknown = |v: &Value| v.as_str().unwrap_or("<unknown>").to_owned();
    let percent = |v: &Value, none: &str| v.as_i64().map_or(none.to_owned(), |n| format!("{n}%"));
    if matches!(source, "resource" | "containerResource") {
        let name = text(&metric[source]["name"]);
        if is_set(&target["averageValue"]) {
            return format!(
                "{name}: {}/{}",
                or_unknown(&now["averageValue"]),
                text(&target["averageValue"])
            );
        }
        let now = percent(&now["averageUtilization"], "<unknown>");
        return format!(
            "{name}: {now}/{}",
            percent(&target["averageUtilization"], "<auto>")
        );
    }
    if is_set(&target["averageValue"]) {
        let cell = format!(
            "{}/{}",
            or_unknown(&now["averageValue"]),
            text(&target["averageValue"])
        );
        return if source == "pods" {
            cell
        } else {
            format!("{cell} (avg)")
        };
    }
    format!("{}/{}", or_unknown(&now["value"]), text(&target["value"]))
}

fn default(object: &mut Object) {
    let spec = child_or_new(object, "spec");
    default_to(spec, "minReplicas", 1);
    default_empty(spec, "metrics", json!([cpu(json!(80))]));
    if let Some(behavior) = child(spec, "behavior") {
        let up = child_or_new(behavior, "scaleUp");
        default_to(up, "stabilizationWindowSeconds", 0);
        default_to(up, "selectPolicy", "Max");
        // An empty list of policies is kept, and then rejected by validation.
        default_to(
            up,
            "policies",
            json!([
            {"type": "Pods", "value": 4, "periodSeconds": 15},
            {"type": "Percent", "value": 100, "periodSeconds": 15}]),
        );
        let down = child_or_new(behavior, "scaleDown");
        default_to(down, "selectPolicy", "Max");
        default_to(
            down,
            "policies",
            json!([{"type": "Percent", "value": 100, "periodSeconds": 15}]),
        );
    }
}

fn validate(object: &Object) -> Errors {
    validate_spec(get(object, "spec"), None)
}

fn check_status(status: &Value) -> Errors {
    let mut errors = Vec::new();
    for name in ["currentReplicas", "desiredReplicas"] {
        let at = Path::new("status");
        let at = at.child(name);
        check::non_negative(&status[name], &at, &mut errors);
    }
    errors
}

/// The rule for the target's apiVersion: an unchanged reference is kept; of the core group only
/// ReplicationController can be scaled.
fn of_target(spec: &Value, old: Option<&Value>) -> ApiVersion {
    let part = |spec: &Value, field: &str| text(&spec["scaleTargetRef"][field]).to_owned();
    let kept = |old: &Value| {
        ["apiVersion", "kind"]
            .iter()
            .all(|field| part(old, field) == part(spec, field))
    };
    match part(spec, "kind").as_str() {
        _ if old.is_some_and(kept) => ApiVersion::Any,
        "ReplicationController" => ApiVersion::Valid,
        _ => ApiVersion::Grouped,
    }
}

fn validate_spec(spec: &Value, old: Option<&Value>) -> Errors {
    let mut errors = Vec::new();
    let path = Path::new("spec");
    let (least, most) = (&spec["minReplicas"], int(&spec["maxReplicas"]));
    let at = path.child("maxReplicas");
    let bound = match old.map(|old| &old["minReplicas"]) {
        Some(old) if is_set(old) && int(old) == 0 => 0,
        _ => 1,
    };
    if is_set(least) && int(least) < bound {
        let detail = format!("must be greater than or equal to {bound}");
        let at = path.child("minReplicas");
        errors.push(Error::invalid(&at, int(least), detail));
    }
    if most == 0 {
        errors.push(Error::required(&at, "must be set and greater than 0"));
    } else if most < 0 {
        let detail = "must be greater than or equal to 1";
        errors.push(Error::invalid(&at, most, detail));
    }
    if is_set(least) && most < int(least) {
        let detail = "must be greater than or equal to `minReplicas`";
        errors.push(Error::invalid(&at, most, detail));
    }
    let at = path.child("scaleTargetRef");
    let version = of_target(spec, old);
    check_reference(&spec["scaleTargetRef"], version, &at, &mut errors);
    for (i, metric) in list(&spec["metrics"]).iter().enumerate() {
        let at = path.child("metrics");
        let at = at.index(i);
        check_metric(metric, of_described(old), &at, &mut errors);
    }
    let elsewhere = |metric: &Value| matches!(text(&metric["type"]), "Object" | "External");
    if *least == 0 && !list(&spec["metrics"]).iter().any(elsewhere) {
        let detail = "must specify at least one Object or External metric to support scaling to zero replicas";
        errors.push(Error::forbidden(&path.child("metrics"), detail));
    }
    for direction in ["scaleUp", "scaleDown"] {
        let at = path.child("behavior");
        let at = at.child(direction);
        check_rules(&spec["behavior"][direction], &at, &mut errors);
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::object;

    #[test]
    fn the_new_version_has_no_notes() {
        let mut v2 = object(
            r#"{"metadata": {"annotations": {"a": "b", "autoscaling.alpha.kubernetes.io/metrics": "[]"}}, "spec": {}}"#,
        );
        (KIND.default)(&mut v2);
        assert_eq!(get(&v2, "metadata")["annotations"], json!({"a": "b"}));
    }

    #[test]
    fn the_old_version_shows_cpu_and_keeps_the_rest() {
        let v2 = object(
            r#"{"apiVersion": "autoscaling/v2", "metadata": {"name": "h"}, "spec": {"maxReplicas": 3, "metrics": [
                {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}},
                {"type": "Pods", "pods": {"target": {"averageValue": "1"}}}]}, "status": {}}"#,
        );
        let v1 = v2_to_v1(v2);
        assert_eq!(get(&v1, "spec")["targetCPUUtilizationPercentage"], 50);
        let back = v1_to_v2(v1);
        assert_eq!(row(&back, 0)[2], "<unknown>/1, cpu: <unknown>/50%");
    }

    #[test]
    fn policies_that_were_sent_empty_are_none() {
        let scaler = |rules: &str| {
            let mut scaler = object(&format!(
                r#"{{"spec": {{"maxReplicas": 3, "scaleTargetRef": {{"kind": "D", "name": "d", "apiVersion": "apps/v1"}},
                    "behavior": {{"scaleUp": {rules}}}}}}}"#
            ));
            default(&mut scaler);
            crate::testing::lines(validate(&scaler))
        };
        assert_eq!(scaler("{}"), [""; 0]);
        assert_eq!(
            scaler(r#"{"policies": []}"#),
            ["spec.behavior.scaleUp.policies: Required value: must specify at least one Policy"]
        );
    }

    #[test]
    fn a_target_of_the_core_group_is_a_replication_controller() {
        let spec = |version: &str, kind: &str| {
            json!({"maxReplicas": 1,
            "scaleTargetRef": {"apiVersion": version, "kind": kind, "name": "x"}})
        };
        let reported =
            |spec: &Value, old: Option<&Value>| crate::testing::lines(validate_spec(spec, old));
        let line = "spec.scaleTargetRef.apiVersion: Invalid value: \"v1\": apiVersion must specify API group";
        assert_eq!(
            reported(&spec("v1", "ReplicationController"), None),
            [""; 0]
        );
        assert_eq!(reported(&spec("", "ReplicationController"), None), [""; 0]);
        assert_eq!(reported(&spec("v1", "Pod"), None), [line]);
        assert_eq!(
            reported(&spec("v1", "Pod"), Some(&spec("v1", "Pod"))),
            [""; 0]
        );
        let other = Some(spec("v1", "ReplicationController"));
        assert_eq!(reported(&spec("v1", "Pod"), other.as_ref()), [line]);
        assert_eq!(
            reported(&spec("a/b/c", "ReplicationController"), None).len(),
            1
        );
    }

    #[test]
    fn scaling_to_zero_needs_an_object_or_external_metric() {
        let reported = |kind: &str| {
            let spec = json!({"minReplicas": 0, "maxReplicas": 1, "scaleTargetRef": {"kind": "D", "name": "d"},
                "metrics": [{"type": kind}]});
            crate::testing::lines(validate_spec(&spec, None))
        };
        let line = "spec.metrics: Forbidden: must specify at least one Object or External metric to support scaling to zero replicas";
        assert!(reported("Resource").contains(&line.to_owned()));
        assert!(!reported("External").contains(&line.to_owned()));
    }
}
