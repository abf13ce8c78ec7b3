//! A pod as the scheduler stores it: its identity, what differs from pod to pod, and a shared
//! template.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, Pod, PodCondition};

use crate::{
    matching::LabelSet,
    recent_specs::{RecentSpecs, RememberedSpec},
    spec_memo::{Outline, SpecMemo},
    template::{Interner, Template, VolumeClaim},
};

/// The PodScheduled condition of a pending pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unscheduled {
    /// `Unschedulable` or `SchedulerError`.
    pub reason: String,
    /// The message.
    pub message: String,
}

/// One version of a pod.
#[derive(Debug)]
pub struct PodInfo {
    /// Its uid.
    pub uid: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Its requirements; shared with equal pods.
    pub template: Arc<Template>,
    /// What other pods' selectors see of it; shared with equal pods.
    pub label_set: Arc<LabelSet>,
    /// When it was created.
    pub created: Timestamp,
    /// When its kubelet admitted it.
    pub started: Option<Timestamp>,
    /// `metadata.generation`.
    pub generation: Option<i64>,
    /// The nominated node.
    pub nominated: Option<Arc<str>>,
    /// Whether the scheduler preempted it.
    pub preempted: bool,
    /// Its condition, if that says that it is not scheduled.
    pub unscheduled: Option<Box<Unscheduled>>,
    /// Generated resource claims: the name in the pod and the claim's name.
    pub made_claims: Box<[(String, Option<String>)]>,
}

impl PodInfo {
    /// A pod without shared parts.
    pub fn new(pod: &Pod) -> Self {
        Self::with(pod, Arc::new(Template::new(pod)), Arc::new(label_set(pod)))
    }

    fn with(pod: &Pod, template: Arc<Template>, label_set: Arc<LabelSet>) -> Self {
        let (meta, status) = (&pod.metadata, pod.status.as_ref());
        let shared = |text: Option<&String>| Arc::from(text.map_or("", String::as_str));
        let created = meta.creation_timestamp.as_ref().map(|time| time.0);
        let nominated = status.and_then(|status| status.nominated_node_name.as_deref());
        let conditions = || {
            status
                .into_iter()
                .flat_map(|s| s.conditions.iter().flatten())
        };
        let disrupted = |condition: &PodCondition| {
            condition.type_ == "DisruptionTarget"
                && condition.status == "True"
                && condition.reason.as_deref() == Some("PreemptionByScheduler")
        };
        let mut waiting = conditions()
            .filter(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
        let made = status.and_then(|status| status.resource_claim_statuses.as_ref());
        let made = made.into_iter().flatten();
        let made = made.map(|claim| (claim.name.clone(), claim.resource_claim_name.clone()));
        Self {
            uid: shared(meta.uid.as_ref()),
            name: shared(meta.name.as_ref()),
            created: created.unwrap_or(Timestamp::UNIX_EPOCH),
            started: status.and_then(|status| Some(status.start_time.as_ref()?.0)),
            generation: meta.generation,
            nominated: nominated.filter(|name| !name.is_empty()).map(Arc::from),
            preempted: label_set.terminating && conditions().any(disrupted),
            unscheduled: waiting.next().map(|condition| {
                Box::new(Unscheduled {
                    reason: condition.reason.clone().unwrap_or_default(),
                    message: condition.message.clone().unwrap_or_default(),
                })
            }),
            made_claims: made.collect(),
            template,
            label_set,
        }
    }

    /// Its namespace.
    pub fn namespace(&self) -> &Arc<str> {
        &self.template.namespace
    }

    /// Higher priorities are scheduled first.
    pub fn priority(&self) -> i32 {
        self.template.priority
    }

    /// Whether it is being deleted.
    pub fn is_terminating(&self) -> bool {
        self.label_set.terminating
    }

    /// The name of a claim that it mounts.
    pub fn claim_name(&self, claim: &VolumeClaim) -> String {
        match claim {
            VolumeClaim::Named(name) => name.clone(),
            VolumeClaim::Ephemeral(volume) => format!("{}-{volume}", self.name),
        }
    }

    /// Whether it uses the claim.
    pub fn uses_claim(&self, namespace: &str, name: &str) -> bool {
        let mut claims = self.template.claims.iter();
        **self.namespace() == *namespace && claims.any(|claim| self.claim_name(claim) == name)
    }

    /// An object reference for events.
    pub fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            namespace: Some(self.namespace().to_string()),
            name: Some(self.name.to_string()),
            uid: Some(self.uid.to_string()),
            ..Default::default()
        }
    }
}

fn label_set(pod: &Pod) -> LabelSet {
    LabelSet {
        namespace: Arc::from(pod.metadata.namespace.as_deref().unwrap_or_default()),
        labels: pod.metadata.labels.clone().unwrap_or_default(),
        terminating: pod.metadata.deletion_timestamp.is_some(),
    }
}

/// Makes pods that share equal parts.
#[derive(Debug, Default)]
pub struct Pods {
    templates: Interner<Template>,
    label_sets: Interner<LabelSet>,
    specs: SpecMemo,
    recent: RecentSpecs,
}

impl Pods {
    /// One version of a pod.
    pub fn info(&mut self, pod: &Pod) -> PodInfo {
        let template = self.templates.intern(Template::new(pod));
        PodInfo::with(pod, template, self.label_sets.intern(label_set(pod)))
    }

    /// A pod with the spec of a recent one: the pod without its spec, its node and its projection.
    pub(crate) fn recent(&mut self, text: &str) -> Option<(Pod, Option<String>, PodInfo)> {
        let (outline, template) = self.recent.read(text)?;
        let (pod, node) = outline.into_pod();
        let labels = self.label_sets.intern(label_set(&pod));
        let info = PodInfo::with(&pod, template, labels);
        Some((pod, node, info))
    }

    /// Remembers the spec of a pod that was read in another way.
    pub(crate) fn remember_recent(&mut self, spec: Option<RememberedSpec>, info: &PodInfo) {
        if let Some(spec) = spec {
            self.recent.remember(spec, &info.template);
        }
    }

    /// The hashes that identify the pod's template, as in [`SpecMemo::digest`].
    pub(crate) fn digest(&self, outline: &Outline<'_>) -> (u64, u64) {
        self.specs.digest(outline)
    }

    /// The pod with the template of this digest; `None` if the template is not known.
    pub(crate) fn known(&mut self, pod: &Pod, digest: (u64, u64)) -> Option<PodInfo> {
        let template = self.specs.get(digest)?;
        let labels = self.label_sets.intern(label_set(pod));
        Some(PodInfo::with(pod, template, labels))
    }

    /// Remembers the template of a digest.
    pub(crate) fn remember(&mut self, digest: (u64, u64), info: &PodInfo) {
        self.specs.put(digest, &info.template);
    }
}

/// The pod's node; `None` while it is pending.
pub fn node_name(pod: &Pod) -> Option<&str> {
    let name = pod.spec.as_ref()?.node_name.as_deref()?;
    (!name.is_empty()).then_some(name)
}

/// Whether its containers have ended for good.
pub fn has_ended(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placed_pod_takes_less_than_300_bytes_beside_its_template() {
        let heap = 2 * 16 + 36 + 40; // two shared strings: counts, a uid, a name
        assert!(
            size_of::<PodInfo>() + heap <= 300,
            "{}",
            size_of::<PodInfo>()
        );
    }
}
