//! Which devices a pod needs and gets on a node.

use std::{any::Any, borrow::Cow, sync::Arc, time::Instant};

use k8s_openapi::api::resource::v1::{
    AllocationResult, DeviceRequestAllocationResult, ResourceClaim,
};
use reconcile::{
    devices::{allocation, can_be_reserved, is_reserved_for, results},
    placement::matches_any,
};

use super::{
    DynamicResources,
    claims::{self, claims},
    conditions,
    extended::Extended,
    pending::Reservation,
};
use crate::{
    cluster::{Cluster, NodeInfo, Slot},
    devices::{
        Error, Inventory,
        allocated::{Allocated, InUse},
    },
    framework::State,
    pod::PodInfo,
};

const UNAVAILABLE: &str = "resourceclaim not available on the node";
/// The maximum number of alternatives of a request.
const ALTERNATIVES_MAX: i64 = 8;

/// What a pod needs.
#[derive(Default)]
pub(super) struct Wanted {
    pub(super) claims: Vec<Arc<ResourceClaim>>,
    /// The extended resources that device classes stand for.
    pub(super) extended: Option<Extended>,
    /// When the search for devices ends.
    deadline: Option<Instant>,
}

impl Wanted {
    pub(super) fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.extended.is_none()
    }

    pub(super) fn has_alternatives(&self) -> bool {
        let devices = self
            .claims
            .iter()
            .filter_map(|claim| claim.spec.devices.as_ref());
        let mut requests = devices.flat_map(|devices| devices.requests.iter().flatten());
        requests.any(|request| {
            request
                .first_available
                .as_ref()
                .is_some_and(|all| !all.is_empty())
        })
    }
}

impl State for Wanted {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Why a node cannot be used.
pub(super) enum Refusal {
    Node(Cow<'static, str>),
    /// The attempt is given up.
    Attempt(String),
}

impl DynamicResources {
    /// What the pod needs, or why it cannot be scheduled.
    pub(super) fn wanted(&self, pod: &PodInfo, cluster: &Cluster) -> Result<Wanted, String> {
        let template = &pod.template;
        if template.resource_claims.is_empty() && template.extended.is_empty() {
            return Ok(Wanted::default());
        }
        let claims = claims(pod, cluster)?;
        let mut pending = self.pending.lock();
        pending.prune(cluster.device_claims.version());
        for claim in &claims {
            if allocation(claim).is_some() {
                if !can_be_reserved(claim) && !is_reserved_for(claim, &pod.uid) {
                    return Err("resourceclaim in use".into());
                }
                continue;
            }
            if pending.has(claim) {
                let key = claims::key(claim);
                let why = "is in the process of being allocated";
                return Err(format!("resource claim {key} {why}"));
            }
            claims::check_classes(claim, &cluster.classes)?;
        }
        drop(pending);
        Ok(Wanted {
            claims,
            extended: Extended::new(pod, cluster),
            deadline: self.deadline_of(pod),
        })
    }

    /// Starts the time of an attempt, which Filter, Score and Reserve share.
    pub(super) fn begin_attempt(&self, pod: &PodInfo) {
        let end = self.new_deadline();
        *self.deadline.lock() = end.map(|end| (pod.uid.clone(), end));
    }

    fn new_deadline(&self) -> Option<Instant> {
        let limit = Some(self.filter_timeout).filter(|limit| !limit.is_zero());
        limit.map(|limit| Instant::now() + limit)
    }

    /// When the current attempt ends; `None` without a limit.
    fn deadline_of(&self, pod: &PodInfo) -> Option<Instant> {
        let current = self.deadline.lock();
        match current.as_ref().filter(|(uid, _)| *uid == pod.uid) {
            Some((_, end)) => Some(*end),
            None => self.new_deadline(),
        }
    }

    /// The allocations for a node.
    pub(super) fn allocate(
        &self,
        (pod, cluster): (&PodInfo, &Cluster),
        wanted: &Wanted,
        slot: Slot,
        pending: &Allocated,
    ) -> Result<Reservation, Refusal> {
        let missing = || Refusal::Node("the node is gone".into());
        let node = cluster.node(slot).ok_or_else(missing)?;
        let extended = match &wanted.extended {
            Some(extended) => extended
                .on_node(pod, cluster, slot)
                .map_err(Refusal::Node)?,
            None => None,
        };
        let own = wanted
            .claims
            .iter()
            .filter(|claim| allocation(claim).is_none());
        let mut unallocated: Vec<&ResourceClaim> = own.map(AsRef::as_ref).collect();
        unallocated.extend(extended.as_ref().map(|extended| &extended.claim));
        let mut allocations = Vec::new().into_iter();
        if !unallocated.is_empty() {
            allocations = self
                .search(cluster, node, &unallocated, wanted, pending)?
                .into_iter();
        }
        if wanted
            .claims
            .iter()
            .any(|claim| !self.is_available(claim, node))
        {
            return Err(Refusal::Node(UNAVAILABLE.into()));
        }
        let mut reservation = Reservation::default();
        for claim in &wanted.claims {
            let new = allocation(claim).is_none();
            let allocation = new.then(|| allocations.next()).flatten();
            reservation.claims.push((claim.clone(), allocation));
        }
        reservation.extended = extended.zip(allocations.next());
        Ok(reservation)
    }

    fn search(
        &self,
        cluster: &Cluster,
        node: &NodeInfo,
        claims: &[&ResourceClaim],
        wanted: &Wanted,
        pending: &Allocated,
    ) -> Result<Vec<AllocationResult>, Refusal> {
        let is_over = || wanted.deadline.is_some_and(|end| Instant::now() >= end);
        let inventory = Inventory {
            slices: &cluster.slices,
            classes: &cluster.classes,
            in_use: InUse {
                known: cluster.device_claims.allocated(),
                pending,
            },
            selectors: &self.selectors,
            stop: &is_over,
        };
        let share_id = || uuid::Uuid::new_v4().to_string();
        match inventory.allocate(node, claims, share_id) {
            Ok(Some(allocations)) => Ok(allocations),
            Ok(None) => Err(Refusal::Node("cannot allocate all claims".into())),
            Err(Error::OnNode(why)) => Err(Refusal::Node(why.into())),
            Err(Error::Failed(why)) => Err(Refusal::Attempt(why)),
            Err(Error::Stopped) => {
                let node = &node.name;
                let why = "timed out trying to allocate devices";
                Err(Refusal::Attempt(format!("node {node}: {why}")))
            }
        }
    }

    /// Whether the devices of an allocated claim can be used on a node.
    pub(super) fn is_available(&self, claim: &ResourceClaim, node: &NodeInfo) -> bool {
        let Some(allocation) = allocation(claim) else {
            return true;
        };
        let selector = allocation.node_selector.as_ref();
        let matches = selector.is_none_or(|selector| {
            matches_any(&selector.node_selector_terms, &node.labels, &node.name)
        });
        matches && !conditions::has_failed(claim, self.binding_timeout)
    }

    /// The score of a node: the earlier the alternatives of requests, the better.
    pub(super) fn score_node(&self, at: (&PodInfo, &Cluster), wanted: &Wanted, slot: Slot) -> i64 {
        let pending = self.pending.lock().devices();
        let Ok(found) = self.allocate(at, wanted, slot, &pending) else {
            return 0;
        };
        let claims = found.claims.iter();
        claims
            .map(|(claim, allocation)| {
                let new = allocation.as_ref().and_then(|all| all.devices.as_ref());
                let new = new.and_then(|devices| devices.results.as_deref());
                preference(claim, new.unwrap_or_else(|| results(claim)))
            })
            .sum()
    }
}

/// How early the alternatives are that a claim has.
fn preference(claim: &ResourceClaim, results: &[DeviceRequestAllocationResult]) -> i64 {
    let devices = claim.spec.devices.iter();
    let requests = devices.flat_map(|devices| devices.requests.iter().flatten());
    let mut sum = 0;
    for request in requests {
        let list = request.first_available.iter().flatten();
        for (rank, one) in (0..).zip(list) {
            let name = format!("{}/{}", request.name, one.name);
            if results.iter().any(|result| result.request == name) {
                sum += ALTERNATIVES_MAX - rank;
            }
        }
    }
    sum
}
