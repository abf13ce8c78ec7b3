//! Starts and stops the probe tasks of running containers. A stopping pod keeps only its readiness
//! probes, which its endpoints depend on.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PodStatus;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Worker;
use crate::{
    pod::{
        memory::Memory,
        observed::{Container, State},
        spec,
    },
    probe::{self, ProbeKind, ProbeResult},
};

/// The probes that run, by container id.
#[derive(Default)]
pub(super) struct Probing(BTreeMap<String, Probed>);

struct Probed {
    /// Cancels all probes of a container.
    stop: CancellationToken,
    /// Cancels the probes that could restart the container, when its pod stops.
    stop_restarts: CancellationToken,
    started: watch::Sender<bool>,
}

impl Probing {
    /// Stores a result. One of a container that is no longer probed is dropped.
    pub(super) fn record(&self, result: &ProbeResult, memory: &mut Memory) {
        let Some(probed) = self.0.get(&result.container_id) else {
            return;
        };
        let probes = memory.probes.entry(result.container_id.clone());
        let probes = probes.or_default();
        match result.kind {
            ProbeKind::Startup => {
                probes.startup = Some(result.ok);
                if result.ok {
                    probed.started.send_replace(true);
                }
            }
            ProbeKind::Liveness => probes.liveness = Some(result.ok),
            ProbeKind::Readiness => probes.readiness = Some(result.ok),
        }
    }

    /// Cancels all probes.
    pub(super) fn stop(&mut self) {
        for (_, probed) in std::mem::take(&mut self.0) {
            probed.stop.cancel();
        }
    }
}

impl Worker {
    /// Starts and cancels tasks for the containers that run.
    pub(super) fn keep_probes(&mut self) {
        let ends = self.life.ending().is_some();
        let observed = &self.runtime.observed;
        let is_running = |id: &str| {
            let mut all = observed.containers.iter();
            all.any(|c| c.id == id && c.state == State::Running)
        };
        self.probing.0.retain(|id, probed| {
            let keep = is_running(id);
            if !keep {
                probed.stop.cancel();
            } else if ends {
                probed.stop_restarts.cancel();
            }
            keep
        });
        // Results of a container that is being replaced are still shown.
        let replaced = &self.memory.replaced;
        let is_replaced = |id: &str| replaced.values().any(|replaced| replaced.was.id == id);
        self.memory
            .probes
            .retain(|id, _| is_running(id) || is_replaced(id));
        self.memory
            .sizes
            .retain(|id, _| is_running(id) || is_replaced(id));
        let fresh: Vec<Container> = observed
            .containers
            .iter()
            .filter(|c| c.state == State::Running && !self.probing.0.contains_key(&c.id))
            .cloned()
            .collect();
        for container in fresh {
            self.start_probes(&container, ends);
        }
    }

    fn start_probes(&mut self, seen: &Container, ends: bool) {
        let pod = self.subject.pod.clone();
        let Some((_, container)) = spec::find(&pod, &seen.name) else {
            return;
        };
        let stop = self.core.context.token().child_token();
        let stop_restarts = stop.child_token();
        // A container that had started before this worker need not pass its startup probe again.
        let before = was_started(self.report.status(), &seen.id);
        let known = self.memory.probes.entry(seen.id.clone()).or_default();
        if before.started && container.startup_probe.is_some() {
            known.startup = Some(true);
        }
        if before.ready && container.readiness_probe.is_some() {
            known.readiness = Some(true);
        }
        let is_started = container.startup_probe.is_none() || known.startup == Some(true);
        let is_ready = known.readiness == Some(true);
        let started = watch::Sender::new(is_started);
        for kind in ProbeKind::ALL {
            let unneeded = match kind {
                ProbeKind::Startup => ends || is_started,
                ProbeKind::Liveness => ends,
                ProbeKind::Readiness => false,
            };
            if unneeded || kind.find(&container).is_none() {
                continue;
            }
            let may_restart = kind != ProbeKind::Readiness;
            let running = probe::Running {
                pod: pod.clone(),
                container: container.clone().into_owned(),
                container_id: seen.id.clone(),
                started_at: seen.started_at.unwrap_or(seen.created_at),
                pod_ip: self.pod_ips().into_iter().next().unwrap_or_default(),
                kind,
                is_ready,
                started: started.subscribe(),
                stop: if may_restart { &stop_restarts } else { &stop }.clone(),
            };
            let task = probe::run(self.core.clone(), running);
            self.core.context.spawn("probe", task);
        }
        let probed = Probed {
            stop,
            stop_restarts,
            started,
        };
        self.probing.0.insert(seen.id.clone(), probed);
    }
}

/// The state of a container before this worker started.
struct Before {
    started: bool,
    ready: bool,
}

/// Whether the last status showed this container id as started and as ready.
fn was_started(status: &PodStatus, id: &str) -> Before {
    let init = status.init_container_statuses.iter().flatten();
    let mut all = status.container_statuses.iter().flatten().chain(init);
    let this = all.find(|c| {
        c.container_id
            .as_deref()
            .is_some_and(|full| full.ends_with(id))
    });
    Before {
        started: this.is_some_and(|status| status.started == Some(true)),
        ready: this.is_some_and(|status| status.ready),
    }
}
