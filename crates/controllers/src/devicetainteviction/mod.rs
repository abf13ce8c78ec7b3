//! Evicts pods that use a device with a NoExecute taint which their claim does not tolerate, or
//! tolerates only for some seconds.

mod decide;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use client::{Event, Informer};
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::Pod,
    resource::v1::{ResourceClaim, ResourceSlice},
};
use parking_lot::Mutex;
use reconcile::{
    Action, Controller, Error, Key, Kind, Recorder, Writer,
    devices::{allocation, is_reserved_for, reserved_for},
};

use crate::{
    members::Facts,
    pods,
    resourceclaim::decide::{entries, is_usable_by, named},
    shared::{POOL, Shared, pool_key},
};

/// The name in [`crate::ALL`].
pub const NAME: &str = "device-taint-eviction";
const ACCOUNT: &str = "device-taint-eviction-controller";

struct Evictor {
    shared: Arc<Shared>,
    pods: Writer<Pod>,
    claims: Informer<ResourceClaim>,
    slices: Informer<ResourceSlice>,
    recorder: Recorder,
    /// Guards the pods whose evictions are due later.
    scheduled: Mutex<BTreeSet<Key>>,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Evictor {
        shared: shared.clone(),
        pods: shared.writer(ACCOUNT),
        claims: shared.informer(),
        slices: shared.informer(),
        recorder: shared.recorder(ACCOUNT, "device-taint-eviction-controller"),
        scheduled: Mutex::default(),
    });
    let claims = controller.claims.clone();
    shared
        .controller(&controller)
        .watches_with(&controller.slices, move |event| {
            let slice = event.object();
            let is_deleted = matches!(event, Event::Deleted(_));
            let old = event.old().map(|old| decide::tainted(old));
            let new = decide::tainted(slice);
            let spec = |slice: &ResourceSlice| slice.spec.pool.generation;
            let has_moved = event.old().is_some_and(|old| spec(old) != spec(slice));
            let is_same = old.unwrap_or_default() == new && !is_deleted && !has_moved;
            if is_same {
                return Vec::new();
            }
            let key = pool_key(&slice.spec.driver, &slice.spec.pool.name);
            let claims = claims.by_index(POOL, &key);
            claims.iter().flat_map(|claim| consumers(claim)).collect()
        })
        .watches_with(&controller.claims, |event| {
            let old = event.old().map(|old| consumers(old)).unwrap_or_default();
            let new = consumers(event.object());
            let is_same = event.old().is_some_and(|before| {
                old == new && allocation(before).is_some() == allocation(event.object()).is_some()
            });
            let all = old.into_iter().chain(new);
            all.filter(|_| !is_same).collect()
        })
        .watches_with(
            &controller.pods.cache().only(Facts::has_device_claims),
            |event| {
                let pod = event.object();
                let has_changed = event.old().is_none_or(|old| {
                    let statuses = |pod: &Pod| pod.status.as_ref()?.resource_claim_statuses.clone();
                    pods::node(old) != pods::node(pod) || statuses(old) != statuses(pod)
                });
                let is_deleted = matches!(event, Event::Deleted(_));
                let concerns = !entries(pod).is_empty() && (has_changed || is_deleted);
                concerns
                    .then(|| Key::from_object(&**pod))
                    .into_iter()
                    .collect()
            },
        )
        .workers(8)
        .start();
}

/// The pods that a claim is reserved for.
fn consumers(claim: &ResourceClaim) -> Vec<Key> {
    let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
    let consumers = reserved_for(claim).iter();
    let pods = consumers.filter(|consumer| {
        consumer.resource == "pods" && consumer.api_group.as_deref().unwrap_or_default().is_empty()
    });
    pods.map(|consumer| Key::new(namespace, consumer.name.clone()))
        .collect()
}

impl Evictor {
    /// When the pod must leave; `None` if it may stay.
    fn eviction(&self, pod: &Pod) -> Option<Timestamp> {
        if pods::node(pod).is_empty() {
            return None;
        }
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let times = entries(pod).iter().filter_map(|entry| {
            let named = named(pod, entry);
            let claim = self.claims.get(namespace, named.name()?)?;
            if !is_usable_by(&named, &claim, pod) || !is_reserved_for(&claim, uid) {
                return None;
            }
            decide::eviction(&claim, |result| {
                let key = pool_key(&result.driver, &result.pool);
                self.slices.by_index(POOL, &key)
            })
        });
        times.min()
    }

    fn record(&self, pod: &Pod, text: &str) {
        let about = kube::Resource::object_ref(pod, &());
        let reason = "DeviceTaintManagerEviction";
        self.recorder
            .event(&about, Kind::Normal, reason, text.to_owned());
    }

    async fn evict(&self, pod: &Pod, since: Timestamp) -> Result<(), Error> {
        self.record(pod, "Marking for deletion");
        let message = "Device Taint manager: deleting due to NoExecute taint";
        let now = self.shared.now();
        let patch = pods::disruption(pod, "DeletionByDeviceTaintManager", message, now);
        if !patch.is_empty() {
            match self.pods.patch_status(pod, &patch).await {
                // Gone, or another pod of the same name.
                Err(error) if error.is_not_found() || error.is_conflict() => return Ok(()),
                outcome => outcome?,
            };
        }
        self.pods.delete(pod).await?;
        let metrics = &self.shared.metrics;
        metrics.device_taint_evictions.add([], 1);
        let latency = self.shared.now().duration_since(since).unsigned_abs();
        metrics.device_taint_eviction_seconds.took([], latency);
        Ok(())
    }
}

impl Controller for Evictor {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let pod = self.pods.cache().get(&key.namespace, &key.name);
        let Some(pod) = pod.filter(|pod| !pods::is_deleting(pod)) else {
            self.scheduled.lock().remove(key);
            return Ok(Action::Done);
        };
        let Some(due) = self.eviction(&pod) else {
            if self.scheduled.lock().remove(key) {
                self.record(&pod, "Cancelling deletion");
            }
            return Ok(Action::Done);
        };
        let left = Duration::try_from(due.duration_since(self.shared.now()));
        if let Some(left) = left.ok().filter(|left| !left.is_zero()) {
            self.scheduled.lock().insert(key.clone());
            return Ok(Action::After(left));
        }
        self.evict(&pod, due).await?;
        self.scheduled.lock().remove(key);
        Ok(Action::Done)
    }
}
