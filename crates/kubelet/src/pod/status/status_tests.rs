//! Tables for [`super::compute`].

use super::*;
use crate::pod::{
    memory::{Probes, Replaced},
    observed::{Container, Sandbox, State},
};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn pod(spec: serde_json::Value) -> Pod {
    serde_json::from_value(serde_json::json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u", "generation": 3}, "spec": spec}))
    .unwrap()
}

fn container(name: &str, state: State, exit_code: i32) -> Container {
    Container {
        id: format!("{name}-id"),
        sandbox_id: "s".into(),
        name: name.into(),
        state,
        exit_code,
        created_at: at(10),
        started_at: Some(at(11)),
        finished_at: (state == State::Exited).then(|| at(12)),
        image: "img".into(),
        image_ref: "sha256:1".into(),
        ..Default::default()
    }
}

fn observed(containers: Vec<Container>) -> Observed {
    let ips = vec!["10.42.0.5".to_owned()];
    let sandbox = Sandbox {
        id: "s".into(),
        ready: true,
        created_at: at(1),
        ips,
        ..Default::default()
    };
    Observed::new(vec![sandbox], containers)
}

struct Case {
    pod: Pod,
    observed: Observed,
    memory: Memory,
    waiting: Vec<(String, Waiting)>,
    terminal: bool,
    resize: Option<Resize>,
}

impl Case {
    fn new(spec: serde_json::Value, containers: Vec<Container>) -> Self {
        Self {
            pod: pod(spec),
            observed: observed(containers),
            memory: Memory::default(),
            waiting: vec![],
            terminal: false,
            resize: None,
        }
    }

    fn status(&self) -> PodStatus {
        let previous = self.pod.status.clone().unwrap_or_default();
        compute(&Facts {
            pod: &self.pod,
            in_api: &self.pod.status.clone().unwrap_or_default(),
            observed: &self.observed,
            memory: &self.memory,
            waiting: &self.waiting,
            previous: &previous,
            ended: self.terminal,
            terminal: self.terminal,
            failed: None,
            resize: self.resize.as_ref(),
            host_ips: &["192.168.0.1".to_owned()],
            runtime: "mainstay",
            now: at(100),
        })
    }
}

fn condition(status: &PodStatus, type_: &str) -> (String, String) {
    let all = status.conditions.as_ref().unwrap();
    let found = all
        .iter()
        .find(|condition| condition.type_ == type_)
        .unwrap();
    (
        found.status.clone(),
        found.reason.clone().unwrap_or_default(),
    )
}

fn two() -> serde_json::Value {
    serde_json::json!({"restartPolicy": "Never", "containers": [{"name": "b"}, {"name": "a"}]})
}

#[test]
fn termination_messages_of_a_pod_share_a_limit_and_are_cut_between_characters() {
    let names: Vec<String> = (0..4).map(|number| format!("c{number}")).collect();
    let specs: Vec<_> = names
        .iter()
        .map(|name| serde_json::json!({"name": name}))
        .collect();
    let ended = names.iter().map(|name| Container {
        message: "x".to_owned() + &"ä".repeat(2000),
        ..container(name, State::Exited, 1)
    });
    let spec = serde_json::json!({"containers": specs, "restartPolicy": "Never"});
    let status = Case::new(spec, ended.collect()).status();
    for container in status.container_statuses.unwrap() {
        let message = container.state.unwrap().terminated.unwrap().message;
        assert_eq!(message.unwrap().len(), 3071);
    }
}

#[test]
fn phases_follow_the_containers() {
    use State::{Exited, Running};
    let run = |name| container(name, Running, 0);
    let end = |name, code| container(name, Exited, code);
    let cases = [
        (vec![], "Pending"),
        (vec![run("a")], "Pending"),
        (vec![run("a"), run("b")], "Running"),
        (vec![run("a"), end("b", 1)], "Running"),
        (vec![end("a", 0), end("b", 0)], "Succeeded"),
        (vec![end("a", 0), end("b", 1)], "Failed"),
    ];
    for (containers, phase) in cases {
        let shown = format!("{containers:?}");
        assert_eq!(
            Case::new(two(), containers).status().phase.unwrap(),
            phase,
            "{shown}"
        );
    }
}

#[test]
fn a_pod_whose_init_container_failed_has_failed_when_its_sidecars_have_ended() {
    use State::{Exited, Running};
    let spec = serde_json::json!({"restartPolicy": "Never", "containers": [{"name": "a"}],
        "initContainers": [{"name": "side", "restartPolicy": "Always"}, {"name": "i"}]});
    for (state, phase) in [(Running, "Pending"), (Exited, "Failed")] {
        let seen = vec![container("side", state, 0), container("i", Exited, 1)];
        let status = Case::new(spec.clone(), seen).status();
        assert_eq!(status.phase.as_deref(), Some(phase), "{state:?}");
    }
}

#[test]
fn a_container_that_could_not_be_started_has_the_earliest_start_time() {
    let unstarted = Container {
        started_at: None,
        ..container("a", State::Exited, 128)
    };
    let spec = serde_json::json!({"containers": [{"name": "a"}]});
    let status = Case::new(spec, vec![unstarted]).status();
    let state = status.container_statuses.unwrap().remove(0).state;
    let ended = state.unwrap().terminated.unwrap();
    assert_eq!(ended.started_at.unwrap().0, Timestamp::UNIX_EPOCH);
    assert_eq!(ended.finished_at.unwrap().0, at(12));
}

#[test]
fn a_running_pod_is_ready_and_has_addresses() {
    let spec = serde_json::json!({"containers": [{"name": "a", "image": "img"}]});
    let status = Case::new(spec, vec![container("a", State::Running, 0)]).status();
    for type_ in [
        "PodReadyToStartContainers",
        "Initialized",
        "Ready",
        "ContainersReady",
        "PodScheduled",
    ] {
        assert_eq!(condition(&status, type_).0, "True", "{type_}");
    }
    assert_eq!(status.pod_ip.as_deref(), Some("10.42.0.5"));
    assert_eq!(status.host_ip.as_deref(), Some("192.168.0.1"));
    assert_eq!(status.qos_class.as_deref(), Some("BestEffort"));
    assert_eq!(status.observed_generation, Some(3));
    let container = &status.container_statuses.unwrap()[0];
    assert!(container.ready && container.started == Some(true));
    assert_eq!(container.container_id.as_deref(), Some("mainstay://a-id"));
    assert_eq!(container.image_id, "sha256:1");
}

#[test]
fn readiness_waits_for_startup_and_readiness_probes() {
    let spec = serde_json::json!({"containers": [
        {"name": "a", "startupProbe": {}, "readinessProbe": {}}]});
    let mut case = Case::new(spec, vec![container("a", State::Running, 0)]);
    let ready = |case: &Case| {
        let status = case.status();
        let container = status.container_statuses.clone().unwrap().remove(0);
        (
            container.started,
            container.ready,
            condition(&status, "Ready").1,
        )
    };
    assert_eq!(
        ready(&case),
        (Some(false), false, "ContainersNotReady".into())
    );
    let probes = |startup, readiness| Probes {
        startup,
        readiness,
        liveness: None,
    };
    case.memory
        .probes
        .insert("a-id".into(), probes(Some(true), None));
    assert_eq!(
        ready(&case),
        (Some(true), false, "ContainersNotReady".into())
    );
    case.memory
        .probes
        .insert("a-id".into(), probes(Some(true), Some(true)));
    assert_eq!(ready(&case), (Some(true), true, String::new()));
}

#[test]
fn a_container_in_back_off_waits_and_shows_how_it_ended() {
    let spec = serde_json::json!({"restartPolicy": "Always", "containers": [{"name": "a"}]});
    let mut case = Case::new(spec, vec![container("a", State::Exited, 3)]);
    let waiting = Waiting {
        reason: "CrashLoopBackOff".into(),
        message: "back-off".into(),
    };
    case.waiting = vec![("a".into(), waiting)];
    let status = case.status();
    assert_eq!(status.phase.as_deref(), Some("Running"));
    let container = &status.container_statuses.unwrap()[0];
    let state = container.state.as_ref().unwrap();
    assert_eq!(
        state.waiting.as_ref().unwrap().reason.as_deref(),
        Some("CrashLoopBackOff")
    );
    let last = container
        .last_state
        .as_ref()
        .unwrap()
        .terminated
        .as_ref()
        .unwrap();
    assert_eq!((last.exit_code, last.reason.as_deref()), (3, Some("Error")));
}

#[test]
fn init_containers_hold_the_pod_back_until_they_are_done() {
    let spec = serde_json::json!({"initContainers": [{"name": "i"}, {"name": "j"}], "containers": [{"name": "a"}]});
    let status = Case::new(spec.clone(), vec![container("i", State::Running, 0)]).status();
    let next = status.init_container_statuses.as_ref().unwrap()[1]
        .state
        .clone();
    let reason = next.unwrap().waiting.unwrap().reason;
    assert_eq!(reason.as_deref(), Some("PodInitializing"));
    assert_eq!(
        condition(&status, "Initialized"),
        ("False".into(), "ContainersNotInitialized".into())
    );
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    let main = status
        .container_statuses
        .unwrap()
        .remove(0)
        .state
        .unwrap()
        .waiting
        .unwrap();
    assert_eq!(main.reason.as_deref(), Some("PodInitializing"));
    let done = vec![
        container("i", State::Exited, 0),
        container("j", State::Exited, 0),
        container("a", State::Running, 0),
    ];
    let status = Case::new(spec, done).status();
    assert_eq!(condition(&status, "Initialized").0, "True");
    assert!(status.init_container_statuses.unwrap()[0].ready);
}

#[test]
fn a_terminal_phase_never_changes_back() {
    let mut case = Case::new(
        two(),
        vec![
            container("a", State::Running, 0),
            container("b", State::Running, 0),
        ],
    );
    case.pod.status = Some(PodStatus {
        phase: Some("Failed".into()),
        ..Default::default()
    });
    assert_eq!(case.status().phase.as_deref(), Some("Failed"));
}

#[test]
fn a_deleted_pod_ends_by_its_exit_codes() {
    let spec = serde_json::json!({"restartPolicy": "Always", "containers": [{"name": "a"}]});
    let mut case = Case::new(spec, vec![container("a", State::Exited, 0)]);
    assert_eq!(case.status().phase.as_deref(), Some("Running"));
    case.terminal = true;
    let status = case.status();
    assert_eq!(status.phase.as_deref(), Some("Succeeded"));
    assert_eq!(
        condition(&status, "Ready"),
        ("False".into(), "PodCompleted".into())
    );
}

#[test]
fn a_pod_that_was_stopped_before_it_ran_has_failed() {
    for policy in ["Always", "OnFailure", "Never"] {
        let spec = serde_json::json!({"restartPolicy": policy, "containers": [{"name": "a"}]});
        let mut case = Case::new(spec, vec![]);
        assert_eq!(case.status().phase.as_deref(), Some("Pending"));
        case.terminal = true;
        let status = case.status();
        assert_eq!(status.phase.as_deref(), Some("Failed"));
        let state = status.container_statuses.unwrap()[0].state.clone().unwrap();
        let ended = state.terminated.unwrap();
        assert_eq!(ended.exit_code, 137);
        assert_eq!(ended.reason.as_deref(), Some("ContainerStatusUnknown"));
    }
}

#[test]
fn a_container_that_was_killed_to_run_again_does_not_end_the_pod_whatever_its_exit_code() {
    let spec = serde_json::json!({"restartPolicy": "OnFailure", "containers": [{"name": "a"}]});
    let pod = Case::new(spec, vec![]).pod;
    let ended = serde_json::json!({"terminated": {"exitCode": 0}});
    for (state, last, without) in [
        (ended.clone(), serde_json::json!({}), "Succeeded"),
        (serde_json::json!({"waiting": {}}), ended, "Failed"),
    ] {
        let status = serde_json::json!({"name": "a", "image": "", "imageID": "", "ready": false,
            "restartCount": 2, "state": state, "lastState": last});
        let status: ContainerStatus = serde_json::from_value(status).unwrap();
        let phase = |restarts| phase::phase(&pod, &[&status], false, true, &|_| restarts);
        assert_eq!((phase(true), phase(false)), ("Running", without));
    }
}

#[test]
fn a_container_that_was_killed_to_run_again_waits_until_it_runs() {
    let spec = serde_json::json!({"restartPolicy": "OnFailure", "containers": [{"name": "a"}]});
    let ended = container("a", State::Exited, 0);
    let mut case = Case::new(spec, vec![ended.clone()]);
    let state = |case: &Case| case.status().container_statuses.unwrap()[0].state.clone();
    assert!(
        state(&case).unwrap().terminated.is_some(),
        "it ended by itself"
    );
    let replaced = Replaced {
        was: ended,
        shown_until: None,
    };
    case.memory.replaced.insert("a".into(), replaced);
    let reason = |case: &Case| state(case).unwrap().waiting.unwrap().reason.unwrap();
    assert_eq!(reason(&case), "ContainerCreating");
    let why = Waiting {
        reason: "CrashLoopBackOff".into(),
        message: "back-off 10s".into(),
    };
    case.waiting.push(("a".into(), why));
    assert_eq!(reason(&case), "CrashLoopBackOff");
    // The delay is over and the container starts: nothing is shown that the API takes for the end.
    let status = case.status();
    case.waiting.clear();
    case.pod.status = Some(status);
    assert_eq!(reason(&case), "CrashLoopBackOff");
    assert_eq!(case.status().phase.as_deref(), Some("Running"));
}

#[test]
fn readiness_gates_and_foreign_conditions_are_kept() {
    let spec = serde_json::json!({"containers": [{"name": "a"}],
        "readinessGates": [{"conditionType": "example.com/gate"}]});
    let mut case = Case::new(spec, vec![container("a", State::Running, 0)]);
    assert_eq!(
        condition(&case.status(), "Ready").1,
        "ReadinessGatesNotReady"
    );
    case.pod.status = serde_json::from_value(serde_json::json!({"conditions": [
        {"type": "example.com/gate", "status": "True"}]}))
    .unwrap();
    let status = case.status();
    assert_eq!(condition(&status, "Ready").0, "True");
    assert_eq!(condition(&status, "example.com/gate").0, "True");
}

#[test]
fn the_transition_time_moves_only_with_the_status() {
    let spec = serde_json::json!({"containers": [{"name": "a"}]});
    let mut case = Case::new(spec, vec![container("a", State::Running, 0)]);
    case.pod.status = serde_json::from_value(serde_json::json!({"conditions": [
        {"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:00:07Z"},
        {"type": "Initialized", "status": "False", "lastTransitionTime": "1970-01-01T00:00:07Z"}]}))
    .unwrap();
    let status = case.status();
    let when = |type_: &str| {
        let all = status.conditions.as_ref().unwrap();
        all.iter()
            .find(|c| c.type_ == type_)
            .unwrap()
            .last_transition_time
            .clone()
            .unwrap()
            .0
    };
    assert_eq!((when("Ready"), when("Initialized")), (at(7), at(100)));
}

#[test]
fn a_container_that_vanished_after_running_counts_as_restarted() {
    let spec = serde_json::json!({"containers": [{"name": "a"}]});
    let mut case = Case::new(spec, vec![]);
    case.pod.status = serde_json::from_value(serde_json::json!({"phase": "Running",
        "containerStatuses": [{"name": "a", "image": "", "imageID": "", "ready": true,
        "restartCount": 1, "state": {"running": {}}}]}))
    .unwrap();
    let status = case.status();
    let container = &status.container_statuses.unwrap()[0];
    assert_eq!(container.restart_count, 2);
    let last = container
        .last_state
        .as_ref()
        .unwrap()
        .terminated
        .as_ref()
        .unwrap();
    assert_eq!(last.reason.as_deref(), Some("ContainerStatusUnknown"));
}

#[test]
fn a_size_that_could_not_be_given_is_shown_with_its_error_and_the_one_before_stays() {
    let limits = |memory: &str| serde_json::json!({"limits": {"memory": memory}});
    let spec = serde_json::json!({"resources": limits("10Ki"), "containers": [{"name": "a"}]});
    let mut case = Case::new(spec, vec![container("a", State::Running, 0)]);
    let before = PodStatus {
        resources: serde_json::from_value(limits("1Gi")).unwrap(),
        ..Default::default()
    };
    case.pod.status = Some(before.clone());
    case.resize = Some(Resize::InProgress {
        error: Some("below current usage".into()),
    });
    let status = case.status();
    let shown = condition(&status, "PodResizeInProgress");
    assert_eq!(shown, ("True".into(), "Error".into()));
    assert_eq!(status.resources, before.resources);
    case.resize = None;
    assert_ne!(case.status().resources, before.resources);
}

#[test]
fn a_pod_whose_sidecar_restarts_all_containers_has_not_failed() {
    let rules = serde_json::json!([{"action": "RestartAllContainers",
        "exitCodes": {"operator": "In", "values": [42]}}]);
    let spec = serde_json::json!({"restartPolicy": "Never", "containers": [{"name": "a"}],
        "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always", "restartPolicyRules": rules}]});
    let killed = |code| {
        let end = |name, code| container(name, State::Exited, code);
        let ended = vec![end("i", 0), end("s", code), end("a", 137)];
        let status = Case::new(spec.clone(), ended).status();
        let restarting = condition(&status, "AllContainersRestarting").0;
        (status.phase.unwrap(), restarting)
    };
    assert_eq!(killed(42), ("Running".to_owned(), "True".to_owned()));
    assert_eq!(killed(1), ("Failed".to_owned(), "False".to_owned()));
    // Also if an init container was running.
    let ended = vec![
        container("i", State::Exited, 137),
        container("s", State::Exited, 42),
    ];
    let status = Case::new(spec.clone(), ended).status();
    assert_eq!(status.phase.as_deref(), Some("Pending"));
}

#[test]
fn a_pod_whose_containers_were_removed_to_restart_has_not_failed() {
    let spec = serde_json::json!({"restartPolicy": "Never", "containers": [{"name": "a"}],
        "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}]});
    let ended = vec![
        container("i", State::Exited, 0),
        container("s", State::Exited, 42),
        container("a", State::Exited, 137),
    ];
    let mut case = Case::new(spec, ended);
    let before = case.status();
    assert_eq!(before.phase.as_deref(), Some("Failed"));
    case.pod.status = Some(PodStatus {
        phase: Some("Running".into()),
        ..before
    });
    // All are removed, and the init container has already run again.
    case.observed = observed(vec![container("i", State::Exited, 0)]);
    assert_eq!(case.status().phase.as_deref(), Some("Failed"));
    case.memory.reset = [("a".into(), "old".into())].into();
    assert_eq!(case.status().phase.as_deref(), Some("Running"));
}

#[test]
fn the_end_before_a_restart_of_the_whole_pod_is_known_after_its_container_was_removed() {
    let spec = serde_json::json!({"containers": [{"name": "a"}]});
    let mut ended = Case::new(spec, vec![container("a", State::Exited, 42)]);
    let shown = ended.status();
    ended.pod.status = Some(shown);
    let next = Container {
        id: "next".into(),
        restart_count: 1,
        ..container("a", State::Running, 0)
    };
    ended.observed = observed(vec![next]);
    let last = ended.status().container_statuses.unwrap()[0]
        .last_state
        .clone();
    assert_eq!(last.unwrap().terminated.unwrap().exit_code, 42);
}
