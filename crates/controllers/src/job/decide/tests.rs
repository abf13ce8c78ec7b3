//! Tables of Job rounds: pods in, steps and conditions out.

use reconcile::Kind;
use serde_json::{Value, json};

use super::{conclude::Conclusion, *};
use crate::{
    job::pod::{FAILURES, FINALIZER, INDEX},
    pods::samples::at,
};

const NOW: i64 = 1000;

/// A Job with this spec, started at 900.
fn job(spec: Value) -> Job {
    let mut spec = spec;
    for (key, value) in [("parallelism", json!(2)), ("backoffLimit", json!(6))] {
        if spec.get(key).is_none() {
            spec[key] = value;
        }
    }
    if spec.get("template").is_none() {
        spec["template"] = json!({});
    }
    serde_json::from_value(json!({
        "metadata": {"name": "j", "namespace": "ns", "uid": "job"},
        "spec": spec,
        "status": {"startTime": at(900).to_string()},
    }))
    .unwrap()
}

/// `name phase [flags]`: `@3` is the index, `!2` its earlier failures, `deleted`, `ready`, `counted`
/// (has lost its finalizer), `at=950` when it ended, `exit=5` its container's code, `evicted`,
/// `unscheduled`.
fn pod(text: &str) -> Arc<Pod> {
    let mut words = text.split(' ');
    let (name, phase) = (words.next().unwrap(), words.next().unwrap());
    let mut pod = json!({
        "metadata": {
            "name": name, "namespace": "ns", "uid": name, "finalizers": [FINALIZER],
            "creationTimestamp": at(0).to_string(), "annotations": {},
        },
        "spec": {"nodeName": "n1", "containers": []},
        "status": {"phase": phase, "conditions": [], "containerStatuses": []},
    });
    let condition = |kind: &str, status: &str, second: i64| json!({"type": kind, "status": status, "lastTransitionTime": at(second).to_string()});
    let mut conditions = Vec::new();
    for word in words {
        match word {
            "deleted" => pod["metadata"]["deletionTimestamp"] = json!(at(0).to_string()),
            "counted" => pod["metadata"]["finalizers"] = json!([]),
            "unscheduled" => pod["spec"]["nodeName"] = Value::Null,
            "ready" => conditions.push(condition("Ready", "True", 1)),
            "evicted" => conditions.push(condition("DisruptionTarget", "True", 1)),
            _ => {
                if let Some(index) = word.strip_prefix('@') {
                    pod["metadata"]["annotations"][INDEX] = json!(index);
                } else if let Some(failures) = word.strip_prefix('!') {
                    pod["metadata"]["annotations"][FAILURES] = json!(failures);
                } else if let Some(second) = word.strip_prefix("at=") {
                    conditions.push(condition("Ready", "False", second.parse().unwrap()));
                } else if let Some(code) = word.strip_prefix("exit=") {
                    let code: i32 = code.parse().unwrap();
                    pod["status"]["containerStatuses"] = json!([{
                        "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                        "state": {"terminated": {"exitCode": code, "finishedAt": at(1).to_string()}},
                    }]);
                } else {
                    panic!("{word}");
                }
            }
        }
    }
    pod["status"]["conditions"] = json!(conditions);
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn names(pods: &[Arc<Pod>]) -> String {
    let mut names: Vec<_> = pods
        .iter()
        .map(|pod| pod.metadata.name.clone().unwrap())
        .collect();
    names.sort();
    names.join(" ")
}

fn round<'a>(job: &'a Job, pods: &'a [Arc<Pod>]) -> Round<'a> {
    Round::new(&View {
        job,
        pods,
        backoff: Backoff::default(),
        now: at(NOW),
    })
}

/// The step of a round.
fn step(job: &Job, pods: &[&str]) -> String {
    let pods: Vec<_> = pods.iter().map(|text| pod(text)).collect();
    let round = round(job, &pods);
    match &round.step {
        Step::Nothing => "nothing".into(),
        Step::Stop(pods) => format!("stop {}", names(pods)).trim().to_owned(),
        Step::Remove(pods) => format!("remove {}", names(pods)).trim().to_owned(),
        Step::Create(new) => {
            let text = |new: &NewPod| match (new.index, new.failures) {
                (None, _) => "-".to_owned(),
                (Some(index), None) => index.to_string(),
                (Some(index), Some((counted, 0))) => format!("{index}!{counted}"),
                (Some(index), Some((counted, ignored))) => format!("{index}!{counted}+{ignored}"),
            };
            let new: Vec<_> = new.iter().map(text).collect();
            format!("create {}", new.join(" "))
        }
    }
}

/// Runs a round in which every call succeeds, and writes its status into the Job.
fn run(job: &mut Job, pods: &[&str]) -> Conclusion {
    let pods: Vec<_> = pods.iter().map(|text| pod(text)).collect();
    let round = round(job, &pods);
    let mut done = Done::default();
    match &round.step {
        Step::Nothing => {}
        Step::Create(new) => done.created = new.len(),
        Step::Stop(pods) | Step::Remove(pods) => pods.iter().for_each(|pod| done.delete(pod)),
    }
    let conclusion = round.conclude(done);
    job.status = Some(conclusion.status.clone());
    conclusion
}

/// The conditions that are True, with their reasons.
fn conditions(job: &Job) -> String {
    let status = job.status.as_ref().unwrap();
    let conditions = status
        .conditions
        .iter()
        .flatten()
        .filter(|c| c.status == "True");
    let text =
        conditions.map(|c| format!("{}={}", c.type_, c.reason.as_deref().unwrap_or_default()));
    text.collect::<Vec<_>>().join(" ")
}

fn counts(job: &Job) -> (i32, i32, i32, i32, i32) {
    let status = job.status.as_ref().unwrap();
    let some = |count: Option<i32>| count.unwrap_or(0);
    (
        some(status.active),
        some(status.ready),
        some(status.terminating),
        some(status.succeeded),
        some(status.failed),
    )
}

#[test]
fn as_many_pods_run_as_parallelism_and_remaining_completions_allow() {
    let three = || job(json!({"completions": 3}));
    let queue = || job(json!({}));
    let indexed = || job(json!({"completions": 3, "completionMode": "Indexed"}));
    for (job, pods, expected) in [
        (three(), &[][..], "create - -"),
        (three(), &["a Running"], "create -"),
        (three(), &["a Running", "b Pending"], "nothing"),
        (
            three(),
            &["a Succeeded", "b Succeeded", "c Running"],
            "nothing",
        ),
        (three(), &["a Succeeded", "b Succeeded"], "create -"),
        (
            three(),
            &["a Running ready", "b Running", "c Pending unscheduled"],
            "remove c",
        ),
        (
            three(),
            &["a Succeeded", "b Succeeded", "c Succeeded", "d Running"],
            "remove d",
        ),
        // A work queue after one success: running pods may finish, no new ones are created.
        (queue(), &[], "create - -"),
        (queue(), &["a Succeeded", "b Running"], "nothing"),
        // Each index is assigned once, and again only after a failure.
        (indexed(), &[], "create 0 1"),
        (indexed(), &["a Running @1"], "create 0"),
        (indexed(), &["a Succeeded @0"], "create 1 2"),
        (indexed(), &["a Failed @0 at=900"], "create 0 1"),
        (indexed(), &["a Running @0", "b Running @0"], "remove a"),
        (indexed(), &["a Running @0", "b Running @7"], "remove b"),
        (indexed(), &["a Running @0", "b Running"], "remove b"),
        (
            job(json!({"completions": 9, "parallelism": 0})),
            &[],
            "nothing",
        ),
        (
            job(json!({"completions": 9, "parallelism": 0})),
            &["a Running"],
            "remove a",
        ),
        (
            job(json!({"suspend": true})),
            &["a Running", "b Running"],
            "remove a b",
        ),
    ] {
        assert_eq!(step(&job, pods), expected, "{pods:?}");
    }
}

#[test]
fn a_smaller_indexed_job_forgets_indexes_out_of_range() {
    let mut small = job(json!({"completions": 2, "parallelism": 2, "completionMode": "Indexed"}));
    small.status.as_mut().unwrap().completed_indexes = Some("0,3-5".into());
    assert_eq!(step(&small, &["a Running @1", "b Running @4"]), "remove b");
    run(&mut small, &["a Succeeded @1"]);
    assert_eq!(conditions(&small), "SuccessCriteriaMet=CompletionsReached");
    let status = small.status.unwrap();
    assert_eq!(status.completed_indexes.as_deref(), Some("0,1"));
    assert_eq!(status.succeeded, Some(2));
}

#[test]
fn an_ended_pod_is_named_first_and_counted_when_it_is_released() {
    let mut job = job(json!({"completions": 10}));
    for _ in 0..3 {
        let conclusion = run(&mut job, &["a Succeeded", "b Failed"]);
        assert_eq!(names(&conclusion.release), "a b");
        assert_eq!(counts(&job).3, 0, "not released yet");
    }
    let uncounted = job
        .status
        .as_ref()
        .unwrap()
        .uncounted_terminated_pods
        .clone()
        .unwrap();
    assert_eq!(uncounted.succeeded.unwrap(), ["a"]);
    assert_eq!(uncounted.failed.unwrap(), ["b"]);
    for _ in 0..3 {
        run(&mut job, &["a Succeeded counted", "b Failed counted"]);
        let (_, _, _, succeeded, failed) = counts(&job);
        assert_eq!((succeeded, failed), (1, 1));
    }
    run(&mut job, &[]);
    assert_eq!(counts(&job).3, 1, "also when the pods are gone");
}

#[test]
fn a_complete_job_waits_for_its_last_count_and_its_last_pod() {
    let mut done = job(json!({"completions": 1, "parallelism": 1}));
    let conclusion = run(&mut done, &["a Succeeded"]);
    assert_eq!(conditions(&done), "SuccessCriteriaMet=CompletionsReached");
    assert!(conclusion.events.is_empty());
    run(
        &mut done,
        &["a Succeeded counted", "b Running deleted counted"],
    );
    assert_eq!(
        conditions(&done),
        "SuccessCriteriaMet=CompletionsReached",
        "b still runs"
    );
    let conclusion = run(&mut done, &["a Succeeded counted"]);
    assert_eq!(
        conditions(&done),
        "SuccessCriteriaMet=CompletionsReached Complete=CompletionsReached"
    );
    assert_eq!(conclusion.events[0].1, "Completed");
    assert!(done.status.as_ref().unwrap().completion_time.is_some());
    let mut empty = job(json!({"completions": 0}));
    run(&mut empty, &[]);
    assert!(conditions(&empty).ends_with("Complete=CompletionsReached"));
}

#[test]
fn deleted_pods_count_as_failed_and_are_released_also_when_they_never_had_a_node() {
    let mut plain = job(json!({"completions": 3}));
    let conclusion = run(
        &mut plain,
        &["a Pending deleted unscheduled", "b Running deleted"],
    );
    assert_eq!(names(&conclusion.release), "a b");
    run(&mut plain, &["b Running deleted counted"]);
    assert_eq!(counts(&plain), (2, 0, 1, 0, 2));
    // With podReplacementPolicy Failed, terminating pods are neither counted nor replaced before
    // they have failed.
    let mut patient = job(json!({"completions": 3, "podReplacementPolicy": "Failed"}));
    let pods = ["a Running deleted", "b Running"];
    assert_eq!(step(&patient, &pods), "nothing");
    assert!(run(&mut patient, &pods).release.is_empty());
    assert_eq!(counts(&patient), (1, 0, 1, 0, 0));
    assert_eq!(
        step(&patient, &["a Failed deleted at=900", "b Running"]),
        "create -"
    );
    let indexed = json!({"completions": 3, "completionMode": "Indexed", "parallelism": 3,
        "podReplacementPolicy": "Failed"});
    assert_eq!(step(&job(indexed), &["a Running deleted @0"]), "create 1 2");
}

#[test]
fn a_job_that_is_deleted_makes_nothing_and_releases_everything() {
    let mut leaving = job(json!({"completions": 3}));
    leaving.metadata.deletion_timestamp = Some(Time(at(1)));
    let pods = ["a Running", "b Pending unscheduled", "c Failed"];
    assert_eq!(step(&leaving, &pods), "nothing");
    assert_eq!(names(&run(&mut leaving, &pods).release), "a b c");
    assert_eq!(conditions(&leaving), "");
}

#[test]
fn a_job_fails_for_the_reason_that_upstream_gives() {
    let never = json!({"completions": 2, "backoffLimit": 1});
    let restarts = json!({"completions": 2, "backoffLimit": 2,
        "template": {"spec": {"restartPolicy": "OnFailure", "containers": []}}});
    let late = json!({"completions": 2, "activeDeadlineSeconds": 100});
    let in_time = json!({"completions": 2, "activeDeadlineSeconds": 101});
    let ever = json!({"completions": 2, "activeDeadlineSeconds": i64::MAX});
    let asleep = json!({"completions": 2, "activeDeadlineSeconds": 10, "suspend": true});
    for (spec, pods, expected) in [
        (
            never.clone(),
            &["a Failed", "b Failed"][..],
            "FailureTarget=BackoffLimitExceeded",
        ),
        (never.clone(), &["a Failed", "b Running"], ""),
        (
            never,
            &["a Failed", "b Running deleted"],
            "FailureTarget=BackoffLimitExceeded",
        ),
        (restarts, &["a Failed", "b Failed"], ""),
        (late, &["a Running"], "FailureTarget=DeadlineExceeded"),
        (in_time, &["a Running"], ""),
        (ever, &["a Running"], ""),
        (asleep, &["a Running"], "Suspended=JobSuspended"),
    ] {
        let mut job = job(spec.clone());
        run(&mut job, pods);
        assert_eq!(conditions(&job), expected, "{spec} {pods:?}");
    }
}

#[test]
fn restarts_in_place_count_towards_the_backoff_limit() {
    let restarted = |count: i32| {
        let mut pod = (*pod("a Running")).clone();
        let status = json!([{"name": "c", "image": "", "imageID": "", "ready": false,
            "restartCount": count}]);
        pod.status.as_mut().unwrap().container_statuses = serde_json::from_value(status).unwrap();
        [Arc::new(pod)]
    };
    for (limit, count, fails) in [(0, 0, false), (0, 1, true), (2, 1, false), (2, 2, true)] {
        for (policy, fails) in [("OnFailure", fails), ("Never", false)] {
            let job = job(json!({"completions": 1, "backoffLimit": limit,
                "template": {"spec": {"restartPolicy": policy, "containers": []}}}));
            let pods = restarted(count);
            assert_eq!(
                round(&job, &pods).end.is_some(),
                fails,
                "{limit} {count} {policy}"
            );
        }
    }
}

#[test]
fn a_failed_job_stops_counts_and_outlives_its_pods() {
    let mut failed = job(json!({"completions": 3, "backoffLimit": 0, "parallelism": 3}));
    let pods = ["a Failed", "b Running ready", "c Succeeded"];
    assert_eq!(step(&failed, &pods), "stop b");
    let conclusion = run(&mut failed, &pods);
    assert_eq!(
        names(&conclusion.release),
        "a b c",
        "what is stopped is released, too"
    );
    assert_eq!(counts(&failed), (0, 0, 1, 0, 0));
    run(&mut failed, &["b Running deleted counted"]);
    assert_eq!(conditions(&failed), "FailureTarget=BackoffLimitExceeded");
    assert_eq!(counts(&failed), (0, 0, 1, 1, 2), "b did not succeed");
    let conclusion = run(&mut failed, &[]);
    assert_eq!(
        conditions(&failed),
        "FailureTarget=BackoffLimitExceeded Failed=BackoffLimitExceeded"
    );
    let text = "Job has reached the specified backoff limit".to_owned();
    let event = (Kind::Warning, "BackoffLimitExceeded".to_owned(), text);
    assert_eq!(conclusion.events, [event]);
}

#[test]
fn a_job_whose_pods_cannot_be_stopped_is_not_over() {
    let mut stuck = job(json!({"completions": 3, "backoffLimit": 0}));
    let pods = [pod("a Failed"), pod("b Running")];
    let conclusion = round(&stuck, &pods).conclude(Done::default());
    stuck.status = Some(conclusion.status);
    assert_eq!(conditions(&stuck), "");
    assert_eq!(names(&conclusion.release), "a");
}

#[test]
fn the_first_finished_condition_of_a_job_is_kept() {
    // Success criteria met: later failures change nothing, and both targets are never set.
    let mut met = job(json!({"completions": 1, "backoffLimit": 0}));
    run(&mut met, &["a Succeeded"]);
    run(
        &mut met,
        &["a Succeeded counted", "b Failed", "c Failed evicted"],
    );
    assert_eq!(conditions(&met), "SuccessCriteriaMet=CompletionsReached");
    run(&mut met, &["b Failed counted"]);
    assert_eq!(counts(&met), (0, 0, 0, 1, 2));
    assert!(conditions(&met).ends_with("Complete=CompletionsReached"));
    // The Job fails: pods that were stopped count as failed, whatever their exit code.
    let mut failing = job(json!({"completions": 1, "backoffLimit": 0}));
    run(&mut failing, &["a Failed", "b Running"]);
    run(&mut failing, &["b Succeeded"]);
    assert_eq!(conditions(&failing), "FailureTarget=BackoffLimitExceeded");
    run(&mut failing, &[]);
    assert!(conditions(&failing).ends_with("Failed=BackoffLimitExceeded"));
    assert_eq!(counts(&failing), (0, 0, 0, 0, 2));
}

#[test]
fn pods_evicted_after_the_criteria_were_met_do_not_hold_the_job() {
    let mut met = job(
        json!({"completions": 3, "parallelism": 3, "completionMode": "Indexed",
        "successPolicy": {"rules": [{"succeededIndexes": "0"}]}}),
    );
    let pods = ["a Succeeded @0", "b Running @1", "c Running @2"];
    assert_eq!(step(&met, &pods), "stop b c");
    let conclusion = run(&mut met, &pods);
    assert_eq!(names(&conclusion.release), "a b c");
    assert_eq!(conditions(&met), "SuccessCriteriaMet=SuccessPolicy");
    assert_eq!(counts(&met), (0, 0, 2, 1, 0));
    run(
        &mut met,
        &["b Failed @1 counted", "c Running @2 deleted counted"],
    );
    assert_eq!(conditions(&met), "SuccessCriteriaMet=SuccessPolicy");
    run(&mut met, &["b Failed @1 counted"]);
    assert_eq!(
        conditions(&met),
        "SuccessCriteriaMet=SuccessPolicy Complete=SuccessPolicy"
    );
    assert_eq!(
        counts(&met),
        (0, 0, 0, 1, 0),
        "what was stopped did not fail"
    );
}

#[test]
fn the_failure_policy_decides_about_pod_failures() {
    let with = |action: &str, more: Value| {
        let mut spec = json!({"completions": 4, "parallelism": 2, "backoffLimit": 0,
        "podFailurePolicy": {"rules": [{
            "action": action, "onExitCodes": {"operator": "In", "values": [5]}}, {
            "action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
        }]}});
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        job(spec)
    };
    let plain = json!({});
    let per_index =
        json!({"completionMode": "Indexed", "backoffLimit": null, "backoffLimitPerIndex": 3});
    for (job, pods, expected, failed) in [
        (
            with("FailJob", plain.clone()),
            &["a Failed exit=5"][..],
            "FailureTarget=PodFailurePolicy",
            1,
        ),
        (
            with("FailJob", plain.clone()),
            &["a Failed exit=6"],
            "FailureTarget=BackoffLimitExceeded",
            1,
        ),
        (with("FailJob", plain.clone()), &["a Running exit=5"], "", 0),
        (
            with("Ignore", plain.clone()),
            &["a Failed exit=5", "b Failed evicted"],
            "",
            0,
        ),
        (
            with("Count", plain.clone()),
            &["a Failed exit=5"],
            "FailureTarget=BackoffLimitExceeded",
            1,
        ),
        (with("FailIndex", per_index), &["a Failed exit=5 @1"], "", 1),
    ] {
        let mut job = job;
        let conclusion = run(&mut job, pods);
        assert_eq!(conditions(&job), expected, "{pods:?}");
        let uncounted = conclusion.status.uncounted_terminated_pods.unwrap();
        assert_eq!(
            uncounted.failed.unwrap_or_default().len(),
            failed,
            "{pods:?}"
        );
        let released = conclusion.release.len();
        let ended = pods.iter().filter(|text| text.contains("Failed")).count();
        assert_eq!(released, ended, "{pods:?}");
    }
    let per_index =
        json!({"completionMode": "Indexed", "backoffLimit": null, "backoffLimitPerIndex": 3});
    let mut index = with("FailIndex", per_index);
    run(&mut index, &["a Failed exit=5 @1"]);
    assert_eq!(index.status.unwrap().failed_indexes.as_deref(), Some("1"));
}

#[test]
fn failures_are_limited_for_each_index() {
    let spec = |more: &[(&str, Value)]| {
        let mut spec = json!({"completions": 3, "parallelism": 3, "completionMode": "Indexed",
            "backoffLimit": null, "backoffLimitPerIndex": 1});
        for (key, value) in more {
            spec[*key] = value.clone();
        }
        job(spec)
    };
    // The next pod of an index inherits its failure count; the failed pod is kept until then.
    let mut limited = spec(&[]);
    let first = [
        "a Failed @0 !0 at=900",
        "b Running @1 !0",
        "c Running @2 !0",
    ];
    assert_eq!(step(&limited, &first), "create 0!1");
    assert!(run(&mut limited, &first).release.is_empty());
    let replaced = [
        "a Failed @0 !0 at=900",
        "b Running @1 !0",
        "c Running @2 !0",
        "d Running @0 !1",
    ];
    assert_eq!(names(&run(&mut limited, &replaced).release), "a");
    // The backoff is ten seconds.
    assert_eq!(
        step(
            &spec(&[]),
            &["a Failed @0 !0 at=995", "b Running @1", "c Running @2"]
        ),
        "nothing"
    );
    assert_eq!(
        step(&spec(&[]), &["a Failed @0 !0 at=995"]),
        "create 1!0 2!0"
    );
    // The second failure exceeds the limit.
    let mut failed = spec(&[]);
    let pods = [
        "d Failed @0 !1 at=900",
        "b Running @1 !0",
        "c Succeeded @2 !0",
    ];
    assert_eq!(step(&failed, &pods), "nothing");
    assert_eq!(names(&run(&mut failed, &pods).release), "c d");
    let status = failed.status.as_ref().unwrap();
    assert_eq!(status.failed_indexes.as_deref(), Some("0"));
    assert_eq!(status.completed_indexes.as_deref(), Some("2"));
    // All indexes have ended: the Job fails, and gets the condition Failed when all are counted.
    run(&mut failed, &["b Succeeded @1 !0"]);
    assert_eq!(conditions(&failed), "FailureTarget=FailedIndexes");
    run(&mut failed, &[]);
    assert!(conditions(&failed).ends_with("Failed=FailedIndexes"));
    assert_eq!(counts(&failed), (0, 0, 0, 2, 1));
    let mut most = spec(&[("maxFailedIndexes", json!(0))]);
    run(&mut most, &["d Failed @0 !1 at=900", "b Running @1 !0"]);
    assert_eq!(conditions(&most), "FailureTarget=MaxFailedIndexesExceeded");
    let none = spec(&[("backoffLimitPerIndex", json!(0))]);
    assert_eq!(step(&none, &["a Failed @0 !0 at=900"]), "create 1!0 2!0");
}

#[test]
fn ignored_failures_of_an_index_are_carried_on_without_counting() {
    let ignoring = job(
        json!({"completions": 1, "parallelism": 1, "completionMode": "Indexed",
        "backoffLimit": null, "backoffLimitPerIndex": 1,
        "podFailurePolicy": {"rules": [{"action": "Ignore",
            "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]}}),
    );
    assert_eq!(
        step(&ignoring, &["a Failed @0 !1 at=900 evicted"]),
        "create 0!1+1"
    );
}

#[test]
fn failures_make_a_job_wait_before_it_tries_again() {
    let retrying = job(json!({"completions": 2, "parallelism": 1}));
    let pods = [pod("a Failed at=995")];
    let waiting = round(&retrying, &pods);
    assert!(matches!(waiting.step, Step::Nothing));
    assert_eq!(waiting.after, Some(Duration::from_secs(5)));
    let counted = [pod("a Failed counted at=995")];
    let again = Round::new(&View {
        job: &retrying,
        pods: &counted,
        backoff: waiting.backoff,
        now: at(NOW),
    });
    assert!(
        matches!(again.step, Step::Nothing),
        "also when the pod is counted"
    );
    assert_eq!(step(&retrying, &["a Failed at=990"]), "create -");
}

#[test]
fn a_suspended_job_has_a_condition_and_restarts_when_resumed() {
    let mut paused = job(json!({"completions": 3, "suspend": true, "activeDeadlineSeconds": 10}));
    let conclusion = run(&mut paused, &["a Running ready"]);
    assert_eq!(conclusion.events[0].1, "Suspended");
    assert_eq!(conditions(&paused), "Suspended=JobSuspended");
    assert_eq!(counts(&paused), (0, 0, 1, 0, 0));
    assert_eq!(paused.status.as_ref().unwrap().start_time, None);
    assert!(
        conclusion.release.is_empty(),
        "removed before it was deleted, and never counted"
    );
    assert!(run(&mut paused, &[]).events.is_empty());
    paused.spec.as_mut().unwrap().suspend = Some(false);
    let conclusion = run(&mut paused, &[]);
    assert_eq!(conclusion.events[0].1, "Resumed");
    assert_eq!(conditions(&paused), "");
    assert_eq!(
        paused.status.as_ref().unwrap().start_time,
        Some(Time(at(NOW)))
    );
    let before = paused.status.clone();
    run(&mut paused, &["b Running", "c Running"]);
    assert_eq!(
        paused.status, before,
        "nothing has changed, nothing is written"
    );
}

#[test]
fn a_status_names_no_more_than_five_hundred_pods() {
    let mut large = job(json!({"completions": 2000, "parallelism": 600}));
    let texts: Vec<String> = (0..600)
        .map(|number| format!("p{number} Succeeded"))
        .collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    assert_eq!(run(&mut large, &texts).release.len(), 500);
}
