//! The server: listens on HTTPS, passes every request to the pipeline, and drains at shutdown.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use admission::policy::status;
use futures::future::BoxFuture;
use lifecycle::{Context, Outcome, Run, Service};
use tokio::net::TcpListener;
use tracing::{debug, info};

use crate::{
    Config, Error, LocalService, Registry, Store, User, bootstrap, definitions, identity,
    pipeline::Core, servers::Servers, started::StartupPart, token_uses, usage, user,
};

/// Diagnoses pods that are not scheduled.
pub trait Diagnose: Send + Sync {
    /// The diagnosis of the pod with this uid, a JSON object; `None` if no scheduler of this
    /// process has it pending.
    fn diagnose<'a>(&'a self, uid: &'a str) -> BoxFuture<'a, Option<Vec<u8>>>;
}

/// The API server.
pub struct ApiServer {
    core: Arc<Core>,
    address: tokio::sync::watch::Sender<Option<SocketAddr>>,
}

impl ApiServer {
    pub(crate) fn new(
        config: Config,
        store: Store,
        registry: Arc<Registry>,
    ) -> Result<Arc<Self>, Error> {
        let core = Arc::new(Core::new(config, store, registry)?);
        Ok(Arc::new(Self {
            core,
            address: tokio::sync::watch::Sender::new(None),
        }))
    }

    /// A transport for a client in this process that acts as `user`.
    pub fn connect(&self, user: User) -> LocalService {
        LocalService::new(self.core.clone(), user)
    }

    /// The client of the server's own tasks.
    fn own_client(&self) -> LocalService {
        self.connect(User::new("system:apiserver", [user::MASTERS]))
    }

    /// Sets the source of pod diagnoses. Only the first call has an effect.
    pub fn set_diagnoses(&self, diagnoses: Arc<dyn Diagnose>) {
        // A second call is ignored.
        let _ = self.core.observations.diagnoses.set(diagnoses);
    }

    /// Changes the address at which clients reach this server: its Lease and the `kubernetes`
    /// Service follow.
    pub fn set_advertise(&self, advertise: SocketAddr) {
        let changes = |known: &mut SocketAddr| std::mem::replace(known, advertise) != advertise;
        self.core.state.advertised.send_if_modified(changes);
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
        let listen = self.core.config.listen;
        let failed = |error| Error::Listen(listen, error);
        let listener = TcpListener::bind(listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        // If the service restarts after a failure, the port stays that of the first run.
        let _ = self.core.state.port.set(address.port());
        Ok((listener, address))
    }

    /// Does what must be done before the first request, and starts the tasks that run beside requests.
    async fn start(&self, context: &Context) -> Result<(), Error> {
        let done = |part| self.core.state.started.finish(part);
        self.start_plugins(context);
        done(StartupPart::Plugins);
        let servers = Servers::default();
        let living = bootstrap::living(&self.core, &servers).await;
        bootstrap::ensure(&self.core, &living)
            .await
            .map_err(Error::Bootstrap)?;
        done(StartupPart::Objects);
        let writer = self.own_client();
        let core = self.core.clone();
        context.spawn("rbac-defaults", async move {
            auth::authz::defaults::write(writer, core.access.rbac.clone()).await;
            core.state.started.finish(StartupPart::Roles);
        });
        let flow_control = flowcontrol::Upkeep {
            fairness: self.core.traffic.fairness.clone(),
            reader: self.core.storage.reader.clone(),
            clock: self.core.config.clock.clone(),
            api: Box::new(self.own_client()),
        };
        flow_control.begin().await.map_err(Error::Bootstrap)?;
        done(StartupPart::FlowControl);
        let loaded = definitions::load(&self.core)
            .await
            .map_err(Error::Bootstrap)?;
        done(StartupPart::Definitions);
        context.spawn(
            "custom-resources",
            definitions::follow(self.core.clone(), loaded),
        );
        let aggregation = aggregator::Upkeep {
            aggregator: self.core.remote.aggregator.clone(),
            reader: self.core.storage.reader.clone(),
            clock: self.core.config.clock.clone(),
            api: Arc::new(self.own_client()),
            metrics: self.core.metrics.aggregation.clone(),
        };
        aggregation.load().await.map_err(Error::Bootstrap)?;
        context.spawn("aggregation", aggregation.keep());
        let uses = self.core.access.legacy_uses.clone();
        let track = token_uses::track(self.core.clone(), uses);
        context.spawn("legacy-token-tracking", track);
        context.spawn(
            "bootstrap",
            bootstrap::keep(self.core.clone(), servers, living),
        );
        let (core, reader) = (self.core.clone(), self.core.storage.reader.clone());
        let synced = move || core.state.started.finish(StartupPart::ApiServices);
        let api_services = aggregator::keep_local(reader, Arc::new(self.own_client()), synced);
        context.spawn("api-services", api_services);
        let identity = identity::keep(self.core.clone(), context.token());
        context.spawn_draining("identity", identity);
        context.spawn("flow-control", flow_control.keep());
        context.spawn("resource-metrics", usage::collect(self.core.clone()));
        let at_rest = registry::pack_at_rest(self.core.storage.reader.clone());
        context.spawn("objects-at-rest", at_rest);
        let core = self.core.clone();
        let synced = move || core.state.started.finish(StartupPart::Addresses);
        let allocator = self.core.writes.service_allocator.clone();
        let user = User::service_account("kube-system", status::CONTROLLER);
        let (reader, clock) = (
            self.core.storage.reader.clone(),
            self.core.config.clock.clone(),
        );
        let policy_status = status::keep(reader, Arc::new(self.connect(user)), clock);
        context.spawn("validating-admission-policy-status", policy_status);
        context.spawn(
            "service-addresses",
            service_allocator::keep(allocator, synced),
        );
        Ok(())
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
                    let (http, core) = (self.core.traffic.http.clone(), self.core.clone());
                    let served = http.serve(core, stream, remote);
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
        self.core.traffic.http.stopping.cancel();
        self.core.writes.tasks.close();
        self.core.writes.tasks.wait().await;
        self.core.traffic.http.streams.close();
        self.core.traffic.http.streams.wait().await;
    }

    fn start_plugins(&self, context: &Context) {
        for authenticator in &self.core.access.authenticators {
            authenticator.start(context);
        }
        for authorizer in &self.core.access.authorizers {
            authorizer.start(context);
        }
        for plugin in &self.core.writes.admission {
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
