//! Pulling images from registries: HTTPS unless a host is configured otherwise, mirrors first,
//! layers in parallel, everything verified, and interrupted downloads continued.

mod auth;
mod http;
pub(super) mod manifest;
mod pull;

use std::{collections::BTreeMap, fmt, path::PathBuf};

pub use auth::Credentials;
use serde::{Deserialize, Serialize};

use super::Reference;
use crate::error::{Error, Result};

/// How registries are reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Registries {
    /// By host and port, as they stand in image names and in the addresses of mirrors.
    pub hosts: BTreeMap<String, Host>,
}

/// How one registry is reached.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Host {
    /// Tried before the registry itself, in this order: `https://mirror:5000`. One that begins with
    /// `http://` is reached without TLS.
    pub mirrors: Vec<String>,
    /// Without TLS. Never for a host that is not named here.
    pub plain_http: bool,
    /// Certificates of authorities to trust beside the system's, as PEM.
    pub ca: Option<String>,
    /// The same, in a file.
    pub ca_file: Option<PathBuf>,
    /// Whom to be where a pod names no one.
    pub username: String,
    /// The password of that one.
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

/// One place to try, and how.
struct Source {
    /// `https://host:port`.
    base: String,
    credentials: Credentials,
    /// Authorities to trust beside the system's.
    ca: String,
}

impl Registries {
    /// The places to try for an image, in order. What a pod names to prove itself is for the
    /// registry in the image's name alone; a mirror gets what is configured for it.
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
    fn mirrors_come_first_and_plain_http_must_be_asked_for() {
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
        // Nobody but the registry learns who the pod is.
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
