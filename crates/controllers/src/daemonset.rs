//! DaemonSet: one pod on every node that fits, replaced node by node when the template changes.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use client::Informer;
use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, DaemonSet, DaemonSetStatus},
    core::v1::{
        Affinity, Node, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod,
        PodSpec, PodTemplateSpec, Toleration,
    },
};
use kube::Api;
use reconcile::{
    Action, Controller, Error, Key, Kind, Queue, Recorder, Selector, Writer,
    placement::{matches_node, untolerated},
};

use crate::{
    claim, history, podcontrol,
    pods::{self, is_available, is_deleting, is_ready, phase},
    rounding::scaled,
    shared::{OWNER, Shared, orphans_of},
};

/// As in the table of controllers.
pub const NAME: &str = "daemonset";
const ACCOUNT: &str = "daemon-set-controller";
const COMPONENT: &str = "daemonset-controller";
/// A pod that failed is replaced, but not faster than this.
const FAILED_PAUSE: Duration = Duration::from_secs(1);

struct Daemons {
    shared: Arc<Shared>,
    sets: Writer<DaemonSet>,
    pods: Writer<Pod>,
    revisions: Writer<ControllerRevision>,
    nodes: Informer<Node>,
    recorder: Recorder,
}

/// Starts it.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Daemons {
        shared: shared.clone(),
        sets: shared.writer(ACCOUNT),
        pods: shared.writer(ACCOUNT),
        revisions: shared.writer(ACCOUNT),
        nodes: shared.informer(),
        recorder: shared.recorder(ACCOUNT, COMPONENT),
    });
    let shared = shared.clone();
    shared.context.clone().spawn(NAME, async move {
        let sets = controller.sets.cache().clone();
        sets.synced().await;
        controller.pods.cache().synced().await;
        controller.revisions.cache().synced().await;
        controller.nodes.synced().await;
        let queue = Queue::default();
        let context = &shared.context;
        reconcile::follow(context, &sets, &queue, |event| {
            vec![Key::of(&**event.object())]
        });
        let lookup = sets.clone();
        reconcile::follow(context, controller.pods.cache(), &queue, move |event| {
            podcontrol::owner_keys(event, "DaemonSet", |pod| {
                let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
                let matching = lookup.list_in(namespace).into_iter().filter(|set| {
                    let selector = set.spec.as_ref().map(|spec| &spec.selector);
                    Selector::of(selector).matches(pod.metadata.labels.as_ref())
                });
                matching.map(|set| Key::of(&*set)).collect()
            })
        });
        let lookup = sets.clone();
        reconcile::follow(context, &controller.nodes, &queue, move |event| {
            let facts = |node: &Node| {
                let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone());
                (node.metadata.labels.clone(), taints)
            };
            let same = event
                .old()
                .is_some_and(|old| facts(old) == facts(event.object()));
            if same {
                Vec::new()
            } else {
                lookup.list().iter().map(|set| Key::of(&**set)).collect()
            }
        });
        reconcile::run(context, controller, queue, 2);
        std::future::pending::<()>().await;
    });
}

impl Controller for Daemons {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(set) = self.sets.cache().get(&key.namespace, &key.name) else {
            return Ok(Action::Done);
        };
        let spec = set.spec.clone().unwrap_or_default();
        let selector = Selector::of(Some(&spec.selector));
        if selector.is_everything() {
            let text = "This daemon set is selecting all pods. A non-empty selector is required.";
            let about = kube::Resource::object_ref(&*set, &());
            self.recorder
                .event(&about, Kind::Warning, "SelectingAll", text);
            return Ok(Action::Done);
        }
        if set.metadata.deletion_timestamp.is_some() {
            return Ok(Action::Done);
        }
        let collisions = set
            .status
            .as_ref()
            .and_then(|status| status.collision_count);
        let (template, revisions) = (&spec.template, &self.revisions);
        let revision =
            history::sync(&*set, &spec.selector, template, revisions, collisions).await?;
        let hash = history::hash(&revision);
        let uid = set.metadata.uid.as_deref().unwrap_or_default();
        let cache = self.pods.cache();
        let mut candidates = cache.by_index(OWNER, uid);
        candidates.extend(cache.by_index(OWNER, &orphans_of(&key.namespace)));
        let api = Api::namespaced(self.shared.client(ACCOUNT), &key.namespace);
        let pods = claim::claim(&*set, &api, &selector, &self.pods, candidates, None).await?;
        let now = self.shared.now();
        let nodes = self.nodes.list();
        let view = View {
            set: &set,
            hash: &hash,
            nodes: &nodes,
            pods: by_node(&pods),
            now,
        };
        let plan = decide(&view);
        let outcome = self.act(&set, &hash, &plan).await;
        let status = status(&view);
        if set.status.as_ref() != Some(&status) {
            let updated = DaemonSet {
                status: Some(status),
                ..(*set).clone()
            };
            self.sets.update_status(&key.namespace, &updated).await?;
        }
        outcome?;
        let live: Vec<&str> = pods
            .iter()
            .filter_map(|pod| label(pod))
            .chain([&*hash])
            .collect();
        history::trim(
            revisions,
            uid,
            &live,
            spec.revision_history_limit.unwrap_or(10),
        )
        .await?;
        Ok(plan.after.map_or(Action::Done, Action::After))
    }
}

impl Daemons {
    async fn act(&self, set: &DaemonSet, hash: &str, plan: &Plan) -> Result<(), Error> {
        let deletions = plan
            .delete
            .iter()
            .map(|pod| podcontrol::delete(&self.pods, &self.recorder, set, pod));
        let deleted = reconcile::all(join_all(deletions).await);
        let created = podcontrol::in_growing_batches(plan.create.len(), |number| {
            let pod = daemon(set, &plan.create[number], hash);
            async move { podcontrol::create(&self.pods, &self.recorder, set, &pod).await }
        });
        created.await.1.and(deleted)
    }
}

fn label(pod: &Pod) -> Option<&str> {
    pod.metadata
        .labels
        .as_ref()?
        .get(history::HASH)
        .map(String::as_str)
}

/// The node a pod is on, or is meant for.
fn target(pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    if let Some(node) = spec.node_name.clone().filter(|node| !node.is_empty()) {
        return Some(node);
    }
    let terms = reconcile::placement::required_terms(spec)?;
    let fields = terms
        .iter()
        .flat_map(|term| term.match_fields.iter().flatten());
    let mut names = fields.filter(|field| field.key == "metadata.name");
    names.next()?.values.as_ref()?.first().cloned()
}

fn by_node(pods: &[Arc<Pod>]) -> BTreeMap<String, Vec<Arc<Pod>>> {
    let mut nodes: BTreeMap<String, Vec<Arc<Pod>>> = BTreeMap::new();
    for pod in pods {
        if let Some(node) = target(pod) {
            nodes.entry(node).or_default().push(pod.clone());
        }
    }
    for pods in nodes.values_mut() {
        pods.sort_by_key(|pod| {
            (
                pods::node(pod).is_empty(),
                pod.metadata.creation_timestamp.clone(),
            )
        });
    }
    nodes
}

struct View<'a> {
    set: &'a DaemonSet,
    hash: &'a str,
    nodes: &'a [Arc<Node>],
    pods: BTreeMap<String, Vec<Arc<Pod>>>,
    now: Timestamp,
}

#[derive(Debug, Default)]
struct Plan {
    create: Vec<String>,
    delete: Vec<Arc<Pod>>,
    after: Option<Duration>,
}

impl View<'_> {
    fn spec(&self) -> PodSpec {
        template(self.set).spec.unwrap_or_default()
    }

    fn on(&self, node: &Node) -> &[Arc<Pod>] {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        self.pods.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    fn min_ready(&self) -> i32 {
        self.set
            .spec
            .as_ref()
            .and_then(|spec| spec.min_ready_seconds)
            .unwrap_or(0)
    }

    fn is_current(&self, pod: &Pod) -> bool {
        label(pod) == Some(self.hash)
    }

    fn is_available(&self, pod: &Pod) -> bool {
        is_available(pod, self.min_ready(), self.now)
    }
}

/// Whether a pod belongs on a node, and whether one that is there may stay.
fn fits(spec: &PodSpec, node: &Node) -> (bool, bool) {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let named = spec
        .node_name
        .as_deref()
        .filter(|wanted| !wanted.is_empty());
    if named.is_some_and(|wanted| wanted != name) || !matches_node(spec, &labels, name) {
        return (false, false);
    }
    let taints = node
        .spec
        .as_ref()
        .and_then(|spec| spec.taints.clone())
        .unwrap_or_default();
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    let stays = untolerated(&taints, tolerations, &["NoExecute"]).is_none();
    let comes = stays && untolerated(&taints, tolerations, &["NoSchedule"]).is_none();
    (comes, stays)
}

fn decide(view: &View) -> Plan {
    let (mut plan, spec) = (Plan::default(), view.spec());
    let (surge, _) = limits(view);
    for node in view.nodes {
        let (comes, stays) = fits(&spec, node);
        let pods = view.on(node);
        if comes && pods.is_empty() {
            plan.create.extend(node.metadata.name.clone());
        } else if stays {
            tidy(view, pods, surge > 0, &mut plan);
            let alive = pods.iter().any(|pod| !is_deleting(pod));
            if surge > 0 && comes && !alive {
                plan.create.extend(node.metadata.name.clone());
            }
        } else {
            plan.delete
                .extend(pods.iter().filter(|pod| !is_deleting(pod)).cloned());
        }
    }
    let known = |name: &String| {
        view.nodes
            .iter()
            .any(|node| node.metadata.name.as_ref() == Some(name))
    };
    for (_, pods) in view.pods.iter().filter(|(node, _)| !known(node)) {
        let waiting = pods
            .iter()
            .filter(|pod| pods::node(pod).is_empty() && !is_deleting(pod));
        plan.delete.extend(waiting.cloned());
    }
    let strategy = view
        .set
        .spec
        .as_ref()
        .and_then(|spec| spec.update_strategy.as_ref());
    let on_delete = strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("OnDelete");
    if !on_delete && plan.create.is_empty() && plan.delete.is_empty() {
        roll(view, &mut plan);
    }
    plan
}

/// Removes ended pods and doubles of one node.
fn tidy(view: &View, pods: &[Arc<Pod>], surges: bool, plan: &mut Plan) {
    let mut running: Vec<&Arc<Pod>> = Vec::new();
    for pod in pods.iter().filter(|pod| !is_deleting(pod)) {
        match phase(pod) {
            "Failed" => {
                let since = pod
                    .metadata
                    .creation_timestamp
                    .as_ref()
                    .map_or(view.now, |time| time.0);
                let age = Duration::try_from(view.now.duration_since(since)).unwrap_or_default();
                if age >= FAILED_PAUSE {
                    plan.delete.push(pod.clone());
                } else {
                    plan.after = Some(FAILED_PAUSE);
                }
            }
            "Succeeded" => plan.delete.push(pod.clone()),
            _ => running.push(pod),
        }
    }
    if !surges {
        plan.delete.extend(running.into_iter().skip(1).cloned());
        return;
    }
    let (new, old): (Vec<&Arc<Pod>>, Vec<&Arc<Pod>>) =
        running.into_iter().partition(|pod| view.is_current(pod));
    plan.delete.extend(
        new.iter()
            .skip(1)
            .chain(old.iter().skip(1))
            .map(|pod| (*pod).clone()),
    );
    if let (Some(new), Some(old)) = (new.first(), old.first())
        && (!is_ready(old) || view.is_available(new))
    {
        plan.delete.push((*old).clone());
    }
}

/// How many extra and how many missing pods an update may cause.
fn limits(view: &View) -> (i32, i32) {
    let spec = view.spec();
    let desired = view.nodes.iter().filter(|node| fits(&spec, node).0).count();
    let desired = i32::try_from(desired).unwrap_or(i32::MAX);
    let strategy = view
        .set
        .spec
        .as_ref()
        .and_then(|spec| spec.update_strategy.as_ref());
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    let surge = scaled(
        rolling.and_then(|rolling| rolling.max_surge.as_ref()),
        desired,
        true,
    );
    let missing = match rolling.and_then(|rolling| rolling.max_unavailable.as_ref()) {
        Some(value) => scaled(Some(value), desired, true),
        None => 1,
    };
    if surge == 0 && missing == 0 {
        (0, 1)
    } else {
        (surge, missing)
    }
}

/// Replaces old pods: those that serve nobody at once, the others within the limits.
fn roll(view: &View, plan: &mut Plan) {
    let (surge, missing) = limits(view);
    let (mut unavailable, mut surging) = (0, 0);
    let (mut broken, mut candidates) = (Vec::new(), Vec::new());
    for (node, pods) in &view.pods {
        let mut alive = pods.iter().filter(|pod| !is_deleting(pod));
        let old = alive.clone().find(|pod| !view.is_current(pod));
        let new = alive.find(|pod| view.is_current(pod));
        match (old, new) {
            (None, None) => unavailable += 1,
            (None, Some(new)) => unavailable += i32::from(!view.is_available(new)),
            (Some(_), Some(_)) => surging += 1,
            (Some(old), None) if view.is_available(old) => candidates.push((node, old)),
            (Some(old), None) => {
                unavailable += 1;
                broken.push((node, old));
            }
        }
    }
    let room = if surge > 0 {
        surge - surging
    } else {
        missing - unavailable
    };
    let chosen = candidates
        .into_iter()
        .take(usize::try_from(room).unwrap_or(0));
    for (node, old) in broken.into_iter().chain(chosen) {
        if surge > 0 {
            plan.create.push(node.clone());
        } else {
            plan.delete.push(old.clone());
        }
    }
}

fn status(view: &View) -> DaemonSetStatus {
    let (spec, before) = (view.spec(), view.set.status.clone().unwrap_or_default());
    let mut status = DaemonSetStatus {
        observed_generation: view.set.metadata.generation,
        collision_count: before.collision_count,
        conditions: before.conditions,
        ..Default::default()
    };
    let (mut updated, mut available) = (0, 0);
    for node in view.nodes {
        let pods = view.on(node);
        match (fits(&spec, node).0, pods.first()) {
            (true, Some(pod)) => {
                status.desired_number_scheduled += 1;
                status.current_number_scheduled += 1;
                status.number_ready += i32::from(is_ready(pod));
                available += i32::from(view.is_available(pod));
                updated += i32::from(view.is_current(pod));
            }
            (true, None) => status.desired_number_scheduled += 1,
            (false, Some(_)) => status.number_misscheduled += 1,
            (false, None) => {}
        }
    }
    let positive = |count: i32| (count > 0).then_some(count);
    status.updated_number_scheduled = positive(updated);
    status.number_available = positive(available);
    status.number_unavailable = positive(status.desired_number_scheduled - available);
    status
}

/// The template with what every daemon tolerates: it belongs to the node, sick or well.
fn template(set: &DaemonSet) -> PodTemplateSpec {
    let mut template = set.spec.clone().unwrap_or_default().template;
    let spec = template.spec.get_or_insert_default();
    let host = spec.host_network == Some(true);
    let mut taints = vec![
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    ];
    taints.extend(host.then_some(("network-unavailable", "NoSchedule")));
    let tolerations = spec.tolerations.get_or_insert_default();
    for (key, effect) in taints {
        let toleration = Toleration {
            key: Some(format!("node.kubernetes.io/{key}")),
            operator: Some("Exists".into()),
            effect: Some(effect.into()),
            ..Default::default()
        };
        if !tolerations.contains(&toleration) {
            tolerations.push(toleration);
        }
    }
    template
}

/// A pod that can run on one node only.
fn daemon(set: &DaemonSet, node: &str, hash: &str) -> Pod {
    let mut pod = podcontrol::from_template(set, Some(&template(set)));
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(history::HASH.to_owned(), hash.to_owned());
    let generation = set.metadata.generation.unwrap_or(1).to_string();
    labels.insert("pod-template-generation".to_owned(), generation);
    let field = NodeSelectorRequirement {
        key: "metadata.name".into(),
        operator: "In".into(),
        values: Some(vec![node.to_owned()]),
    };
    let spec = pod.spec.get_or_insert_default();
    let affinity: &mut Affinity = spec.affinity.get_or_insert_default();
    let affinity: &mut NodeAffinity = affinity.node_affinity.get_or_insert_default();
    let required = &mut affinity.required_during_scheduling_ignored_during_execution;
    let terms = match required.take() {
        Some(required) if !required.node_selector_terms.is_empty() => required.node_selector_terms,
        _ => vec![NodeSelectorTerm::default()],
    };
    let pinned = terms.into_iter().map(|term| NodeSelectorTerm {
        match_fields: Some(vec![field.clone()]),
        ..term
    });
    *required = Some(NodeSelector {
        node_selector_terms: pinned.collect(),
    });
    pod
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::{
            apps::v1::{DaemonSetSpec, DaemonSetUpdateStrategy, RollingUpdateDaemonSet},
            core::v1::{NodeSpec, Taint},
        },
        apimachinery::pkg::util::intstr::IntOrString,
    };

    use super::*;
    use crate::pods::samples::{self, at};

    fn set(surge: i32, missing: i32) -> DaemonSet {
        let rolling = RollingUpdateDaemonSet {
            max_surge: Some(IntOrString::Int(surge)),
            max_unavailable: Some(IntOrString::Int(missing)),
        };
        let strategy = DaemonSetUpdateStrategy {
            rolling_update: Some(rolling),
            type_: None,
        };
        let spec = DaemonSetSpec {
            update_strategy: Some(strategy),
            ..Default::default()
        };
        DaemonSet {
            spec: Some(spec),
            ..Default::default()
        }
    }

    fn node(name: &str, taint: Option<&str>) -> Arc<Node> {
        let mut node = Node::default();
        node.metadata.name = Some(name.into());
        let taint = taint.map(|effect| {
            vec![Taint {
                key: "k".into(),
                effect: effect.into(),
                ..Default::default()
            }]
        });
        node.spec = Some(NodeSpec {
            taints: taint,
            ..Default::default()
        });
        Arc::new(node)
    }

    fn pod(name: &str, node: &str, hash: &str, ready: bool) -> Arc<Pod> {
        let mut pod = samples::pod(name, ready.then_some(1));
        pod.spec.as_mut().unwrap().node_name = Some(node.into());
        pod.metadata.labels = Some([(history::HASH.into(), hash.into())].into());
        Arc::new(pod)
    }

    fn told(set: &DaemonSet, nodes: &[Arc<Node>], pods: &[Arc<Pod>]) -> String {
        let view = View {
            set,
            hash: "new",
            nodes,
            pods: by_node(pods),
            now: at(100),
        };
        let plan = decide(&view);
        let gone: Vec<_> = plan
            .delete
            .iter()
            .map(|pod| pod.metadata.name.clone().unwrap())
            .collect();
        format!("+{} -{}", plan.create.join(","), gone.join(","))
    }

    #[test]
    fn every_node_that_fits_gets_one_pod_and_others_lose_theirs() {
        let nodes = [
            node("a", None),
            node("b", Some("NoSchedule")),
            node("c", Some("NoExecute")),
        ];
        let pods = [pod("on-c", "c", "new", true)];
        assert_eq!(told(&set(0, 1), &nodes, &pods), "+a -on-c");
        let stays = [pod("on-a", "a", "new", true), pod("on-b", "b", "new", true)];
        assert_eq!(told(&set(0, 1), &nodes, &stays), "+ -");
    }

    #[test]
    fn an_update_replaces_broken_pods_at_once_and_good_ones_within_the_limit() {
        let nodes = [node("a", None), node("b", None), node("c", None)];
        let old = |name: &str, ready| pod(name, name, "old", ready);
        let good = [old("a", true), old("b", true), old("c", true)];
        assert_eq!(told(&set(0, 1), &nodes, &good), "+ -a");
        assert_eq!(told(&set(0, 2), &nodes, &good), "+ -a,b");
        let broken = [old("a", true), old("b", false), old("c", true)];
        assert_eq!(told(&set(0, 1), &nodes, &broken), "+ -b");
        assert_eq!(
            told(&set(1, 0), &nodes, &good),
            "+a -",
            "surging adds before it removes"
        );
    }

    #[test]
    fn a_daemon_is_pinned_to_its_node_and_tolerates_its_troubles() {
        let daemon = daemon(&set(0, 1), "n7", "h");
        assert_eq!(target(&daemon).as_deref(), Some("n7"));
        let tolerations = daemon.spec.unwrap().tolerations.unwrap();
        assert_eq!(tolerations.len(), 6);
    }
}
