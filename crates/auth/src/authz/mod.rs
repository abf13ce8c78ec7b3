//! Authorization. Authorizers are asked in the order of [`chain`]; the first decision counts, and
//! without any the request is denied.

mod configured;
pub mod defaults;
mod index;
mod node;
mod node_pods;
mod pod_references;
pub mod policy;
mod rbac;
mod rules;
mod webhook;

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;

use machinery::Status;
use registry::Reader;
use request::{Query, RequestInfo, ResourceRequest, User, user};

use configured::Configured;
use webhook::{Webhook, config::WebhookConfig};

pub use index::{Index, Objects};
pub use node::{Node, node_name};
pub use pod_references::{MIRROR, uses};
pub use rbac::Rbac;
pub use rules::{Rule, uncovered};

/// The attributes of a request. Strings are empty where they do not apply.
#[derive(Debug, Clone, Copy)]
pub struct Attributes<'a> {
    pub user: &'a User,
    /// `get`, `list`, `create`, …; for non-resource paths the HTTP method in lower case.
    pub verb: &'a str,
    /// Whether this is an API resource; else only `path` counts.
    pub is_resource: bool,
    pub group: &'a str,
    pub version: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    pub path: &'a str,
    /// As sent, for list, watch and deletecollection.
    pub field_selector: &'a str,
    pub label_selector: &'a str,
}

impl<'a> Attributes<'a> {
    /// The attributes of a user's request.
    pub fn from_request(user: &'a User, info: &'a RequestInfo, query: &'a Query) -> Self {
        let resource = info.resource.as_ref();
        let part = |of: fn(&'a ResourceRequest) -> &'a str| resource.map_or("", of);
        Attributes {
            user,
            verb: info.verb,
            is_resource: resource.is_some(),
            group: part(|resource| &resource.group),
            version: part(|resource| &resource.version),
            resource: part(|resource| &resource.resource),
            subresource: part(|resource| &resource.subresource),
            namespace: part(|resource| &resource.namespace),
            name: part(|resource| &resource.name),
            path: &info.path,
            field_selector: query.get("fieldSelector").unwrap_or_default(),
            label_selector: query.get("labelSelector").unwrap_or_default(),
        }
    }
}

/// An authorizer's decision, with its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Allow,
    Deny(String),
    NoOpinion(String),
}

/// An authorizer.
#[async_trait]
pub trait Authorizer: Send + Sync + 'static {
    /// The name in logs.
    fn name(&self) -> &'static str;
    async fn authorize(&self, attributes: &Attributes<'_>) -> Decision;
    /// Why it allows a request, if it says so.
    fn reason(&self, _attributes: &Attributes<'_>) -> Option<String> {
        None
    }
    /// Starts background work (caches).
    fn start(&self, _context: &lifecycle::Context) {}
}

/// Allows everything for members of `system:masters`.
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

/// Authorizers in addition to those of every cluster.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// A file with an `AuthorizationConfiguration`.
    pub config: Option<PathBuf>,
    /// A webhook that is called after the other authorizers; not with a file.
    pub webhook: Option<AccessWebhook>,
}

/// The options `--authorization-webhook-*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessWebhook {
    /// A kubeconfig file.
    pub config_file: PathBuf,
    /// `v1` or `v1beta1`.
    pub version: String,
    pub authorized_ttl: Duration,
    pub unauthorized_ttl: Duration,
}

/// The authorizers, in the order in which they are called.
pub fn chain(
    options: &Options,
    reader: &Reader,
    rbac: &Rbac,
) -> Result<Vec<Arc<dyn Authorizer>>, String> {
    let node: Arc<dyn Authorizer> = Arc::new(Node::new(reader.clone()));
    let rbac: Arc<dyn Authorizer> = Arc::new(rbac.clone());
    let mut chain: Vec<Arc<dyn Authorizer>> = vec![Arc::new(Masters)];
    match (&options.config, &options.webhook) {
        (Some(_), Some(_)) => {
            let why =
                "--authorization-config cannot be combined with flags of an authorization webhook";
            return Err(why.to_owned());
        }
        (Some(path), None) => chain.push(Arc::new(Configured::load(path, node, rbac)?)),
        (None, None) => chain.extend([node, rbac]),
        (None, Some(hook)) => {
            if !matches!(hook.version.as_str(), "v1" | "v1beta1") {
                let version = &hook.version;
                return Err(format!(
                    "authorization webhook: version {version:?} is neither v1 nor v1beta1"
                ));
            }
            let ttls = (hook.authorized_ttl, hook.unauthorized_ttl);
            let config = WebhookConfig::from_flags(hook.config_file.clone(), &hook.version, ttls);
            chain.extend([node, rbac]);
            chain.push(Arc::new(Webhook::new("webhook", &config)?));
        }
    }
    Ok(chain)
}

/// Asks each authorizer; the first decision counts. Reasons without a decision are joined.
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

/// The 403 in Kubernetes' words.
pub fn forbidden(attributes: &Attributes<'_>, reason: &str) -> Status {
    let who = &attributes.user.name;
    let because = if reason.is_empty() {
        String::new()
    } else {
        format!(": {reason}")
    };
    if !attributes.is_resource {
        let verb = attributes.verb;
        let why = format!(
            "User {who:?} cannot {verb} path {:?}{because}",
            attributes.path
        );
        return Status::forbidden("", "", "", &why);
    }
    let resource = match attributes.subresource {
        "" => attributes.resource.to_owned(),
        subresource => format!("{}/{subresource}", attributes.resource),
    };
    let place = match attributes.namespace {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace {namespace:?}"),
    };
    let why = format!(
        "User {who:?} cannot {} resource {resource:?} in API group {:?} {place}{because}",
        attributes.verb, attributes.group
    );
    Status::forbidden(attributes.group, attributes.resource, attributes.name, &why)
}
