//! The constraints of a claim: an attribute that all devices of its requests share, or in which all
//! differ.

use k8s_openapi::api::resource::v1::{DeviceAttribute, DeviceConstraint};

use super::slices::Device;

/// A constraint, and the values of the devices that were chosen so far.
#[derive(Debug)]
pub(super) struct Constraint<'a> {
    /// The requests; empty for all.
    requests: &'a [String],
    /// With its domain.
    attribute: &'a str,
    rule: Rule,
    values: Vec<Value<'a>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    Match,
    Distinct,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value<'a> {
    String(&'a str),
    Int(i64),
    Bool(bool),
    /// Semantic versions are equal if their texts are.
    Version(&'a str),
}

impl<'a> Value<'a> {
    fn new(attribute: &'a DeviceAttribute) -> Option<Self> {
        let string = attribute.string.as_deref().map(Self::String);
        string
            .or_else(|| attribute.int.map(Self::Int))
            .or_else(|| attribute.bool.map(Self::Bool))
            .or_else(|| attribute.version.as_deref().map(Self::Version))
    }
}

/// The attribute of a device. Names without a domain are in the domain of the driver.
fn attribute<'a>(device: &'a Device, name: &str) -> Option<&'a DeviceAttribute> {
    let whole = device.attributes.get(name);
    whole.or_else(|| {
        let (domain, id) = name.split_once('/')?;
        let is_own = domain == &*device.id.pool.driver;
        device.attributes.get(id).filter(|_| is_own)
    })
}

impl<'a> Constraint<'a> {
    /// `None` for a constraint of a later version of the API.
    pub(super) fn new(constraint: &'a DeviceConstraint) -> Option<Self> {
        let matched = constraint.match_attribute.as_deref();
        let distinct = constraint.distinct_attribute.as_deref();
        let (attribute, rule) = match (matched, distinct) {
            (Some(name), _) => (name, Rule::Match),
            (None, Some(name)) => (name, Rule::Distinct),
            (None, None) => return None,
        };
        Some(Self {
            requests: constraint.requests.as_deref().unwrap_or_default(),
            attribute,
            rule,
            values: Vec::new(),
        })
    }

    fn concerns(&self, request: &str, whole_name: &str) -> bool {
        let named = |name: &String| name == request || name == whole_name;
        self.requests.is_empty() || self.requests.iter().any(named)
    }

    /// Adds a device for a request, or for an alternative of it with its whole name. False if the
    /// device violates the constraint; it is not added then.
    pub(super) fn add(&mut self, request: &str, whole_name: &str, device: &'a Device) -> bool {
        if !self.concerns(request, whole_name) {
            return true;
        }
        let Some(value) = attribute(device, self.attribute).and_then(Value::new) else {
            return false;
        };
        let holds = match self.rule {
            Rule::Match => self.values.first().is_none_or(|first| *first == value),
            Rule::Distinct => !self.values.contains(&value),
        };
        if holds {
            self.values.push(value);
        }
        holds
    }

    /// Removes the device that was added last for a request.
    pub(super) fn remove(&mut self, request: &str, whole_name: &str) {
        if self.concerns(request, whole_name) {
            self.values.pop();
        }
    }
}
