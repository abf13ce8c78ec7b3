//! ResourceClaims and the devices that they have.

use std::{collections::HashMap, sync::Arc};

use k8s_openapi::api::resource::v1::ResourceClaim;
use reconcile::devices::{EXTENDED_CLAIM, allocation};

use super::claims::Key;
use crate::devices::allocated::Allocated;

/// All ResourceClaims. The objects are shared with the informer.
#[derive(Debug, Default)]
pub struct DeviceClaims {
    claims: HashMap<Key, Arc<ResourceClaim>>,
    /// The claims for extended resources, by namespace and uid of their pod.
    extended: HashMap<Key, Key>,
    allocated: Allocated,
    /// The newest resourceVersion so far.
    version: u64,
}

/// The uid of the controller of a claim.
pub fn owner(claim: &ResourceClaim) -> Option<&str> {
    let mut owners = claim.metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.controller == Some(true));
    owner.map(|owner| owner.uid.as_str())
}

/// The resourceVersion as a number.
pub fn version(claim: &ResourceClaim) -> u64 {
    let version = claim.metadata.resource_version.as_deref();
    version.and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn is_extended(claim: &ResourceClaim) -> bool {
    let annotations = claim.metadata.annotations.as_ref();
    annotations.is_some_and(|all| all.get(EXTENDED_CLAIM).is_some_and(|value| value == "true"))
}

impl DeviceClaims {
    /// A claim by name.
    pub fn get(&self, namespace: &str, name: &str) -> Option<&Arc<ResourceClaim>> {
        self.claims.get(&(namespace.to_owned(), name.to_owned()))
    }

    /// The claim for the extended resources of a pod.
    pub fn extended(&self, namespace: &str, uid: &str) -> Option<&Arc<ResourceClaim>> {
        let pod = (namespace.to_owned(), uid.to_owned());
        self.claims.get(self.extended.get(&pod)?)
    }

    /// The devices that claims have.
    pub fn allocated(&self) -> &Allocated {
        &self.allocated
    }

    /// All writes up to this resourceVersion are known.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Stores a claim, or removes it with `None`.
    pub fn put(&mut self, namespace: &str, name: &str, claim: Option<&Arc<ResourceClaim>>) {
        let key = (namespace.to_owned(), name.to_owned());
        if let Some(old) = self.claims.remove(&key) {
            if let Some(allocation) = allocation(&old) {
                self.allocated.remove(allocation);
            }
            if is_extended(&old)
                && let Some(owner) = owner(&old)
            {
                let pod = (namespace.to_owned(), owner.to_owned());
                self.extended.remove(&pod);
            }
        }
        let Some(claim) = claim else { return };
        self.version = self.version.max(version(claim));
        if let Some(allocation) = allocation(claim) {
            self.allocated.add(allocation);
        }
        if is_extended(claim)
            && let Some(owner) = owner(claim)
        {
            let pod = (namespace.to_owned(), owner.to_owned());
            self.extended.insert(pod, key.clone());
        }
        self.claims.insert(key, claim.clone());
    }
}
