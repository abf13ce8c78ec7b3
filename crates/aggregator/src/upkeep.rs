//! Watches APIServices, and runs tasks for every backend: availability, and its documents.

use std::{
    collections::{BTreeMap, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use apiextensions::conditions::set_condition;
use http::{Method, StatusCode};
use kinds::tree;
use machinery::{Object, Status, Value, json::json};
use registry::{Reader, Readings, meta};
use request::Client;
use stdx::{Backoff, Clock};
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use crate::{
    Aggregator, Backend, GROUP, Metrics, PLURAL, Service, Target,
    availability::{self, Verdict, View},
    discovery, openapi, path,
};

const PATH: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
/// The recheck interval of a backend that passed, or whose Service does not exist.
const RECHECK: Duration = Duration::from_secs(30);
const FIRST_RECHECK: Duration = Duration::from_millis(5);
/// The refresh interval of documents.
const REFRESH: Duration = Duration::from_secs(60);
const FIRST_REFRESH: Duration = Duration::from_millis(500);
/// How long the condition of a backend that becomes available waits for its documents.
const FIRST_DOCUMENTS: Duration = Duration::from_secs(2);
/// The retry intervals of failed reads.
const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(5);
/// How often a status write is retried after conflicts.
const ATTEMPTS: usize = 5;

/// Maintains the state of aggregated API servers, and their conditions.
#[derive(Clone)]
pub struct Upkeep {
    pub aggregator: Arc<Aggregator>,
    pub reader: Reader,
    pub clock: Arc<dyn Clock>,
    pub api: Arc<dyn Client>,
    pub metrics: Metrics,
}

/// The tasks of one backend; dropping it ends them.
struct Watched {
    target: Target,
    /// The fingerprint of the Service and its endpoints.
    seen: u64,
    check: Arc<Notify>,
    refresh: Arc<Notify>,
    _tasks: [AbortOnDropHandle<()>; 2],
}

impl Upkeep {
    /// Lists all APIServices: from then on requests are forwarded.
    pub async fn load(&self) -> Result<(), Status> {
        if self.reader.resource(GROUP, PLURAL).is_none() {
            return Ok(());
        }
        self.read(&mut Readings::default()).await.map(drop)
    }

    /// Watches APIServices, Services and endpoints for as long as the server runs.
    pub async fn keep(self) {
        if self.reader.resource(GROUP, PLURAL).is_none() {
            return;
        }
        let (changed, moved) = (Notify::new(), Notify::new());
        let sources = [
            (GROUP, PLURAL, &changed),
            ("", "services", &moved),
            ("discovery.k8s.io", "endpointslices", &moved),
        ];
        let sources = sources
            .map(|(group, plural, notify)| self.reader.tell_of_changes(group, plural, notify));
        let work = async {
            let mut backoff = Backoff::new(FIRST, LONGEST);
            let mut watched = BTreeMap::new();
            let mut readings = Readings::default();
            loop {
                let followed = tokio::select! {
                    () = changed.notified() => self.follow(&mut readings, &mut watched).await,
                    () = moved.notified() => self.wake(&mut watched).await,
                };
                match followed {
                    Ok(()) => backoff.reset(),
                    Err(status) => {
                        tracing::warn!(%status, "cannot watch APIServices");
                        self.clock.sleep(backoff.step()).await;
                        changed.notify_one();
                    }
                }
            }
        };
        tokio::join!(futures::future::join_all(sources), work);
    }

    async fn read(&self, readings: &mut Readings<Service>) -> Result<Vec<Arc<Service>>, Status> {
        // The group and version of an APIService that cannot be read are not forwarded.
        let readable = self.reader.list_readable(GROUP, PLURAL).await?;
        let services = readings.update(&readable.objects(), Service::read);
        self.aggregator.apply(&services);
        Ok(services)
    }

    /// Processes changes of APIServices.
    async fn follow(
        &self,
        readings: &mut Readings<Service>,
        watched: &mut BTreeMap<String, Watched>,
    ) -> Result<(), Status> {
        for service in self.read(readings).await? {
            if service.target.is_none() && !service.is_local {
                self.settle_local(&service.name).await;
            }
        }
        let known = self.aggregator.known();
        watched.retain(|name, _| known.remote().any(|backend| backend.name == *name));
        self.wake(watched).await
    }

    /// Wakes the tasks of backends whose Service changed, and starts those of new backends.
    async fn wake(&self, watched: &mut BTreeMap<String, Watched>) -> Result<(), Status> {
        let known = self.aggregator.known();
        for backend in known.remote() {
            let target = &backend.link.target;
            let seen = self.fingerprint(target).await?;
            match watched.get_mut(&backend.name) {
                Some(one) if one.target == *target => {
                    if std::mem::replace(&mut one.seen, seen) != seen {
                        one.check.notify_one();
                        one.refresh.notify_one();
                    }
                }
                _ => {
                    watched.insert(backend.name.clone(), self.watch(backend, seen));
                }
            }
        }
        Ok(())
    }

    fn watch(&self, backend: &Arc<Backend>, seen: u64) -> Watched {
        let (check, refresh) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let one = Watching {
            upkeep: self.clone(),
            group: backend.group.clone(),
            version: backend.version.clone(),
            check: check.clone(),
            refresh: refresh.clone(),
        };
        let tasks = [
            tokio::spawn(one.clone().keep_condition()),
            tokio::spawn(one.keep_documents()),
        ];
        Watched {
            target: backend.link.target.clone(),
            seen,
            check,
            refresh,
            _tasks: tasks.map(AbortOnDropHandle::new),
        }
    }

    /// A fingerprint of a Service and its endpoints.
    async fn fingerprint(&self, target: &Target) -> Result<u64, Status> {
        let mut hasher = DefaultHasher::new();
        let (service, slices) = self.backing(target).await?;
        let spec = service.map(|service| tree::get(&service, "spec").to_string());
        spec.hash(&mut hasher);
        for slice in slices {
            tree::get(&slice, "endpoints").to_string().hash(&mut hasher);
            tree::get(&slice, "ports").to_string().hash(&mut hasher);
        }
        Ok(hasher.finish())
    }

    /// The Service of a target, and its endpoint slices.
    async fn backing(&self, target: &Target) -> Result<(Option<Object>, Vec<Object>), Status> {
        let Target {
            namespace, name, ..
        } = target;
        let service = self.reader.get("", "services", namespace, name).await?;
        let slices = self
            .reader
            .list("discovery.k8s.io", "endpointslices", namespace);
        let (_, slices) = slices.await?;
        let own = slices
            .iter()
            .filter(|slice| slice.label("kubernetes.io/service-name") == Some(name));
        let slices = own.map(|slice| slice.parse()).collect();
        Ok((service.map(|service| service.parse()), slices))
    }

    /// Local APIServices are always available.
    async fn settle_local(&self, name: &str) {
        let is_remote = |object: &Object| Target::read(tree::get(object, "spec")).is_some();
        let condition = availability::local();
        if let Err(why) = self.write(name, condition, is_remote).await {
            tracing::warn!(name, why, "cannot write the condition of an APIService");
        }
    }

    /// Writes a condition if it changed. `outdated` detects an object that the condition no longer
    /// applies to.
    async fn write(
        &self,
        name: &str,
        condition: Value,
        outdated: impl Fn(&Object) -> bool,
    ) -> Result<(), String> {
        for _ in 0..ATTEMPTS {
            let stored = self.reader.get(GROUP, PLURAL, "", name).await;
            let object = match stored.map_err(|status| status.message)? {
                Some(stored) => stored.parse(),
                None => return Ok(()),
            };
            if outdated(&object) {
                return Ok(());
            }
            let mut changed = object.clone();
            let status = changed.entry("status").or_insert_with(|| json!({}));
            let now = meta::time(self.clock.now());
            set_condition(status, condition.clone(), &now);
            if changed == object {
                return Ok(());
            }
            let path = format!("{PATH}/{name}/status?fieldManager=kube-apiserver");
            let (code, answer) = self.api.ask(Method::PUT, &path, Some(changed)).await?;
            match code {
                StatusCode::CONFLICT => {}
                StatusCode::NOT_FOUND => return Ok(()),
                code if code.is_success() => {
                    let is_available = condition["status"] == "True";
                    if crate::is_available(&object) && !is_available {
                        let reason = tree::text(&condition["reason"]);
                        self.metrics.became_unavailable(name, reason);
                    }
                    return Ok(());
                }
                _ => return Err(tree::text(tree::get(&answer, "message")).to_owned()),
            }
        }
        Err("too many conflicts".to_owned())
    }
}

/// The state that the tasks of one backend share.
#[derive(Clone)]
struct Watching {
    upkeep: Upkeep,
    group: String,
    version: String,
    check: Arc<Notify>,
    refresh: Arc<Notify>,
}

impl Watching {
    fn backend(&self) -> Option<Arc<Backend>> {
        let known = self.upkeep.aggregator.known();
        known.backend(&self.group, &self.version).cloned()
    }

    async fn pause(&self, wake: &Notify, time: Duration) {
        tokio::select! {
            () = self.upkeep.clock.sleep(time) => {}
            () = wake.notified() => {}
        }
    }

    /// Checks availability, and writes the condition.
    async fn keep_condition(self) {
        let mut backoff = Backoff::exact(FIRST_RECHECK, RECHECK);
        let mut was_available = None;
        while let Some(backend) = self.backend() {
            let (condition, retry) = self.judge(&backend).await;
            let is_available = condition["status"] == "True";
            let becomes_available = is_available && was_available != Some(true);
            // Clients that wait for the condition then look for the resources in discovery.
            let has_documents = becomes_available
                && tokio::time::timeout(FIRST_DOCUMENTS, fetch(&backend))
                    .await
                    .is_ok_and(|fetched| fetched.is_ok());
            let target = &backend.link.target;
            let outdated =
                |object: &Object| Target::read(tree::get(object, "spec")).as_ref() != Some(target);
            let name = &backend.name;
            let written = self.upkeep.write(name, condition, outdated).await;
            if let Err(why) = &written {
                tracing::warn!(name, why, "cannot write the condition of an APIService");
            }
            if was_available.replace(is_available) != Some(is_available) && !has_documents {
                self.refresh.notify_one();
            }
            let time = if retry || written.is_err() {
                backoff.step()
            } else {
                backoff.reset();
                RECHECK
            };
            self.pause(&self.check, time).await;
        }
    }

    /// The condition, and whether it should be checked again soon.
    async fn judge(&self, backend: &Backend) -> (Value, bool) {
        let target = &backend.link.target;
        let (service, slices) = match self.upkeep.backing(target).await {
            Ok(backing) => backing,
            Err(status) => {
                let message = format!(
                    "service/{} in {:?} cannot be checked due to: {}",
                    target.name, target.namespace, status.message
                );
                let mut condition = availability::failed("ServiceAccessError", &message);
                condition["status"] = "Unknown".into();
                return (condition, true);
            }
        };
        let view = View {
            target,
            service: service.as_ref(),
            slices: &slices,
        };
        if let Verdict::Unavailable(condition) = availability::decide(&view) {
            return (condition, false);
        }
        let path = path(&backend.group, &backend.version);
        match availability::probe(&backend.link, &path).await {
            Ok(()) => (availability::passed(), false),
            Err(why) => (availability::failed("FailedDiscoveryCheck", &why), true),
        }
    }

    /// Keeps the backend's documents up to date.
    async fn keep_documents(self) {
        let mut backoff = Backoff::exact(FIRST_REFRESH, REFRESH);
        while let Some(backend) = self.backend() {
            let time = match fetch(&backend).await {
                Ok(()) => {
                    backoff.reset();
                    REFRESH
                }
                Err(why) => {
                    tracing::debug!(name = backend.name, why, "cannot fetch discovery");
                    backoff.step()
                }
            };
            self.pause(&self.refresh, time).await;
        }
    }
}

/// Fetches the documents of a backend. If that fails, the previous ones stay and are marked as
/// stale. Two fetches may overlap: each changes only what it found.
async fn fetch(backend: &Backend) -> Result<(), String> {
    let (group, version) = (&backend.group, &backend.version);
    let before = backend.documents.load_full();
    let found = discovery::fetch(&backend.link, group, version, &before.discovery).await;
    backend.change_documents(|documents| {
        documents.stale = found.is_err();
        if let Ok(discovery) = &found {
            documents.discovery.clone_from(discovery);
        }
    });
    found?;
    let openapi = openapi::fetch(&backend.link, group, version, &before.openapi).await?;
    backend.change_documents(|documents| documents.openapi.clone_from(&openapi));
    Ok(())
}
