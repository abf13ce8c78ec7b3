//! Keeps a pod with ResourceClaims pending until they exist, restricts it to nodes where they are
//! or can be allocated, and allocates them when the pod gets its node. Allocations that are being
//! written count as taken, so that no two pods get one device.

mod allocate;
mod bind;
mod claims;
mod conditions;
mod extended;
mod pending;
#[cfg(test)]
mod tests;

use std::{
    any::Any,
    cell::RefCell,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use k8s_openapi::api::resource::v1::ResourceClaim;
use parking_lot::Mutex;
use reconcile::devices::reserved_for;
use serde::Deserialize;
use serde_json::Value;

use super::arguments;
use crate::{
    cluster::{Cluster, NodeInfo, Slot},
    cycle::{Cycle, Failure, SeededRng},
    devices::selectors::Selectors,
    framework::{
        BindResult, LoopState, Plugin, Point, PostFilter, PreFilter,
        candidates::Candidates,
        event::{Event, EventKind},
        normalize,
    },
    pod::PodInfo,
    write::{Release, Writes},
};
use allocate::{Refusal, Wanted};
use bind::Binding;
use claims::claims;
use extended::Extended;
pub(crate) use pending::Pending;

/// The plugin's name.
pub(crate) const NAME: &str = "DynamicResources";

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Arguments {
    filter_timeout: Option<String>,
    binding_timeout: Option<String>,
}

/// The plugin.
pub(super) struct DynamicResources {
    /// How long devices may be searched for one pod; zero for any time.
    filter_timeout: Duration,
    /// How long devices may take to become ready for a pod.
    binding_timeout: Duration,
    selectors: Arc<Selectors>,
    /// Guards the allocations of pods that are being bound; never held across an await. All
    /// profiles of a scheduling loop share it.
    pending: Arc<Mutex<Pending>>,
    /// Guards the pod of the current attempt and when the search for its devices ends: PreFilter
    /// sets it for Filter, Score and Reserve.
    deadline: Mutex<Option<(Arc<str>, Instant)>>,
}

/// Whether devices are allocated for the pod, which may take long.
pub(crate) fn needs_devices(pod: &PodInfo, cluster: &Cluster) -> bool {
    !pod.template.resource_claims.is_empty() || Extended::new(pod, cluster).is_some()
}

/// Creates the plugin.
pub(super) fn new(value: &Value) -> Result<Arc<dyn Plugin>, String> {
    let given: Arguments = arguments(value)?;
    let duration = |field: &str, text: Option<String>, default: u64| match text {
        None => Ok(Duration::from_secs(default)),
        Some(text) => {
            let duration = machinery::duration::positive(&text);
            duration.map_err(|why| format!("{field}: {why}"))
        }
    };
    let binding_timeout = duration("bindingTimeout", given.binding_timeout, 600)?;
    if binding_timeout < Duration::from_secs(1) {
        return Err("bindingTimeout: must be greater than or equal to 1 second".into());
    }
    Ok(Arc::new(DynamicResources {
        filter_timeout: duration("filterTimeout", given.filter_timeout, 10)?,
        binding_timeout,
        selectors: Arc::default(),
        pending: Arc::default(),
        deadline: Mutex::default(),
    }))
}

impl Plugin for DynamicResources {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[
            Point::PreEnqueue,
            Point::PreFilter,
            Point::Filter,
            Point::PostFilter,
            Point::PreScore,
            Point::Score,
            Point::Reserve,
            Point::PreBind,
            Point::PostBind,
        ]
    }

    fn for_loop(&self, state: &LoopState) -> Option<Arc<dyn Plugin>> {
        Some(Arc::new(Self {
            filter_timeout: self.filter_timeout,
            binding_timeout: self.binding_timeout,
            selectors: self.selectors.clone(),
            pending: state.pending_devices.clone(),
            deadline: Mutex::default(),
        }))
    }

    fn pre_enqueue(&self, pod: &PodInfo, cluster: &Cluster) -> Result<(), String> {
        claims(pod, cluster).map(|_| ())
    }

    fn pre_filter(&self, pod: &PodInfo, cluster: &Cluster) -> PreFilter {
        self.begin_attempt(pod);
        match self.wanted(pod, cluster) {
            Ok(wanted) if wanted.is_empty() => PreFilter::Skip,
            Ok(wanted) => PreFilter::Continue(Box::new(wanted)),
            Err(why) => PreFilter::Reject(why.into(), false),
        }
    }

    fn filter(
        &self,
        pod: &PodInfo,
        cluster: &Cluster,
        state: &dyn Any,
        candidates: &mut Candidates,
    ) {
        let Some(wanted) = state.downcast_ref::<Wanted>() else {
            return;
        };
        let (pending, error) = (self.pending.lock().devices(), RefCell::new(None));
        candidates.retain_with(NAME, |slot| {
            if error.borrow().is_some() {
                return None;
            }
            let found = self.allocate((pod, cluster), wanted, slot, &pending);
            match found.err()? {
                Refusal::Node(why) => Some((vec![why], false)),
                Refusal::Attempt(why) => {
                    error.replace(Some(why));
                    None
                }
            }
        });
        if let Some(why) = error.into_inner() {
            candidates.fail(format!("running {NAME:?} filter plugin: {why}"));
        }
    }

    fn post_filter(
        &self,
        cycle: &mut Cycle<'_>,
        cluster: &mut Cluster,
        failure: &Failure,
        dice: &mut SeededRng,
    ) -> Option<PostFilter> {
        let message = |text: &str, release| {
            Some(PostFilter::Message {
                message: text.into(),
                release,
            })
        };
        let pod = cycle.pod;
        let wanted = self.wanted(pod, cluster).ok();
        let Some(wanted) = wanted.filter(|wanted| !wanted.is_empty()) else {
            return message("no new claims to deallocate", None);
        };
        let rejected = failure.rejected.iter().filter(|one| one.plugin == NAME);
        let nodes = rejected.filter_map(|one| cluster.node(one.slot));
        let nodes: Vec<&Arc<NodeInfo>> = nodes.collect();
        let is_idle = |claim: &&Arc<ResourceClaim>| {
            let mut consumers = reserved_for(claim).iter();
            consumers.all(|consumer| *consumer.uid == *pod.uid)
        };
        let is_unavailable =
            |claim: &&Arc<ResourceClaim>| nodes.iter().any(|node| !self.is_available(claim, node));
        let claims = wanted.claims.iter().filter(is_unavailable).filter(is_idle);
        let claims: Vec<&Arc<ResourceClaim>> = claims.collect();
        if !claims.is_empty() {
            // No claim is better than another.
            let claim = claims[dice.below(claims.len())].clone();
            let text = "deallocation of ResourceClaim completed";
            return message(text, Some(Release::Deallocate(claim)));
        }
        let stale = wanted.extended.and_then(|extended| extended.stale);
        if let Some(claim) = stale {
            let text = "deletion of ResourceClaim completed";
            return message(text, Some(Release::Delete(claim)));
        }
        message("still not schedulable", None)
    }

    fn pre_score(&self, pod: &PodInfo, cluster: &Cluster, _: &[Slot]) -> Option<Box<dyn Any>> {
        if pod.template.resource_claims.is_empty() {
            return None;
        }
        let wanted = self.wanted(pod, cluster).ok()?;
        wanted
            .has_alternatives()
            .then(|| Box::new(wanted) as Box<dyn Any>)
    }

    fn score(
        &self,
        pod: &PodInfo,
        cluster: &Cluster,
        state: &dyn Any,
        nodes: &[Slot],
        scores: &mut [i64],
    ) {
        let Some(wanted) = state.downcast_ref::<Wanted>() else {
            return;
        };
        for (slot, score) in nodes.iter().zip(scores) {
            *score = self.score_node((pod, cluster), wanted, *slot);
        }
    }

    fn normalize(&self, _: &dyn Any, scores: &mut [i64]) {
        normalize(scores, false);
    }

    fn reserve(&self, pod: &PodInfo, cluster: &Cluster, slot: Slot) -> Result<(), String> {
        let wanted = self.wanted(pod, cluster)?;
        if wanted.is_empty() {
            return Ok(());
        }
        let pending = self.pending.lock().devices();
        let found = self.allocate((pod, cluster), &wanted, slot, &pending);
        let found = found.map_err(|refusal| match refusal {
            Refusal::Node(why) => why.into_owned(),
            Refusal::Attempt(why) => why,
        })?;
        self.pending.lock().reserve(&pod.uid, found);
        Ok(())
    }

    fn unreserve(&self, pod: &PodInfo, _: Slot) {
        self.pending.lock().unreserve(&pod.uid);
    }

    fn pre_bind<'a>(
        &'a self,
        writes: &'a Writes,
        pod: &'a PodInfo,
        node: &'a str,
    ) -> BoxFuture<'a, BindResult> {
        let reservation = self.pending.lock().of_pod(&pod.uid);
        let Some(reservation) = reservation else {
            return Box::pin(async { Ok(()) });
        };
        Box::pin(async move {
            let binding = Binding {
                writes,
                pod,
                node,
                pending: &self.pending,
                timeout: self.binding_timeout,
            };
            let bound = binding.run(&reservation).await;
            bound.map_err(|why| kube::Error::Service(why.into()))
        })
    }

    fn roll_back<'a>(&'a self, writes: &'a Writes, pod: &'a PodInfo) -> BoxFuture<'a, ()> {
        let reservation = self.pending.lock().of_pod(&pod.uid);
        Box::pin(async move {
            if let Some(reservation) = reservation {
                bind::roll_back(writes, pod, &self.pending, &reservation).await;
            }
        })
    }

    fn post_bind(&self, pod: &PodInfo, _: &str) {
        self.pending.lock().unreserve(&pod.uid);
    }

    fn events(&self) -> &'static [EventKind] {
        &[
            EventKind::DeviceClaim,
            EventKind::DeviceClass,
            EventKind::Slice,
            EventKind::OwnUpdate,
            EventKind::NodeAdded,
            EventKind::NodeUpdated,
            EventKind::PodDeleted,
        ]
    }

    fn is_helped_by(&self, pod: &PodInfo, event: &Event<'_>, cluster: &Cluster) -> bool {
        match event {
            Event::DeviceClaim { old, new } => claims::is_helped(pod, cluster, *old, new),
            Event::OwnUpdate { old, new } => old.made_claims != new.made_claims,
            Event::DeviceClass { .. } | Event::Slice { .. } | Event::NodeAdded(_) => true,
            Event::NodeUpdated { old, new } => {
                old.labels != new.labels || old.allocatable != new.allocatable
            }
            // Its binding failed: allocations that were not written are free again.
            Event::PodDeleted(gone, _) => {
                let template = &gone.template;
                !template.resource_claims.is_empty() || !template.extended.is_empty()
            }
            _ => false,
        }
    }
}
