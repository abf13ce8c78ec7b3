//! What the stages, the handlers and the tasks beside them share, built once from the configuration.
//! Only the pipeline knows all of it: each handler and each task gets what it needs.

use std::sync::{Arc, OnceLock};

use aggregator::Aggregator;
use apiextensions::ConversionMetrics;
use auth::{
    authn::{self, Authenticator, Jwt},
    authz::{self, Authorizer, Rbac},
};
use connect::{Backends, Streams};
use flowcontrol::Fairness;
use http_server::HttpServer;
use request::heavy::Slots;
use server_metrics::ServerMetrics;
use service_allocator::Allocator;
use tokio_util::task::TaskTracker;

use crate::{
    Config, Error, Reader, Registry, Store,
    admission::{self, WebhookShared},
    audit::Audit,
    discovery::DiscoveryCache,
    handlers::{ConnectContext, Diagnoses, Documents, Handlers, Reads, Reviews, Usage},
    health::HealthChecks,
    metrics::Metrics,
    started::ServerState,
    write::{AdmissionChain, KeyQueues, WritePath},
};

/// The request pipeline: what its stages need, and the handlers behind them.
pub(crate) struct Pipeline {
    pub(crate) shared: Shared,
    pub(crate) handlers: Arc<Handlers>,
}

/// What the stages need, and what handlers and tasks are built from.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) storage: Storage,
    pub(crate) access: Access,
    pub(crate) traffic: Traffic,
    pub(crate) remote: Remote,
    pub(crate) audit: Option<Arc<Audit>>,
    pub(crate) metrics: Arc<ServerMetrics>,
    pub(crate) state: Arc<ServerState>,
}

/// Stored objects and the kinds that are served.
pub(crate) struct Storage {
    pub(crate) store: Store,
    pub(crate) registry: Arc<Registry>,
    pub(crate) reader: Reader,
}

/// Authentication and authorization.
pub(crate) struct Access {
    pub(crate) authenticators: Arc<[Arc<dyn Authenticator>]>,
    /// The JWT issuers and the anonymous access of the `AuthenticationConfiguration`, if there is one.
    pub(crate) jwt: Option<Jwt>,
    /// Tokens in Secrets that were used.
    pub(crate) legacy_uses: Arc<authn::legacy_tokens::Uses>,
    pub(crate) authorizers: Arc<[Arc<dyn Authorizer>]>,
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

/// Other servers that requests are passed on to, or that this server calls.
pub(crate) struct Remote {
    /// The API servers behind APIServices.
    pub(crate) aggregator: Arc<Aggregator>,
    pub(crate) aggregation_metrics: aggregator::Metrics,
    /// The kubelets, pods and Services behind `log`, `exec`, `proxy` and the like.
    pub(crate) backends: Arc<Backends>,
    /// Calls the webhooks that convert custom resources.
    pub(crate) conversion: Arc<webhook::Client>,
    pub(crate) conversion_metrics: ConversionMetrics,
}

impl Pipeline {
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
            .map(|audit| Audit::open(audit, config.clock.clone()).map(Arc::new))
            .transpose()
            .map_err(|why| Error::Invalid(format!("audit: {why}")))?;
        let limits = &config.limits;
        let (idle, unsent, stall) = (limits.idle, limits.unsent, limits.stall);
        let http = HttpServer::new(config.tls.clone(), idle, unsent, stall);
        let metrics = Metrics::new(&http);
        let fairness = Fairness::new(limits.in_flight, limits.deadline, &metrics.fairness);
        let remote = Remote::new(&config, &storage.reader, &http, &metrics);
        let shared = Shared {
            traffic: Traffic {
                http,
                fairness: Arc::new(fairness),
                slots: Slots::default(),
            },
            state: Arc::new(ServerState::new(config.advertise)),
            metrics: metrics.server.clone(),
            storage,
            access,
            remote,
            audit,
            config,
        };
        let admission = shared.admission(metrics)?;
        Ok(Self {
            handlers: Arc::new(shared.handlers(&Arc::new(admission))),
            shared,
        })
    }
}

impl Shared {
    fn admission(&self, metrics: Metrics) -> Result<AdmissionChain, Error> {
        let reader = &self.storage.reader;
        let webhooks = WebhookShared {
            reader: reader.clone(),
            authorizers: self.access.authorizers.clone(),
            metrics: metrics.webhooks,
        };
        let (options, rbac) = (&self.config.admission, &self.access.rbac);
        Ok(AdmissionChain {
            plugins: admission::chain(options, reader, rbac, &webhooks, &metrics.policies)?,
            timing: metrics.admission,
        })
    }

    /// Gives each handler what it needs.
    fn handlers(&self, admission: &Arc<AdmissionChain>) -> Handlers {
        let (reader, clock) = (&self.storage.reader, &self.config.clock);
        Handlers {
            reads: Reads {
                store: self.storage.store.clone(),
                clock: clock.clone(),
                metrics: self.metrics.clone(),
                budget: self.traffic.http.budget.clone(),
                streams: self.remote.backends.streams.clone(),
                watch_timeout: self.config.limits.watch,
            },
            writes: Arc::new(self.write_path(admission.clone())),
            connect: ConnectContext {
                backends: self.remote.backends.clone(),
                admission: admission.clone(),
            },
            reviews: self.reviews(admission.clone()),
            documents: self.documents(),
            health: HealthChecks {
                store: self.storage.store.clone(),
                state: self.state.clone(),
                services: self.config.health.clone(),
                stopping: self.traffic.http.stopping.clone(),
                metrics: self.metrics.clone(),
            },
            usage: Usage {
                reader: reader.clone(),
                samples: Arc::new(metrics_api::Samples::new(clock.clone())),
                clock: clock.clone(),
            },
            diagnoses: Diagnoses {
                reader: reader.clone(),
                source: OnceLock::new(),
            },
            issuer: self.config.tokens.clone(),
        }
    }

    fn write_path(&self, admission: Arc<AdmissionChain>) -> WritePath {
        let (storage, config) = (&self.storage, &self.config);
        let service_allocator = Allocator {
            store: storage.store.clone(),
            reader: storage.reader.clone(),
            clock: config.clock.clone(),
            cidrs: config.service_cidrs.clone(),
            node_ports: config.node_ports.clone(),
        };
        WritePath {
            store: storage.store.clone(),
            registry: storage.registry.clone(),
            reader: storage.reader.clone(),
            clock: config.clock.clone(),
            admission,
            authorizers: self.access.authorizers.clone(),
            service_allocator: Arc::new(service_allocator),
            name_suffixes: config.name_suffixes.clone(),
            deadline: config.limits.deadline,
            key_queues: KeyQueues::default(),
            tasks: TaskTracker::default(),
            slots: self.traffic.slots.clone(),
            metrics: self.metrics.clone(),
        }
    }

    fn reviews(&self, admission: Arc<AdmissionChain>) -> Reviews {
        let authorization = &self.config.access.authorization;
        Reviews {
            reader: self.storage.reader.clone(),
            registry: self.storage.registry.clone(),
            clock: self.config.clock.clone(),
            admission,
            authenticators: self.access.authenticators.clone(),
            authorizers: self.access.authorizers.clone(),
            rbac: self.access.rbac.clone(),
            has_webhook_authorizers: authorization.webhook.is_some()
                || authorization.config.is_some(),
            issuer: self.config.tokens.clone(),
        }
    }

    fn documents(&self) -> Documents {
        Documents {
            registry: self.storage.registry.clone(),
            store: self.storage.store.clone(),
            reader: self.storage.reader.clone(),
            clock: self.config.clock.clone(),
            state: self.state.clone(),
            openapi: Arc::default(),
            discovery: DiscoveryCache::default(),
            aggregator: self.remote.aggregator.clone(),
            streams: self.remote.backends.streams.clone(),
            fairness: self.traffic.fairness.clone(),
            budget: self.traffic.http.budget.clone(),
            audit: self.audit.clone(),
            services: self.config.health.clone(),
            metrics: self.metrics.clone(),
            issuer: self.config.tokens.clone(),
        }
    }
}

impl Remote {
    fn new(config: &Config, reader: &Reader, http: &HttpServer, metrics: &Metrics) -> Self {
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
            aggregation_metrics: metrics.aggregation.clone(),
            backends: Arc::new(backends),
            conversion: Arc::new(conversion),
            conversion_metrics: metrics.conversion.clone(),
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
            authenticators: authenticators.map_err(Error::Invalid)?.into(),
            legacy_uses,
            authorizers: authorizers.into(),
            jwt,
            rbac,
        })
    }
}
