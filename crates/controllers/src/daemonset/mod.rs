//! DaemonSet: one pod on every node that fits, replaced node by node when the template changes.

mod backoff;
mod daemon;
mod decide;
mod pod;
mod roll;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use client::{Api, Event, Informer};
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, DaemonSet, DaemonSetStatus},
    core::v1::{Node, Pod},
};
use kube::Resource;
use parking_lot::Mutex;
use reconcile::{Action, Controller, Error, Key, Kind, Recorder, Selector, Writer};

use crate::{
    claim,
    history::{self, History, Newest},
    members::{self, Facts, Member},
    podcontrol,
    selecting::keys_selecting,
    shared::{NODE, REST, Shared, controller_of},
};
use backoff::Backoffs;
use daemon::Daemon;
use decide::{Plan, View, decide, status};

/// The name in [`crate::ALL`].
pub const NAME: &str = "daemonset";
const ACCOUNT: &str = "daemon-set-controller";
const COMPONENT: &str = "daemonset-controller";
const WORKERS: usize = 4;
/// How long a set that needs no change rests for each node, since each reconciliation visits all of them.
const REST_PER_NODE: Duration = Duration::from_micros(20);

struct Daemons {
    shared: Arc<Shared>,
    sets: Writer<DaemonSet>,
    pods: Writer<Pod>,
    revisions: Writer<ControllerRevision>,
    nodes: Informer<Node>,
    recorder: Recorder,
    /// Guards the delays of failed daemon pods.
    backoffs: Mutex<Backoffs>,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Daemons {
        shared: shared.clone(),
        sets: shared.writer(ACCOUNT),
        pods: shared.writer(ACCOUNT),
        revisions: shared.writer(ACCOUNT),
        nodes: shared.informer(),
        recorder: shared.recorder(ACCOUNT, COMPONENT),
        backoffs: Mutex::default(),
    });
    let pods = controller.pods.cache();
    let (sets, concerned) = (controller.sets.cache().clone(), controller.clone());
    shared
        .controller(&controller)
        .skips(shared.metrics.daemon_skips.skips())
        .watches(controller.sets.cache())
        .owns_if(
            members::concerns_workload,
            &pods.only(|facts: &Facts| facts.concerns("DaemonSet")),
            "DaemonSet",
            move |pod| keys_selecting(&sets, pod),
        )
        .watches_with(&controller.nodes, move |event| {
            concerned.sets_of_node(event)
        })
        .reads(controller.revisions.cache())
        .workers(WORKERS)
        .rest(REST)
        .start();
}

impl Controller for Daemons {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(set) = self.sets.cache().get(&key.namespace, &key.name) else {
            return Ok(Action::Done);
        };
        let Some(spec) = &set.spec else {
            return Ok(Action::Done);
        };
        let selector = Selector::from_label_selector(Some(&spec.selector));
        if selector.is_everything() {
            let text = "This daemon set is selecting all pods. A non-empty selector is required.";
            self.event(&set, Kind::Warning, "SelectingAll", text.to_owned());
            return Ok(Action::Done);
        }
        if set.metadata.deletion_timestamp.is_some() {
            return Ok(Action::Done);
        }
        let api = Api::namespaced(self.shared.client(ACCOUNT), &key.namespace);
        let label = history::HASH;
        let history = History::read(&*set, &api, &spec.selector, &self.revisions, label).await?;
        let newest = self.newest(&set, &history).await?;
        let pods = self.pods(&set, &selector, &api).await?;
        self.remove_duplicates(&newest, &pods).await?;
        let nodes = self.nodes.list();
        let hash = history::hash(&newest.revision, history::HASH);
        let view = View::new(&set, hash, &nodes, &pods, self.shared.now());
        let plan = decide(&view, &mut self.backoffs.lock());
        let outcome = self.act(&set, hash, &plan).await;
        let status = DaemonSetStatus {
            collision_count: newest.collisions,
            ..status(&view)
        };
        self.write_status(&set, status).await?;
        outcome?;
        let live: BTreeSet<&str> = pods.iter().filter_map(Daemon::hash).collect();
        let is_live = |revision: &ControllerRevision| live.contains(history::hash(revision, label));
        let limit = spec.revision_history_limit.unwrap_or(10);
        let expired = history.expired(&newest.revision, is_live, limit, true);
        history::delete(&self.revisions, &expired).await?;
        Ok(next(&plan, nodes.len()))
    }
}

/// When the set is reconciled next: after a change, but the more nodes were visited in vain, the more changes at once.
fn next(plan: &Plan, nodes: usize) -> Action {
    match plan.after {
        Some(after) => Action::After(after),
        None if !plan.create.is_empty() || !plan.delete.is_empty() => Action::Done,
        None => Action::Rest(REST_PER_NODE * u32::try_from(nodes).unwrap_or(u32::MAX)),
    }
}

impl Daemons {
    fn event(&self, set: &DaemonSet, kind: Kind, reason: &str, text: String) {
        self.recorder
            .event(&set.object_ref(&()), kind, reason, text);
    }

    /// The DaemonSets that a node's change concerns.
    fn sets_of_node(&self, event: &Event<Node>) -> Vec<Key> {
        let node = event.object();
        let facts = |node: &Node| {
            let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone());
            (node.metadata.labels.clone(), taints)
        };
        if event.old().is_some_and(|old| facts(old) == facts(node)) {
            return Vec::new();
        }
        if let Event::Added(_) = event {
            // Each looks whether it needs a pod there. The pods of the node, if it has any, would have to be decoded.
            let sets = self.sets.cache().list();
            return sets.iter().map(|set| Key::from_object(&**set)).collect();
        }
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let mut daemons: BTreeMap<String, usize> = BTreeMap::new();
        for pod in self.pods.cache().by_index(NODE, name) {
            if let Some(owner) = controller_of(&*pod) {
                *daemons.entry(owner.uid.clone()).or_default() += 1;
            }
        }
        let gone = matches!(event, Event::Deleted(_));
        let concerned = self.sets.cache().list().into_iter().filter(|set| {
            let fits = decide::fits(&pod::spec(set), node);
            let uid = set.metadata.uid.as_deref().unwrap_or_default();
            let here = daemons.contains_key(uid);
            let misplaced = set.status.as_ref().map_or(0, |s| s.number_misscheduled) > 0;
            (fits.comes && (gone || !here)) || (!fits.stays && here) || (here && misplaced)
        });
        concerned.map(|set| Key::from_object(&*set)).collect()
    }

    async fn newest(&self, set: &DaemonSet, history: &History) -> Result<Newest, Error> {
        let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
        let api = Api::namespaced(self.shared.client(ACCOUNT), namespace);
        let collisions = set
            .status
            .as_ref()
            .and_then(|status| status.collision_count);
        let template = set.spec.as_ref().map(|spec| spec.template.clone());
        let template = template.unwrap_or_default();
        let revisions = &self.revisions;
        history
            .sync(set, &template, revisions, &api, collisions)
            .await
    }

    /// The pods of the set, after adopting and releasing.
    async fn pods(
        &self,
        set: &DaemonSet,
        selector: &Selector,
        api: &Api<DaemonSet>,
    ) -> Result<Vec<Daemon>, Error> {
        let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
        let (cache, uid) = (self.pods.cache(), set.metadata.uid.as_deref());
        let (mut own, unclaimed) = members::own_and_unclaimed(cache, uid, namespace, selector);
        if !unclaimed.is_empty() {
            let unclaimed = unclaimed
                .iter()
                .map(|member| cache.read_entry(member.entry()));
            let unclaimed = unclaimed.collect();
            let adopted = claim::claim(set, api, selector, &self.pods, unclaimed, None).await?;
            own.extend(adopted.into_iter().map(Member::detached));
        }
        let daemons = own.into_iter().map(|member| Daemon::new(cache, member));
        Ok(daemons.collect())
    }

    /// Keeps one revision per template: relabels pods of the duplicates, then deletes these.
    async fn remove_duplicates(&self, newest: &Newest, pods: &[Daemon]) -> Result<(), Error> {
        let hash = history::hash(&newest.revision, history::HASH);
        for duplicate in &newest.duplicates {
            let other = history::hash(duplicate, history::HASH);
            let patch = serde_json::json!({"metadata": {"labels": {(history::HASH): hash}}});
            for pod in pods.iter().filter(|pod| pod.hash() == Some(other)) {
                self.pods.patch(pod.namespace(), pod.name(), &patch).await?;
            }
        }
        history::delete(&self.revisions, &newest.duplicates).await
    }

    async fn act(&self, set: &DaemonSet, hash: &str, plan: &Plan) -> Result<(), Error> {
        for (kind, reason, text) in &plan.events {
            self.event(set, *kind, reason, text.clone());
        }
        let (_, created) = podcontrol::in_growing_batches(plan.create.len(), |number| {
            let pod = pod::daemon(set, &plan.create[number], hash);
            async move { podcontrol::create(&self.pods, &self.recorder, set, &pod).await }
        })
        .await;
        let deletions = plan
            .delete
            .iter()
            .map(|pod| podcontrol::delete_member(&self.pods, &self.recorder, set, pod.member()));
        let deleted = reconcile::all(reconcile::join_bounded(deletions).await);
        created.and(deleted)
    }

    async fn write_status(&self, set: &DaemonSet, status: DaemonSetStatus) -> Result<(), Error> {
        if set.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
        let updated = DaemonSet {
            status: Some(status),
            ..set.clone()
        };
        self.sets.update_status(namespace, &updated).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_on_many_nodes_rests_unless_pods_are_missing_or_a_time_is_due() {
        let mut plan = Plan::default();
        assert_eq!(next(&plan, 3), Action::Rest(Duration::from_micros(60)));
        assert_eq!(next(&plan, 5000), Action::Rest(Duration::from_millis(100)));
        plan.create.push("n1".to_owned());
        assert_eq!(next(&plan, 5000), Action::Done);
        plan.after = Some(Duration::from_secs(3));
        assert_eq!(next(&plan, 5000), Action::After(Duration::from_secs(3)));
    }
}
