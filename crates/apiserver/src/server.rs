//! The server: listens on HTTPS, passes every request to the pipeline, and drains at shutdown.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use admission::policy::status;
use futures::future::BoxFuture;
use lifecycle::{Context, Outcome, Run, Service};
use tokio::net::TcpListener;
use tracing::{debug, info};

use crate::{
    Config, Error, LocalService, Registry, Store, User,
    bootstrap::{self, Bootstrap},
    definitions::{self, DefinitionContext},
    identity,
    pipeline::Pipeline,
    servers::Servers,
    started::StartupPart,
    token_uses, usage, user,
};

/// Diagnoses pods that are not scheduled.
pub trait Diagnose: Send + Sync {
    /// The diagnosis of the pod with this uid, a JSON object; `None` if no scheduler of this
    /// process has it pending.
    fn diagnose<'a>(&'a self, uid: &'a str) -> BoxFuture<'a, Option<Vec<u8>>>;
}

/// The API server.
pub struct ApiServer {
    pipeline: Arc<Pipeline>,
    address: tokio::sync::watch::Sender<Option<SocketAddr>>,
}

impl ApiServer {
    pub(crate) fn new(
        config: Config,
        store: Store,
        registry: Arc<Registry>,
    ) -> Result<Arc<Self>, Error> {
        let pipeline = Arc::new(Pipeline::new(config, store, registry)?);
        Ok(Arc::new(Self {
            pipeline,
            address: tokio::sync::watch::Sender::new(None),
        }))
    }

    /// A transport for a client in this process that acts as `user`.
    pub fn connect(&self, user: User) -> LocalService {
        LocalService::new(self.pipeline.clone(), user)
    }

    /// The client of the server's own tasks.
    fn own_client(&self) -> LocalService {
        self.connect(User::new("system:apiserver", [user::MASTERS]))
    }

    /// Sets the source of pod diagnoses. Only the first call has an effect.
    pub fn set_diagnoses(&self, diagnoses: Arc<dyn Diagnose>) {
        // A second call is ignored.
        let _ = self.pipeline.handlers.diagnoses.source.set(diagnoses);
    }

    /// Changes the address at which clients reach this server: its Lease and the `kubernetes`
    /// Service follow.
    pub fn set_advertise(&self, advertise: SocketAddr) {
        let changes = |known: &mut SocketAddr| std::mem::replace(known, advertise) != advertise;
        let state = &self.pipeline.shared.state;
        state.advertised.send_if_modified(changes);
    }

    /// The listening address, once known.
    pub async fn address(&self) -> SocketAddr {
        let mut address = self.address.subscribe();
        loop {
            if let Some(address) = *address.borrow_and_update() {
                return address;
            }
            if address.changed().await.is_err() {
                std::future::pending().await
            }
        }
    }

    async fn serve(self: Arc<Self>, context: Context) -> Outcome {
        let (listener, address) = self.listen().await?;
        self.start(&context).await?;
        self.address.send_replace(Some(address));
        info!(%address, "serving");
        context.ready();
        self.accept(&context, listener).await;
        self.drain().await;
        Ok(())
    }

    async fn listen(&self) -> Result<(TcpListener, SocketAddr), Error> {
        let listen = self.pipeline.shared.config.listen;
        let failed = |error| Error::Listen(listen, error);
        let listener = TcpListener::bind(listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        // If the service restarts after a failure, the port stays that of the first run.
        let _ = self.pipeline.shared.state.port.set(address.port());
        Ok((listener, address))
    }

    /// Does what must be done before the first request, and starts the tasks that run beside requests.
    async fn start(&self, context: &Context) -> Result<(), Error> {
        let state = self.pipeline.shared.state.clone();
        self.start_plugins(context);
        state.started.finish(StartupPart::Plugins);
        let (bootstrap, servers) = (self.bootstrap(), Servers::default());
        let living = bootstrap::living(&bootstrap, &servers).await;
        bootstrap::ensure(&bootstrap, &living)
            .await
            .map_err(Error::Bootstrap)?;
        state.started.finish(StartupPart::Objects);
        let (writer, rbac) = (self.own_client(), self.pipeline.shared.access.rbac.clone());
        let roles = state.clone();
        context.spawn("rbac-defaults", async move {
            auth::authz::defaults::write(writer, rbac).await;
            roles.started.finish(StartupPart::Roles);
        });
        let flow_control = self.flow_control();
        flow_control.begin().await.map_err(Error::Bootstrap)?;
        state.started.finish(StartupPart::FlowControl);
        let kinds = self.definition_context();
        let loaded = definitions::load(&kinds).await.map_err(Error::Bootstrap)?;
        state.started.finish(StartupPart::Definitions);
        context.spawn("custom-resources", definitions::follow(kinds, loaded));
        let aggregation = self.aggregation();
        aggregation.load().await.map_err(Error::Bootstrap)?;
        context.spawn("aggregation", aggregation.keep());
        let repairs = bootstrap::keep(bootstrap, servers, living);
        context.spawn("bootstrap", repairs);
        context.spawn("flow-control", flow_control.keep());
        self.start_tasks(context);
        Ok(())
    }

    /// Starts the tasks that no request waits for.
    fn start_tasks(&self, context: &Context) {
        let Pipeline { shared, handlers } = &*self.pipeline;
        let (reader, clock) = (&shared.storage.reader, &shared.config.clock);
        let uses = shared.access.legacy_uses.clone();
        let track = token_uses::track(handlers.writes.clone(), uses);
        context.spawn("legacy-token-tracking", track);
        let state = shared.state.clone();
        let synced = move || state.started.finish(StartupPart::ApiServices);
        let api = Arc::new(self.own_client());
        let api_services = aggregator::keep_local(reader.clone(), api, synced);
        context.spawn("api-services", api_services);
        let keeper = identity::LeaseKeeper {
            reader: reader.clone(),
            api: self.own_client(),
            state: shared.state.clone(),
            clock: clock.clone(),
            server_name: shared.config.server_name.clone(),
        };
        context.spawn_draining("identity", identity::keep(keeper, context.token()));
        let (backends, samples) = (&shared.remote.backends, &handlers.usage.samples);
        let usage = usage::collect(backends.clone(), samples.clone(), clock.clone());
        context.spawn("resource-metrics", usage);
        let at_rest = registry::pack_at_rest(reader.clone());
        context.spawn("objects-at-rest", at_rest);
        let user = User::service_account("kube-system", status::CONTROLLER);
        let api = Arc::new(self.connect(user));
        let policy_status = status::keep(reader.clone(), api, clock.clone());
        context.spawn("validating-admission-policy-status", policy_status);
        let state = shared.state.clone();
        let synced = move || state.started.finish(StartupPart::Addresses);
        let allocator = handlers.writes.service_allocator.clone();
        let addresses = service_allocator::keep(allocator, synced);
        context.spawn("service-addresses", addresses);
    }

    fn bootstrap(&self) -> Bootstrap {
        let Pipeline { shared, handlers } = &*self.pipeline;
        Bootstrap {
            writes: handlers.writes.clone(),
            state: shared.state.clone(),
            api: self.own_client(),
            server_name: shared.config.server_name.clone(),
            service_cidrs: shared.config.service_cidrs.clone(),
            client_ca: shared.config.client_ca.clone(),
            front_proxy_ca: shared.config.front_proxy_ca.clone(),
        }
    }

    fn definition_context(&self) -> DefinitionContext {
        let Pipeline { shared, handlers } = &*self.pipeline;
        DefinitionContext {
            writes: handlers.writes.clone(),
            conversion: shared.remote.conversion.clone(),
            metrics: shared.remote.conversion_metrics.clone(),
            streams: shared.remote.backends.streams.clone(),
        }
    }

    fn flow_control(&self) -> flowcontrol::Upkeep {
        let shared = &self.pipeline.shared;
        flowcontrol::Upkeep {
            fairness: shared.traffic.fairness.clone(),
            reader: shared.storage.reader.clone(),
            clock: shared.config.clock.clone(),
            api: Box::new(self.own_client()),
        }
    }

    fn aggregation(&self) -> aggregator::Upkeep {
        let shared = &self.pipeline.shared;
        aggregator::Upkeep {
            aggregator: shared.remote.aggregator.clone(),
            reader: shared.storage.reader.clone(),
            clock: shared.config.clock.clone(),
            api: Arc::new(self.own_client()),
            metrics: shared.remote.aggregation_metrics.clone(),
        }
    }

    /// Serves connections until shutdown.
    async fn accept(&self, context: &Context, listener: TcpListener) {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = context.shutdown() => return,
            };
            match accepted {
                Ok((stream, remote)) => {
                    let http = self.pipeline.shared.traffic.http.clone();
                    let served = http.serve(self.pipeline.clone(), stream, remote);
                    context.spawn_draining("connection", served);
                }
                Err(error) => {
                    debug!(%error, "accept failed");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        }
    }

    /// Waits until the writes that have begun are complete and all streams have ended.
    async fn drain(&self) {
        let http = &self.pipeline.shared.traffic.http;
        let writes = &self.pipeline.handlers.writes.tasks;
        http.stopping.cancel();
        writes.close();
        writes.wait().await;
        http.streams.close();
        http.streams.wait().await;
    }

    fn start_plugins(&self, context: &Context) {
        let access = &self.pipeline.shared.access;
        for authenticator in access.authenticators.iter() {
            authenticator.start(context);
        }
        for authorizer in access.authorizers.iter() {
            authorizer.start(context);
        }
        for plugin in &self.pipeline.handlers.writes.admission.plugins {
            plugin.start(context);
        }
    }
}

impl Service for ApiServer {
    fn name(&self) -> &'static str {
        "apiserver"
    }

    fn run(self: Arc<Self>, context: Context) -> Run {
        Box::pin(self.serve(context))
    }
}
