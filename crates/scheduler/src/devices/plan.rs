//! The requests of claims in the form in which the search works: each request is a list of
//! alternatives, of which one is allocated.

use k8s_openapi::api::resource::v1::{
    CapacityRequirements, DeviceClass, DeviceRequest, DeviceSelector, DeviceSubRequest,
    DeviceToleration, ExactDeviceRequest, ResourceClaim,
};

use super::{
    Error, Inventory, RESULTS_MAX, STEPS_MAX,
    allocated::InUse,
    capacity,
    classes::Classes,
    constraint::Constraint,
    matcher::Matcher,
    pools::{Pool, State},
};

/// A request, or one alternative of a request.
#[derive(Debug)]
pub(super) struct Alternative<'a> {
    /// Different for all alternatives of a search.
    pub(super) number: usize,
    /// Namespace and name of the claim.
    pub(super) claim: &'a str,
    /// The name of the request.
    pub(super) request: &'a str,
    /// With the name of the alternative, as results name it.
    pub(super) whole_name: String,
    pub(super) class: &'a DeviceClass,
    pub(super) selectors: &'a [DeviceSelector],
    pub(super) tolerations: &'a [DeviceToleration],
    pub(super) capacity: Option<&'a CapacityRequirements>,
    pub(super) has_admin_access: bool,
    pub(super) wanted: Wanted,
}

/// How many devices are wanted.
#[derive(Debug)]
pub(super) enum Wanted {
    /// Any of this number.
    Count(usize),
    /// All that match: exactly these.
    All(Vec<usize>),
}

impl Alternative<'_> {
    /// The number of devices.
    pub(super) fn count(&self) -> usize {
        match &self.wanted {
            Wanted::Count(count) => *count,
            Wanted::All(devices) => devices.len(),
        }
    }
}

/// One request: its alternatives, of which the first that is available is wanted.
type Request<'a> = Vec<Alternative<'a>>;

/// One claim.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    pub(super) claim: &'a ResourceClaim,
    pub(super) requests: Vec<Request<'a>>,
}

impl Plan<'_> {
    /// The maximum number of nested steps of the search for this claim.
    fn steps(&self) -> usize {
        let most = |request: &Request<'_>| request.iter().map(Alternative::count).max();
        let counts = self.requests.iter().filter_map(most);
        let devices = counts.fold(0, usize::saturating_add).min(RESULTS_MAX);
        1 + self.requests.len() + devices
    }
}

/// What requests and alternatives have in common.
struct RequestFields<'a> {
    class: &'a str,
    mode: Option<&'a str>,
    count: Option<i64>,
    selectors: Option<&'a Vec<DeviceSelector>>,
    tolerations: Option<&'a Vec<DeviceToleration>>,
    capacity: Option<&'a CapacityRequirements>,
    has_admin_access: bool,
}

impl<'a> RequestFields<'a> {
    fn exact(request: &'a ExactDeviceRequest) -> Self {
        Self {
            class: &request.device_class_name,
            mode: request.allocation_mode.as_deref(),
            count: request.count,
            selectors: request.selectors.as_ref(),
            tolerations: request.tolerations.as_ref(),
            capacity: request.capacity.as_ref(),
            has_admin_access: request.admin_access == Some(true),
        }
    }

    fn alternative(request: &'a DeviceSubRequest) -> Self {
        Self {
            class: &request.device_class_name,
            mode: request.allocation_mode.as_deref(),
            count: request.count,
            selectors: request.selectors.as_ref(),
            tolerations: request.tolerations.as_ref(),
            capacity: request.capacity.as_ref(),
            has_admin_access: false,
        }
    }
}

/// Namespace and name.
fn key(claim: &ResourceClaim) -> String {
    let meta = &claim.metadata;
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let name = meta.name.as_deref().unwrap_or_default();
    format!("{namespace}/{name}")
}

/// The keys of claims, which plans and errors name.
pub(super) fn keys(claims: &[&ResourceClaim]) -> Vec<String> {
    claims.iter().map(|claim| key(claim)).collect()
}

struct Planner<'x, 'm, 'd, 'a> {
    classes: &'a Classes,
    in_use: InUse<'a>,
    pools: &'x [Pool<'d>],
    matcher: &'x mut Matcher<'m, 'd>,
    /// The number of alternatives so far.
    number: usize,
}

/// Checks the claims, each with its key, and finds out what they want.
pub(super) fn plans<'a, 'd>(
    claims: impl Iterator<Item = (&'a ResourceClaim, &'a str)>,
    inventory: &Inventory<'a>,
    pools: &[Pool<'d>],
    matcher: &mut Matcher<'_, 'd>,
) -> Result<Vec<Plan<'a>>, Error> {
    let mut planner = Planner {
        classes: inventory.classes,
        in_use: inventory.in_use,
        pools,
        matcher,
        number: 0,
    };
    let plans = claims.map(|(claim, key)| planner.plan(claim, key));
    let plans = plans.collect::<Result<Vec<_>, _>>()?;
    let steps: usize = plans.iter().map(Plan::steps).sum();
    if steps > STEPS_MAX {
        return Err(Error::OnNode(format!(
            "the pod has too many resource claims: {steps} claims, requests and devices exceed \
             the limit of {STEPS_MAX}"
        )));
    }
    Ok(plans)
}

impl<'a> Planner<'_, '_, '_, 'a> {
    fn plan(&mut self, claim: &'a ResourceClaim, key: &'a str) -> Result<Plan<'a>, Error> {
        let devices = claim.spec.devices.as_ref();
        let requests = devices.and_then(|devices| devices.requests.as_ref());
        let requests = requests.into_iter().flatten();
        let requests = requests.map(|request| self.request(key, request));
        let requests = requests.collect::<Result<Vec<_>, _>>()?;
        let least = |request: &Request<'a>| {
            let counts = request.iter().map(Alternative::count);
            counts.min().unwrap_or(0)
        };
        let least = requests.iter().map(least).fold(0, usize::saturating_add);
        if least > RESULTS_MAX {
            return Err(Error::Failed(format!(
                "claim {key}: number of requested devices {least} exceeds the claim limit of {RESULTS_MAX}"
            )));
        }
        let constraints = devices.and_then(|devices| devices.constraints.as_ref());
        let mut constraints = constraints.into_iter().flatten();
        if let Some(i) = constraints.position(|one| Constraint::new(one).is_none()) {
            return Err(Error::Failed(format!(
                "claim {key}, constraint #{i}: empty constraint (unsupported constraint type?)"
            )));
        }
        Ok(Plan { claim, requests })
    }

    fn request(&mut self, key: &'a str, request: &'a DeviceRequest) -> Result<Request<'a>, Error> {
        let name = request.name.as_str();
        let list = request.first_available.as_deref().unwrap_or_default();
        let mut alternatives = Vec::new();
        for one in list {
            let whole_name = format!("{name}/{}", one.name);
            let names = (key, name, one.name.as_str());
            alternatives.push(self.alternative(
                names,
                whole_name,
                &RequestFields::alternative(one),
            )?);
        }
        if let Some(one) = request.exactly.as_ref().filter(|_| list.is_empty()) {
            let names = (key, name, name);
            alternatives.push(self.alternative(
                names,
                name.to_owned(),
                &RequestFields::exact(one),
            )?);
        }
        Ok(alternatives)
    }

    fn alternative(
        &mut self,
        (key, request, name): (&'a str, &'a str, &'a str),
        whole_name: String,
        fields: &RequestFields<'a>,
    ) -> Result<Alternative<'a>, Error> {
        let failed = |why: String| Error::Failed(format!("claim {key}, request {name}: {why}"));
        let class = fields.class;
        let class = self.classes.get(class).ok_or_else(|| {
            let why = format!("deviceclass.resource.k8s.io {class:?} not found");
            failed(format!("could not retrieve device class {class}: {why}"))
        })?;
        self.number += 1;
        let mut alternative = Alternative {
            number: self.number,
            claim: key,
            request,
            whole_name,
            class,
            selectors: fields.selectors.map_or(&[], Vec::as_slice),
            tolerations: fields.tolerations.map_or(&[], Vec::as_slice),
            capacity: fields.capacity,
            has_admin_access: fields.has_admin_access,
            wanted: Wanted::Count(0),
        };
        let unselective = |one: &DeviceSelector| one.cel.is_none();
        if let Some(i) = alternative.selectors.iter().position(unselective) {
            let why = "CEL expression empty (unsupported selector type?)";
            let claim = format!("claim {key}, request {name}, selector #{i}: {why}");
            return Err(Error::Failed(claim));
        }
        alternative.wanted = match fields.mode.unwrap_or("ExactCount") {
            "ExactCount" => {
                let count = fields.count.unwrap_or(1);
                Wanted::Count(usize::try_from(count).unwrap_or(usize::MAX))
            }
            "All" => Wanted::All(self.all(&alternative).map_err(|error| match error {
                Error::OnNode(why) => failed(why),
                error => error,
            })?),
            mode => return Err(failed(format!("unsupported count mode {mode}"))),
        };
        Ok(alternative)
    }

    /// All devices that a request selects. Nothing is allocated while a pool is being updated.
    fn all(&mut self, alternative: &Alternative<'a>) -> Result<Vec<usize>, Error> {
        let unusable = self.pools.iter().find(|pool| pool.state != State::Usable);
        if let Some(pool) = unusable {
            let state = match pool.state {
                State::Incomplete => "being updated",
                _ => "invalid",
            };
            let id = pool.id;
            return Err(Error::OnNode(format!(
                "asks for all devices, but resource pool {id} is currently {state}"
            )));
        }
        let mut all = Vec::new();
        for at in 0..self.matcher.devices.len() {
            self.matcher.ensure_not_stopped()?;
            if !self.matcher.selects(alternative, at)? {
                continue;
            }
            let device = self.matcher.devices[at].device;
            let used = |name: &str| self.in_use.consumed(&device.id, name);
            if capacity::fits(device, alternative.capacity, used) {
                all.push(at);
            }
        }
        Ok(all)
    }
}
