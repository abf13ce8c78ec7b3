//! Hands pods from the API and events of the runtime to the pods' workers.

use std::{sync::Arc, time::Duration};

use client::{Event, Informer};
use cri::v1;
use k8s_openapi::api::core::v1::Pod;
use stdx::Backoff;
use tracing::{debug, warn};

use crate::{
    core::Core,
    make::labels,
    pod::{spec, status::is_terminal},
    registry::Message,
    runtime,
    worker::{self, Worker},
};

/// Begins with the pods that the API has. Those that already run count before any other is decided
/// about, with the resizes that they wait for; the others are decided about in the order of their
/// creation.
pub(crate) fn begin_with(core: &Arc<Core>, pods: Vec<Arc<Pod>>) {
    let mut pods: Vec<_> = pods.into_iter().map(spec::from_api).collect();
    let phase = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone());
    for pod in pods.iter().filter(|pod| !spec::is_mirror(pod)) {
        if worker::has_begun(pod) && !is_terminal(phase(pod).as_deref()) {
            let dir = core.pod_dir(spec::uid(pod));
            let allocated = worker::allocated(pod, &dir);
            core.admitted.keep(&allocated);
            if !Arc::ptr_eq(&allocated, pod) {
                core.admitted.defer(pod, core.now());
            }
        }
    }
    pods.sort_by_key(|pod| {
        let created = pod.metadata.creation_timestamp.as_ref();
        created.map(|time| time.0)
    });
    for pod in pods {
        arrived(core, pod);
    }
}

/// Hands the pod to its worker, which is started if there is none.
pub(crate) fn dispatch_pod(core: &Arc<Core>, pod: Arc<Pod>) {
    let uid = spec::uid(&pod).to_owned();
    if !core.registry.send(&uid, Message::Pod(pod.clone())) {
        let inbox = core.registry.register(&uid, pod.clone());
        let worker = Worker::new(core.clone(), pod, inbox);
        core.context.spawn("pod", worker.run());
    }
}

/// Starts a worker that ends a pod which only the runtime knows.
pub(crate) fn end_orphan(core: &Arc<Core>, pod: Arc<Pod>) {
    core.metrics.lives.orphaned();
    let inbox = core.registry.register(spec::uid(&pod), pod.clone());
    let worker = Worker::of_orphan(core.clone(), pod, inbox);
    core.context.spawn("pod", worker.run());
}

/// Follows the API's pods. Never returns.
pub(crate) async fn follow_api(core: Arc<Core>, pods: Informer<Pod>) {
    let mut changes = pods.subscribe();
    while let Some(change) = changes.next().await {
        if let Event::Modified { old, new } = &change
            && spec::uid(old) != spec::uid(new)
        {
            remove_pod(&core, old);
        }
        match change {
            Event::Added(pod) | Event::Modified { new: pod, .. } => {
                arrived(&core, spec::from_api(pod));
            }
            Event::Deleted(pod) => remove_pod(&core, &pod),
        }
    }
}

fn arrived(core: &Arc<Core>, pod: Arc<Pod>) {
    if spec::is_mirror(&pod) {
        crate::static_pods::mirror_changed(core, &pod, true);
    } else {
        dispatch_pod(core, pod);
    }
}

fn remove_pod(core: &Arc<Core>, pod: &Arc<Pod>) {
    if spec::is_mirror(pod) {
        crate::static_pods::mirror_changed(core, pod, false);
    } else {
        let uid = spec::uid(pod);
        core.registry.send(uid, Message::Removed);
        // Before the next event, which may be the pod that needs the resources.
        core.release(uid);
    }
}

/// Follows the runtime's events. Never returns. Whenever the stream starts, every pod is checked,
/// since events in between were missed. A runtime without events is polled by [`crate::relist`].
pub(crate) async fn follow_runtime(core: Arc<Core>) {
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
    loop {
        let request = v1::GetEventsRequest {};
        let mut runtime = core.runtime.client.clone().runtime;
        match runtime.get_container_events(request).await {
            Ok(answer) => {
                backoff.reset();
                core.registry.wake_all();
                core.runtime.events.send_replace(true);
                let mut events = answer.into_inner();
                loop {
                    match events.message().await {
                        Ok(Some(event)) => dispatch_event(&core, event),
                        Ok(None) => break,
                        Err(status) => {
                            debug!(error = status.message(), "runtime events ended");
                            break;
                        }
                    }
                }
            }
            Err(status) if status.code() == tonic::Code::Unimplemented => {
                debug!("the runtime has no events");
                return;
            }
            Err(status) => warn!(error = status.message(), "no runtime events"),
        }
        core.runtime.events.send_replace(false);
        core.config.clock.sleep(backoff.step()).await;
    }
}

fn dispatch_event(core: &Core, event: v1::ContainerEventResponse) {
    let uid = event.pod_sandbox_status.as_ref().and_then(|sandbox| {
        let labelled = sandbox.labels.get(labels::POD_UID);
        let named = sandbox.metadata.as_ref().map(|metadata| &metadata.uid);
        labelled.or(named).cloned()
    });
    let Some(uid) = uid else {
        return core.registry.wake_all();
    };
    let message = match runtime::snapshot(event, &core.runtime.logs_dir) {
        Some(snapshot) => Message::Snapshot(Box::new(snapshot)),
        None => Message::Runtime,
    };
    core.registry.send(&uid, message);
}
