//! One OpenID Connect issuer: fetches its discovery document and its keys over HTTPS, and verifies its tokens.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwapOption;
use jiff::Timestamp;
use machinery::json::{self, Value};
use request::User;
use tokio::sync::Mutex;

use super::{
    claims::Mapper,
    config::IssuerConfig,
    keys::{Keys, Unverified},
};

const WELL_KNOWN: &str = "/.well-known/openid-configuration";
const FETCH: Duration = Duration::from_secs(30);
const LARGEST_DOCUMENT: usize = 1 << 20;
/// The tolerated clock skew in seconds: an issuer's clock may be this far ahead of this server's.
const LEEWAY: i64 = 5 * 60;

/// Fetches a document over HTTPS; tests replace it.
#[async_trait::async_trait]
pub(super) trait Fetch: Send + Sync + 'static {
    async fn fetch(&self, url: &str, authorities: &[u8]) -> Result<Vec<u8>, String>;
}

/// Fetches over the network.
pub(super) struct Network;

#[async_trait::async_trait]
impl Fetch for Network {
    async fn fetch(&self, url: &str, authorities: &[u8]) -> Result<Vec<u8>, String> {
        let answer = webhook::get(url, authorities, None, FETCH, LARGEST_DOCUMENT).await;
        answer
            .map(|answer| answer.body.to_vec())
            .map_err(|failure| failure.message)
    }
}

pub(super) struct Issuer {
    pub(super) config: IssuerConfig,
    mapper: Mapper,
    fetch: Arc<dyn Fetch>,
    /// The URL of the JWKS; `None` until the discovery document was fetched.
    discovered: ArcSwapOption<String>,
    keys: ArcSwapOption<Keys>,
    /// Serializes fetches of keys: a request that waited uses the keys that the previous fetch stored.
    fetching: Mutex<()>,
}

impl Issuer {
    pub(super) fn new(config: &IssuerConfig, fetch: Arc<dyn Fetch>) -> Result<Self, String> {
        Ok(Self {
            mapper: Mapper::new(config)?,
            config: config.clone(),
            fetch,
            discovered: ArcSwapOption::empty(),
            keys: ArcSwapOption::empty(),
            fetching: Mutex::new(()),
        })
    }

    pub(super) fn is_discovered(&self) -> bool {
        self.discovered.load().is_some()
    }

    /// Fetches the discovery document and stores the URL of the JWKS that it names.
    pub(super) async fn discover(&self) -> Result<(), String> {
        let issuer = &self.config.issuer;
        let url = match issuer.discovery_url.as_str() {
            "" => format!("{}{WELL_KNOWN}", issuer.url.trim_end_matches('/')),
            url => url.to_owned(),
        };
        let document = self.get(&url).await?;
        let document: Value = json::from_slice(&document).map_err(|error| {
            format!("oidc: failed to decode provider discovery object: {error}")
        })?;
        let named = document["issuer"].as_str().unwrap_or_default();
        if named != issuer.url {
            return Err(format!(
                "oidc: issuer URL provided to client ({:?}) did not match the issuer URL returned by provider ({named:?})",
                issuer.url
            ));
        }
        match document["jwks_uri"].as_str() {
            Some(url) if !url.is_empty() => self.discovered.store(Some(Arc::new(url.to_owned()))),
            _ => return Err("provider did not return JWKS URL".to_owned()),
        }
        Ok(())
    }

    async fn get(&self, url: &str) -> Result<Vec<u8>, String> {
        let authorities = self.config.issuer.certificate_authority.as_bytes();
        self.fetch.fetch(url, authorities).await
    }

    /// Verifies a token that names this issuer, and returns its user.
    pub(super) async fn user(
        &self,
        token: &Unverified<'_>,
        now: Timestamp,
    ) -> Result<User, String> {
        let url = self.discovered.load_full();
        let url = url.ok_or("oidc: authenticator not initialized")?;
        check_times_and_audience(token, &self.config.issuer.audiences, now)
            .map_err(|why| format!("oidc: verify token: {why}"))?;
        let known = self.keys.load_full();
        let is_signed = |keys: &Option<Arc<Keys>>| {
            let keys = keys.as_ref();
            keys.is_some_and(|keys| keys.signed(token))
        };
        if !is_signed(&known) {
            let newer = self.newer_keys(known.as_ref(), &url).await;
            let newer = newer.map_err(|why| {
                format!("oidc: verify token: failed to verify signature: fetching keys {why}")
            })?;
            if !is_signed(&newer) {
                let why = "oidc: verify token: failed to verify signature: failed to verify id token signature";
                return Err(why.to_owned());
            }
        }
        self.mapper.user(&token.claims)
    }

    /// Keys that are newer than `known`. Concurrent requests share one fetch.
    async fn newer_keys(
        &self,
        known: Option<&Arc<Keys>>,
        url: &str,
    ) -> Result<Option<Arc<Keys>>, String> {
        let _one = self.fetching.lock().await;
        let current = self.keys.load_full();
        let is_same = match (&current, known) {
            (Some(current), Some(known)) => Arc::ptr_eq(current, known),
            (current, known) => current.is_none() && known.is_none(),
        };
        if !is_same {
            return Ok(current);
        }
        let keys = Keys::parse(&self.get(url).await?)?;
        self.keys.store(Some(Arc::new(keys)));
        Ok(self.keys.load_full())
    }
}

fn check_times_and_audience(
    token: &Unverified<'_>,
    wanted: &[String],
    now: Timestamp,
) -> Result<(), String> {
    let found: Vec<&str> = match token.claims.get("aud") {
        Some(Value::String(one)) => vec![one.as_str()],
        Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    if !wanted.iter().any(|one| found.contains(&one.as_str())) {
        return Err(format!(
            "oidc: expected audience in {wanted:?} got {found:?}"
        ));
    }
    let time = |claim: &str| token.claims.get(claim).and_then(Value::as_f64);
    let now = now.as_second();
    match time("exp") {
        Some(expires) if expires > now as f64 => {}
        _ => return Err("oidc: token is expired".to_owned()),
    }
    if time("nbf").is_some_and(|from| ((now + LEEWAY) as f64) < from) {
        return Err("oidc: current time is before the nbf (not before) time".to_owned());
    }
    Ok(())
}
