//! The interface to the issuer of service account tokens.

use std::{sync::Arc, time::Duration};

use super::{Claims, LegacyClaims, Refused};

/// The claims of a new service account token.
#[derive(Debug, Clone)]
pub struct TokenRequest<'a> {
    pub namespace: &'a str,
    pub service_account: &'a str,
    pub uid: &'a str,
    /// Empty: the server's own audience.
    pub audiences: Vec<String>,
    pub expires_in: Duration,
    /// Kind (`Pod`, `Secret`, `Node`), name and uid of the bound object.
    pub bound: Option<(&'a str, &'a str, &'a str)>,
    /// Name and uid of the node of the bound pod.
    pub node: Option<(&'a str, &'a str)>,
}

/// A signed token.
#[derive(Debug, Clone)]
pub struct IssuedToken {
    pub token: String,
    pub audiences: Vec<String>,
    pub expires: jiff::Timestamp,
}

/// Signs service account tokens.
pub trait TokenIssuer: Send + Sync + 'static {
    fn issue(&self, request: &TokenRequest<'_>) -> Result<IssuedToken, String>;
    /// The claims of a token, if it is ours: signature, times and audience are checked, bound
    /// objects are not. Without audiences it must be for this server.
    fn verify(
        &self,
        token: &str,
        audiences: Option<&[String]>,
    ) -> Option<Result<Arc<Claims>, Refused>>;
    /// The claims of a token from a Secret, if it is ours; only signature and audience are checked.
    fn verify_legacy(
        &self,
        _token: &str,
        _audiences: Option<&[String]>,
    ) -> Option<Result<LegacyClaims, Refused>> {
        None
    }
    /// The default audiences: this server.
    fn audiences(&self) -> &[String];
    /// The document at `/.well-known/openid-configuration`.
    fn openid_configuration(&self) -> machinery::json::Value;
    /// The document at `/openid/v1/jwks`.
    fn jwks(&self) -> machinery::json::Value;
}
