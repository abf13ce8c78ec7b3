//! From sources to workers: pods of the API, events of the runtime, and what is left of pods that
//! nobody wants any more.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use client::{Event, Informer};
use cri::v1;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use stdx::Backoff;
use tracing::{debug, info, warn};

use crate::{core::Core, make::labels, pod::spec, registry::Message, worker::Worker};

/// Gives the pod to its worker, which is made if there is none.
pub fn give(core: &Arc<Core>, pod: Arc<Pod>) {
    let uid = spec::uid(&pod).to_owned();
    if !core.registry.tell(&uid, Message::Pod(pod.clone())) {
        begin(core, pod, false);
    }
}

fn begin(core: &Arc<Core>, pod: Arc<Pod>, found: bool) {
    let inbox = core.registry.register(spec::uid(&pod), pod.clone());
    let worker = Worker::new(core.clone(), pod, inbox, found);
    core.context.spawn("pod", worker.run());
}

/// Follows the API's pods for ever.
pub async fn follow_api(core: Arc<Core>, pods: Informer<Pod>) {
    let mut changes = pods.subscribe();
    while let Some(change) = changes.next().await {
        if let Event::Modified { old, new } = &change
            && spec::uid(old) != spec::uid(new)
        {
            gone(&core, old);
        }
        match change {
            Event::Added(pod) | Event::Modified { new: pod, .. } => arrived(&core, pod),
            Event::Deleted(pod) => gone(&core, &pod),
        }
    }
}

fn arrived(core: &Arc<Core>, pod: Arc<Pod>) {
    if spec::is_mirror(&pod) {
        crate::static_pods::mirror_changed(core, &pod, true);
    } else {
        give(core, pod);
    }
}

fn gone(core: &Arc<Core>, pod: &Arc<Pod>) {
    if spec::is_mirror(pod) {
        crate::static_pods::mirror_changed(core, pod, false);
    } else {
        core.registry.tell(spec::uid(pod), Message::Removed);
    }
}

/// Follows the runtime's events for ever. Whenever the stream begins, every pod is looked at: what
/// happened in between is not told.
pub async fn follow_runtime(core: Arc<Core>) {
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
    loop {
        let request = v1::GetEventsRequest {};
        match core
            .runtime
            .client
            .clone()
            .runtime
            .get_container_events(request)
            .await
        {
            Ok(answer) => {
                backoff.reset();
                core.registry.wake_all();
                let mut events = answer.into_inner();
                loop {
                    match events.message().await {
                        Ok(Some(event)) => tell(&core, &event),
                        Ok(None) => break,
                        Err(status) => {
                            debug!(error = status.message(), "runtime events ended");
                            break;
                        }
                    }
                }
            }
            Err(status) => warn!(error = status.message(), "no runtime events"),
        }
        core.config.clock.sleep(backoff.step()).await;
    }
}

fn tell(core: &Core, event: &v1::ContainerEventResponse) {
    let sandbox = event.pod_sandbox_status.as_ref();
    let uid = sandbox.and_then(|sandbox| {
        let labelled = sandbox.labels.get(labels::POD_UID).cloned();
        labelled.or_else(|| {
            sandbox
                .metadata
                .as_ref()
                .map(|metadata| metadata.uid.clone())
        })
    });
    match uid {
        Some(uid) => {
            core.registry.tell(&uid, Message::Runtime);
        }
        None => core.registry.wake_all(),
    }
}

/// Sandboxes and directories of pods that neither the API nor a file wants: each gets a worker that
/// ends it, or is removed.
pub async fn adopt_orphans(core: &Arc<Core>, wanted: &HashSet<String>) {
    let sandboxes = match core.runtime.list_sandboxes(BTreeMap::new()).await {
        Ok(sandboxes) => sandboxes,
        Err(status) => {
            warn!(error = status.message(), "cannot list sandboxes");
            return;
        }
    };
    let mut known: HashSet<String> = wanted.clone();
    for sandbox in sandboxes {
        // Without a uid it is not a kubelet's.
        let Some(uid) = sandbox.labels.get(labels::POD_UID).cloned() else {
            continue;
        };
        if known.insert(uid) {
            let pod = remembered(&sandbox);
            info!(pod = spec::described(&pod), "ends a pod that nobody wants");
            begin(core, Arc::new(pod), true);
        }
    }
    remove_stale_dirs(core, &known).await;
}

/// As much of a pod as its sandbox's labels tell.
fn remembered(sandbox: &v1::PodSandbox) -> Pod {
    let label = |key: &str| sandbox.labels.get(key).cloned();
    let mut pod = Pod::default();
    pod.metadata.name = label(labels::POD_NAME);
    pod.metadata.namespace = label(labels::POD_NAMESPACE);
    pod.metadata.uid = label(labels::POD_UID);
    pod.spec = Some(PodSpec::default());
    pod
}

async fn remove_stale_dirs(core: &Core, known: &HashSet<String>) {
    let dir = core.config.root_dir.join("pods");
    let Ok(entries) = std::fs::read_dir(&dir) else {
        return;
    };
    for entry in entries.flatten() {
        let uid = entry.file_name().to_string_lossy().into_owned();
        if known.contains(&uid) {
            continue;
        }
        let outcome = crate::volumes::tear_down(core, &uid).await;
        let removed = outcome.map(|()| std::fs::remove_dir_all(entry.path()));
        info!(
            uid,
            ok = matches!(removed, Ok(Ok(()))),
            "removes what a pod left behind"
        );
    }
}
