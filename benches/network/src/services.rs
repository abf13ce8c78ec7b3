//! How long a Service takes from the proxy's events to an open connection, with few and with many
//! other Services.

use std::{
    convert::Infallible,
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
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

use crate::subject::command;

/// The address of the endpoint that answers; all measured Services lead to it.
const ENDPOINT: &str = "10.42.0.1";
const PORT: u16 = 8080;
const PATIENCE: Duration = Duration::from_secs(60);
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

fn put(sources: &Sources, number: usize, endpoints: &[String]) -> Result<()> {
    let slice = serde_json::from_value(slice(number, endpoints))?;
    sources
        .services
        .upsert(serde_json::from_value(service(number))?);
    sources.slices.upsert(slice);
    Ok(())
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

/// A proxy in this process.
struct Running {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Running {
    fn start(sources: &Sources, client: &kube::Client) -> Result<Self> {
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
        Ok(Self { stop, task })
    }

    async fn end(self) -> Result<()> {
        self.stop.cancel();
        Ok(self.task.await?)
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

/// Prints the cost of new Services and connections with the existing ones.
async fn measure(
    sources: &Sources,
    endpoint: &Endpoint,
    others: usize,
    arguments: &Arguments,
) -> Result<()> {
    let mut took = Vec::new();
    for round in 0..arguments.rounds {
        let number = arguments.services + 1 + round;
        tokio::time::sleep(PAUSE).await;
        let begun = Instant::now();
        put(sources, number, &[ENDPOINT.to_owned()])?;
        let endpoint = endpoint.clone();
        let reach = move || endpoint.until_reached(number, begun);
        took.push(tokio::task::spawn_blocking(reach).await??);
        tokio::time::sleep(PAUSE).await;
        sources.services.remove("default", &name(number));
        sources.slices.remove("default", &name(number));
    }
    took.sort_unstable();
    let at = |part: f64| took.get((took.len() as f64 * part) as usize).copied();
    let (p50, p99) = (at(0.5).unwrap_or_default(), at(0.99).unwrap_or_default());
    println!("beside {others} others: a new Service is reached after p50 {p50:?} p99 {p99:?}");
    let number = arguments.services;
    let through = (address(number), 80).into();
    for (what, to) in [
        ("directly", SocketAddr::new(ENDPOINT.parse()?, PORT)),
        ("through a Service", through),
    ] {
        let (count, endpoint) = (arguments.connections, endpoint.clone());
        let open = move || -> io::Result<Duration> {
            let begun = Instant::now();
            for _ in 0..count {
                while endpoint.connect(to).is_err() {}
            }
            Ok(begun.elapsed() / u32::try_from(count).unwrap_or(u32::MAX))
        };
        let each = tokio::task::spawn_blocking(open).await?;
        println!(
            "beside {others} others: a connection {what} takes {:?}",
            each?
        );
    }
    Ok(())
}

/// Measures with ten Services, with all of them, and how long a restart takes.
pub(crate) async fn run(arguments: &Arguments) -> Result<()> {
    let endpoint = listen().context("a link for pods")?;
    let nobody = tower::service_fn(|_: http::Request<Body>| async {
        Ok::<_, Infallible>(http::Response::new(Body::empty()))
    });
    let client = kube::Client::new(nobody, "default");
    let sources = Sources::offline(&client);
    let (few, last) = (10.min(arguments.services), arguments.services);
    for number in 0..few {
        put(&sources, number, &elsewhere(number))?;
    }
    put(&sources, last, &[ENDPOINT.to_owned()])?;
    let running = Running::start(&sources, &client)?;
    endpoint.until_reached(last, Instant::now())?;
    measure(&sources, &endpoint, few, arguments).await?;
    for number in few..arguments.services {
        put(&sources, number, &elsewhere(number))?;
    }
    // Events are processed in order, so that all others are applied before.
    put(&sources, last + 1, &[ENDPOINT.to_owned()])?;
    endpoint.until_reached(last + 1, Instant::now())?;
    measure(&sources, &endpoint, arguments.services, arguments).await?;
    running.end().await?;
    for _ in 0..3 {
        command("nft", &["flush", "ruleset"])?;
        let begun = Instant::now();
        let running = Running::start(&sources, &client)?;
        let endpoint = endpoint.clone();
        let reach = move || endpoint.until_reached(last, begun);
        let took = tokio::task::spawn_blocking(reach).await??;
        println!(
            "restart: all {} Services are served after {took:?}",
            last + 1
        );
        running.end().await?;
    }
    Ok(())
}
