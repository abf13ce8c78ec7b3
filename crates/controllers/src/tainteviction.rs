//! Pods leave a node whose NoExecute taints they do not tolerate, or tolerate only for a while.

use std::{sync::Arc, time::Duration};

use client::{Event, Informer};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, Taint, Toleration};
use reconcile::{
    Action, Controller, Error, Key, Kind, Queue, Recorder, Writer, placement::tolerates,
};
use serde_json::json;

use crate::{
    pods,
    shared::{NODE, Shared},
};

/// As in the table of controllers.
pub const NAME: &str = "taint-eviction";
const ACCOUNT: &str = "node-controller";

struct Evictor {
    shared: Arc<Shared>,
    nodes: Informer<Node>,
    pods: Writer<Pod>,
    recorder: Recorder,
}

/// Starts it.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Evictor {
        shared: shared.clone(),
        nodes: shared.informer(),
        pods: shared.writer(ACCOUNT),
        recorder: shared.recorder(ACCOUNT, "taint-eviction-controller"),
    });
    let shared = shared.clone();
    shared.context.clone().spawn(NAME, async move {
        controller.nodes.synced().await;
        controller.pods.cache().synced().await;
        let queue = Queue::default();
        let context = &shared.context;
        let lookup = controller.pods.cache().clone();
        reconcile::follow(context, &controller.nodes, &queue, move |event| {
            let unchanged = event
                .old()
                .is_some_and(|old| taints(old) == taints(event.object()));
            if unchanged || matches!(event, Event::Deleted(_)) {
                return Vec::new();
            }
            let name = event.object().metadata.name.as_deref().unwrap_or_default();
            lookup
                .by_index(NODE, name)
                .iter()
                .map(|pod| Key::of(&**pod))
                .collect()
        });
        let nodes = controller.nodes.clone();
        reconcile::follow(context, controller.pods.cache(), &queue, move |event| {
            let pod = event.object();
            let placed = event
                .old()
                .is_none_or(|old| pods::node(old) != pods::node(pod));
            let node = nodes.get("", pods::node(pod)).filter(|_| placed);
            let tainted = node.is_some_and(|node| !taints(&node).is_empty());
            tainted.then(|| Key::of(&**pod)).into_iter().collect()
        });
        reconcile::run(context, controller, queue, 8);
        std::future::pending::<()>().await;
    });
}

/// The taints that drive pods away.
fn taints(node: &Node) -> Vec<Taint> {
    let all = node
        .spec
        .iter()
        .flat_map(|spec| spec.taints.iter().flatten());
    all.filter(|taint| taint.effect == "NoExecute")
        .cloned()
        .collect()
}

#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Stay,
    Leave,
    LeaveIn(Duration),
}

fn decide(taints: &[Taint], tolerations: &[Toleration], now: Timestamp) -> Fate {
    let mut fate = Fate::Stay;
    for taint in taints {
        let mut matching = tolerations
            .iter()
            .filter(|toleration| tolerates(toleration, taint))
            .peekable();
        if matching.peek().is_none() {
            return Fate::Leave;
        }
        let seconds = matching
            .filter_map(|toleration| toleration.toleration_seconds)
            .min();
        let Some(seconds) = seconds else { continue };
        let patience = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        let since = taint.time_added.as_ref().map_or(now, |time| time.0);
        let passed = Duration::try_from(now.duration_since(since)).unwrap_or_default();
        let left = patience.saturating_sub(passed);
        if left.is_zero() {
            return Fate::Leave;
        }
        fate = match fate {
            Fate::LeaveIn(sooner) => Fate::LeaveIn(sooner.min(left)),
            _ => Fate::LeaveIn(left),
        };
    }
    fate
}

impl Controller for Evictor {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(pod) = self.pods.cache().get(&key.namespace, &key.name) else {
            return Ok(Action::Done);
        };
        if pods::is_deleting(&pod) {
            return Ok(Action::Done);
        }
        let Some(node) = self.nodes.get("", pods::node(&pod)) else {
            return Ok(Action::Done);
        };
        let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.clone());
        let now = self.shared.now();
        match decide(&taints(&node), &tolerations.unwrap_or_default(), now) {
            Fate::Stay => Ok(Action::Done),
            Fate::LeaveIn(left) => Ok(Action::After(left)),
            Fate::Leave => self.evict(&pod, key, now).await,
        }
    }
}

impl Evictor {
    async fn evict(&self, pod: &Pod, key: &Key, now: Timestamp) -> Result<Action, Error> {
        let about = kube::Resource::object_ref(pod, &());
        let text = format!("Marking for deletion Pod {key}");
        self.recorder
            .event(&about, Kind::Normal, "TaintManagerEviction", text);
        let message = "Taint manager: deleting due to NoExecute taint";
        let conditions = pods::disrupted(pod, "DeletionByTaintManager", message, now);
        let patch =
            json!({"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": conditions}});
        match self
            .pods
            .patch_status(&key.namespace, &key.name, &patch)
            .await
        {
            Err(error) if !error.is_not_found() => return Err(error),
            _ => {}
        }
        self.pods.delete(pod).await?;
        Ok(Action::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use crate::pods::samples::at;

    fn taint(key: &str) -> Taint {
        let time_added = Some(Time(at(100)));
        Taint {
            key: key.into(),
            effect: "NoExecute".into(),
            time_added,
            value: None,
        }
    }

    fn toleration(key: &str, seconds: Option<i64>) -> Toleration {
        Toleration {
            key: Some(key.into()),
            operator: Some("Exists".into()),
            toleration_seconds: seconds,
            ..Default::default()
        }
    }

    #[test]
    fn a_pod_stays_leaves_or_leaves_later_by_its_tolerations() {
        let lost = [taint("lost")];
        let judge = |tolerations: &[Toleration], now| decide(&lost, tolerations, at(now));
        assert_eq!(judge(&[], 100), Fate::Leave);
        assert_eq!(judge(&[toleration("lost", None)], 100), Fate::Stay);
        let patient = [toleration("lost", Some(300))];
        assert_eq!(
            judge(&patient, 150),
            Fate::LeaveIn(Duration::from_secs(250))
        );
        assert_eq!(judge(&patient, 400), Fate::Leave);
        assert_eq!(decide(&[], &[], at(1)), Fate::Stay);
    }

    #[test]
    fn of_several_taints_the_shortest_patience_counts() {
        let taints = [taint("a"), taint("b")];
        let tolerations = [toleration("a", Some(300)), toleration("b", Some(60))];
        assert_eq!(
            decide(&taints, &tolerations, at(100)),
            Fate::LeaveIn(Duration::from_secs(60))
        );
    }
}
