//! Pulling images from registries: HTTPS unless a host is configured otherwise, mirrors first,
//! layers in parallel, everything verified, and interrupted downloads continued.

mod auth;
mod http;
pub(super) mod manifest;
mod pull;

use std::collections::BTreeMap;

pub use auth::Credentials;
use serde::{Deserialize, Serialize};

use super::Reference;

/// How registries are reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Registries {
    /// By host and port, as they stand in image names.
    pub hosts: BTreeMap<String, Host>,
}

/// How one registry is reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Host {
    /// Tried before the registry itself, in this order: `https://mirror:5000`. One that begins with
    /// `http://` is reached without TLS.
    pub mirrors: Vec<String>,
    /// Without TLS. Never for a host that is not named here.
    pub plain_http: bool,
    /// Certificates of authorities to trust beside the system's, as PEM.
    pub ca: Option<String>,
}

impl Registries {
    /// The addresses to try for an image, in order.
    fn bases(&self, reference: &Reference) -> Vec<String> {
        let host = self.hosts.get(&reference.registry);
        let mut bases = host.map(|host| host.mirrors.clone()).unwrap_or_default();
        let scheme = if host.is_some_and(|host| host.plain_http) {
            "http"
        } else {
            "https"
        };
        let address = match reference.registry.as_str() {
            "docker.io" => "registry-1.docker.io",
            other => other,
        };
        bases.push(format!("{scheme}://{address}"));
        bases
            .iter()
            .map(|base| base.trim_end_matches('/').to_owned())
            .collect()
    }

    /// Authorities to trust for an image's registry and its mirrors.
    fn ca(&self, reference: &Reference) -> Option<&str> {
        self.hosts.get(&reference.registry)?.ca.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrors_come_first_and_plain_http_must_be_asked_for() {
        let host = Host {
            mirrors: vec!["http://m:1/".into()],
            plain_http: true,
            ca: None,
        };
        let registries = Registries {
            hosts: [("r.io:5".to_owned(), host)].into(),
        };
        let bases = |name: &str| registries.bases(&Reference::parse(name).unwrap());
        assert_eq!(bases("r.io:5/a"), ["http://m:1", "http://r.io:5"]);
        assert_eq!(bases("other.io/a"), ["https://other.io"]);
        assert_eq!(bases("busybox"), ["https://registry-1.docker.io"]);
    }
}
