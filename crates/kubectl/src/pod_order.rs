//! Which of a workload's pods a command uses: the first in one of these orders.

use std::cmp::Reverse;

use serde_json::Value;

use crate::json::{list, str_of};

/// The keys of an order, the smallest first.
pub(crate) type Rank<'a> = (bool, u8, bool, bool, &'a str, Reverse<i64>, &'a str);

/// For logs: pods on nodes, running or ended ones, ready ones, those that are ready for longest, those with most
/// restarts, the oldest.
pub(crate) fn for_logs(pod: &Value) -> Rank<'_> {
    let phase = match str_of(&pod["status"]["phase"]) {
        "Pending" => 2,
        "Unknown" => 1,
        _ => 0,
    };
    let restarts = Reverse(restarts(pod));
    let ready = ready_since(pod);
    let since = ready.unwrap_or_default();
    let created = str_of(&pod["metadata"]["creationTimestamp"]);
    let is_waiting = str_of(&pod["spec"]["nodeName"]).is_empty();
    (
        is_waiting,
        phase,
        ready.is_none(),
        false,
        since,
        restarts,
        created,
    )
}

/// For streams: pods on nodes, running ones, ready ones, those that are not being deleted, those that are ready for
/// longest, those with fewest restarts, the oldest.
pub(crate) fn for_streams(pod: &Value) -> Rank<'_> {
    let phase = match str_of(&pod["status"]["phase"]) {
        "Running" => 0,
        "Unknown" => 1,
        _ => 2,
    };
    let restarts = Reverse(-restarts(pod));
    let ready = ready_since(pod);
    let since = ready.unwrap_or_default();
    let created = str_of(&pod["metadata"]["creationTimestamp"]);
    let is_leaving = !pod["metadata"]["deletionTimestamp"].is_null();
    let is_waiting = str_of(&pod["spec"]["nodeName"]).is_empty();
    (
        is_waiting,
        phase,
        ready.is_none(),
        is_leaving,
        since,
        restarts,
        created,
    )
}

/// Since when the pod is ready; `None` if it is not.
fn ready_since(pod: &Value) -> Option<&str> {
    list(&pod["status"]["conditions"])
        .find(|condition| condition["type"] == "Ready" && condition["status"] == "True")
        .map(|condition| str_of(&condition["lastTransitionTime"]))
}

/// The restarts of the container with most of them.
fn restarts(pod: &Value) -> i64 {
    list(&pod["status"]["containerStatuses"])
        .filter_map(|status| status["restartCount"].as_i64())
        .max()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn running_ready_and_old_pods_come_first() {
        let pod = |name: &str, node: &str, phase: &str, ready: &str, restarts: i64| {
            json!({"metadata": {"name": name, "creationTimestamp": name}, "spec": {"nodeName": node}, "status": {
                "phase": phase, "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": "t"}],
                "containerStatuses": [{"restartCount": restarts}]}})
        };
        let mut pods = [
            pod("a", "", "Pending", "False", 0),
            pod("b", "n", "Pending", "False", 0),
            pod("c", "n", "Running", "False", 0),
            pod("d", "n", "Running", "True", 0),
            pod("e", "n", "Running", "True", 3),
            pod("f", "n", "Succeeded", "False", 0),
        ];
        let names = |pods: &[Value]| -> String {
            pods.iter()
                .map(|pod| str_of(&pod["metadata"]["name"]))
                .collect()
        };
        pods.sort_by(|a, b| for_logs(a).cmp(&for_logs(b)));
        assert_eq!(names(&pods), "edcfba");
        pods.sort_by(|a, b| for_streams(a).cmp(&for_streams(b)));
        assert_eq!(names(&pods), "decbfa");
    }
}
