//! May they? Authorizers are asked in the order of [`chain`]; the first with an opinion decides, and
//! without any opinion the answer is no.

pub(crate) mod defaults;
mod index;
mod node;
mod node_pods;
mod pod_references;
pub mod policy;
mod rbac;
mod rules;

use std::sync::Arc;

use async_trait::async_trait;

use crate::{Config, Reader, User, user};

pub use index::{Index, Objects};
pub use node::{Node, node_name};
pub(crate) use pod_references::{MIRROR, uses};
pub use rbac::Rbac;
pub use rules::{Rule, uncovered};

/// What is asked for. Strings are empty where they do not apply.
#[derive(Debug, Clone, Copy)]
pub struct Attributes<'a> {
    pub user: &'a User,
    /// `get`, `list`, `create`, …; for other paths the HTTP method in lower case.
    pub verb: &'a str,
    /// Whether this is about an API resource; else only `path` counts.
    pub is_resource: bool,
    pub group: &'a str,
    pub version: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    pub path: &'a str,
    /// As the client wrote them, for list, watch and deletecollection.
    pub field_selector: &'a str,
    pub label_selector: &'a str,
}

/// An authorizer's opinion, with its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Allow,
    Deny(String),
    NoOpinion(String),
}

/// One way to decide.
#[async_trait]
pub trait Authorizer: Send + Sync + 'static {
    /// As it appears in logs.
    fn name(&self) -> &'static str;
    async fn authorize(&self, attributes: &Attributes<'_>) -> Decision;
    /// Starts what runs beside requests (caches).
    fn start(&self, _context: &lifecycle::Context) {}
}

/// Those who may do everything.
pub struct Masters;

#[async_trait]
impl Authorizer for Masters {
    fn name(&self) -> &'static str {
        "masters"
    }

    async fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        if attributes.user.is_in(user::MASTERS) {
            Decision::Allow
        } else {
            Decision::NoOpinion(String::new())
        }
    }
}

/// The authorizers, in the order they are asked.
pub fn chain(_config: &Config, reader: &Reader, rbac: &Rbac) -> Vec<Arc<dyn Authorizer>> {
    vec![
        Arc::new(Masters),
        Arc::new(Node::new(reader.clone())),
        Arc::new(rbac.clone()),
    ]
}

/// Asks each; the first opinion counts. Reasons of those without one are joined.
pub async fn decide(chain: &[Arc<dyn Authorizer>], attributes: &Attributes<'_>) -> Decision {
    let mut reasons = Vec::new();
    for authorizer in chain {
        match authorizer.authorize(attributes).await {
            Decision::NoOpinion(reason) if reason.is_empty() => {}
            Decision::NoOpinion(reason) => reasons.push(reason),
            decided => return decided,
        }
    }
    Decision::NoOpinion(reasons.join(", "))
}
