//! Protects PersistentVolumeClaims in use: removes the finalizer of a deleted claim only when no
//! scheduled pod uses it.
//!
//! The queue's keys are namespaces: the pods of a namespace are read from the API server once for all of its claims
//! that are deleted at the same time, not once for each.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use client::Informer;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{Api, api::ListParams};
use parking_lot::Mutex;
use reconcile::{Action, Controller, Error, Key, Writer, storage::claim_name};

use crate::shared::{CLAIM, Shared, claimed_key, claims_of, controller_of};

/// The name in [`crate::ALL`].
pub const NAME: &str = "pvc-protection";
const ACCOUNT: &str = "pvc-protection-controller";
const FINALIZER: &str = "kubernetes.io/pvc-protection";
/// How many pods are read at a time.
const PAGE: u32 = 500;

struct Protection {
    client: kube::Client,
    claims: Writer<PersistentVolumeClaim>,
    pods: Informer<Pod>,
    due: Arc<Due>,
}

/// The names of the claims to reconcile, by namespace. Guards only the map.
#[derive(Default)]
struct Due(Mutex<HashMap<String, BTreeSet<String>>>);

impl Due {
    /// Adds claims; returns the key of their namespace.
    fn add(&self, namespace: &str, names: impl IntoIterator<Item = String>) -> Vec<Key> {
        let mut names = names.into_iter().peekable();
        if names.peek().is_none() {
            return Vec::new();
        }
        let mut due = self.0.lock();
        due.entry(namespace.to_owned()).or_default().extend(names);
        vec![Key::new("", namespace)]
    }

    fn take(&self, namespace: &str) -> BTreeSet<String> {
        self.0.lock().remove(namespace).unwrap_or_default()
    }
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let due = Arc::new(Due::default());
    let controller = Arc::new(Protection {
        client: shared.client(ACCOUNT),
        claims: shared.writer(ACCOUNT),
        pods: shared.informer(),
        due: due.clone(),
    });
    let by_pods = due.clone();
    shared
        .controller(&controller)
        .watches_with(controller.claims.cache(), move |event| {
            let claim = event.object();
            let meta = &claim.metadata;
            let name = meta.name.clone().filter(|_| change(claim).is_some());
            due.add(meta.namespace.as_deref().unwrap_or_default(), name)
        })
        .watches_with(&controller.pods, move |event| {
            let pod = event.object();
            let is_over = matches!(event, client::Event::Deleted(_)) || is_shut_down(pod);
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            let used = claims_of(pod).into_iter().filter(|_| is_over);
            by_pods.add(namespace, used)
        })
        .workers(2)
        .start();
}

/// How a claim's finalizer changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Add,
    /// If no pod uses the claim.
    Remove,
}

fn change(claim: &PersistentVolumeClaim) -> Option<Change> {
    let mut finalizers = claim.metadata.finalizers.iter().flatten();
    let is_held = finalizers.any(|finalizer| finalizer == FINALIZER);
    match (is_held, claim.metadata.deletion_timestamp.is_some()) {
        (false, false) => Some(Change::Add),
        (true, true) => Some(Change::Remove),
        _ => None,
    }
}

/// The kubelet has stopped the pod, or it was deleted by force: only finalizers keep its object.
fn is_shut_down(pod: &Pod) -> bool {
    let meta = &pod.metadata;
    meta.deletion_timestamp.is_some() && meta.deletion_grace_period_seconds == Some(0)
}

/// Whether the pod uses the claim. An unscheduled pod does not: the kubelet starts no pod whose
/// claim is being deleted.
fn uses(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let spec = pod.spec.as_ref();
    let node = spec.and_then(|spec| spec.node_name.as_deref());
    if node.is_none_or(str::is_empty) {
        return false;
    }
    let pod_name = pod.metadata.name.as_deref().unwrap_or_default();
    let is_made_for_pod =
        || controller_of(claim).is_some_and(|owner| Some(&owner.uid) == pod.metadata.uid.as_ref());
    let mut volumes = spec.into_iter().flat_map(|s| s.volumes.iter().flatten());
    volumes.any(|volume| {
        claim_name(pod_name, volume) == claim.metadata.name
            && (volume.persistent_volume_claim.is_some()
                || (!is_shut_down(pod) && is_made_for_pod()))
    })
}

/// The pods with claims of a namespace, read from the API server when they are first needed: the cache may lack a new
/// pod. All claims that they are compared with were deleted before.
struct LivePods<'a> {
    client: &'a kube::Client,
    namespace: &'a str,
    /// The claims that matter.
    claims: &'a BTreeSet<String>,
    /// By the names of their claims.
    by_claim: Option<HashMap<String, Vec<Arc<Pod>>>>,
}

impl LivePods<'_> {
    async fn with_claim(&mut self, claim: &str) -> Result<&[Arc<Pod>], Error> {
        if self.by_claim.is_none() {
            self.by_claim = Some(self.read().await?);
        }
        let found = self.by_claim.as_ref().and_then(|pods| pods.get(claim));
        Ok(found.map_or(&[], Vec::as_slice))
    }

    async fn read(&self) -> Result<HashMap<String, Vec<Arc<Pod>>>, Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), self.namespace);
        let mut by_claim: HashMap<String, Vec<Arc<Pod>>> = HashMap::new();
        let mut params = ListParams::default().limit(PAGE);
        loop {
            let page = api.list(&params).await?;
            for pod in page.items {
                let used = claims_of(&pod).into_iter();
                let used: Vec<String> = used.filter(|name| self.claims.contains(name)).collect();
                let pod = Arc::new(pod);
                for claim in used {
                    by_claim.entry(claim).or_default().push(pod.clone());
                }
            }
            match page.metadata.continue_.filter(|next| !next.is_empty()) {
                Some(next) => params = params.continue_token(&next),
                None => return Ok(by_claim),
            }
        }
    }
}

impl Protection {
    async fn protect(
        &self,
        namespace: &str,
        name: &str,
        claim: &PersistentVolumeClaim,
        live: &mut LivePods<'_>,
    ) -> Result<(), Error> {
        let mut updated = claim.clone();
        let finalizers = updated.metadata.finalizers.get_or_insert_default();
        match change(claim) {
            Some(Change::Add) => finalizers.push(FINALIZER.to_owned()),
            Some(Change::Remove) => {
                let known = self.pods.by_index(CLAIM, &claimed_key(namespace, name));
                if known.iter().any(|pod| uses(pod, claim)) {
                    return Ok(());
                }
                let live = live.with_claim(name).await?;
                if live.iter().any(|pod| uses(pod, claim)) {
                    return Ok(());
                }
                finalizers.retain(|finalizer| finalizer != FINALIZER);
            }
            None => return Ok(()),
        }
        self.claims.update(namespace, &updated).await?;
        Ok(())
    }
}

impl Controller for Protection {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let namespace = key.name.as_str();
        let names = self.due.take(namespace);
        // Before pods are read: a claim that is deleted later must not be compared with them.
        let cache = self.claims.cache();
        let claim = |name: &String| Some((name.clone(), cache.get(namespace, name)?));
        let claims: Vec<_> = names.iter().filter_map(claim).collect();
        let mut live = LivePods {
            client: &self.client,
            namespace,
            claims: &names,
            by_claim: None,
        };
        let mut results = Vec::new();
        for (name, claim) in &claims {
            let protected = self.protect(namespace, name, claim, &mut live).await;
            if protected.is_err() {
                self.due.add(namespace, [name.clone()]);
            }
            results.push(protected);
        }
        reconcile::all(results)?;
        Ok(Action::Done)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::core::v1::{PersistentVolumeClaimVolumeSource, Volume},
        apimachinery::pkg::apis::meta::v1::Time,
    };

    use super::*;
    use crate::{
        pods::samples::{self, at},
        shared::controller_reference,
    };

    fn user(change: impl FnOnce(&mut Pod)) -> Pod {
        let mut pod = samples::pod("a", None);
        pod.metadata.uid = Some("pod".into());
        let source = PersistentVolumeClaimVolumeSource {
            claim_name: "data".into(),
            read_only: None,
        };
        let volume = Volume {
            persistent_volume_claim: Some(source),
            ..Default::default()
        };
        let spec = pod.spec.as_mut().unwrap();
        spec.volumes = Some(vec![volume]);
        spec.node_name = Some("n1".into());
        change(&mut pod);
        pod
    }

    fn shut_down(pod: &mut Pod) {
        pod.metadata.deletion_timestamp = Some(Time(at(1)));
        pod.metadata.deletion_grace_period_seconds = Some(0);
    }

    #[test]
    fn a_claim_is_protected_while_a_pod_on_a_node_uses_it() {
        let mut claim = PersistentVolumeClaim::default();
        claim.metadata.name = Some("data".into());
        assert!(uses(&user(|_| {}), &claim));
        assert!(uses(&user(shut_down), &claim), "its object is still there");
        let no_node = user(|pod| pod.spec.as_mut().unwrap().node_name = None);
        assert!(!uses(&no_node, &claim));
        claim.metadata.name = Some("other".into());
        assert!(!uses(&user(|_| {}), &claim));
    }

    #[test]
    fn an_ephemeral_claim_is_protected_until_its_pod_has_ended() {
        let ephemeral = |pod: &mut Pod| {
            let volume = Volume {
                name: "data".into(),
                ephemeral: Some(Default::default()),
                ..Default::default()
            };
            pod.spec.as_mut().unwrap().volumes = Some(vec![volume]);
        };
        let pod = user(ephemeral);
        let mut claim = PersistentVolumeClaim::default();
        claim.metadata.name = Some(format!("{}-data", pod.metadata.name.as_ref().unwrap()));
        assert!(!uses(&pod, &claim), "not made for this pod");
        claim.metadata.owner_references = Some(vec![controller_reference(&pod)]);
        assert!(uses(&pod, &claim));
        let ended = user(|pod| {
            ephemeral(pod);
            shut_down(pod);
        });
        assert!(!uses(&ended, &claim));
    }

    #[test]
    fn a_namespace_is_reconciled_once_for_all_claims_that_wait() {
        let due = Due::default();
        assert_eq!(due.add("n", ["a".to_owned()]), [Key::new("", "n")]);
        due.add("n", ["b".to_owned(), "a".to_owned()]);
        assert!(due.add("n", []).is_empty());
        due.add("other", ["a".to_owned()]);
        assert_eq!(due.take("n"), ["a", "b"].map(str::to_owned).into());
        assert!(due.take("n").is_empty());
    }

    #[test]
    fn a_finalizer_is_added_to_every_claim_and_removed_only_from_deleted_ones() {
        let claim = |deleted: bool, held: bool| {
            let mut claim = PersistentVolumeClaim::default();
            claim.metadata.deletion_timestamp = deleted.then(|| Time(at(1)));
            claim.metadata.finalizers = held.then(|| vec![FINALIZER.to_owned()]);
            change(&claim)
        };
        assert_eq!(claim(false, false), Some(Change::Add));
        assert_eq!(claim(true, true), Some(Change::Remove));
        assert_eq!((claim(false, true), claim(true, false)), (None, None));
    }
}
