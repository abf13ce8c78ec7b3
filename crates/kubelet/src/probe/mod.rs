//! Probes: one task per probe of a running container. It probes periodically, counts results, and
//! tells the pod's worker when the verdict changed; it never acts on it.

mod grpc;
pub(crate) mod http;
mod pace;
mod tcp;
mod threshold;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use cri::v1;
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Container, Pod, Probe},
    apimachinery::pkg::util::intstr::IntOrString,
};
use reconcile::Kind;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{core::Core, pod::spec, registry::Message};
use pace::Pace;
use threshold::Threshold;

/// How often a broken probe is retried before its result is unknown.
const TRIES: usize = 3;

/// The kind of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProbeKind {
    Startup,
    Liveness,
    Readiness,
}

impl ProbeKind {
    /// All kinds of probes.
    pub const ALL: [Self; 3] = [Self::Startup, Self::Liveness, Self::Readiness];

    /// The container's probe of this kind.
    pub fn find(self, container: &Container) -> Option<&Probe> {
        match self {
            Self::Startup => container.startup_probe.as_ref(),
            Self::Liveness => container.liveness_probe.as_ref(),
            Self::Readiness => container.readiness_probe.as_ref(),
        }
    }

    /// Its name in events and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
        }
    }
}

/// The result of one probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Ok,
    /// Success with a warning.
    Warning(String),
    Failed(String),
    /// The probe itself failed; the result does not count.
    Broken(String),
}

/// A changed verdict about a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeResult {
    pub container_id: String,
    pub kind: ProbeKind,
    pub ok: bool,
}

/// A running probe of one container.
pub(crate) struct Running {
    pub pod: Arc<Pod>,
    pub container: Container,
    pub container_id: String,
    pub started_at: Timestamp,
    pub pod_ip: String,
    pub kind: ProbeKind,
    /// Whether the container was ready before this kubelet started.
    pub is_ready: bool,
    /// Whether the startup probe has succeeded; the other probes wait for it.
    pub started: watch::Receiver<bool>,
    pub stop: CancellationToken,
}

/// Runs until it is cancelled, or until its verdict is final.
pub(crate) async fn run(core: Arc<Core>, mut running: Running) {
    let stop = running.stop.clone();
    tokio::select! {
        () = stop.cancelled() => {}
        () = probe_loop(&core, &mut running) => {}
    }
    let container = &running.container.name;
    core.metrics
        .probe_ended(&running.pod, container, running.kind);
}

async fn probe_loop(core: &Core, running: &mut Running) {
    let Some(probe) = running.kind.find(&running.container).cloned() else {
        return;
    };
    let seconds = |value: Option<i32>, default: i32| {
        let value = value.filter(|value| *value > 0).unwrap_or(default);
        Duration::from_secs(value.unsigned_abs().into())
    };
    let clock = &core.config.clock;
    let period = seconds(probe.period_seconds, 10);
    let delay = Duration::from_secs(probe.initial_delay_seconds.unwrap_or(0).max(0) as u64);
    if let Ok(wait) = Duration::try_from(running.started_at + delay - core.now()) {
        clock.sleep(wait).await;
    }
    if running.kind != ProbeKind::Startup && running.started.wait_for(|on| *on).await.is_err() {
        return;
    }
    if running.started_at < core.started {
        // Spread the probes of containers that ran before the kubelet started.
        clock
            .sleep(pace::spread(period, &running.container_id))
            .await;
    }
    let mut threshold = Threshold::new(
        probe.success_threshold.unwrap_or(1),
        probe.failure_threshold.unwrap_or(3),
    );
    let awaited = running.kind == ProbeKind::Readiness && !running.is_ready;
    let mut pace = Pace::new(period, awaited);
    let timeout = seconds(probe.timeout_seconds, 1);
    loop {
        let begun = core.now();
        let asked = Instant::now();
        let answer = ask_repeatedly(core, running, &probe, timeout).await;
        let (container, took) = (&running.container.name, asked.elapsed());
        let metrics = &core.metrics;
        metrics.probed(&running.pod, container, running.kind, &answer, took);
        report(core, running, &answer);
        if let Some(ok) = threshold.record(&answer) {
            let result = ProbeResult {
                container_id: running.container_id.clone(),
                kind: running.kind,
                ok,
            };
            let uid = spec::uid(&running.pod);
            core.registry.send(uid, Message::Probe(result));
            // A startup verdict is final, and a container that failed its liveness probe is killed.
            if running.kind == ProbeKind::Startup || (running.kind == ProbeKind::Liveness && !ok) {
                return;
            }
            if ok {
                pace.succeeded();
            }
        }
        let next = begun + pace.next();
        if let Ok(wait) = Duration::try_from(next - core.now()) {
            clock.sleep(wait).await;
        }
    }
}

fn report(core: &Core, running: &Running, answer: &Answer) {
    let kind = running.kind.as_str();
    let (reason, message) = match answer {
        Answer::Ok => return,
        Answer::Warning(text) => ("ProbeWarning", format!("{kind} probe warning: {text}")),
        Answer::Failed(text) => ("Unhealthy", format!("{kind} probe failed: {text}")),
        Answer::Broken(text) => (
            "Unhealthy",
            format!("{kind} probe errored and resulted in unknown state: {text}"),
        ),
    };
    core.events.container(
        &running.pod,
        &running.container.name,
        Kind::Warning,
        reason,
        message,
    );
}

/// Retries a broken probe at once, a few times.
async fn ask_repeatedly(
    core: &Core,
    running: &Running,
    probe: &Probe,
    timeout: Duration,
) -> Answer {
    let mut answer = ask(core, running, probe, timeout).await;
    for _ in 1..TRIES {
        if !matches!(answer, Answer::Broken(_)) {
            break;
        }
        answer = ask(core, running, probe, timeout).await;
    }
    answer
}

async fn ask(core: &Core, running: &Running, probe: &Probe, timeout: Duration) -> Answer {
    let host = running.pod_ip.as_str();
    if let Some(exec) = &probe.exec {
        return exec_probe(
            core,
            running,
            exec.command.clone().unwrap_or_default(),
            timeout,
        )
        .await;
    }
    if let Some(get) = &probe.http_get {
        return match http::Target::new(get, &running.container, host) {
            Ok(target) => http::probe(&target, timeout).await,
            Err(message) => Answer::Broken(message),
        };
    }
    if let Some(socket) = &probe.tcp_socket {
        let host = socket
            .host
            .as_deref()
            .filter(|host| !host.is_empty())
            .unwrap_or(host);
        return match port(&socket.port, &running.container) {
            Ok(port) => tcp::probe(host, port, timeout).await,
            Err(message) => Answer::Broken(message),
        };
    }
    if let Some(grpc) = &probe.grpc {
        let service = grpc.service.clone().unwrap_or_default();
        return grpc::probe(host, grpc.port, service, timeout).await;
    }
    Answer::Broken("missing probe handler".into())
}

async fn exec_probe(core: &Core, running: &Running, cmd: Vec<String>, timeout: Duration) -> Answer {
    let timeout_seconds = i64::try_from(timeout.as_secs()).unwrap_or(1);
    let request = v1::ExecSyncRequest {
        container_id: running.container_id.clone(),
        cmd,
        timeout: timeout_seconds,
    };
    match core.runtime.exec_sync(request).await {
        Ok(answer) => {
            let mut output = answer.stdout;
            output.extend(answer.stderr);
            let output = String::from_utf8_lossy(&output).into_owned();
            if answer.exit_code == 0 {
                Answer::Ok
            } else {
                Answer::Failed(output)
            }
        }
        Err(status) if status.code() == tonic::Code::DeadlineExceeded => {
            Answer::Failed(format!("command timed out after {}s", timeout.as_secs()))
        }
        Err(status) => Answer::Broken(status.message().to_owned()),
    }
}

/// Resolves a port number or name.
pub(crate) fn port(port: &IntOrString, container: &Container) -> Result<u16, String> {
    let number = match port {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(name) => name.parse().ok().or_else(|| {
            let mut ports = container.ports.iter().flatten();
            ports
                .find(|p| p.name.as_ref() == Some(name))
                .map(|p| p.container_port)
        }),
    };
    number
        .and_then(|number| u16::try_from(number).ok())
        .filter(|number| *number > 0)
        .ok_or_else(|| format!("invalid port number: {port:?}"))
}
