//! The search: claims, requests and devices in their order, the first complete choice wins. What a
//! choice changes is undone when it leads nowhere.

use std::collections::BTreeMap;

use machinery::quantity::Quantity;
use reconcile::devices::tolerates;

use super::{
    Error, Inventory, RESULTS_MAX,
    allocated::{InUse, Shares},
    capacity,
    constraint::Constraint,
    counters::Counters,
    matcher::Matcher,
    plan::{Alternative, Plan, Wanted},
    pools::{Found, Pool},
};

/// A device that was chosen for an alternative of a request.
#[derive(Debug, Clone)]
pub(super) struct Chosen {
    pub(super) request: usize,
    pub(super) alternative: usize,
    pub(super) device: usize,
    /// What it consumes of a device that can be allocated several times.
    pub(super) share: Option<BTreeMap<String, Quantity>>,
}

/// The choice for all claims.
pub(super) struct Solution<'s, 'a> {
    pub(super) plans: &'s [Plan<'a>],
    pub(super) devices: &'s [Found<'a>],
    /// By claim.
    pub(super) chosen: &'s [Vec<Chosen>],
}

/// Why the search does not go on here.
enum Stop {
    /// The claim would have too many devices, whichever are chosen.
    TooMany,
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// A claim, a request of it and an alternative of that.
#[derive(Debug, Clone, Copy)]
struct At {
    claim: usize,
    request: usize,
    alternative: usize,
}

struct Search<'s, 'a> {
    plans: &'s [Plan<'a>],
    pools: &'s [Pool<'a>],
    matcher: Matcher<'s, 'a>,
    in_use: InUse<'a>,
    /// The claims that take each device.
    takers: Vec<Vec<usize>>,
    /// The shares of each device.
    shares: Vec<Shares>,
    /// The counters of each pool, made when they are needed.
    counters: Vec<Option<Counters<'a>>>,
    constraints: Vec<Vec<Constraint<'a>>>,
    chosen: Vec<Vec<Chosen>>,
}

/// The choice for all claims; `None` if there is none.
pub(super) fn search<'s, 'a>(
    plans: &'s [Plan<'a>],
    pools: &'s [Pool<'a>],
    matcher: Matcher<'s, 'a>,
    inventory: &Inventory<'a>,
) -> Result<Option<Vec<Vec<Chosen>>>, Error> {
    let devices = matcher.devices.len();
    let constraints = plans.iter().map(|plan| {
        let devices = plan.claim.spec.devices.iter();
        let constraints = devices.flat_map(|devices| devices.constraints.iter().flatten());
        constraints.filter_map(Constraint::new).collect()
    });
    let mut search = Search {
        plans,
        pools,
        matcher,
        in_use: inventory.in_use,
        takers: vec![Vec::new(); devices],
        shares: vec![Shares::default(); devices],
        counters: pools.iter().map(|_| None).collect(),
        constraints: constraints.collect(),
        chosen: vec![Vec::new(); plans.len()],
    };
    match search.next(0, 0) {
        Ok(true) => Ok(Some(search.chosen)),
        Ok(false) => Ok(None),
        Err(Stop::TooMany) => Err(Error::Failed("allocation max size exceeded".into())),
        Err(Stop::Failed(error)) => Err(error),
    }
}

impl<'a> Search<'_, 'a> {
    fn alternative(&self, at: At) -> &Alternative<'a> {
        &self.plans[at.claim].requests[at.request][at.alternative]
    }

    /// Allocates from a request on; true if everything is allocated.
    fn next(&mut self, claim: usize, request: usize) -> Result<bool, Stop> {
        let Some(plan) = self.plans.get(claim) else {
            return Ok(true);
        };
        let Some(wanted) = plan.requests.get(request) else {
            return match self.next(claim + 1, 0) {
                // Another choice for this claim may leave the devices for a shorter alternative.
                Err(Stop::TooMany) => Ok(false),
                found => found,
            };
        };
        let mut are_all_too_many = true;
        for alternative in 0..wanted.len() {
            let at = At {
                claim,
                request,
                alternative,
            };
            match self.pick(at, 0, 0) {
                Err(Stop::TooMany) => {}
                Ok(false) => are_all_too_many = false,
                found => return found,
            }
        }
        if are_all_too_many {
            return Err(Stop::TooMany);
        }
        Ok(false)
    }

    /// Allocates the `nth` device of a request and all that follow. Within a request the devices
    /// are chosen in ascending order, since their order makes no difference.
    fn pick(&mut self, at: At, nth: usize, first: usize) -> Result<bool, Stop> {
        self.matcher.ensure_not_stopped()?;
        let plans = self.plans;
        let alternative = &plans[at.claim].requests[at.request][at.alternative];
        let count = alternative.count();
        let all = match &alternative.wanted {
            Wanted::All(devices) if devices.is_empty() => return Ok(false),
            Wanted::All(devices) => Some(devices),
            Wanted::Count(_) => None,
        };
        if nth >= count {
            return self.next(at.claim, at.request + 1);
        }
        let others = self.chosen[at.claim].len();
        if others.saturating_add(count - nth) > RESULTS_MAX {
            return Err(Stop::TooMany);
        }
        if let Some(devices) = all {
            let device = devices[nth];
            return Ok(self.take(at, device, true)? && self.go_on(at, nth, device)?);
        }
        for device in first..self.matcher.devices.len() {
            self.matcher.ensure_not_stopped()?;
            if self.is_usable(at, device)?
                && self.take(at, device, false)?
                && self.go_on(at, nth, device)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Allocates what follows a device that was taken; gives it back if that fails.
    fn go_on(&mut self, at: At, nth: usize, device: usize) -> Result<bool, Stop> {
        let found = self.pick(at, nth + 1, device + 1);
        if !matches!(found, Ok(true)) {
            self.give_back(at, device);
        }
        found
    }

    fn is_free(&self, at: At, device: usize) -> bool {
        let takers = &self.takers[device];
        if self.alternative(at).has_admin_access {
            return !takers.contains(&at.claim);
        }
        let id = &self.matcher.devices[device].device.id;
        takers.is_empty() && !self.in_use.is_dedicated(id)
    }

    fn has_capacity(&self, at: At, device: usize) -> bool {
        let (found, shares) = (self.matcher.devices[device].device, &self.shares[device]);
        capacity::fits(found, self.alternative(at).capacity, |name| {
            self.in_use
                .consumed(&found.id, name)
                .plus(shares.consumed(name))
        })
    }

    fn is_usable(&mut self, at: At, device: usize) -> Result<bool, Error> {
        let plans = self.plans;
        let alternative = &plans[at.claim].requests[at.request][at.alternative];
        Ok(self.is_free(at, device)
            && self.matcher.selects(alternative, device)?
            && self.has_capacity(at, device))
    }

    /// Takes a device that the request selects; false if that is not possible. It must be possible
    /// for a request of all devices: constraints that prevent it are an error.
    fn take(&mut self, at: At, device: usize, must: bool) -> Result<bool, Error> {
        let found = self.matcher.devices[device];
        let has_room = self.is_free(at, device)
            && !is_tainted(found, self.alternative(at))
            && self.has_capacity(at, device);
        if !has_room || !self.take_counters(device) {
            return Ok(false);
        }
        if !self.constrain(at, device) {
            self.give_back_counters(device);
            if must {
                let (claim, id) = (self.alternative(at).claim, &found.device.id);
                let request = &self.alternative(at).whole_name;
                let request = request.rsplit('/').next().unwrap_or_default();
                return Err(Error::Failed(format!(
                    "claim {claim}, request {request}: cannot add device {id} because a claim constraint would not be satisfied"
                )));
            }
            return Ok(false);
        }
        let share = found.device.is_shareable.then(|| {
            let consumed = capacity::consumed(found.device, self.alternative(at).capacity);
            let amounts = consumed
                .iter()
                .map(|(name, amount)| (name.as_str(), *amount));
            self.shares[device].add(amounts);
            consumed
        });
        if share.is_none() {
            self.takers[device].push(at.claim);
        }
        self.chosen[at.claim].push(Chosen {
            request: at.request,
            alternative: at.alternative,
            device,
            share,
        });
        Ok(true)
    }

    /// Undoes [`Search::take`] of the device that was taken last.
    fn give_back(&mut self, at: At, device: usize) {
        let Some(chosen) = self.chosen[at.claim].pop() else {
            return;
        };
        match chosen.share {
            Some(consumed) => {
                let amounts = consumed
                    .iter()
                    .map(|(name, amount)| (name.as_str(), *amount));
                self.shares[device].remove(amounts);
            }
            None => {
                self.takers[device].pop();
            }
        }
        let plans = self.plans;
        let alternative = &plans[at.claim].requests[at.request][at.alternative];
        for constraint in &mut self.constraints[at.claim] {
            constraint.remove(alternative.request, &alternative.whole_name);
        }
        self.give_back_counters(device);
    }

    /// Whether the device consumes counters of its own now: shares of a device consume them once.
    fn consumes(&self, device: usize) -> bool {
        let found = self.matcher.devices[device].device;
        let has_shares = !self.shares[device].is_empty() || self.in_use.is_shared(&found.id);
        let is_shared = found.is_shareable && has_shares;
        !is_shared && !found.consumes.is_empty()
    }

    fn take_counters(&mut self, device: usize) -> bool {
        if !self.consumes(device) {
            return true;
        }
        let found = self.matcher.devices[device];
        let (pool, in_use) = (&self.pools[found.pool], &self.in_use);
        let counters = &mut self.counters[found.pool];
        let counters = counters.get_or_insert_with(|| Counters::new(pool, in_use));
        counters.take(found.device)
    }

    fn give_back_counters(&mut self, device: usize) {
        if !self.consumes(device) {
            return;
        }
        let found = self.matcher.devices[device];
        if let Some(counters) = &mut self.counters[found.pool] {
            counters.give_back(found.device);
        }
    }

    /// Adds the device to all constraints of the claim, or to none.
    fn constrain(&mut self, at: At, device: usize) -> bool {
        let plans = self.plans;
        let alternative = &plans[at.claim].requests[at.request][at.alternative];
        let (request, whole_name) = (alternative.request, &alternative.whole_name);
        let found = self.matcher.devices[device].device;
        let constraints = &mut self.constraints[at.claim];
        let mut all = constraints.iter_mut();
        let violated = all.position(|constraint| !constraint.add(request, whole_name, found));
        let Some(violated) = violated else {
            return true;
        };
        for constraint in &mut constraints[..violated] {
            constraint.remove(request, whole_name);
        }
        false
    }
}

/// Whether a taint of the device keeps the request from it.
fn is_tainted(found: Found<'_>, alternative: &Alternative<'_>) -> bool {
    let mut taints = found.device.taints.iter();
    taints.any(|taint| {
        let mut tolerations = alternative.tolerations.iter();
        matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute")
            && !tolerations.any(|toleration| tolerates(toleration, taint))
    })
}
