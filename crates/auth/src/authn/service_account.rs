//! Service account tokens: issued and verified here. A token is valid as long as its times are
//! right and the account, and the bound pod, secret or node, still exist.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use machinery::json::{Value, json};
use parking_lot::Mutex;
use pki::{Pki, jwt};
use serde::{Deserialize, Serialize};
use stdx::Clock;

use super::{
    Authenticator, Credentials, LegacyClaims, Refused, bearer,
    legacy_tokens::{self, Uses},
};
use super::{IssuedToken, TokenIssuer, TokenRequest};
use registry::{Reader, Stored};
use request::User;

/// Tokens of pods and accounts stay valid this long after their deletion, so that they can finish.
const GRACE: SignedDuration = SignedDuration::from_secs(60);
/// Verifying a signature is the most expensive step: how many verified tokens are cached.
const KEPT: usize = 4096;

/// The claims of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    pub iss: String,
    pub sub: String,
    #[serde(default, deserialize_with = "one_or_many")]
    pub aud: Vec<String>,
    pub exp: i64,
    #[serde(default)]
    pub nbf: i64,
    #[serde(default)]
    pub iat: i64,
    #[serde(default)]
    pub jti: String,
    #[serde(rename = "kubernetes.io")]
    pub private: Private,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Private {
    pub namespace: String,
    pub serviceaccount: Reference,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Reference>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reference {
    pub name: String,
    pub uid: String,
}

fn one_or_many<'de, D: serde::Deserializer<'de>>(input: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Audience {
        One(String),
        Many(Vec<String>),
    }
    Ok(match Audience::deserialize(input)? {
        Audience::One(one) => vec![one],
        Audience::Many(many) => many,
    })
}

/// Issues and verifies tokens.
pub struct Tokens {
    pki: Arc<Pki>,
    issuer: String,
    audiences: Vec<String>,
    clock: Arc<dyn Clock>,
    /// Guards the claims of tokens with verified signatures.
    verified: Mutex<HashMap<String, Arc<Claims>>>,
}

impl Tokens {
    /// The issuer is `https://kubernetes.default.svc.DOMAIN`, as is the server's audience.
    pub fn new(pki: Arc<Pki>, cluster_domain: &str, clock: Arc<dyn Clock>) -> Self {
        let issuer = format!("https://kubernetes.default.svc.{cluster_domain}");
        let audiences = vec![issuer.clone()];
        Self {
            pki,
            issuer,
            audiences,
            clock,
            verified: Mutex::default(),
        }
    }

    fn genuine(&self, token: &str) -> Result<Arc<Claims>, Refused> {
        if let Some(known) = self.verified.lock().get(token) {
            return Ok(known.clone());
        }
        let claims: Claims = self
            .pki
            .service_account()
            .verify(token)
            .map_err(|error: jwt::TokenError| Refused(error.to_string()))?;
        let claims = Arc::new(claims);
        let mut verified = self.verified.lock();
        if verified.len() >= KEPT {
            let now = self.clock.now().as_second();
            verified.retain(|_, claims| claims.exp > now);
            if verified.len() >= KEPT {
                verified.clear();
            }
        }
        verified.insert(token.to_owned(), claims.clone());
        Ok(claims)
    }
}

/// Checks the times and the audience.
fn timely(claims: &Claims, audiences: &[String], now: Timestamp) -> Result<(), Refused> {
    let now = now.as_second();
    if now >= claims.exp {
        return Err(Refused("service account token has expired".to_owned()));
    }
    if now < claims.nbf {
        return Err(Refused("service account token is not valid yet".to_owned()));
    }
    if !claims
        .aud
        .iter()
        .any(|audience| audiences.contains(audience))
    {
        return Err(audience_error(&claims.aud, audiences));
    }
    Ok(())
}

fn audience_error(own: &[String], wanted: &[String]) -> Refused {
    let listed = |all: &[String]| {
        let quoted: Vec<String> = all.iter().map(|a| machinery::text::quote(a)).collect();
        quoted.join(" ")
    };
    Refused(format!(
        "token audiences [{}] is invalid for the target audiences [{}]",
        listed(own),
        listed(wanted)
    ))
}

impl TokenIssuer for Tokens {
    fn issue(&self, request: &TokenRequest<'_>) -> Result<IssuedToken, String> {
        let now = self.clock.now();
        let expires = now
            + SignedDuration::try_from(request.expires_in).map_err(|error| error.to_string())?;
        let audiences = match request.audiences.as_slice() {
            [] => self.audiences.clone(),
            wanted => wanted.to_vec(),
        };
        let bound = |kind: &str| match request.bound {
            Some((of, name, uid)) if of == kind => Some(Reference {
                name: name.to_owned(),
                uid: uid.to_owned(),
            }),
            _ => None,
        };
        let node = request.node.map(|(name, uid)| Reference {
            name: name.to_owned(),
            uid: uid.to_owned(),
        });
        let (namespace, name) = (request.namespace, request.service_account);
        let claims = Claims {
            iss: self.issuer.clone(),
            sub: format!("system:serviceaccount:{namespace}:{name}"),
            aud: audiences.clone(),
            exp: expires.as_second(),
            nbf: now.as_second(),
            iat: now.as_second(),
            jti: uuid::Uuid::new_v4().to_string(),
            private: Private {
                namespace: namespace.to_owned(),
                serviceaccount: Reference {
                    name: name.to_owned(),
                    uid: request.uid.to_owned(),
                },
                pod: bound("Pod"),
                secret: bound("Secret"),
                node: bound("Node").or(node),
            },
        };
        let token = self
            .pki
            .service_account()
            .sign(&claims)
            .map_err(|error| error.to_string())?;
        Ok(IssuedToken {
            token,
            audiences,
            expires,
        })
    }

    fn verify(
        &self,
        token: &str,
        audiences: Option<&[String]>,
    ) -> Option<Result<Arc<Claims>, Refused>> {
        if jwt::issuer(token)? != self.issuer {
            return None;
        }
        let audiences = audiences
            .filter(|wanted| !wanted.is_empty())
            .unwrap_or(&self.audiences);
        let claims = self.genuine(token).and_then(|claims| {
            timely(&claims, audiences, self.clock.now())?;
            Ok(claims)
        });
        Some(claims)
    }

    fn verify_legacy(
        &self,
        token: &str,
        audiences: Option<&[String]>,
    ) -> Option<Result<LegacyClaims, Refused>> {
        if jwt::issuer(token)? != legacy_tokens::ISSUER {
            return None;
        }
        // Such tokens have no audience: they are for this server.
        let wanted = audiences.filter(|wanted| !wanted.is_empty());
        let fits = wanted.is_none_or(|wanted| wanted.iter().any(|a| self.audiences.contains(a)));
        if !fits {
            return Some(Err(audience_error(
                &self.audiences,
                wanted.unwrap_or_default(),
            )));
        }
        let claims = self.pki.service_account().verify(token);
        Some(claims.map_err(|error: jwt::TokenError| Refused(error.to_string())))
    }

    fn audiences(&self) -> &[String] {
        &self.audiences
    }

    fn openid_configuration(&self) -> Value {
        json!({
            "issuer": self.issuer,
            "jwks_uri": format!("{}/openid/v1/jwks", self.issuer),
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        })
    }

    fn jwks(&self) -> Value {
        self.pki.service_account().jwks().into()
    }
}

/// Authenticates service accounts by their tokens.
pub struct ServiceAccounts {
    tokens: Arc<dyn TokenIssuer>,
    reader: Reader,
    clock: Arc<dyn Clock>,
    legacy: Arc<Uses>,
}

impl ServiceAccounts {
    pub fn new(
        tokens: Arc<dyn TokenIssuer>,
        reader: Reader,
        clock: Arc<dyn Clock>,
        legacy: Arc<Uses>,
    ) -> Self {
        Self {
            tokens,
            reader,
            clock,
            legacy,
        }
    }

    /// Whether the object that the token was issued for still exists.
    async fn lives(
        &self,
        resource: &str,
        namespace: &str,
        reference: &Reference,
    ) -> Result<(), Refused> {
        let found = self
            .reader
            .get("", resource, namespace, &reference.name)
            .await;
        let found = found.map_err(|_| Refused("cannot read the store".to_owned()))?;
        let now = self.clock.now();
        let metadata = found.as_deref().map(Stored::metadata);
        alive(metadata.as_deref(), &reference.uid, now)
            .map_err(|why| Refused(format!("{resource} {}: {why}", reference.name)))
    }
}

/// The metadata that decides whether a token is still valid.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Life {
    #[serde(default)]
    uid: String,
    #[serde(default)]
    deletion_timestamp: Option<Timestamp>,
}

fn alive(metadata: Option<&[u8]>, uid: &str, now: Timestamp) -> Result<(), &'static str> {
    let life: Life = machinery::json::from_slice(metadata.ok_or("does not exist")?)
        .map_err(|_| "cannot be read")?;
    if life.uid != uid {
        return Err("has been recreated with another UID");
    }
    let deleted = life.deletion_timestamp;
    if deleted.is_some_and(|deleted| deleted + GRACE < now) {
        return Err("has been deleted");
    }
    Ok(())
}

fn user(claims: &Claims) -> User {
    let private = &claims.private;
    let mut user = User::service_account(&private.namespace, &private.serviceaccount.name);
    user.uid.clone_from(&private.serviceaccount.uid);
    let mut extra = |key: &str, value: &str| {
        let key = format!("authentication.kubernetes.io/{key}");
        user.extra.insert(key, vec![value.to_owned()]);
    };
    if !claims.jti.is_empty() {
        extra("credential-id", &format!("JTI={}", claims.jti));
    }
    if let Some(pod) = &private.pod {
        extra("pod-name", &pod.name);
        extra("pod-uid", &pod.uid);
    }
    if let Some(node) = &private.node {
        extra("node-name", &node.name);
        extra("node-uid", &node.uid);
    }
    user
}

#[async_trait]
impl Authenticator for ServiceAccounts {
    fn name(&self) -> &'static str {
        "service-account"
    }

    async fn authenticate(&self, credentials: &Credentials<'_>) -> Result<Option<User>, Refused> {
        match bearer::token(credentials.headers) {
            Some(token) => self.token(&token, None).await,
            None => Ok(None),
        }
    }

    async fn token(
        &self,
        token: &str,
        audiences: Option<&[String]>,
    ) -> Result<Option<User>, Refused> {
        let Some(claims) = self.tokens.verify(token, audiences) else {
            let Some(claims) = self.tokens.verify_legacy(token, audiences) else {
                return Ok(None);
            };
            let (claims, reader, clock) = (claims?, &self.reader, &*self.clock);
            let user = legacy_tokens::account(reader, &self.legacy, clock, token, &claims);
            return user.await.map(Some);
        };
        let claims = claims?;
        let private = &claims.private;
        let subject = format!(
            "system:serviceaccount:{}:{}",
            private.namespace, private.serviceaccount.name
        );
        if claims.sub != subject {
            return Err(Refused(
                "the subject does not match the service account".to_owned(),
            ));
        }
        let namespace = private.namespace.as_str();
        self.lives("serviceaccounts", namespace, &private.serviceaccount)
            .await?;
        if let Some(secret) = &private.secret {
            self.lives("secrets", namespace, secret).await?;
        }
        if let Some(pod) = &private.pod {
            self.lives("pods", namespace, pod).await?;
        } else if let Some(node) = &private.node {
            self.lives("nodes", "", node).await?;
        }
        Ok(Some(user(&claims)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use stdx::FakeClock;

    use super::*;
    use registry_testing::World;

    struct Setup {
        _directory: tempfile::TempDir,
        clock: FakeClock,
        tokens: Arc<Tokens>,
        world: World,
        accounts: ServiceAccounts,
    }

    async fn setup() -> Setup {
        let directory = tempfile::tempdir().unwrap();
        let pki = Arc::new(Pki::ensure(directory.path(), &pki::Names::default()).unwrap());
        let clock = FakeClock::at("2026-06-01T00:00:00Z".parse().unwrap());
        let shared: Arc<dyn Clock> = Arc::new(clock.clone());
        let tokens = Arc::new(Tokens::new(pki, "cluster.local", shared.clone()));
        let world = World::new();
        for (resource, name) in [("serviceaccounts", "bot"), ("pods", "web")] {
            let metadata = json!({"name": name, "namespace": "team", "uid": format!("{name}-uid")});
            world
                .put("", resource, json!({ "metadata": metadata }))
                .await;
        }
        let reader = world.reader.clone();
        let accounts = ServiceAccounts::new(tokens.clone(), reader, shared, Arc::default());
        Setup {
            _directory: directory,
            clock,
            tokens,
            world,
            accounts,
        }
    }

    fn request(bound: bool, audiences: &[&str]) -> TokenRequest<'static> {
        TokenRequest {
            namespace: "team",
            service_account: "bot",
            uid: "bot-uid",
            audiences: audiences
                .iter()
                .map(|&audience| audience.to_owned())
                .collect(),
            expires_in: Duration::from_secs(3600),
            bound: bound.then_some(("Pod", "web", "web-uid")),
            node: bound.then_some(("node-1", "node-uid")),
        }
    }

    #[tokio::test]
    async fn a_token_names_its_account_until_it_expires() {
        let setup = setup().await;
        let issued = setup.tokens.issue(&request(true, &[])).unwrap();
        let user = setup
            .accounts
            .token(&issued.token, None)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(user.name, "system:serviceaccount:team:bot");
        assert_eq!(user.uid, "bot-uid");
        assert!(user.is_in("system:serviceaccounts:team") && user.is_in("system:authenticated"));
        assert_eq!(user.extra["authentication.kubernetes.io/pod-name"], ["web"]);
        assert_eq!(
            user.extra["authentication.kubernetes.io/node-name"],
            ["node-1"]
        );
        setup.clock.advance(Duration::from_secs(3600));
        setup.accounts.token(&issued.token, None).await.unwrap_err();
    }

    #[tokio::test]
    async fn a_token_is_invalid_after_its_bound_object_is_deleted() {
        let setup = setup().await;
        let (bound, free) = (request(true, &[]), request(false, &[]));
        let (bound, free) = (
            setup.tokens.issue(&bound).unwrap(),
            setup.tokens.issue(&free).unwrap(),
        );
        setup.world.delete("", "pods", "team", "web").await;
        setup.accounts.token(&bound.token, None).await.unwrap_err();
        setup
            .accounts
            .token(&free.token, None)
            .await
            .unwrap()
            .unwrap();
        let other = json!({"metadata": {"name": "bot", "namespace": "team", "uid": "new"}});
        setup.world.put("", "serviceaccounts", other).await;
        setup.accounts.token(&free.token, None).await.unwrap_err();
    }

    #[tokio::test]
    async fn a_token_for_another_audience_is_refused_here_and_good_there() {
        let setup = setup().await;
        let vault = setup.tokens.issue(&request(false, &["vault"])).unwrap();
        setup.accounts.token(&vault.token, None).await.unwrap_err();
        let audience = ["vault".to_owned()];
        setup
            .accounts
            .token(&vault.token, Some(&audience))
            .await
            .unwrap()
            .unwrap();
    }

    #[tokio::test]
    async fn tokens_of_others_are_left_to_others_and_forged_ones_are_refused() {
        let setup = setup().await;
        assert!(
            setup
                .accounts
                .token("not.a.jwt", None)
                .await
                .unwrap()
                .is_none()
        );
        let there = super::tests::setup().await;
        let theirs = there.tokens.issue(&request(false, &[])).unwrap();
        setup.accounts.token(&theirs.token, None).await.unwrap_err();
    }
}
