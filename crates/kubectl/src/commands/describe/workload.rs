//! Deployments and replica sets: how many there should be, how many there are.

use serde_json::Value;

use super::text::{Text, plain};
use crate::output::table::labels;

/// The workload's own part, after its name, labels and annotations.
pub fn body(text: &mut Text, object: &Value) {
    let (spec, status) = (&object["spec"], &object["status"]);
    text.field(
        "CreationTimestamp",
        &object["metadata"]["creationTimestamp"],
    );
    text.at(0, "Selector", &labels(&spec["selector"]["matchLabels"]));
    let count = |value: &Value| value.as_i64().unwrap_or(0);
    let (total, wanted) = (count(&status["replicas"]), count(&spec["replicas"]));
    if object["kind"] == "Deployment" {
        let (updated, available) = (
            count(&status["updatedReplicas"]),
            count(&status["availableReplicas"]),
        );
        let missing = count(&status["unavailableReplicas"]);
        text.at(0, "Replicas", &format!(
            "{wanted} desired | {updated} updated | {total} total | {available} available | {missing} unavailable"
        ));
        text.field("StrategyType", &spec["strategy"]["type"]);
        text.field(
            "MinReadySeconds",
            spec.get("minReadySeconds").unwrap_or(&Value::from(0)),
        );
    } else {
        text.at(
            0,
            "Replicas",
            &format!("{total} current / {wanted} desired"),
        );
    }
    text.line(0, "Pod Template:");
    text.at(
        1,
        "Labels",
        &labels(&spec["template"]["metadata"]["labels"]),
    );
    text.line(1, "Containers:");
    for container in spec["template"]["spec"]["containers"]
        .as_array()
        .into_iter()
        .flatten()
    {
        text.line(2, &format!("{}:", plain(&container["name"])));
        text.at(3, "Image", &plain(&container["image"]));
    }
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    if !conditions.is_empty() {
        text.line(0, "Conditions:");
        text.line(1, &format!("{:<16}{:<8}{}", "Type", "Status", "Reason"));
        for condition in conditions {
            let (kind, status) = (plain(&condition["type"]), plain(&condition["status"]));
            text.line(
                1,
                &format!("{kind:<16}{status:<8}{}", plain(&condition["reason"])),
            );
        }
    }
}
