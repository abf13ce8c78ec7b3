//! Admission: plugins that may change a write (mutate) and refuse it (validate), in the order of
//! [`options`]. Reads never come here.
//!
//! A plugin sees a request as [`Attributes`], reads the store through a `Reader`, and leaves what it adds beside changes
//! of the object in [`Effects`]. It knows neither the pipeline nor the write path.

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
mod webhook;

use std::{net::IpAddr, sync::Arc, time::Instant};

use async_trait::async_trait;
use machinery::{Object, Status, text};
use parking_lot::Mutex;
use store::Op;

use auth::authz::{self, Rbac};
use registry::{Draft, Endings, RandomEndings, Reader, Resource, Stored, Versions};
use request::{User, user};

pub use options::{Error, Options, chain};
pub use reinvocation::Reinvocation;
pub use request_options::{DeleteOptions, Preconditions, RequestOptions};
use timing::Phase;
pub use timing::Timing;
pub use webhook::{
    Endpoints, Metrics as WebhookMetrics, Shared as WebhookShared, check as check_webhooks,
};

/// What a request does to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
    /// exec, attach, portforward, proxy.
    Connect,
}

impl Operation {
    /// As rules and reviews name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        }
    }
}

/// Where a user is, as the server knows it by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// At the other end of a connection that shows the user's own certificate, with nothing in between.
    Certified(IpAddr),
    /// In this process, on the node with this address.
    InProcess(IpAddr),
}

/// The request as plugins see it.
pub struct Attributes<'a> {
    pub user: &'a User,
    /// `None` where the server does not know it.
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
    /// Empty before a generated name is known.
    pub name: &'a str,
    pub dry_run: bool,
    /// What the request says about the write beside its object.
    pub options: &'a RequestOptions,
    /// The object before, for updates and deletes.
    pub old: Option<&'a Object>,
    pub reader: &'a Reader,
    pub effects: &'a Effects,
}

impl Attributes<'_> {
    /// Whether the request is about this resource or something below it.
    #[inline]
    pub fn is(&self, group: &str, resource: &str) -> bool {
        // Resources differ more often than groups: asked hundreds of times for each write.
        self.resource == resource && text::same(self.group, group)
    }

    /// Whether the request creates or updates an object of this resource itself.
    #[inline]
    pub fn is_write_of(&self, group: &str, resource: &str) -> bool {
        self.is(group, resource)
            && matches!(self.operation, Operation::Create | Operation::Update)
            && self.subresource.is_empty()
    }

    /// The refusal of this request.
    pub fn forbidden(&self, why: &str) -> Status {
        Status::forbidden(self.group, self.resource, self.name, why)
    }
}

/// The audit event of a request, where plugins add annotations to it.
pub trait AuditTrail: Send + Sync {
    /// Adds an annotation; the first value of a key stays.
    fn annotate(&self, key: &str, value: &str);
    /// Whether the event holds the body of the request.
    fn wants_request(&self) -> bool;
}

/// What plugins add to a request beside changes of the object.
#[derive(Default)]
pub struct Effects {
    /// Guards the Warning headers gathered so far.
    warnings: Mutex<Vec<String>>,
    /// Guards the operations that join the write's transaction.
    ops: Mutex<Vec<Op<Draft>>>,
    /// Where annotations of the request are noted, if it is written down.
    audit: Option<Arc<dyn AuditTrail>>,
    /// Which webhooks and policies are asked again because others changed the object after them.
    pub reinvocation: Reinvocation,
    /// When the request has to be answered, if it has to.
    pub deadline: Option<Instant>,
}

impl Effects {
    /// Those of a request that is answered before `deadline`.
    pub fn new(audit: Option<Arc<dyn AuditTrail>>, deadline: Option<Instant>) -> Self {
        Self {
            audit,
            deadline,
            ..Self::default()
        }
    }

    /// Whether anything is noted in the audit log.
    pub fn is_audited(&self) -> bool {
        self.audit.is_some()
    }

    /// Notes something in the audit log.
    pub fn annotate(&self, key: &str, value: &str) {
        if let Some(ticket) = &self.audit {
            ticket.annotate(key, value);
        }
    }

    /// Whether bodies of the request are noted in the audit log.
    pub(crate) fn is_request_audited(&self) -> bool {
        self.audit
            .as_ref()
            .is_some_and(|ticket| ticket.wants_request())
    }

    /// Sends a Warning header with the answer.
    pub fn warn(&self, text: impl Into<String>) {
        self.warnings.lock().push(text.into());
    }

    /// Makes an operation part of the write's transaction (a quota's new usage). When its
    /// precondition fails, the whole request is admitted again from the start.
    pub fn also(&self, op: Op<Draft>) {
        self.ops.lock().push(op);
    }

    /// The warnings so far, each once.
    pub fn take_warnings(&self) -> Vec<String> {
        let mut warnings = std::mem::take(&mut *self.warnings.lock());
        if warnings.len() < 2 {
            return warnings;
        }
        // Each warning is sent once.
        let mut seen = std::collections::HashSet::new();
        warnings.retain(|warning| seen.insert(warning.clone()));
        warnings
    }

    /// The operations so far.
    pub fn take_ops(&self) -> Vec<Op<Draft>> {
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
    /// Whether it may change objects.
    fn mutates(&self) -> bool {
        true
    }
    /// Whether it may refuse what all have changed.
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
    /// Has its say about a delete before any plugin validates it. There is no object to change.
    async fn mutate_delete(&self, _attributes: &Attributes<'_>) -> Result<(), Status> {
        Ok(())
    }
    /// Whether it is asked about connections (exec, attach, portforward, proxy).
    fn handles_connect(&self) -> bool {
        false
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

/// Whether a plugin is asked about a request.
fn is_asked(plugin: &dyn Plugin, attributes: &Attributes<'_>) -> bool {
    plugin.handles(attributes)
        && (attributes.operation != Operation::Connect || plugin.handles_connect())
}

/// Lets every plugin change the object; once more where one asks for it because it changed what others had seen.
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

/// Lets every plugin that changes objects have its say about a delete.
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

/// Lets every plugin refuse.
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
