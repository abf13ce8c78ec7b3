//! Why a pod is pending, crashes, is not ready, or is not removed.

use client::{Api, kube};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateTerminated, ContainerStatus, Node, Pod, PodCondition, Volume,
};
use kube::api::LogParams;
use machinery::time::human_duration;
use scheduler::Diagnosis;

use crate::{
    Answer, Result,
    events::{self, Warning},
    node,
    placement::{self, Facts},
    question::Name,
};

/// How much of a crashed container's log is shown.
const LAST_LINES: i64 = 5;

pub(crate) async fn answer(client: &kube::Client, name: &Name) -> Result<Answer> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &name.namespace);
    let pod = pods.get(&name.name).await?;
    explain_with(client, &pod).await
}

/// The same for a pod that was already read.
pub(crate) async fn explain_with(client: &kube::Client, pod: &Pod) -> Result<Answer> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let mut seen = Seen {
        warnings: events::warnings(client, namespace, "Pod", name).await?,
        ..Seen::default()
    };
    if waits_for_node(pod) {
        let asked = placement::ask(client, namespace, name).await;
        seen.placement = match asked {
            Some(diagnosis) => diagnosis,
            None => placement::diagnose(pod, &Facts::read(client).await?),
        };
    } else if let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) {
        seen.node = Api::<Node>::all(client.clone()).get_opt(node).await?;
    }
    if let Some(crashed) = crashed(pod) {
        let params = LogParams {
            container: Some(crashed.name.clone()),
            previous: crashed.restart_count > 0,
            tail_lines: Some(LAST_LINES),
            ..LogParams::default()
        };
        // The logs may be gone with the container; the answer is given without them.
        let pods: kube::Api<Pod> = kube::Api::namespaced(client.clone(), namespace);
        seen.log = pods.logs(name, &params).await.unwrap_or_default();
    }
    Ok(explain(pod, &seen, Timestamp::now()))
}

/// Data beyond the pod itself.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub warnings: Vec<Warning>,
    /// Why each node rejects the pod.
    pub placement: Diagnosis,
    /// The pod's node.
    pub node: Option<Node>,
    /// The last lines of the crashed container's log.
    pub log: String,
}

/// The answer.
pub(crate) fn explain(pod: &Pod, seen: &Seen, now: Timestamp) -> Answer {
    let name = format!("pod/{}", pod.metadata.name.as_deref().unwrap_or_default());
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    if pod.metadata.deletion_timestamp.is_some() {
        return terminating(&name, pod, seen, now);
    }
    match phase {
        Some("Failed") => failed(&name, pod, seen),
        Some("Succeeded") => Answer::new(format!(
            "{name} has succeeded: all containers exited with code 0"
        )),
        _ if waits_for_node(pod) => unscheduled(&name, pod, seen),
        _ => on_its_node(&name, pod, seen, now),
    }
}

fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == kind)
}

fn waits_for_node(pod: &Pod) -> bool {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    node.is_none_or(str::is_empty) && pod.metadata.deletion_timestamp.is_none()
}

fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.iter();
    status.flat_map(|status| {
        let init = status.init_container_statuses.iter().flatten();
        init.chain(status.container_statuses.iter().flatten())
    })
}

/// A container that failed and waits for a restart, or gets none.
fn crashed(pod: &Pod) -> Option<&ContainerStatus> {
    statuses(pod).find(|status| last_end(status).is_some_and(|end| end.exit_code != 0))
}

fn last_end(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    let ended = |state: &'_ Option<ContainerState>| {
        state
            .as_ref()
            .is_some_and(|state| state.terminated.is_some())
    };
    let state = if ended(&status.state) {
        &status.state
    } else {
        &status.last_state
    };
    state.as_ref()?.terminated.as_ref()
}

fn terminating(name: &str, pod: &Pod, seen: &Seen, now: Timestamp) -> Answer {
    let deleted = pod
        .metadata
        .deletion_timestamp
        .as_ref()
        .map_or(now, |time| time.0);
    let overdue = now.as_second() - deleted.as_second();
    let finalizers = pod.metadata.finalizers.clone().unwrap_or_default();
    let mut answer = Answer::new(format!("{name} is Terminating"));
    if !finalizers.is_empty() {
        let holders = finalizers.join(", ");
        answer = answer
            .because(format!("waiting for finalizers: {holders}; the controllers that set them must remove them"))
            .next(format!("if those controllers are gone for good: kubectl patch {name}{} --type=merge -p '{{\"metadata\":{{\"finalizers\":null}}}}'", namespace_flag(pod)));
    }
    if overdue < 0 {
        let left = human_duration(-overdue);
        return answer.because(format!(
            "its containers have {left} left of their grace period"
        ));
    }
    let node = seen.node.as_ref();
    if let Some(sick) = node.and_then(node::not_ready) {
        let node = node
            .and_then(|node| node.metadata.name.as_deref())
            .unwrap_or_default();
        return answer
            .because(format!(
                "node {node} is not reachable ({sick}), so its containers may still run"
            ))
            .next(format!(
                "bring the node back, or if it never comes back: kubectl delete node {node}"
            ));
    }
    let running = statuses(pod).filter(|status| {
        status
            .state
            .as_ref()
            .is_some_and(|state| state.running.is_some())
    });
    let running: Vec<&str> = running.map(|status| status.name.as_str()).collect();
    if !running.is_empty() {
        answer = answer.because(format!(
            "still running after its grace period: {}",
            running.join(", ")
        ));
    }
    answer.because_all(seen.warnings.iter().map(Warning::line))
}

fn failed(name: &str, pod: &Pod, seen: &Seen) -> Answer {
    let status = pod.status.as_ref();
    let reason = status
        .and_then(|status| status.reason.as_deref())
        .unwrap_or("Failed");
    let mut answer = Answer::new(format!("{name} has failed: {reason}"));
    if let Some(message) = status.and_then(|status| status.message.as_deref()) {
        answer = answer.because(message.trim_end());
    }
    for status in statuses(pod) {
        if let Some(end) = last_end(status).filter(|end| end.exit_code != 0) {
            answer = answer.because(format!("container {} {}", status.name, how_it_ended(end)));
        }
    }
    with_log(answer, seen)
}

fn unscheduled(name: &str, pod: &Pod, seen: &Seen) -> Answer {
    let spec = pod.spec.as_ref();
    let gates = spec
        .and_then(|spec| spec.scheduling_gates.as_deref())
        .unwrap_or_default();
    if !gates.is_empty() {
        let gates: Vec<&str> = gates.iter().map(|gate| gate.name.as_str()).collect();
        return Answer::new(format!("{name} is Pending: it has scheduling gates")).because(
            format!(
                "{}; the controllers that set them must remove them",
                gates.join(", ")
            ),
        );
    }
    let scheduler = spec.and_then(|spec| spec.scheduler_name.as_deref());
    let scheduler = scheduler.unwrap_or("default-scheduler");
    let Some(condition) = condition(pod, "PodScheduled") else {
        return match scheduler {
            "default-scheduler" => Answer::new(format!(
                "{name} is Pending: the scheduler has not tried it yet"
            )),
            other => Answer::new(format!(
                "{name} is Pending: no scheduler named {other} has tried it"
            ))
            .next("start that scheduler, or leave spec.schedulerName empty"),
        };
    };
    let mut answer = Answer::new(format!("{name} is Pending: it fits no node"));
    let lines = placement::lines(&seen.placement);
    if lines.is_empty() {
        answer = answer.because(condition.message.clone().unwrap_or_default());
        return answer.because("it fits a node now: the scheduler retries after its backoff");
    }
    let help = seen.placement.help.iter();
    help.fold(answer.because_all(lines), |answer, step| {
        let claims = claims(pod);
        match step.as_str() {
            scheduler::diagnosis::CLAIM_HELP if !claims.is_empty() => {
                let ask = |claim| format!("mainstay why pvc/{claim}{}", namespace_flag(pod));
                claims.into_iter().map(ask).fold(answer, Answer::next)
            }
            step => answer.next(step),
        }
    })
}

/// ` -n NAMESPACE` for the commands of next steps, unless it is the default one.
fn namespace_flag(pod: &Pod) -> String {
    match pod.metadata.namespace.as_deref() {
        None | Some("" | "default") => String::new(),
        Some(namespace) => format!(" -n {namespace}"),
    }
}

/// The names of the pod's PersistentVolumeClaims.
fn claims(pod: &Pod) -> Vec<String> {
    let volumes = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    let claim = |volume: &Volume| match &volume.persistent_volume_claim {
        Some(source) => Some(source.claim_name.clone()),
        None => {
            let pod = pod.metadata.name.as_deref().unwrap_or_default();
            let is_own = volume.ephemeral.is_some();
            is_own.then(|| format!("{pod}-{}", volume.name))
        }
    };
    volumes.filter_map(claim).collect()
}

fn on_its_node(name: &str, pod: &Pod, seen: &Seen, now: Timestamp) -> Answer {
    let node = seen.node.as_ref();
    if let Some(sick) = node.and_then(node::not_ready) {
        let node = node
            .and_then(|node| node.metadata.name.as_deref())
            .unwrap_or_default();
        return Answer::new(format!("{name} is on a node that is not ready"))
            .because(format!("{node}: {sick}"))
            .next(format!("mainstay why node/{node}"));
    }
    if let Some(status) = statuses(pod).find(|status| waiting(status).is_some()) {
        return container_waits(name, pod, status, seen);
    }
    if let Some(condition) = condition(pod, "Ready").filter(|ready| ready.status != "True") {
        return not_ready(name, pod, condition, seen);
    }
    match condition(pod, "Ready").and_then(|ready| ready.last_transition_time.as_ref()) {
        Some(since) => {
            let since = human_duration(now.as_second() - since.0.as_second());
            let restarts: i32 = statuses(pod).map(|status| status.restart_count).sum();
            let mut answer =
                Answer::new(format!("{name} is running and has been ready for {since}"));
            if let Some(crashed) = crashed(pod) {
                let how = last_end(crashed).map(how_it_ended).unwrap_or_default();
                answer = answer.because(format!(
                    "{restarts} restarts; container {} last {how}",
                    crashed.name
                ));
            }
            answer
        }
        None => Answer::new(format!("{name} waits for its kubelet"))
            .because_all(seen.warnings.iter().map(Warning::line)),
    }
}

/// The reason for which a container waits, other than its turn.
fn waiting(status: &ContainerStatus) -> Option<&str> {
    let waiting = status.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref()?;
    (!matches!(reason, "ContainerCreating" | "PodInitializing")).then_some(reason)
}

fn container_waits(name: &str, pod: &Pod, status: &ContainerStatus, seen: &Seen) -> Answer {
    let reason = waiting(status).unwrap_or_default();
    let message = status
        .state
        .as_ref()
        .and_then(|state| state.waiting.as_ref());
    let message = message
        .and_then(|waiting| waiting.message.as_deref())
        .unwrap_or_default();
    let container = &status.name;
    match reason {
        "CrashLoopBackOff" => {
            let answer = Answer::new(format!(
                "{name} crashes: container {container} was started {} times",
                status.restart_count + 1
            ));
            let end = last_end(status);
            let answer = end.into_iter().fold(answer, |answer, end| {
                answer.because(format!("it {}", how_it_ended(end)))
            });
            let out_of_memory = end.is_some_and(|end| end.reason.as_deref() == Some("OOMKilled"));
            let answer = with_log(answer, seen);
            let start = end.filter(|end| could_not_start(end));
            let start = start.and_then(|end| end.message.as_deref());
            let help = start.and_then(|message| start_help(pod, container, message));
            match (out_of_memory, help) {
                (true, _) => answer.next("raise the container's memory limit"),
                (false, Some(help)) => answer.next(help),
                (false, None) => answer.next(format!(
                    "kubectl logs {name}{} -c {container} --previous",
                    namespace_flag(pod)
                )),
            }
        }
        "ErrImagePull" | "ImagePullBackOff" | "InvalidImageName" | "ErrImageNeverPull" => {
            let image = &status.image;
            let pull = seen
                .warnings
                .iter()
                .find(|warning| warning.message.contains("pull"));
            let cause = pull.map_or(message, |warning| &warning.message);
            Answer::new(format!("{name} cannot pull its image {image}"))
                .because(cause)
                .next("check the image's name and tag, the registry's address, and spec.imagePullSecrets")
        }
        _ => {
            // The runtime's further lines repeat the first in other words.
            let cause = message.lines().next().unwrap_or_default().trim_end();
            // Events of the same failure have the same text.
            let is_new = |warning: &&Warning| cause.is_empty() || !warning.message.contains(cause);
            let others = seen.warnings.iter().filter(is_new);
            let answer = Answer::new(format!(
                "{name} cannot start container {container}: {reason}"
            ))
            .because_all((!cause.is_empty()).then(|| cause.to_owned()))
            .because_all(others.map(Warning::line));
            start_help(pod, container, message)
                .into_iter()
                .fold(answer, Answer::next)
        }
    }
}

/// What helps against common causes of a container that cannot be started.
fn start_help(pod: &Pod, container: &str, message: &str) -> Option<String> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let lower = message.to_lowercase();
    if lower.starts_with("configmap \"") || lower.starts_with("secret \"") {
        return Some(format!(
            "create it in namespace {namespace}, or set optional: true where the container refers to it"
        ));
    }
    if lower.contains("couldn't find key") {
        return Some(
            "add the key, or set optional: true where the container refers to it".to_owned(),
        );
    }
    let is_exec = lower.contains("exec: ")
        && (lower.contains("no such file")
            || lower.contains("not found")
            || lower.contains("permission denied"));
    is_exec.then(|| {
        format!("check the command of container {container}: the image must have this program, and it must be executable")
    })
}

fn not_ready(name: &str, pod: &Pod, ready: &PodCondition, seen: &Seen) -> Answer {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    let verdict = match phase {
        Some("Running") => format!("{name} is running, but not ready"),
        _ => format!("{name} is being started"),
    };
    let message = ready.message.as_deref().or(ready.reason.as_deref());
    let mut answer = Answer::new(verdict).because_all(message.map(str::to_owned));
    for gate in pod
        .spec
        .iter()
        .flat_map(|spec| spec.readiness_gates.iter().flatten())
    {
        let set = condition(pod, &gate.condition_type);
        if set.is_none_or(|condition| condition.status != "True") {
            answer = answer.because(format!(
                "readiness gate {} is not True",
                gate.condition_type
            ));
        }
    }
    answer.because_all(seen.warnings.iter().map(Warning::line))
}

/// Whether the container's process was never run.
fn could_not_start(end: &ContainerStateTerminated) -> bool {
    matches!(
        end.reason.as_deref(),
        Some("ContainerCannotRun" | "StartError")
    )
}

fn how_it_ended(end: &ContainerStateTerminated) -> String {
    let code = end.exit_code;
    let what = match end.reason.as_deref() {
        Some("OOMKilled") => "was killed because it used more memory than its limit".to_owned(),
        _ if could_not_start(end) => "could not be started".to_owned(),
        _ => match code - 128 {
            signal if (1..=64).contains(&signal) => {
                format!("was killed by signal {signal} (exit code {code})")
            }
            _ => format!("exited with code {code}"),
        },
    };
    match end
        .message
        .as_deref()
        .map(str::trim_end)
        // The runtime's further lines repeat the first in other words.
        .map(|message| match could_not_start(end) {
            true => message.lines().next().unwrap_or_default(),
            false => message,
        })
        .filter(|message| !message.is_empty())
    {
        Some(message) => format!("{what}: {message}"),
        None => what,
    }
}

fn with_log(answer: Answer, seen: &Seen) -> Answer {
    match seen.log.trim_end() {
        "" => answer,
        log => answer.because(format!("its last lines:\n{log}")),
    }
}

#[cfg(test)]
mod tests {
    use scheduler::diagnosis::NodeDiagnosis;
    use serde_json::{Value, json};

    use super::*;

    const NOW: &str = "2026-01-01T00:10:00Z";

    fn pod(metadata: Value, spec: Value, status: Value) -> Pod {
        let mut whole = json!({"metadata": {"name": "web"}, "spec": {"containers": []}});
        for (part, more) in [("metadata", metadata), ("spec", spec), ("status", status)] {
            for (key, value) in more.as_object().unwrap() {
                whole[part][key] = value.clone();
            }
        }
        serde_json::from_value(whole).unwrap()
    }

    fn explained(pod: &Pod, seen: &Seen) -> String {
        explain(pod, seen, NOW.parse().unwrap()).to_string()
    }

    fn container(state: Value, last: Value) -> Value {
        json!({"phase": "Running", "containerStatuses": [{"name": "main", "image": "here:1",
            "imageID": "", "ready": false, "restartCount": 4, "state": state, "lastState": last}]})
    }

    fn assert_explained(pod: &Pod, seen: &Seen, parts: &[&str]) {
        let text = explained(pod, seen);
        for part in parts {
            assert!(text.contains(part), "{part:?} is missing in:\n{text}");
        }
    }

    fn on_node() -> Value {
        json!({"nodeName": "n1"})
    }

    fn with_warning(reason: &str, message: &str) -> Seen {
        let warning = Warning {
            reason: reason.to_owned(),
            message: message.to_owned(),
            count: 1,
        };
        Seen {
            warnings: vec![warning],
            ..Seen::default()
        }
    }

    #[test]
    fn a_pod_without_a_node_has_the_reason_of_each_node_its_gates_or_its_scheduler() {
        let cordoned = NodeDiagnosis {
            name: "n1".to_owned(),
            plugin: "NodeUnschedulable".to_owned(),
            reasons: vec!["node(s) were unschedulable".to_owned()],
            removing_pods_helps: false,
        };
        let placement = Diagnosis {
            nodes: vec![cordoned],
            help: vec!["kubectl uncordon NODE".to_owned()],
            ..Diagnosis::default()
        };
        let seen = Seen {
            placement,
            ..Seen::default()
        };
        let unscheduled = json!({"conditions": [{"type": "PodScheduled", "status": "False"}]});
        assert_explained(
            &pod(json!({}), json!({}), unscheduled),
            &seen,
            &[
                "it fits no node",
                "were unschedulable",
                "-> kubectl uncordon NODE",
            ],
        );
        let gated = json!({"schedulingGates": [{"name": "wait"}]});
        assert_explained(
            &pod(json!({}), gated, json!({})),
            &Seen::default(),
            &["it has scheduling gates", "wait;"],
        );
        assert_explained(
            &pod(json!({}), json!({"schedulerName": "mine"}), json!({})),
            &Seen::default(),
            &["no scheduler named mine"],
        );
    }

    #[test]
    fn a_container_that_does_not_run_has_its_exit_its_last_lines_or_its_image() {
        let crash = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        let out_of_memory = json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}});
        let log = Seen {
            log: "a\nb\n".to_owned(),
            ..Seen::default()
        };
        assert_explained(
            &pod(
                json!({}),
                on_node(),
                container(crash.clone(), out_of_memory),
            ),
            &log,
            &[
                "started 5 times",
                "used more memory",
                "its last lines:\n    a\n    b\n",
                "memory limit",
            ],
        );
        let killed = json!({"terminated": {"exitCode": 143}});
        assert_explained(
            &pod(json!({}), on_node(), container(crash, killed)),
            &Seen::default(),
            &[
                "killed by signal 15",
                "kubectl logs pod/web -c main --previous",
            ],
        );
        let pull = json!({"waiting": {"reason": "ImagePullBackOff", "message": "Back-off"}});
        assert_explained(
            &pod(json!({}), on_node(), container(pull, json!({}))),
            &with_warning("Failed", "Failed to pull image: not found"),
            &["cannot pull its image here:1", "not found"],
        );
    }

    #[test]
    fn a_container_that_cannot_be_started_has_each_cause_once_and_a_step() {
        let cases = [
            (
                "configmap \"missing\" not found",
                "-> create it in namespace shop, or set optional: true",
            ),
            (
                "exec: \"/x\": no such file or directory\nthe same again",
                "-> check the command of container main",
            ),
        ];
        for (message, step) in cases {
            let state =
                json!({"waiting": {"reason": "CreateContainerConfigError", "message": message}});
            let pod = pod(
                json!({"namespace": "shop"}),
                on_node(),
                container(state, json!({})),
            );
            let text = explained(&pod, &with_warning("Failed", &format!("Error: {message}")));
            let first = message.lines().next().unwrap();
            assert_eq!(text.matches(first).count(), 1, "{text}");
            assert!(text.contains(step), "{text}");
            assert!(!text.contains("again"), "{text}");
        }
    }

    #[test]
    fn a_program_that_the_image_does_not_have_is_named_once() {
        let crash = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        let message = "exec: \"/x\": no such file or directory\nthe same again";
        let end =
            json!({"terminated": {"exitCode": 128, "reason": "StartError", "message": message}});
        let text = explained(
            &pod(json!({}), on_node(), container(crash, end)),
            &Seen::default(),
        );
        let expected = "could not be started: exec: \"/x\": no such file or directory\n";
        assert!(text.contains(expected), "{text}");
        assert!(
            text.contains("-> check the command of container main"),
            "{text}"
        );
        assert!(!text.contains("again"), "{text}");
    }

    #[test]
    fn next_steps_name_the_namespace_and_the_claims_of_the_pod() {
        let shop = json!({"namespace": "shop"});
        let crash = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        assert_explained(
            &pod(shop.clone(), on_node(), container(crash, json!({}))),
            &Seen::default(),
            &["kubectl logs pod/web -n shop -c main --previous"],
        );
        let placement = Diagnosis {
            help: vec![scheduler::diagnosis::CLAIM_HELP.to_owned()],
            message: "pod has unbound immediate PersistentVolumeClaims".to_owned(),
            ..Diagnosis::default()
        };
        let seen = Seen {
            placement,
            ..Seen::default()
        };
        let volumes = json!({"volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "b", "ephemeral": {}}, {"name": "c", "emptyDir": {}}]});
        let unscheduled = json!({"conditions": [{"type": "PodScheduled", "status": "False"}]});
        assert_explained(
            &pod(shop, volumes, unscheduled),
            &seen,
            &["-> mainstay why pvc/data -n shop\n  -> mainstay why pvc/web-b -n shop\n"],
        );
    }

    #[test]
    fn a_running_pod_is_ready_or_has_the_failed_probe() {
        let ready = json!({"phase": "Running", "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:05:00Z"}]});
        assert_explained(
            &pod(json!({}), on_node(), ready),
            &Seen::default(),
            &["has been ready for 5m"],
        );
        let unready = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "False",
            "message": "containers with unready status: [main]"}]});
        assert_explained(
            &pod(json!({}), on_node(), unready),
            &with_warning("Unhealthy", "Readiness probe failed: 503"),
            &[
                "is running, but not ready",
                "unready status: [main]",
                "Readiness probe failed: 503",
            ],
        );
    }

    #[test]
    fn a_deleted_or_ended_pod_has_its_finalizers_its_grace_period_or_its_result() {
        let deleted = json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["a.b/c"]});
        let leaving = json!({"deletionTimestamp": "2026-01-01T00:10:20Z"});
        let evicted = json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory"});
        let cases: [(Value, Value, &[&str]); 4] = [
            (
                deleted,
                json!({}),
                &["is Terminating", "waiting for finalizers: a.b/c"],
            ),
            (leaving, json!({}), &["have 20s left"]),
            (
                json!({}),
                evicted,
                &["has failed: Evicted", "low on memory"],
            ),
            (json!({}), json!({"phase": "Succeeded"}), &["has succeeded"]),
        ];
        for (metadata, status, parts) in cases {
            assert_explained(&pod(metadata, on_node(), status), &Seen::default(), parts);
        }
    }
}
