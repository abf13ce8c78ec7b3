//! Pods and pod templates.

use serde_json::Value;

use crate::json::{list, str_of};

use super::{
    container,
    text::{Text, controller, number, plain, since, time},
    volume,
};

pub(super) fn describe(text: &mut Text, pod: &Value) {
    let (spec, status) = (&pod["spec"], &pod["status"]);
    text.head(pod);
    text.optional(0, "Priority", &spec["priority"]);
    text.optional(0, "Priority Class Name", &spec["priorityClassName"]);
    text.optional(0, "Runtime Class Name", &spec["runtimeClassName"]);
    text.optional(0, "Service Account", &spec["serviceAccountName"]);
    match str_of(&spec["nodeName"]) {
        "" => text.field(0, "Node", "<none>"),
        node => text.field(0, "Node", &format!("{node}/{}", str_of(&status["hostIP"]))),
    }
    if !status["startTime"].is_null() {
        text.field(0, "Start Time", &time(&status["startTime"]));
    }
    text.maps(pod);
    phase(text, pod);
    text.optional(0, "Reason", &status["reason"]);
    text.optional(0, "Message", &status["message"]);
    let seccomp = &spec["securityContext"]["seccompProfile"];
    text.optional(0, "SeccompProfile", &seccomp["type"]);
    if seccomp["type"] == "Localhost" {
        text.field(0, "LocalhostProfile", str_of(&seccomp["localhostProfile"]));
    }
    addresses(text, status);
    if let Some(controller) = controller(pod) {
        text.field(0, "Controlled By", &controller);
    }
    text.optional(0, "NominatedNodeName", &status["nominatedNodeName"]);
    if spec["resources"].is_object() {
        text.line(0, "Resources:");
        container::resources(text, &spec["resources"], 1);
    }
    containers(text, pod);
    readiness_gates(text, spec, status);
    conditions(text, status);
    volume::all(text, &spec["volumes"], "");
    text.field(0, "QoS Class", str_of(&status["qosClass"]));
    text.labels("Node-Selectors", &spec["nodeSelector"]);
    tolerations(text, "Tolerations", &spec["tolerations"]);
    spread_constraints(text, &spec["topologySpreadConstraints"], "");
    scheduling_group(text, &spec["schedulingGroup"], "");
}

/// The phase, or how long the pod has been terminating.
fn phase(text: &mut Text, pod: &Value) {
    let (metadata, status) = (&pod["metadata"], &pod["status"]);
    let is_finished = ["Failed", "Succeeded"].contains(&str_of(&status["phase"]));
    if !metadata["deletionTimestamp"].is_null() && !is_finished {
        text.field(
            0,
            "Status",
            &format!(
                "Terminating (lasts {})",
                since(&metadata["deletionTimestamp"])
            ),
        );
        text.field(
            0,
            "Termination Grace Period",
            &format!("{}s", number(&metadata["deletionGracePeriodSeconds"])),
        );
    } else {
        text.field(0, "Status", str_of(&status["phase"]));
    }
}

fn addresses(text: &mut Text, status: &Value) {
    text.field(0, "IP", str_of(&status["podIP"]));
    match list(&status["podIPs"]).len() {
        0 => text.field(0, "IPs", "<none>"),
        _ => {
            text.line(0, "IPs:");
            list(&status["podIPs"]).for_each(|ip| text.field(1, "IP", str_of(&ip["ip"])));
        }
    }
}

/// Containers of all three types with their states.
fn containers(text: &mut Text, pod: &Value) {
    let (spec, status) = (&pod["spec"], &pod["status"]);
    if list(&spec["initContainers"]).len() > 0 {
        container::all(
            text,
            "Init Containers",
            &spec["initContainers"],
            Some((&status["initContainerStatuses"], pod)),
            "",
        );
    }
    container::all(
        text,
        "Containers",
        &spec["containers"],
        Some((&status["containerStatuses"], pod)),
        "",
    );
    if list(&spec["ephemeralContainers"]).len() > 0 {
        let statuses = &status["ephemeralContainerStatuses"];
        container::all(
            text,
            "Ephemeral Containers",
            &spec["ephemeralContainers"],
            Some((statuses, pod)),
            "",
        );
    }
}

fn conditions(text: &mut Text, status: &Value) {
    if list(&status["conditions"]).len() > 0 {
        text.line(0, "Conditions:\n  Type\tStatus");
        for condition in list(&status["conditions"]) {
            text.line(
                1,
                &format!(
                    "{} \t{} ",
                    str_of(&condition["type"]),
                    str_of(&condition["status"])
                ),
            );
        }
    }
}

fn scheduling_group(text: &mut Text, group: &Value, indent: &str) {
    if group.is_object() {
        text.line(0, &format!("{indent}SchedulingGroup:"));
        text.field(1, "PodGroupName", str_of(&group["podGroupName"]));
    }
}

fn readiness_gates(text: &mut Text, spec: &Value, status: &Value) {
    if list(&spec["readinessGates"]).len() == 0 {
        return;
    }
    text.line(0, "Readiness Gates:\n  Type\tStatus");
    for gate in list(&spec["readinessGates"]) {
        let kind = &gate["conditionType"];
        let known = list(&status["conditions"]).find(|condition| condition["type"] == *kind);
        let status = known.map_or("<none>", |condition| str_of(&condition["status"]));
        text.line(1, &format!("{} \t{status} ", str_of(kind)));
    }
}

/// The pod template of a workload.
pub(super) fn template(text: &mut Text, template: &Value) {
    let spec = &template["spec"];
    text.line(0, "Pod Template:");
    text.labels("  Labels", &template["metadata"]["labels"]);
    if template["metadata"]["annotations"]
        .as_object()
        .is_some_and(|map| !map.is_empty())
    {
        text.annotations("  Annotations", &template["metadata"]["annotations"]);
    }
    text.optional(1, "Service Account", &spec["serviceAccountName"]);
    if list(&spec["initContainers"]).len() > 0 {
        container::all(text, "Init Containers", &spec["initContainers"], None, "  ");
    }
    container::all(text, "Containers", &spec["containers"], None, "  ");
    volume::all(text, &spec["volumes"], "  ");
    spread_constraints(text, &spec["topologySpreadConstraints"], "  ");
    text.optional(1, "Priority Class Name", &spec["priorityClassName"]);
    text.labels("  Node-Selectors", &spec["nodeSelector"]);
    tolerations(text, "  Tolerations", &spec["tolerations"]);
    scheduling_group(text, &spec["schedulingGroup"], "  ");
}

fn tolerations(text: &mut Text, title: &str, tolerations: &Value) {
    let mut sorted: Vec<&Value> = list(tolerations).collect();
    sorted.sort_by_key(|toleration| str_of(&toleration["key"]).to_owned());
    let line = |toleration: &&Value| {
        let (key, value, effect) = (
            str_of(&toleration["key"]),
            str_of(&toleration["value"]),
            str_of(&toleration["effect"]),
        );
        let mut line = key.to_owned();
        if !value.is_empty() {
            line.push_str(&format!("={value}"));
        }
        if !effect.is_empty() {
            line.push_str(&format!(":{effect}"));
        }
        if toleration["operator"] == "Exists" && value.is_empty() {
            line.push_str(if line.is_empty() {
                "op=Exists"
            } else {
                " op=Exists"
            });
        }
        if let Some(seconds) = toleration["tolerationSeconds"].as_i64() {
            line.push_str(&format!(" for {seconds}s"));
        }
        line
    };
    text.lines(title, sorted.iter().map(line).collect());
}

fn spread_constraints(text: &mut Text, constraints: &Value, space: &str) {
    let line = |constraint: &Value| {
        let mut line = format!(
            "{}:{} when max skew {} is exceeded",
            str_of(&constraint["topologyKey"]),
            str_of(&constraint["whenUnsatisfiable"]),
            plain(&constraint["maxSkew"])
        );
        if constraint["labelSelector"].is_object() {
            line.push_str(&format!(
                " for selector {}",
                super::text::selector(&constraint["labelSelector"])
            ));
        }
        line
    };
    let mut sorted: Vec<&Value> = list(constraints).collect();
    sorted.sort_by_key(|constraint| str_of(&constraint["topologyKey"]).to_owned());
    let lines: Vec<String> = sorted.into_iter().map(line).collect();
    if !lines.is_empty() {
        text.lines(&format!("{space}Topology Spread Constraints"), lines);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn spread_constraints_are_sorted_by_their_keys() {
        let constraint = |key: &str| json!({"topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", "maxSkew": 1});
        let mut text = Text::default();
        spread_constraints(
            &mut text,
            &json!([constraint("zone"), constraint("host")]),
            "",
        );
        assert_eq!(
            text.with_tabs(),
            "Topology Spread Constraints:\thost:DoNotSchedule when max skew 1 is exceeded\n\
             \tzone:DoNotSchedule when max skew 1 is exceeded\n"
        );
    }
}
