//! `metrics.k8s.io`: usage of nodes and pods, from the kubelets' `/metrics/resource`.
//!
//! [`collect`] scrapes every node on its own schedule and records each page in [`Samples`], which
//! keeps two points of every node and container: enough for an average over the time between them.
//! A pod's usage is only taken from the node that the pod is bound to, so that a node cannot report
//! pods of others. Nothing is persisted; after a restart, usage is known again after two samples.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod collect;
mod objects;
mod page;
mod samples;
mod series;

pub use collect::{Fetch, MAX_PAGE, collect};
pub use objects::{node_metrics, pod_metrics};
pub use samples::Samples;
pub use series::{ContainerUsage, Usage};

/// The group that is served.
pub const GROUP: &str = "metrics.k8s.io";
/// The APIService of the group: with a `spec.service` another server serves the group.
pub const API_SERVICE: &str = "v1beta1.metrics.k8s.io";
