//! Pulls images from registries: by HTTPS unless configured otherwise, mirrors first, layers in
//! parallel, everything verified, and interrupted downloads resumed.

mod auth;
mod http;
pub(super) mod manifest;
mod pull;

use std::{collections::BTreeMap, fmt, path::PathBuf};

pub use auth::Credentials;
use serde::{Deserialize, Serialize};

use super::Reference;
use crate::error::{Error, Result};

/// The configuration of registries.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Registries {
    /// By host and port, as in image references and mirror URLs.
    pub hosts: BTreeMap<String, Host>,
}

/// The configuration of one registry.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Host {
    /// Tried before the registry itself, in this order: `https://mirror:5000`. `http://` means
    /// without TLS.
    pub mirrors: Vec<String>,
    /// Without TLS. Never for a host that is not configured.
    pub plain_http: bool,
    /// Additional CA certificates as PEM.
    pub ca: Option<String>,
    /// Additional CA certificates in a file.
    pub ca_file: Option<PathBuf>,
    /// The user if the pod has no credentials.
    pub username: String,
    /// The password of that user.
    pub password: String,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host")
            .field("mirrors", &self.mirrors)
            .field("plain_http", &self.plain_http)
            .field("username", &self.username)
            .finish_non_exhaustive()
    }
}

/// A registry or mirror to try.
struct Source {
    /// `https://host:port`.
    base: String,
    credentials: Credentials,
    /// Additional CA certificates.
    ca: String,
}

impl Registries {
    /// The registry and mirrors to try for an image, in order. The pod's credentials are only for
    /// the registry in the image's name; a mirror gets those configured for it.
    fn sources(&self, reference: &Reference, given: &Credentials) -> Result<Vec<Source>> {
        let none = Host::default();
        let host = self.hosts.get(&reference.registry).unwrap_or(&none);
        let mut sources = Vec::new();
        for mirror in &host.mirrors {
            let base = mirror.trim_end_matches('/').to_owned();
            let name = base
                .split_once("://")
                .map_or(base.as_str(), |(_, name)| name);
            let name = name.split('/').next().unwrap_or(name);
            let own = self.hosts.get(name).unwrap_or(&none);
            sources.push(Source {
                credentials: own.credentials(),
                ca: host.authorities()? + &own.authorities()?,
                base,
            });
        }
        let scheme = if host.plain_http { "http" } else { "https" };
        let address = match reference.registry.as_str() {
            "docker.io" => "registry-1.docker.io",
            other => other,
        };
        let credentials = if *given == Credentials::default() {
            host.credentials()
        } else {
            given.clone()
        };
        sources.push(Source {
            base: format!("{scheme}://{address}"),
            credentials,
            ca: host.authorities()?,
        });
        Ok(sources)
    }
}

impl Host {
    fn credentials(&self) -> Credentials {
        Credentials {
            username: self.username.clone(),
            password: self.password.clone(),
            ..Credentials::default()
        }
    }

    fn authorities(&self) -> Result<String> {
        let mut pem = self.ca.clone().unwrap_or_default();
        if let Some(path) = &self.ca_file {
            pem.push('\n');
            pem += &std::fs::read_to_string(path).map_err(Error::file(path))?;
        }
        Ok(pem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(registries: &Registries, name: &str) -> Vec<String> {
        let ada = Credentials {
            username: "ada".into(),
            ..Credentials::default()
        };
        let reference = Reference::parse(name).unwrap();
        let sources = registries.sources(&reference, &ada).unwrap();
        let words = sources
            .iter()
            .map(|source| format!("{} {}", source.base, source.credentials.username));
        words.collect()
    }

    #[test]
    fn mirrors_are_tried_first_and_plain_http_must_be_enabled() {
        let host = Host {
            mirrors: vec!["http://m:1/".into(), "https://other.io".into()],
            plain_http: true,
            ..Host::default()
        };
        let own = Host {
            username: "bob".into(),
            password: "secret".into(),
            ..Host::default()
        };
        assert!(!format!("{own:?}").contains("secret"));
        let registries = Registries {
            hosts: [("r.io:5".to_owned(), host), ("m:1".to_owned(), own)].into(),
        };
        // Only the registry gets the pod's credentials.
        assert_eq!(
            sources(&registries, "r.io:5/a"),
            ["http://m:1 bob", "https://other.io ", "http://r.io:5 ada"]
        );
        assert_eq!(sources(&registries, "other.io/a"), ["https://other.io ada"]);
        assert_eq!(
            sources(&registries, "busybox"),
            ["https://registry-1.docker.io ada"]
        );
    }

    #[test]
    fn a_mistyped_setting_is_refused() {
        let wrong = serde_json::from_str::<Registries>(r#"{"hosts":{"a":{"plainHTTP":true}}}"#);
        assert!(wrong.unwrap_err().to_string().contains("plainHTTP"));
    }
}
