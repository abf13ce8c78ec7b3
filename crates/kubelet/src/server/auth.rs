//! Authentication and authorization of requests to the kubelet: client certificates of the cluster
//! and bearer tokens, authorized by the API server as `nodes/SUBRESOURCE` of this node. Anonymous
//! requests are rejected.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
    sync::Arc,
    time::Duration,
};

use client::Api;
use http::{HeaderMap, Method, Response, StatusCode, header};
use jiff::Timestamp;
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec},
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::api::PostParams;
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use stdx::Clock;
use tokio::sync::Semaphore;
use tracing::{debug, warn};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{Body, KubeletRequest, text};
use crate::{
    Config,
    configuration::{AuthenticationWebhook, AuthorizationWebhook},
};

/// The maximum number of cached decisions.
const CACHED: usize = 4096;
/// The maximum number of concurrent reviews, so that guessed tokens cannot flood the API server.
const CONCURRENT: usize = 32;

/// An authenticated user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

/// The user of a client certificate that TLS has verified.
pub(crate) fn certificate_user(chain: &[CertificateDer<'_>]) -> Option<User> {
    let (_, certificate) = X509Certificate::from_der(chain.first()?).ok()?;
    let subject = certificate.subject();
    let name = pki::common_name(subject)?.as_str().ok()?.to_owned();
    let groups = subject
        .iter_organization()
        .filter_map(|group| group.as_str().ok());
    let mut groups: Vec<String> = groups.map(str::to_owned).collect();
    groups.push("system:authenticated".into());
    Some(User {
        name,
        groups,
        ..User::default()
    })
}

/// Delegated authentication and authorization.
pub struct Auth {
    client: kube::Client,
    node_name: String,
    questions: Semaphore,
    tokens: Cache<String, Option<User>>,
    decisions: Cache<(User, &'static str, &'static str), bool>,
    authentication: AuthenticationWebhook,
    authorization: AuthorizationWebhook,
}

impl Auth {
    pub fn new(config: &Config) -> Self {
        let (settings, clock) = (&config.kubelet, config.clock.clone());
        Self {
            client: config.client.clone(),
            node_name: config.node_name.clone(),
            questions: Semaphore::new(CONCURRENT),
            tokens: Cache::new(clock.clone()),
            decisions: Cache::new(clock),
            authentication: settings.authentication.webhook.clone(),
            authorization: settings.authorization.webhook.clone(),
        }
    }

    /// The user if the request is allowed; otherwise the response.
    pub async fn admit(
        &self,
        certificate: Option<&User>,
        headers: &HeaderMap,
        ask: &KubeletRequest,
    ) -> Result<User, Box<Response<Body>>> {
        let user = match certificate {
            Some(user) => Some(user.clone()),
            None => match bearer_token(headers) {
                Some(token) if self.authentication.enabled => self.token_user(token).await,
                _ => None,
            },
        };
        let Some(user) = user else {
            return Err(Box::new(text(StatusCode::UNAUTHORIZED, "Unauthorized")));
        };
        let (verb, subresources) = attributes(&ask.method, &ask.parts);
        for subresource in &subresources {
            match self.is_allowed(&user, verb, subresource).await {
                Ok(true) => return Ok(user),
                Ok(false) => {}
                Err(error) => {
                    warn!(%error, user = user.name, "cannot authorize a request to the kubelet");
                    let message = format!(
                        "Authorization error (user={}, verb={verb}, resource=nodes, subresource={subresource})",
                        user.name
                    );
                    return Err(Box::new(text(StatusCode::INTERNAL_SERVER_ERROR, message)));
                }
            }
        }
        let message = format!(
            "Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[{}])\n",
            user.name,
            subresources.join(" ")
        );
        Err(Box::new(text(StatusCode::FORBIDDEN, message)))
    }

    async fn token_user(&self, token: &str) -> Option<User> {
        if let Some(known) = self.tokens.get(token) {
            return known;
        }
        let _permit = self.questions.acquire().await.ok()?;
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: token.to_owned(),
                audiences: None,
            },
            ..Default::default()
        };
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let status = match api.create(&PostParams::default(), &review).await {
            Ok(review) => review.status.unwrap_or_default(),
            Err(error) => {
                warn!(%error, "cannot review a token");
                return None;
            }
        };
        if let Some(error) = status.error.filter(|error| !error.is_empty()) {
            debug!(error, "token rejected");
        }
        let user = status.user.filter(|_| status.authenticated == Some(true));
        let user = user.map(|info| User {
            name: info.username.unwrap_or_default(),
            uid: info.uid.unwrap_or_default(),
            groups: info.groups.unwrap_or_default(),
            extra: info.extra.unwrap_or_default(),
        });
        let ttl = self.authentication.cache_ttl.0;
        self.tokens.put(token.to_owned(), user.clone(), ttl);
        user
    }

    async fn is_allowed(
        &self,
        user: &User,
        verb: &'static str,
        subresource: &'static str,
    ) -> Result<bool, kube::Error> {
        let question = (user.clone(), verb, subresource);
        if let Some(known) = self.decisions.get(&question) {
            return Ok(known);
        }
        // The semaphore is never closed.
        let _permit = self.questions.acquire().await.ok();
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user.name.clone()),
                uid: Some(user.uid.clone()).filter(|uid| !uid.is_empty()),
                groups: Some(user.groups.clone()),
                extra: Some(user.extra.clone()),
                resource_attributes: Some(ResourceAttributes {
                    verb: Some(verb.to_owned()),
                    version: Some("v1".into()),
                    resource: Some("nodes".into()),
                    subresource: Some(subresource.to_owned()),
                    name: Some(self.node_name.clone()),
                    ..Default::default()
                }),
                ..Default::default()
            },
            ..Default::default()
        };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let review = api.create(&PostParams::default(), &review).await?;
        let allowed = review.status.is_some_and(|status| status.allowed);
        let ttl = if allowed {
            self.authorization.cache_authorized_ttl
        } else {
            self.authorization.cache_unauthorized_ttl
        };
        self.decisions.put(question, allowed, ttl.0);
        Ok(allowed)
    }
}

fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// The verb, and the node subresources of which one must be allowed. Derived from the same path
/// segments that select the handler.
fn attributes(method: &Method, parts: &[String]) -> (&'static str, Vec<&'static str>) {
    let first = parts.first().map(String::as_str);
    let verb = match *method {
        // WebSocket requests start with GET: the verb `get` must not allow running commands.
        Method::GET if matches!(first, Some("exec" | "attach" | "portForward" | "run")) => "create",
        Method::POST => "create",
        Method::GET => "get",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "",
    };
    let subresources = match first {
        Some("stats") => vec!["stats"],
        Some("metrics") => vec!["metrics"],
        Some("logs") => vec!["log"],
        Some("checkpoint") => vec!["checkpoint"],
        Some("statusz") => vec!["statusz"],
        Some("flagz") => vec!["configz"],
        Some("pods" | "runningpods") => vec!["pods", "proxy"],
        Some("healthz") => vec!["healthz", "proxy"],
        Some("configz") => vec!["configz", "proxy"],
        _ => vec!["proxy"],
    };
    (verb, subresources)
}

/// Decisions with their expiry.
struct Cache<K, V> {
    clock: Arc<dyn Clock>,
    /// Guards the map only.
    entries: Mutex<HashMap<K, (V, Timestamp)>>,
}

impl<K: Eq + Hash, V: Clone> Cache<K, V> {
    fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            entries: Mutex::default(),
        }
    }

    fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<V>
    where
        K: std::borrow::Borrow<Q>,
    {
        let entries = self.entries.lock();
        let (value, until) = entries.get(key)?;
        (*until > self.clock.now()).then(|| value.clone())
    }

    fn put(&self, key: K, value: V, ttl: Duration) {
        let now = self.clock.now();
        let mut entries = self.entries.lock();
        if entries.len() >= CACHED {
            entries.retain(|_, (_, until)| *until > now);
        }
        if entries.len() >= CACHED {
            entries.clear();
        }
        entries.insert(key, (value, now + ttl));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_specific_node_subresource_is_authorized_first() {
        let of = |path: &str| {
            let parts: Vec<String> = path.split('/').skip(1).map(str::to_owned).collect();
            attributes(&Method::GET, &parts).1
        };
        for (path, expected) in [
            ("/stats/summary", vec!["stats"]),
            ("/metrics", vec!["metrics"]),
            ("/metrics/cadvisor", vec!["metrics"]),
            ("/logs/", vec!["log"]),
            ("/checkpoint/ns/pod/c", vec!["checkpoint"]),
            ("/pods", vec!["pods", "proxy"]),
            ("/runningpods/", vec!["pods", "proxy"]),
            ("/healthz/ping", vec!["healthz", "proxy"]),
            ("/configz", vec!["configz", "proxy"]),
            ("/containerLogs/ns/pod/c", vec!["proxy"]),
            ("/exec/ns/pod/c", vec!["proxy"]),
            ("/podsx", vec!["proxy"]),
            ("/", vec!["proxy"]),
        ] {
            assert_eq!(of(path), expected, "{path}");
        }
        assert_eq!(attributes(&Method::POST, &[]).0, "create");
        for path in ["exec", "attach", "portForward"] {
            assert_eq!(attributes(&Method::GET, &[path.to_owned()]).0, "create");
        }
        assert_eq!(
            attributes(&Method::GET, &["containerLogs".to_owned()]).0,
            "get"
        );
        assert_eq!(attributes(&Method::HEAD, &[]).0, "");
    }

    #[test]
    fn only_bearer_tokens_are_credentials() {
        let token = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            bearer_token(&headers).map(str::to_owned)
        };
        assert_eq!(token("Bearer abc").as_deref(), Some("abc"));
        assert_eq!(token("bearer  abc ").as_deref(), Some("abc"));
        assert_eq!(token("Basic abc"), None);
        assert_eq!(token("Bearer "), None);
        assert_eq!(bearer_token(&HeaderMap::new()), None);
    }
}
