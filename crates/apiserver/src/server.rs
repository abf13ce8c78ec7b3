//! The server itself: listens on HTTPS, hands every request to the pipeline, and drains at shutdown.

use std::{future::Future, net::SocketAddr, sync::Arc, time::Duration};

use http_body_util::BodyExt;
use hyper::service::service_fn;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto,
};
use lifecycle::{Context, Outcome, Run, Service};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;
use tracing::{debug, info};

use crate::{
    Config, Error, LocalService, Registry, Store, User, authz, bootstrap, custom,
    pipeline::{Caller, Connection, Core},
    services,
};

/// Longest time for a TLS handshake.
const PATIENCE: Duration = Duration::from_secs(10);

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

    /// Where it listens, once it does.
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
        let listen = self.core.config.listen;
        let listener = TcpListener::bind(listen)
            .await
            .map_err(|error| Error::Listen(listen, error))?;
        let address = listener
            .local_addr()
            .map_err(|error| Error::Listen(listen, error))?;
        // When the service runs again after a failure, the port is the one of the first run.
        let _ = self.core.port.set(address.port());
        self.start_plugins(&context);
        bootstrap::ensure(&self.core)
            .await
            .map_err(Error::Bootstrap)?;
        let definitions = custom::load(&self.core).await.map_err(Error::Bootstrap)?;
        context.spawn(
            "custom-resources",
            custom::follow(self.core.clone(), definitions),
        );
        context.spawn("bootstrap", bootstrap::keep(self.core.clone()));
        context.spawn(
            "service-addresses",
            services::repair::keep(self.core.clone()),
        );
        self.address.send_replace(Some(address));
        info!(%address, "serving");
        context.ready();
        let acceptor = TlsAcceptor::from(self.core.config.tls.clone());
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = context.shutdown() => break,
            };
            match accepted {
                Ok((stream, remote)) => {
                    let (core, acceptor) = (self.core.clone(), acceptor.clone());
                    context
                        .spawn_draining("connection", connection(core, acceptor, stream, remote));
                }
                Err(error) => {
                    debug!(%error, "accept failed");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        }
        self.core.stopping.cancel();
        self.core.writes.close();
        self.core.writes.wait().await;
        self.core.streams.close();
        self.core.streams.wait().await;
        Ok(())
    }

    fn start_plugins(&self, context: &Context) {
        for authenticator in &self.core.authenticators {
            authenticator.start(context);
        }
        for authorizer in &self.core.authorizers {
            authorizer.start(context);
        }
        for plugin in &self.core.admission {
            plugin.start(context);
        }
        let writer = self.connect(User::new("system:apiserver", ["system:masters"]));
        let defaults = authz::defaults::write(writer, self.core.rbac.clone());
        context.spawn("rbac-defaults", defaults);
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

/// One connection, from its handshake to its end.
async fn connection(core: Arc<Core>, acceptor: TlsAcceptor, stream: TcpStream, remote: SocketAddr) {
    // A peer that is gone already shows in the handshake.
    let _ = stream.set_nodelay(true);
    let tls = match tokio::time::timeout(PATIENCE, acceptor.accept(stream)).await {
        Ok(Ok(tls)) => tls,
        Ok(Err(error)) => return debug!(%remote, %error, "TLS handshake failed"),
        Err(_) => return debug!(%remote, "TLS handshake took too long"),
    };
    let certificates = tls.get_ref().1.peer_certificates();
    let certificates = certificates
        .unwrap_or_default()
        .iter()
        .map(|der| der.clone().into_owned());
    let peer = Arc::new(Connection::new(remote, certificates.collect()));
    let (tasks, stopping) = (core.streams.clone(), core.stopping.clone());
    let idle = core.config.limits.idle;
    let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
        let (core, caller) = (core.clone(), Caller::Connection(peer.clone()));
        let request = request.map(|body| body.map_err(Into::into).boxed_unsync());
        async move { Ok::<_, std::convert::Infallible>(core.handle(request, caller).await) }
    });
    let mut builder = auto::Builder::new(Owned(tasks));
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(idle)
        .max_buf_size(1 << 20);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(1000)
        .max_header_list_size(1 << 20);
    let served = builder.serve_connection_with_upgrades(TokioIo::new(tls), service);
    tokio::pin!(served);
    let ended = tokio::select! {
        ended = &mut served => ended,
        () = stopping.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        debug!(%remote, %error, "connection ended");
    }
}

/// Runs the tasks that a connection's streams need under the server's own eye.
#[derive(Clone)]
struct Owned(TaskTracker);

impl<F> hyper::rt::Executor<F> for Owned
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        self.0.spawn(future);
    }
}
