//! The worker of one pod: waits for anything that matters, looks at the runtime, decides, acts, and
//! writes the status. It ends when nothing of the pod is left.
//!
//! All work runs as futures of the worker itself, so that a pod has one owner: a long image pull
//! delays neither a readiness change nor a deletion.

mod actions;
mod limits;
mod report;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::{
    core::Core,
    pod::{
        decide::{Decision, Stop, View, decide},
        memory::{Memory, Volumes},
        observed::{Observed, State},
        spec,
        status::{self, Facts, Resize},
    },
    probe::{self, ProbeKind},
    registry::Message,
    runtime::Ended,
    volumes,
};
use actions::Done;

struct Probing {
    stop: CancellationToken,
    started: watch::Sender<bool>,
}

/// One pod's state.
pub struct Worker {
    core: Arc<Core>,
    uid: String,
    pod: Arc<Pod>,
    /// The object in the API that shows this pod: itself, or a static pod's mirror.
    shown: Option<Arc<Pod>>,
    inbox: mpsc::UnboundedReceiver<Message>,
    work: FuturesUnordered<BoxFuture<'static, Done>>,
    memory: Memory,
    observed: Observed,
    ended: Ended,
    /// The runtime must be asked again.
    stale: bool,
    removed: bool,
    failed: Option<(String, String)>,
    admitted: bool,
    resize: Option<Resize>,
    /// Why containers waited at the last look.
    told: Vec<(String, String)>,
    /// The shortest grace period there was.
    grace: Option<i64>,
    status: Arc<PodStatus>,
    writing: bool,
    /// The changes that the API took last.
    settled: Option<serde_json::Value>,
    /// Not before then: the API refused the last write.
    write_after: Option<Timestamp>,
    deleting: bool,
    volume_paths: Arc<BTreeMap<String, PathBuf>>,
    refresh_at: Option<Timestamp>,
    refreshing: bool,
    refresh_again: bool,
    volume_failures: u32,
    /// By container id.
    probing: BTreeMap<String, Probing>,
    /// Called off when the pod is to stop.
    starts: CancellationToken,
}

impl Worker {
    /// A worker for this pod. `found` says that only the runtime knows it: it is to go.
    pub fn new(
        core: Arc<Core>,
        pod: Arc<Pod>,
        inbox: mpsc::UnboundedReceiver<Message>,
        found: bool,
    ) -> Self {
        let status = Arc::new(pod.status.clone().unwrap_or_default());
        let shown = (!spec::is_static(&pod) && !found).then(|| pod.clone());
        Self {
            uid: spec::uid(&pod).to_owned(),
            core,
            pod,
            shown,
            inbox,
            work: FuturesUnordered::new(),
            memory: Memory::default(),
            observed: Observed::default(),
            ended: Ended::default(),
            stale: true,
            removed: found,
            failed: None,
            admitted: false,
            resize: None,
            told: Vec::new(),
            grace: None,
            status,
            writing: false,
            settled: None,
            write_after: None,
            deleting: false,
            volume_paths: Arc::default(),
            refresh_at: None,
            refreshing: false,
            refresh_again: false,
            volume_failures: 0,
            probing: BTreeMap::new(),
            starts: CancellationToken::new(),
        }
    }

    /// Works until nothing of the pod is left.
    pub async fn run(mut self) {
        debug!(pod = spec::described(&self.pod), "pod worker starts");
        loop {
            let wake = self.step().await;
            if self.removed && wake.finished {
                break;
            }
            self.wait(wake.at).await;
        }
        self.clean_up().await;
        info!(pod = spec::described(&self.pod), "pod is gone");
    }

    /// Waits for anything: a message, ended work, or the time that was decided.
    async fn wait(&mut self, wake: Option<Timestamp>) {
        let clock = self.core.config.clock.clone();
        let alarm = async move {
            match wake {
                Some(at) => {
                    let wait = std::time::Duration::try_from(at - clock.now()).unwrap_or_default();
                    clock.sleep(wait).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            message = self.inbox.recv() => match message {
                Some(message) => self.take(message),
                // The registry let go of this worker: another has taken over.
                None => std::future::pending().await,
            },
            Some(done) = self.work.next(), if !self.work.is_empty() => self.finish(done),
            () = alarm => {}
        }
        // Everything that already waits is one change.
        while let Ok(message) = self.inbox.try_recv() {
            self.take(message);
        }
        while let Some(Some(done)) = self.work.next().now_or_never() {
            self.finish(done);
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Pod(pod) => self.take_pod(pod),
            Message::Removed => self.removed = true,
            Message::Mirror(mirror) => self.shown = mirror,
            Message::Runtime => self.stale = true,
            Message::Sources => {
                if let Volumes::Failed { .. } = self.memory.volumes {
                    self.memory.volumes = Volumes::Pending;
                }
                let config = "CreateContainerConfigError";
                self.memory
                    .failures
                    .retain(|_, failure| failure.waiting.reason != config);
                self.refresh_again = true;
            }
            Message::Probe {
                container_id,
                kind,
                ok,
            } => self.take_probe(&container_id, kind, ok),
            Message::Fail { reason, message } => self.failed = Some((reason.to_owned(), message)),
        }
    }

    fn take_pod(&mut self, pod: Arc<Pod>) {
        if spec::uid(&pod) != self.uid {
            return;
        }
        let meta = |pod: &Pod| {
            (
                pod.metadata.labels.clone(),
                pod.metadata.annotations.clone(),
            )
        };
        if meta(&pod) != meta(&self.pod) && volumes::show_pod(&pod) {
            self.refresh_again = true;
        }
        if !spec::is_static(&pod) && is_newer(&pod, self.shown.as_deref()) {
            self.shown = Some(pod.clone());
        }
        self.pod = pod;
    }

    fn take_probe(&mut self, container_id: &str, kind: ProbeKind, ok: bool) {
        let probes = self
            .memory
            .probes
            .entry(container_id.to_owned())
            .or_default();
        match kind {
            ProbeKind::Startup => {
                probes.startup = Some(ok);
                if let (true, Some(probing)) = (ok, self.probing.get(container_id)) {
                    probing.started.send_replace(true);
                }
            }
            ProbeKind::Liveness => probes.liveness = Some(ok),
            ProbeKind::Readiness => probes.readiness = Some(ok),
        }
    }

    /// Looks, decides, acts and reports once.
    async fn step(&mut self) -> Wake {
        if self.stale {
            match self.core.runtime.observe(&self.uid, &mut self.ended).await {
                Ok(observed) => {
                    self.observed = observed;
                    self.stale = false;
                }
                Err(error) => {
                    warn!(
                        pod = self.uid,
                        error = error.message(),
                        "cannot ask the runtime"
                    );
                    let soon = self.core.now() + std::time::Duration::from_secs(1);
                    return Wake {
                        at: Some(soon),
                        finished: false,
                    };
                }
            }
        }
        self.admit();
        self.check_deadline();
        let stop = self.stop();
        if stop.is_some() && self.memory.stopping_since.is_none() {
            self.memory.stopping_since = Some(self.core.now());
            self.starts.cancel();
        }
        self.keep_probes(stop.is_some());
        let seen = self.seen_by_users();
        let now = self.core.now();
        self.resize = self.resize_state(&seen);
        let keep_size = matches!(self.resize, Some(Resize::Pending { .. }));
        let view = View {
            keep_size,
            pod: &self.pod,
            observed: &seen,
            memory: &self.memory,
            now,
            stop,
        };
        let decision = decide(&view);
        for action in decision.actions.clone() {
            self.act(action);
        }
        self.tell_waiting(&decision);
        self.refresh_volumes(now);
        self.compute_status(&seen, &decision, now);
        self.write_status(now, decision.stopped);
        let room = keep_size.then(|| now + std::time::Duration::from_secs(10));
        let wakes = [
            decision.wake,
            self.refresh_at,
            self.deadline(),
            self.write_after,
            room,
        ];
        Wake {
            // What is past was looked at just now.
            at: wakes.into_iter().flatten().filter(|at| *at > now).min(),
            finished: decision.stopped,
        }
    }

    /// A container does not count as running before its postStart hook has ended.
    fn seen_by_users(&self) -> Observed {
        let mut seen = self.observed.clone();
        for container in &mut seen.containers {
            if container.state != State::Running || !self.memory.is_starting(&container.name) {
                continue;
            }
            let hooked = spec::find(&self.pod, &container.name)
                .is_some_and(|(_, c)| c.lifecycle.is_some_and(|l| l.post_start.is_some()));
            if hooked && self.memory.stopping_since.is_none() {
                container.state = State::Created;
            }
        }
        seen
    }

    fn deadline(&self) -> Option<Timestamp> {
        let seconds = spec::spec(&self.pod).active_deadline_seconds?;
        let start = self.status.start_time.as_ref()?.0;
        Some(start + std::time::Duration::from_secs(u64::try_from(seconds).ok()?))
    }

    fn check_deadline(&mut self) {
        let ended = matches!(self.status.phase.as_deref(), Some("Succeeded" | "Failed"));
        let due = self
            .deadline()
            .is_some_and(|deadline| deadline <= self.core.now());
        if due && !ended && self.failed.is_none() {
            let message = "Pod was active on the node longer than the specified deadline";
            self.failed = Some(("DeadlineExceeded".into(), message.to_owned()));
            self.core
                .events
                .normal(&self.pod, "DeadlineExceeded", message);
        }
    }

    /// How the pod is to stop, if it is. Its time only ever gets shorter.
    fn stop(&mut self) -> Option<Stop> {
        let phase = self
            .pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        let deleted = self.pod.metadata.deletion_timestamp.is_some();
        let over = matches!(phase, Some("Succeeded" | "Failed")) && !spec::is_static(&self.pod);
        if !(self.removed || deleted || over || self.failed.is_some()) {
            return None;
        }
        let grace = spec::grace_period(&self.pod).max(1);
        let grace = self.grace.map_or(grace, |before| before.min(grace));
        self.grace = Some(grace);
        Some(Stop { grace })
    }

    /// One task per probe of each running container, and none for others.
    fn keep_probes(&mut self, stopping: bool) {
        let running: BTreeMap<String, (String, Timestamp)> = self
            .observed
            .containers
            .iter()
            .filter(|c| c.state == State::Running)
            .map(|c| {
                (
                    c.id.clone(),
                    (c.name.clone(), c.started_at.unwrap_or(c.created_at)),
                )
            })
            .collect();
        self.probing.retain(|id, probing| {
            let keep = running.contains_key(id) && !stopping;
            if !keep {
                probing.stop.cancel();
            }
            keep
        });
        self.memory.probes.retain(|id, _| running.contains_key(id));
        if stopping {
            return;
        }
        for (id, (name, started_at)) in running {
            if !self.probing.contains_key(&id) {
                self.start_probes(id, &name, started_at);
            }
        }
    }

    fn start_probes(&mut self, id: String, name: &str, started_at: Timestamp) {
        let Some((_, container)) = spec::find(&self.pod, name) else {
            return;
        };
        let stop = self.core.context.token().child_token();
        // A container that had started before this worker began need not prove it again.
        let before = report::was_started(&self.status, &id);
        let known = self.memory.probes.entry(id.clone()).or_default();
        if before.started && container.startup_probe.is_some() {
            known.startup = Some(true);
        }
        if before.ready && container.readiness_probe.is_some() {
            known.readiness = Some(true);
        }
        let is_started = container.startup_probe.is_none() || known.startup == Some(true);
        let started = watch::Sender::new(is_started);
        for kind in ProbeKind::ALL {
            if kind.of(&container).is_none() || (kind == ProbeKind::Startup && is_started) {
                continue;
            }
            let running = probe::Running {
                pod: self.pod.clone(),
                container: container.clone(),
                container_id: id.clone(),
                started_at,
                pod_ip: self.pod_ips().into_iter().next().unwrap_or_default(),
                kind,
                started: started.subscribe(),
                stop: stop.clone(),
            };
            self.core
                .context
                .spawn("probe", probe::run(self.core.clone(), running));
        }
        self.probing.insert(id, Probing { stop, started });
    }

    fn pod_ips(&self) -> Vec<String> {
        if spec::is_host_network(&self.pod) {
            self.core.host_ips()
        } else {
            self.observed.ips().to_vec()
        }
    }

    fn compute_status(&mut self, seen: &Observed, decision: &Decision, now: Timestamp) {
        let host_ips = self.core.host_ips();
        let failed = self
            .failed
            .as_ref()
            .map(|(reason, message)| (reason.as_str(), message.as_str()));
        let terminal = decision.stopped && self.memory.stopping_since.is_some();
        let mut pod = self.pod.clone();
        if let Some(shown) = &self.shown {
            // Conditions that others wrote are on the object in the API.
            Arc::make_mut(&mut pod).status.clone_from(&shown.status);
        }
        let status = status::compute(&Facts {
            pod: &pod,
            observed: seen,
            memory: &self.memory,
            waiting: &decision.waiting,
            previous: &self.status,
            terminal,
            failed,
            resize: self.resize.as_ref(),
            host_ips: &host_ips,
            now,
        });
        self.status = Arc::new(status);
        self.core
            .registry
            .publish(&self.uid, self.pod.clone(), self.status.clone());
    }
}

struct Wake {
    at: Option<Timestamp>,
    finished: bool,
}

/// Whether an object is newer than another of the same kind.
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
