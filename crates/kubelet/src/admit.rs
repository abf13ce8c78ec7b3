//! The kubelet's admission of pods: rejects pods that do not fit, whose host ports are in use, or
//! that set sysctls which are not allowed. A rejected pod fails; its controller creates another.
//!
//! Decisions are serial: a pod counts against the next one from its admission until it has ended
//! or is gone from its source (deleted with grace period 0), as upstream.

mod affinity;
mod ports;
mod preempt;
mod resize;
mod sysctls;

pub(crate) use resize::NoRoom;
pub use sysctls::is_allowable as is_allowable_sysctl;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::{
    api::core::v1::{Node, NodeSelector, Pod},
    apimachinery::pkg::api::resource::Quantity,
};
use machinery::{pod_resources::ResourceList, quantity};
use parking_lot::Mutex;
use reconcile::pod_resources::{Field, from_spec};
use tokio::sync::watch;

use crate::{
    make::apparmor,
    pod::spec::{self, QosClass},
};

/// Why a pod is refused: reason and message as in its status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub reason: String,
    pub message: String,
}

fn refusal(reason: &str, message: impl Into<String>) -> Refusal {
    Refusal {
        reason: reason.to_owned(),
        message: message.into(),
    }
}

/// The node as admission sees it.
pub struct NodeView<'a> {
    /// The Node object as the API shows it now, with its current labels.
    pub node: &'a Node,
    pub allocatable: &'a BTreeMap<String, Quantity>,
    /// Unsafe sysctls that the administrator allows; `*` at the end matches any suffix.
    pub allowed_unsafe_sysctls: &'a [String],
    /// The error says why this node cannot enforce AppArmor profiles.
    pub apparmor: std::result::Result<(), &'static str>,
}

/// The pods that were admitted and have not ended.
#[derive(Default)]
pub struct Admitted {
    /// Locked for a whole decision, so that two pods never both get the last free resources.
    state: Mutex<State>,
    /// The sum of the burstable pods' cpu requests in millicores: the cpu weight of their QoS
    /// class.
    burstable: watch::Sender<i64>,
}

#[derive(Default)]
struct State {
    /// By uid.
    pods: BTreeMap<String, Counted>,
    /// Critical pods that wait until their victims have ended.
    waiting: BTreeSet<String>,
    /// Pods that wait for a new size, by uid.
    deferred: BTreeMap<String, resize::Deferred>,
    /// Pods that are being preempted.
    leaving: BTreeSet<String>,
}

struct Counted {
    pod: Arc<Pod>,
    burstable: i64,
}

impl State {
    fn insert(&mut self, pod: &Arc<Pod>) {
        let burstable = match spec::qos_class(pod) {
            QosClass::Burstable => request(pod, "cpu"),
            _ => 0,
        };
        let pod = pod.clone();
        self.pods
            .insert(spec::uid(&pod).to_owned(), Counted { pod, burstable });
    }

    fn others(&self, uid: &str) -> Vec<&Pod> {
        let all = self.pods.iter().filter(|(other, _)| *other != uid);
        all.map(|(_, counted)| counted.pod.as_ref()).collect()
    }
}

/// The decision about a pod that may run here.
#[derive(Debug, Clone, PartialEq)]
pub enum AdmitResult {
    /// The pod may start.
    Here,
    /// These pods must end first. The pod's requests count already; it is decided again when they
    /// have ended.
    After(Vec<Arc<Pod>>),
}

impl Admitted {
    /// Decides about a pod. An admitted pod's requests count from then on.
    pub fn admit(
        &self,
        pod: &Arc<Pod>,
        view: &NodeView,
    ) -> std::result::Result<AdmitResult, Refusal> {
        let mut state = self.state.lock();
        let uid = spec::uid(pod);
        let others = state.others(uid);
        let short = decide(pod, &others, view)?;
        if short.is_empty() {
            state.waiting.remove(uid);
            self.count(&mut state, pod);
            return Ok(AdmitResult::Here);
        }
        let victims = victims(pod, &others, &short, &state.leaving, view)?;
        state
            .leaving
            .extend(victims.iter().map(|pod| spec::uid(pod).to_owned()));
        state.waiting.insert(uid.to_owned());
        self.count(&mut state, pod);
        Ok(AdmitResult::After(victims))
    }

    /// Counts a pod that already runs, without deciding about it. One that counts already keeps its size.
    pub fn keep(&self, pod: &Arc<Pod>) {
        let mut state = self.state.lock();
        if !state.pods.contains_key(spec::uid(pod)) {
            self.count(&mut state, pod);
        }
    }

    /// Replaces an admitted pod with a newer version that asks for no other size than it has.
    pub fn follow(&self, pod: &Arc<Pod>) {
        let mut state = self.state.lock();
        let uid = spec::uid(pod);
        state.deferred.remove(uid);
        if state.pods.contains_key(uid) {
            self.count(&mut state, pod);
        }
    }

    /// Stops counting a pod that has ended or is gone. Returns the pods that waited for its
    /// resources and are to be decided about, or have got them.
    pub fn release(&self, uid: &str, allocatable: &BTreeMap<String, Quantity>) -> Vec<String> {
        let mut state = self.state.lock();
        state.waiting.remove(uid);
        state.deferred.remove(uid);
        state.leaving.remove(uid);
        if state.pods.remove(uid).is_none() {
            return Vec::new();
        }
        self.show_weight(&state);
        let mut wake = self.grant(&mut state, allocatable);
        wake.extend(state.waiting.iter().cloned());
        wake
    }

    /// Watches the sum of the burstable pods' cpu requests in millicores.
    pub fn burstable(&self) -> watch::Receiver<i64> {
        self.burstable.subscribe()
    }

    fn count(&self, state: &mut State, pod: &Arc<Pod>) {
        state.insert(pod);
        self.show_weight(state);
    }

    fn show_weight(&self, state: &State) {
        let total = sum(state.pods.values().map(|counted| counted.burstable));
        self.burstable.send_if_modified(|shown| {
            let changed = *shown != total;
            *shown = total;
            changed
        });
    }
}

/// The pods to preempt for a critical pod. A pod that is not critical is rejected instead.
fn victims(
    pod: &Pod,
    others: &[&Pod],
    short: &[Shortage],
    leaving: &BTreeSet<String>,
    view: &NodeView,
) -> std::result::Result<Vec<Arc<Pod>>, Refusal> {
    if !spec::is_critical(pod) {
        let reason = format!("OutOf{}", short[0].resource);
        return Err(refusal(&reason, short[0].to_string()));
    }
    // Pods that are already being preempted are not picked again.
    let staying: Vec<&Pod> = others
        .iter()
        .filter(|other| !leaving.contains(spec::uid(other)))
        .copied()
        .collect();
    let short = shortages(pod, &staying, view.allocatable);
    let found = preempt::victims(pod, &staying, &short).map_err(|why| {
        let message = format!(
            "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to preempt: {why}"
        );
        refusal("UnexpectedAdmissionError", message)
    })?;
    Ok(found.into_iter().cloned().map(Arc::new).collect())
}

/// Rejects the pod for anything but a shortage. Returns the resources that are short; the caller
/// may preempt other pods for them.
fn decide(
    pod: &Pod,
    others: &[&Pod],
    view: &NodeView,
) -> std::result::Result<Vec<Shortage>, Refusal> {
    let spec = spec::spec(pod);
    sysctls::check(pod, view.allowed_unsafe_sysctls)?;
    if let (true, Err(why)) = (apparmor::is_required(pod), view.apparmor) {
        return Err(refusal(
            "AppArmor",
            format!("Cannot enforce AppArmor: {why}"),
        ));
    }
    if spec.os.as_ref().is_some_and(|os| os.name != "linux") {
        let message = "Failed to admit pod as the OS field doesn't match node OS";
        return Err(refusal("PodOSNotSupported", message));
    }
    let short = shortages(pod, others, view.allocatable);
    if !short.is_empty() && !spec::is_critical(pod) {
        return Ok(short);
    }
    if !affinity::matches(pod, view.node) {
        let message =
            "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
        return Err(refusal("NodeAffinity", message));
    }
    if ports::conflict(pod, others) {
        let message = "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports";
        return Err(refusal("NodePorts", message));
    }
    Ok(short)
}

/// The resource that does not suffice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    pub resource: String,
    pub requested: i64,
    pub used: i64,
    pub capacity: i64,
}

impl std::fmt::Display for Shortage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Node didn't have enough resource: {}, requested: {}, used: {}, capacity: {}",
            self.resource, self.requested, self.used, self.capacity
        )
    }
}

/// Whether a selector selects this node.
pub(crate) fn node_matches(selector: &NodeSelector, node: &Node) -> bool {
    affinity::selects(selector, node)
}

/// The resources of which too little is left for the pod beside the others. Resources that the node
/// does not have are not checked.
pub(crate) fn shortages(
    pod: &Pod,
    others: &[&Pod],
    allocatable: &BTreeMap<String, Quantity>,
) -> Vec<Shortage> {
    const FIRST: [&str; 4] = ["pods", "cpu", "memory", "ephemeral-storage"];
    let rest = allocatable
        .keys()
        .map(String::as_str)
        .filter(|name| !FIRST.contains(name));
    let total = |pod| from_spec(Field::Requests, pod).total();
    let (own, others) = (total(pod), others.iter().copied().map(total));
    let others: Vec<ResourceList<'_>> = others.collect();
    let short = FIRST.into_iter().chain(rest).filter_map(|resource| {
        let of = |requests: &ResourceList<'_>| match resource {
            "pods" => 1,
            _ => units(requests, resource),
        };
        let capacity = quantity::units(&allocatable.get(resource)?.0, resource)?;
        let requested = of(&own);
        let used = sum(others.iter().map(of));
        let short = requested > 0 && requested.saturating_add(used) > capacity;
        short.then(|| Shortage {
            resource: resource.to_owned(),
            requested,
            used,
            capacity,
        })
    });
    short.collect()
}

/// A pod's total request: cpu in millicores, others in their own unit.
pub(crate) fn request(pod: &Pod, resource: &str) -> i64 {
    units(&from_spec(Field::Requests, pod).total(), resource)
}

/// An amount of a list: cpu in millicores, others in their own unit; zero if the list has none.
pub(crate) fn units(list: &ResourceList<'_>, resource: &str) -> i64 {
    list.get(resource)
        .map_or(0, |amount| amount.units(resource))
}

/// Sums quantities. Users may write any size, so the sum saturates.
fn sum(amounts: impl Iterator<Item = i64>) -> i64 {
    amounts.fold(0, i64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, spec: serde_json::Value) -> Arc<Pod> {
        let json = serde_json::json!({"metadata": {"name": name, "uid": name}, "spec": spec});
        Arc::new(serde_json::from_value(json).unwrap())
    }

    fn asking(name: &str, cpu: &str) -> Arc<Pod> {
        pod(
            name,
            serde_json::json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": cpu}}}]}),
        )
    }

    fn allocatable() -> BTreeMap<String, Quantity> {
        let list = [
            ("cpu", "2"),
            ("memory", "1Gi"),
            ("pods", "3"),
            ("example.com/gpu", "1"),
        ];
        list.map(|(name, text)| (name.to_owned(), Quantity(text.into())))
            .into()
    }

    fn admit(admitted: &Admitted, pod: &Arc<Pod>, labels: serde_json::Value) -> Option<Refusal> {
        let node = serde_json::json!({"metadata": {"name": "n", "labels": labels}});
        let node: Node = serde_json::from_value(node).unwrap();
        let view = NodeView {
            node: &node,
            allocatable: &allocatable(),
            allowed_unsafe_sysctls: &["kernel.msg*".to_owned()],
            apparmor: Err("AppArmor is not enabled on the host"),
        };
        admitted.admit(pod, &view).err()
    }

    fn reason(admitted: &Admitted, pod: &Arc<Pod>) -> Option<String> {
        admit(admitted, pod, serde_json::json!({})).map(|refusal| refusal.reason)
    }

    #[test]
    fn of_two_pods_that_compete_for_the_last_place_one_is_admitted() {
        let admitted = Admitted::default();
        assert_eq!(reason(&admitted, &asking("a", "1600m")), None);
        let refused = admit(&admitted, &asking("b", "1600m"), serde_json::json!({})).unwrap();
        assert_eq!(
            refused.message,
            "Node didn't have enough resource: cpu, requested: 1600, used: 1600, capacity: 2000"
        );
        // A rejected pod does not count, nor does one that has ended.
        assert_eq!(reason(&admitted, &asking("c", "400m")), None);
        assert_eq!(
            reason(&admitted, &asking("d", "1")),
            Some("OutOfcpu".into())
        );
        admitted.release("a", &allocatable());
        assert_eq!(reason(&admitted, &asking("d", "1")), None);
        assert_eq!(reason(&admitted, &asking("e", "0")), None);
        assert_eq!(
            reason(&admitted, &asking("f", "0")),
            Some("OutOfpods".into())
        );
    }

    #[test]
    fn the_pods_own_request_and_overhead_count_and_foreign_resources_do_not() {
        let spec = serde_json::json!({"resources": {"requests": {"cpu": "1"}}, "overhead": {"cpu": "100m"},
            "containers": [{"name": "a", "resources": {"requests": {"cpu": "300m"}}}]});
        assert_eq!(request(&pod("a", spec), "cpu"), 1100);
        let gpu = |count: &str, name: &str| {
            pod(
                name,
                serde_json::json!({"containers": [{"name": "a", "resources": {"requests": {name: count}}}]}),
            )
        };
        let admitted = Admitted::default();
        assert_eq!(reason(&admitted, &gpu("9", "example.com/unknown")), None);
        let reason = reason(&admitted, &gpu("2", "example.com/gpu"));
        assert_eq!(reason, Some("OutOfexample.com/gpu".into()));
    }

    #[test]
    fn the_nodes_labels_of_this_moment_decide() {
        let zone = pod(
            "a",
            serde_json::json!({"containers": [], "nodeSelector": {"zone": "a"}}),
        );
        let admitted = Admitted::default();
        let refused = admit(&admitted, &zone, serde_json::json!({"zone": "b"})).unwrap();
        assert_eq!(refused.reason, "NodeAffinity");
        assert_eq!(
            admit(&admitted, &zone, serde_json::json!({"zone": "a"})),
            None
        );
    }

    #[test]
    fn a_host_port_that_is_in_use_refuses_the_pod() {
        let on = |name: &str, port: serde_json::Value| {
            pod(
                name,
                serde_json::json!({"containers": [{"name": "a", "ports": [port]}]}),
            )
        };
        let admitted = Admitted::default();
        let port = |ip: &str, protocol: &str| serde_json::json!({"containerPort": 1, "hostPort": 80, "hostIP": ip, "protocol": protocol});
        assert_eq!(reason(&admitted, &on("a", port("10.0.0.1", "TCP"))), None);
        assert_eq!(reason(&admitted, &on("b", port("10.0.0.2", "TCP"))), None);
        assert_eq!(
            reason(&admitted, &on("c", port("", "TCP"))),
            Some("NodePorts".into())
        );
        assert_eq!(reason(&admitted, &on("d", port("", "UDP"))), None);
        admitted.release("a", &allocatable());
        admitted.release("b", &allocatable());
        assert_eq!(reason(&admitted, &on("c", port("", "TCP"))), None);
    }

    #[test]
    fn pods_with_settings_the_node_cannot_enforce_are_refused() {
        let with = |context: serde_json::Value| {
            pod(
                "a",
                serde_json::json!({"containers": [], "securityContext": context}),
            )
        };
        let sysctl =
            |name: &str| with(serde_json::json!({"sysctls": [{"name": name, "value": "1"}]}));
        let cases = [
            (sysctl("kernel.shm_rmid_forced"), None),
            (sysctl("kernel.msgmax"), None),
            (sysctl("kernel/msgmax"), None),
            (sysctl("kernel.sem"), Some("SysctlForbidden")),
            (
                with(serde_json::json!({"appArmorProfile": {"type": "Unconfined"}})),
                None,
            ),
            (
                with(serde_json::json!({"appArmorProfile": {"type": "RuntimeDefault"}})),
                Some("AppArmor"),
            ),
        ];
        for (pod, expected) in cases {
            let admitted = Admitted::default();
            assert_eq!(
                reason(&admitted, &pod).as_deref(),
                expected,
                "{:?}",
                pod.spec
            );
        }
    }

    #[test]
    fn a_later_state_of_an_admitted_pod_replaces_the_earlier_one() {
        let admitted = Admitted::default();
        let first = asking("a", "1");
        let later = Arc::new(Pod::clone(&first));
        admitted.follow(&first);
        assert_eq!(Arc::strong_count(&first), 1, "it was not admitted");
        admitted.keep(&first);
        admitted.follow(&later);
        assert_eq!(Arc::strong_count(&first), 1);
        assert_eq!(Arc::strong_count(&later), 2);
        assert_eq!(*admitted.burstable().borrow(), 1000);
    }

    #[test]
    fn a_critical_pod_preempts_others_and_starts_after_they_ended() {
        let critical = |name: &str, cpu: &str| {
            let mut pod = Arc::unwrap_or_clone(asking(name, cpu));
            pod.spec.as_mut().unwrap().priority = Some(2_000_000_000);
            Arc::new(pod)
        };
        let decide = |admitted: &Admitted, pod: &Arc<Pod>| {
            let node = Node::default();
            let view = NodeView {
                node: &node,
                allocatable: &allocatable(),
                allowed_unsafe_sysctls: &[],
                apparmor: Ok(()),
            };
            admitted.admit(pod, &view)
        };
        let admitted = Admitted::default();
        for name in ["a", "b"] {
            assert_eq!(
                decide(&admitted, &asking(name, "900m")),
                Ok(AdmitResult::Here)
            );
        }
        assert_eq!(*admitted.burstable().borrow(), 1800);
        let wanted = critical("c", "1");
        let Ok(AdmitResult::After(victims)) = decide(&admitted, &wanted) else {
            panic!("no victims")
        };
        assert_eq!(victims.len(), 1);
        // Until the victim is gone no other is picked, and its resources are taken by the waiting
        // pod.
        assert_eq!(
            decide(&admitted, &wanted),
            Ok(AdmitResult::After(Vec::new()))
        );
        assert_eq!(
            admitted.release(spec::uid(&victims[0]), &allocatable()),
            ["c"]
        );
        assert!(decide(&admitted, &asking("d", "500m")).is_err());
        assert_eq!(decide(&admitted, &wanted), Ok(AdmitResult::Here));
        // A pod that requests more than the node has preempts nothing.
        let refused = decide(&admitted, &critical("e", "3")).unwrap_err();
        assert_eq!(refused.reason, "UnexpectedAdmissionError");
        assert!(
            refused.message.contains("(res: cpu, q: "),
            "{}",
            refused.message
        );
    }
}
