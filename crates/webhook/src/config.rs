//! The target of a webhook from its `clientConfig`.

use base64::{Engine, engine::general_purpose::STANDARD};
use http::Uri;
use machinery::Value;

const HTTPS: u16 = 443;

/// A `clientConfig`. Equal ones share connections.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct ClientConfig {
    pub url: Option<String>,
    pub service: Option<ServiceReference>,
    /// PEM of CAs; the system's CAs if empty.
    pub ca_bundle: Vec<u8>,
}

/// A port of a Service.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServiceReference {
    pub namespace: String,
    pub name: String,
    pub path: String,
    pub port: u16,
}

/// The resolved target.
pub(crate) struct Target {
    /// `https://host[:port]/path`
    pub(crate) url: String,
    /// The required name of the certificate.
    pub(crate) server_name: String,
    /// The key for credentials.
    pub(crate) host_and_port: String,
    pub(crate) is_loopback: bool,
}

impl ClientConfig {
    /// Parses a `clientConfig`.
    pub fn read(config: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let service = &config["service"];
        let service = service.is_object().then(|| ServiceReference {
            namespace: text(&service["namespace"]),
            name: text(&service["name"]),
            path: text(&service["path"]),
            port: service["port"]
                .as_u64()
                .and_then(|port| port.try_into().ok())
                .filter(|port| *port != 0)
                .unwrap_or(HTTPS),
        });
        let bundle = config["caBundle"].as_str().unwrap_or_default();
        let bundle = STANDARD.decode(bundle).unwrap_or_default();
        let is_blank = bundle.iter().all(u8::is_ascii_whitespace);
        Self {
            url: config["url"].as_str().map(str::to_owned),
            service,
            ca_bundle: if is_blank { Vec::new() } else { bundle },
        }
    }

    pub(crate) fn target(&self) -> Result<Target, String> {
        if let Some(service) = &self.service {
            let server_name = format!("{}.{}.svc", service.name, service.namespace);
            let host_and_port = format!("{server_name}:{}", service.port);
            let path = match service.path.as_str() {
                path if path.starts_with('/') => path.to_owned(),
                path => format!("/{path}"),
            };
            return Ok(Target {
                url: format!("https://{host_and_port}{path}"),
                server_name,
                host_and_port,
                is_loopback: false,
            });
        }
        let url = self.url.as_deref().unwrap_or_default();
        if url.is_empty() {
            return Err("webhook configuration must have either service or URL".to_owned());
        }
        let uri: Uri = url
            .parse()
            .map_err(|error| format!("Unparsable URL: {error}"))?;
        let host = uri.host().ok_or("Unparsable URL: it names no host")?;
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let path = match uri.path() {
            "" => "/",
            path => path,
        };
        let address: Result<std::net::IpAddr, _> = host.parse();
        let is_loopback = host.eq_ignore_ascii_case("localhost")
            || address.is_ok_and(|address| address.is_loopback());
        let authority = uri.authority().map(|authority| authority.as_str());
        let authority = authority.unwrap_or_default();
        let after_host = authority.rsplit_once(':').map(|(_, port)| port);
        let port = after_host.filter(|port| !port.is_empty() && !port.ends_with(']'));
        if let Some(port) = port.filter(|_| uri.port_u16().is_none()) {
            return Err(format!("dial tcp: address {port}: invalid port"));
        }
        Ok(Target {
            url: format!("https://{authority}{path}"),
            host_and_port: match uri.port_u16() {
                Some(_) => authority.to_owned(),
                None => format!("{authority}:{HTTPS}"),
            },
            server_name: host,
            is_loopback,
        })
    }
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;

    #[test]
    fn a_service_is_known_by_its_name_in_the_cluster() {
        let config = ClientConfig::read(
            &json!({"service": {"namespace": "a", "name": "b", "path": "/c"},
            "caBundle": "Cg=="}),
        );
        let target = config.target().unwrap();
        assert_eq!(target.url, "https://b.a.svc:443/c");
        assert_eq!(target.server_name, "b.a.svc");
        assert!(config.ca_bundle.is_empty(), "blank is as good as none");
    }

    #[test]
    fn a_port_that_cannot_be_is_not_taken_for_another() {
        for url in ["https://a.b:99999/x", "https://[::1]:70000"] {
            let refused = ClientConfig::read(&json!({"url": url})).target();
            assert!(
                refused.is_err_and(|why| why.ends_with("invalid port")),
                "{url}"
            );
        }
        let plain = ClientConfig::read(&json!({"url": "https://[::1]"}));
        assert_eq!(plain.target().unwrap().host_and_port, "[::1]:443");
    }

    #[test]
    fn a_url_keeps_its_port_and_its_path() {
        for (url, expected, host, is_loopback) in [
            (
                "https://127.0.0.1:8443/x",
                "https://127.0.0.1:8443/x",
                "127.0.0.1",
                true,
            ),
            ("https://localhost", "https://localhost/", "localhost", true),
            ("https://[::1]:1/a/", "https://[::1]:1/a/", "::1", true),
            (
                "https://example.com",
                "https://example.com/",
                "example.com",
                false,
            ),
        ] {
            let target = ClientConfig::read(&json!({"url": url})).target().unwrap();
            assert_eq!(target.url, expected);
            assert_eq!(
                (target.server_name.as_str(), target.is_loopback),
                (host, is_loopback)
            );
        }
        assert!(ClientConfig::default().target().is_err());
    }
}
