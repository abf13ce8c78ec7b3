//! Job: runs pods to completion, with the given parallelism and completions, and retries failures.
//! Every ended pod is counted exactly once: a finalizer keeps it until the status lists it.

mod backoff;
mod counted;
mod decide;
mod failurepolicy;
mod indexes;
mod orphans;
mod pod;
mod successpolicy;
mod template;

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use client::Api;
use k8s_openapi::api::{
    batch::v1::{Job, JobStatus},
    core::v1::Pod,
};
use kube::Resource;
use parking_lot::Mutex;
use reconcile::{Action, Controller, Error, Key, Kind, Recorder, Selector, Writer};

use crate::{
    claim,
    members::{self, Facts},
    podcontrol,
    pods::is_terminal,
    selecting::keys_selecting,
    shared::{Shared, rest_of_pods},
};
use backoff::Backoff;
use decide::{Done, Round, Step, View, is_finished};
use pod::FINALIZER;
pub(crate) use pod::is_tracked;

/// The name in [`crate::ALL`].
pub const NAME: &str = "job";
const ACCOUNT: &str = "job-controller";
const WORKERS: usize = 32;
/// How long a Job is delayed after a reconciliation: the status of a pod that ends soon is then written once.
const REST: Duration = Duration::from_millis(100);

struct Jobs {
    shared: Arc<Shared>,
    jobs: Writer<Job>,
    pods: Writer<Pod>,
    recorder: Recorder,
    /// Guards the failures of each unfinished Job by key, with the Job's uid.
    backoffs: Mutex<HashMap<Key, (String, Backoff)>>,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Jobs {
        shared: shared.clone(),
        jobs: shared.writer(ACCOUNT),
        pods: shared.writer(ACCOUNT),
        recorder: shared.recorder(ACCOUNT, ACCOUNT),
        backoffs: Mutex::default(),
    });
    let pods = controller.pods.cache();
    let jobs = controller.jobs.cache().clone();
    orphans::start(shared, jobs.clone(), controller.pods.clone());
    shared
        .controller(&controller)
        .skips(shared.metrics.job_skips.skips())
        .watches(controller.jobs.cache())
        .owns_if(
            concerns,
            &pods.only(|facts: &Facts| facts.concerns("Job")),
            "Job",
            move |pod| keys_selecting(&jobs, pod),
        )
        .workers(WORKERS)
        .rest(REST)
        .start();
}

/// Whether a change of a pod can change what its Job does or its status. Of an ended pod any condition may decide.
fn concerns(old: &Pod, new: &Pod) -> bool {
    members::concerns_workload(old, new) || is_terminal(new)
}

/// Whether another controller manages the Job (managedBy).
fn is_foreign(job: &Job) -> bool {
    let spec = job.spec.as_ref();
    let manager = spec.and_then(|spec| spec.managed_by.as_deref());
    manager.is_some_and(|manager| manager != "kubernetes.io/job-controller")
}

impl Controller for Jobs {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let job = self.jobs.cache().get(&key.namespace, &key.name);
        if let Some(job) = job.as_ref().filter(|job| is_foreign(job)) {
            let spec = job.spec.as_ref();
            let manager = spec.and_then(|spec| spec.managed_by.as_deref());
            let by = [("controller_name", manager.unwrap_or_default())];
            self.shared.metrics.jobs_external.add(by, 1);
        }
        let live = job.filter(|job| !is_foreign(job) && !is_finished(job));
        let Some(job) = live else {
            self.backoffs.lock().remove(key);
            return Ok(Action::Done);
        };
        if !has_known_mode(&job) {
            let text = "Skipped Job sync because completion mode is unknown";
            let about = job.object_ref(&());
            self.recorder
                .event(&about, Kind::Warning, "UnknownCompletionMode", text);
            return Ok(Action::Done);
        }
        let pods = self.pods(&job, key).await?;
        let uid = job.metadata.uid.clone().unwrap_or_default();
        let round = Round::new(&View {
            job: &job,
            pods: &pods,
            backoff: self.backoff(key, &uid),
            now: self.shared.now(),
        });
        let (begun, action) = (Instant::now(), round.step.action());
        let is_settled = matches!(round.step, Step::Nothing);
        let (done, outcome) = self.act(&job, &round.step).await;
        let (backoff, after) = (round.backoff, round.after);
        let conclusion = round.conclude(done);
        let written = self.write_status(&job, &conclusion.status).await;
        let is_ok = written.is_ok() && outcome.is_ok();
        let metrics = counted::Reconciled {
            metrics: &self.shared.metrics,
            job: &job,
        };
        metrics.round(action, is_ok, begun.elapsed());
        metrics.pods_created(done.created, outcome.is_ok());
        written?;
        metrics.ended(&conclusion.status);
        self.backoffs.lock().insert(key.clone(), (uid, backoff));
        for (kind, reason, text) in conclusion.events {
            self.recorder
                .event(&job.object_ref(&()), kind, &reason, text);
        }
        let released = conclusion.release.iter();
        let released = released.map(async |pod| {
            let released = release(&self.pods, pod).await;
            if released.is_ok() {
                metrics.released(pod);
            }
            released
        });
        reconcile::all(reconcile::join_bounded(released).await)?;
        outcome?;
        Ok(match after {
            Some(after) => Action::After(after),
            None if is_settled => rest_of_pods(pods.len()),
            None => Action::Done,
        })
    }
}

fn has_known_mode(job: &Job) -> bool {
    let mode = job
        .spec
        .as_ref()
        .and_then(|spec| spec.completion_mode.as_deref());
    matches!(mode, None | Some("NonIndexed" | "Indexed"))
}

impl Jobs {
    fn backoff(&self, key: &Key, uid: &str) -> Backoff {
        let backoffs = self.backoffs.lock();
        let known = backoffs.get(key).filter(|(owner, _)| owner == uid);
        known.map(|(_, backoff)| *backoff).unwrap_or_default()
    }

    async fn pods(&self, job: &Job, key: &Key) -> Result<Vec<Arc<Pod>>, Error> {
        let selector = Selector::from_label_selector(
            job.spec.as_ref().and_then(|spec| spec.selector.as_ref()),
        );
        let (cache, uid) = (self.pods.cache(), job.metadata.uid.as_deref());
        let candidates = members::candidates(cache, uid, &key.namespace, &selector);
        let api = Api::namespaced(self.shared.client(ACCOUNT), &key.namespace);
        let finalizer = Some(FINALIZER);
        claim::claim(job, &api, &selector, &self.pods, candidates, finalizer).await
    }

    /// Deletes or creates pods.
    async fn act(&self, job: &Job, step: &Step) -> (Done, Result<(), Error>) {
        let mut done = Done::default();
        let outcome = match step {
            Step::Nothing => Ok(()),
            Step::Create(new) => {
                let create = |number: usize| {
                    let pod = template::pod(job, &new[number]);
                    async move { podcontrol::create(&self.pods, &self.recorder, job, &pod).await }
                };
                let (created, outcome) = podcontrol::in_growing_batches(new.len(), create).await;
                done.created = created;
                outcome
            }
            Step::Stop(pods) => {
                let deleted = pods.iter().map(|pod| self.delete(job, pod));
                done.all(pods, reconcile::join_bounded(deleted).await)
            }
            Step::Remove(pods) => {
                let removed = pods.iter().map(|pod| self.remove(job, pod));
                done.all(pods, reconcile::join_bounded(removed).await)
            }
        };
        (done, outcome)
    }

    async fn delete(&self, job: &Job, pod: &Pod) -> Result<(), Error> {
        podcontrol::delete(&self.pods, &self.recorder, job, pod).await
    }

    /// Deletes a pod without counting it: the finalizer is removed first.
    async fn remove(&self, job: &Job, pod: &Pod) -> Result<(), Error> {
        release(&self.pods, pod).await?;
        self.delete(job, pod).await
    }

    async fn write_status(&self, job: &Job, status: &JobStatus) -> Result<(), Error> {
        if job.status.as_ref() == Some(status) {
            return Ok(());
        }
        let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
        let updated = Job {
            status: Some(status.clone()),
            ..job.clone()
        };
        self.jobs.update_status(namespace, &updated).await?;
        Ok(())
    }
}

impl Done {
    /// Records the deleted pods.
    fn all(&mut self, pods: &[Arc<Pod>], results: Vec<Result<(), Error>>) -> Result<(), Error> {
        for (pod, result) in pods.iter().zip(&results) {
            if result.is_ok() {
                self.delete(pod);
            }
        }
        reconcile::all(results)
    }
}

/// Removes the tracking finalizer, whatever other finalizers and concurrent writes there are.
async fn release(pods: &Writer<Pod>, pod: &Pod) -> Result<(), Error> {
    if !pod::is_tracked(pod) {
        return Ok(());
    }
    let patch = serde_json::json!({"metadata": {
        "uid": pod.metadata.uid,
        "$deleteFromPrimitiveList/finalizers": [FINALIZER],
    }});
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    match pods.patch_strategic(namespace, name, &patch).await {
        // Gone, or another pod of the same name.
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Ok(()),
    }
}
