//! Allocates devices of ResourceSlices to ResourceClaims, for one node: the first choice of devices
//! that satisfies all requests of all claims of a pod together. Pure: it reads indexed objects and
//! returns results; the `DynamicResources` plugin does the IO.

pub mod allocated;
mod capacity;
pub mod classes;
mod constraint;
mod counters;
mod matcher;
mod plan;
mod pools;
#[cfg(test)]
mod reference;
mod result;
mod search;
pub mod selectors;
pub mod slices;
#[cfg(test)]
mod tests;

use std::{fmt, sync::Arc};

use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim};

use crate::cluster::NodeInfo;
use allocated::InUse;
use classes::Classes;
use selectors::Selectors;
use slices::Slices;

/// The maximum number of devices of a claim.
const RESULTS_MAX: usize = 32;
/// The maximum number of claims, requests and devices of a pod together: the search recurses for
/// each of them.
const STEPS_MAX: usize = 512;

/// A pool of a driver.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId {
    /// The driver.
    pub driver: Arc<str>,
    /// The pool's name.
    pub pool: Arc<str>,
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.driver, self.pool)
    }
}

/// A device of a pool.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId {
    /// The pool.
    pub pool: PoolId,
    /// The device's name.
    pub device: Arc<str>,
}

impl DeviceId {
    /// From the names in an allocation result.
    pub fn new(driver: &str, pool: &str, device: &str) -> Self {
        Self {
            pool: PoolId {
                driver: driver.into(),
                pool: pool.into(),
            },
            device: device.into(),
        }
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.pool, self.device)
    }
}

/// Why nothing was allocated, other than for a lack of devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// This node cannot be used; others may.
    OnNode(String),
    /// Something is wrong with a claim, a class or a device: no node is tried any more.
    Failed(String),
    /// The search was stopped.
    Stopped,
}

/// Everything that allocations depend on.
#[derive(Clone, Copy)]
pub struct Inventory<'a> {
    /// The devices.
    pub slices: &'a Slices,
    /// The device classes.
    pub classes: &'a Classes,
    /// The devices that are allocated.
    pub in_use: InUse<'a>,
    /// Compiled selectors.
    pub selectors: &'a Selectors,
    /// Whether to stop the search, which tries all combinations in the worst case.
    pub stop: &'a dyn Fn() -> bool,
}

impl Inventory<'_> {
    /// The allocations of all claims for a node; `None` without enough devices. `share_id` makes
    /// the ids of shares of devices.
    pub fn allocate(
        &self,
        node: &NodeInfo,
        claims: &[&ResourceClaim],
        mut share_id: impl FnMut() -> String,
    ) -> Result<Option<Vec<AllocationResult>>, Error> {
        let pools = pools::gather(self.slices, node);
        let (devices, keys) = (pools::devices(&pools), plan::keys(claims));
        let mut matcher = matcher::Matcher::new(&devices, node, self.selectors, self.stop);
        let claims = claims.iter().copied().zip(keys.iter().map(String::as_str));
        let plans = plan::plans(claims, self, &pools, &mut matcher)?;
        let found = search::search(&plans, &pools, matcher, self)?;
        if found.is_none() && pools.iter().any(pools::Pool::is_invalid) {
            return Err(Error::OnNode(
                "invalid resource pools were encountered".into(),
            ));
        }
        Ok(found.map(|chosen| {
            let solution = search::Solution {
                plans: &plans,
                devices: &devices,
                chosen: &chosen,
            };
            result::results(&solution, node, &mut share_id)
        }))
    }
}
