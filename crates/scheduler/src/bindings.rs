//! What PreBind of volumes and devices reads and waits for: informers, and a notification per claim.

use std::{collections::HashMap, sync::Arc};

use client::Informer;
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim},
    resource::v1::ResourceClaim,
};
use lifecycle::Context;
use parking_lot::Mutex;
use tokio::sync::{Notify, futures::OwnedNotified};

use crate::{cluster::claims::Key, watched::WatchedPod};

/// The informers that a binding reads. Clones share them.
#[derive(Clone)]
pub(crate) struct Bindings {
    pub(crate) claims: Informer<PersistentVolumeClaim>,
    pub(crate) volumes: Informer<PersistentVolume>,
    pub(crate) nodes: Informer<Node>,
    pub(crate) pods: Informer<WatchedPod>,
    pub(crate) changes: Arc<Changes>,
    pub(crate) device_claims: Informer<ResourceClaim>,
    pub(crate) device_changes: Arc<Changes>,
}

impl Bindings {
    /// Starts the informers.
    pub(crate) fn start(context: &Context, client: &kube::Client) -> Self {
        Self {
            claims: Informer::builder(client.clone()).start(context),
            volumes: Informer::builder(client.clone()).start(context),
            nodes: Informer::builder(client.clone()).start(context),
            pods: Informer::builder(client.clone()).start(context),
            changes: Arc::default(),
            device_claims: Informer::builder(client.clone()).start(context),
            device_changes: Arc::default(),
        }
    }
}

/// Notifies bindings that wait for a claim to change.
#[derive(Default)]
pub(crate) struct Changes {
    /// Guards the notifications of claims that are waited for. Each is removed when it fires.
    bells: Mutex<HashMap<Key, Arc<Notify>>>,
}

impl Changes {
    /// Resolves when the claim changes after this call.
    pub(crate) fn next(&self, namespace: &str, name: &str) -> OwnedNotified {
        let key = (namespace.to_owned(), name.to_owned());
        let mut bells = self.bells.lock();
        bells.entry(key).or_default().clone().notified_owned()
    }

    /// The claim has changed.
    pub(crate) fn changed(&self, namespace: &str, name: &str) {
        let mut bells = self.bells.lock();
        if bells.is_empty() {
            return;
        }
        let key = (namespace.to_owned(), name.to_owned());
        if let Some(bell) = bells.remove(&key) {
            bell.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_change_wakes_all_that_wait_for_this_claim_and_no_other() {
        let changes = Changes::default();
        let (one, two) = (changes.next("a", "x"), changes.next("a", "x"));
        let other = changes.next("b", "x");
        changes.changed("a", "x");
        one.await;
        two.await;
        let waited = tokio::time::timeout(Duration::ZERO, other).await;
        assert!(waited.is_err());
        let late = tokio::time::timeout(Duration::ZERO, changes.next("a", "x")).await;
        assert!(late.is_err(), "an earlier change does not count");
    }
}
