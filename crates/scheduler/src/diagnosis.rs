//! Why a pod has no node: its filters evaluate every node now, with the numbers that the pod's
//! condition omits and hints that would help. Computed on demand; nothing is stored.

use std::{collections::BTreeSet, sync::Arc};

use machinery::quantity::{Format, Quantity};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use crate::{
    cluster::{Cluster, Slot},
    cycle::Scheduling,
    framework::{candidates::Rejection, profile::Profile},
    plugins::{
        dynamic_resources, inter_pod_affinity, node_affinity, node_name, node_ports,
        node_resources_fit, node_unschedulable, node_volume_limits, pod_topology_spread,
        taint_toleration, volume_binding, volume_restrictions, volume_zone,
    },
    pod::PodInfo,
};

/// The capacity of the request queue.
const MAX_QUEUED_DIAGNOSES: usize = 16;
/// The maximum number of feasible nodes that are named.
const NAMED: usize = 10;

/// Why a pod has no node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Diagnosis {
    /// The message that the pod's condition would have now, without what preemption adds.
    pub message: String,
    /// The pod's queue, as metrics name it; empty if no scheduler was asked.
    pub queue: String,
    /// The number of attempts.
    pub attempts: u32,
    /// Why each node is rejected, ordered by name.
    pub nodes: Vec<NodeDiagnosis>,
    /// The number of feasible nodes.
    pub fitting: usize,
    /// Some of them.
    pub fitting_nodes: Vec<String>,
    /// Hints.
    pub help: Vec<String>,
}

/// Why one node is rejected.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeDiagnosis {
    /// The node's name.
    pub name: String,
    /// The plugin that rejected it.
    pub plugin: String,
    /// The reasons in Kubernetes' words, with numbers.
    pub reasons: Vec<String>,
    /// Whether preemption could help.
    pub removing_pods_helps: bool,
}

/// Evaluates every node for a pod. Extenders are not asked.
pub fn diagnose(scheduling: &mut Scheduling, profile: &Profile, pod: &Arc<PodInfo>) -> Diagnosis {
    let failure = match scheduling.judge(profile, pod) {
        Ok(fitting) => {
            let name = |slot: &Slot| scheduling.cluster.names[*slot].to_string();
            let mut fitting_nodes: Vec<String> = fitting.iter().map(name).collect();
            fitting_nodes.sort_unstable();
            fitting_nodes.truncate(NAMED);
            return Diagnosis {
                fitting: fitting.len(),
                fitting_nodes,
                ..Diagnosis::default()
            };
        }
        Err(failure) => failure,
    };
    let cluster = &scheduling.cluster;
    let node = |rejection: &Rejection| {
        let with_numbers = |reason| with_numbers(cluster, rejection.slot, pod, reason);
        let reasons = rejection.reasons.iter().map(|reason| &**reason);
        NodeDiagnosis {
            name: cluster.names[rejection.slot].to_string(),
            plugin: rejection.plugin.to_owned(),
            reasons: reasons.map(with_numbers).collect(),
            removing_pods_helps: rejection.resolvable,
        }
    };
    let mut nodes: Vec<NodeDiagnosis> = failure.rejected.iter().map(node).collect();
    nodes.sort_by(|one, other| one.name.cmp(&other.name));
    let all_taints = failure.rejected.iter().filter_map(|rejection| {
        let by_taint = rejection.plugin == taint_toleration::NAME;
        by_taint.then(|| taints(cluster, rejection.slot))
    });
    let is_ill = all_taints
        .into_iter()
        .any(|taints| taints.contains("node.kubernetes.io/"));
    Diagnosis {
        message: failure.message(),
        nodes,
        help: help(&failure.plugins, is_ill),
        ..Diagnosis::default()
    }
}

/// The hint for plugins about volumes; the asker knows the claims of the pod.
pub const CLAIM_HELP: &str = "mainstay why pvc/NAME";

/// Hints for these plugins; `is_ill` if a node has a taint of its own conditions.
fn help(plugins: &BTreeSet<&'static str>, is_ill: bool) -> Vec<String> {
    let help = |plugin: &&'static str| match *plugin {
        node_resources_fit::NAME => {
            "lower the pod's requests, delete other pods, or add a node: mainstay token create"
        }
        taint_toleration::NAME if is_ill => "the node itself has a problem: mainstay why node/NODE",
        taint_toleration::NAME => {
            "give the pod a toleration, or remove the taint: kubectl taint node NODE KEY-"
        }
        node_unschedulable::NAME => "kubectl uncordon NODE",
        node_affinity::NAME => {
            "compare the pod's nodeSelector and affinity with `kubectl get nodes --show-labels`"
        }
        inter_pod_affinity::NAME => {
            "compare the pod's podAffinity and podAntiAffinity with `kubectl get pods -A -o wide --show-labels`"
        }
        pod_topology_spread::NAME => {
            "add nodes to the domains with few pods, raise maxSkew, or set whenUnsatisfiable: ScheduleAnyway"
        }
        node_ports::NAME => {
            "another pod has the host port on every node: use a Service, or another hostPort"
        }
        node_name::NAME => "spec.nodeName names no node of this cluster: leave it empty",
        volume_binding::NAME
        | volume_zone::NAME
        | volume_restrictions::NAME
        | node_volume_limits::NAME => CLAIM_HELP,
        dynamic_resources::NAME => "kubectl get resourceclaims,resourceslices",
        _ => "",
    };
    let mut all: Vec<String> = plugins.iter().map(help).map(str::to_owned).collect();
    all.retain(|text| !text.is_empty());
    all.sort_unstable();
    all.dedup();
    all
}

/// `Insufficient cpu` with the requested and the free amount.
fn with_numbers(cluster: &Cluster, slot: Slot, pod: &PodInfo, reason: &str) -> String {
    let Some(resource) = reason.strip_prefix("Insufficient ") else {
        return match reason {
            "Too many pods" => {
                let (used, most) = (cluster.count.used[slot], cluster.count.allocatable[slot]);
                format!("{reason} ({used} of {most})")
            }
            _ if reason.contains("untolerated taint") => {
                format!("{reason}: {}", taints(cluster, slot))
            }
            _ => reason.to_owned(),
        };
    };
    let column = match resource {
        "cpu" => &cluster.cpu,
        "memory" => &cluster.memory,
        "ephemeral-storage" => &cluster.ephemeral,
        other => match cluster.others.get(other) {
            Some(column) => column,
            None => return format!("{reason} (the node has none)"),
        },
    };
    let show = |amount: i64| match resource {
        "cpu" => Quantity::from_millis(amount).to_string(),
        _ => Quantity::from_value(amount, Format::Binary).to_string(),
    };
    let asked = pod.template.requests.amount(resource);
    let (free, all) = (column.free(slot).max(0), column.allocatable[slot]);
    let (asked, free, all) = (show(asked), show(free), show(all));
    format!("{reason} (requests {asked}, {free} of {all} is free)")
}

/// The taints that exclude pods; whether the pod tolerates them is not checked.
fn taints(cluster: &Cluster, slot: Slot) -> String {
    let taints = cluster.node(slot).into_iter().flat_map(|node| &node.taints);
    let hard = taints.filter(|taint| taint.effect != "PreferNoSchedule");
    let shown = hard.map(|taint| {
        let value = taint.value.as_deref().unwrap_or_default();
        format!("{}={value}:{}", taint.key, taint.effect).replace("=:", ":")
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// A request about a pod.
pub(crate) struct Question {
    pub(crate) uid: String,
    pub(crate) answer: oneshot::Sender<Option<Diagnosis>>,
}

/// Asks the scheduler of this process. Clones share it.
#[derive(Clone, Default)]
pub struct Diagnoses {
    /// Guards the channel to the scheduler's loop; `None` while it does not run here.
    questions: Arc<Mutex<Option<mpsc::Sender<Question>>>>,
}

impl Diagnoses {
    /// Why the pod with this uid is pending; `None` if it is not pending here, or no scheduler
    /// runs.
    pub async fn get(&self, uid: &str) -> Option<Diagnosis> {
        let questions = self.questions.lock().clone()?;
        let (answer, diagnosis) = oneshot::channel();
        let uid = uid.to_owned();
        questions.send(Question { uid, answer }).await.ok()?;
        diagnosis.await.ok()?
    }

    /// Opens the channel for requests.
    pub(crate) fn open(&self) -> mpsc::Receiver<Question> {
        let (sender, receiver) = mpsc::channel(MAX_QUEUED_DIAGNOSES);
        *self.questions.lock() = Some(sender);
        receiver
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    fn diagnosed(nodes: Vec<crate::cluster::NodeInfo>, pod: &Arc<PodInfo>) -> Diagnosis {
        let mut scheduling = Scheduling::new(0);
        for node in nodes {
            scheduling.cluster.put_node(node);
        }
        diagnose(&mut scheduling, &Profile::default_scheduler(), pod)
    }

    #[test]
    fn each_node_has_its_plugin_its_numbers_and_whether_preemption_could_help() {
        let nodes = vec![
            samples::node("small", "1", "8Gi"),
            samples::cordoned("closed"),
        ];
        let diagnosis = diagnosed(nodes, &samples::pod("a", "2", "1Gi"));
        let seen: Vec<_> = diagnosis
            .nodes
            .iter()
            .map(|node| {
                (
                    &*node.name,
                    &*node.plugin,
                    &*node.reasons[0],
                    node.removing_pods_helps,
                )
            })
            .collect();
        let cordoned = "node(s) were unschedulable";
        let small = "Insufficient cpu (requests 2, 1 of 1 is free)";
        assert_eq!(
            seen,
            [
                ("closed", "NodeUnschedulable", cordoned, false),
                ("small", "NodeResourcesFit", small, false),
            ]
        );
        assert_eq!(diagnosis.help.len(), 2, "{:?}", diagnosis.help);
        assert_eq!(diagnosis.fitting, 0);
    }

    #[test]
    fn a_diagnosis_lists_feasible_nodes_and_changes_no_decision() {
        let nodes = || (0..3).map(|number| samples::node(&format!("n{number}"), "4", "8Gi"));
        let (mut asked, mut other) = (Scheduling::new(7), Scheduling::new(7));
        let profile = Profile::default_scheduler();
        for (node, same) in nodes().zip(nodes()) {
            asked.cluster.put_node(node);
            other.cluster.put_node(same);
        }
        for number in 0..9 {
            let pod = samples::pod(&format!("p{number}"), "1", "1Gi");
            let diagnosis = diagnose(&mut asked, &profile, &pod);
            assert!(diagnosis.fitting > 0 && diagnosis.nodes.is_empty());
            let chosen = |scheduling: &mut Scheduling| match scheduling.schedule(&profile, &pod) {
                crate::cycle::Outcome::Node { slot, .. } => {
                    let node = scheduling.cluster.names[slot].clone();
                    scheduling.cluster.put_pod(&node, pod.clone());
                    slot
                }
                crate::cycle::Outcome::Failed(failure) => panic!("{failure:?}"),
            };
            assert_eq!(chosen(&mut asked), chosen(&mut other));
        }
    }

    #[test]
    fn every_filter_plugin_but_those_about_features_has_help() {
        let profile = Profile::default_scheduler();
        for enabled in profile.at(crate::framework::Point::Filter) {
            let name = enabled.plugin.name();
            let known = !help(&[name].into(), false).is_empty();
            assert_eq!(
                known,
                name != crate::plugins::node_declared_features::NAME,
                "{name}"
            );
        }
    }

    #[tokio::test]
    async fn without_a_running_scheduler_there_is_no_diagnosis() {
        let diagnoses = Diagnoses::default();
        assert_eq!(diagnoses.get("a").await, None);
        drop(diagnoses.open());
        assert_eq!(diagnoses.get("a").await, None);
    }
}
