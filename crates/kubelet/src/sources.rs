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
use tracing::debug;
use volume::{Need, Objects, TokenSpec};

use crate::{
    Error, Result,
    pod::spec,
    registry::{Message, Registry},
};

/// The delay after a failed refresh of a token that is still valid.
const TOKEN_RETRY: Duration = Duration::from_secs(30);

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

impl Gathered {
    fn add(&mut self, other: Self) {
        self.objects.config_maps.extend(other.objects.config_maps);
        self.objects.secrets.extend(other.objects.secrets);
        self.objects.tokens.extend(other.objects.tokens);
        self.refresh_at = [self.refresh_at, other.refresh_at]
            .into_iter()
            .flatten()
            .min();
    }
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

    /// Fetches all needs of a pod, side by side. Missing objects are absent from the result.
    pub async fn gather(&self, pod: &Pod, needs: &[Need], now: Timestamp) -> Result<Gathered> {
        let unique: BTreeSet<&Need> = needs.iter().collect();
        let fetched = unique
            .into_iter()
            .map(|need| self.fetch_one(pod, need, now));
        let mut gathered = Gathered::default();
        for part in futures::future::try_join_all(fetched).await? {
            gathered.add(part);
        }
        Ok(gathered)
    }

    async fn fetch_one(&self, pod: &Pod, need: &Need, now: Timestamp) -> Result<Gathered> {
        let mut gathered = Gathered::default();
        let objects = &mut gathered.objects;
        match need {
            Need::ConfigMap { name, .. } => {
                let found = self.fetch(&self.config_maps, pod, name).await?;
                let found = found.map(|map| (name.clone(), (*map).clone()));
                objects.config_maps.extend(found);
            }
            Need::Secret { name, .. } => {
                let found = self.fetch(&self.secrets, pod, name).await?;
                let found = found.map(|secret| (name.clone(), (*secret).clone()));
                objects.secrets.extend(found);
            }
            Need::Token(spec) => {
                let token = self.token(pod, spec, now).await?;
                objects.tokens.insert(spec.clone(), token.text);
                gathered.refresh_at = Some(token.refresh_at);
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

    /// A token of the pod: the cached one until it is due for a refresh, then a new one. While the API
    /// server does not issue a new one, the old one is used until it expires.
    pub async fn token(&self, pod: &Pod, wanted: &TokenSpec, now: Timestamp) -> Result<Token> {
        let key = (spec::uid(pod).to_owned(), wanted.clone());
        let cached = self.tokens.lock().get(&key).cloned();
        let token = match cached {
            Some(token) if token.refresh_at > now => return Ok(token),
            cached => match (self.request_token(pod, wanted, now).await, cached) {
                (Err(error), Some(old)) if old.expires > now => {
                    debug!(pod = key.0, %error, "cannot refresh a token, using the old one");
                    Token {
                        refresh_at: old.expires.min(now + TOKEN_RETRY),
                        ..old
                    }
                }
                (requested, _) => requested?,
            },
        };
        self.tokens.lock().insert(key, token.clone());
        Ok(token)
    }

    async fn request_token(&self, pod: &Pod, wanted: &TokenSpec, now: Timestamp) -> Result<Token> {
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
        Ok(Token {
            text,
            expires: expires.0,
            refresh_at,
        })
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

    use super::*;

    /// An API server that issues tokens for an hour, unless it is away.
    struct Issuer {
        is_away: AtomicBool,
        now: AtomicI64,
    }

    impl Issuer {
        fn client(self: &Arc<Self>) -> kube::Client {
            let issuer = self.clone();
            let answer = move |_: http::Request<kube::client::Body>| {
                let issuer = issuer.clone();
                async move {
                    if issuer.is_away.load(Ordering::Relaxed) {
                        return Err(std::io::Error::other("connection refused"));
                    }
                    let now = issuer.now.load(Ordering::Relaxed);
                    let expires = at(now + 3600).to_string();
                    let body = serde_json::json!({
                        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {},
                        "spec": {"audiences": []},
                        "status": {"token": format!("issued at {now}"), "expirationTimestamp": expires},
                    });
                    let body = kube::client::Body::from(body.to_string().into_bytes());
                    Ok(http::Response::new(body))
                }
            };
            kube::Client::new(tower::service_fn(answer), "default")
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[tokio::test]
    async fn a_token_is_used_until_it_expires_while_the_servers_are_away() {
        let issuer = Arc::new(Issuer {
            is_away: AtomicBool::new(false),
            now: AtomicI64::new(0),
        });
        let context = Context::standalone("kubelet", CancellationToken::new());
        let sources = Sources::new(issuer.client(), context, Registry::default());
        let wanted = TokenSpec {
            audience: String::new(),
            expiration_seconds: 3600,
        };
        let pod = Pod::default();
        let token = async |now| sources.token(&pod, &wanted, at(now)).await;

        assert_eq!(token(0).await.unwrap().text, "issued at 0");
        issuer.is_away.store(true, Ordering::Relaxed);
        // Due for a refresh after 2880 s.
        for now in [2879, 2880, 3570] {
            assert_eq!(token(now).await.unwrap().text, "issued at 0");
        }
        assert_eq!(token(3599).await.unwrap().refresh_at, at(3600));
        assert!(token(3600).await.is_err(), "it has expired");

        issuer.is_away.store(false, Ordering::Relaxed);
        issuer.now.store(12 * 3600, Ordering::Relaxed);
        let renewed = token(12 * 3600).await.unwrap();
        assert_eq!(renewed.text, format!("issued at {}", 12 * 3600));
        assert_eq!(renewed.refresh_at, at(12 * 3600 + 2880));
    }
}
