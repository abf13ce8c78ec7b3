//! Deployments, replica sets, daemon sets, stateful sets, jobs and cron jobs.

use anyhow::Result;
use serde_json::Value;

use crate::{
    error,
    json::{list, str_of},
    output::table,
    session::Session,
    streams::{pod_selector, pods_with},
};

use super::{
    pod::template,
    storage,
    text::{Text, bracketed, controller, number, or_unset, plain, selector, time},
};

/// How much of a list of indexes is shown.
const MAX_INDEXES: usize = 50;

/// `1 Running / 0 Waiting / 0 Succeeded / 0 Failed` of the object's pods.
async fn pods_status(session: &Session, object: &Value) -> Result<String> {
    let mut counts = [0; 4];
    if let Some(query) = pod_selector(object) {
        let pods = pods_with(
            session,
            &query,
            Some(str_of(&object["metadata"]["namespace"])),
        )
        .await?;
        for pod in pods {
            let owner =
                list(&pod["metadata"]["ownerReferences"]).find(|owner| owner["controller"] == true);
            if owner.is_none_or(|owner| owner["uid"] != object["metadata"]["uid"]) {
                continue;
            }
            match str_of(&pod["status"]["phase"]) {
                "Running" => counts[0] += 1,
                "Pending" => counts[1] += 1,
                "Succeeded" => counts[2] += 1,
                "Failed" => counts[3] += 1,
                _ => {}
            }
        }
    }
    let [running, waiting, succeeded, failed] = counts;
    Ok(format!(
        "{running} Running / {waiting} Waiting / {succeeded} Succeeded / {failed} Failed"
    ))
}

/// Conditions, with upstream's space after the type.
fn conditions(text: &mut Text, object: &Value) {
    if list(&object["status"]["conditions"]).len() == 0 {
        return;
    }
    text.line(0, "Conditions:\n  Type\tStatus\tReason");
    text.line(1, "----\t------\t------");
    for condition in list(&object["status"]["conditions"]) {
        let field = |field: &str| str_of(&condition[field]);
        text.line(
            1,
            &format!(
                "{} \t{}\t{}",
                field("type"),
                field("status"),
                field("reason")
            ),
        );
    }
}

pub(super) async fn deployment(session: &Session, text: &mut Text, object: &Value) -> Result<()> {
    let (spec, status) = (&object["spec"], &object["status"]);
    text.head(object);
    text.field(
        0,
        "CreationTimestamp",
        &time(&object["metadata"]["creationTimestamp"]),
    );
    text.maps(object);
    text.field(0, "Selector", &selector(&spec["selector"]));
    let count = |field: &str| number(&status[field]);
    text.field(
        0,
        "Replicas",
        &format!(
            "{} desired | {} updated | {} total | {} available | {} unavailable",
            number(&spec["replicas"]),
            count("updatedReplicas"),
            count("replicas"),
            count("availableReplicas"),
            count("unavailableReplicas")
        ),
    );
    text.field(0, "StrategyType", str_of(&spec["strategy"]["type"]));
    text.field(
        0,
        "MinReadySeconds",
        &number(&spec["minReadySeconds"]).to_string(),
    );
    let rolling = &spec["strategy"]["rollingUpdate"];
    if !rolling.is_null() {
        let line = format!(
            "{} max unavailable, {} max surge",
            plain(&rolling["maxUnavailable"]),
            plain(&rolling["maxSurge"])
        );
        text.field(0, "RollingUpdateStrategy", &line);
    }
    template(text, &spec["template"]);
    conditions(text, object);
    // Without permission to list them, they are omitted.
    let (old, new) = replica_sets(session, object).await.unwrap_or_default();
    if !old.is_empty() || !new.is_empty() {
        let joined = |sets: Vec<String>| {
            if sets.is_empty() {
                "<none>".to_owned()
            } else {
                sets.join(", ")
            }
        };
        text.field(0, "OldReplicaSets", &joined(old));
        text.field(0, "NewReplicaSet", &joined(new));
    }
    Ok(())
}

/// A pod template without what the controller adds to it.
fn without_hash(template: &Value) -> Value {
    let mut template = template.clone();
    let labels = template.pointer_mut("/metadata/labels");
    if let Some(labels) = labels.and_then(Value::as_object_mut) {
        labels.remove("pod-template-hash");
    }
    template
}

/// The replica sets of earlier templates, and the current one.
async fn replica_sets(session: &Session, deployment: &Value) -> Result<(Vec<String>, Vec<String>)> {
    let namespace = str_of(&deployment["metadata"]["namespace"]);
    let sets = session
        .api
        .items(&format!("/apis/apps/v1/namespaces/{namespace}/replicasets"))
        .await?;
    let is_owned = |set: &Value| {
        let mut owners = list(&set["metadata"]["ownerReferences"]);
        owners.any(|owner| owner["uid"] == deployment["metadata"]["uid"])
    };
    let sets: Vec<Value> = sets.into_iter().filter(is_owned).collect();
    let template = without_hash(&deployment["spec"]["template"]);
    let same = |set: &&Value| without_hash(&set["spec"]["template"]) == template;
    let created = |set: &&Value| str_of(&set["metadata"]["creationTimestamp"]).to_owned();
    let current = sets.iter().filter(same).min_by_key(created);
    let current = current.map(|set| set["metadata"]["uid"].clone());
    let (mut old, mut new) = (Vec::new(), Vec::new());
    for set in sets {
        let line = format!(
            "{} ({}/{} replicas created)",
            str_of(&set["metadata"]["name"]),
            number(&set["status"]["replicas"]),
            number(&set["spec"]["replicas"])
        );
        match current.as_ref() == Some(&set["metadata"]["uid"]) {
            true => new.push(line),
            false => old.push(line),
        }
    }
    Ok((old, new))
}

pub(super) async fn replica_set(session: &Session, text: &mut Text, object: &Value) -> Result<()> {
    text.head(object);
    text.field(0, "Selector", &selector(&object["spec"]["selector"]));
    replicas(session, text, object).await
}

pub(super) async fn replication_controller(
    session: &Session,
    text: &mut Text,
    object: &Value,
) -> Result<()> {
    text.head(object);
    text.field(0, "Selector", &table::labels(&object["spec"]["selector"]));
    replicas(session, text, object).await
}

async fn replicas(session: &Session, text: &mut Text, object: &Value) -> Result<()> {
    text.maps(object);
    let controller = controller(object).filter(|_| object["kind"] == "ReplicaSet");
    if let Some(controller) = controller {
        text.field(0, "Controlled By", &controller);
    }
    let (current, desired) = (
        number(&object["status"]["replicas"]),
        number(&object["spec"]["replicas"]),
    );
    text.field(
        0,
        "Replicas",
        &format!("{current} current / {desired} desired"),
    );
    let pods = match pods_status(session, object).await {
        Err(error) if object["kind"] == "ReplicaSet" => {
            format!("error in fetching pods: {}", error::message(&error))
        }
        pods => pods?,
    };
    text.field(0, "Pods Status", &pods);
    template(text, &object["spec"]["template"]);
    conditions(text, object);
    Ok(())
}

pub(super) async fn daemon_set(session: &Session, text: &mut Text, object: &Value) -> Result<()> {
    let status = &object["status"];
    text.head(object);
    text.field(0, "Selector", &selector(&object["spec"]["selector"]));
    text.field(
        0,
        "Node-Selector",
        &table::labels(&object["spec"]["template"]["spec"]["nodeSelector"]),
    );
    text.maps(object);
    for (name, field) in [
        (
            "Desired Number of Nodes Scheduled",
            "desiredNumberScheduled",
        ),
        (
            "Current Number of Nodes Scheduled",
            "currentNumberScheduled",
        ),
        (
            "Number of Nodes Scheduled with Up-to-date Pods",
            "updatedNumberScheduled",
        ),
        (
            "Number of Nodes Scheduled with Available Pods",
            "numberAvailable",
        ),
        ("Number of Nodes Misscheduled", "numberMisscheduled"),
    ] {
        text.line(0, &format!("{name}: {}", number(&status[field])));
    }
    text.field(0, "Pods Status", &pods_status(session, object).await?);
    template(text, &object["spec"]["template"]);
    Ok(())
}

pub(super) async fn stateful_set(session: &Session, text: &mut Text, object: &Value) -> Result<()> {
    let spec = &object["spec"];
    text.head(object);
    text.field(
        0,
        "CreationTimestamp",
        &time(&object["metadata"]["creationTimestamp"]),
    );
    text.field(0, "Selector", &selector(&spec["selector"]));
    text.maps(object);
    let (desired, total) = (
        number(&spec["replicas"]),
        number(&object["status"]["replicas"]),
    );
    text.field(0, "Replicas", &format!("{desired} desired | {total} total"));
    text.field(
        0,
        "Update Strategy",
        str_of(&spec["updateStrategy"]["type"]),
    );
    let rolling = &spec["updateStrategy"]["rollingUpdate"];
    if !rolling["partition"].is_null() {
        text.field(1, "Partition", &number(&rolling["partition"]).to_string());
        text.optional(1, "MaxUnavailable", &rolling["maxUnavailable"]);
    }
    text.field(0, "Pods Status", &pods_status(session, object).await?);
    template(text, &spec["template"]);
    claim_templates(text, &spec["volumeClaimTemplates"]);
    Ok(())
}

fn claim_templates(text: &mut Text, templates: &Value) {
    if list(templates).len() == 0 {
        return text.field(0, "Volume Claims", "<none>");
    }
    text.line(0, "Volume Claims:");
    for claim in list(templates) {
        let spec = &claim["spec"];
        text.field(1, "Name", str_of(&claim["metadata"]["name"]));
        text.field(1, "StorageClass", storage::class_name(claim));
        text.labels("  Labels", &claim["metadata"]["labels"]);
        text.labels("  Annotations", &claim["metadata"]["annotations"]);
        let capacity = &spec["resources"]["requests"]["storage"];
        let capacity = if capacity.is_null() {
            "<default>".to_owned()
        } else {
            plain(capacity)
        };
        text.field(1, "Capacity", &capacity);
        text.field(1, "Access Modes", &bracketed(&spec["accessModes"]));
    }
}

pub(super) fn job(text: &mut Text, object: &Value) {
    let (spec, status) = (&object["spec"], &object["status"]);
    text.head(object);
    text.field(0, "Selector", &selector(&spec["selector"]));
    text.maps(object);
    if let Some(controller) = controller(object) {
        text.field(0, "Controlled By", &controller);
    }
    text.optional(0, "Parallelism", &spec["parallelism"]);
    text.field(0, "Completions", &or_unset(&spec["completions"]));
    text.optional(0, "Completion Mode", &spec["completionMode"]);
    text.optional(0, "Suspend", &spec["suspend"]);
    text.optional(0, "Backoff Limit", &spec["backoffLimit"]);
    text.optional(
        0,
        "TTL Seconds After Finished",
        &spec["ttlSecondsAfterFinished"],
    );
    if !status["startTime"].is_null() {
        text.field(0, "Start Time", &time(&status["startTime"]));
    }
    if !status["completionTime"].is_null() {
        text.field(0, "Completed At", &time(&status["completionTime"]));
        let at = |value: &Value| {
            str_of(value)
                .parse::<jiff::Timestamp>()
                .map_or(0, |at| at.as_second())
        };
        let took = at(&status["completionTime"]) - at(&status["startTime"]);
        text.field(0, "Duration", &machinery::time::human_duration(took));
    }
    if let Some(seconds) = spec["activeDeadlineSeconds"].as_i64() {
        text.field(0, "Active Deadline Seconds", &format!("{seconds}s"));
    }
    let ready = match status["ready"].as_i64() {
        Some(ready) => format!(" ({ready} Ready)"),
        None => String::new(),
    };
    let count = |field: &str| number(&status[field]);
    let statuses = format!(
        "{} Active{ready} / {} Succeeded / {} Failed",
        count("active"),
        count("succeeded"),
        count("failed")
    );
    text.field(0, "Pods Statuses", &statuses);
    if spec["completionMode"] == "Indexed" {
        let indexes = match str_of(&status["completedIndexes"]) {
            "" => "<none>".to_owned(),
            indexes => first_indexes(indexes),
        };
        text.field(0, "Completed Indexes", &indexes);
    }
    template(text, &spec["template"]);
}

/// About fifty bytes of a list of indexes, up to the next comma.
fn first_indexes(indexes: &str) -> String {
    let comma = indexes
        .bytes()
        .skip(MAX_INDEXES)
        .position(|byte| byte == b',');
    match comma {
        Some(at) => format!("{}...", &indexes[..=MAX_INDEXES + at]),
        None => indexes.to_owned(),
    }
}

pub(super) fn cron_job(text: &mut Text, object: &Value) {
    let (spec, status) = (&object["spec"], &object["status"]);
    text.head(object);
    text.maps(object);
    text.field(0, "Schedule", str_of(&spec["schedule"]));
    text.field(0, "Concurrency Policy", str_of(&spec["concurrencyPolicy"]));
    let suspend = match spec["suspend"].as_bool() {
        Some(true) => "True",
        Some(false) => "False",
        None => "<unset>",
    };
    text.field(0, "Suspend", suspend);
    text.field(0, "Time Zone", &or_unset(&spec["timeZone"]));
    text.field(
        0,
        "Successful Job History Limit",
        &or_unset(&spec["successfulJobsHistoryLimit"]),
    );
    text.field(
        0,
        "Failed Job History Limit",
        &or_unset(&spec["failedJobsHistoryLimit"]),
    );
    let deadline = match spec["startingDeadlineSeconds"].as_i64() {
        Some(seconds) => format!("{seconds}s"),
        None => "<unset>".to_owned(),
    };
    text.field(0, "Starting Deadline Seconds", &deadline);
    let job = &spec["jobTemplate"]["spec"];
    let selects = if job["selector"].is_null() {
        "<unset>".to_owned()
    } else {
        selector(&job["selector"])
    };
    text.field(0, "Selector", &selects);
    text.field(0, "Parallelism", &or_unset(&job["parallelism"]));
    text.field(0, "Completions", &or_unset(&job["completions"]));
    if let Some(seconds) = job["activeDeadlineSeconds"].as_i64() {
        text.field(0, "Active Deadline Seconds", &format!("{seconds}s"));
    }
    template(text, &job["template"]);
    let last = if status["lastScheduleTime"].is_null() {
        "<unset>".to_owned()
    } else {
        time(&status["lastScheduleTime"])
    };
    text.field(0, "Last Schedule Time", &last);
    let active: Vec<&str> = list(&status["active"])
        .map(|job| str_of(&job["name"]))
        .collect();
    let active = if active.is_empty() {
        "<none>".to_owned()
    } else {
        active.join(", ")
    };
    text.field(0, "Active Jobs", &active);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_the_same_whatever_their_hash() {
        let template = |hash: &str, image: &str| serde_json::json!({"metadata": {"labels": {"app": "a", "pod-template-hash": hash}}, "spec": {"image": image}});
        let first = without_hash(&template("1", "x"));
        assert_eq!(first, without_hash(&template("2", "x")));
        assert_ne!(first, without_hash(&template("1", "y")));
    }

    #[test]
    fn a_long_list_of_indexes_ends_after_a_comma() {
        assert_eq!(first_indexes("0-4,6"), "0-4,6");
        let long: Vec<String> = (10..40).map(|at| (2 * at).to_string()).collect();
        let shown = first_indexes(&long.join(","));
        assert_eq!(
            shown,
            "20,22,24,26,28,30,32,34,36,38,40,42,44,46,48,50,52,..."
        );
    }
}
