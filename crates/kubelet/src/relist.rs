//! Lists the runtime's sandboxes and containers periodically: wakes workers of pods that changed,
//! ends orphaned pods, and notices when the runtime stops answering.
//!
//! A runtime that streams events is listed rarely, others every second, as upstream's kubelet does.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use cri::v1;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use tonic::Status;
use tracing::{info, warn};

use crate::{core::Core, dispatch, make::labels, pod::spec, registry::Message};

/// The period with a runtime that sends no events.
const PERIOD: Duration = Duration::from_secs(1);
/// The period with a runtime that sends events. Longer, since a list of hundreds of pods is expensive.
const WITH_EVENTS: Duration = Duration::from_secs(30);

/// Never returns.
pub(crate) async fn run(core: Arc<Core>) {
    let mut before: Option<States> = None;
    let mut suspects = HashSet::new();
    loop {
        let (begun, at) = (Instant::now(), core.now());
        let listed = list(&core).await;
        core.metrics.relisted(begun, at);
        match listed {
            Ok(listed) => {
                match &before {
                    Some(before) => {
                        for uid in changed(before, &listed.states) {
                            core.registry.send(uid, Message::Runtime);
                        }
                    }
                    None => {
                        // Every pod of the API and of files has its worker by now.
                        suspects.extend(listed.states.keys().cloned());
                        let _ = core.uids_at_start.set(suspects.clone());
                    }
                }
                suspects = end_orphans(&core, &listed.sandboxes, &suspects);
                before = Some(listed.states);
            }
            Err(status) => warn!(error = status.message(), "cannot list containers"),
        }
        let has_events = *core.runtime.events.borrow();
        let wait = if has_events { WITH_EVENTS } else { PERIOD };
        let mut events = core.runtime.events.subscribe();
        events.mark_unchanged();
        tokio::select! {
            () = core.config.clock.sleep(wait) => {}
            _ = events.changed() => {}
        }
    }
}

/// Ids and states of sandboxes and containers, by the pod's uid.
type States = HashMap<String, BTreeSet<(String, i32)>>;

struct Listed {
    sandboxes: Vec<v1::PodSandbox>,
    states: States,
}

async fn list(core: &Core) -> Result<Listed, Status> {
    let (sandboxes, containers) = tokio::try_join!(
        core.runtime.list_sandboxes(BTreeMap::new()),
        core.runtime.list_containers(BTreeMap::new())
    )?;
    let mut states = States::new();
    let of_sandboxes = sandboxes.iter().map(|s| (&s.labels, &s.id, s.state));
    let of_containers = containers.iter().map(|c| (&c.labels, &c.id, c.state));
    for (labels, id, state) in of_sandboxes.chain(of_containers) {
        // Without the label it was not created by a kubelet.
        if let Some(uid) = labels.get(labels::POD_UID) {
            let states = states.entry(uid.clone()).or_default();
            states.insert((id.clone(), state));
        }
    }
    Ok(Listed { sandboxes, states })
}

/// The pods with an added, removed or changed sandbox or container.
fn changed<'a>(before: &'a States, now: &'a States) -> impl Iterator<Item = &'a str> {
    let news = now
        .iter()
        .filter(|(uid, states)| before.get(*uid) != Some(states));
    let gone = before.iter().filter(|(uid, _)| !now.contains_key(*uid));
    news.chain(gone).map(|(uid, _)| uid.as_str())
}

/// Starts a worker that ends the pod for each orphaned sandbox. A pod whose worker has just ended
/// may be in an outdated list, so that a sandbox must be orphaned in two lists. Returns the
/// suspects.
fn end_orphans(
    core: &Arc<Core>,
    sandboxes: &[v1::PodSandbox],
    suspects: &HashSet<String>,
) -> HashSet<String> {
    let mut unknown = HashSet::new();
    for sandbox in sandboxes {
        let Some(uid) = sandbox.labels.get(labels::POD_UID) else {
            continue;
        };
        if core.registry.contains(uid) || !unknown.insert(uid.clone()) {
            continue;
        }
        if suspects.contains(uid) {
            let pod = remembered(sandbox);
            info!(
                pod = spec::described(&pod),
                "stopping pod that no source describes"
            );
            dispatch::end_orphan(core, Arc::new(pod));
        }
    }
    unknown
}

/// A pod rebuilt from its sandbox's labels.
fn remembered(sandbox: &v1::PodSandbox) -> Pod {
    let label = |key: &str| sandbox.labels.get(key).cloned();
    let mut pod = Pod::default();
    pod.metadata.name = label(labels::POD_NAME);
    pod.metadata.namespace = label(labels::POD_NAMESPACE);
    pod.metadata.uid = label(labels::POD_UID);
    pod.spec = Some(PodSpec::default());
    pod
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_of_pods_with_changed_containers_are_woken() {
        let states = |list: &[(&str, &str, i32)]| {
            let mut states = States::new();
            for (uid, id, state) in list {
                let of_pod = states.entry((*uid).to_owned()).or_default();
                of_pod.insert(((*id).to_owned(), *state));
            }
            states
        };
        let before = states(&[("same", "a", 1), ("ended", "b", 1), ("gone", "c", 1)]);
        let now = states(&[("same", "a", 1), ("ended", "b", 2), ("new", "d", 1)]);
        let mut woken: Vec<_> = changed(&before, &now).collect();
        woken.sort_unstable();
        assert_eq!(woken, ["ended", "gone", "new"]);
        assert_eq!(changed(&now, &now).count(), 0);
    }
}
