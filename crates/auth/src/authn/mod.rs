//! Authentication. Authenticators are tried in the order of [`chain`]; the first that recognises
//! the caller decides, and one that finds invalid credentials rejects the request.

pub mod bearer;
mod bootstrap;
mod certificate;
mod issuer;
mod jwt;
pub mod legacy_tokens;
mod request_header;
mod service_account;
mod static_tokens;
mod webhook;

use std::{net::SocketAddr, path::Path, sync::Arc};

use async_trait::async_trait;
use http::HeaderMap;
use pki::Identifier;
use rustls::pki_types::CertificateDer;

use registry::Reader;
use request::User;
use stdx::Clock;

pub use bootstrap::BootstrapTokens;
pub use certificate::Certificate;
pub use issuer::{IssuedToken, TokenIssuer, TokenRequest};
pub use jwt::Jwt;
pub use legacy_tokens::LegacyClaims;
pub use request_header::RequestHeader;
pub use service_account::{Claims, Private, Reference, ServiceAccounts, Tokens};
pub use static_tokens::StaticTokens;
pub use webhook::TokenWebhook;

/// The credentials of a caller.
#[derive(Debug, Clone, Copy)]
pub struct Credentials<'a> {
    pub headers: &'a HeaderMap,
    /// The TLS client certificate chain, already verified against the client CA; empty without one.
    pub certificates: &'a [CertificateDer<'static>],
    pub remote: Option<SocketAddr>,
}

/// The credentials are invalid. Answered with 401.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

/// One authentication method.
#[async_trait]
pub trait Authenticator: Send + Sync + 'static {
    /// The name in logs.
    fn name(&self) -> &'static str;
    /// The user, or `None` if these credentials are not of this authenticator's type.
    async fn authenticate(&self, credentials: &Credentials<'_>) -> Result<Option<User>, Refused>;
    /// The user, if it is known without reading or computing anything; called for callers without a
    /// certificate. `None` decides nothing.
    fn at_once(&self, _credentials: &Credentials<'_>) -> Option<Arc<User>> {
        None
    }
    /// The user of a bearer token, for one of these audiences (empty: this server).
    async fn token(
        &self,
        _token: &str,
        _audiences: Option<&[String]>,
    ) -> Result<Option<User>, Refused> {
        Ok(None)
    }
    /// Starts background work (caches, key reloads).
    fn start(&self, _context: &lifecycle::Context) {}
}

/// The configuration of the authenticators.
pub struct Options<'a> {
    /// PEM of the client CA; empty: no client certificates.
    pub client_ca: &'a str,
    /// PEM of the front proxy's CA.
    pub front_proxy_ca: &'a str,
    /// The static token file.
    pub token_auth_file: Option<&'a Path>,
    /// The issuers of `--authentication-config`.
    pub jwt: Option<&'a Jwt>,
    /// The webhook of `--authentication-token-webhook-config-file`.
    pub token_webhook: Option<&'a TokenWebhook>,
    /// Verifies service account tokens.
    pub tokens: Option<&'a Arc<dyn TokenIssuer>>,
    pub clock: &'a Arc<dyn Clock>,
}

/// The authenticators in order.
pub fn chain(
    options: &Options<'_>,
    reader: &Reader,
    uses: &Arc<legacy_tokens::Uses>,
) -> Result<Vec<Arc<dyn Authenticator>>, String> {
    let mut chain: Vec<Arc<dyn Authenticator>> = Vec::new();
    // Without a client CA there is no authentication by certificate.
    if !options.client_ca.is_empty() {
        let identifier = Identifier::new(options.client_ca, options.front_proxy_ca)
            .map_err(|error| format!("client CA: {error}"))?;
        let identifier = Arc::new(identifier);
        chain.push(Arc::new(RequestHeader::new(
            identifier.clone(),
            options.clock.clone(),
        )));
        chain.push(Arc::new(Certificate::new(
            identifier,
            options.clock.clone(),
        )));
    }
    if let Some(path) = options.token_auth_file {
        let tokens = StaticTokens::load(path)
            .map_err(|why| format!("token file {}: {why}", path.display()))?;
        chain.push(Arc::new(tokens));
    }
    if let Some(tokens) = options.tokens {
        let (tokens, clock) = (tokens.clone(), options.clock.clone());
        chain.push(Arc::new(ServiceAccounts::new(
            tokens,
            reader.clone(),
            clock,
            uses.clone(),
        )));
    }
    chain.push(Arc::new(BootstrapTokens::new(
        reader.clone(),
        options.clock.clone(),
    )));
    if let Some(jwt) = options.jwt {
        chain.push(Arc::new(jwt.clone()));
    }
    if let Some(webhook) = options.token_webhook {
        let own = options.tokens.map_or(&[][..], |tokens| tokens.audiences());
        chain.push(Arc::new(webhook::Webhook::new(webhook, own)?));
    }
    Ok(chain)
}

/// TokenReview: the user of a token, by the first authenticator that recognises it. Others may refuse it: a service
/// account's authenticator does not know the keys of other issuers of JWTs.
pub async fn review(
    chain: &[Arc<dyn Authenticator>],
    token: &str,
    audiences: &[String],
) -> Result<User, Refused> {
    let audiences = (!audiences.is_empty()).then_some(audiences);
    let mut reasons = vec!["invalid bearer token".to_owned()];
    for authenticator in chain {
        match authenticator.token(token, audiences).await {
            Ok(Some(user)) => return Ok(user),
            Ok(None) => {}
            Err(Refused(why)) if reasons.contains(&why) => {}
            Err(Refused(why)) => reasons.push(why),
        }
    }
    Err(Refused(match reasons.as_slice() {
        [only] => only.clone(),
        several => format!("[{}]", several.join(", ")),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed(Result<Option<&'static str>, &'static str>);

    #[async_trait]
    impl Authenticator for Fixed {
        fn name(&self) -> &'static str {
            "fixed"
        }

        async fn authenticate(&self, _: &Credentials<'_>) -> Result<Option<User>, Refused> {
            Ok(None)
        }

        async fn token(&self, _: &str, _: Option<&[String]>) -> Result<Option<User>, Refused> {
            let found = self.0.map(|name| name.map(|name| User::new(name, [""; 0])));
            found.map_err(|why| Refused(why.to_owned()))
        }
    }

    #[tokio::test]
    async fn a_token_that_one_authenticator_refuses_is_reviewed_by_the_others() {
        const INVALID: &str = "invalid bearer token";
        for (chain, expected) in [
            (&[][..], Err(INVALID)),
            (&[Ok(None), Err(INVALID)], Err(INVALID)),
            (&[Err("expired"), Ok(Some("ada"))], Ok("ada")),
            (&[Ok(Some("ada")), Ok(Some("bob"))], Ok("ada")),
            (
                &[Err("expired"), Ok(None), Err("unknown key"), Err("expired")],
                Err("[invalid bearer token, expired, unknown key]"),
            ),
        ] {
            let chain: Vec<Arc<dyn Authenticator>> = chain
                .iter()
                .map(|one| Arc::new(Fixed(*one)) as Arc<dyn Authenticator>)
                .collect();
            let reviewed = review(&chain, "token", &[]).await;
            let reviewed = reviewed.map(|user| user.name.to_string());
            let expected = expected.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(reviewed.map_err(|Refused(why)| why), expected);
        }
    }
}
