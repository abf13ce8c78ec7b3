//! How long a Service takes from the proxy's events to an open connection, with few and with many
//! other Services.

use std::{
    convert::Infallible,
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use kube::client::Body;
use lifecycle::Context;
use network::nft::Nft;
use proxy::Sources;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{api::Api, subject::command};

/// The address of the endpoint that answers; all measured Services lead to it.
const ENDPOINT: &str = "10.42.0.1";
const PORT: u16 = 8080;
const PATIENCE: Duration = Duration::from_secs(600);
const GIVE_UP: Duration = Duration::from_millis(20);
const TRY_AGAIN: Duration = Duration::from_micros(100);
/// The pause between changes, so that the kernel has cleaned up after the last one.
const PAUSE: Duration = Duration::from_millis(20);

/// What to measure.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The number of existing Services, each with two endpoints.
    #[arg(long, default_value_t = 10_000)]
    services: usize,
    /// The number of Services added one by one.
    #[arg(long, default_value_t = 200)]
    rounds: usize,
    /// The number of sequential connections.
    #[arg(long, default_value_t = 10_000)]
    connections: usize,
    /// kube-proxy, to measure it in nftables mode as well.
    #[arg(long)]
    kube_proxy: Option<PathBuf>,
}

fn name(number: usize) -> String {
    format!("service-{number}")
}

fn address(number: usize) -> Ipv4Addr {
    let last = u16::try_from(number + 1).unwrap_or(u16::MAX).to_be_bytes();
    Ipv4Addr::new(10, 43, last[0], last[1])
}

fn service(number: usize) -> Value {
    json!({"metadata": {"name": name(number), "namespace": "default", "uid": name(number)},
        "spec": {"clusterIP": address(number), "clusterIPs": [address(number)],
            "ports": [{"name": "http", "port": 80, "targetPort": PORT, "protocol": "TCP"}]}})
}

fn slice(number: usize, endpoints: &[String]) -> Value {
    let labels = json!({"kubernetes.io/service-name": name(number)});
    let endpoints: Vec<Value> = endpoints
        .iter()
        .map(|ip| json!({"addresses": [ip], "conditions": {"ready": true}}))
        .collect();
    json!({"metadata": {"name": name(number), "namespace": "default", "uid": name(number), "labels": labels},
        "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{"name": "http", "port": PORT, "protocol": "TCP"}]})
}

/// Where a proxy reads its objects.
#[derive(Clone)]
enum Objects {
    /// Our proxy: informers in this process.
    Informers(Sources),
    /// kube-proxy.
    Api(Api),
}

impl Objects {
    fn put(&self, number: usize, endpoints: &[String]) -> Result<()> {
        let (service, slice) = (service(number), slice(number, endpoints));
        match self {
            Self::Informers(sources) => {
                sources.services.upsert(serde_json::from_value(service)?);
                sources.slices.upsert(serde_json::from_value(slice)?);
            }
            Self::Api(api) => {
                api.put("Service", service);
                api.put("EndpointSlice", slice);
            }
        }
        Ok(())
    }

    fn remove(&self, number: usize) {
        let name = name(number);
        match self {
            Self::Informers(sources) => {
                sources.services.remove("default", &name);
                sources.slices.remove("default", &name);
            }
            Self::Api(api) => {
                api.remove("Service", &name);
                api.remove("EndpointSlice", &name);
            }
        }
    }
}

/// Two endpoints that are never used.
fn elsewhere(number: usize) -> Vec<String> {
    let last = u16::try_from(number).unwrap_or(u16::MAX).to_be_bytes();
    let ip = |network: u8| Ipv4Addr::new(10, network, last[0], last[1]).to_string();
    vec![ip(44), ip(45)]
}

/// The endpoint.
#[derive(Clone)]
struct Endpoint(Arc<TcpListener>);

impl Endpoint {
    /// Opens a connection, accepts it, and closes both ends without leaving state behind.
    fn connect(&self, to: SocketAddr) -> io::Result<()> {
        // Without any rule nothing answers.
        let stream = TcpStream::connect_timeout(&to, GIVE_UP)?;
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
        self.0.accept()?;
        Ok(())
    }

    /// How long it takes until the Service answers. Rejected attempts are repeated after a moment,
    /// so that they do not take the core that the proxy needs.
    fn until_reached(&self, number: usize, begun: Instant) -> Result<Duration> {
        let to = SocketAddr::from((address(number), 80));
        while begun.elapsed() < PATIENCE {
            if self.connect(to).is_ok() {
                return Ok(begun.elapsed());
            }
            thread::sleep(TRY_AGAIN);
        }
        bail!("{to} was never reached")
    }
}

/// A proxy that runs.
enum Running {
    /// In this process.
    Here(CancellationToken, tokio::task::JoinHandle<()>),
    /// A process.
    Process(Child),
}

/// A proxy to measure.
struct Subject {
    name: &'static str,
    objects: Objects,
    client: kube::Client,
    /// kube-proxy, and the address of its API server.
    program: Option<(PathBuf, SocketAddr)>,
}

impl Subject {
    fn start(&self) -> Result<Running> {
        match (&self.program, &self.objects) {
            (Some((program, server)), _) => kube_proxy(program, *server),
            (None, Objects::Informers(sources)) => Running::here(sources, &self.client),
            (None, Objects::Api(_)) => bail!("our proxy reads informers"),
        }
    }
}

/// Starts kube-proxy in nftables mode with its default interval between changes, which only a configuration file can set.
fn kube_proxy(program: &Path, server: SocketAddr) -> Result<Running> {
    let child = Command::new(program)
        .arg(format!("--master=http://{server}"))
        .args([
            "--proxy-mode=nftables",
            "--hostname-override=here",
            "--cluster-cidr=10.42.0.0/16",
        ])
        .args(["--conntrack-max-per-core=0"])
        .args(["--kube-api-content-type=application/json", "--v=0"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("{} does not start", program.display()))?;
    Ok(Running::Process(child))
}

impl Running {
    fn here(sources: &Sources, client: &kube::Client) -> Result<Self> {
        let config = proxy::Config {
            id: "0123abcd".into(),
            client: client.clone(),
            node_name: "here".into(),
            cluster_cidrs: vec!["10.42.0.0/16".parse()?],
            service_cidrs: vec!["10.43.0.0/16".parse()?],
            dns: None,
            allow_external_ips: false,
            health: None,
            metrics: None,
            node_ips: Vec::new(),
            node_port_addresses: Vec::new(),
            clock: Arc::new(stdx::SystemClock),
        };
        let (proxy, stop) = (config.build(Nft::new()), CancellationToken::new());
        let (sources, context) = (sources.clone(), Context::standalone("proxy", stop.clone()));
        let task = tokio::spawn(async move {
            if let Err(error) = proxy.follow(sources, &context).await {
                println!("the proxy failed: {error}");
            }
        });
        Ok(Self::Here(stop, task))
    }

    async fn end(self) -> Result<()> {
        match self {
            Self::Here(stop, task) => {
                stop.cancel();
                task.await?;
            }
            Self::Process(mut child) => {
                child.kill()?;
                child.wait()?;
            }
        }
        Ok(())
    }
}

fn listen() -> Result<Endpoint> {
    let setup: [&[&str]; 5] = [
        &[
            "link", "add", "pods", "type", "veth", "peer", "name", "other",
        ],
        &["link", "set", "other", "up"],
        &["address", "add", "10.42.0.1/16", "dev", "pods"],
        &["link", "set", "pods", "up"],
        &["route", "add", "10.43.0.0/16", "dev", "pods"],
    ];
    for arguments in setup {
        command("ip", arguments)?;
    }
    Ok(Endpoint(Arc::new(TcpListener::bind((ENDPOINT, PORT))?)))
}

/// What was measured beside a number of other Services.
struct Costs {
    /// The time until a new Service was reached.
    reached: Vec<Duration>,
    /// A connection to the endpoint, and one through a Service; the shortest of several runs.
    direct: Duration,
    through: Duration,
}

/// Runs of connections, alternately direct and through a Service, so that other load meets both.
const CONNECTION_RUNS: usize = 5;

async fn connections(endpoint: &Endpoint, to: SocketAddr, count: usize) -> Result<Duration> {
    let endpoint = endpoint.clone();
    let open = move || {
        let begun = Instant::now();
        for _ in 0..count {
            while endpoint.connect(to).is_err() {}
        }
        begun.elapsed() / u32::try_from(count).unwrap_or(u32::MAX)
    };
    Ok(tokio::task::spawn_blocking(open).await?)
}

/// The cost of new Services and connections with the existing ones.
async fn measure(objects: &Objects, endpoint: &Endpoint, arguments: &Arguments) -> Result<Costs> {
    let mut reached = Vec::new();
    for round in 0..arguments.rounds {
        let number = arguments.services + 2 + round;
        tokio::time::sleep(PAUSE).await;
        let begun = Instant::now();
        objects.put(number, &[ENDPOINT.to_owned()])?;
        let endpoint = endpoint.clone();
        let reach = move || endpoint.until_reached(number, begun);
        reached.push(tokio::task::spawn_blocking(reach).await??);
        tokio::time::sleep(PAUSE).await;
        objects.remove(number);
    }
    reached.sort_unstable();
    let direct_to = SocketAddr::new(ENDPOINT.parse()?, PORT);
    let through_to = (address(arguments.services), 80).into();
    let count = (arguments.connections / CONNECTION_RUNS).max(1);
    let (mut direct, mut through) = (Duration::MAX, Duration::MAX);
    for _ in 0..CONNECTION_RUNS {
        direct = direct.min(connections(endpoint, direct_to, count).await?);
        through = through.min(connections(endpoint, through_to, count).await?);
    }
    Ok(Costs {
        reached,
        direct,
        through,
    })
}

impl Costs {
    fn print(&self, name: &str, others: usize) {
        let at = |part: f64| {
            let index = (self.reached.len() as f64 * part) as usize;
            self.reached.get(index).copied().unwrap_or_default()
        };
        let (p50, p99) = (at(0.5), at(0.99));
        println!(
            "{name} beside {others} others: a new Service is reached after p50 {p50:?} p99 {p99:?}"
        );
        println!(
            "{name} beside {others} others: a connection takes {:?} directly, {:?} through a Service, ratio {:.2}",
            self.direct,
            self.through,
            self.through.as_secs_f64() / self.direct.as_secs_f64()
        );
    }
}

/// Measures with ten Services, with all of them, and how long a restart takes.
async fn measure_subject(
    subject: &Subject,
    endpoint: &Endpoint,
    arguments: &Arguments,
) -> Result<()> {
    let (few, last, name) = (10.min(arguments.services), arguments.services, subject.name);
    let objects = &subject.objects;
    for number in 0..few {
        objects.put(number, &elsewhere(number))?;
    }
    objects.put(last, &[ENDPOINT.to_owned()])?;
    let running = subject.start()?;
    endpoint.until_reached(last, Instant::now())?;
    let with_few = measure(objects, endpoint, arguments).await?;
    with_few.print(name, few);
    for number in few..arguments.services {
        objects.put(number, &elsewhere(number))?;
    }
    // Events are processed in order, so that all others are applied before.
    objects.put(last + 1, &[ENDPOINT.to_owned()])?;
    endpoint.until_reached(last + 1, Instant::now())?;
    let with_all = measure(objects, endpoint, arguments).await?;
    with_all.print(name, arguments.services);
    let ratio = with_all.through.as_secs_f64() / with_few.through.as_secs_f64();
    println!(
        "{name}: a connection beside all others costs {ratio:.2} of one beside {few} (goal of mainstay: 1)"
    );
    running.end().await?;
    for _ in 0..5 {
        command("nft", &["flush", "ruleset"])?;
        let begun = Instant::now();
        let running = subject.start()?;
        let endpoint = endpoint.clone();
        let reach = move || endpoint.until_reached(last, begun);
        let took = tokio::task::spawn_blocking(reach).await??;
        println!(
            "{name} restart: all {} Services are served after {took:?}",
            last + 1
        );
        running.end().await?;
    }
    command("nft", &["flush", "ruleset"])
}

fn here() -> Value {
    json!({"metadata": {"name": "here", "uid": "here"}, "spec": {"podCIDR": "10.42.0.0/24", "podCIDRs": ["10.42.0.0/24"]},
        "status": {"addresses": [{"type": "InternalIP", "address": ENDPOINT}]}})
}

/// Measures our proxy, and kube-proxy if it is given.
pub(crate) async fn run(arguments: &Arguments) -> Result<()> {
    let endpoint = listen().context("a link for pods")?;
    let unreachable = tower::service_fn(|_: http::Request<Body>| async {
        Ok::<_, Infallible>(http::Response::new(Body::empty()))
    });
    let client = kube::Client::new(unreachable, "default");
    let ours = Subject {
        name: "mainstay",
        objects: Objects::Informers(Sources::offline(&client)),
        client: client.clone(),
        program: None,
    };
    measure_subject(&ours, &endpoint, arguments).await?;
    if let Some(program) = &arguments.kube_proxy {
        let api = Api::default();
        api.put("Node", here());
        let server = api.start()?;
        let theirs = Subject {
            name: "kube-proxy",
            objects: Objects::Api(api),
            client,
            program: Some((program.clone(), server)),
        };
        measure_subject(&theirs, &endpoint, arguments).await?;
    }
    Ok(())
}
