//! Tables for [`super::decide`]: a pod, its observed state, and the expected decision.

use super::*;
use crate::make::resources::Bounds;
use crate::pod::{
    memory::{Probes, Replaced, ResizeFailure, StartFailure},
    observed::Sandbox,
};

const NOW: i64 = 1_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn pod(spec: serde_json::Value) -> Pod {
    serde_json::from_value(serde_json::json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec}))
    .unwrap()
}

fn simple(policy: &str) -> Pod {
    pod(serde_json::json!({"restartPolicy": policy, "containers": [{"name": "a"}, {"name": "b"}]}))
}

fn with_init() -> Pod {
    pod(serde_json::json!({
        "initContainers": [{"name": "i1"}, {"name": "side", "restartPolicy": "Always"}, {"name": "i2"}],
        "containers": [{"name": "a"}]}))
}

fn sandbox() -> Sandbox {
    let ips = vec!["10.0.0.1".to_owned()];
    Sandbox {
        id: "s".into(),
        ready: true,
        created_at: at(1),
        ips,
        ..Default::default()
    }
}

fn container(name: &str, state: State) -> Container {
    Container {
        id: format!("{name}-id"),
        sandbox_id: "s".into(),
        name: name.into(),
        state,
        created_at: at(10),
        finished_at: (state == State::Exited).then(|| at(NOW - 1)),
        ..Default::default()
    }
}

fn exited(name: &str, exit_code: i32) -> Container {
    Container {
        exit_code,
        ..container(name, State::Exited)
    }
}

fn ready() -> Memory {
    Memory {
        volumes: Volumes::Ready,
        ..Default::default()
    }
}

fn see(pod: &Pod, containers: Vec<Container>, memory: &Memory, stop: Option<Stop>) -> Decision {
    let observed = Observed::new(vec![sandbox()], containers);
    decide(&View {
        pod,
        observed: &observed,
        memory,
        now: at(NOW),
        stop,
    })
}

fn short(decision: &Decision) -> Vec<String> {
    let of = |action: &Action| match action {
        Action::SetUpVolumes => "volumes".to_owned(),
        Action::CreateSandbox { attempt } => format!("sandbox {attempt}"),
        Action::StopSandbox { id } => format!("stop {id}"),
        Action::Start {
            name,
            restart_count,
            ..
        } => format!("start {name} {restart_count}"),
        Action::Kill {
            name, grace, after, ..
        } if after.is_empty() => format!("kill {name} {grace}"),
        Action::Kill {
            name, grace, after, ..
        } => format!("kill {name} {grace} after {}", after.join(" ")),
        Action::Reset { containers, .. } => format!("reset {}", containers.join(" ")),
        Action::Resize { containers } if containers.is_empty() => "resize".to_owned(),
        Action::Resize { containers } => format!("resize {}", containers[0].1),
        Action::TearDown => "tear down".to_owned(),
    };
    decision.actions.iter().map(of).collect()
}

fn actions(pod: &Pod, containers: Vec<Container>) -> Vec<String> {
    short(&see(pod, containers, &ready(), None))
}

#[test]
fn a_new_pod_gets_volumes_then_a_sandbox_then_all_its_containers() {
    let pod = simple("Always");
    let mut waiting = pod.clone();
    let volume = serde_json::json!([{"name": "v", "configMap": {"name": "mine"}}]);
    waiting.spec.as_mut().unwrap().volumes = serde_json::from_value(volume).unwrap();
    let empty = Observed::default();
    let mut memory = Memory::default();
    let look_at = |pod: &Pod, memory: &Memory| {
        let now = at(NOW);
        decide(&View {
            pod,
            observed: &empty,
            memory,
            now,
            stop: None,
        })
    };
    let look = |memory: &Memory| look_at(&waiting, memory);
    assert_eq!(short(&look(&memory)), ["volumes"]);
    // Without objects of users both are made side by side, until the volumes fail.
    assert_eq!(short(&look_at(&pod, &memory)), ["volumes", "sandbox 0"]);
    memory.volumes = Volumes::Failed {
        retry_at: at(NOW + 1),
        times: 1,
    };
    assert!(look_at(&pod, &memory).actions.is_empty());
    memory.volumes = Volumes::Ready;
    assert_eq!(short(&look(&memory)), ["sandbox 0"]);
    memory.running.insert(Task::CreateSandbox, 0);
    assert!(look(&memory).actions.is_empty());
    // The sandbox can be seen before it is complete.
    assert!(see(&pod, vec![], &memory, None).actions.is_empty());
    assert_eq!(actions(&pod, vec![]), ["start a 0", "start b 0"]);
}

#[test]
fn a_running_pod_found_again_is_left_alone() {
    let running = vec![
        container("a", State::Running),
        container("b", State::Running),
    ];
    assert!(actions(&simple("Always"), running).is_empty());
}

#[test]
fn ended_containers_follow_the_restart_policy() {
    let cases: [(&str, i32, &[&str]); 4] = [
        ("Always", 0, &["start a 1"]),
        ("OnFailure", 1, &["start a 1"]),
        ("OnFailure", 0, &[]),
        ("Never", 1, &[]),
    ];
    for (policy, code, expected) in cases {
        let seen = vec![exited("a", code), container("b", State::Running)];
        assert_eq!(actions(&simple(policy), seen), expected, "{policy} {code}");
    }
}

#[test]
fn a_pod_whose_containers_all_ended_for_good_is_taken_down() {
    let ended = vec![exited("a", 0), exited("b", 1)];
    assert_eq!(actions(&simple("Never"), ended.clone()), ["stop s"]);
    let down = Sandbox {
        ready: false,
        ..sandbox()
    };
    let observed = Observed::new(vec![down], ended);
    let pod = simple("Never");
    let mut memory = ready();
    let now = at(NOW);
    let look = |memory: &Memory| {
        decide(&View {
            pod: &pod,
            observed: &observed,
            memory,
            now,
            stop: None,
        })
    };
    assert_eq!(short(&look(&memory)), ["tear down"]);
    memory.volumes = Volumes::Gone;
    let last = look(&memory);
    assert!(last.stopped && last.actions.is_empty());
}

#[test]
fn init_containers_run_in_order_and_sidecars_only_have_to_start() {
    let pod = with_init();
    let running = |name| container(name, State::Running);
    assert_eq!(actions(&pod, vec![]), ["start i1 0"]);
    assert!(actions(&pod, vec![running("i1")]).is_empty());
    assert_eq!(actions(&pod, vec![exited("i1", 0)]), ["start side 0"]);
    assert_eq!(
        actions(&pod, vec![exited("i1", 0), running("side")]),
        ["start i2 0"]
    );
    let all = vec![exited("i1", 0), running("side"), exited("i2", 0)];
    assert_eq!(actions(&pod, all), ["start a 0"]);
    assert_eq!(actions(&pod, vec![exited("i1", 3)]), ["start i1 1"]);
}

#[test]
fn a_failed_init_container_of_a_never_restarting_pod_ends_it() {
    let pod = pod(serde_json::json!({"restartPolicy": "Never",
        "initContainers": [{"name": "i"}], "containers": [{"name": "a"}]}));
    assert_eq!(actions(&pod, vec![exited("i", 1)]), ["stop s"]);
}

#[test]
fn sidecars_of_a_pod_whose_init_container_failed_stop_and_do_not_run_again() {
    let pod = pod(
        serde_json::json!({"restartPolicy": "Never", "containers": [{"name": "a"}],
        "initContainers": [{"name": "side", "restartPolicy": "Always"}, {"name": "i"}]}),
    );
    let seen = vec![container("side", State::Running), exited("i", 1)];
    assert_eq!(actions(&pod, seen), ["kill side 30 after a"]);
    let seen = vec![exited("side", 0), exited("i", 1)];
    assert_eq!(actions(&pod, seen), ["stop s"]);
}

#[test]
fn a_dead_sidecar_of_a_running_pod_is_restarted_but_never_init_containers() {
    let seen = vec![exited("side", 1), container("a", State::Running)];
    assert_eq!(actions(&with_init(), seen), ["start side 1"]);
}

#[test]
fn sidecars_stop_when_the_work_is_done() {
    let pod = pod(serde_json::json!({"restartPolicy": "Never",
        "initContainers": [{"name": "side", "restartPolicy": "Always"}],
        "containers": [{"name": "a"}]}));
    let seen = vec![container("side", State::Running), exited("a", 0)];
    assert_eq!(actions(&pod, seen), ["kill side 30 after a"]);
}

#[test]
fn a_crashing_container_is_in_crash_loop_back_off() {
    let crash = CrashBackoff {
        hash: spec::content_hash(&Spec {
            name: "a".into(),
            ..Default::default()
        }),
        delay: std::time::Duration::from_secs(160),
        updated: at(NOW - 5),
    };
    let memory = Memory {
        crashes: [("a".to_owned(), crash)].into(),
        ..ready()
    };
    let seen = vec![exited("a", 1), container("b", State::Running)];
    let decision = see(&simple("Always"), seen, &memory, None);
    assert!(decision.actions.is_empty());
    assert_eq!(decision.wake, Some(at(NOW - 1 + 160)));
    let (name, waiting) = &decision.waiting[0];
    assert_eq!(
        (name.as_str(), waiting.reason.as_str()),
        ("a", "CrashLoopBackOff")
    );
    assert_eq!(
        waiting.message,
        "back-off 2m40s restarting failed container=a pod=p_ns(u)"
    );
}

#[test]
fn a_failed_start_waits_for_its_retry_and_is_shown_until_that_has_ended() {
    let reason = |reason: &str| Waiting {
        reason: reason.into(),
        message: "no".into(),
    };
    let failure = |retry_at, then| StartFailure {
        waiting: reason("ErrImagePull"),
        then,
        retry_at: at(retry_at),
        times: 1,
    };
    let mut memory = ready();
    memory.failures = [("a".to_owned(), failure(NOW + 10, None))].into();
    let others = || vec![container("b", State::Running)];
    let look = |memory: &Memory| see(&simple("Always"), others(), memory, None);
    let decision = look(&memory);
    assert!(decision.actions.is_empty() && decision.wake == Some(at(NOW + 10)));
    assert_eq!(decision.waiting[0].1.reason, "ErrImagePull");
    let then = Some((at(NOW - 1), reason("ImagePullBackOff")));
    memory.failures = [("a".to_owned(), failure(NOW, then))].into();
    for actions in [&["start a 0"][..], &[]] {
        let decision = look(&memory);
        assert_eq!(short(&decision), actions);
        assert_eq!(decision.waiting, [("a".into(), reason("ImagePullBackOff"))]);
        memory.running.insert(Task::Start("a".into()), 0);
    }
}

#[test]
fn failed_probes_and_changed_images_kill() {
    let probe = serde_json::json!({"terminationGracePeriodSeconds": 5});
    let pod = pod(serde_json::json!({"containers": [{"name": "a", "livenessProbe": probe}]}));
    let failed = Probes {
        liveness: Some(false),
        ..Default::default()
    };
    let memory = Memory {
        probes: [("a-id".to_owned(), failed)].into(),
        ..ready()
    };
    let decision = see(&pod, vec![container("a", State::Running)], &memory, None);
    let Action::Kill { message, grace, .. } = &decision.actions[0] else {
        panic!("{decision:?}")
    };
    assert_eq!(
        (message.as_str(), *grace),
        ("Container a failed liveness probe, will be restarted", 5)
    );
    let changed = Container {
        hash: "old".into(),
        ..container("a", State::Running)
    };
    let decision = see(&pod, vec![changed], &ready(), None);
    let Action::Kill { message, .. } = &decision.actions[0] else {
        panic!("{decision:?}")
    };
    assert_eq!(message, "Container a definition changed, will be restarted");
}

#[test]
fn a_deleted_pod_loses_containers_then_sidecars_then_sandbox_then_volumes() {
    let pod = with_init();
    let stop = Some(Stop {
        grace: 10,
        since: at(NOW - 4),
    });
    let running = |name| container(name, State::Running);
    let seen = vec![running("a"), running("side")];
    let all = ["kill a 10", "kill side 6 after a"];
    assert_eq!(short(&see(&pod, seen.clone(), &ready(), stop)), all);
    // A kill under way has the whole grace period: nothing is repeated while time passes.
    let kills = ["a", "side"].map(|name| Task::Kill(format!("{name}-id")));
    let under_way = Memory {
        running: kills.map(|kill| (kill, 10)).into(),
        ..ready()
    };
    let decision = see(&pod, seen, &under_way, stop);
    assert!(
        decision.actions.is_empty() && !decision.ended,
        "{decision:?}"
    );
    let seen = vec![exited("a", 143), running("side")];
    let left = see(&pod, seen, &ready(), stop);
    assert_eq!(short(&left), ["kill side 6 after a"]);
    let seen = vec![exited("a", 143), exited("side", 143)];
    assert_eq!(short(&see(&pod, seen, &ready(), stop)), ["stop s"]);
}

#[test]
fn each_sidecar_waits_for_the_main_containers_and_for_those_that_started_after_it() {
    let sidecar = |name: &str| serde_json::json!({"name": name, "restartPolicy": "Always"});
    let pod = pod(serde_json::json!({
        "initContainers": [sidecar("one"), {"name": "init"}, sidecar("two"), sidecar("three")],
        "containers": [{"name": "a"}, {"name": "b"}]}));
    let running = |name| container(name, State::Running);
    let seen = ["a", "one", "two", "three"].map(running).to_vec();
    let stop = Some(Stop {
        grace: 10,
        since: at(NOW),
    });
    let expected = [
        "kill a 10",
        "kill one 10 after a b two three",
        "kill two 10 after a b three",
        "kill three 10 after a b",
    ];
    assert_eq!(short(&see(&pod, seen, &ready(), stop)), expected);
    // An init container that still runs waits for nothing and holds up nothing.
    let seen = ["one", "init"].map(running).to_vec();
    let expected = ["kill one 10 after a b two three", "kill init 10"];
    assert_eq!(short(&see(&pod, seen, &ready(), stop)), expected);
}

#[test]
fn a_kill_is_repeated_only_with_less_time() {
    let running = vec![container("a", State::Running)];
    let memory = Memory {
        running: [(Task::Kill("a-id".into()), 30)].into(),
        ..ready()
    };
    let pod = simple("Always");
    assert!(
        see(
            &pod,
            running.clone(),
            &memory,
            Some(Stop {
                grace: 30,
                since: at(NOW)
            })
        )
        .actions
        .is_empty()
    );
    assert_eq!(
        short(&see(
            &pod,
            running,
            &memory,
            Some(Stop {
                grace: 1,
                since: at(NOW)
            })
        )),
        ["kill a 1"]
    );
}

#[test]
fn a_dead_sandbox_is_replaced_after_everything_in_it_ended() {
    let pod = simple("Always");
    let down = Sandbox {
        ready: false,
        ..sandbox()
    };
    let memory = ready();
    let now = at(NOW);
    let observed = Observed::new(vec![down.clone()], vec![container("a", State::Running)]);
    let view = View {
        pod: &pod,
        observed: &observed,
        memory: &memory,
        now,
        stop: None,
    };
    assert_eq!(short(&decide(&view)), ["kill a 30"]);
    let observed = Observed::new(vec![down], vec![exited("a", 137)]);
    let view = View {
        pod: &pod,
        observed: &observed,
        memory: &memory,
        now,
        stop: None,
    };
    assert_eq!(short(&decide(&view)), ["sandbox 1"]);
}

#[test]
fn ephemeral_containers_start_once() {
    let pod = pod(serde_json::json!({"containers": [{"name": "a"}],
        "ephemeralContainers": [{"name": "debug"}]}));
    let running = container("a", State::Running);
    assert_eq!(actions(&pod, vec![running.clone()]), ["start debug 0"]);
    assert!(actions(&pod, vec![running, exited("debug", 1)]).is_empty());
}

#[test]
fn a_restart_count_lost_by_the_runtime_is_taken_from_the_api() {
    let mut pod = simple("Always");
    pod.status = serde_json::from_value(serde_json::json!({"containerStatuses": [
        {"name": "a", "image": "x", "imageID": "", "ready": false, "restartCount": 4,
         "containerID": "mainstay://x"}]}))
    .unwrap();
    assert_eq!(
        actions(&pod, vec![container("b", State::Running)]),
        ["start a 5"]
    );
}

#[test]
fn a_container_with_a_post_start_hook_holds_back_the_ones_after_it() {
    let hook = serde_json::json!({"postStart": {"exec": {"command": ["true"]}}});
    let pod = pod(
        serde_json::json!({"containers": [{"name": "a", "lifecycle": hook},
        {"name": "b"}]}),
    );
    assert_eq!(actions(&pod, vec![]), ["start a 0"]);
    let memory = Memory {
        running: [(Task::Start("a".into()), 0)].into(),
        ..ready()
    };
    let hooking = vec![container("a", State::Created)];
    assert!(see(&pod, hooking, &memory, None).actions.is_empty());
    assert_eq!(
        actions(&pod, vec![container("a", State::Running)]),
        ["start b 0"]
    );
}

#[test]
fn a_resize_is_applied_in_place_or_by_a_restart() {
    let resources = serde_json::json!({"requests": {"cpu": "500m"}, "limits": {"memory": "64Mi"}});
    let with = |policy: &str| {
        pod(
            serde_json::json!({"containers": [{"name": "a", "resources": resources,
            "resizePolicy": [{"resourceName": "memory", "restartPolicy": policy}]}]}),
        )
    };
    let sized = |memory| Container {
        bounds: Some(Bounds {
            cpu_shares: 512,
            cpu_quota: 0,
            memory,
            memory_request: None,
        }),
        ..container("a", State::Running)
    };
    let right = 64 << 20;
    assert!(actions(&with("NotRequired"), vec![sized(right)]).is_empty());
    assert_eq!(actions(&with("NotRequired"), vec![sized(1)]), ["resize a"]);
    assert_eq!(
        actions(&with("RestartContainer"), vec![sized(1)]),
        ["kill a 30"]
    );
    // The pod's own limits follow when the container has ended.
    let shrinks = Memory {
        pod_grows: true,
        ..ready()
    };
    let look = |memory: &Memory, seen| {
        let decision = see(&with("RestartContainer"), vec![seen], memory, None);
        short(&decision)
    };
    assert_eq!(look(&shrinks, sized(1)), ["kill a 30"]);
    let killed = Memory {
        pod_grows: true,
        ..killed_to_restart(&sized(1))
    };
    assert_eq!(look(&killed, exited("a", 143)), ["start a 1", "resize"]);
}

#[test]
fn another_memory_request_alone_is_a_resize_too() {
    let look = |policy: &str, held: Option<i64>, was_resized: bool| {
        let resources = serde_json::json!({"requests": {"memory": "32Mi"}});
        let pod = pod(
            serde_json::json!({"containers": [{"name": "a", "resources": resources,
            "resizePolicy": [{"resourceName": "memory", "restartPolicy": policy}]}]}),
        );
        let wanted = Bounds::wanted(
            &pod,
            &pod.spec.as_ref().unwrap().containers[0],
            Default::default(),
        );
        let running = Container {
            bounds: Some(Bounds {
                memory_request: held,
                ..wanted
            }),
            ..container("a", State::Running)
        };
        let memory = Memory {
            was_resized,
            ..ready()
        };
        short(&see(&pod, vec![running], &memory, None))
    };
    assert_eq!(look("RestartContainer", Some(1), true), ["kill a 30"]);
    assert_eq!(look("NotRequired", Some(1), true), ["resize a"]);
    assert!(look("RestartContainer", Some(32 << 20), true).is_empty());
    // The container of an older kubelet, and one that was resized under an earlier kubelet.
    assert!(look("RestartContainer", None, true).is_empty());
    assert!(look("RestartContainer", Some(1), false).is_empty());
}

fn killed_to_restart(container: &Container) -> Memory {
    let replaced = Replaced {
        was: container.clone(),
        shown_until: None,
    };
    Memory {
        replaced: [(container.name.clone(), replaced)].into(),
        ..ready()
    }
}

#[test]
fn a_container_that_was_killed_to_run_again_does_whatever_code_it_ended_with() {
    for policy in ["Always", "OnFailure", "Never"] {
        let ended = exited("a", 0);
        let memory = killed_to_restart(&ended);
        let seen = vec![ended, container("b", State::Running)];
        let decision = see(&simple(policy), seen, &memory, None);
        assert_eq!(short(&decision), ["start a 1"], "{policy}");
        // Also if all other containers of the pod have ended.
        let seen = vec![exited("a", 0), exited("b", 0)];
        let decision = see(&simple(policy), seen, &memory, None);
        assert!(
            short(&decision).contains(&"start a 1".to_owned()),
            "{policy}"
        );
    }
}

#[test]
fn only_a_container_that_may_run_again_is_killed_to_do_so() {
    let failed = Probes {
        liveness: Some(false),
        ..Default::default()
    };
    let restarts = |policy: &str, hash: &str, probes: Probes| {
        let memory = Memory {
            probes: [("a-id".to_owned(), probes)].into(),
            ..ready()
        };
        let running = Container {
            hash: hash.into(),
            ..container("a", State::Running)
        };
        let seen = vec![running, container("b", State::Running)];
        let decision = see(&simple(policy), seen, &memory, None);
        match decision.actions.as_slice() {
            [Action::Kill { restart, .. }] => *restart,
            other => panic!("{other:?}"),
        }
    };
    assert!(restarts("OnFailure", "", failed));
    assert!(!restarts("Never", "", failed));
    assert!(restarts("Never", "another image", Probes::default()));
}

#[test]
fn a_container_killed_to_restart_waits_if_the_one_before_it_ended_recently() {
    let look = |older: Option<i64>, delay: Option<u64>| {
        let killed = exited("a", 143);
        let mut memory = killed_to_restart(&killed);
        if let Some(delay) = delay {
            let crash = CrashBackoff {
                hash: spec::content_hash(&spec::spec(&simple("Always")).containers[0]),
                delay: std::time::Duration::from_secs(delay),
                updated: at(NOW - 20),
            };
            memory.crashes.insert("a".into(), crash);
        }
        let older = older.map(|second| Container {
            id: "older".into(),
            created_at: at(5),
            finished_at: Some(at(second)),
            ..exited("a", 1)
        });
        let seen = [killed, container("b", State::Running)].into_iter();
        let decision = see(
            &simple("Always"),
            seen.chain(older).collect(),
            &memory,
            None,
        );
        (short(&decision), decision.wake)
    };
    let starts = (vec!["start a 1".to_owned()], None);
    // No container ended before it.
    assert_eq!(look(None, None), starts);
    // The backoff since the end of the one before it is over.
    assert_eq!(look(Some(NOW - 30), Some(20)), starts);
    // It is not: the backoff counts from the kill, also when the one before it was garbage-collected meanwhile.
    let waits = (vec![], Some(at(NOW - 1 + 300)));
    assert_eq!(look(Some(NOW - 30), Some(300)), waits);
    assert_eq!(look(None, Some(300)), waits);
}

#[test]
fn a_container_that_always_fails_its_liveness_probe_restarts_ever_more_rarely() {
    let (pod, mut memory, mut now) = (simple("Always"), ready(), NOW);
    let mut ended: Vec<Container> = Vec::new();
    let mut starts = Vec::new();
    for count in 0..12 {
        // It runs for 20 seconds; garbage collection keeps one ended container.
        now += 20;
        let killed = Container {
            id: format!("a-{count}"),
            created_at: at(now - 20),
            finished_at: Some(at(now)),
            ..exited("a", 143)
        };
        memory.replaced = killed_to_restart(&killed).replaced;
        ended.insert(0, killed);
        loop {
            let seen = { ended.iter().cloned() }.chain([container("b", State::Running)]);
            let observed = Observed::new(vec![sandbox()], seen.collect());
            let decision = decide(&View {
                pod: &pod,
                observed: &observed,
                memory: &memory,
                now: at(now),
                stop: None,
            });
            ended.truncate(1);
            if let [Action::Start { crash, .. }] = &decision.actions[..] {
                memory
                    .crashes
                    .extend(crash.clone().map(|crash| ("a".to_owned(), crash)));
                break;
            }
            now = decision.wake.expect("a time to wake").as_second();
        }
        starts.push(now - NOW);
    }
    // As upstream's kubelet, which restarts twice within the longest delay.
    let expected = [20, 40, 60, 80, 140, 240, 420, 740, 760, 1080, 1100, 1420];
    assert_eq!(starts, expected);
}

#[test]
fn an_end_that_restarts_the_whole_pod_stops_and_forgets_every_container() {
    let pod = pod(serde_json::json!({"restartPolicy": "Never",
        "initContainers": [{"name": "i"}],
        "containers": [{"name": "a"}, {"name": "b", "restartPolicy": "Never", "restartPolicyRules": [
            {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [7]}}]}]}));
    let init = exited("i", 0);
    let look = |containers| short(&see(&pod, containers, &ready(), None));
    let running = container("a", State::Running);
    assert_eq!(
        look(vec![init.clone(), running, exited("b", 7)]),
        ["kill a 30"]
    );
    let ended = exited("a", 143);
    let reset = look(vec![init.clone(), ended.clone(), exited("b", 7)]);
    assert_eq!(reset, ["reset i-id a-id b-id"]);
    assert_eq!(look(vec![]), ["start i 0"]);
    assert_eq!(look(vec![init, ended, exited("b", 1)]), ["stop s"]);
}

#[test]
fn volumes_that_cannot_be_taken_down_keep_the_pod() {
    let pod = simple("Never");
    let stop = Some(Stop {
        grace: 1,
        since: at(NOW),
    });
    let observed = Observed::default();
    let look = |volumes: Volumes| {
        let memory = Memory {
            volumes,
            ..Default::default()
        };
        decide(&View {
            pod: &pod,
            observed: &observed,
            memory: &memory,
            now: at(NOW),
            stop,
        })
    };
    let stuck = |second| Volumes::Stuck {
        retry_at: at(second),
        times: 1,
    };
    let waits = look(stuck(NOW + 5));
    assert!(waits.ended && !waits.stopped && waits.actions.is_empty());
    assert_eq!(waits.wake, Some(at(NOW + 5)));
    assert_eq!(short(&look(stuck(NOW))), ["tear down"]);
    assert!(look(Volumes::Gone).stopped);
}

#[test]
fn a_running_init_container_gets_its_new_size() {
    let pod = pod(
        serde_json::json!({"initContainers": [{"name": "i", "resources": {"limits": {"cpu": "1"}}}],
            "containers": [{"name": "a"}]}),
    );
    let seen = Container {
        bounds: Some(Bounds::default()),
        ..container("i", State::Running)
    };
    assert_eq!(short(&see(&pod, vec![seen], &ready(), None)), ["resize i"]);
}

#[test]
fn a_size_that_the_runtime_accepted_is_not_set_again_though_it_reports_another() {
    let pod = pod(serde_json::json!({"containers": [
        {"name": "a", "resources": {"limits": {"cpu": "1"}}}]}));
    let odd = Bounds {
        cpu_shares: 3,
        ..Default::default()
    };
    let seen = Container {
        bounds: Some(odd),
        ..container("a", State::Running)
    };
    let look = |memory: &Memory| short(&see(&pod, vec![seen.clone()], memory, None));
    assert_eq!(look(&ready()), ["resize a"]);
    let failed = Memory {
        resize_failure: Some(ResizeFailure {
            message: "refused".into(),
            retry_at: at(NOW + 5),
        }),
        ..ready()
    };
    let waits = see(&pod, vec![seen.clone()], &failed, None);
    assert!(waits.actions.is_empty() && waits.wake == Some(at(NOW + 5)));
    let wanted = Bounds::wanted(&pod, &spec::spec(&pod).containers[0], Default::default());
    let memory = Memory {
        sizes: [("a-id".to_owned(), wanted)].into(),
        ..ready()
    };
    assert!(look(&memory).is_empty());
}
