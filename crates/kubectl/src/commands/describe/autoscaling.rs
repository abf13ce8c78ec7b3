//! Horizontal pod autoscalers.

use serde_json::Value;

use crate::json::{list, str_of};

use super::text::{Text, number, or_unset, plain, time};

pub(super) fn describe(text: &mut Text, object: &Value) {
    let (spec, status) = (&object["spec"], &object["status"]);
    text.head(object);
    text.maps(object);
    text.field(
        0,
        "CreationTimestamp",
        &time(&object["metadata"]["creationTimestamp"]),
    );
    let target = &spec["scaleTargetRef"];
    text.field(
        0,
        "Reference",
        &format!("{}/{}", str_of(&target["kind"]), str_of(&target["name"])),
    );
    text.field(0, "Metrics", "( current / target )");
    for (at, metric) in list(&spec["metrics"]).enumerate() {
        text.line(1, &metric_line(metric, &status["currentMetrics"][at]));
    }
    text.field(0, "Min replicas", &or_unset(&spec["minReplicas"]));
    text.field(0, "Max replicas", &number(&spec["maxReplicas"]).to_string());
    if !spec["behavior"].is_null() {
        text.line(0, "Behavior:");
        for (title, field) in [("Scale Up", "scaleUp"), ("Scale Down", "scaleDown")] {
            direction(text, title, &spec["behavior"][field]);
        }
    }
    let (current, desired) = (
        number(&status["currentReplicas"]),
        number(&status["desiredReplicas"]),
    );
    text.field(
        0,
        &format!("{} pods", str_of(&target["kind"])),
        &format!("{current} current / {desired} desired"),
    );
    let columns = [
        ("Type", "type"),
        ("Status", "status"),
        ("Reason", "reason"),
        ("Message", "message"),
    ];
    text.conditions(&status["conditions"], &columns, "");
}

fn direction(text: &mut Text, title: &str, rules: &Value) {
    if rules.is_null() {
        return;
    }
    text.line(1, &format!("{title}:"));
    if let Some(seconds) = rules["stabilizationWindowSeconds"].as_i64() {
        text.line(2, &format!("Stabilization Window: {seconds} seconds"));
    }
    if list(&rules["policies"]).len() > 0 {
        text.line(
            2,
            &format!(
                "Select Policy: {}",
                rules["selectPolicy"].as_str().unwrap_or("Max")
            ),
        );
        text.line(2, "Policies:");
        for policy in list(&rules["policies"]) {
            let (kind, value, period) = (
                str_of(&policy["type"]),
                number(&policy["value"]),
                number(&policy["periodSeconds"]),
            );
            text.line(
                3,
                &format!("- Type: {kind}\tValue: {value}\tPeriod: {period} seconds"),
            );
        }
    }
}

fn metric_line(metric: &Value, current: &Value) -> String {
    let unknown = || "<unknown>".to_owned();
    let known = |value: &Value| {
        if value.is_null() {
            unknown()
        } else {
            plain(value)
        }
    };
    match str_of(&metric["type"]) {
        kind @ ("Resource" | "ContainerResource") => {
            let field = if kind == "Resource" {
                "resource"
            } else {
                "containerResource"
            };
            let (source, now) = (&metric[field], &current[field]["current"]);
            let of = match kind {
                "Resource" => String::new(),
                _ => format!(" of container \"{}\"", str_of(&source["container"])),
            };
            let name = format!("resource {}{of} on pods", str_of(&source["name"]));
            if !source["target"]["averageValue"].is_null() {
                return format!(
                    "{name}:\t{} / {}",
                    known(&now["averageValue"]),
                    plain(&source["target"]["averageValue"])
                );
            }
            let now = match now["averageUtilization"].as_i64() {
                Some(percent) => format!("{percent}% ({})", plain(&now["averageValue"])),
                None => unknown(),
            };
            let target = match source["target"]["averageUtilization"].as_i64() {
                Some(percent) => format!("{percent}%"),
                None => "<auto>".to_owned(),
            };
            format!("{name}  (as a percentage of request):\t{now} / {target}")
        }
        "Pods" => {
            let (source, now) = (&metric["pods"], &current["pods"]["current"]);
            let name = str_of(&source["metric"]["name"]);
            format!(
                "{name:?} on pods:\t{} / {}",
                known(&now["averageValue"]),
                plain(&source["target"]["averageValue"])
            )
        }
        kind @ ("External" | "Object") => {
            let field = if kind == "External" {
                "external"
            } else {
                "object"
            };
            let (source, now) = (&metric[field], &current[field]["current"]);
            let name = str_of(&source["metric"]["name"]);
            let of = match kind {
                "Object" => format!(
                    " on {}/{}",
                    str_of(&source["describedObject"]["kind"]),
                    str_of(&source["describedObject"]["name"])
                ),
                _ => String::new(),
            };
            match source["target"]["averageValue"].is_null() {
                false => format!(
                    "{name:?}{of} (target average value):\t{} / {}",
                    known(&now["averageValue"]),
                    plain(&source["target"]["averageValue"])
                ),
                true => format!(
                    "{name:?}{of} (target value):\t{} / {}",
                    known(&now["value"]),
                    plain(&source["target"]["value"])
                ),
            }
        }
        other => format!("<unknown metric type {other:?}>"),
    }
}
