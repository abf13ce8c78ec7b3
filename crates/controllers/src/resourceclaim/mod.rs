//! Makes the ResourceClaims of pods from their templates, reserves allocated claims for pods that
//! were bound without the scheduler, and frees claims whose pods are done: reservations end, claims
//! without a consumer are deallocated, and claims made for a pod are deleted when it is done.

pub(crate) mod decide;

use std::{collections::BTreeMap, sync::Arc};

use client::{Event, Informer};
use k8s_openapi::api::{
    core::v1::{Pod, PodResourceClaim},
    resource::v1::{ResourceClaim, ResourceClaimConsumerReference, ResourceClaimTemplate},
};
use parking_lot::Mutex;
use reconcile::{
    Action, Controller, Error, Key, Kind, Recorder, StatusPatch, Writer,
    devices::{FINALIZER, allocation, can_be_reserved, consumer, is_reserved_for, reserved_for},
};
use serde_json::json;

use crate::{
    members::Facts,
    metrics::Metrics,
    pods,
    shared::{DEVICE_CLAIM, OWNER, Shared, device_claim_key, device_template_key},
};
use decide::{Named, claim_names, entries, is_done, is_made_for, is_owned_by, is_usable_by, named};

/// The name in [`crate::ALL`].
pub const NAME: &str = "resource-claim";
const ACCOUNT: &str = "resource-claim-controller";
/// The name of the part that makes claims.
const PODS: &str = "resource-claim-pods";

/// Makes the claims of pods.
struct PodClaims {
    pods: Writer<Pod>,
    claims: Writer<ResourceClaim>,
    templates: Informer<ResourceClaimTemplate>,
    events: Recorder,
    metrics: Metrics,
}

/// Frees claims.
struct Claims {
    pods: Informer<Pod>,
    claims: Writer<ResourceClaim>,
    client: kube::Client,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let pod_claims = Arc::new(PodClaims {
        pods: shared.writer(ACCOUNT),
        claims: shared.writer(ACCOUNT),
        templates: shared.informer(),
        events: shared.recorder(ACCOUNT, "resource_claim"),
        metrics: shared.metrics.clone(),
    });
    let pods = pod_claims.pods.cache().clone();
    let users = move |key: &str| {
        let users = pods.by_index(DEVICE_CLAIM, key);
        users
            .iter()
            .map(|pod| Key::from_object(&**pod))
            .collect::<Vec<_>>()
    };
    let of_template = users.clone();
    shared
        .controller(&pod_claims)
        .watches_with(
            &pod_claims.pods.cache().only(Facts::has_device_claims),
            changed_pod,
        )
        .watches_with(pod_claims.claims.cache(), move |event| {
            let claim = event.object();
            let concerns = matches!(event, Event::Deleted(_)) || allocation(claim).is_some();
            let key = Key::from_object(&**claim);
            let users = concerns.then(|| users(&device_claim_key(&key.namespace, &key.name)));
            users.unwrap_or_default()
        })
        .watches_with(&pod_claims.templates, move |event| match event {
            Event::Deleted(_) => Vec::new(),
            event => {
                let key = Key::from_object(&**event.object());
                of_template(&device_template_key(&key.namespace, &key.name))
            }
        })
        .workers(4)
        .start();
    start_claims(shared);
}

fn start_claims(shared: &Arc<Shared>) {
    let claims = Arc::new(Claims {
        pods: shared.informer(),
        claims: shared.writer(ACCOUNT),
        client: shared.client(ACCOUNT),
    });
    let counts = Counts {
        metrics: shared.metrics.clone(),
        known: Mutex::default(),
    };
    shared
        .controller(&claims)
        .watches_with(&claims.pods.only(Facts::has_device_claims), freed_claims)
        .watches_with(claims.claims.cache(), move |event| {
            counts.count(event);
            match event {
                Event::Deleted(_) => Vec::new(),
                event => vec![Key::from_object(&**event.object())],
            }
        })
        .workers(4)
        .start();
}

/// The pod itself, if its claims may have to be made or reserved.
fn changed_pod(event: &Event<Pod>) -> Vec<Key> {
    let pod = event.object();
    let statuses = |pod: &Pod| {
        let status = pod.status.as_ref();
        status.and_then(|status| status.resource_claim_statuses.clone())
    };
    let has_changed = event
        .old()
        .is_none_or(|old| pods::node(old) != pods::node(pod) || statuses(old) != statuses(pod));
    let is_there = !matches!(event, Event::Deleted(_)) && !pods::is_deleting(pod);
    let concerns = is_there && has_changed && !entries(pod).is_empty();
    concerns
        .then(|| Key::from_object(&**pod))
        .into_iter()
        .collect()
}

/// The claims of a pod that is done.
fn freed_claims(event: &Event<Pod>) -> Vec<Key> {
    let pod = event.object();
    if !matches!(event, Event::Deleted(_)) && !is_done(pod) {
        return Vec::new();
    }
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let names = claim_names(pod).into_iter();
    names
        .map(|name| Key::new(namespace.clone(), name))
        .collect()
}

/// The numbers of claims by their labels.
struct Counts {
    metrics: Metrics,
    /// Guards the numbers by labels.
    known: Mutex<BTreeMap<[(&'static str, &'static str); 3], usize>>,
}

impl Counts {
    fn count(&self, event: &Event<ResourceClaim>) {
        let new = decide::labels(event.object());
        let old = match event {
            Event::Added(_) => None,
            Event::Modified { old, .. } => Some(decide::labels(old)),
            Event::Deleted(_) => Some(new),
        };
        let mut known = self.known.lock();
        if let Some(labels) = old {
            let count = known.entry(labels).or_default();
            *count = count.saturating_sub(1);
            self.metrics.resource_claims.set(labels, *count);
        }
        if !matches!(event, Event::Deleted(_)) {
            let count = known.entry(new).or_default();
            *count += 1;
            self.metrics.resource_claims.set(new, *count);
        }
    }
}

impl PodClaims {
    /// Makes the claim of an entry unless it exists; returns the name of a new one.
    async fn ensure(&self, pod: &Pod, entry: &PodResourceClaim) -> Result<Option<String>, Error> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let known = match named(pod, entry) {
            Named::Direct(_) | Named::NotNeeded => return Ok(None),
            Named::NotMade => None,
            // A claim that was deleted is made again.
            Named::Made(name) => self.claims.cache().get(namespace, &name),
        };
        if known.is_some_and(|claim| is_owned_by(&claim, pod)) {
            return Ok(None);
        }
        let Some(template) = &entry.resource_claim_template_name else {
            return Ok(None);
        };
        // Made before, but the pod's status could not be written.
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let own = self.claims.cache().by_index(OWNER, uid);
        // Owners are in the namespace of the claim.
        let mut own = own
            .iter()
            .filter(|claim| claim.metadata.namespace == pod.metadata.namespace);
        if let Some(claim) = own.find(|claim| is_made_for(claim, entry)) {
            return Ok(claim.metadata.name.clone());
        }
        let template = self.templates.get(namespace, template).ok_or_else(|| {
            let why = format!("resourceclaimtemplate.resource.k8s.io {template:?} not found");
            Error::Invalid(format!("resource claim template {template:?}: {why}"))
        })?;
        let claim = decide::made(pod, entry, &template);
        let created = self.claims.create(namespace, &claim).await;
        let status = if created.is_ok() {
            "success"
        } else {
            "failure"
        };
        let has_admin_access = decide::has_admin_access(&claim);
        let admin_access = if has_admin_access { "true" } else { "false" };
        let labels = [("status", status), ("admin_access", admin_access)];
        self.metrics.resource_claims_created.add(labels, 1);
        let created =
            created.map_err(|error| Error::Invalid(format!("create ResourceClaim : {error}")))?;
        Ok(created.metadata.name)
    }

    /// Reserves the allocated claims of a pod that has a node. The scheduler does it for its pods.
    async fn reserve(&self, pod: &Pod) -> Result<(), Error> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        for entry in entries(pod) {
            let named = named(pod, entry);
            let claim = named
                .name()
                .and_then(|name| self.claims.cache().get(namespace, name));
            let Some(claim) = claim else { continue };
            let is_usable = is_usable_by(&named, &claim, pod);
            let is_reservable = allocation(&claim).is_some() && can_be_reserved(&claim);
            if !is_usable || !is_reservable || is_reserved_for(&claim, uid) {
                continue;
            }
            let mut claim = (*claim).clone();
            let status = claim.status.get_or_insert_default();
            let consumers = status.reserved_for.get_or_insert_default();
            consumers.push(consumer(name, uid));
            self.claims.update_status(namespace, &claim).await?;
        }
        Ok(())
    }
}

impl Controller for PodClaims {
    fn name(&self) -> &'static str {
        PODS
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let pod = self.pods.cache().get(&key.namespace, &key.name);
        let Some(pod) = pod.filter(|pod| !pods::is_deleting(pod) && !is_done(pod)) else {
            return Ok(Action::Done);
        };
        let mut made = Vec::new();
        for entry in entries(&pod) {
            match self.ensure(&pod, entry).await {
                Ok(name) => made.extend(name.map(|name| (entry.name.clone(), name))),
                Err(error) => {
                    let message = format!("PodResourceClaim {}: {error}", entry.name);
                    let about = kube::Resource::object_ref(&*pod, &());
                    let reason = "FailedResourceClaimCreation";
                    self.events.event(&about, Kind::Warning, reason, message);
                    return Err(error);
                }
            }
        }
        if !made.is_empty() {
            let statuses = made.iter();
            let statuses =
                statuses.map(|(name, claim)| json!({"name": name, "resourceClaimName": claim}));
            let statuses: Vec<_> = statuses.collect();
            let patch = StatusPatch::new(&*pod).field("resourceClaimStatuses", json!(statuses));
            self.pods.patch_status(&pod, &patch).await?;
            // The changed status enqueues the pod again.
            return Ok(Action::Done);
        }
        if !pods::node(&pod).is_empty() {
            self.reserve(&pod).await?;
        }
        Ok(Action::Done)
    }
}

impl Claims {
    /// Whether a consumer may still use the claim.
    async fn remains(
        &self,
        namespace: &str,
        consumer: &ResourceClaimConsumerReference,
    ) -> Result<bool, Error> {
        let group = consumer.api_group.as_deref().unwrap_or_default();
        if !(group.is_empty() && consumer.resource == "pods") {
            // Consumers of other kinds are freed by other controllers.
            return Ok(true);
        }
        if let Some(pod) = self.pods.get(namespace, &consumer.name) {
            let is_same = pod.metadata.uid.as_ref() == Some(&consumer.uid);
            return Ok(is_same && !is_done(&pod));
        }
        // The informer may not show a new pod yet: only the server knows.
        let api: client::Api<Pod> = client::Api::namespaced(self.client.clone(), namespace);
        let pod = api.get_opt(&consumer.name).await?;
        Ok(pod.is_some_and(|pod| pod.metadata.uid.as_ref() == Some(&consumer.uid)))
    }

    /// Deletes a claim that was made for a pod that is done.
    async fn delete_unneeded(&self, claim: &ResourceClaim) -> Result<(), Error> {
        let Some((key, uid)) = decide::owning_pod(claim) else {
            return Ok(());
        };
        // Without its pod the garbage collector deletes the claim.
        let Some(pod) = self.pods.get(&key.namespace, &key.name) else {
            return Ok(());
        };
        if pod.metadata.uid.as_ref() != Some(&uid) || is_done(&pod) {
            self.claims.delete(claim).await?;
        }
        Ok(())
    }
}

impl Controller for Claims {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(claim) = self.claims.cache().get(&key.namespace, &key.name) else {
            return Ok(Action::Done);
        };
        let mut remaining = Vec::new();
        for consumer in reserved_for(&claim) {
            if self.remains(&key.namespace, consumer).await? {
                remaining.push(consumer.clone());
            }
        }
        let is_unused = remaining.is_empty();
        let change = decide::release(&claim, remaining);
        let mut claim = (*claim).clone();
        if change.status.is_some() {
            claim.status = change.status;
            let updated = self.claims.update_status(&key.namespace, &claim).await?;
            claim.metadata.resource_version = Some(updated.resource_version);
        }
        if change.remove_finalizer {
            let finalizers = claim.metadata.finalizers.get_or_insert_default();
            finalizers.retain(|one| one != FINALIZER);
            claim = self.claims.update(&key.namespace, &claim).await?;
        }
        if is_unused && claim.metadata.deletion_timestamp.is_none() {
            self.delete_unneeded(&claim).await?;
        }
        Ok(Action::Done)
    }
}
