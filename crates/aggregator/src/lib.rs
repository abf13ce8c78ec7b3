//! API aggregation: which groups and versions other API servers serve, connections to them, their
//! availability, and their discovery and OpenAPI. The request pipeline forwards requests; this
//! crate does no authorization.
//!
//! [`keep_local`] maintains the APIServices of what this server serves itself. [`Upkeep`] watches APIServices and
//! maintains their `Available` condition. Every backend has its
//! own tasks, so a hanging one delays no other.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod availability;
mod discovery;
pub mod front_proxy;
mod link;
mod local;
mod metrics;
mod openapi;
mod priorities;
mod slots;
mod upkeep;

use std::{collections::BTreeMap, sync::Arc};

use arc_swap::ArcSwap;
use kinds::tree;
use machinery::{Object, Value};
use rustls::client::ResolvesClientCert;
use webhook::Services;

pub use link::{Link, ProxyBody, Target};
pub use local::{keep_local, local_priorities};
pub use metrics::Metrics;
pub use openapi::Swagger;
pub use slots::{Slot, Slots};
pub use upkeep::Upkeep;

const GROUP: &str = "apiregistration.k8s.io";
const PLURAL: &str = "apiservices";
/// The APIService of the core group.
const CORE: &str = "/v1";

/// Priorities of groups and of their versions: the greater comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Priorities {
    pub group: i64,
    pub version: i64,
}

/// A group and version served by another API server.
pub struct Backend {
    /// The APIService's name.
    pub name: String,
    pub group: String,
    pub version: String,
    pub priorities: Priorities,
    /// Whether its condition is Available.
    pub available: bool,
    pub link: Arc<Link>,
    documents: Arc<ArcSwap<Documents>>,
}

/// The documents of a backend.
#[derive(Clone, Default)]
struct Documents {
    discovery: discovery::LastDocument,
    /// Whether the last attempt to fetch discovery failed.
    stale: bool,
    openapi: openapi::OpenApi,
}

impl Backend {
    /// The version's entry in the aggregated discovery document.
    pub fn discovery(&self) -> Object {
        let documents = self.documents.load();
        let known = documents.discovery.entry.clone();
        let is_current = known.is_some() && !documents.stale;
        let mut entry = known.unwrap_or_else(|| discovery::empty(&self.version));
        let freshness = if is_current { "Current" } else { "Stale" };
        entry.insert("freshness", Value::from(freshness));
        entry
    }

    /// The key of the group and version in the index of OpenAPI v3, and the URL of its document.
    pub fn openapi(&self) -> Option<(String, String)> {
        let place = path(&self.group, &self.version);
        let place = place.trim_start_matches('/');
        let url = self.documents.load().openapi.url.clone()?;
        Some((place.to_owned(), url))
    }

    /// Changes the documents, also if another task changes them at the same time.
    fn change_documents(&self, change: impl Fn(&mut Documents)) {
        self.documents.rcu(|documents| {
            let mut documents = Documents::clone(documents);
            change(&mut documents);
            documents
        });
    }

    /// Its part of the OpenAPI v2 document.
    pub fn swagger(&self) -> Option<Arc<Swagger>> {
        self.documents.load().openapi.swagger.clone()
    }
}

/// A snapshot of the APIServices.
#[derive(Default)]
pub struct ApiServices {
    /// By `group/version`.
    remote: BTreeMap<String, Arc<Backend>>,
    /// Of all APIServices, including local ones, by `group/version`.
    priorities: BTreeMap<String, Priorities>,
}

impl ApiServices {
    /// APIServices of other servers.
    pub fn remote(&self) -> impl Iterator<Item = &Arc<Backend>> {
        self.remote.values()
    }

    /// The aggregated server of a group and version, if any.
    pub fn backend(&self, group: &str, version: &str) -> Option<&Arc<Backend>> {
        if self.remote.is_empty() {
            return None;
        }
        self.remote.get(&key(group, version))
    }

    pub fn priorities(&self, group: &str, version: &str) -> Option<Priorities> {
        self.priorities.get(&key(group, version)).copied()
    }

    /// The aggregated server of a path, if any.
    fn at(&self, path: &str) -> Option<&Arc<Backend>> {
        let Some(below) = path.strip_prefix("/apis/") else {
            let is_core = path == "/api" || path.starts_with("/api/");
            return is_core.then(|| self.remote.get(CORE)).flatten();
        };
        let group = below.find('/')?;
        let version = below[group + 1..].find('/').map(|end| group + 1 + end);
        self.remote.get(&below[..version.unwrap_or(below.len())])
    }
}

fn key(group: &str, version: &str) -> String {
    format!("{group}/{version}")
}

/// The path of a group and version.
fn path(group: &str, version: &str) -> String {
    match group {
        "" => format!("/api/{version}"),
        group => format!("/apis/{group}/{version}"),
    }
}

/// The aggregated API servers.
pub struct Aggregator {
    services: Arc<dyn Services>,
    /// The client certificate of this server.
    identity: Option<Arc<dyn ResolvesClientCert>>,
    known: ArcSwap<ApiServices>,
}

impl Aggregator {
    pub fn new(services: Arc<dyn Services>, identity: Option<Arc<dyn ResolvesClientCert>>) -> Self {
        Self {
            services,
            identity,
            known: ArcSwap::default(),
        }
    }

    /// The current APIServices.
    pub fn known(&self) -> Arc<ApiServices> {
        self.known.load_full()
    }

    /// The aggregated server of a path, if any.
    pub fn find(&self, path: &str) -> Option<Arc<Backend>> {
        let known = self.known.load();
        match known.remote.is_empty() {
            true => None,
            false => known.at(path).cloned(),
        }
    }

    /// Replaces the snapshot. Connections and documents are kept while their target is unchanged.
    fn apply(&self, services: &[Arc<Service>]) {
        let before = self.known.load();
        let mut now = ApiServices::default();
        for service in services {
            let Service { group, version, .. } = &**service;
            let key = key(group, version);
            now.priorities.insert(key.clone(), service.priorities);
            // The group of APIServices itself is always served here.
            let Some(target) = service.target.clone().filter(|_| group != GROUP) else {
                continue;
            };
            let old = before.remote.get(&key);
            let old = old.filter(|old| old.link.target == target);
            let (link, documents) = match old {
                Some(old) => (old.link.clone(), old.documents.clone()),
                None => (self.link(target, &before, &now), Arc::default()),
            };
            let backend = Backend {
                name: service.name.clone(),
                group: group.clone(),
                version: version.clone(),
                priorities: service.priorities,
                available: service.is_available,
                link,
                documents,
            };
            now.remote.insert(key, Arc::new(backend));
        }
        self.known.store(Arc::new(now));
    }

    /// The current APIServices and documents.
    pub fn moment(&self) -> ApiServiceSnapshot {
        let services = self.known();
        let documents = services.remote().map(|one| one.documents.load_full());
        let documents = documents.collect();
        ApiServiceSnapshot {
            services,
            documents,
        }
    }

    /// The connections to a target, shared with other APIServices.
    fn link(&self, target: Target, before: &ApiServices, now: &ApiServices) -> Arc<Link> {
        let mut links = before.remote().chain(now.remote()).map(|one| &one.link);
        let known = links.find(|link| link.target == target).cloned();
        known.unwrap_or_else(|| {
            Arc::new(Link::new(
                target,
                self.services.clone(),
                self.identity.clone(),
            ))
        })
    }
}

/// A snapshot of APIServices and documents.
#[derive(Clone)]
pub struct ApiServiceSnapshot {
    pub services: Arc<ApiServices>,
    documents: Vec<Arc<Documents>>,
}

impl PartialEq for ApiServiceSnapshot {
    /// Whether both are the same snapshot.
    fn eq(&self, other: &Self) -> bool {
        let mut pairs = self.documents.iter().zip(&other.documents);
        Arc::ptr_eq(&self.services, &other.services)
            && self.documents.len() == other.documents.len()
            && pairs.all(|(one, other)| Arc::ptr_eq(one, other))
    }
}

/// The parts of an APIService that are needed here.
struct Service {
    name: String,
    group: String,
    version: String,
    priorities: Priorities,
    /// The aggregated server, if any.
    target: Option<Target>,
    is_available: bool,
    /// Whether its condition says that it is local.
    is_local: bool,
}

impl Service {
    fn read(object: &Object) -> Self {
        let spec = tree::get(object, "spec");
        let mut conditions = tree::list(&tree::get(object, "status")["conditions"]).iter();
        Self {
            name: tree::name(object).to_owned(),
            group: tree::text(&spec["group"]).to_owned(),
            version: tree::text(&spec["version"]).to_owned(),
            priorities: Priorities {
                group: tree::int(&spec["groupPriorityMinimum"]),
                version: tree::int(&spec["versionPriority"]),
            },
            target: Target::read(spec),
            is_available: is_available(object),
            is_local: conditions.any(|one| one["reason"] == "Local" && one["status"] == "True"),
        }
    }
}

fn is_available(object: &Object) -> bool {
    let mut conditions = tree::list(&tree::get(object, "status")["conditions"]).iter();
    conditions.any(|one| one["type"] == availability::AVAILABLE && one["status"] == "True")
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use machinery::json::json;

    use super::*;

    struct Nowhere;

    #[async_trait]
    impl Services for Nowhere {
        async fn resolve(&self, _: &str, name: &str, _: u16) -> Result<(String, u16), String> {
            Err(format!("service {name:?} not found"))
        }
    }

    fn service(group: &str, version: &str, service: Value) -> Arc<Service> {
        let object = json!({"metadata": {"name": format!("{version}.{group}")}, "spec": {
            "group": group, "version": version, "service": service, "insecureSkipTLSVerify": true,
            "groupPriorityMinimum": 100, "versionPriority": 10}});
        Arc::new(Service::read(object.as_object().unwrap()))
    }

    #[test]
    fn paths_lead_to_the_server_of_their_group_and_version() {
        let aggregator = Aggregator::new(Arc::new(Nowhere), None);
        let remote = json!({"namespace": "a", "name": "b", "port": 443});
        aggregator.apply(&[
            service("x.io", "v1", remote.clone()),
            service("apps", "v1", Value::Null),
            service(GROUP, "v1", remote.clone()),
        ]);
        for (path, expected) in [
            ("/apis/x.io/v1", true),
            ("/apis/x.io/v1/", true),
            ("/apis/x.io/v1/namespaces/n/things/t", true),
            ("/apis/x.io", false),
            ("/apis/x.io/", false),
            ("/apis/x.io/v1beta1", false),
            ("/apis/x.io/v10/things", false),
            ("/apis/apps/v1/deployments", false),
            ("/apis/apiregistration.k8s.io/v1/apiservices", false),
            ("/api/v1/pods", false),
            ("/apis", false),
            ("/openapi/v3/apis/x.io/v1", false),
        ] {
            assert_eq!(aggregator.find(path).is_some(), expected, "{path}");
        }
        aggregator.apply(&[service("", "v1", remote)]);
        assert!(aggregator.find("/api/v1/pods").is_some());
        assert!(aggregator.find("/apis/x.io/v1").is_none());
    }

    #[test]
    fn connections_are_shared_and_stay_while_their_target_does() {
        let aggregator = Aggregator::new(Arc::new(Nowhere), None);
        let remote = |port: u16| json!({"namespace": "a", "name": "b", "port": port});
        let links = |port: u16| {
            aggregator.apply(&[
                service("x.io", "v1", remote(port)),
                service("y.io", "v1", remote(port)),
            ]);
            let known = aggregator.known();
            let link = |group: &str| known.backend(group, "v1").unwrap().link.clone();
            (link("x.io"), link("y.io"))
        };
        let (x, y) = links(443);
        assert!(Arc::ptr_eq(&x, &y));
        assert!(Arc::ptr_eq(&x, &links(443).0));
        assert!(!Arc::ptr_eq(&x, &links(444).0));
    }

    #[test]
    fn a_backend_that_was_never_reached_is_stale() {
        let aggregator = Aggregator::new(Arc::new(Nowhere), None);
        let remote = json!({"namespace": "a", "name": "b"});
        aggregator.apply(&[service("x.io", "v1", remote)]);
        let known = aggregator.known();
        let backend = known.backend("x.io", "v1").unwrap();
        let expected = json!({"version": "v1", "freshness": "Stale"});
        assert_eq!(Value::Object(backend.discovery()), expected);
        assert!(!backend.available);
    }
}
