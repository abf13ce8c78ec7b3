//! The allocations of pods that are being bound. They count as taken from Reserve until the
//! scheduler's watch shows them.

use std::{collections::HashMap, sync::Arc};

use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim};

use super::extended::OnNode;
use crate::devices::allocated::Allocated;

/// The claims of a pod that is being bound, with new allocations.
#[derive(Debug, Clone, Default)]
pub(super) struct Reservation {
    pub(super) claims: Vec<(Arc<ResourceClaim>, Option<AllocationResult>)>,
    pub(super) extended: Option<(OnNode, AllocationResult)>,
    /// The claim for extended resources, when it is created.
    pub(super) created: Option<Arc<ResourceClaim>>,
}

impl Reservation {
    /// The new allocations by the uid of their claim.
    fn allocations(&self) -> impl Iterator<Item = (&str, &AllocationResult)> {
        let claims = self.claims.iter();
        let claims = claims.filter_map(|(claim, new)| Some((&**claim, new.as_ref()?)));
        let extended = self.extended.iter().map(|(one, new)| (&one.claim, new));
        claims.chain(extended).map(|(claim, new)| (uid(claim), new))
    }
}

#[derive(Debug)]
struct Entry {
    allocation: AllocationResult,
    /// The resourceVersion of the claim with the allocation, when it is written.
    written: Option<u64>,
}

/// Allocations by the uid of their claim.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    claims: HashMap<String, Entry>,
    /// The sum of all; readers share it while it changes.
    devices: Arc<Allocated>,
    pods: HashMap<Arc<str>, Reservation>,
}

fn uid(claim: &ResourceClaim) -> &str {
    claim.metadata.uid.as_deref().unwrap_or_default()
}

impl Pending {
    /// The devices.
    pub(super) fn devices(&self) -> Arc<Allocated> {
        self.devices.clone()
    }

    /// Whether an allocation of the claim is being written.
    pub(super) fn has(&self, claim: &ResourceClaim) -> bool {
        self.claims.contains_key(uid(claim))
    }

    /// What was reserved for a pod.
    pub(super) fn of_pod(&self, pod: &str) -> Option<Reservation> {
        self.pods.get(pod).cloned()
    }

    /// Removes the allocations that the scheduler's watch has shown.
    pub(super) fn prune(&mut self, version: u64) {
        let devices = Arc::make_mut(&mut self.devices);
        self.claims.retain(|_, entry| {
            let is_shown = entry.written.is_some_and(|written| written <= version);
            if is_shown {
                devices.remove(&entry.allocation);
            }
            !is_shown
        });
    }

    /// Reserves devices for a pod.
    pub(super) fn reserve(&mut self, pod: &Arc<str>, reservation: Reservation) {
        for (uid, allocation) in reservation.allocations() {
            let devices = Arc::make_mut(&mut self.devices);
            devices.add(allocation);
            let entry = Entry {
                allocation: allocation.clone(),
                written: None,
            };
            if let Some(old) = self.claims.insert(uid.to_owned(), entry) {
                devices.remove(&old.allocation);
            }
        }
        self.pods.insert(pod.clone(), reservation);
    }

    /// The claim for the extended resources of a pod was created.
    pub(super) fn created(&mut self, pod: &str, claim: &ResourceClaim) {
        if let Some(reservation) = self.pods.get_mut(pod) {
            reservation.created = Some(Arc::new(claim.clone()));
        }
    }

    /// The allocation was written.
    pub(super) fn written(&mut self, claim: &ResourceClaim, version: u64) {
        if let Some(entry) = self.claims.get_mut(uid(claim)) {
            entry.written = Some(version);
        }
    }

    /// The pod is bound or not bound any more: what was not written is free again.
    pub(super) fn unreserve(&mut self, pod: &str) {
        let Some(reservation) = self.pods.remove(pod) else {
            return;
        };
        for (uid, _) in reservation.allocations() {
            if self
                .claims
                .get(uid)
                .is_some_and(|entry| entry.written.is_none())
                && let Some(entry) = self.claims.remove(uid)
            {
                Arc::make_mut(&mut self.devices).remove(&entry.allocation);
            }
        }
    }
}
