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

/// The state that all requests share, by what it is for.
pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) storage: Storage,
    pub(crate) access: Access,
    pub(crate) traffic: Traffic,
    pub(crate) writes: Writes,
    pub(crate) remote: Remote,
    pub(crate) documents: Documents,
    pub(crate) observations: Observations,
    pub(crate) audit: Option<Audit>,
    pub(crate) metrics: Metrics,
    pub(crate) state: ServerState,
}

/// Stored objects and the kinds that are served.
pub(crate) struct Storage {
    pub(crate) store: Store,
    pub(crate) registry: Arc<Registry>,
    pub(crate) reader: Reader,
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

/// Connections, and how many requests run at the same time.
pub(crate) struct Traffic {
    /// Connections of clients, and what they may cost.
    pub(crate) http: Arc<HttpServer>,
    pub(crate) fairness: Arc<Fairness>,
    /// Bounds the processor share of heavy requests.
    pub(crate) slots: Slots,
}

/// What writes pass.
pub(crate) struct Writes {
    pub(crate) admission: Vec<Arc<dyn Plugin>>,
    /// Allocates addresses and ports of Services.
    pub(crate) service_allocator: Arc<Allocator>,
    /// The order of conflicting writes.
    pub(crate) key_queues: KeyQueues,
    /// Writes in progress; they end even when their client is gone, and shutdown waits for them.
    pub(crate) tasks: TaskTracker,
}

/// Other servers that requests are passed on to, or that this server calls.
pub(crate) struct Remote {
    /// The API servers behind APIServices.
    pub(crate) aggregator: Arc<Aggregator>,
    /// The kubelets, pods and Services behind `log`, `exec`, `proxy` and the like.
    pub(crate) backends: Arc<Backends>,
    /// Calls the webhooks that convert custom resources.
    pub(crate) conversion: Arc<webhook::Client>,
}

/// Documents that describe the API, made when they are requested.
#[derive(Default)]
pub(crate) struct Documents {
    pub(crate) openapi: Arc<openapi::Documents>,
    pub(crate) discovery: discovery::DiscoveryCache,
}

/// What is known of pods and nodes beside their objects.
pub(crate) struct Observations {
    /// Usage samples of nodes and pods.
    pub(crate) usage: Arc<metrics_api::Samples>,
    /// Diagnoses of unschedulable pods, once a scheduler is connected.
    pub(crate) diagnoses: OnceLock<Arc<dyn Diagnose>>,
}

/// This server: where it is reached, and how far its start is.
pub(crate) struct ServerState {
    /// The port that the server listens on, once known.
    pub(crate) port: OnceLock<u16>,
    /// The address at which clients reach the server now.
    pub(crate) advertised: watch::Sender<SocketAddr>,
    /// Which parts of the startup are done.
    pub(crate) started: Started,
}

impl ServerState {
    /// The address at which clients reach the server now.
    pub(crate) fn advertise(&self) -> SocketAddr {
        *self.advertised.borrow()
    }
}

impl Core {
    pub(crate) fn new(
        config: Config,
        store: Store,
        registry: Arc<Registry>,
    ) -> Result<Self, Error> {
        let storage = Storage {
            reader: Reader::new(store.clone(), registry.clone()),
            store,
            registry,
        };
        let access = Access::new(&config, &storage.reader)?;
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
        Ok(Self {
            writes: Writes::new(&config, &storage, &access, &metrics)?,
            remote: Remote::new(&config, &storage.reader, &http),
            traffic: Traffic {
                http,
                fairness: Arc::new(fairness),
                slots: Slots::default(),
            },
            documents: Documents::default(),
            observations: Observations {
                usage: Arc::new(metrics_api::Samples::new(config.clock.clone())),
                diagnoses: OnceLock::new(),
            },
            state: ServerState {
                port: OnceLock::new(),
                advertised: watch::Sender::new(config.advertise),
                started: Started::default(),
            },
            access,
            audit,
            config,
            metrics,
            storage,
        })
    }
}

impl Writes {
    fn new(
        config: &Config,
        storage: &Storage,
        access: &Access,
        metrics: &Metrics,
    ) -> Result<Self, Error> {
        let reader = &storage.reader;
        let service_allocator = Allocator {
            store: storage.store.clone(),
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
        let (options, policies) = (&config.admission, &metrics.policies);
        Ok(Self {
            admission: admission::chain(options, reader, &access.rbac, &webhooks, policies)?,
            service_allocator: Arc::new(service_allocator),
            key_queues: KeyQueues::default(),
            tasks: TaskTracker::default(),
        })
    }
}

impl Remote {
    fn new(config: &Config, reader: &Reader, http: &HttpServer) -> Self {
        let services = Arc::new(admission::Endpoints::new(reader.clone()));
        let aggregator = Aggregator::new(services.clone(), config.front_proxy.clone());
        let conversion = webhook::Client::new(services, webhook::Credentials::default());
        let backends = Backends {
            reader: reader.clone(),
            kubelet_tls: config.kubelet_tls.clone(),
            streams: Streams {
                tasks: http.streams.clone(),
                stopping: http.stopping.clone(),
            },
        };
        Self {
            aggregator: Arc::new(aggregator),
            backends: Arc::new(backends),
            conversion: Arc::new(conversion),
        }
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
