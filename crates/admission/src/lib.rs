//! Admission: plugins that may change a write (mutate) and reject it (validate), in the order of
//! [`options`]. Reads are not admitted.
//!
//! A plugin sees a request as [`Attributes`], reads the store through a `Reader`, and leaves other
//! effects than changes of the object in [`Effects`]. It knows neither the pipeline nor the write
//! path.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod always_pull_images;
mod certificate_approval;
mod certificate_origin;
mod certificate_signing;
mod certificate_subject_restriction;
mod cluster_trust_bundle_attest;
mod default_ingress_class;
mod default_storage_class;
mod default_toleration_seconds;
mod deny_service_external_ips;
mod extended_resource_toleration;
mod limit_ranger;
pub mod matching;
mod namespace_lifecycle;
mod node_restriction;
mod options;
mod persistent_volume_claim_resize;
mod pod_node_selector;
mod pod_resize_validator;
mod pod_security;
mod pod_topology_labels;
pub mod policy;
mod priority;
mod rbac_escalation;
mod reinvocation;
mod request_options;
mod resource_quota;
mod runtime_class;
mod service_account;
mod signers;
mod storage_object_in_use_protection;
mod taint_nodes_by_condition;
#[cfg(test)]
mod testing;
mod timing;
mod warnings;
mod webhook;

use std::{net::IpAddr, sync::Arc, time::Instant};

use async_trait::async_trait;
use machinery::{Object, Status, text};
use parking_lot::Mutex;
use store::Op;

use auth::authz::{self, Rbac};
use registry::{Draft, NameSuffixes, RandomNameSuffixes, Reader, Resource, Stored, Versions};
use request::{AuditTrail, User, user};

pub use options::{Error, Options, chain};
pub use reinvocation::Reinvocation;
pub use request_options::{DeleteOptions, Preconditions, RequestOptions};
use timing::Phase;
pub use timing::Timing;
use warnings::Warnings;
pub use webhook::{
    Endpoints, Metrics as WebhookMetrics, Shared as WebhookShared, check as check_webhooks,
};

/// The operation of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
    /// exec, attach, portforward, proxy.
    Connect,
}

impl Operation {
    /// The name in rules and reviews.
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        }
    }
}

/// The address of a user, as the server can vouch for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// The peer of a connection that is authenticated by the user's own certificate, without a
    /// proxy.
    Certified(IpAddr),
    /// In this process, on the node with this address.
    InProcess(IpAddr),
}

/// The request as plugins see it.
pub struct Attributes<'a> {
    pub user: &'a User,
    /// `None` if unknown.
    pub peer: Option<Peer>,
    pub operation: Operation,
    pub group: &'a str,
    pub version: &'a str,
    /// The apiVersion of the body: `autoscaling/v1` for `deployments/scale`.
    pub api_version: &'a str,
    /// The kind of the body: `Pod`, or `Binding` for `pods/binding`.
    pub kind: &'a str,
    pub resource: &'a str,
    /// Empty for the object itself.
    pub subresource: &'a str,
    /// Empty for cluster-scoped objects.
    pub namespace: &'a str,
    /// Empty until a name is generated.
    pub name: &'a str,
    /// The generateName of a new object, until a name is generated.
    pub generate_name: &'a str,
    pub dry_run: bool,
    /// The options of the request.
    pub options: &'a RequestOptions,
    /// The stored object, for updates and deletes.
    pub old: Option<&'a Object>,
    pub reader: &'a Reader,
    pub effects: &'a Effects,
}

impl Attributes<'_> {
    /// Whether the request is for this resource or a subresource of it.
    #[inline]
    pub fn is(&self, group: &str, resource: &str) -> bool {
        // Plurals differ more often than groups, and this is called hundreds of times per write.
        self.resource == resource && text::same(self.group, group)
    }

    /// Whether the request creates or updates an object of this resource itself.
    #[inline]
    pub fn is_write_of(&self, group: &str, resource: &str) -> bool {
        self.is(group, resource)
            && matches!(self.operation, Operation::Create | Operation::Update)
            && self.subresource.is_empty()
    }

    /// The 403 of this request.
    pub fn forbidden(&self, why: &str) -> Status {
        let name = match (self.name, self.generate_name) {
            ("", "") => "Unknown",
            ("", prefix) => prefix,
            (name, _) => name,
        };
        Status::forbidden(self.group, self.resource, name, why)
    }
}

/// Effects of plugins other than changes of the object.
#[derive(Default)]
pub struct Effects {
    /// Guards the Warning headers so far.
    warnings: Mutex<Warnings>,
    /// Guards the operations that join the write's transaction.
    ops: Mutex<Vec<Op<Draft>>>,
    /// The audit event of the request, if it is audited.
    audit: Option<Arc<dyn AuditTrail>>,
    /// Which webhooks and policies are invoked again because later ones changed the object.
    pub reinvocation: Reinvocation,
    /// The deadline of the request, if any.
    pub deadline: Option<Instant>,
}

/// The error of a request whose time is up.
pub(crate) fn timed_out() -> Status {
    Status::timeout("request did not complete within requested timeout", 0)
}

impl Effects {
    /// The effects of a request with this deadline.
    pub fn new(audit: Option<Arc<dyn AuditTrail>>, deadline: Option<Instant>) -> Self {
        Self {
            audit,
            deadline,
            ..Self::default()
        }
    }

    /// Whether the request is audited.
    pub fn is_audited(&self) -> bool {
        self.audit.is_some()
    }

    /// Adds an annotation to the audit event.
    pub fn annotate(&self, key: &str, value: &str) {
        if let Some(ticket) = &self.audit {
            ticket.annotate(key, value);
        }
    }

    /// Whether the audit event includes the request's body.
    pub(crate) fn is_request_audited(&self) -> bool {
        self.audit
            .as_ref()
            .is_some_and(|ticket| ticket.wants_request())
    }

    /// Sends a Warning header with the response.
    pub fn warn(&self, text: impl Into<String>) {
        self.warnings.lock().add(text.into());
    }

    /// Adds an operation to the write's transaction (a quota's new usage). If its precondition
    /// fails, the whole request is admitted again.
    pub fn also(&self, op: Op<Draft>) {
        self.ops.lock().push(op);
    }

    /// The warnings so far, deduplicated.
    pub fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut *self.warnings.lock()).into_texts()
    }

    /// The operations so far.
    pub fn take_ops(&self) -> Vec<Op<Draft>> {
        std::mem::take(&mut self.ops.lock())
    }
}

/// An admission plugin: one file, a pure decision and a thin shell.
#[async_trait]
pub trait Plugin: Send + Sync + 'static {
    /// Kubernetes' name, such as `NamespaceLifecycle`.
    fn name(&self) -> &'static str;
    /// Whether it handles this request.
    fn handles(&self, attributes: &Attributes<'_>) -> bool;
    /// Whether it may change objects.
    fn mutates(&self) -> bool {
        true
    }
    /// Whether it may reject the mutated object.
    fn validates(&self) -> bool {
        true
    }
    /// Changes the object before validation. Not called for deletes.
    async fn mutate(
        &self,
        _attributes: &Attributes<'_>,
        _object: &mut Object,
    ) -> Result<(), Status> {
        Ok(())
    }
    /// Called for a delete before any plugin validates it. There is no object to change.
    async fn mutate_delete(&self, _attributes: &Attributes<'_>) -> Result<(), Status> {
        Ok(())
    }
    /// Whether it handles connections (exec, attach, portforward, proxy).
    fn handles_connect(&self) -> bool {
        false
    }
    /// May reject. `object` is `None` for deletes.
    async fn validate(
        &self,
        _attributes: &Attributes<'_>,
        _object: Option<&Object>,
    ) -> Result<(), Status> {
        Ok(())
    }
    /// Starts background work (caches).
    fn start(&self, _context: &lifecycle::Context) {}
}

/// Whether a plugin handles a request.
fn is_asked(plugin: &dyn Plugin, attributes: &Attributes<'_>) -> bool {
    plugin.handles(attributes)
        && (attributes.operation != Operation::Connect || plugin.handles_connect())
}

/// Runs all mutating plugins; reinvokes those that request it because the object changed after
/// them.
pub async fn mutate(
    chain: &[Arc<dyn Plugin>],
    timing: &Timing,
    attributes: &Attributes<'_>,
    object: &mut Object,
) -> Result<(), Status> {
    let reinvocation = &attributes.effects.reinvocation;
    reinvocation.reset();
    let mut watch = timing.begin(Phase::Admit, attributes.operation);
    loop {
        for (place, plugin) in chain.iter().enumerate() {
            if !plugin.mutates() || !is_asked(&**plugin, attributes) {
                continue;
            }
            let done = plugin.mutate(attributes, object).await;
            watch.plugin(place, plugin.name(), done)?;
        }
        if !reinvocation.begin() {
            break;
        }
    }
    watch.end();
    Ok(())
}

/// Runs all mutating plugins for a delete.
pub async fn mutate_delete(
    chain: &[Arc<dyn Plugin>],
    timing: &Timing,
    attributes: &Attributes<'_>,
) -> Result<(), Status> {
    attributes.effects.reinvocation.reset();
    let mut watch = timing.begin(Phase::Admit, attributes.operation);
    for (place, plugin) in chain.iter().enumerate() {
        if !plugin.mutates() || !plugin.handles(attributes) {
            continue;
        }
        let done = plugin.mutate_delete(attributes).await;
        watch.plugin(place, plugin.name(), done)?;
    }
    watch.end();
    Ok(())
}

/// Runs all validating plugins.
pub async fn validate(
    chain: &[Arc<dyn Plugin>],
    timing: &Timing,
    attributes: &Attributes<'_>,
    object: Option<&Object>,
) -> Result<(), Status> {
    let mut watch = timing.begin(Phase::Validate, attributes.operation);
    for (place, plugin) in chain.iter().enumerate() {
        if !plugin.validates() || !is_asked(&**plugin, attributes) {
            continue;
        }
        let done = plugin.validate(attributes, object).await;
        watch.plugin(place, plugin.name(), done)?;
    }
    watch.end();
    Ok(())
}
