//! API aggregation: which groups and versions other API servers serve, connections to them, whether they can be used, and
//! what they say about themselves. The request pipeline passes requests on; this crate decides no access.
//!
//! What APIServices say is read by [`Upkeep`], which also keeps their condition `Available`. Every backend is watched by
//! tasks of its own: one that hangs holds up nobody else.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod availability;
mod discovery;
pub mod front_proxy;
mod link;
mod metrics;
mod openapi;
mod upkeep;

use std::{collections::BTreeMap, sync::Arc};

use arc_swap::ArcSwap;
use kinds::tree;
use machinery::{Object, Value};
use rustls::client::ResolvesClientCert;
use webhook::Services;

pub use link::{Link, ProxyBody, Target};
pub use metrics::Metrics;
pub use openapi::Swagger;
pub use upkeep::Upkeep;

const GROUP: &str = "apiregistration.k8s.io";
const PLURAL: &str = "apiservices";
/// The APIService of the core group.
const CORE: &str = "/v1";

/// The order of groups and of their versions: the greater comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Priorities {
    pub group: i64,
    pub version: i64,
}

/// A group and version that another API server serves.
pub struct Backend {
    /// The APIService's name.
    pub name: String,
    pub group: String,
    pub version: String,
    pub priorities: Priorities,
    /// Whether its condition says that it can be used.
    pub available: bool,
    pub link: Arc<Link>,
    documents: Arc<ArcSwap<Documents>>,
}

/// What a backend says about itself.
#[derive(Default)]
struct Documents {
    discovery: discovery::Seen,
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

    /// The place of the group and version in the index of OpenAPI v3, and the URL of its document.
    pub fn openapi(&self) -> Option<(String, String)> {
        let place = path(&self.group, &self.version);
        let place = place.trim_start_matches('/');
        let url = self.documents.load().openapi.url.clone()?;
        Some((place.to_owned(), url))
    }

    /// Its part of the older document of OpenAPI.
    pub fn swagger(&self) -> Option<Arc<Swagger>> {
        self.documents.load().openapi.swagger.clone()
    }
}

/// What APIServices said at one moment.
#[derive(Default)]
pub struct ApiServices {
    /// By `group/version`.
    remote: BTreeMap<String, Arc<Backend>>,
    /// Of all, also of those that this server serves itself, by `group/version`.
    priorities: BTreeMap<String, Priorities>,
}

impl ApiServices {
    /// Those that other servers serve.
    pub fn remote(&self) -> impl Iterator<Item = &Arc<Backend>> {
        self.remote.values()
    }

    /// What serves a group and version, if it is another server.
    pub fn backend(&self, group: &str, version: &str) -> Option<&Arc<Backend>> {
        if self.remote.is_empty() {
            return None;
        }
        self.remote.get(&key(group, version))
    }

    pub fn priorities(&self, group: &str, version: &str) -> Option<Priorities> {
        self.priorities.get(&key(group, version)).copied()
    }

    /// What serves a path, if it is another server.
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
    /// What this server shows to them.
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

    /// What APIServices say now.
    pub fn known(&self) -> Arc<ApiServices> {
        self.known.load_full()
    }

    /// What serves a path, if it is another server.
    pub fn find(&self, path: &str) -> Option<Arc<Backend>> {
        let known = self.known.load();
        match known.remote.is_empty() {
            true => None,
            false => known.at(path).cloned(),
        }
    }

    /// Takes what the APIServices say. Connections and documents stay while their target does.
    fn apply(&self, services: &[Arc<Service>]) {
        let before = self.known.load();
        let mut now = ApiServices::default();
        for service in services {
            let Service { group, version, .. } = &**service;
            let key = key(group, version);
            now.priorities.insert(key.clone(), service.priorities);
            // APIServices of this group say who serves what: that is always this server.
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

    /// What APIServices and the servers behind them say at this moment.
    pub fn moment(&self) -> Moment {
        let services = self.known();
        let documents = services.remote().map(|one| one.documents.load_full());
        let documents = documents.collect();
        Moment {
            services,
            documents,
        }
    }

    /// The connections to a target; those of another APIService if there are any.
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

/// What APIServices and the servers behind them said at one moment.
#[derive(Clone)]
pub struct Moment {
    pub services: Arc<ApiServices>,
    documents: Vec<Arc<Documents>>,
}

impl PartialEq for Moment {
    /// Whether nothing was said between the two.
    fn eq(&self, other: &Self) -> bool {
        let mut pairs = self.documents.iter().zip(&other.documents);
        Arc::ptr_eq(&self.services, &other.services)
            && self.documents.len() == other.documents.len()
            && pairs.all(|(one, other)| Arc::ptr_eq(one, other))
    }
}

/// What is needed of an APIService.
struct Service {
    name: String,
    group: String,
    version: String,
    priorities: Priorities,
    /// The server that serves it, if it is another one.
    target: Option<Target>,
    is_available: bool,
    /// Whether its condition says that this server serves it.
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
