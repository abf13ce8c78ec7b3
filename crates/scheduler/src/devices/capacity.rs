//! Capacities of devices: how much of each a request consumes, by the policy of the device, and
//! whether that is left.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{self as api, CapacityRequirements};
use machinery::quantity::{Format, Quantity};

use super::slices::{Device, amount};

/// A capacity and which amounts of it can be requested.
#[derive(Debug, Clone, PartialEq)]
pub struct Capacity {
    value: Quantity,
    /// What is consumed without a request; the whole capacity without a default.
    default: Option<Quantity>,
    policy: Policy,
}

#[derive(Debug, Clone, PartialEq)]
enum Policy {
    Any,
    Range {
        min: Quantity,
        max: Option<Quantity>,
        step: Option<Quantity>,
    },
    /// Ascending.
    Values(Vec<Quantity>),
}

impl Capacity {
    pub(super) fn new(capacity: &api::DeviceCapacity) -> Self {
        let policy = capacity.request_policy.as_ref();
        let range = policy.and_then(|policy| policy.valid_range.as_ref());
        let values = policy.and_then(|policy| policy.valid_values.as_ref());
        Self {
            value: amount(&capacity.value),
            default: policy.and_then(|policy| policy.default.as_ref().map(amount)),
            policy: match (range, values) {
                (Some(range), _) => Policy::Range {
                    min: amount(&range.min),
                    max: range.max.as_ref().map(amount),
                    step: range.step.as_ref().map(amount),
                },
                (None, Some(values)) if !values.is_empty() => {
                    Policy::Values(values.iter().map(amount).collect())
                }
                _ => Policy::Any,
            },
        }
    }

    /// What a request consumes: rounded up to an amount that the policy allows.
    fn consumed(&self, requested: Option<Quantity>) -> Quantity {
        let Some(requested) = requested else {
            return self.default.unwrap_or(self.value);
        };
        match &self.policy {
            Policy::Any => requested,
            Policy::Range { min, .. } if requested < *min => *min,
            Policy::Range { step: None, .. } => requested,
            Policy::Range {
                min,
                step: Some(step),
                ..
            } => round_up(requested, *min, *step),
            Policy::Values(values) => {
                let mut values = values.iter().copied();
                values
                    .find(|value| requested <= *value)
                    .unwrap_or(requested)
            }
        }
    }

    /// Whether the policy allows to consume an amount.
    fn allows(&self, consumed: Quantity) -> bool {
        if self.default == Some(consumed) {
            return true;
        }
        match &self.policy {
            Policy::Any => true,
            Policy::Range { min, max, step } => {
                let is_step = |step: &Quantity| {
                    let added = consumed.value().saturating_sub(min.value());
                    added.checked_rem(step.value()) == Some(0)
                };
                max.is_none_or(|max| consumed <= max) && step.as_ref().is_none_or(is_step)
            }
            Policy::Values(values) => values.contains(&consumed),
        }
    }
}

/// The lowest amount of `min`, `min + step`, … that is not below the requested one.
fn round_up(requested: Quantity, min: Quantity, step: Quantity) -> Quantity {
    let (min, step) = (min.value(), step.value());
    let added = requested.value().saturating_sub(min);
    // The API server rejects steps that are not positive.
    let steps = added.checked_div(step).unwrap_or(0);
    let rest = added.checked_rem(step).unwrap_or(0);
    let steps = steps.saturating_add(i64::from(rest != 0));
    let value = min.saturating_add(step.saturating_mul(steps));
    Quantity::from_value(value, Format::Binary)
}

fn requested(requests: Option<&CapacityRequirements>, name: &str) -> Option<Quantity> {
    let requests = requests?.requests.as_ref()?;
    requests.get(name).map(amount)
}

/// What a request consumes of each capacity of a device.
pub(super) fn consumed(
    device: &Device,
    requests: Option<&CapacityRequirements>,
) -> BTreeMap<String, Quantity> {
    let capacities = device.capacity.iter();
    let amount = |(name, capacity): (&String, &Capacity)| {
        let consumed = capacity.consumed(requested(requests, name));
        (name.clone(), consumed)
    };
    capacities.map(amount).collect()
}

/// Whether a device has what is requested beside what `used` says is consumed of a capacity.
pub(super) fn fits(
    device: &Device,
    requests: Option<&CapacityRequirements>,
    used: impl Fn(&str) -> Quantity,
) -> bool {
    let asked = requests.and_then(|requests| requests.requests.as_ref());
    let mut asked = asked.into_iter().flat_map(BTreeMap::keys);
    asked.all(|name| device.capacity.contains_key(name))
        && device.capacity.iter().all(|(name, capacity)| {
            let consumed = capacity.consumed(requested(requests, name));
            capacity.allows(consumed) && used(name).plus(consumed) <= capacity.value
        })
}
