//! postStart and preStop hooks, and the graceful stop of a container.

use std::time::{Duration, Instant};

use cri::v1;
use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Pod};
use reconcile::Kind;

use crate::{
    Error, Result,
    core::Core,
    pod::{decide::MINIMUM_GRACE, spec},
    probe::http,
};

/// Runs a hook to its end.
pub(crate) async fn run(
    core: &Core,
    pod: &Pod,
    container: &Container,
    id: &str,
    pod_ips: &[String],
    hook: &LifecycleHandler,
) -> Result<()> {
    if let Some(exec) = &hook.exec {
        let request = v1::ExecSyncRequest {
            container_id: id.to_owned(),
            cmd: exec.command.clone().unwrap_or_default(),
            timeout: 0,
        };
        let answer = core.runtime.exec_sync(request).await?;
        return match answer.exit_code {
            0 => Ok(()),
            code => Err(Error::Other(format!(
                "command exited with {code}: {}",
                String::from_utf8_lossy(&answer.stderr)
            ))),
        };
    }
    if let Some(get) = &hook.http_get {
        let host = pod_ips.first().map(String::as_str).unwrap_or_default();
        let target = http::Target::new(get, container, host).map_err(Error::Other)?;
        let target = target.of_hook();
        if http::call(&target).await.map_err(Error::Other)? {
            let message = format!(
                "request to HTTPS lifecycle hook {} got HTTP response, retry with HTTP succeeded",
                target.authority()
            );
            core.events.warning(pod, "LifecycleHTTPFallback", message);
            core.metrics.http_fallbacks.with(&[]).increment();
        }
        return Ok(());
    }
    if let Some(sleep) = &hook.sleep {
        let seconds = u64::try_from(sleep.seconds).unwrap_or(0);
        core.config.clock.sleep(Duration::from_secs(seconds)).await;
        return Ok(());
    }
    Err(Error::Other(format!(
        "invalid handler of container {:?} in {}",
        container.name,
        spec::name(pod)
    )))
}

/// Kills a container: the preStop hook within the grace period, then, when it is its turn, the runtime's stop with
/// the rest of it.
pub(crate) async fn kill(
    core: &Core,
    pod: &Pod,
    id: &str,
    name: &str,
    pod_ips: &[String],
    grace: i64,
    turn: impl Future<Output = ()>,
) {
    let mut left = grace;
    let container = spec::find(pod, name).map(|(_, container)| container);
    let hook = container
        .as_ref()
        .and_then(|container| container.lifecycle.as_ref())
        .and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    if let (Some(container), Some(hook), true) = (&container, hook, grace > 0) {
        let hook = async {
            if run(core, pod, container, id, pod_ips, hook).await.is_err() {
                let reason = "FailedPreStopHook";
                let message = "PreStopHook failed";
                core.events
                    .container(pod, name, Kind::Warning, reason, message);
            }
        };
        left -= within(core, left, hook).await;
    }
    if left > 0 {
        left -= within(core, left, turn).await;
    }
    stop_container(core, id, left.max(MINIMUM_GRACE)).await;
    let state = core
        .runtime
        .container_status(id)
        .await
        .map(|status| status.state());
    if state.is_ok_and(|state| state != v1::ContainerState::ContainerExited) {
        // The stop failed: wait before the next attempt.
        core.config.clock.sleep(Duration::from_secs(1)).await;
    }
}

/// Waits for `work`, but no longer than `seconds`; returns the whole seconds that passed.
async fn within(core: &Core, seconds: i64, work: impl Future<Output = ()>) -> i64 {
    let begun = Instant::now();
    let clock = &core.config.clock;
    tokio::select! {
        () = work => {}
        () = clock.sleep(Duration::from_secs(seconds.unsigned_abs())) => {}
    }
    i64::try_from(begun.elapsed().as_secs()).unwrap_or(0)
}

/// Stops a container. One that is gone is no error.
pub(crate) async fn stop_container(core: &Core, id: &str, grace: i64) {
    if let Err(status) = core.runtime.stop_container(id, grace).await {
        tracing::warn!(
            container = id,
            error = status.message(),
            "cannot stop container"
        );
    }
}
