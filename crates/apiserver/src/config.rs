//! What a server is built from.

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

use crate::{ApiServer, Endings, Registry, Store, admission, audit};

/// A server that does not run yet.
pub struct Config {
    /// Where HTTPS listens. Port 0 takes a free one: see [`ApiServer::address`].
    pub listen: SocketAddr,
    /// Where others reach it: the endpoint of the `kubernetes` Service.
    pub advertise: SocketAddr,
    /// The name of this server when there may be others over the same store: the `kubernetes` Service
    /// leads to all of them. Without one this server is alone.
    pub server_name: Option<String>,
    /// The serving certificate, and the client CA in its verifier.
    pub tls: Arc<rustls::ServerConfig>,
    /// How kubelets and backends behind proxies are called: the client certificate of the API
    /// server and the CA of the kubelets.
    pub kubelet_tls: Option<Arc<rustls::ClientConfig>>,
    /// The client certificate that is shown to aggregated API servers, which believe its holder who the user is.
    pub front_proxy: Option<Arc<dyn rustls::client::ResolvesClientCert>>,
    /// The networks that cluster addresses come from, as `10.43.0.0/16`; the first is primary.
    pub service_cidrs: Vec<(IpAddr, u8)>,
    pub node_ports: RangeInclusive<u16>,
    /// PEM of the client CA, published in `extension-apiserver-authentication`.
    pub client_ca: String,
    /// PEM of the front proxy's CA, published beside it.
    pub front_proxy_ca: String,
    /// Where services' states come from, for `/readyz`.
    pub health: lifecycle::Health,
    pub clock: Arc<dyn Clock>,
    /// Where generated names get their ends.
    pub endings: Arc<dyn Endings>,
    pub limits: Limits,
    /// A file of bearer tokens that an operator keeps: token, user, uid and groups in each line.
    pub token_auth_file: Option<PathBuf>,
    /// Authentication and authorization beside what every cluster has.
    pub access: AccessOptions,
    /// Which requests are written down, and where; `None`: none.
    pub audit: Option<audit::Config>,
    /// Which admission plugins run beside the usual ones, and what they are told.
    pub admission: admission::Options,
    /// Signs service account tokens; without it `serviceaccounts/token` is refused.
    pub tokens: Option<Arc<dyn TokenIssuer>>,
}

/// Who else may be known, and who else is asked whether they may.
#[derive(Debug, Clone, Default)]
pub struct AccessOptions {
    /// A file with an `AuthenticationConfiguration`.
    pub authentication_config: Option<PathBuf>,
    /// A webhook that knows bearer tokens.
    pub token_webhook: Option<TokenWebhook>,
    pub authorization: authz::Options,
}

/// Bounds on what clients may use.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of a request body.
    pub body: usize,
    /// Requests at work at the same time, without watches and other long ones.
    pub in_flight: usize,
    /// Longest time for a request that is no long one.
    pub deadline: Duration,
    /// How long a client may take to send the head of its next request: a little longer than clients
    /// keep idle connections, so that they hang up first.
    pub idle: Duration,
    /// Bytes of answers that are made and not taken by their clients yet, all together.
    pub unsent: usize,
    /// How long a client may take nothing of its answer.
    pub stall: Duration,
    /// How long a watch lasts at least when the client names no time; at most twice this.
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

/// What can keep a server from being built or from running.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, std::io::Error),
    #[error("{0}")]
    Invalid(String),
    #[error(transparent)]
    Admission(#[from] admission::Error),
    #[error("cannot make the first objects: {0}")]
    Bootstrap(machinery::Status),
}

impl Config {
    /// A server over a store. The store's codec must have been made with the same registry.
    pub fn build(self, store: Store, registry: Arc<Registry>) -> Result<Arc<ApiServer>, Error> {
        ApiServer::new(self, store, registry)
    }
}
