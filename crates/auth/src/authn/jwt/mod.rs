//! Authenticates tokens of external OpenID Connect issuers, which an `AuthenticationConfiguration` lists. The file is
//! read again when it changes. A changed configuration takes effect once it is valid and the discovery documents of all
//! its issuers were fetched; until then the previous one stays in use.

mod claims;
mod config;
mod issuer;
mod keys;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use async_trait::async_trait;
use parking_lot::Mutex;
use stdx::Clock;

use super::{Authenticator, Credentials, Refused, TokenIssuer, bearer};
use config::{Anonymous, AuthenticationConfiguration};
use issuer::{Fetch, Issuer, Network};
use keys::Unverified;
use request::User;

/// How often the file is read again, and how often failed discovery is retried.
const INTERVAL: Duration = Duration::from_secs(10);
/// Google's issuer, and the name without a scheme that its older tokens have as `iss`.
const GOOGLE: (&str, &str) = ("https://accounts.google.com", "accounts.google.com");

/// Authenticates tokens of the issuers that a file lists.
#[derive(Clone)]
pub struct Jwt(Arc<Shared>);

struct Shared {
    path: PathBuf,
    /// The issuers of this cluster's service account tokens.
    own: Vec<String>,
    /// The audiences of this server.
    audiences: Vec<String>,
    clock: Arc<dyn Clock>,
    fetch: Arc<dyn Fetch>,
    current: ArcSwap<Loaded>,
    /// Guards the text that was read last, and its configuration while that waits for discovery to succeed.
    next: Mutex<(String, Option<Arc<Loaded>>)>,
}

struct Loaded {
    issuers: Vec<Arc<Issuer>>,
    anonymous: Option<Anonymous>,
}

impl Jwt {
    /// Reads the file; `tokens` issues the tokens of the cluster's service accounts.
    pub fn load(
        path: &Path,
        tokens: Option<&Arc<dyn TokenIssuer>>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, String> {
        let issuer = tokens.map(|tokens| tokens.openid_configuration()["issuer"].clone());
        let issuer = issuer.as_ref().and_then(machinery::Value::as_str);
        let own: Vec<String> = issuer.map(str::to_owned).into_iter().collect();
        let audiences = tokens.map_or(&[][..], |tokens| tokens.audiences());
        Self::open(path, &own, audiences, clock, Arc::new(Network))
    }

    fn open(
        path: &Path,
        own: &[String],
        audiences: &[String],
        clock: Arc<dyn Clock>,
        fetch: Arc<dyn Fetch>,
    ) -> Result<Self, String> {
        let failed = |why: String| format!("{}: {why}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        let loaded = Loaded::parse(&text, own, &[], &fetch).map_err(failed)?;
        Ok(Self(Arc::new(Shared {
            path: path.to_owned(),
            own: own.to_vec(),
            audiences: audiences.to_vec(),
            clock,
            fetch,
            current: ArcSwap::from_pointee(loaded),
            next: Mutex::new((text, None)),
        })))
    }

    /// Whether requests for this path may be anonymous; `None` if the file has no `anonymous` section.
    pub fn admits_anonymous(&self, path: &str) -> Option<bool> {
        let current = self.0.current.load();
        current.anonymous.as_ref().map(|it| it.admits(path))
    }

    /// Retries discovery, reads the file again, and replaces the configuration once all its issuers are discovered.
    async fn refresh(&self) {
        self.0.discover(&self.0.current.load_full()).await;
        self.0.read_again();
        let next = self.0.next.lock().1.clone();
        let Some(next) = next else {
            return;
        };
        if self.0.discover(&next).await {
            self.0.current.store(next);
            self.0.next.lock().1 = None;
            tracing::info!(path = %self.0.path.display(), "authentication configuration replaced");
        }
    }
}

impl Shared {
    /// Parses the file if its text changed since the last time.
    fn read_again(&self) {
        let path = self.path.display();
        let text = match std::fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) => {
                return tracing::error!(%path, %error, "cannot read the authentication configuration");
            }
        };
        let mut next = self.next.lock();
        if next.0 == text {
            return;
        }
        let known = self.current.load();
        let loaded = Loaded::parse(&text, &self.own, &known.issuers, &self.fetch);
        *next = match loaded {
            Ok(loaded) => (text, Some(Arc::new(loaded))),
            Err(error) => {
                tracing::error!(%path, %error, "invalid authentication configuration, keeping the current one");
                (text, None)
            }
        };
    }

    /// Runs discovery for the issuers that still need it. Returns whether all succeeded.
    async fn discover(&self, loaded: &Loaded) -> bool {
        let unknown = loaded.issuers.iter().filter(|one| !one.is_discovered());
        let asked = unknown.map(|issuer| async {
            let found = issuer.discover().await;
            if let Err(error) = &found {
                let issuer = &issuer.config.issuer.url;
                tracing::error!(issuer, error, "OIDC discovery failed");
            }
            found.is_ok()
        });
        let found = futures::future::join_all(asked).await;
        found.into_iter().all(|found| found)
    }
}

impl Loaded {
    /// Parses a configuration. Issuers with an unchanged configuration keep their discovered URL and keys.
    fn parse(
        text: &str,
        own: &[String],
        known: &[Arc<Issuer>],
        fetch: &Arc<dyn Fetch>,
    ) -> Result<Self, String> {
        let config = AuthenticationConfiguration::parse(text, own)?;
        let issuers = config.jwt.iter().map(|one| {
            let same = known.iter().find(|known| known.config == *one);
            match same {
                Some(known) => Ok(known.clone()),
                None => Issuer::new(one, fetch.clone()).map(Arc::new),
            }
        });
        Ok(Self {
            issuers: issuers.collect::<Result<_, String>>()?,
            anonymous: config.anonymous,
        })
    }
}

#[async_trait]
impl Authenticator for Jwt {
    fn name(&self) -> &'static str {
        "jwt"
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
        // The issuer's own `audiences` are checked later. A valid token of the issuer counts as a token for this
        // server.
        if audiences.is_some_and(|wanted| !wanted.iter().any(|one| self.0.audiences.contains(one)))
        {
            return Ok(None);
        }
        let Some(token) = Unverified::parse(token) else {
            return Ok(None);
        };
        let named = match token.text("iss") {
            issuer if issuer == GOOGLE.1 => GOOGLE.0,
            issuer => issuer,
        };
        let current = self.0.current.load_full();
        let mut issuers = current.issuers.iter();
        let Some(issuer) = issuers.find(|one| one.config.issuer.url == named) else {
            return Ok(None);
        };
        let user = issuer.user(&token, self.0.clock.now()).await;
        user.map(Some).map_err(Refused)
    }

    fn start(&self, context: &lifecycle::Context) {
        let (own, shutdown) = (self.clone(), context.token());
        context.spawn("jwt-configuration", async move {
            loop {
                own.refresh().await;
                tokio::select! {
                    () = shutdown.cancelled() => return,
                    () = tokio::time::sleep(INTERVAL) => {}
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::{keys::tests::Signer, *};
    use machinery::json::{Value, json};
    use stdx::FakeClock;

    #[derive(Default)]
    struct Documents(Mutex<HashMap<String, Value>>);

    #[async_trait]
    impl Fetch for Documents {
        async fn fetch(&self, url: &str, _: &[u8]) -> Result<Vec<u8>, String> {
            let documents = self.0.lock();
            let document = documents.get(url).ok_or("404")?;
            Ok(document.to_string().into_bytes())
        }
    }

    impl Documents {
        fn publish(&self, issuer: &str, keys: &[&Signer]) {
            let keys: Value = keys.iter().map(|key| key.jwk()).collect();
            let jwks = format!("{issuer}/keys");
            let mut documents = self.0.lock();
            let discovery = json!({"issuer": issuer, "jwks_uri": jwks.as_str()});
            documents.insert(
                format!("{issuer}{}", "/.well-known/openid-configuration"),
                discovery,
            );
            documents.insert(jwks, json!({"keys": keys}));
        }
    }

    const NOW: &str = "2026-06-01T00:00:00Z";
    const ISSUER: &str = "https://issuer.example";

    fn config(prefix: &str) -> String {
        format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt:\n- issuer: {{url: '{ISSUER}', audiences: [me]}}\n  claimMappings: {{username: {{claim: sub, prefix: '{prefix}'}}}}\n"
        )
    }

    fn claims(more: Value) -> Value {
        let now: jiff::Timestamp = NOW.parse().unwrap();
        let mut claims =
            json!({"iss": ISSUER, "aud": ["me"], "sub": "eve", "exp": now.as_second() + 60});
        for (key, value) in more.as_object().unwrap() {
            claims[key.as_str()] = value.clone();
        }
        claims
    }

    struct World {
        _directory: tempfile::TempDir,
        path: PathBuf,
        documents: Arc<Documents>,
        jwt: Jwt,
    }

    fn world() -> World {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.yaml");
        std::fs::write(&path, config("a:")).unwrap();
        let documents = Arc::new(Documents::default());
        let clock = FakeClock::at(NOW.parse().unwrap());
        let own = ["https://kubernetes.default.svc".to_owned()];
        let jwt = Jwt::open(&path, &own, &own, Arc::new(clock), documents.clone()).unwrap();
        World {
            _directory: directory,
            path,
            documents,
            jwt,
        }
    }

    #[tokio::test]
    async fn a_token_of_a_known_issuer_names_its_user() {
        let world = world();
        let key = Signer::new("one");
        let token = key.sign(&claims(json!({})));
        let early = world.jwt.token(&token, None).await.unwrap_err();
        assert_eq!(early.0, "oidc: authenticator not initialized");
        world.documents.publish(ISSUER, &[&key]);
        world.jwt.refresh().await;
        let user = world.jwt.token(&token, None).await.unwrap().unwrap();
        assert_eq!(user.name, "a:eve");
        let own = ["https://kubernetes.default.svc".to_owned()];
        let reviewed = world.jwt.token(&token, Some(&own)).await.unwrap();
        assert!(reviewed.is_some(), "a review for this server");
        let other = ["elsewhere".to_owned()];
        assert!(
            world
                .jwt
                .token(&token, Some(&other))
                .await
                .unwrap()
                .is_none()
        );
    }

    #[tokio::test]
    async fn what_is_no_valid_token_of_the_issuer_is_refused() {
        let world = world();
        let (key, stranger) = (Signer::new("one"), Signer::new("one"));
        world.documents.publish(ISSUER, &[&key]);
        world.jwt.refresh().await;
        let now: jiff::Timestamp = NOW.parse().unwrap();
        let now = now.as_second();
        for (token, why) in [
            (
                stranger.sign(&claims(json!({}))),
                "failed to verify id token signature",
            ),
            (
                key.sign(&claims(json!({"aud": "other"}))),
                "expected audience",
            ),
            (key.sign(&claims(json!({"exp": now}))), "token is expired"),
            (key.sign(&claims(json!({"exp": null}))), "token is expired"),
            (
                key.sign(&claims(json!({"nbf": now + 3600}))),
                "before the nbf",
            ),
        ] {
            let found = world.jwt.token(&token, None).await.unwrap_err();
            assert!(found.0.contains(why), "{found}");
        }
        for token in [
            "secret",
            &key.sign(&claims(json!({"iss": "https://other.example"}))),
        ] {
            assert!(
                world.jwt.token(token, None).await.unwrap().is_none(),
                "{token}"
            );
        }
    }

    #[tokio::test]
    async fn new_keys_are_fetched_when_a_token_needs_them() {
        let world = world();
        let (old, new) = (Signer::new("old"), Signer::new("new"));
        world.documents.publish(ISSUER, &[&old]);
        world.jwt.refresh().await;
        let token = |key: &Signer| key.sign(&claims(json!({})));
        assert!(world.jwt.token(&token(&old), None).await.is_ok());
        assert!(world.jwt.token(&token(&new), None).await.is_err());
        world.documents.publish(ISSUER, &[&new]);
        assert!(world.jwt.token(&token(&new), None).await.is_ok());
    }

    #[tokio::test]
    async fn the_file_is_read_again_and_a_wrong_one_replaces_nothing() {
        let world = world();
        let key = Signer::new("one");
        world.documents.publish(ISSUER, &[&key]);
        world.jwt.refresh().await;
        let name = || async {
            let token = key.sign(&claims(json!({})));
            world.jwt.token(&token, None).await.unwrap().unwrap().name
        };
        std::fs::write(&world.path, "kind: Nonsense").unwrap();
        world.jwt.refresh().await;
        assert_eq!(name().await, "a:eve");
        std::fs::write(&world.path, config("b:")).unwrap();
        world.jwt.refresh().await;
        assert_eq!(name().await, "b:eve");
        let unreachable = config("c:").replace(ISSUER, "https://gone.example");
        std::fs::write(&world.path, unreachable).unwrap();
        world.jwt.refresh().await;
        assert_eq!(name().await, "b:eve", "its issuer cannot be reached");
    }
}
