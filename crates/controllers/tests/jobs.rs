//! Edge cases of Jobs and CronJobs whose pods never run, with a real API server.

#![allow(clippy::unwrap_used)]

mod world;

use k8s_openapi::api::{
    batch::v1::{CronJob, Job, JobStatus},
    core::v1::{Event, Namespace, Pod},
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use world::World;

/// A Job whose pods complete at once, if there is a node.
fn job(spec: Value) -> Value {
    let mut job = json!({
        "metadata": {"name": "work"},
        "spec": {"template": {
            "metadata": {"labels": {"finishes": "yes"}},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "one"}]},
        }},
    });
    for (key, value) in spec.as_object().unwrap() {
        job["spec"][key] = value.clone();
    }
    job
}

async fn pods(world: &World) -> Vec<Pod> {
    let pods: Api<Pod> = world.api("default");
    pods.list(&ListParams::default()).await.unwrap().items
}

async fn until_pods(world: &World, what: &str, test: impl Fn(&[Pod]) -> bool) {
    let look = || async { Ok::<_, kube::Error>(test(&pods(world).await)) };
    world.until(what, look).await;
}

async fn until_status(world: &World, what: &str, test: impl Fn(&JobStatus) -> bool) {
    let jobs: Api<Job> = world.api("default");
    let look = || async {
        let status = jobs.get("work").await?.status.unwrap_or_default();
        Ok::<_, kube::Error>(test(&status))
    };
    world.until(what, look).await;
}

fn is(status: &JobStatus, kind: &str, reason: &str) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|c| c.type_ == kind && c.status == "True" && c.reason.as_deref() == Some(reason))
}

async fn patch(world: &World, patch: Value) {
    let jobs: Api<Job> = world.api("default");
    let params = PatchParams::default();
    jobs.patch("work", &params, &Patch::Merge(&patch))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_pods_never_had_a_node_replaces_them_suspends_and_ends() {
    let world = World::new().await;
    world
        .create::<Job>("default", job(json!({"parallelism": 2, "completions": 2})))
        .await;
    until_pods(&world, "two pods", |pods| pods.len() == 2).await;
    let first = pods(&world).await.remove(0).metadata.name.unwrap();
    let api: Api<Pod> = world.api("default");
    api.delete(&first, &DeleteParams::default()).await.unwrap();
    until_pods(&world, "another pod in its place", |pods| {
        let has = |pod: &Pod| pod.metadata.name.as_ref() == Some(&first);
        pods.len() == 2 && !pods.iter().any(has)
    })
    .await;
    until_status(&world, "the deleted one counts as failed", |status| {
        status.failed == Some(1) && status.active == Some(2)
    })
    .await;
    patch(&world, json!({"spec": {"suspend": true}})).await;
    until_pods(&world, "no pods of a suspended job", <[_]>::is_empty).await;
    until_status(&world, "it is suspended", |status| {
        is(status, "Suspended", "JobSuspended")
            && status.active.is_none()
            && status.failed == Some(1)
    })
    .await;
    patch(
        &world,
        json!({"spec": {"suspend": false, "activeDeadlineSeconds": 2}}),
    )
    .await;
    until_pods(&world, "two pods again", |pods| pods.len() == 2).await;
    until_status(&world, "it is too late", |status| {
        is(status, "Failed", "DeadlineExceeded") && status.terminating == Some(0)
    })
    .await;
    until_pods(&world, "nothing is left", <[_]>::is_empty).await;
    world.stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_goes_in_the_foreground_and_with_its_namespace_though_its_pods_never_ran() {
    let world = World::new().await;
    world
        .create::<Job>("default", job(json!({"parallelism": 2})))
        .await;
    until_pods(&world, "two pods", |pods| pods.len() == 2).await;
    let jobs: Api<Job> = world.api("default");
    jobs.delete("work", &DeleteParams::foreground())
        .await
        .unwrap();
    world
        .until("the job is gone", || async {
            Ok::<_, kube::Error>(jobs.get_opt("work").await?.is_none())
        })
        .await;
    assert!(pods(&world).await.is_empty(), "its pods went first");
    world.namespace("short").await;
    world.create::<Job>("short", job(json!({}))).await;
    let there: Api<Pod> = world.api("short");
    world
        .until("a pod", || async {
            let pods = there.list(&ListParams::default()).await?;
            Ok::<_, kube::Error>(!pods.items.is_empty())
        })
        .await;
    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    namespaces
        .delete("short", &DeleteParams::default())
        .await
        .unwrap();
    world
        .until("the namespace is gone", || async {
            Ok::<_, kube::Error>(namespaces.get_opt("short").await?.is_none())
        })
        .await;
    world.stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_success_policy_completes_a_job_whose_other_indexes_still_run() {
    let world = World::new().await;
    let spec = json!({
        "completionMode": "Indexed", "completions": 3, "parallelism": 3,
        "successPolicy": {"rules": [{"succeededIndexes": "1"}]},
    });
    world.create::<Job>("default", job(spec)).await;
    until_pods(&world, "three pods", |pods| pods.len() == 3).await;
    let index = "batch.kubernetes.io/job-completion-index";
    let one = pods(&world).await.into_iter().find(|pod| {
        let labels = pod.metadata.labels.as_ref().unwrap();
        labels[index] == "1"
    });
    let api: Api<Pod> = world.api("default");
    let succeeded = json!({"status": {"phase": "Succeeded"}});
    let name = one.unwrap().metadata.name.unwrap();
    let params = PatchParams::default();
    api.patch_status(&name, &params, &Patch::Merge(&succeeded))
        .await
        .unwrap();
    until_status(&world, "the job is complete", |status| {
        is(status, "Complete", "SuccessPolicy")
            && is(status, "SuccessCriteriaMet", "SuccessPolicy")
            && status.completed_indexes.as_deref() == Some("1")
            && status.failed.is_none()
            && status.terminating == Some(0)
    })
    .await;
    until_pods(&world, "only what succeeded is left", |pods| {
        pods.len() == 1 && pods[0].metadata.finalizers.iter().flatten().count() == 0
    })
    .await;
    world.stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_index_is_tried_as_often_as_its_limit_allows() {
    let world = World::new().await;
    let spec = json!({
        "completionMode": "Indexed", "completions": 2, "parallelism": 2,
        "backoffLimitPerIndex": 0, "maxFailedIndexes": 2,
    });
    world.create::<Job>("default", job(spec)).await;
    until_pods(&world, "two pods", |pods| pods.len() == 2).await;
    let api: Api<Pod> = world.api("default");
    let params = PatchParams::default();
    for (pod, phase) in pods(&world).await.into_iter().zip(["Failed", "Succeeded"]) {
        let ended = json!({"status": {"phase": phase}});
        let name = pod.metadata.name.unwrap();
        api.patch_status(&name, &params, &Patch::Merge(&ended))
            .await
            .unwrap();
    }
    until_status(&world, "the job has failed indexes", |status| {
        is(status, "Failed", "FailedIndexes")
            && status.failed == Some(1)
            && status.succeeded == Some(1)
            && status.failed_indexes.is_some()
    })
    .await;
    world.stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cron_job_that_can_never_run_gets_an_event() {
    let world = World::new().await;
    let template = job(json!({}))["spec"].clone();
    let cron = json!({
        "metadata": {"name": "never"},
        "spec": {"schedule": "59 23 31 2 *", "jobTemplate": {"spec": template}},
    });
    world.create::<CronJob>("default", cron).await;
    let events: Api<Event> = world.api("default");
    world
        .until("the event", || async {
            let events = events.list(&ListParams::default()).await?.items;
            Ok::<_, kube::Error>(events.iter().any(|event| {
                event.reason.as_deref() == Some("InvalidSchedule")
                    && event.involved_object.name.as_deref() == Some("never")
            }))
        })
        .await;
    world.stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cron_job_with_every_runs_and_keeps_running() {
    let world = World::new().await;
    world.pretend_node();
    let template = job(json!({}))["spec"].clone();
    let cron = json!({
        "metadata": {"name": "often"},
        "spec": {"schedule": "@every 1s", "jobTemplate": {"spec": template}},
    });
    world.create::<CronJob>("default", cron).await;
    let crons: Api<CronJob> = world.api("default");
    world
        .until("a job has run", || async {
            let status = crons.get("often").await?.status.unwrap_or_default();
            Ok::<_, kube::Error>(status.last_successful_time.is_some())
        })
        .await;
    world.stop.cancel();
}
