//! What happens to claims: names and contents of claims made from templates, reservations that end,
//! deallocation and deletion. Pure.

use k8s_openapi::api::{
    core::v1::{Pod, PodResourceClaim},
    resource::v1::{
        ResourceClaim, ResourceClaimConsumerReference, ResourceClaimStatus, ResourceClaimTemplate,
    },
};
use kube::api::ObjectMeta;
use reconcile::{
    Key,
    devices::{FINALIZER, POD_CLAIM, reserved_for},
};

use crate::{
    pods,
    shared::{controller_of, controller_reference},
};

/// The longest base of a generated name that is not shortened.
const BASE_MAX: usize = 57;

/// The claim of an entry in a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Named {
    /// It is a claim of the user.
    Direct(String),
    /// It is made from a template for this pod.
    Made(String),
    /// It is made from a template and does not exist yet.
    NotMade,
    /// None is needed.
    NotNeeded,
}

impl Named {
    /// The name, if there is one.
    pub(crate) fn name(&self) -> Option<&str> {
        match self {
            Self::Direct(name) | Self::Made(name) => Some(name),
            Self::NotMade | Self::NotNeeded => None,
        }
    }
}

/// The entries of a pod.
pub(crate) fn entries(pod: &Pod) -> &[PodResourceClaim] {
    let spec = pod.spec.as_ref();
    let claims = spec.and_then(|spec| spec.resource_claims.as_deref());
    claims.unwrap_or_default()
}

/// Whether a pod has entries, or a claim for extended resources.
pub(crate) fn has_claims(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let extended = status.and_then(|status| status.extended_resource_claim_status.as_ref());
    !entries(pod).is_empty() || extended.is_some()
}

/// The claim of an entry of a pod.
pub(crate) fn named(pod: &Pod, entry: &PodResourceClaim) -> Named {
    if let Some(name) = &entry.resource_claim_name {
        return Named::Direct(name.clone());
    }
    let status = pod.status.as_ref();
    let made = status.and_then(|status| status.resource_claim_statuses.as_ref());
    let mut made = made.into_iter().flatten();
    match made.find(|made| made.name == entry.name) {
        None => Named::NotMade,
        Some(made) => match &made.resource_claim_name {
            Some(name) => Named::Made(name.clone()),
            None => Named::NotNeeded,
        },
    }
}

/// The names of all claims that a pod uses, with the claim for its extended resources.
pub(crate) fn claim_names(pod: &Pod) -> Vec<String> {
    let own = entries(pod).iter();
    let own = own.filter_map(|entry| named(pod, entry).name().map(ToOwned::to_owned));
    let status = pod.status.as_ref();
    let extended = status.and_then(|status| status.extended_resource_claim_status.as_ref());
    own.chain(extended.map(|status| status.resource_claim_name.clone()))
        .collect()
}

/// Whether a pod controls a claim.
pub(crate) fn is_owned_by(claim: &ResourceClaim, pod: &Pod) -> bool {
    let owner = controller_of(claim).map(|owner| &owner.uid);
    owner.is_some() && owner == pod.metadata.uid.as_ref()
}

/// Whether a pod may use the claim of an entry: one that is made must be made for this pod.
pub(crate) fn is_usable_by(named: &Named, claim: &ResourceClaim, pod: &Pod) -> bool {
    matches!(named, Named::Direct(_)) || is_owned_by(claim, pod)
}

/// Whether no container of the pod runs or will run.
pub(crate) fn is_done(pod: &Pod) -> bool {
    pods::is_terminal(pod) || (pods::is_deleting(pod) && pods::node(pod).is_empty())
}

/// The base of the claim's name: of the pod's and the entry's name as much as fits.
fn generate_name(pod: &str, entry: &str) -> String {
    let base = format!("{pod}-{entry}-");
    if base.len() <= BASE_MAX {
        return base;
    }
    // Names are ASCII.
    let part = |name: &str| {
        let length = name.len() * BASE_MAX / base.len();
        name.get(..length).unwrap_or_default().to_owned()
    };
    format!("{}-{}", part(pod), part(entry))
}

/// The claim for an entry of a pod.
pub(super) fn made(
    pod: &Pod,
    entry: &PodResourceClaim,
    template: &ResourceClaimTemplate,
) -> ResourceClaim {
    let meta = template.spec.metadata.clone().unwrap_or_default();
    let mut annotations = meta.annotations.unwrap_or_default();
    annotations.insert(POD_CLAIM.into(), entry.name.clone());
    let pod_name = pod.metadata.name.as_deref().unwrap_or_default();
    let mut owner = controller_reference(pod);
    owner.block_owner_deletion = None;
    ResourceClaim {
        metadata: ObjectMeta {
            generate_name: Some(generate_name(pod_name, &entry.name)),
            annotations: Some(annotations),
            labels: meta.labels,
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: template.spec.spec.clone(),
        status: None,
    }
}

/// The claim that was made for an entry of a pod before its status was written.
pub(super) fn is_made_for(claim: &ResourceClaim, entry: &PodResourceClaim) -> bool {
    let annotations = claim.metadata.annotations.as_ref();
    annotations.is_some_and(|all| all.get(POD_CLAIM) == Some(&entry.name))
}

/// Changes of a claim.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Change {
    /// The new status.
    pub(super) status: Option<ResourceClaimStatus>,
    /// Whether the finalizer is removed afterwards.
    pub(super) remove_finalizer: bool,
}

/// What happens to a claim that only these consumers still use. A claim that loses its last
/// consumer is deallocated, so that the next one can get other devices; one that never had any
/// stays.
pub(super) fn release(
    claim: &ResourceClaim,
    remaining: Vec<ResourceClaimConsumerReference>,
) -> Change {
    let finalizers = claim.metadata.finalizers.iter().flatten();
    let is_protected = finalizers.into_iter().any(|one| one == FINALIZER);
    let is_deleting = claim.metadata.deletion_timestamp.is_some();
    let mut status = claim.status.clone().unwrap_or_default();
    let was_allocated = status.allocation.is_some();
    let is_unused = remaining.is_empty();
    let has_lost = remaining.len() < reserved_for(claim).len();
    if is_unused && is_protected && (has_lost || is_deleting) {
        status.allocation = None;
        status.devices = None;
    }
    let is_deallocated = status.allocation.is_none();
    status.reserved_for = Some(remaining).filter(|all| !all.is_empty());
    let has_changed = has_lost || (was_allocated && is_deallocated);
    Change {
        status: has_changed.then_some(status),
        remove_finalizer: is_protected
            && is_deallocated
            && (has_lost || (is_deleting && is_unused)),
    }
}

/// The labels of a claim in metrics: whether it is allocated, has admin access, and its source.
pub(super) fn labels(claim: &ResourceClaim) -> [(&'static str, &'static str); 3] {
    let text = |truth: bool| if truth { "true" } else { "false" };
    let status = claim.status.as_ref();
    let is_allocated = status.is_some_and(|status| status.allocation.is_some());
    let annotation = |name: &str| {
        let annotations = claim.metadata.annotations.as_ref();
        annotations
            .and_then(|all| all.get(name))
            .map(String::as_str)
    };
    let source = if annotation(reconcile::devices::EXTENDED_CLAIM) == Some("true") {
        "extended_resource"
    } else if annotation(POD_CLAIM).is_some_and(|value| !value.is_empty()) {
        "resource_claim_template"
    } else {
        ""
    };
    [
        ("allocated", text(is_allocated)),
        ("admin_access", text(has_admin_access(claim))),
        ("source", source),
    ]
}

/// Whether a request of the claim asks for admin access.
pub(super) fn has_admin_access(claim: &ResourceClaim) -> bool {
    let devices = claim.spec.devices.iter();
    let mut requests = devices.flat_map(|devices| devices.requests.iter().flatten());
    requests.any(|request| {
        let exactly = request.exactly.as_ref();
        exactly.is_some_and(|exactly| exactly.admin_access == Some(true))
    })
}

/// The pod that controls a claim: its key and uid.
pub(super) fn owning_pod(claim: &ResourceClaim) -> Option<(Key, String)> {
    let owner = controller_of(claim)?;
    let is_pod = owner.api_version == "v1" && owner.kind == "Pod";
    let namespace = claim.metadata.namespace.clone().unwrap_or_default();
    is_pod.then(|| (Key::new(namespace, owner.name.clone()), owner.uid.clone()))
}

#[cfg(test)]
mod tests {
    use reconcile::devices::consumer;
    use serde_json::{Value, json};

    use super::*;

    fn pod(status: Value) -> Pod {
        let claims = json!([{"name": "gpu", "resourceClaimTemplateName": "t"},
            {"name": "shared", "resourceClaimName": "one"}]);
        let meta = json!({"name": "web", "namespace": "default", "uid": "p"});
        let spec = json!({"containers": [], "resourceClaims": claims});
        let pod = json!({"metadata": meta, "spec": spec, "status": status});
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn a_claim_is_the_template_owned_by_its_pod_with_the_entrys_name() {
        let pod = pod(json!({}));
        let template = json!({"metadata": {"name": "t"}, "spec": {
            "metadata": {"labels": {"app": "db"}, "annotations": {"note": "x"}},
            "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}}}});
        let template = serde_json::from_value(template).unwrap();
        let made = made(&pod, &entries(&pod)[0], &template);
        let expected = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {
                "generateName": "web-gpu-", "labels": {"app": "db"},
                "annotations": {"note": "x", "resource.kubernetes.io/pod-claim-name": "gpu"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "p",
                                     "controller": true}],
            },
            "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}},
        });
        assert_eq!(serde_json::to_value(&made).unwrap(), expected);
        assert!(is_owned_by(&made, &pod) && is_made_for(&made, &entries(&pod)[0]));
    }

    #[test]
    fn a_long_name_has_a_part_of_both_names() {
        assert_eq!(generate_name("web", "gpu"), "web-gpu-");
        let base = generate_name(&"p".repeat(60), &"c".repeat(20));
        assert_eq!(base, format!("{}-{}", "p".repeat(41), "c".repeat(13)));
    }

    #[test]
    fn the_claims_of_a_pod_are_named_directly_or_by_its_status() {
        let names = |status: Value| {
            let pod = pod(status);
            entries(&pod)
                .iter()
                .map(|entry| named(&pod, entry))
                .collect::<Vec<_>>()
        };
        let direct = Named::Direct("one".into());
        assert_eq!(names(json!({})), [Named::NotMade, direct.clone()]);
        let made =
            json!({"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "web-gpu-x"}]});
        assert_eq!(
            names(made.clone()),
            [Named::Made("web-gpu-x".into()), direct.clone()]
        );
        let none = json!({"resourceClaimStatuses": [{"name": "gpu"}]});
        assert_eq!(names(none), [Named::NotNeeded, direct]);
        let mut extended = made;
        extended["extendedResourceClaimStatus"] =
            json!({"requestMappings": [], "resourceClaimName": "web-extended"});
        assert_eq!(
            claim_names(&pod(extended)),
            ["web-gpu-x", "one", "web-extended"]
        );
    }

    fn claim(
        finalizer: bool,
        deleting: bool,
        consumers: &[&str],
        allocated: bool,
    ) -> ResourceClaim {
        let mut claim = ResourceClaim::default();
        claim.metadata.finalizers = finalizer.then(|| vec![FINALIZER.into()]);
        if deleting {
            let time = jiff::Timestamp::UNIX_EPOCH;
            claim.metadata.deletion_timestamp =
                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(time));
        }
        let consumers: Vec<_> = consumers.iter().map(|name| consumer(name, name)).collect();
        claim.status = Some(ResourceClaimStatus {
            allocation: allocated.then(Default::default),
            reserved_for: Some(consumers).filter(|all| !all.is_empty()),
            devices: None,
        });
        claim
    }

    #[test]
    fn the_last_consumer_deallocates_a_claim_and_an_unused_claim_stays() {
        // Finalizer, deleting, consumers, allocated; who remains; then: status written, allocated,
        // finalizer removed.
        type Case<'a> = (
            (bool, bool, &'a [&'a str], bool),
            &'a [&'a str],
            (bool, bool, bool),
        );
        let cases: &[Case<'_>] = &[
            (
                (true, false, &["a", "b"], true),
                &["a", "b"],
                (false, true, false),
            ),
            (
                (true, false, &["a", "b"], true),
                &["b"],
                (true, true, false),
            ),
            ((true, false, &["a"], true), &[], (true, false, true)),
            ((false, false, &["a"], true), &[], (true, true, false)),
            ((true, false, &[], true), &[], (false, true, false)),
            ((true, true, &[], true), &[], (true, false, true)),
            ((true, true, &[], false), &[], (false, false, true)),
            ((true, true, &["a"], true), &["a"], (false, true, false)),
            ((false, true, &[], false), &[], (false, false, false)),
        ];
        for ((finalizer, deleting, consumers, allocated), remaining, expected) in cases {
            let claim = claim(*finalizer, *deleting, consumers, *allocated);
            let left: Vec<_> = remaining.iter().map(|name| consumer(name, name)).collect();
            let change = release(&claim, left.clone());
            let status = change.status.as_ref().or(claim.status.as_ref()).unwrap();
            let found = (
                change.status.is_some(),
                status.allocation.is_some(),
                change.remove_finalizer,
            );
            assert_eq!(found, *expected, "{claim:?} {remaining:?}");
            if change.status.is_some() {
                assert_eq!(status.reserved_for.clone().unwrap_or_default(), left);
            }
        }
    }
}
