//! The worker of one pod: waits for messages, finished tasks and timers, observes the runtime,
//! decides, acts, and writes the status. It ends when the pod is stopped and no source has it any more.
//!
//! All tasks belong to the worker and end with it, so that a pod has one owner and a long image pull
//! delays neither a readiness change nor a deletion. They run beside each other: the write of a status holds
//! up no start. The pod's state is its [`Life`]; [`decide`]
//! chooses the next actions and does not depend on the worker.

mod actions;
mod admission;
mod announce;
mod life;
mod mounts;
mod patch;
mod probing;
mod report;
mod resize_events;
mod runtime_view;
mod shrink;
mod size;
mod tasks;
mod timing;
mod view;

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use tokio::{
    sync::{mpsc, watch},
    task::{JoinError, JoinSet},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::{
    core::Core,
    pod::{
        decide::{Decision, View, decide},
        memory::{Memory, Task, Volumes},
        observed::Observed,
        spec,
        status::{self, Facts, Failure, is_terminal},
    },
    registry::{Message, PublishedPod},
    volumes,
};
use actions::Done;
pub(crate) use admission::has_begun;
use life::{Change, Life};
use mounts::Mounts;
use probing::Probing;
use report::Report;
use runtime_view::RuntimeView;
use size::Size;
pub(crate) use size::allocated;
use timing::Timing;

/// One pod's worker.
pub(crate) struct Worker {
    core: Arc<Core>,
    subject: Subject,
    inbox: mpsc::UnboundedReceiver<Message>,
    /// Running tasks; [`Memory::running`] has their keys.
    work: JoinSet<Done>,
    life: Life,
    memory: Memory,
    runtime: RuntimeView,
    mounts: Mounts,
    probing: Probing,
    report: Report,
    timing: Timing,
    /// Whether this kubelet has made the pod's sandbox and cgroup.
    has_cgroup: bool,
    /// Cancelled when the pod begins to stop.
    starts: CancellationToken,
    /// The names of containers that run or are being started: others wait for them to end.
    alive: watch::Sender<BTreeSet<String>>,
    /// What begins when this pod has ended.
    next: Next,
}

/// A static pod that its file describes again while it still ends: the same file gives it the same uid.
#[derive(Default)]
struct Next {
    pod: Option<Arc<Pod>>,
    /// Its mirror pod.
    shown: Option<Arc<Pod>>,
}

impl Next {
    /// Takes a message to the worker of a pod that no source has.
    fn take(&mut self, message: &Message) {
        match message {
            Message::Pod(pod) if spec::is_static(pod) => self.pod = Some(pod.clone()),
            Message::Removed => *self = Self::default(),
            Message::Mirror(shown) => self.shown.clone_from(shown),
            _ => {}
        }
    }
}

/// The pod of a worker.
struct Subject {
    uid: String,
    /// The pod as received from its source.
    pod: Arc<Pod>,
    /// The allocated resources.
    size: Size,
    /// The object in the API: the pod itself, or a static pod's mirror pod.
    shown: Option<Arc<Pod>>,
    /// Whether a source still has the pod.
    wanted: bool,
}

impl Worker {
    /// A worker for a pod that a source has.
    pub(crate) fn new(
        core: Arc<Core>,
        pod: Arc<Pod>,
        inbox: mpsc::UnboundedReceiver<Message>,
    ) -> Self {
        let shown = (!spec::is_static(&pod)).then(|| pod.clone());
        let mut worker = Self::with(core, pod, inbox, shown, true);
        let at_start = worker.core.uids_at_start.get();
        let is_new = at_start.is_some_and(|uids| !uids.contains(&worker.subject.uid));
        // The first observation also asks for the runtime's name.
        if is_new && !worker.core.runtime.known_name().is_empty() {
            // Whatever the runtime has of this pod is made by this worker.
            worker.runtime.set(Observed::default(), worker.core.now());
        }
        worker
    }

    /// A worker for a pod that only the runtime knows: it stops and removes the pod.
    pub(crate) fn of_orphan(
        core: Arc<Core>,
        pod: Arc<Pod>,
        inbox: mpsc::UnboundedReceiver<Message>,
    ) -> Self {
        Self::with(core, pod, inbox, None, false)
    }

    fn with(
        core: Arc<Core>,
        pod: Arc<Pod>,
        inbox: mpsc::UnboundedReceiver<Message>,
        shown: Option<Arc<Pod>>,
        wanted: bool,
    ) -> Self {
        let pod_grows = size::has_condition(&pod, "PodResizeInProgress");
        Self {
            timing: Timing::new(pod.status.as_ref().unwrap_or(&PodStatus::default())),
            report: match has_begun(&pod) {
                true => Report::new(pod.status.clone().unwrap_or_default()),
                false => Report::of_new_pod(pod.status.clone().unwrap_or_default(), core.now()),
            },
            subject: Subject {
                uid: spec::uid(&pod).to_owned(),
                size: Size::from_pod(&pod, &core.pod_dir(spec::uid(&pod))),
                pod,
                shown,
                wanted,
            },
            memory: Memory {
                longest_restart_delay: Some(core.settings().longest_restart_delay()),
                cfs: core.settings().cfs_quota(),
                pod_grows,
                was_resized: pod_grows,
                ..Memory::default()
            },
            core,
            inbox,
            work: JoinSet::new(),
            life: Life::Arrived,
            runtime: RuntimeView::default(),
            mounts: Mounts::default(),
            probing: Probing::default(),
            has_cgroup: false,
            starts: CancellationToken::new(),
            alive: watch::Sender::default(),
            next: Next::default(),
        }
    }

    /// Runs until the pod is stopped and no source has it; then removes the pod's resources.
    pub(crate) async fn run(mut self) {
        loop {
            self.run_to_end().await;
            match std::mem::take(&mut self.next) {
                Next {
                    pod: Some(pod),
                    shown,
                } => self = self.begin_again(pod, shown),
                Next { pod: None, .. } => break,
            }
        }
        Box::pin(self.clean_up()).await;
        info!(pod = spec::described(&self.subject.pod), "pod removed");
    }

    /// The worker of the same pod, which its source has again. What the runtime has of it stays, so that its restarts
    /// are counted on.
    fn begin_again(mut self, pod: Arc<Pod>, shown: Option<Arc<Pod>>) -> Self {
        self.probing.stop();
        let lives = &self.core.metrics.lives;
        lives.restarted(spec::is_static(&pod));
        let shown = shown.or_else(|| self.subject.shown.take());
        let Self { core, inbox, .. } = self;
        Self::with(core, pod, inbox, shown, true)
    }

    /// Runs until the pod is stopped and no source has it.
    async fn run_to_end(&mut self) {
        debug!(
            pod = spec::described(&self.subject.pod),
            "pod worker started"
        );
        loop {
            let begun = Instant::now();
            // Boxed: the future of an idle worker does not contain the state of a step.
            let wake = Box::pin(self.step()).await;
            let took = begun.elapsed();
            self.timing.stepped(&self.core.metrics, &self.life, took);
            if !self.subject.wanted && matches!(self.life, Life::Stopped(_)) {
                break;
            }
            self.wait(wake).await;
        }
    }

    /// Waits for a message, a finished task, or the time of the next evaluation.
    async fn wait(&mut self, wake: Option<Timestamp>) {
        let clock = self.core.config.clock.clone();
        let alarm = async move {
            match wake {
                Some(at) => {
                    let wait = Duration::try_from(at - clock.now()).unwrap_or_default();
                    clock.sleep(wait).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            message = self.inbox.recv() => match message {
                Some(message) => self.take(message),
                // The registry dropped this worker: another one has taken over.
                None => std::future::pending().await,
            },
            Some(done) = self.work.join_next() => self.end_task(done),
            () = alarm => {}
        }
        // Handle everything that is queued before the next evaluation.
        while let Ok(message) = self.inbox.try_recv() {
            self.take(message);
        }
        while let Some(done) = self.work.try_join_next() {
            self.end_task(done);
        }
    }

    /// Handles the end of a task. A panic in it is one of the worker.
    fn end_task(&mut self, done: Result<Done, JoinError>) {
        match done {
            Ok(done) => self.finish(done),
            Err(error) => {
                if let Ok(panic) = error.try_into_panic() {
                    std::panic::resume_unwind(panic);
                }
            }
        }
    }

    fn take(&mut self, message: Message) {
        if !self.subject.wanted {
            self.next.take(&message);
            if matches!(message, Message::Pod(_) | Message::Mirror(Some(_)))
                && self.next.pod.is_some()
            {
                return;
            }
        }
        match message {
            Message::Pod(pod) => {
                self.timing.updated();
                self.take_pod(pod);
            }
            Message::Removed => {
                self.subject.wanted = false;
                // As upstream, a pod without an object does not count, although its containers may still be stopping.
                self.core.release(&self.subject.uid);
            }
            Message::Mirror(mirror) => self.take_mirror(mirror),
            Message::Runtime => self.runtime.ask_again(),
            Message::Snapshot(snapshot) => self.runtime.take(*snapshot),
            Message::Sources => {
                self.memory.retry_after_sources_changed();
                self.mounts.refresh_soon();
            }
            // The next evaluation retries.
            Message::Room => {}
            Message::Probe(result) => self.probing.record(&result, &mut self.memory),
            Message::Fail {
                reason,
                message,
                grace,
            } => self.fail_within(reason, message, grace),
        }
    }

    fn take_mirror(&mut self, mirror: Option<Arc<Pod>>) {
        let uid =
            |mirror: &Option<Arc<Pod>>| mirror.as_deref().map(|pod| spec::uid(pod).to_owned());
        if uid(&mirror) != uid(&self.subject.shown) {
            self.report.forget_writes();
        }
        self.subject.shown = mirror;
    }

    fn take_pod(&mut self, pod: Arc<Pod>) {
        let subject = &mut self.subject;
        if spec::uid(&pod) != subject.uid {
            return;
        }
        let (new, old) = (&pod.metadata, &subject.pod.metadata);
        if (new.labels != old.labels || new.annotations != old.annotations)
            && volumes::show_pod(&pod)
        {
            self.mounts.refresh_soon();
        }
        if !spec::is_static(&pod) && is_newer(&pod, subject.shown.as_deref()) {
            subject.shown = Some(pod.clone());
        }
        subject.pod = pod;
        if self.memory.volumes == Volumes::Ready
            && !volumes::are_all_set_up(&self.subject.pod, &self.mounts.mounted)
        {
            self.memory.volumes = Volumes::Pending;
        }
    }

    fn fail(&mut self, reason: &str, message: String) {
        self.fail_within(reason, message, None);
    }

    /// Fails the pod, with a grace period of at most `most` seconds.
    fn fail_within(&mut self, reason: &str, message: String, most: Option<i64>) {
        let failure = Failure {
            reason: reason.to_owned(),
            message,
            rejected: false,
        };
        let asked = spec::grace_period(&self.subject.pod);
        let grace = most.map_or(asked, |most| asked.min(most)).max(1);
        self.change(Change::Fail { failure, grace });
    }

    /// The only function that changes the state.
    fn change(&mut self, change: Change) {
        let life = std::mem::replace(&mut self.life, Life::Arrived);
        self.life = life.after(change, self.core.now());
        if self.life.ending().is_some() {
            self.starts.cancel();
        }
    }

    /// Observes, decides, acts and reports once; returns when to do so again.
    async fn step(&mut self) -> Option<Timestamp> {
        let has_events = *self.core.runtime.events.borrow();
        if let Some(wait) = self.runtime.awaits_event().filter(|_| has_events) {
            return Some(self.core.now() + wait);
        }
        if !self.observe_runtime().await {
            return Some(self.core.now() + Duration::from_secs(1));
        }
        self.admit().await;
        self.check_end();
        let now = self.core.now();
        let seen_wake = self.keep_replaced(now);
        let size_wake = self.settle_size(now);
        self.keep_probes();
        self.publish_alive();
        let decision = decide(&View {
            pod: self.subject.size.pod(),
            observed: &self.observed_for_decision(),
            memory: &self.memory,
            now,
            stop: self.life.ending().map(|ending| ending.stop),
        });
        for action in &decision.actions {
            self.act(action);
        }
        if decision.stopped {
            let grace = spec::grace_period(&self.subject.pod);
            self.change(Change::Ended { grace });
        }
        if decision.ended {
            self.core.release(&self.subject.uid);
        }
        self.announce_waiting(&decision);
        self.refresh_volumes(now);
        self.compute_status(&decision, now);
        let write_wake = self.write_status(now);
        let wakes = [
            decision.wake,
            self.mounts.refresh_at(),
            self.deadline(),
            size_wake,
            seen_wake,
            write_wake,
        ];
        // Times in the past were just handled.
        wakes.into_iter().flatten().filter(|at| *at > now).min()
    }

    /// Observes the runtime if something changed; false if it does not answer.
    async fn observe_runtime(&mut self) -> bool {
        let (runtime, uid) = (&mut self.runtime, &self.subject.uid);
        if runtime.is_current() {
            return true;
        }
        let asked_at = self.core.now();
        match self.core.runtime.observe(uid, &mut runtime.ended).await {
            Ok(observed) => runtime.set(observed, asked_at),
            Err(error) => {
                warn!(pod = uid, error = error.message(), "cannot get pod status");
                return false;
            }
        }
        true
    }

    /// Tells kills whose turn depends on it which containers are still there.
    fn publish_alive(&self) {
        let running = self.runtime.observed.alive().map(|c| &c.name);
        let starting = self.memory.running.keys().filter_map(|task| match task {
            Task::Start(name) => Some(name),
            _ => None,
        });
        let alive = running.chain(starting).cloned().collect();
        self.alive.send_if_modified(|known| {
            let changed = *known != alive;
            *known = alive;
            changed
        });
    }

    fn deadline(&self) -> Option<Timestamp> {
        let seconds = spec::spec(&self.subject.pod).active_deadline_seconds?;
        let start = self.report.status().start_time.as_ref()?.0;
        // A deadline beyond the range of timestamps is no deadline.
        let seconds = Duration::from_secs(u64::try_from(seconds).ok()?);
        start.checked_add(seconds).ok()
    }

    /// Stops the pod if its active deadline has passed or its source requests it.
    fn check_end(&mut self) {
        let in_api = self.subject.pod.status.as_ref();
        let in_api = in_api.and_then(|status| status.phase.as_deref());
        let over = is_terminal(in_api) && !spec::is_static(&self.subject.pod);
        let deleted = self.subject.pod.metadata.deletion_timestamp.is_some();
        if !self.subject.wanted || deleted || over {
            let grace = spec::grace_period(&self.subject.pod).max(1);
            self.change(Change::Stop { grace });
            return;
        }
        let due = self.deadline().is_some_and(|at| at <= self.core.now());
        let phase = self.report.status().phase.as_deref();
        if due && !is_terminal(phase) && self.life.ending().is_none() {
            let message = "Pod was active on the node longer than the specified deadline";
            let events = &self.core.events;
            events.normal(&self.subject.pod, "DeadlineExceeded", message);
            self.fail("DeadlineExceeded", message.to_owned());
        }
    }

    fn pod_ips(&self) -> Vec<String> {
        if spec::is_host_network(&self.subject.pod) {
            self.core.host_ips()
        } else {
            self.runtime.observed.ips().to_vec()
        }
    }

    fn compute_status(&mut self, decision: &Decision, now: Timestamp) {
        let host_ips = self.core.host_ips();
        let empty = PodStatus::default();
        let shown = self.subject.shown.as_ref();
        let in_api = shown.and_then(|shown| shown.status.as_ref());
        let forced = self.life.ending().is_some_and(|ending| ending.forced);
        let status = status::compute(&Facts {
            pod: self.subject.size.pod(),
            in_api: in_api.unwrap_or(&empty),
            observed: &self.observed_for_users(now),
            memory: &self.memory,
            waiting: &decision.waiting,
            previous: self.report.status(),
            ended: decision.ended,
            terminal: decision.ended && forced,
            failed: self.life.failure(),
            resize: self.subject.size.resize(),
            host_ips: &host_ips,
            runtime: self.core.runtime.known_name(),
            now,
        });
        let created = self.subject.pod.metadata.creation_timestamp.as_ref();
        let age = created.and_then(|created| Duration::try_from(now - created.0).ok());
        self.timing.saw(&self.core.metrics, &status, age);
        let before = self.report.status();
        self.core.metrics.status_changes(before, &status);
        self.report.set_status(status);
        let seen = PublishedPod {
            pod: self.subject.pod.clone(),
            status: self.report.shared(),
            is_wanted: self.subject.wanted,
            is_ending: self.life.ending().is_some(),
            is_stopped: matches!(self.life, Life::Stopped(_)),
            is_reported: self.report.is_taken(),
        };
        self.core.registry.publish(&self.subject.uid, seen);
    }
}

/// Whether the resourceVersion of `pod` is newer than that of `than`.
fn is_newer(pod: &Pod, than: Option<&Pod>) -> bool {
    let version = |pod: &Pod| {
        pod.metadata
            .resource_version
            .as_deref()
            .and_then(|version| version.parse::<u64>().ok())
    };
    match (version(pod), than.and_then(version)) {
        (Some(new), Some(old)) => new >= old,
        _ => true,
    }
}
