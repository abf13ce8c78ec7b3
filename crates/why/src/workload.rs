//! Why a workload has fewer pods than it should: its conditions, and its pods.

use std::collections::BTreeSet;

use client::{Api, kube};
use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet},
    batch::v1::Job,
    core::v1::Pod,
};
use kube::{Resource, ResourceExt, api::ListParams};

use crate::{
    Answer, Result,
    events::{self, Warning},
    pod,
    question::Name,
};

/// How many pods with different causes are explained.
const SHOWN: usize = 3;
/// How many pods are examined to find them: each costs a few requests.
const EXAMINED: usize = 20;

/// What all workloads share.
struct Workload<'a> {
    kind: &'static str,
    name: &'a Name,
    uid: String,
    /// Desired and actual ready pods.
    wanted: i32,
    ready: i32,
    /// The failing conditions.
    complaints: Vec<String>,
}

pub(crate) async fn deployment(client: &kube::Client, name: &Name) -> Result<Answer> {
    let object: Deployment = get(client, name).await?;
    let spec = object.spec.clone().unwrap_or_default();
    let status = object.status.clone().unwrap_or_default();
    if spec.paused == Some(true) {
        return Ok(Answer::new(format!("deployment/{} is paused", name.name))
            .next(format!("kubectl rollout resume deployment/{}", name.name)));
    }
    let conditions = status.conditions.iter().flatten();
    let bad = conditions.filter(|condition| match condition.type_.as_str() {
        "ReplicaFailure" => condition.status == "True",
        _ => condition.status != "True",
    });
    let complaints =
        bad.map(|condition| complaint(condition.reason.as_deref(), condition.message.as_deref()));
    let wanted = spec.replicas.unwrap_or(1);
    let updated = status.updated_replicas.unwrap_or(0);
    let complaints = unfinished(updated, wanted).into_iter().chain(complaints);
    // Pods belong to its ReplicaSets.
    let sets: Vec<ReplicaSet> =
        owned(client, &name.namespace, &object.uid().into_iter().collect()).await?;
    let owners: BTreeSet<String> = sets.iter().filter_map(ResourceExt::uid).collect();
    let workload = Workload {
        kind: "deployment",
        name,
        uid: object.uid().unwrap_or_default(),
        wanted,
        ready: status.ready_replicas.unwrap_or(0),
        complaints: complaints.collect(),
    };
    workload.explain(client, &owners, "Deployment").await
}

/// A rollout that has not replaced all pods yet.
fn unfinished(updated: i32, wanted: i32) -> Option<String> {
    (updated < wanted).then(|| format!("{updated} of {wanted} pods have the current template"))
}

pub(crate) async fn replica_set(client: &kube::Client, name: &Name) -> Result<Answer> {
    let object: ReplicaSet = get(client, name).await?;
    let status = object.status.clone().unwrap_or_default();
    let bad = status
        .conditions
        .iter()
        .flatten()
        .filter(|condition| condition.status == "True");
    let workload = Workload {
        kind: "replicaset",
        name,
        uid: object.uid().unwrap_or_default(),
        wanted: object
            .spec
            .as_ref()
            .and_then(|spec| spec.replicas)
            .unwrap_or(1),
        ready: status.ready_replicas.unwrap_or(0),
        complaints: bad
            .map(|condition| complaint(condition.reason.as_deref(), condition.message.as_deref()))
            .collect(),
    };
    workload
        .explain(client, &BTreeSet::new(), "ReplicaSet")
        .await
}

pub(crate) async fn stateful_set(client: &kube::Client, name: &Name) -> Result<Answer> {
    let object: StatefulSet = get(client, name).await?;
    let workload = Workload {
        kind: "statefulset",
        name,
        uid: object.uid().unwrap_or_default(),
        wanted: object
            .spec
            .as_ref()
            .and_then(|spec| spec.replicas)
            .unwrap_or(1),
        ready: object
            .status
            .as_ref()
            .and_then(|status| status.ready_replicas)
            .unwrap_or(0),
        complaints: Vec::new(),
    };
    workload
        .explain(client, &BTreeSet::new(), "StatefulSet")
        .await
}

pub(crate) async fn daemon_set(client: &kube::Client, name: &Name) -> Result<Answer> {
    let object: DaemonSet = get(client, name).await?;
    let status = object.status.clone().unwrap_or_default();
    let misplaced = status.number_misscheduled;
    let is_current = status.observed_generation == object.metadata.generation;
    if is_current && status.desired_number_scheduled == 0 && misplaced == 0 {
        return Ok(on_no_node(&object));
    }
    let workload = Workload {
        kind: "daemonset",
        name,
        uid: object.uid().unwrap_or_default(),
        wanted: status.desired_number_scheduled,
        ready: status.number_ready,
        complaints: (misplaced > 0)
            .then(|| format!("{misplaced} pods are on nodes that they should not be on"))
            .into_iter()
            .collect(),
    };
    workload
        .explain(client, &BTreeSet::new(), "DaemonSet")
        .await
}

/// The explanation of a DaemonSet without any node.
fn on_no_node(object: &DaemonSet) -> Answer {
    let pod = object
        .spec
        .as_ref()
        .and_then(|spec| spec.template.spec.as_ref());
    let labels = pod.and_then(|pod| pod.node_selector.as_ref());
    let labels: Vec<String> = labels
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let cause = match labels.is_empty() {
        true => "no node matches its affinity, or each has a taint that it does not tolerate",
        false => {
            "no node has the labels of its nodeSelector, or each has a taint that it does not tolerate"
        }
    };
    let answer =
        Answer::new(format!("daemonset/{} is on no node", object.name_any())).because(cause);
    match labels.is_empty() {
        true => answer.next("kubectl describe nodes"),
        false => answer.next(format!("kubectl get nodes -l {}", labels.join(","))),
    }
}

pub(crate) async fn job(client: &kube::Client, name: &Name) -> Result<Answer> {
    let object: Job = get(client, name).await?;
    let spec = object.spec.clone().unwrap_or_default();
    let status = object.status.clone().unwrap_or_default();
    let is_true = |kind: &str| {
        status
            .conditions
            .iter()
            .flatten()
            .any(|condition| condition.type_ == kind && condition.status == "True")
    };
    let named = format!("job/{}", name.name);
    if is_true("Complete") {
        return Ok(Answer::new(format!(
            "{named} is complete: {} pods succeeded",
            status.succeeded.unwrap_or(0)
        )));
    }
    if is_true("Suspended") {
        return Ok(Answer::new(format!("{named} is suspended")).next(format!(
            "kubectl patch {named} --type=merge -p '{{\"spec\":{{\"suspend\":false}}}}'"
        )));
    }
    let bad = status.conditions.iter().flatten();
    let bad = bad.filter(|condition| {
        matches!(condition.type_.as_str(), "Failed" | "FailureTarget") && condition.status == "True"
    });
    let workload = Workload {
        kind: "job",
        name,
        uid: object.uid().unwrap_or_default(),
        wanted: spec.completions.or(spec.parallelism).unwrap_or(1),
        ready: status.succeeded.unwrap_or(0),
        complaints: bad
            .map(|condition| complaint(condition.reason.as_deref(), condition.message.as_deref()))
            .collect(),
    };
    workload.explain(client, &BTreeSet::new(), "Job").await
}

impl Workload<'_> {
    async fn explain(
        self,
        client: &kube::Client,
        more_owners: &BTreeSet<String>,
        kind: &str,
    ) -> Result<Answer> {
        let named = format!("{}/{}", self.kind, self.name.name);
        let (done, verb) = match self.kind {
            "job" => ("succeeded", "have succeeded"),
            _ => ("ready", "are ready"),
        };
        if self.ready >= self.wanted && self.complaints.is_empty() {
            return Ok(Answer::new(format!(
                "{named} is as it should be: {} of {} pods {verb}",
                self.ready, self.wanted
            )));
        }
        let mut answer = Answer::new(format!(
            "{named} has {} of {} pods {done}",
            self.ready, self.wanted
        ))
        .because_all(self.complaints.iter().cloned());
        let namespace = &self.name.namespace;
        let warnings = events::warnings(client, namespace, kind, &self.name.name).await?;
        answer = answer.because_all(warnings.iter().map(Warning::line));
        let mut texts = self
            .complaints
            .into_iter()
            .chain(warnings.iter().map(Warning::line));
        if let Some(quota) = texts.find_map(|text| exceeded_quota(&text).map(str::to_owned)) {
            answer = answer.next(format!(
                "raise the quota, or delete other objects: kubectl describe resourcequota {quota} -n {namespace}"
            ));
        }
        let mut owners = more_owners.clone();
        owners.insert(self.uid);
        let pods: Vec<Pod> = owned(client, namespace, &owners).await?;
        let mut verdicts = BTreeSet::new();
        for object in pods.iter().filter(|pod| !is_done(pod)).take(EXAMINED) {
            if verdicts.len() == SHOWN {
                break;
            }
            let explained = pod::explain_with(client, object).await?;
            // Pods with the same cause are reported once.
            let cause = explained.to_string().replace(&object.name_any(), "");
            if verdicts.insert(cause) {
                answer = answer.because_of(explained);
            }
        }
        Ok(answer)
    }
}

/// The name of the quota that a message of the API server names.
fn exceeded_quota(message: &str) -> Option<&str> {
    let (_, rest) = message.split_once("exceeded quota: ")?;
    rest.split([',', ' '])
        .next()
        .filter(|name| !name.is_empty())
}

fn complaint(reason: Option<&str>, message: Option<&str>) -> String {
    format!(
        "{}: {}",
        reason.unwrap_or("Unknown"),
        message.unwrap_or_default()
    )
}

/// Ready, or completed successfully.
fn is_done(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let ended = status.and_then(|status| status.phase.as_deref()) == Some("Succeeded");
    let conditions = status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions
        .into_iter()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True");
    ended || (ready && pod.metadata.deletion_timestamp.is_none())
}

async fn get<K>(client: &kube::Client, name: &Name) -> Result<K>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + client::FromJson
        + std::fmt::Debug,
{
    Ok(Api::<K>::namespaced(client.clone(), &name.namespace)
        .get(&name.name)
        .await?)
}

/// The objects of a namespace whose controller is one of these.
async fn owned<K>(
    client: &kube::Client,
    namespace: &str,
    owners: &BTreeSet<String>,
) -> Result<Vec<K>>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + client::FromJson
        + std::fmt::Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let mut objects = api.list(&ListParams::default()).await?;
    objects.retain(|object| {
        object
            .owner_references()
            .iter()
            .any(|owner| owner.controller == Some(true) && owners.contains(&owner.uid))
    });
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_set_on_no_node_says_which_labels_it_wants() {
        let object = |pod: serde_json::Value| -> DaemonSet {
            let spec = serde_json::json!({"selector": {}, "template": {"spec": pod}});
            let object = serde_json::json!({"metadata": {"name": "a"}, "spec": spec});
            serde_json::from_value(object).unwrap()
        };
        let selective = serde_json::json!({"containers": [], "nodeSelector": {"disk": "ssd"}});
        let text = on_no_node(&object(selective)).to_string();
        assert!(text.starts_with("daemonset/a is on no node"), "{text}");
        assert!(text.contains("-> kubectl get nodes -l disk=ssd"), "{text}");
        let any = on_no_node(&object(serde_json::json!({"containers": []}))).to_string();
        assert!(any.contains("affinity"), "{any}");
    }

    #[test]
    fn the_exceeded_quota_is_found_in_the_message() {
        let message = "pods \"a\" is forbidden: exceeded quota: few, requested: pods=1";
        assert_eq!(exceeded_quota(message), Some("few"));
        assert_eq!(exceeded_quota("pods \"a\" is forbidden"), None);
    }

    #[test]
    fn a_rollout_that_has_not_replaced_all_pods_is_unfinished() {
        let expected = "2 of 5 pods have the current template";
        assert_eq!(unfinished(2, 5).as_deref(), Some(expected));
        assert_eq!(unfinished(5, 5), None);
        assert_eq!(unfinished(0, 0), None);
    }
}
