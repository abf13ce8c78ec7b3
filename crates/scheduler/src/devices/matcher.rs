//! Which devices a request selects, each combination evaluated once.

use std::collections::HashMap;

use k8s_openapi::api::resource::v1::DeviceSelector;

use super::{Error, plan::Alternative, pools::Found, selectors::Selectors, slices::Nodes};
use crate::cluster::NodeInfo;

/// Evaluates selectors for the devices of a node.
pub(super) struct Matcher<'p, 'a> {
    pub(super) devices: &'p [Found<'a>],
    node: &'p NodeInfo,
    selectors: &'p Selectors,
    stop: &'p dyn Fn() -> bool,
    /// By the number of the alternative and the index of the device.
    known: HashMap<(usize, usize), bool>,
}

impl<'p, 'a> Matcher<'p, 'a> {
    pub(super) fn new(
        devices: &'p [Found<'a>],
        node: &'p NodeInfo,
        selectors: &'p Selectors,
        stop: &'p dyn Fn() -> bool,
    ) -> Self {
        Self {
            devices,
            node,
            selectors,
            stop,
            known: HashMap::new(),
        }
    }

    /// Fails if the search must stop. It is called before each step that takes time.
    pub(super) fn ensure_not_stopped(&self) -> Result<(), Error> {
        match (self.stop)() {
            true => Err(Error::Stopped),
            false => Ok(()),
        }
    }

    /// Whether a request selects a device, and the node can use it.
    pub(super) fn selects(
        &mut self,
        alternative: &Alternative<'_>,
        device: usize,
    ) -> Result<bool, Error> {
        let key = (alternative.number, device);
        if let Some(known) = self.known.get(&key) {
            return Ok(*known);
        }
        let found = self.devices[device];
        let by_device = matches!(found.slice.nodes, Nodes::PerDevice);
        let class = alternative.class;
        let class_name = class.metadata.name.as_deref().unwrap_or_default();
        let class_selectors = class.spec.selectors.as_deref().unwrap_or_default();
        let selects = self.all(class_selectors, found, || format!("class {class_name}"))?
            && self.all(alternative.selectors, found, || {
                format!("claim {}", alternative.claim)
            })?
            && (!by_device || found.device.nodes.include(self.node));
        self.known.insert(key, selects);
        Ok(selects)
    }

    /// Whether all selectors match a device.
    fn all(
        &self,
        selectors: &[DeviceSelector],
        found: Found<'_>,
        whose: impl Fn() -> String,
    ) -> Result<bool, Error> {
        for (i, selector) in selectors.iter().enumerate() {
            self.ensure_not_stopped()?;
            let failed = |what: &str, why: &str| {
                let whose = whose();
                Error::Failed(format!("{whose}: selector #{i}: CEL {what} error: {why}"))
            };
            let text = selector.cel.as_ref().map_or("", |cel| &cel.expression);
            let compiled = self.selectors.get(text);
            let compiled = (*compiled).as_ref();
            let compiled = compiled.map_err(|why| failed("compile", why))?;
            let device = cel::Device::new(&found.device.id.pool.driver, &found.device.fields);
            let matches = device.and_then(|device| compiled.matches(&device));
            if !matches.map_err(|error| failed("runtime", &error.message))? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
