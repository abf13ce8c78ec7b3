//! Pod: containers that are scheduled and run together on one node.

use crate::builtin::{Builtin, STATUS, keep_written_metadata};
use crate::columns::{AGE, NAME, age, column, name_cell, or_none, since, wide};
use crate::diff::unified;
use crate::equal::equal;
use crate::internal::internal;
use crate::metadata::Check;
use crate::pod::{
    check_annotations_update, check_profiles_agree, copy_annotations, default_pod,
    keep_all_but_resources, keep_observed, label_keys, quality_of_service, validate_pod,
    validate_resize, validate_spec_update, validate_status, warn_pod, warn_status,
};
use crate::tree::{child_or_new, default_empty, get, int, is_set, keep, list, text, truth};
use crate::{Column, Context, Deletion, Subresource, SubresourceInfo};
use machinery::field::{Error, Errors, Path};
use machinery::json::json;
use machinery::{Object, Value};

const fn options(
    name: &'static str,
    kind: &'static str,
    verbs: &'static [&'static str],
) -> SubresourceInfo {
    SubresourceInfo {
        name,
        group: "",
        version: "",
        kind,
        verbs,
    }
}

const CONNECT: &[&str] = &["create", "get"];

pub const KIND: Builtin = Builtin {
    kind: "Pod",
    plural: "pods",
    pod_spec: "spec",
    returns_deleted: true,
    short_names: &["po"],
    categories: &["all"],
    schema: "core/v1.Pod",
    subresources: &[
        options("attach", "PodAttachOptions", CONNECT),
        options("binding", "Binding", &["create"]),
        options("ephemeralcontainers", "Pod", &["get", "patch", "update"]),
        SubresourceInfo {
            name: "eviction",
            group: "policy",
            version: "v1",
            kind: "Eviction",
            verbs: &["create"],
        },
        options("exec", "PodExecOptions", CONNECT),
        options("log", "Pod", &["get"]),
        options("portforward", "PodPortForwardOptions", CONNECT),
        options(
            "proxy",
            "PodProxyOptions",
            &["create", "delete", "get", "patch", "update"],
        ),
        options("resize", "Pod", &["get", "patch", "update"]),
        STATUS,
    ],
    has_status: true,
    settles_status: true,
    has_generation: true,
    default: default_pod,
    prepare_create,
    prepare_update,
    validate_create,
    validate_update,
    warnings: warn_pod,
    status_warnings: Some(warn_status),
    deletion,
    selectable: SELECTABLE,
    selectable_fields,
    columns: COLUMNS,
    row,
    row_conditions,
    metadata_checks: &[Check::Change, Check::Whole],
    status_resets: &[
        &["spec"],
        &["metadata", "deletionTimestamp"],
        &["metadata", "ownerReferences"],
    ],
    ..Builtin::EMPTY
};

fn prepare_create(object: &mut Object, context: &Context<'_>) {
    label_keys::merge(object);
    copy_annotations(object);
    let spec = get(object, "spec");
    // A QoS class in the request is kept.
    let quality = match text(&get(object, "status")["qosClass"]) {
        "" => quality_of_service(spec).to_owned(),
        class => class.to_owned(),
    };
    let gated = !list(&spec["schedulingGates"]).is_empty();
    let mut status = json!({"phase": "Pending", "qosClass": quality});
    if gated {
        status["conditions"] = json!([{
            "type": "PodScheduled", "status": "False", "lastProbeTime": null,
            "lastTransitionTime": context.now, "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        }]);
    }
    object.insert("status".to_owned(), status);
}

fn prepare_update(
    object: &mut Object,
    old: &Object,
    subresource: Subresource<'_>,
    _: &Context<'_>,
) {
    match subresource {
        None => {}
        Some("status") => {
            let quality = get(old, "status")["qosClass"].clone();
            if is_set(&quality) {
                default_empty(child_or_new(object, "status"), "qosClass", quality);
            }
            keep_observed(object, old);
        }
        Some("ephemeralcontainers") => {
            let added = get(object, "spec")["ephemeralContainers"].clone();
            keep(object, old, "spec");
            keep(object, old, "status");
            keep_written_metadata(object, old);
            let spec = child_or_new(object, "spec");
            if is_set(&added) {
                spec.insert("ephemeralContainers".to_owned(), added);
            } else {
                spec.shift_remove("ephemeralContainers");
            }
        }
        Some("resize") => {
            keep(object, old, "status");
            keep_written_metadata(object, old);
            if let Some(spec) = object.get_mut("spec") {
                keep_all_but_resources(spec, get(old, "spec"));
            }
        }
        Some(_) => {}
    }
}

fn validate_create(object: &Object) -> Errors {
    let mut errors = validate_pod(object);
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    if !list(&spec["ephemeralContainers"]).is_empty() {
        let at = path.child("ephemeralContainers");
        errors.push(Error::forbidden(&at, "cannot be set on create"));
    }
    if !text(&spec["nodeName"]).is_empty() && !list(&spec["schedulingGates"]).is_empty() {
        let detail = "cannot be set until all schedulingGates have been cleared";
        errors.push(Error::forbidden(&path.child("nodeName"), detail));
    }
    check_profiles_agree(get(object, "metadata"), spec, &path, &mut errors);
    errors
}

fn validate_update(object: &Object, old: &Object, subresource: Subresource<'_>) -> Errors {
    let annotations = Path::new("metadata.annotations");
    let annotations_of = |o: &Object| get(o, "metadata")["annotations"].clone();
    match subresource {
        None | Some("ephemeralcontainers") => {
            let mut errors = validate_pod(object);
            check_annotations_update(
                &annotations_of(object),
                &annotations_of(old),
                &annotations,
                &mut errors,
            );
            if subresource.is_none() {
                validate_spec_update(get(object, "spec"), get(old, "spec"), &mut errors);
                errors
            } else {
                validate_ephemeral(object, old, errors)
            }
        }
        Some("status") => validate_status(object, old),
        Some("resize") => validate_resize(object, old, validate_pod(object)),
        Some(_) => Vec::new(),
    }
}

/// Ephemeral containers may only be added.
fn validate_ephemeral(object: &Object, old: &Object, mut errors: Errors) -> Errors {
    if is_set(&get(old, "metadata")["annotations"]["kubernetes.io/config.mirror"]) {
        let detail = "static pods do not support ephemeral containers";
        return vec![Error::forbidden(&Path::default(), detail)];
    }
    let at = Path::new("spec.ephemeralContainers");
    let new = list(&get(object, "spec")["ephemeralContainers"]);
    for container in list(&get(old, "spec")["ephemeralContainers"]) {
        let name = machinery::text::quote(text(&container["name"]));
        const KIND: &str = "core/v1.EphemeralContainer";
        let what = match new.iter().rfind(|c| c["name"] == container["name"]) {
            None => "removed\n".to_owned(),
            Some(now) if !equal(KIND, now, container) => {
                let difference = unified(&internal(KIND, container), &internal(KIND, now));
                format!("changed\n{difference}")
            }
            Some(_) => continue,
        };
        let detail = format!("existing ephemeral containers {name} may not be {what}");
        errors.push(Error::forbidden(&at, detail));
    }
    errors
}

/// The row condition of a finished pod.
fn row_conditions(object: &Object) -> Option<Value> {
    let (reason, message) = match text(&get(object, "status")["phase"]) {
        "Succeeded" => ("Succeeded", "The pod has completed successfully."),
        "Failed" => ("Failed", "The pod failed."),
        _ => return None,
    };
    Some(json!([
        {"type": "Completed", "status": "True", "reason": reason, "message": message}
    ]))
}

/// Pods are deleted gracefully; pods that are not scheduled or have finished, immediately.
fn deletion(object: &Object, requested: Option<i64>) -> Deletion {
    let (spec, status) = (get(object, "spec"), get(object, "status"));
    let seconds = requested
        .or_else(|| spec["terminationGracePeriodSeconds"].as_i64())
        .unwrap_or(30);
    let seconds = if seconds < 0 { 1 } else { seconds };
    let unplaced = text(&spec["nodeName"]).is_empty();
    let ended = matches!(text(&status["phase"]), "Failed" | "Succeeded");
    Deletion::Graceful {
        seconds: if unplaced || ended { 0 } else { seconds },
    }
}

const SELECTABLE: &[&str] = &[
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
];

fn selectable_fields(object: &Object) -> Vec<(&'static str, String)> {
    let (spec, status) = (get(object, "spec"), get(object, "status"));
    let field = |name: &'static str, value: &Value| (name, text(value).to_owned());
    vec![
        field("spec.nodeName", &spec["nodeName"]),
        field("spec.restartPolicy", &spec["restartPolicy"]),
        field("spec.schedulerName", &spec["schedulerName"]),
        field("spec.serviceAccountName", &spec["serviceAccountName"]),
        ("spec.hostNetwork", truth(&spec["hostNetwork"]).to_string()),
        field("status.phase", &status["phase"]),
        field("status.podIP", &status["podIPs"][0]["ip"]),
        field("status.nominatedNodeName", &status["nominatedNodeName"]),
    ]
}

const COLUMNS: &[Column] = &[
    NAME,
    column("Ready", "string", "Containers that are ready, of all."),
    column(
        "Status",
        "string",
        "What the pod is doing, or what stops it.",
    ),
    column(
        "Restarts",
        "string",
        "How often containers were restarted, and when last.",
    ),
    AGE,
    wide("IP", "string", "Address of the pod."),
    wide("Node", "string", "Where it runs."),
    wide(
        "Nominated Node",
        "string",
        "Where room is being made for it.",
    ),
    wide(
        "Readiness Gates",
        "string",
        "Extra conditions that are true, of all.",
    ),
];

/// The combined state of the containers.
#[derive(Default)]
struct Summary {
    reason: String,
    ready: usize,
    restarts: i64,
    /// RFC 3339 sorts as text.
    last_restart: String,
}

impl Summary {
    fn count(&mut self, status: &Value) {
        self.restarts += int(&status["restartCount"]);
        let finished = text(&status["lastState"]["terminated"]["finishedAt"]);
        if finished > self.last_restart.as_str() {
            finished.clone_into(&mut self.last_restart);
        }
    }
}

fn is_sidecar(spec: &Value, name: &Value) -> bool {
    list(&spec["initContainers"])
        .iter()
        .any(|c| c["name"] == *name && c["restartPolicy"] == "Always")
}

fn ended(terminated: &Value) -> String {
    let reason = text(&terminated["reason"]);
    if !reason.is_empty() {
        reason.to_owned()
    } else if int(&terminated["signal"]) != 0 {
        format!("Signal:{}", int(&terminated["signal"]))
    } else {
        format!("ExitCode:{}", int(&terminated["exitCode"]))
    }
}

fn condition<'a>(status: &'a Value, kind: &str) -> &'a str {
    list(&status["conditions"])
        .iter()
        .find(|c| c["type"] == kind)
        .map_or("", |c| text(&c["status"]))
}

/// The state of the init containers; returns whether they are still running.
fn init_state(spec: &Value, status: &Value, summary: &mut Summary, sidecars: &mut Summary) -> bool {
    let total = list(&spec["initContainers"]).len();
    for (i, container) in list(&status["initContainerStatuses"]).iter().enumerate() {
        summary.count(container);
        let sidecar = is_sidecar(spec, &container["name"]);
        if sidecar {
            sidecars.count(container);
        }
        let (terminated, waiting) = (
            &container["state"]["terminated"],
            &container["state"]["waiting"],
        );
        if is_set(terminated) && int(&terminated["exitCode"]) == 0 {
            continue;
        }
        if sidecar && truth(&container["started"]) {
            summary.ready += usize::from(truth(&container["ready"]));
            continue;
        }
        let why = text(&waiting["reason"]);
        summary.reason = if is_set(terminated) {
            format!("Init:{}", ended(terminated))
        } else if !why.is_empty() && why != "PodInitializing" {
            format!("Init:{why}")
        } else {
            format!("Init:{i}/{total}")
        };
        return true;
    }
    false
}

fn main_state(status: &Value, summary: &mut Summary) {
    let (mut running, mut error) = (false, String::new());
    for container in list(&status["containerStatuses"]).iter().rev() {
        summary.count(container);
        let state = &container["state"];
        let waiting = text(&state["waiting"]["reason"]);
        if !waiting.is_empty() {
            waiting.clone_into(&mut summary.reason);
        } else if is_set(&state["terminated"]) {
            summary.reason = ended(&state["terminated"]);
            if int(&state["terminated"]["exitCode"]) != 0 {
                error.clone_from(&summary.reason);
            }
        } else if truth(&container["ready"]) && is_set(&state["running"]) {
            running = true;
            summary.ready += 1;
        }
    }
    if summary.reason == "Completed" {
        if running && condition(status, "Ready") == "True" {
            "Running".clone_into(&mut summary.reason);
        } else if !error.is_empty() {
            summary.reason = error;
        } else if running {
            "NotReady".clone_into(&mut summary.reason);
        }
    }
}

fn summarise(object: &Object) -> Summary {
    let (spec, status) = (get(object, "spec"), get(object, "status"));
    let phase = text(&status["phase"]);
    let reason = text(&status["reason"]);
    let mut summary = Summary {
        reason: if reason.is_empty() {
            phase.to_owned()
        } else {
            reason.to_owned()
        },
        ..Summary::default()
    };
    let gated = list(&status["conditions"])
        .iter()
        .any(|c| c["type"] == "PodScheduled" && c["reason"] == "SchedulingGated");
    if gated {
        "SchedulingGated".clone_into(&mut summary.reason);
    }
    let mut sidecars = Summary::default();
    let initialising = init_state(spec, status, &mut summary, &mut sidecars);
    if !initialising || condition(status, "Initialized") == "True" {
        summary.restarts = sidecars.restarts;
        summary.last_restart = sidecars.last_restart;
        main_state(status, &mut summary);
    }
    if is_set(&get(object, "metadata")["deletionTimestamp"]) {
        if reason == "NodeLost" {
            "Unknown".clone_into(&mut summary.reason);
        } else if !matches!(phase, "Failed" | "Succeeded") {
            "Terminating".clone_into(&mut summary.reason);
        }
    }
    summary
}

fn row(object: &Object, now: i64) -> Vec<Value> {
    let (spec, status) = (get(object, "spec"), get(object, "status"));
    let summary = summarise(object);
    let sidecars = list(&spec["initContainers"])
        .iter()
        .filter(|c| c["restartPolicy"] == "Always")
        .count();
    let total = list(&spec["containers"]).len() + sidecars;
    let restarts = if summary.restarts != 0 && !summary.last_restart.is_empty() {
        let ago = since(&Value::from(summary.last_restart), now);
        format!("{} ({ago} ago)", summary.restarts)
    } else {
        summary.restarts.to_string()
    };
    let gates = list(&spec["readinessGates"]);
    let open = gates
        .iter()
        .filter(|g| condition(status, text(&g["conditionType"])) == "True")
        .count();
    let gates = if gates.is_empty() {
        "<none>".to_owned()
    } else {
        format!("{open}/{}", gates.len())
    };
    vec![
        name_cell(object),
        Value::from(format!("{}/{total}", summary.ready)),
        Value::from(summary.reason),
        Value::from(restarts),
        age(object, now),
        Value::from(or_none(text(&status["podIPs"][0]["ip"]))),
        Value::from(or_none(text(&spec["nodeName"]))),
        Value::from(or_none(text(&status["nominatedNodeName"]))),
        Value::from(gates),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::object;

    fn shown(json: &str) -> (String, String) {
        let cells = row(&object(json), 0);
        (text(&cells[1]).to_owned(), text(&cells[2]).to_owned())
    }

    #[test]
    fn the_status_column_has_the_most_specific_reason() {
        let pod = |status: &str| {
            format!(
                r#"{{"spec": {{"containers": [{{"name": "c"}}], "initContainers": [{{"name": "i"}}]}}, "status": {status}}}"#
            )
        };
        let cases = [
            (r#"{"phase": "Pending"}"#, "0/1", "Pending"),
            (
                r#"{"phase": "Running", "containerStatuses": [{"ready": true, "state": {"running": {}}}]}"#,
                "1/1",
                "Running",
            ),
            (
                r#"{"phase": "Running", "containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}"#,
                "0/1",
                "CrashLoopBackOff",
            ),
            (
                r#"{"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": 3}}}]}"#,
                "0/1",
                "ExitCode:3",
            ),
            (
                r#"{"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"waiting": {}}}]}"#,
                "0/1",
                "Init:0/1",
            ),
        ];
        for (status, ready, reason) in cases {
            assert_eq!(
                shown(&pod(status)),
                (ready.to_owned(), reason.to_owned()),
                "{status}"
            );
        }
    }

    #[test]
    fn a_row_of_an_ended_pod_has_a_condition() {
        let ended = |phase: &str| {
            let pod = object(&format!(r#"{{"status": {{"phase": "{phase}"}}}}"#));
            row_conditions(&pod).map(|conditions| conditions[0]["reason"].clone())
        };
        assert_eq!(ended("Running"), None);
        assert_eq!(ended("Succeeded"), Some("Succeeded".into()));
        assert_eq!(ended("Failed"), Some("Failed".into()));
    }

    #[test]
    fn a_pod_that_runs_nowhere_ends_at_once() {
        let placed = object(r#"{"spec": {"nodeName": "n", "terminationGracePeriodSeconds": 5}}"#);
        assert_eq!(deletion(&placed, None), Deletion::Graceful { seconds: 5 });
        let at_once = Deletion::Graceful { seconds: 0 };
        assert_eq!(deletion(&placed, Some(0)), at_once);
        assert_eq!(deletion(&object("{}"), Some(9)), at_once);
    }

    #[test]
    fn a_new_pod_is_pending_with_its_quality() {
        let mut pod = object(r#"{"spec": {"containers": [{}]}, "status": {"phase": "Running"}}"#);
        prepare_create(&mut pod, &Context { now: "", user: "" });
        assert_eq!(
            get(&pod, "status"),
            &json!({"phase": "Pending", "qosClass": "BestEffort"})
        );
        // A QoS class in the request is kept, whatever it is.
        let kind = crate::find("", "v1", "pods").unwrap();
        let sent = r#"{"phase": "Running", "qosClass": "Guaranteed"}"#;
        let mut pod = object(&format!(r#"{{"spec": {{}}, "status": {sent}}}"#));
        kind.prepare_create(&mut pod, &Context { now: "", user: "" });
        assert_eq!(
            get(&pod, "status"),
            &json!({"phase": "Pending", "qosClass": "Guaranteed"})
        );
    }
}
