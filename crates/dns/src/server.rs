//! Builds the server, watches its settings, and starts its listeners.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use hickory_proto::rr::Name;
use ipnet::IpNet;
use lifecycle::{Context, Outcome, Run, Service};
use network::ClientShares;
use stdx::Clock;
use tokio::{
    net::TcpListener,
    sync::{Semaphore, oneshot},
};
use tracing::{info, warn};

use crate::{
    Error,
    answers::Answers,
    chain::Chain,
    cluster::{CUSTOM, Cluster, SETTINGS, files},
    corefile::{self, ParseContext, Parsed},
    datagrams,
    log_budget::LogBudget,
    metrics::Metrics,
    page,
    resolvers::Resolvers,
    sockets, streams,
    zone::Zone,
};

/// The maximum number of concurrent forwarded queries.
const AT_ONCE: usize = 4096;
/// The maximum of one client address; a fifth of `max_concurrent` in the default Corefile.
const PER_CLIENT: usize = 200;
/// How long the server waits for its informers before it reads queries. Resolvers retry after five seconds.
const UNKNOWN: Duration = Duration::from_secs(4);
/// How long the Corefile waits for the ConfigMap with more files.
const CUSTOM_WITHIN: Duration = Duration::from_secs(1);

/// The configuration of a node's DNS server.
pub struct Config {
    /// A client that reads Services, EndpointSlices and the ConfigMap `kube-system/coredns`.
    pub client: kube::Client,
    /// A directory that keeps the last known objects, for a start while no server is reachable. `None` keeps nothing.
    pub saved: Option<PathBuf>,
    /// The addresses to listen on: reachable from pods, on a separate port. The proxy redirects the cluster's DNS
    /// address here.
    pub listen: Vec<SocketAddr>,
    /// The path of the holder's Unix socket. The holder keeps the sockets open while this process restarts. `None`
    /// closes them when this process exits.
    pub holder: Option<PathBuf>,
    /// The address of the metrics endpoint; `None` disables it.
    pub metrics: Option<SocketAddr>,
    /// The zone, e.g. `cluster.local`.
    pub cluster_domain: String,
    /// The cluster's DNS addresses. They lead to this server, so queries are never forwarded to them.
    pub cluster_dns: Vec<IpAddr>,
    /// The pod and service CIDRs. Reverse lookups in them are never forwarded.
    pub own_ranges: Vec<IpNet>,
    /// The file to use for `/etc/resolv.conf` in a Corefile.
    pub resolv_conf: PathBuf,
    /// The clock.
    pub clock: Arc<dyn Clock>,
}

impl Config {
    /// Fails if the zone is not a domain name.
    pub fn build(self) -> Result<Arc<Server>, Error> {
        let origin = Zone::new(&self.cluster_domain, Vec::new())?
            .origin()
            .clone();
        let mut own = self.cluster_dns.clone();
        let standard = self.listen.iter().filter(|at| at.port() == 53);
        own.extend(standard.map(SocketAddr::ip));
        let metrics = Arc::new(Metrics::default());
        let resolvers = Resolvers::new(own.clone(), self.clock.clone(), metrics.clone());
        let settings = Settings {
            origin,
            own,
            resolvers,
            config: self,
        };
        let chain = settings.default_chain()?;
        Ok(Arc::new(Server {
            answers: Arc::new(Answers {
                chain: ArcSwap::from_pointee(chain),
                metrics,
                limit: Arc::new(Semaphore::new(AT_ONCE)),
                shares: ClientShares::new(PER_CLIENT),
                failures: LogBudget::default(),
            }),
            settings,
        }))
    }
}

/// The DNS server of a node.
pub struct Server {
    settings: Settings,
    answers: Arc<Answers>,
}

/// Builds plugin chains from Corefiles.
struct Settings {
    config: Config,
    origin: Name,
    own: Vec<IpAddr>,
    resolvers: Arc<Resolvers>,
}

impl Settings {
    fn parse(
        &self,
        files: &BTreeMap<String, String>,
    ) -> Result<Parsed, corefile::syntax::SyntaxError> {
        let default = corefile::default_text(&self.config.cluster_domain);
        let text = files.get(corefile::KEY).unwrap_or(&default);
        let around = ParseContext {
            cluster_domain: &self.origin,
            files,
            resolv_conf: self.config.resolv_conf.clone(),
            own: self.own.clone(),
        };
        corefile::parse(text, &around)
    }

    fn chain(&self, parsed: Parsed, generation: u64) -> Result<Chain, Error> {
        let Config {
            cluster_domain,
            own_ranges,
            ..
        } = &self.config;
        let servers = parsed.servers;
        Chain::new(
            servers,
            generation,
            cluster_domain,
            own_ranges,
            &self.resolvers,
        )
    }

    fn default_chain(&self) -> Result<Chain, Error> {
        let parsed = self.parse(&BTreeMap::new());
        let parsed = parsed.map_err(|_| Error::Domain(self.config.cluster_domain.clone()))?;
        self.chain(parsed, 0)
    }
}

impl Server {
    /// Answers queries from the state in `cluster` until shutdown.
    pub async fn serve(self: &Arc<Self>, cluster: Cluster, context: &Context) -> Outcome {
        let config = &self.settings.config;
        let sockets = sockets::open(config.listen.clone(), config.holder.clone(), context).await?;
        let (settled, settings) = oneshot::channel();
        let follow = self.clone().follow_settings(cluster.clone(), settled);
        context.spawn("settings", follow);
        // Queries wait in the sockets until the informers have synced. If the API server does not respond in time, the
        // server starts anyway, so that names outside the cluster resolve.
        let known = async { tokio::join!(cluster.synced(), settings) };
        let _ = tokio::time::timeout(UNKNOWN, known).await;
        for socket in sockets.datagrams {
            let (answers, with) = (self.answers.clone(), cluster.clone());
            datagrams::serve(socket, answers, with, context)?;
        }
        for listener in sockets.listeners {
            let listener = TcpListener::from_std(listener)?;
            let (answers, with, of) = (self.answers.clone(), cluster.clone(), context.clone());
            context.spawn("tcp", streams::serve(listener, answers, with, of));
        }
        if let Some(address) = config.metrics {
            let answers = self.answers.clone();
            let shown = Arc::new(move || answers.metrics.page(answers.chain.load().cached()));
            context.spawn("metrics", page::serve(address, shown, context.clone()));
        }
        cluster.synced().await;
        context.ready();
        context.shutdown().await;
        Ok(())
    }

    /// Applies each valid Corefile. An invalid one leaves the previous one in use.
    async fn follow_settings(self: Arc<Self>, cluster: Cluster, settled: oneshot::Sender<()>) {
        let (mut events, mut customs) = (cluster.settings.subscribe(), cluster.custom.subscribe());
        cluster.settings.synced().await;
        // A server of an earlier version does not let nodes read it.
        let _ = tokio::time::timeout(CUSTOM_WITHIN, cluster.custom.synced()).await;
        let mut generation = 1;
        self.follow(&cluster, generation);
        // The receiver is gone if `serve` timed out.
        let _ = settled.send(());
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                event = customs.next() => event,
            };
            if event.is_none() {
                return;
            }
            generation += 1;
            self.follow(&cluster, generation);
        }
    }

    fn follow(&self, cluster: &Cluster, generation: u64) {
        let map = cluster.settings.get(SETTINGS.0, SETTINGS.1);
        let custom = cluster.custom.get(SETTINGS.0, CUSTOM);
        let files = files(map.as_deref(), custom.as_deref());
        let parsed = match self.settings.parse(&files) {
            Ok(parsed) => parsed,
            Err(error) => {
                warn!(%error, "invalid Corefile in kube-system/coredns, keeping the last valid one");
                return;
            }
        };
        for problem in &parsed.problems {
            warn!(
                problem,
                "part of the Corefile in kube-system/coredns is ignored"
            );
        }
        match self.settings.chain(parsed, generation) {
            Ok(chain) => {
                self.answers.chain.store(Arc::new(chain));
                info!("applied the Corefile of kube-system/coredns");
            }
            Err(error) => warn!(%error, "invalid Corefile in kube-system/coredns"),
        }
    }
}

impl Service for Server {
    fn name(&self) -> &'static str {
        "dns"
    }

    fn run(self: Arc<Self>, context: Context) -> Run {
        Box::pin(async move {
            let Config { client, saved, .. } = &self.settings.config;
            let cluster = Cluster::start(client, saved.as_deref(), &context);
            self.serve(cluster, &context).await
        })
    }
}
