//! Admission: plugins that may change a write (mutate) and refuse it (validate), in the order of
//! [`chain`]. Reads never come here.

use std::sync::Arc;

use async_trait::async_trait;
use machinery::{Object, Status};
use parking_lot::Mutex;
use store::Op;

use crate::{Config, Draft, Reader, User};

/// What a request does to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
    /// exec, attach, portforward, proxy.
    Connect,
}

/// The request as plugins see it.
pub struct Attributes<'a> {
    pub user: &'a User,
    pub operation: Operation,
    pub group: &'a str,
    pub version: &'a str,
    /// The kind of the body: `Pod`, or `Binding` for `pods/binding`.
    pub kind: &'a str,
    pub resource: &'a str,
    /// Empty for the object itself.
    pub subresource: &'a str,
    /// Empty for cluster-scoped objects.
    pub namespace: &'a str,
    /// Empty before a generated name is known.
    pub name: &'a str,
    pub dry_run: bool,
    /// The object before, for updates and deletes.
    pub old: Option<&'a Object>,
    pub reader: &'a Reader,
    pub effects: &'a Effects,
}

/// What plugins add to a request beside changes of the object.
#[derive(Default)]
pub struct Effects {
    /// Guards the Warning headers gathered so far.
    warnings: Mutex<Vec<String>>,
    /// Guards the operations that join the write's transaction.
    ops: Mutex<Vec<Op<Draft>>>,
}

impl Effects {
    /// Sends a Warning header with the answer.
    pub fn warn(&self, text: impl Into<String>) {
        self.warnings.lock().push(text.into());
    }

    /// Makes an operation part of the write's transaction (a quota's new usage). When its
    /// precondition fails, the whole request is admitted again from the start.
    pub fn also(&self, op: Op<Draft>) {
        self.ops.lock().push(op);
    }

    pub(crate) fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.warnings.lock())
    }

    pub(crate) fn take_ops(&self) -> Vec<Op<Draft>> {
        std::mem::take(&mut self.ops.lock())
    }
}

/// An admission plugin: one file, a pure decision and a thin shell.
#[async_trait]
pub trait Plugin: Send + Sync + 'static {
    /// Kubernetes' name of it, such as `NamespaceLifecycle`.
    fn name(&self) -> &'static str;
    /// Whether it wants to see this request at all.
    fn handles(&self, attributes: &Attributes<'_>) -> bool;
    /// Changes the object before validation. Not called for deletes.
    async fn mutate(
        &self,
        _attributes: &Attributes<'_>,
        _object: &mut Object,
    ) -> Result<(), Status> {
        Ok(())
    }
    /// Refuses. `object` is `None` for deletes.
    async fn validate(
        &self,
        _attributes: &Attributes<'_>,
        _object: Option<&Object>,
    ) -> Result<(), Status> {
        Ok(())
    }
    /// Starts what runs beside requests (caches).
    fn start(&self, _context: &lifecycle::Context) {}
}

/// The plugins, in the order they are called. ResourceQuota stays last.
pub fn chain(_config: &Config, _reader: &Reader) -> Vec<Arc<dyn Plugin>> {
    Vec::new()
}

/// Lets every plugin change the object.
pub async fn mutate(
    chain: &[Arc<dyn Plugin>],
    attributes: &Attributes<'_>,
    object: &mut Object,
) -> Result<(), Status> {
    for plugin in chain.iter().filter(|plugin| plugin.handles(attributes)) {
        plugin.mutate(attributes, object).await?;
    }
    Ok(())
}

/// Lets every plugin refuse.
pub async fn validate(
    chain: &[Arc<dyn Plugin>],
    attributes: &Attributes<'_>,
    object: Option<&Object>,
) -> Result<(), Status> {
    for plugin in chain.iter().filter(|plugin| plugin.handles(attributes)) {
        plugin.validate(attributes, object).await?;
    }
    Ok(())
}
