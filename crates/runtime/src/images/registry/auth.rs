//! Authentication to registries: anonymous, basic, or with a token from the registry's token
//! service.

use std::fmt;

use base64::{Engine, prelude::BASE64_STANDARD};
use cri::v1::AuthConfig;
use serde::Deserialize;
use stdx::percent;

/// The credentials of a pull. Never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    /// The user.
    pub username: String,
    /// The password.
    pub password: String,
    /// A bearer token for the registry.
    pub registry_token: String,
    /// A refresh token for the token service.
    pub identity_token: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("username", &self.username)
            .finish_non_exhaustive()
    }
}

impl From<AuthConfig> for Credentials {
    fn from(auth: AuthConfig) -> Self {
        let mut credentials = Self {
            username: auth.username,
            password: auth.password,
            registry_token: auth.registry_token,
            identity_token: auth.identity_token,
        };
        // The form of docker's configuration files: user and password in one.
        if credentials.username.is_empty()
            && let Ok(decoded) = BASE64_STANDARD.decode(auth.auth.trim())
            && let Ok(text) = String::from_utf8(decoded)
            && let Some((username, password)) = text.split_once(':')
        {
            credentials.username = username.to_owned();
            credentials.password = password.trim_end_matches('\0').to_owned();
        }
        credentials
    }
}

impl Credentials {
    /// The basic authorization header, if there are user or password.
    pub(super) fn basic(&self) -> Option<String> {
        let pair = format!("{}:{}", self.username, self.password);
        (!self.username.is_empty()).then(|| format!("Basic {}", BASE64_STANDARD.encode(pair)))
    }

    /// The form fields to exchange the refresh token, if there is one.
    pub(super) fn refresh(&self) -> Option<String> {
        (!self.identity_token.is_empty()).then(|| {
            let token = percent::encode(&self.identity_token, "");
            format!("grant_type=refresh_token&client_id=mainstay&refresh_token={token}")
        })
    }

    /// The authorization header before the registry's challenge.
    pub(super) fn eager(&self) -> Option<String> {
        (!self.registry_token.is_empty()).then(|| format!("Bearer {}", self.registry_token))
    }
}

/// A registry's authentication challenge.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    Basic,
    Bearer {
        realm: String,
        service: String,
        scope: String,
    },
}

impl Challenge {
    /// From a `WWW-Authenticate` header.
    pub(super) fn parse(header: &str) -> Option<Self> {
        let (scheme, rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let value = |name: &str| {
            let start = rest.find(&format!("{name}=\""))? + name.len() + 2;
            Some(rest[start..].split('"').next()?.to_owned())
        };
        Some(Self::Bearer {
            realm: value("realm")?,
            service: value("service").unwrap_or_default(),
            scope: value("scope").unwrap_or_default(),
        })
    }
}

/// The query of a token request.
pub(super) fn token_query(service: &str, scope: &str) -> String {
    let mut query = format!("service={}", percent::encode(service, ""));
    // The scope may be empty.
    if !scope.is_empty() {
        query += &format!("&scope={}", percent::encode(scope, ""));
    }
    query
}

/// The response of a token service.
#[derive(Deserialize)]
pub(super) struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

impl Token {
    pub(super) fn header(self) -> Option<String> {
        self.token
            .or(self.access_token)
            .map(|token| format!("Bearer {token}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_understood() {
        let bearer = r#"Bearer realm="https://a.io/token",service="reg",scope="repository:x:pull""#;
        let expected = Challenge::Bearer {
            realm: "https://a.io/token".into(),
            service: "reg".into(),
            scope: "repository:x:pull".into(),
        };
        assert_eq!(Challenge::parse(bearer), Some(expected));
        assert_eq!(
            Challenge::parse("Basic realm=\"x\""),
            Some(Challenge::Basic)
        );
        assert_eq!(Challenge::parse("Digest x"), None);
        assert_eq!(
            token_query("r g", "repository:a/b:pull"),
            "service=r%20g&scope=repository%3Aa%2Fb%3Apull"
        );
        assert_eq!(token_query("r", ""), "service=r");
    }

    #[test]
    fn credentials_come_in_several_forms_and_are_not_printed() {
        let auth = BASE64_STANDARD.encode("ada:love:lace");
        let credentials = Credentials::from(AuthConfig {
            auth,
            ..Default::default()
        });
        assert_eq!(
            (credentials.username.as_str(), credentials.password.as_str()),
            ("ada", "love:lace")
        );
        assert!(!format!("{credentials:?}").contains("lace"));
    }
}
