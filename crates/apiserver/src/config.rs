//! The configuration a server is built from.

use std::{
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use stdx::Clock;

use auth::{
    authn::{TokenIssuer, TokenWebhook},
    authz,
};

use crate::{ApiServer, NameSuffixes, Registry, Store, admission, audit};

/// The configuration of a server.
pub struct Config {
    /// The address that HTTPS listens on. Port 0 takes a free one: see [`ApiServer::address`].
    pub listen: SocketAddr,
    /// The address at which clients reach the server: the endpoint of the `kubernetes` Service.
    pub advertise: SocketAddr,
    /// The name of this server if there may be others over the same store; the `kubernetes` Service
    /// then has the addresses of all of them. `None`: this server is the only one.
    pub server_name: Option<String>,
    /// The serving certificate, and the client CA in its verifier.
    pub tls: Arc<rustls::ServerConfig>,
    /// The client TLS configuration for kubelets and proxied backends: the API server's client
    /// certificate and the kubelets' CA.
    pub kubelet_tls: Option<Arc<rustls::ClientConfig>>,
    /// The client certificate shown to aggregated API servers; they trust its holder's user
    /// headers.
    pub front_proxy: Option<Arc<dyn rustls::client::ResolvesClientCert>>,
    /// The Service networks, as `10.43.0.0/16`; the first is primary.
    pub service_cidrs: Vec<(IpAddr, u8)>,
    pub node_ports: RangeInclusive<u16>,
    /// PEM of the client CA, published in `extension-apiserver-authentication`.
    pub client_ca: String,
    /// PEM of the front proxy's CA, published in the same ConfigMap.
    pub front_proxy_ca: String,
    /// The health of this process's services, for `/readyz`.
    pub health: lifecycle::Health,
    pub clock: Arc<dyn Clock>,
    /// The generator of name suffixes for `generateName`.
    pub name_suffixes: Arc<dyn NameSuffixes>,
    pub limits: Limits,
    /// The static token file: token, user, uid and groups in each line.
    pub token_auth_file: Option<PathBuf>,
    /// Authenticators and authorizers in addition to those of every cluster.
    pub access: AccessOptions,
    /// The audit log; `None`: no requests are logged.
    pub audit: Option<audit::Config>,
    /// Which admission plugins run beside the default ones, and their configuration.
    pub admission: admission::Options,
    /// Signs service account tokens; without it `serviceaccounts/token` is rejected.
    pub tokens: Option<Arc<dyn TokenIssuer>>,
}

/// Additional authenticators and authorizers.
#[derive(Debug, Clone, Default)]
pub struct AccessOptions {
    /// A file with an `AuthenticationConfiguration`.
    pub authentication_config: Option<PathBuf>,
    /// A webhook that authenticates bearer tokens.
    pub token_webhook: Option<TokenWebhook>,
    pub authorization: authz::Options,
}

/// Bounds on what clients may use.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Maximum bytes of a request body.
    pub body: usize,
    /// Maximum number of concurrent requests, without long-running ones.
    pub in_flight: usize,
    /// Maximum duration of a request that is not long-running.
    pub deadline: Duration,
    /// How long a client may take to send the head of its next request: a little longer than
    /// clients keep idle connections, so that clients close first.
    pub idle: Duration,
    /// Maximum bytes of responses that clients have not read yet, over all connections.
    pub unsent: usize,
    /// How long a client may go without reading any of its response.
    pub stall: Duration,
    /// Minimum duration of a watch without `timeoutSeconds`; the maximum is twice this.
    pub watch: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body: 3 * 1024 * 1024,
            in_flight: 600,
            deadline: Duration::from_secs(60),
            idle: Duration::from_secs(100),
            unsent: 128 << 20,
            stall: Duration::from_secs(30),
            watch: Duration::from_secs(1800),
        }
    }
}

/// Why a server could not be built or stopped running.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, std::io::Error),
    #[error("{0}")]
    Invalid(String),
    #[error(transparent)]
    Admission(#[from] admission::Error),
    #[error("cannot create the initial objects: {0}")]
    Bootstrap(machinery::Status),
}

impl Config {
    /// Builds a server over a store. The store's codec must use the same registry.
    pub fn build(self, store: Store, registry: Arc<Registry>) -> Result<Arc<ApiServer>, Error> {
        ApiServer::new(self, store, registry)
    }
}
