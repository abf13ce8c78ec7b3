//! The ConfigMaps, Secrets and tokens that pods of this node use: each object has its own watch
//! while a pod needs it, and a change wakes only those pods.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt::Debug,
    sync::Arc,
    time::Duration,
};

use client::{Api, Informer};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
        core::v1::{ConfigMap, Pod, Secret, ServiceAccount},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::api::PostParams;
use lifecycle::Context;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use volume::{Need, Objects, TokenSpec};

use crate::{
    Error, Result,
    pod::spec,
    registry::{Message, Registry},
};

/// Namespace and name.
type Key = (String, String);

struct Watched<K> {
    informer: Informer<K>,
    stop: CancellationToken,
    users: BTreeSet<String>,
}

/// A token of a pod's service account.
#[derive(Debug, Clone)]
pub struct Token {
    pub text: String,
    pub expires: Timestamp,
    refresh_at: Timestamp,
}

/// Reads the objects that volumes and environments need.
pub struct Sources {
    client: kube::Client,
    context: Context,
    registry: Registry,
    /// Each lock guards its map only.
    config_maps: Watches<ConfigMap>,
    secrets: Watches<Secret>,
    tokens: Mutex<HashMap<(String, TokenSpec), Token>>,
}

/// The objects, and when to refresh them.
#[derive(Default)]
pub struct Gathered {
    pub objects: Objects,
    pub refresh_at: Option<Timestamp>,
}

impl Sources {
    pub fn new(client: kube::Client, context: Context, registry: Registry) -> Self {
        Self {
            client,
            context,
            registry,
            config_maps: Watches::default(),
            secrets: Watches::default(),
            tokens: Mutex::default(),
        }
    }

    /// Fetches all needs of a pod. Missing objects are absent from the result.
    pub async fn gather(&self, pod: &Pod, needs: &[Need], now: Timestamp) -> Result<Gathered> {
        let mut gathered = Gathered::default();
        let unique: BTreeSet<&Need> = needs.iter().collect();
        for need in unique {
            match need {
                Need::ConfigMap { name, .. } => {
                    if let Some(map) = self.fetch(&self.config_maps, pod, name).await? {
                        gathered
                            .objects
                            .config_maps
                            .insert(name.clone(), (*map).clone());
                    }
                }
                Need::Secret { name, .. } => {
                    if let Some(secret) = self.fetch(&self.secrets, pod, name).await? {
                        gathered
                            .objects
                            .secrets
                            .insert(name.clone(), (*secret).clone());
                    }
                }
                Need::Token(spec) => {
                    let Token {
                        text, refresh_at, ..
                    } = self.token(pod, spec, now).await?;
                    gathered.objects.tokens.insert(spec.clone(), text);
                    let earliest = gathered
                        .refresh_at
                        .map_or(refresh_at, |at| at.min(refresh_at));
                    gathered.refresh_at = Some(earliest);
                }
            }
        }
        Ok(gathered)
    }

    /// Reads the object from its watch if it has synced; otherwise fetches it and starts a watch.
    async fn fetch<K>(&self, watches: &Watches<K>, pod: &Pod, name: &str) -> Result<Option<Arc<K>>>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
            + Clone
            + Debug
            + client::FromJson
            + Send
            + Sync
            + 'static,
    {
        let (namespace, uid) = (spec::namespace(pod), spec::uid(pod));
        let key = (namespace.to_owned(), name.to_owned());
        if let Some(informer) = watches.join(&key, uid)
            && informer.has_synced()
        {
            return Ok(informer.get(namespace, name));
        }
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        let found = api.get_opt(name).await?;
        self.watch(watches, key, uid);
        Ok(found.map(Arc::new))
    }

    /// Adds a pod to the object's watch, which another pod may have started meanwhile.
    fn watch<K>(&self, watches: &Watches<K>, key: Key, uid: &str)
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
            + Clone
            + Debug
            + client::FromJson
            + Send
            + Sync
            + 'static,
    {
        let mut entries = watches.entries.lock();
        if let Some(watched) = entries.get_mut(&key) {
            watched.users.insert(uid.to_owned());
            return;
        }
        let stop = self.context.token().child_token();
        let own = Context::standalone("kubelet", stop.clone());
        let informer = Informer::<K>::builder(self.client.clone())
            .namespace(&key.0)
            .fields(format!("metadata.name={}", key.1))
            .start(&own);
        let users = BTreeSet::from([uid.to_owned()]);
        let watched = Watched {
            informer: informer.clone(),
            stop: stop.clone(),
            users,
        };
        entries.insert(key.clone(), watched);
        drop(entries);
        let (entries, registry) = (watches.entries.clone(), self.registry.clone());
        own.spawn("source", async move {
            let mut changes = informer.subscribe();
            while changes.next().await.is_some() {
                let users = entries
                    .lock()
                    .get(&key)
                    .map(|watched| watched.users.clone());
                for user in users.into_iter().flatten() {
                    registry.send(&user, Message::Sources);
                }
            }
        });
    }

    /// A token that is valid for a while: the cached one, or a new one.
    pub async fn token(&self, pod: &Pod, wanted: &TokenSpec, now: Timestamp) -> Result<Token> {
        let key = (spec::uid(pod).to_owned(), wanted.clone());
        if let Some(token) = self.tokens.lock().get(&key)
            && token.refresh_at > now
        {
            return Ok(token.clone());
        }
        let account = spec::spec(pod)
            .service_account_name
            .as_deref()
            .unwrap_or("default");
        let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), spec::namespace(pod));
        let request = TokenRequest {
            metadata: ObjectMeta::default(),
            spec: Some(TokenRequestSpec {
                audiences: (!wanted.audience.is_empty()).then(|| vec![wanted.audience.clone()]),
                expiration_seconds: Some(wanted.expiration_seconds),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".into()),
                    kind: Some("Pod".into()),
                    name: pod.metadata.name.clone(),
                    uid: pod.metadata.uid.clone(),
                }),
            }),
            status: None,
        };
        let answer = api
            .create_subresource("token", account, &PostParams::default(), &request)
            .await?;
        let status = answer.status.unwrap_or_default();
        let (Some(text), Some(expires)) = (status.token, status.expiration_timestamp) else {
            return Err(Error::Other(
                "the API server returned an empty token".into(),
            ));
        };
        // A token is refreshed after 80% of its lifetime, and at least once a day.
        let life = (expires.0 - now).get_seconds().max(1);
        let refresh_at = now + Duration::from_secs((life * 4 / 5).min(24 * 3600) as u64);
        let token = Token {
            text,
            expires: expires.0,
            refresh_at,
        };
        self.tokens.lock().insert(key, token.clone());
        Ok(token)
    }

    /// The pod is gone: watches that only it used end.
    pub fn release(&self, uid: &str) {
        self.config_maps.leave(uid);
        self.secrets.leave(uid);
        self.tokens.lock().retain(|(user, _), _| user != uid);
    }
}

struct Watches<K> {
    entries: Arc<Mutex<BTreeMap<Key, Watched<K>>>>,
}

impl<K> Default for Watches<K> {
    fn default() -> Self {
        Self {
            entries: Arc::default(),
        }
    }
}

impl<K> Watches<K> {
    fn join(&self, key: &Key, uid: &str) -> Option<Informer<K>> {
        let mut entries = self.entries.lock();
        let watched = entries.get_mut(key)?;
        watched.users.insert(uid.to_owned());
        Some(watched.informer.clone())
    }

    fn leave(&self, uid: &str) {
        self.entries.lock().retain(|_, watched| {
            watched.users.remove(uid);
            if watched.users.is_empty() {
                watched.stop.cancel();
            }
            !watched.users.is_empty()
        });
    }
}
