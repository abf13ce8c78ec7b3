//! Graceful node shutdown: when the machine shuts down, pods are ended by priority within the
//! configured grace periods, and no new pods are admitted.
//!
//! logind signals the shutdown and waits for the kubelet ([`logind`]). Without logind, stopping the
//! daemon can count as a shutdown ([`Config::shutdown_on_stop`](crate::Config)).

mod dbus;
mod logind;
mod plan;

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use reconcile::Kind;
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use self::plan::Group;
pub use self::plan::period;
use crate::{
    admit::Refusal,
    core::Core,
    disruption::{self, Disruption},
    pod::{spec, status::is_terminal},
    registry::PublishedPod,
};

const REASON: &str = "Terminated";
const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";
/// The file with the times of the last shutdown, below the kubelet's root directory.
const STATE: &str = "graceful_node_shutdown_state";
/// How long the final statuses of pods may take to reach the API.
const FINAL_STATUS_TIMEOUT: Duration = Duration::from_secs(3);

/// The times of the last shutdown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Times {
    pub start_time: Option<Timestamp>,
    pub end_time: Option<Timestamp>,
}

/// Follows logind while a grace period is configured. Never returns.
pub(crate) async fn run(core: Arc<Core>) {
    core.shutdown_times.send_replace(read(&core));
    let mut settings = core.settings.subscribe();
    loop {
        let period = plan::period(&core.settings());
        let follow = async {
            match period.is_zero() {
                true => std::future::pending().await,
                false => logind::follow(&core, period).await,
            }
        };
        tokio::select! {
            () = follow => return,
            changed = settings.wait_for(|now| plan::period(now) != period) => if changed.is_err() {
                return;
            },
        }
    }
}

/// Rejects pods during a shutdown.
pub(crate) fn refusal(core: &Core) -> Option<Refusal> {
    core.shutting_down.borrow().then(|| Refusal {
        reason: "NodeShutdown".into(),
        message: "Pod was rejected as the node is shutting down.".into(),
    })
}

/// The machine's shutdown was cancelled.
pub(crate) fn cancelled(core: &Core) {
    info!("node shutdown cancelled");
    let message = "Shutdown manager detected shutdown cancellation";
    core.events.node(Kind::Normal, "NodeShutdown", message);
    core.shutting_down.send_replace(false);
}

/// Ends all pods by priority. Returns when they have ended, or their grace periods are over.
pub(crate) async fn end_pods(core: &Core) {
    info!("node is shutting down");
    let message = "Shutdown manager detected shutdown event";
    core.events.node(Kind::Normal, "NodeShutdown", message);
    // The node's status shows the shutdown at once.
    core.shutting_down.send_replace(true);
    let mut times = Times {
        start_time: Some(core.now()),
        end_time: None,
    };
    keep(core, times);
    let pods = core.registry.pods();
    let active = pods
        .into_iter()
        .filter(|seen| !is_terminal(seen.status.phase.as_deref()));
    for group in plan::groups(&core.settings(), active.collect()) {
        end_group(core, group).await;
    }
    let pods = core.registry.pods();
    let reported = wait_for(core, &pods, |seen| seen.is_reported || !seen.is_stopped);
    let _ = tokio::time::timeout(FINAL_STATUS_TIMEOUT, reported).await;
    times.end_time = Some(core.now());
    keep(core, times);
    info!("all pods have terminated");
}

async fn end_group(core: &Core, group: Group) {
    if group.pods.is_empty() {
        return;
    }
    info!(
        priority = group.priority,
        seconds = group.seconds,
        pods = group.pods.len(),
        "stopping pods"
    );
    let ends = group.pods.iter().map(|seen| {
        let disruption = Disruption {
            reason: REASON,
            message: MESSAGE,
            condition: Some(MESSAGE),
            grace: Some(group.seconds),
        };
        disruption::end(core, &seen.pod, disruption)
    });
    let ended = async {
        futures::future::join_all(ends).await;
        wait_for(core, &group.pods, |seen| seen.is_stopped).await;
    };
    let limit = Duration::from_secs(u64::try_from(group.seconds).unwrap_or(0));
    if tokio::time::timeout(limit, ended).await.is_err() {
        warn!(
            priority = group.priority,
            "some pods did not terminate in time"
        );
    }
}

/// Waits until `holds` is true for each of these pods or they are gone.
async fn wait_for(
    core: &Core,
    pods: &[PublishedPod],
    holds: impl Fn(&PublishedPod) -> bool + Copy,
) {
    for seen in pods {
        if let Some(mut pod) = core.registry.follow(spec::uid(&seen.pod)) {
            let _ = pod.wait_for(|seen| holds(seen)).await;
        }
    }
}

fn keep(core: &Core, times: Times) {
    core.shutdown_times.send_replace(times);
    let path = core.config.root_dir.join(STATE);
    let text = serde_json::to_string(&times).unwrap_or_default();
    if let Err(error) = std::fs::write(&path, text) {
        warn!(path = %path.display(), %error, "cannot save the time of the shutdown");
    }
}

fn read(core: &Core) -> Times {
    let text = std::fs::read_to_string(core.config.root_dir.join(STATE)).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}
