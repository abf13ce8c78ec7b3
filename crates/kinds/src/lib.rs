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
pub mod storagemigration;
#[cfg(test)]
mod testing;
mod validation;
mod value;

use std::{borrow::Cow, collections::BTreeMap, sync::LazyLock};

pub use builtin::{Builtin, Kind};
pub use printing::columns;
pub use server_side::{Answers, Expressions, Orphans, Parameters, ServerSide, VisitSelectors};
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
    &storagemigration::storage_version_migration::KIND,
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

/// Every built-in kind, in discovery's order within its group. Some are not served unless they are
/// switched on.
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
