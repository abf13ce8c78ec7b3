//! Listens on datagrams and streams. Names of the cluster are answered at once; only questions for
//! others wait in tasks of their own, and only so many at a time.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use hickory_proto::op::{Message, MessageType, OpCode};
use ipnet::IpNet;
use lifecycle::{Context, Outcome, Run, Service};
use rustix::net;
use stdx::Clock;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::Semaphore,
    time::timeout,
};
use tracing::{debug, warn};

use crate::{
    Error,
    cluster::Cluster,
    metrics::Metrics,
    page,
    reply::{Step, Transport, complete, decide, encode, failure},
    upstream::Upstream,
    zone::Zone,
};

/// Questions for others and streams that may be open at once, each.
const AT_ONCE: usize = 1000;
/// A stream without a question for this long is closed.
const IDLE: Duration = Duration::from_secs(10);

/// What the DNS server of a node must know.
pub struct Config {
    /// Reads Services and EndpointSlices.
    pub client: kube::Client,
    /// Where to listen: an address of the node that pods can reach, on a port of its own. The
    /// cluster's DNS address is led here by the proxy.
    pub listen: Vec<SocketAddr>,
    /// Where the page of metrics is served, if it is.
    pub metrics: Option<SocketAddr>,
    /// The zone, e.g. `cluster.local`.
    pub cluster_domain: String,
    /// The cluster's DNS addresses; never asked as upstream, since they are ourselves.
    pub cluster_dns: Vec<IpAddr>,
    /// The ranges of pods and services: their reverse names are nobody else's.
    pub own_ranges: Vec<IpNet>,
    /// Where the resolvers for other names stand.
    pub resolv_conf: PathBuf,
    /// The time.
    pub clock: Arc<dyn Clock>,
}

impl Config {
    /// Fails when the zone is no domain name.
    pub fn build(self) -> Result<Arc<Server>, Error> {
        let zone = Zone::new(&self.cluster_domain, self.own_ranges.clone())?;
        let mut own = self.cluster_dns.clone();
        own.extend(
            self.listen
                .iter()
                .filter(|at| at.port() == 53)
                .map(SocketAddr::ip),
        );
        let metrics = Arc::new(Metrics::default());
        let clock = self.clock.clone();
        let upstream = Upstream::new(self.resolv_conf.clone(), own, clock, metrics.clone());
        Ok(Arc::new(Server {
            config: self,
            answers: Arc::new(Answers {
                zone,
                upstream,
                metrics,
                limit: Arc::new(Semaphore::new(AT_ONCE)),
            }),
        }))
    }
}

/// The DNS server of a node.
pub struct Server {
    config: Config,
    answers: Arc<Answers>,
}

/// What every question needs.
struct Answers {
    zone: Zone,
    upstream: Upstream,
    metrics: Arc<Metrics>,
    /// Bounds questions for others.
    limit: Arc<Semaphore>,
}

impl Answers {
    /// The reply to a request that needs somebody else, and what to renew after it was sent.
    async fn resolve(
        &self,
        step: Step,
        transport: Transport,
        limit: usize,
    ) -> Option<(Vec<u8>, Option<Box<Message>>)> {
        let bytes = match step {
            Step::Ignore => None,
            Step::Send(reply) => encode(reply, limit),
            Step::Forward(request) => match self.upstream.ask(&request, transport).await {
                Some(reply) => {
                    let renew = reply.renew.then_some(request);
                    return Some((reply.bytes, renew));
                }
                None => encode(failure(&request), limit),
            },
            Step::Complete(reply, question) => {
                let mut request = Message::new(0, MessageType::Query, OpCode::Query);
                request.metadata.recursion_desired = true;
                request.add_query(question);
                let found = self.upstream.ask(&request, transport).await;
                let found = found.and_then(|found| Message::from_vec(&found.bytes).ok());
                encode(complete(*reply, found.as_ref()), limit)
            }
        };
        bytes.map(|bytes| (bytes, None))
    }
}

impl Server {
    /// Answers from `cluster` until shutdown.
    pub async fn serve(&self, cluster: Cluster, context: &Context) -> Outcome {
        for address in &self.config.listen {
            let failed = |error| Error::Listen(*address, error);
            let listener = TcpListener::bind(address).await.map_err(failed)?;
            for _ in 0..sockets() {
                let socket = Arc::new(shared_socket(*address).map_err(failed)?);
                let (answers, with, of) = (self.answers.clone(), cluster.clone(), context.clone());
                context.spawn("udp", datagrams(socket, answers, with, of));
            }
            let (answers, with, of) = (self.answers.clone(), cluster.clone(), context.clone());
            context.spawn("tcp", streams(listener, answers, with, of));
        }
        if let Some(address) = self.config.metrics {
            let answers = self.answers.clone();
            let shown = Arc::new(move || answers.metrics.page(answers.upstream.cached()));
            context.spawn("metrics", page::serve(address, shown, context.clone()));
        }
        cluster.synced().await;
        context.ready();
        context.shutdown().await;
        Ok(())
    }
}

/// One socket for each core: the kernel spreads clients over them.
fn sockets() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A datagram socket at an address that several of ours listen on.
fn shared_socket(address: SocketAddr) -> io::Result<UdpSocket> {
    let domain = if address.is_ipv4() {
        net::AddressFamily::INET
    } else {
        net::AddressFamily::INET6
    };
    let flags = net::SocketFlags::CLOEXEC | net::SocketFlags::NONBLOCK;
    let socket = net::socket_with(domain, net::SocketType::DGRAM, flags, None)?;
    net::sockopt::set_socket_reuseport(&socket, true)?;
    net::bind(&socket, &address)?;
    UdpSocket::from_std(socket.into())
}

async fn datagrams(
    socket: Arc<UdpSocket>,
    answers: Arc<Answers>,
    cluster: Cluster,
    context: Context,
) {
    let mut buffer = vec![0; 65535];
    loop {
        let (length, from) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            Err(error) => {
                // An ICMP error about an earlier reply shows up here; the socket is fine.
                debug!(%error, "receiving a datagram");
                tokio::task::yield_now().await;
                continue;
            }
        };
        let (request, begun) = (&buffer[..length], Instant::now());
        let (step, limit) = wait_until_known(&cluster, request, &answers.zone);
        match step {
            Step::Ignore => {}
            Step::Send(reply) => {
                if let Some(bytes) = encode(reply, limit) {
                    let metrics = &answers.metrics;
                    metrics.answered(&bytes, Transport::Udp, from, begun);
                    send(&socket, &bytes, from).await;
                }
            }
            step => {
                let Ok(permit) = answers.limit.clone().try_acquire_owned() else {
                    debug!("too many questions for others: one is dropped");
                    continue;
                };
                let (socket, answers) = (socket.clone(), answers.clone());
                context.spawn("forward", async move {
                    let _permit = permit;
                    let Some((bytes, renew)) = answers.resolve(step, Transport::Udp, limit).await
                    else {
                        return;
                    };
                    let metrics = &answers.metrics;
                    metrics.answered(&bytes, Transport::Udp, from, begun);
                    send(&socket, &bytes, from).await;
                    if let Some(request) = renew {
                        answers.upstream.renew(&request, Transport::Udp).await;
                    }
                });
            }
        }
    }
}

/// Before the first list is here nothing can be said about names of the cluster: the client asks
/// again, which is better than being told that a name does not exist.
fn wait_until_known(cluster: &Cluster, request: &[u8], zone: &Zone) -> (Step, usize) {
    let (step, limit) = decide(zone, cluster, request);
    let known = cluster.services.has_synced() && cluster.slices.has_synced();
    match step {
        Step::Send(_) if !known => (Step::Ignore, limit),
        step => (step, limit),
    }
}

async fn send(socket: &UdpSocket, bytes: &[u8], to: SocketAddr) {
    if let Err(error) = socket.send_to(bytes, to).await {
        debug!(%to, %error, "a reply was not sent");
    }
}

async fn streams(listener: TcpListener, answers: Arc<Answers>, cluster: Cluster, context: Context) {
    let limit = Arc::new(Semaphore::new(AT_ONCE));
    loop {
        let Ok(permit) = limit.clone().acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let (answers, cluster) = (answers.clone(), cluster.clone());
                context.spawn("stream", async move {
                    let _permit = permit;
                    if let Err(error) = talk(stream, &answers, &cluster).await {
                        debug!(%error, "a stream ended");
                    }
                });
            }
            Err(error) => {
                // Out of descriptors, most likely: others must get a turn to give some back.
                warn!(%error, "accepting a stream");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn talk(mut stream: TcpStream, answers: &Answers, cluster: &Cluster) -> io::Result<()> {
    let from = stream.peer_addr()?;
    loop {
        let length = timeout(IDLE, stream.read_u16()).await??;
        let mut request = vec![0; usize::from(length)];
        timeout(IDLE, stream.read_exact(&mut request)).await??;
        let begun = Instant::now();
        let (step, _) = wait_until_known(cluster, &request, &answers.zone);
        let Some((bytes, renew)) = answers
            .resolve(step, Transport::Tcp, usize::from(u16::MAX))
            .await
        else {
            return Ok(());
        };
        let metrics = &answers.metrics;
        metrics.answered(&bytes, Transport::Tcp, from, begun);
        let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
        stream
            .write_all(&[&length.to_be_bytes(), &bytes[..]].concat())
            .await?;
        if let Some(request) = renew {
            answers.upstream.renew(&request, Transport::Tcp).await;
        }
    }
}

impl Service for Server {
    fn name(&self) -> &'static str {
        "dns"
    }

    fn run(self: Arc<Self>, context: Context) -> Run {
        Box::pin(async move {
            let cluster = Cluster::start(&self.config.client, &context);
            self.serve(cluster, &context).await
        })
    }
}
