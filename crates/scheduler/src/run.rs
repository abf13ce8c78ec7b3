//! The scheduler's loop: apply changes, schedule the next pod, write in the background.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use client::Event as Change;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Node;
use lifecycle::Context;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::mpsc;
use tracing::{debug, warn};

use crate::{
    Diagnoses, Diagnosis,
    binding_cycle::{bind, is_quick, undo_bind},
    bindings::{Bindings, Changes},
    cluster::{Cluster, NodeInfo, Slot},
    cycle::{ExtensionPointDurations, Failure, Outcome, Scheduling},
    diagnosis::{self, Question},
    explanations::{Explanation, Explanations},
    extender::{self, Extenders},
    framework::{LoopState, Permit, Point, event::Event, profile::Profile},
    inputs::Inputs,
    metrics::{Attempt, Metrics},
    plugins::dynamic_resources::needs_devices,
    pod::{PodInfo, Unscheduled},
    queue::{Backoff, Queue, Waiting},
    watched::WatchedPod,
    write::{Nomination, Release, Writes},
};

/// The maximum time without an iteration of the loop.
const IDLE: Duration = Duration::from_secs(60);
/// Queue sizes are measured after this many attempts without a pause.
const SIZES_EVERY: usize = 256;

/// The maximum number of concurrent bindings. More would wait in the API server, which rejects
/// requests beyond its queues; this is enough to share group commits of the store.
const MAX_CONCURRENT_BINDINGS: usize = 192;

/// The result of a background task.
enum Done {
    /// A binding succeeded or failed.
    Bound {
        waiting: Box<Waiting>,
        slot: Slot,
        error: Option<kube::Error>,
    },
    /// A pod's victims were deleted, or some deletions failed.
    Preempted { uid: Arc<str>, all: bool },
}

/// The state of the loop.
pub(crate) struct Loop {
    context: Context,
    scheduling: Scheduling,
    profiles: HashMap<String, Arc<Profile>>,
    queue: Queue,
    /// Notifies the bindings that wait for a claim.
    changes: Arc<Changes>,
    /// Notifies the bindings that wait for a ResourceClaim.
    device_changes: Arc<Changes>,
    /// Assumed pods, whose bindings are not confirmed yet.
    assumed: HashMap<Arc<str>, Arc<PodInfo>>,
    writes: HashMap<String, Arc<Writes>>,
    done: mpsc::UnboundedSender<Done>,
    results: mpsc::UnboundedReceiver<Done>,
    /// Requests for diagnoses.
    questions: mpsc::Receiver<Question>,
    /// The request that is answered next.
    question: Option<Question>,
    metrics: Metrics,
    /// The gauge of the tasks that bind pods.
    binding_tasks: Gauge,
    /// Attempts so far: sizes are counted now and then.
    attempts: usize,
    /// Shared with every running binding, except those that may wait for volumes.
    in_flight: Arc<()>,
    /// Reasons why pods have no node, to be written.
    explanations: Explanations,
}

/// The parts that the loop is made of.
pub(crate) struct Parts {
    pub(crate) client: kube::Client,
    pub(crate) profiles: Vec<Profile>,
    pub(crate) backoff: Backoff,
    pub(crate) extenders: Vec<extender::Settings>,
    pub(crate) seed: u64,
    pub(crate) diagnoses: Diagnoses,
    pub(crate) metrics: Metrics,
}

/// Runs until a watch ends; returns why it cannot continue.
pub(crate) async fn run(context: Context, parts: Parts) -> String {
    let (mut inputs, bindings) = Inputs::start(&context, &parts.client).await;
    let objects = ApiObjects {
        client: parts.client.clone(),
        nodes: bindings.nodes.clone(),
    };
    let extenders = match Extenders::new(&parts.extenders, Arc::new(objects)) {
        Ok(extenders) => Arc::new(extenders),
        Err(why) => return format!("extenders: {why}"),
    };
    let mut scheduler = Box::new(Loop::new(context.clone(), parts, bindings));
    scheduler.scheduling.extenders = extenders.clone();
    inputs.drain(&mut scheduler);
    context.ready();
    loop {
        inputs.drain(&mut scheduler);
        // One at a time: requests must not delay pods.
        if let Some(question) = scheduler.next_question() {
            let is_slow = scheduler.needs_devices(&question);
            let answer = move |scheduler: &mut Loop| scheduler.answer(question);
            scheduler = match scheduler.run_step(is_slow, answer).await {
                Ok(scheduler) => scheduler,
                Err(why) => return why,
            };
        }
        let now = Instant::now();
        if Arc::strong_count(&scheduler.in_flight) > MAX_CONCURRENT_BINDINGS {
            // The end of a binding; other changes are applied at the top of the loop.
            if let Some(apply) = scheduler.next_result().await {
                apply(&mut scheduler);
            }
            continue;
        }
        if let Some(waiting) = scheduler.queue.pop(now) {
            let is_slow = extenders.decide_about(&waiting.pod)
                || needs_devices(&waiting.pod, &scheduler.scheduling.cluster);
            let attempt = move |scheduler: &mut Loop| scheduler.attempt(waiting);
            scheduler = match scheduler.run_step(is_slow, attempt).await {
                Ok(scheduler) => scheduler,
                Err(why) => return why,
            };
            // A long queue must not starve the tasks that bind.
            tokio::task::yield_now().await;
            continue;
        }
        scheduler.count_sizes();
        scheduler.count_unschedulable();
        let due = scheduler.queue.due();
        let due = due.unwrap_or(now + IDLE);
        if !inputs.wait(&mut scheduler, due.into()).await {
            return "the watches ended".into();
        }
    }
}

/// The objects for extenders: nodes from the informer, pods from the API server.
struct ApiObjects {
    client: kube::Client,
    nodes: client::Informer<Node>,
}

impl extender::Objects for ApiObjects {
    fn pod<'a>(&'a self, pod: &'a PodInfo) -> BoxFuture<'a, Result<serde_json::Value, String>> {
        Box::pin(async move {
            let (namespace, name) = (pod.namespace(), &pod.name);
            let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
            let request = http::Request::get(path).body(Vec::new());
            let request = request.map_err(|error| error.to_string())?;
            let pod = self.client.request(request).await;
            pod.map_err(|error| error.to_string())
        })
    }

    fn node(&self, name: &str) -> Option<serde_json::Value> {
        serde_json::to_value(&*self.nodes.get("", name)?).ok()
    }
}

impl Loop {
    fn new(context: Context, parts: Parts, bindings: Bindings) -> Self {
        let (done, results) = mpsc::unbounded_channel();
        let writes = |profile: &Profile| Writes {
            client: parts.client.clone(),
            recorder: reconcile::Recorder::start(&context, parts.client.clone(), &profile.name),
            name: profile.name.clone(),
            bindings: Some(bindings.clone()),
            devices: parts.metrics.devices().clone(),
        };
        let families = parts.metrics.profiles();
        let (profiles, state) = (parts.profiles.iter(), LoopState::default());
        Self {
            writes: profiles
                .map(|profile| (profile.name.clone(), Arc::new(writes(profile))))
                .collect(),
            context,
            scheduling: Scheduling::new(parts.seed),
            profiles: parts
                .profiles
                .into_iter()
                .map(|profile| profile.for_loop(&state).measured(families))
                .map(|profile| (profile.name.clone(), Arc::new(profile)))
                .collect(),
            queue: Queue::new(parts.backoff).measured(families),
            changes: bindings.changes.clone(),
            device_changes: bindings.device_changes.clone(),
            assumed: HashMap::new(),
            done,
            results,
            questions: parts.diagnoses.open(),
            question: None,
            binding_tasks: parts.metrics.binding_tasks(),
            metrics: parts.metrics,
            attempts: 0,
            in_flight: Arc::default(),
            explanations: Explanations::default(),
        }
    }

    /// Runs a step; on a thread that may block if it is slow, so that other tasks, such as the
    /// renewal of the lease, continue.
    async fn run_step(
        mut self: Box<Self>,
        is_slow: bool,
        step: impl FnOnce(&mut Self) + Send + 'static,
    ) -> Result<Box<Self>, String> {
        if !is_slow {
            step(&mut self);
            return Ok(self);
        }
        let blocking = move || {
            step(&mut self);
            self
        };
        let done = tokio::task::spawn_blocking(blocking).await;
        done.map_err(|error| format!("a scheduling attempt failed: {error}"))
    }

    pub(crate) fn cluster(&mut self) -> &mut Cluster {
        &mut self.scheduling.cluster
    }

    /// Notifies the bindings that wait for a claim.
    pub(crate) fn claim_changed(&self, namespace: &str, name: &str) {
        self.changes.changed(namespace, name);
    }

    /// Notifies the bindings that wait for a ResourceClaim.
    pub(crate) fn device_claim_changed(&self, namespace: &str, name: &str) {
        self.device_changes.changed(namespace, name);
    }

    /// Requeues the pods that an event could help.
    pub(crate) fn happened(&mut self, event: &Event<'_>) {
        let depth = self.queue.depth();
        let (cluster, now) = (&self.scheduling.cluster, Instant::now());
        let moved = self.queue.on_event(event, &self.profiles, cluster, now);
        self.metrics.handled(event.label(), now.elapsed());
        if moved == 0 {
            return;
        }
        let (before, after) = (depth, self.queue.depth());
        let (label, metrics) = (event.label(), &self.metrics);
        metrics.incoming("active", label, after.active.saturating_sub(before.active));
        metrics.incoming(
            "backoff",
            label,
            after.backoff.saturating_sub(before.backoff),
        );
    }

    fn count_sizes(&self) {
        let (cluster, depth) = (&self.scheduling.cluster, self.queue.depth());
        let (pods, assumed) = (cluster.placed_pods(), self.assumed.len());
        self.metrics.sizes(depth, cluster.size(), pods, assumed);
    }

    /// Counts unschedulable pods by plugin, when idle, since it visits all of them.
    fn count_unschedulable(&self) {
        self.metrics.unschedulable(&self.queue.unschedulable());
    }

    pub(crate) fn on_node(&mut self, change: &Change<Node>) {
        if let Change::Deleted(node) = change {
            let name = node.metadata.name.as_deref().unwrap_or_default();
            if let Some(old) = self.cluster().remove_node(name) {
                self.happened(&Event::NodeDeleted(&old));
            }
            return;
        }
        let new = NodeInfo::new(change.object());
        let slot = self.cluster().slot(&new.name);
        let known = slot.and_then(|slot| self.cluster().node(slot).cloned());
        if known.as_deref() == Some(&new) {
            // Only a heartbeat.
            return;
        }
        let name = new.name.clone();
        let old = self.cluster().put_node(new);
        let slot = self.cluster().slot(&name);
        let Some(new) = slot.and_then(|slot| self.cluster().node(slot).cloned()) else {
            return;
        };
        match &old {
            Some(old) => self.happened(&Event::NodeUpdated { old, new: &new }),
            None => self.happened(&Event::NodeAdded(&new)),
        }
    }

    pub(crate) fn on_pod(&mut self, change: &Change<WatchedPod>) {
        let pod = change.object();
        if matches!(change, Change::Deleted(_)) || pod.ended {
            return self.forget(&pod.info.uid);
        }
        match &pod.node {
            Some(node) => self.on_placed(&pod.info, node),
            None => self.on_waiting(&pod.info),
        }
    }

    fn forget(&mut self, uid: &str) {
        let waited = self.queue.remove(uid);
        self.assumed.remove(uid);
        match waited {
            Some(waiting) => self.end_nomination(&waiting.pod, None),
            None => drop(self.cluster().nominated.remove(uid)),
        }
        let slot = self.cluster().placed(uid);
        if let Some(gone) = self.cluster().remove_pod(uid) {
            self.happened(&Event::PodDeleted(&gone, slot));
        }
    }

    /// Removes a pod's nomination. The resources that were reserved for it are free again, unless it is placed there.
    fn end_nomination(&mut self, pod: &PodInfo, placed: Option<Slot>) {
        let node = self.cluster().nominated.remove(&pod.uid);
        let slot = node.and_then(|node| self.scheduling.cluster.slot(&node));
        if slot.is_some() && slot != placed {
            self.happened(&Event::PodDeleted(pod, slot));
        }
    }

    /// Stores a pod's nomination. What was reserved for it on another node is free again.
    fn nominate(&mut self, pod: &Arc<PodInfo>, node: Arc<str>) {
        let before = self.scheduling.cluster.nominated.node_of(&pod.uid).cloned();
        self.cluster().nominated.put(pod.clone(), node.clone());
        let before = before.filter(|before| *before != node);
        let slot = before.and_then(|before| self.scheduling.cluster.slot(&before));
        if slot.is_some() {
            self.happened(&Event::PodDeleted(pod, slot));
        }
    }

    fn on_placed(&mut self, new: &Arc<PodInfo>, node: &str) {
        self.assumed.remove(&new.uid);
        self.queue.remove(&new.uid);
        self.explanations.withdraw(&new.uid);
        match self.cluster().put_pod(node, new.clone()) {
            Some(old) => self.happened(&Event::PodUpdated { old: &old, new }),
            None => self.happened(&Event::PodAdded(new)),
        }
        let slot = self.cluster().placed(&new.uid);
        self.end_nomination(new, slot);
    }

    fn on_waiting(&mut self, new: &Arc<PodInfo>) {
        let profile = self.profiles.get(&new.template.scheduler_name);
        let Some(profile) = profile.cloned() else {
            return;
        };
        if let Some(known) = self.assumed.get_mut(&new.uid) {
            // If its binding fails, the newest version is retried.
            *known = new.clone();
            return;
        }
        if new.is_terminating() {
            return self.forget(&new.uid);
        }
        if let Some(node) = new.nominated.clone() {
            self.nominate(new, node);
        } else if self
            .queue
            .get(&new.uid)
            .is_some_and(|old| old.nominated.is_some())
        {
            // The nomination was cleared by another client.
            self.end_nomination(new, None);
        }
        let (cluster, now) = (&self.scheduling.cluster, Instant::now());
        let known = self.queue.get(&new.uid).is_some();
        let gated = self.queue.put(new.clone(), &profile, cluster, now);
        if !known {
            let queue = if gated.is_some() { "gated" } else { "active" };
            self.metrics.incoming(queue, "PodAdd", 1);
        }
        let Some(message) = gated.filter(|_| new.template.gates.is_empty()) else {
            return;
        };
        // The API server itself reports scheduling gates.
        let why = Unscheduled {
            reason: "Unschedulable".into(),
            message,
        };
        let writes = self.writes[&new.template.scheduler_name].clone();
        let explanation = Explanation {
            pod: new.clone(),
            why,
            nomination: Nomination::Keep,
            with_event: false,
        };
        self.explanations.write(&self.context, &writes, explanation);
    }

    /// One attempt: finds a node and assumes the pod there, or handles the failure.
    fn attempt(&mut self, waiting: Waiting) {
        let pod = waiting.pod.clone();
        let Some(profile) = self.profiles.get(&pod.template.scheduler_name) else {
            return;
        };
        let begun = Instant::now();
        let outcome = self.scheduling.schedule(profile, &pod);
        self.metrics.chose(begun.elapsed());
        count_points(profile, self.scheduling.took, &outcome);
        self.attempts += 1;
        if self.attempts.is_multiple_of(SIZES_EVERY) {
            self.count_sizes();
        }
        match outcome {
            Outcome::Node { slot, .. } => self.assume(waiting, slot),
            Outcome::Failed(Failure {
                error: Some(error), ..
            }) => self.cannot_decide(waiting, error),
            Outcome::Failed(failure) => self.no_node(waiting, &failure),
        }
    }

    /// An extender did not answer: the pod is tried again.
    fn cannot_decide(&mut self, waiting: Waiting, error: String) {
        warn!(
            pod = &*waiting.pod.name,
            error, "scheduling attempt failed, retrying"
        );
        self.count_attempt(&waiting, Attempt::Error);
        self.explain_bind_error(&waiting.pod, error);
        self.queue.retry(waiting, Instant::now());
    }

    fn assume(&mut self, waiting: Waiting, slot: Slot) {
        let pod = waiting.pod.clone();
        let node = self.scheduling.cluster.names[slot].clone();
        self.cluster().put_pod(&node, pod.clone());
        self.end_nomination(&pod, Some(slot));
        self.assumed.insert(pod.uid.clone(), pod.clone());
        if let Err((plugin, message)) = self.reserve(&pod, slot) {
            self.take_back(&waiting, slot);
            let failure = Failure {
                total: self.scheduling.cluster.size(),
                plugins: [plugin].into(),
                before_nodes: Some((message.into(), false)),
                ..Failure::default()
            };
            return self.no_node(waiting, &failure);
        }
        self.explanations.withdraw(&pod.uid);
        self.happened(&Event::PodAdded(&pod));
        self.bind(waiting, slot, node);
    }

    /// Runs Reserve and Permit.
    fn reserve(&self, pod: &PodInfo, slot: Slot) -> Result<(), (&'static str, String)> {
        let Some(profile) = self.profiles.get(&pod.template.scheduler_name) else {
            return Ok(());
        };
        let cluster = &self.scheduling.cluster;
        for enabled in profile.at(Point::Reserve) {
            let reserved = enabled.plugin.reserve(pod, cluster, slot);
            reserved.map_err(|why| (enabled.plugin.name(), why))?;
        }
        for enabled in profile.at(Point::Permit) {
            let begun = Instant::now();
            let permit = enabled.plugin.permit(pod, cluster, slot);
            let is_allowed = permit == Permit::Allow;
            self.metrics.permitted(is_allowed, begun.elapsed());
            if let Permit::Reject(why) = permit {
                return Err((enabled.plugin.name(), why));
            }
        }
        Ok(())
    }

    /// Undoes [`Loop::assume`].
    fn take_back(&mut self, waiting: &Waiting, slot: Slot) {
        let pod = &waiting.pod;
        self.unreserve(pod, slot);
        self.assumed.remove(&pod.uid);
        self.cluster().remove_pod(&pod.uid);
    }

    fn unreserve(&self, pod: &PodInfo, slot: Slot) {
        if let Some(profile) = self.profiles.get(&pod.template.scheduler_name) {
            for enabled in profile.at(Point::Reserve) {
                enabled.plugin.unreserve(pod, slot);
            }
        }
    }

    fn bind(&self, waiting: Waiting, slot: Slot, node: Arc<str>) {
        let token = is_quick(&waiting.pod).then(|| self.in_flight.clone());
        let name = &waiting.pod.template.scheduler_name;
        let (profile, writes) = (self.profiles[name].clone(), self.writes[name].clone());
        let (done, extenders) = (self.done.clone(), self.scheduling.extenders.clone());
        let tasks = self.binding_tasks.clone();
        tasks.inc();
        self.context.spawn("bind", async move {
            let bound = bind(&profile, &extenders, &writes, &waiting.pod, &node);
            let error = match bound.await {
                Ok(()) => None,
                Err(error) => {
                    let is_bound = undo_bind(&profile, &writes, &waiting.pod, &node).await;
                    Some(error).filter(|_| !is_bound)
                }
            };
            drop(token);
            tasks.dec();
            let waiting = Box::new(waiting);
            // The loop ends only when everything ends.
            let _ = done.send(Done::Bound {
                waiting,
                slot,
                error,
            });
        });
    }

    fn no_node(&mut self, waiting: Waiting, failure: &Failure) {
        let (pod, now) = (waiting.pod.clone(), Instant::now());
        let Some(profile) = self.profiles.get(&pod.template.scheduler_name) else {
            return;
        };
        let mut message = failure.message();
        let mut nomination = Nomination::Keep;
        let mut victims = None;
        if failure.total > 0 {
            let started = Instant::now();
            let found = self.scheduling.post_filter(profile, &pod, failure);
            if let Some(meter) = profile.meter() {
                let nominates = found.nominated.is_some();
                meter.ran(Point::PostFilter, nominates, started.elapsed());
            }
            if let Some((slot, found)) = found.nominated {
                let node = self.scheduling.cluster.names[slot].clone();
                nomination = Nomination::Set(node.to_string());
                self.metrics.tried_preemption(Some(found.len()));
                victims = Some((node, found));
            } else {
                if !found.messages.is_empty() {
                    message = format!("{message} {}", found.messages.join(", "));
                }
                if found.tried_preemption {
                    self.metrics.tried_preemption(None);
                }
                if found.clear {
                    nomination = Nomination::Clear;
                    self.end_nomination(&pod, None);
                }
            }
            if let Some(release) = found.release {
                self.release(&pod, release);
            }
        }
        debug!(pod = &*pod.name, message, "pod is unschedulable");
        self.count_attempt(&waiting, Attempt::Unschedulable);
        self.metrics
            .incoming("unschedulable", "ScheduleAttemptFailure", 1);
        self.queue
            .turned_away(waiting, failure.plugins.clone(), now);
        if let Some((node, victims)) = victims {
            self.preempt(&pod, &node, victims);
        }
        let why = Unscheduled {
            reason: "Unschedulable".into(),
            message,
        };
        let writes = self.writes[&pod.template.scheduler_name].clone();
        let explanation = Explanation {
            pod,
            why,
            nomination,
            with_event: true,
        };
        self.explanations.write(&self.context, &writes, explanation);
    }

    /// Releases a claim of a pod in the background.
    fn release(&self, pod: &PodInfo, release: Release) {
        let writes = self.writes[&pod.template.scheduler_name].clone();
        self.context.spawn("release", async move {
            writes.release(&release).await;
        });
    }

    /// Nominates the pod and deletes its victims in the background.
    fn preempt(&mut self, pod: &Arc<PodInfo>, node: &Arc<str>, victims: Vec<Arc<PodInfo>>) {
        let on_node = self.scheduling.cluster.nominated.on(node).iter();
        let lesser = on_node.filter(|other| other.priority() < pod.priority());
        let lesser: Vec<Arc<PodInfo>> = lesser.cloned().collect();
        for other in &lesser {
            self.cluster().nominated.remove(&other.uid);
        }
        let victims = victims
            .into_iter()
            .filter(|victim| !victim.is_terminating());
        let victims: Vec<Arc<PodInfo>> = victims.collect();
        // Held before the nomination, whose event could wake it.
        if !victims.is_empty() {
            self.queue.hold(&pod.uid);
        }
        self.nominate(pod, node.clone());
        if victims.is_empty() {
            return;
        }
        let writes = self.writes[&pod.template.scheduler_name].clone();
        let (pod, node, done) = (pod.clone(), node.clone(), self.done.clone());
        self.context.spawn("preempt", async move {
            for other in &lesser {
                writes.clear_nomination(other).await;
            }
            let evictions = victims
                .iter()
                .map(|victim| writes.evict(victim, &pod, &node));
            let all = futures::future::join_all(evictions).await;
            let all = all.into_iter().all(|evicted| evicted);
            let _ = done.send(Done::Preempted {
                uid: pod.uid.clone(),
                all,
            });
        });
    }

    pub(crate) fn drain_results(&mut self) {
        while let Ok(done) = self.results.try_recv() {
            self.on_done(done);
        }
    }

    /// The next request for a diagnosis.
    fn next_question(&mut self) -> Option<Question> {
        let question = self.question.take();
        question.or_else(|| self.questions.try_recv().ok())
    }

    fn needs_devices(&self, question: &Question) -> bool {
        let waiting = self.queue.find(&question.uid);
        waiting.is_some_and(|(waiting, _)| needs_devices(&waiting.pod, &self.scheduling.cluster))
    }

    /// The result of a background task, to be applied.
    pub(crate) async fn next_result(&mut self) -> Option<Box<dyn FnOnce(&mut Self) + Send>> {
        tokio::select! {
            done = self.results.recv() => {
                let done = done?;
                Some(Box::new(move |scheduler: &mut Self| scheduler.on_done(done)))
            }
            Some(question) = self.questions.recv() => {
                // The loop answers it before the next attempt.
                Some(Box::new(move |scheduler: &mut Self| scheduler.question = Some(question)))
            }
        }
    }

    fn answer(&mut self, question: Question) {
        let diagnosis = self.diagnose(&question.uid);
        // The client may be gone.
        let _ = question.answer.send(diagnosis);
    }

    /// Why a pod is pending.
    fn diagnose(&mut self, uid: &str) -> Option<Diagnosis> {
        let (waiting, queue) = self.queue.find(uid)?;
        let (pod, attempts) = (waiting.pod.clone(), waiting.attempts);
        let profile = self.profiles.get(&pod.template.scheduler_name)?;
        let cluster = &self.scheduling.cluster;
        let diagnosis = match crate::queue::gate(&pod, profile, cluster) {
            Some((_, message)) => Diagnosis {
                message,
                ..Diagnosis::default()
            },
            None => diagnosis::diagnose(&mut self.scheduling, profile, &pod),
        };
        Some(Diagnosis {
            queue: queue.to_owned(),
            attempts,
            ..diagnosis
        })
    }

    fn on_done(&mut self, done: Done) {
        match done {
            Done::Preempted { uid, all } => self.queue.release(&uid, !all, Instant::now()),
            Done::Bound {
                waiting,
                error: None,
                ..
            } => {
                self.count_attempt(&waiting, Attempt::Scheduled);
                if waiting.flushed {
                    self.metrics.scheduled_after_flush();
                }
                if let Some(first) = waiting.first_attempt {
                    self.metrics.scheduled(waiting.attempts, first.elapsed());
                }
            }
            Done::Bound {
                waiting,
                slot,
                error: Some(error),
            } => self.on_bind_error(*waiting, slot, &error),
        }
    }

    fn on_bind_error(&mut self, mut waiting: Waiting, slot: Slot, error: &kube::Error) {
        // No longer assumed: the binding was confirmed, or the pod is gone.
        let Some(newest) = self.assumed.get(&waiting.pod.uid).cloned() else {
            self.unreserve(&waiting.pod, slot);
            // What was reserved is free only now.
            return self.happened(&Event::PodDeleted(&waiting.pod, None));
        };
        self.take_back(&waiting, slot);
        self.count_attempt(&waiting, Attempt::Error);
        self.happened(&Event::PodDeleted(&waiting.pod, Some(slot)));
        let gone = matches!(error, kube::Error::Api(status) if status.code == 404);
        if gone || newest.is_terminating() {
            debug!(pod = &*waiting.pod.name, "pod deleted before it was bound");
            return;
        }
        warn!(pod = &*waiting.pod.name, %error, "cannot bind pod, retrying");
        if let kube::Error::Service(why) = error {
            self.explain_bind_error(&newest, why.to_string());
        }
        waiting.pod = newest;
        self.queue.retry(waiting, Instant::now());
    }

    /// Reports on the pod why a PreBind plugin failed.
    fn explain_bind_error(&self, pod: &Arc<PodInfo>, message: String) {
        let why = Unscheduled {
            reason: "SchedulerError".into(),
            message,
        };
        let writes = self.writes[&pod.template.scheduler_name].clone();
        let explanation = Explanation {
            pod: pod.clone(),
            why,
            nomination: Nomination::Keep,
            with_event: true,
        };
        self.explanations.write(&self.context, &writes, explanation);
    }

    fn count_attempt(&self, waiting: &Waiting, attempt: Attempt) {
        let profile = self.profiles.get(&waiting.pod.template.scheduler_name);
        let meter = profile.and_then(|profile| profile.meter());
        if let (Some(meter), Some(begun)) = (meter, waiting.last_attempt) {
            meter.attempted(attempt, begun.elapsed());
        }
    }
}

/// Records the durations of the extension points of an attempt.
fn count_points(profile: &Profile, took: ExtensionPointDurations, outcome: &Outcome) {
    let Some(meter) = profile.meter() else { return };
    let found = matches!(outcome, Outcome::Node { .. });
    let filtered = !took.filter.is_zero();
    meter.ran(Point::PreFilter, found || filtered, took.pre_filter);
    if filtered {
        meter.ran(Point::Filter, found, took.filter);
    }
    if !took.score.is_zero() {
        meter.ran(Point::Score, true, took.score);
    }
}
