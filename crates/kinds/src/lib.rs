//! The kinds of the API, one file each. A kind defines defaults, validation, what create, update
//! and status may change, printed columns, and selectable fields. The fields' types are in
//! `machinery`'s schema table. Pure: no IO; time is an argument.
//!
//! A folder named after an API group holds the kinds of that group, and `pod` the parts of a pod's
//! spec and status, which every workload shares. Three folders hold what kinds share: `validation`
//! (checks of metadata, addresses, certificates, volume sources), `value` (reading, comparing and
//! diffing JSON trees) and `printing` (columns, and values as errors show them).

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]
// One arm per case with its checks inside: a guard would let failed checks fall through to the last
// arm.
#![allow(clippy::collapsible_match)]

pub mod admissionregistration;
pub mod apiextensions;
pub mod apiregistration;
pub mod apps;
pub mod autoscaling;
pub mod batch;
mod builtin;
pub mod certificates;
pub mod coordination;
pub mod core;
pub mod discovery;
pub mod flowcontrol;
pub mod metrics;
pub mod networking;
pub mod node;
pub mod pod;
pub mod policy;
mod printing;
pub mod rbac;
pub mod resource;
pub mod reviews;
pub mod scheduling;
mod server_side;
pub mod storage;
#[cfg(test)]
mod testing;
mod validation;
mod value;

use machinery::{Object, Value, field};
use std::{borrow::Cow, collections::BTreeMap, sync::LazyLock, time::Duration};

pub use builtin::Builtin;
pub use printing::columns;
pub use server_side::{Expressions, Parameters, ServerSide, VisitSelectors};
pub use validation::{address, check, metadata};
pub use value::{equal::equal_fields, tree};

use printing::{internal, shown};
use validation::{pem, unenforced, volume_source, webhook_client};
use value::{diff, equal};

/// A group, version and kind with its resource names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    pub group: String,
    pub version: String,
    pub kind: String,
    pub list_kind: String,
    pub plural: String,
    pub singular: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
}

/// The scope of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    Cluster,
    Namespaced,
}

/// A subresource in discovery; empty group, version and kind mean the parent's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubresourceInfo {
    pub name: &'static str,
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub verbs: &'static [&'static str],
}

/// The subresource of a write such as `status`; `None` for the object itself.
pub type Subresource<'a> = Option<&'a str>;

/// The context of a write.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// RFC 3339, seconds.
    pub now: &'a str,
    /// The name of the writing user.
    pub user: &'a str,
}

/// The full identity of the user who creates an object.
#[derive(Debug, Clone, Copy)]
pub struct Requester<'a> {
    pub name: &'a str,
    pub uid: &'a str,
    pub groups: &'a [String],
    pub extra: &'a BTreeMap<String, Vec<String>>,
}

/// What a delete request means for an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deletion {
    /// Remove now (subject to finalizers).
    Immediate,
    /// Set deletionTimestamp and this grace period; another component removes it.
    Graceful { seconds: i64 },
    /// Reject, with a reason.
    Forbidden(&'static str),
}

/// A printed column, as in a Table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    pub name: Cow<'static, str>,
    /// `string`, `integer`, `date`, …
    pub kind: Cow<'static, str>,
    /// `name` for the name column, else empty.
    pub format: Cow<'static, str>,
    pub description: Cow<'static, str>,
    /// 0 is always shown, 1 with `-o wide`.
    pub priority: i32,
}

/// A kind. Built-in kinds and custom resources go through the same interface. Objects that come in
/// are decoded and normalised; metadata common to all kinds (uid, creationTimestamp, generation,
/// managedFields, name and label checks) is handled by the caller.
pub trait Kind: Send + Sync + 'static {
    fn names(&self) -> &Names;
    fn scope(&self) -> Scope;
    /// The type in the schema table, such as `apps/v1.Deployment`; `None` for custom resources.
    fn schema(&self) -> Option<&'static str>;
    /// Verbs of the main resource, in discovery's order.
    fn verbs(&self) -> &'static [&'static str] {
        builtin::VERBS
    }
    /// Subresources such as `status`, `scale`, `binding`.
    fn subresources(&self) -> &[&'static str] {
        &[]
    }
    /// What discovery says about a subresource.
    fn subresource_info(&self, _name: &str) -> Option<&'static SubresourceInfo> {
        None
    }
    /// The time to live of objects; `None`: until they are deleted.
    fn lifetime(&self) -> Option<Duration> {
        None
    }
    /// Whether a write to a namespace is acknowledged only after it is synced to disk.
    fn needs_sync(&self, _namespace: &str) -> bool {
        true
    }
    /// Whether a delete returns the deleted object instead of a Status.
    fn returns_deleted(&self) -> bool {
        false
    }
    /// The Warning header of every request to a deprecated kind.
    fn deprecation(&self) -> Option<Cow<'_, str>> {
        None
    }
    /// Whether objects of this kind are only returned and never stored (reviews).
    fn is_virtual(&self) -> bool {
        false
    }
    /// The storage type if it is another version or group, such as `core/v1.Event` for
    /// events.k8s.io/v1: both share keys and bytes.
    fn stored_as(&self) -> Option<&'static str> {
        None
    }
    /// Converts from this version to the storage version, including apiVersion and kind.
    fn to_stored(&self, object: Object) -> Object {
        object
    }
    /// Converts from the storage version to this one.
    // Named as the pair of `to_stored`; `self` converts and is not what is constructed.
    #[allow(clippy::wrong_self_convention)]
    fn from_stored(&self, object: Object) -> Object {
        object
    }
    /// Errors of a name, or of a `generateName` prefix.
    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        metadata::subdomain(name, prefix)
    }

    /// Sets defaults. Idempotent.
    fn default(&self, _object: &mut Object) {}
    /// Sets defaults that depend on the time of the write (RFC 3339, seconds).
    fn default_at(&self, _object: &mut Object, _now: &str) {}
    /// Drops fields that a client may not set on create (mostly status).
    fn prepare_create(&self, _object: &mut Object, _context: &Context<'_>) {}
    /// Records in a new object who created it, where its kind has fields for that.
    fn record_requester(&self, _object: &mut Object, _requester: &Requester<'_>) {}
    /// Whether `prepare_create` changes managedFields.
    fn changes_managers(&self) -> bool {
        false
    }
    /// Restores what this kind of write may not change: the status on an update of the object,
    /// everything but the status on an update of `status`.
    fn prepare_update(
        &self,
        _object: &mut Object,
        _old: &Object,
        _subresource: Subresource<'_>,
        _context: &Context<'_>,
    ) {
    }
    fn validate_create(&self, _object: &Object) -> field::Errors {
        Vec::new()
    }
    fn validate_update(
        &self,
        _object: &Object,
        _old: &Object,
        _subresource: Subresource<'_>,
    ) -> field::Errors {
        Vec::new()
    }
    /// Metadata checks on update, beside those of all kinds.
    fn metadata_checks(&self, _subresource: Subresource<'_>) -> &'static [metadata::Check] {
        &[metadata::Check::Change]
    }
    /// Paths that this kind of write cannot change.
    fn resets(&self, _subresource: Subresource<'_>) -> &'static [&'static [&'static str]] {
        &[]
    }
    /// Warning headers for a write.
    fn warnings(&self, _object: &Object, _old: Option<&Object>) -> Vec<String> {
        Vec::new()
    }
    /// Warning headers for a write to `status`.
    fn status_warnings(&self, object: &Object, old: &Object) -> Vec<String> {
        self.warnings(object, Some(old))
    }
    /// Whether `metadata.generation` counts changes of everything but metadata and status.
    fn has_generation(&self) -> bool {
        false
    }
    /// Whether it counts changes of annotations, too.
    fn counts_annotations(&self) -> bool {
        false
    }
    /// Whether an update without a resourceVersion is allowed.
    fn allows_unconditional_update(&self) -> bool {
        true
    }
    /// Whether a PUT to a name that does not exist creates it.
    fn allows_create_on_update(&self) -> bool {
        false
    }
    /// What a delete means; `requested` is the client's gracePeriodSeconds.
    fn deletion(&self, _object: &Object, _requested: Option<i64>) -> Deletion {
        Deletion::Immediate
    }
    /// Changes beside `metadata` when an object becomes terminating.
    fn mark_terminating(&self, _object: &mut Object) {}
    /// Whether a terminating object stays although its metadata has no finalizers.
    fn is_held(&self, _object: &Object) -> bool {
        false
    }
    /// Fields beside metadata.name and metadata.namespace that field selectors may name, with
    /// their values in this object.
    fn selectable_fields(&self, _object: &Object) -> Vec<(Cow<'static, str>, String)> {
        Vec::new()
    }
    /// The names of those fields.
    fn selectable_names(&self) -> Vec<&str> {
        Vec::new()
    }
    /// What the API server does for objects of this kind because it takes more than the object.
    fn server_side(&self) -> &ServerSide {
        &ServerSide::NONE
    }
    fn columns(&self) -> &[Column];
    /// The conditions of a Table row, such as that the pod has completed.
    fn row_conditions(&self, _object: &Object) -> Option<Value> {
        None
    }
    /// One cell per column; `now` in seconds since the epoch, for ages.
    fn row(&self, object: &Object, now: i64) -> Vec<Value>;
}

/// Every built-in kind.
const ALL: &[&Builtin] = &[
    &core::binding::KIND,
    &core::component_status::KIND,
    &core::config_map::KIND,
    &core::endpoints::KIND,
    &core::event::KIND,
    &core::limit_range::KIND,
    &core::namespace::KIND,
    &core::node::KIND,
    &core::persistent_volume_claim::KIND,
    &core::persistent_volume::KIND,
    &core::pod::KIND,
    &core::pod_template::KIND,
    &core::replication_controller::KIND,
    &core::resource_quota::KIND,
    &core::secret::KIND,
    &core::service::KIND,
    &core::service_account::KIND,
    &apps::controller_revision::KIND,
    &apps::daemon_set::KIND,
    &apps::deployment::KIND,
    &apps::replica_set::KIND,
    &apps::stateful_set::KIND,
    &core::event::EVENTS_V1,
    &autoscaling::horizontal_pod_autoscaler::KIND,
    &autoscaling::horizontal_pod_autoscaler::V1,
    &batch::cron_job::KIND,
    &batch::job::KIND,
    &metrics::node_metrics::KIND,
    &metrics::pod_metrics::KIND,
    &networking::ingress_class::KIND,
    &networking::ingress::KIND,
    &networking::ip_address::KIND,
    &networking::network_policy::KIND,
    &networking::service_cidr::KIND,
    &policy::pod_disruption_budget::KIND,
    &admissionregistration::policies::MUTATING,
    &admissionregistration::policies::MUTATING_BINDING,
    &admissionregistration::webhooks::MUTATING,
    &admissionregistration::policies::VALIDATING,
    &admissionregistration::policies::VALIDATING_BINDING,
    &admissionregistration::webhooks::VALIDATING,
    &apiextensions::custom_resource_definition::KIND,
    &apiregistration::api_service::KIND,
    &certificates::certificate_signing_request::KIND,
    &flowcontrol::flow_schema::KIND,
    &flowcontrol::priority_level_configuration::KIND,
    &node::runtime_class::KIND,
    &rbac::bindings::CLUSTER_ROLE_BINDING,
    &rbac::roles::CLUSTER_ROLE,
    &rbac::bindings::ROLE_BINDING,
    &rbac::roles::ROLE,
    &resource::device_class::KIND,
    &resource::resource_claim::KIND,
    &resource::resource_claim_template::KIND,
    &resource::resource_slice::KIND,
    &scheduling::priority_class::KIND,
    &storage::csi_driver::KIND,
    &storage::csi_node::KIND,
    &storage::csi_storage_capacity::KIND,
    &storage::storage_class::KIND,
    &storage::volume_attachment::KIND,
    &storage::volume_attributes_class::KIND,
    &reviews::SELF_SUBJECT_REVIEW,
    &reviews::TOKEN_REVIEW,
    &reviews::LOCAL_SUBJECT_ACCESS_REVIEW,
    &reviews::SELF_SUBJECT_ACCESS_REVIEW,
    &reviews::SELF_SUBJECT_RULES_REVIEW,
    &reviews::SUBJECT_ACCESS_REVIEW,
    &coordination::lease::KIND,
    &discovery::endpoint_slice::KIND,
];

static REGISTERED: LazyLock<Vec<&'static dyn Kind>> = LazyLock::new(|| {
    // Leaked once per process.
    let leak = |facts| Box::leak(Box::new(builtin::Registered::new(facts))) as &'static dyn Kind;
    ALL.iter().copied().map(leak).collect()
});

/// Every built-in kind, in discovery's order within its group.
pub fn all() -> &'static [&'static dyn Kind] {
    &REGISTERED
}

/// A built-in kind by group and plural.
pub fn find(group: &str, version: &str, plural: &str) -> Option<&'static dyn Kind> {
    all().iter().copied().find(|k| {
        let names = k.names();
        names.group == group && names.version == version && names.plural == plural
    })
}
