//! The state that all requests share, built once from the configuration.

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
};

use aggregator::Aggregator;
use auth::{
    authn::{self, Authenticator, Jwt},
    authz::{self, Authorizer, Rbac},
};
use connect::{Backends, Streams};
use flowcontrol::Fairness;
use http_server::HttpServer;
use request::heavy::Slots;
use service_allocator::Allocator;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::{
    Config, Error, Reader, Registry, Store,
    admission::{self, Plugin, WebhookShared},
    audit::Audit,
    discovery,
    metrics::Metrics,
    server::Diagnose,
    started::Started,
    write::KeyQueues,
};

/// The state that all requests share.
pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) store: Store,
    pub(crate) registry: Arc<Registry>,
    pub(crate) reader: Reader,
    pub(crate) access: Access,
    pub(crate) admission: Vec<Arc<dyn Plugin>>,
    /// Calls the webhooks that convert custom resources.
    pub(crate) conversion: Arc<webhook::Client>,
    /// The API servers behind APIServices.
    pub(crate) aggregator: Arc<Aggregator>,
    /// The kubelets, pods and services that requests are passed on to.
    pub(crate) backends: Arc<Backends>,
    pub(crate) fairness: Arc<Fairness>,
    /// Allocates addresses and ports of Services.
    pub(crate) service_allocator: Arc<Allocator>,
    pub(crate) openapi: Arc<openapi::Documents>,
    pub(crate) discovery: discovery::DiscoveryCache,
    pub(crate) audit: Option<Audit>,
    pub(crate) metrics: Metrics,
    /// Usage samples of nodes and pods.
    pub(crate) usage: Arc<metrics_api::Samples>,
    /// Diagnoses of unschedulable pods, once a scheduler is connected.
    pub(crate) diagnoses: OnceLock<Arc<dyn Diagnose>>,
    pub(crate) tasks: Tasks,
    /// The port that the server listens on, once known.
    pub(crate) port: OnceLock<u16>,
    /// The address at which clients reach the server now.
    pub(crate) advertised: watch::Sender<SocketAddr>,
    /// Which parts of the startup are done.
    pub(crate) started: Started,
    /// Connections of clients, and what they may cost.
    pub(crate) http: Arc<HttpServer>,
    /// Bounds the processor share of heavy requests.
    pub(crate) slots: Slots,
}

/// Authentication and authorization.
pub(crate) struct Access {
    pub(crate) authenticators: Vec<Arc<dyn Authenticator>>,
    /// The JWT issuers and the anonymous access of the `AuthenticationConfiguration`, if there is one.
    pub(crate) jwt: Option<Jwt>,
    /// Tokens in Secrets that were used.
    pub(crate) legacy_uses: Arc<authn::legacy_tokens::Uses>,
    pub(crate) authorizers: Vec<Arc<dyn Authorizer>>,
    /// The authorizer that can also list what a user may do.
    pub(crate) rbac: Rbac,
}

/// Tasks that outlive their request's future.
#[derive(Default)]
pub(crate) struct Tasks {
    /// Writes in progress; they end even when their client is gone, and shutdown waits for them.
    pub(crate) writes: TaskTracker,
    /// The order of conflicting writes.
    pub(crate) key_queues: KeyQueues,
}

impl Core {
    /// The address at which clients reach the server now.
    pub(crate) fn advertise(&self) -> SocketAddr {
        *self.advertised.borrow()
    }

    pub(crate) fn new(
        config: Config,
        store: Store,
        registry: Arc<Registry>,
    ) -> Result<Self, Error> {
        let reader = Reader::new(store.clone(), registry.clone());
        let access = Access::new(&config, &reader)?;
        let audit = config
            .audit
            .as_ref()
            .map(|audit| Audit::open(audit, config.clock.clone()))
            .transpose()
            .map_err(|why| Error::Invalid(format!("audit: {why}")))?;
        let limits = &config.limits;
        let (idle, unsent, stall) = (limits.idle, limits.unsent, limits.stall);
        let http = HttpServer::new(config.tls.clone(), idle, unsent, stall);
        let metrics = Metrics::new(&http);
        let fairness = Fairness::new(limits.in_flight, limits.deadline, &metrics.fairness);
        let service_allocator = Allocator {
            store: store.clone(),
            reader: reader.clone(),
            clock: config.clock.clone(),
            cidrs: config.service_cidrs.clone(),
            node_ports: config.node_ports.clone(),
        };
        let webhooks = WebhookShared {
            reader: reader.clone(),
            authorizers: access.authorizers.as_slice().into(),
            metrics: metrics.webhooks.clone(),
        };
        let services = Arc::new(admission::Endpoints::new(reader.clone()));
        let aggregator = Aggregator::new(services.clone(), config.front_proxy.clone());
        Ok(Self {
            admission: admission::chain(
                &config.admission,
                &reader,
                &access.rbac,
                &webhooks,
                &metrics.policies,
            )?,
            conversion: Arc::new(webhook::Client::new(
                services,
                webhook::Credentials::default(),
            )),
            aggregator: Arc::new(aggregator),
            access,
            audit,
            backends: Arc::new(Backends {
                reader: reader.clone(),
                kubelet_tls: config.kubelet_tls.clone(),
                streams: Streams {
                    tasks: http.streams.clone(),
                    stopping: http.stopping.clone(),
                },
            }),
            fairness: Arc::new(fairness),
            service_allocator: Arc::new(service_allocator),
            metrics,
            usage: Arc::new(metrics_api::Samples::new(config.clock.clone())),
            http,
            slots: Slots::default(),
            started: Started::default(),
            openapi: Arc::default(),
            discovery: discovery::DiscoveryCache::default(),
            diagnoses: OnceLock::new(),
            port: OnceLock::new(),
            advertised: watch::Sender::new(config.advertise),
            tasks: Tasks::default(),
            config,
            store,
            registry,
            reader,
        })
    }
}

impl Access {
    fn new(config: &Config, reader: &Reader) -> Result<Self, Error> {
        let rbac = Rbac::new(reader.clone());
        let legacy_uses = Arc::default();
        let jwt = config.access.authentication_config.as_deref();
        let jwt = jwt
            .map(|path| Jwt::load(path, config.tokens.as_ref(), config.clock.clone()))
            .transpose()
            .map_err(|why| Error::Invalid(format!("authentication configuration {why}")))?;
        let authorizers = authz::chain(&config.access.authorization, reader, &rbac)
            .map_err(|why| Error::Invalid(format!("authorization: {why}")))?;
        let options = authn::Options {
            client_ca: &config.client_ca,
            front_proxy_ca: &config.front_proxy_ca,
            token_auth_file: config.token_auth_file.as_deref(),
            jwt: jwt.as_ref(),
            token_webhook: config.access.token_webhook.as_ref(),
            tokens: config.tokens.as_ref(),
            clock: &config.clock,
        };
        let authenticators = authn::chain(&options, reader, &legacy_uses);
        Ok(Self {
            authenticators: authenticators.map_err(Error::Invalid)?,
            legacy_uses,
            authorizers,
            jwt,
            rbac,
        })
    }
}
