//! What a pod's traffic costs: from pod to pod, through a Service, and through a node port from a pod and from another
//! host. Two pods on one node, and a host next to it.

use std::{
    convert::Infallible,
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    process::Command,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use kube::client::Body;
use lifecycle::Context;
use network::{AttachRequest, PodNetwork, RoutedNetwork, netns, nft::Nft};
use network_lab::{self as lab, NODE_IP, Namespace};
use proxy::Sources;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::median;

const ID: &str = "0123abcd";
const PORT: u16 = 8080;
const PATIENCE: Duration = Duration::from_secs(20);
const CHUNK: usize = 128 * 1024;
/// The first byte of a connection: send the received bytes back, or count them.
const ECHO: u8 = b'e';
const COUNT: u8 = b'c';

/// What to measure.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Seconds of each transfer.
    #[arg(long, default_value_t = 2)]
    seconds: u64,
    /// Round trips and connections of each round.
    #[arg(long, default_value_t = 5000)]
    count: u32,
    /// Rounds, alternating between the paths.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// A client's namespace and the server's address as it sees it.
struct Route {
    name: &'static str,
    from: PathBuf,
    to: SocketAddr,
    /// Measured in each round.
    seen: Vec<Seen>,
}

#[derive(Clone, Copy)]
struct Seen {
    megabytes_per_second: f64,
    round_trip: Duration,
    connection: Duration,
}

/// Answers connections on a port of the caller's namespace.
fn serve() -> io::Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", PORT))?;
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut kind = [0];
            // A connection that was only opened is already closed.
            if stream.read_exact(&mut kind).is_ok() {
                thread::spawn(move || match kind[0] {
                    ECHO => echo(stream),
                    _ => count(stream),
                });
            }
        }
    });
    Ok(())
}

fn echo(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut byte = [0];
    loop {
        stream.read_exact(&mut byte)?;
        stream.write_all(&byte)?;
    }
}

fn count(mut stream: TcpStream) -> io::Result<()> {
    let (mut buffer, mut total) = (vec![0; CHUNK], 0_u64);
    loop {
        match stream.read(&mut buffer)? {
            0 => return stream.write_all(&total.to_be_bytes()),
            length => total += length as u64,
        }
    }
}

fn open(to: SocketAddr, kind: u8) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.write_all(&[kind])?;
    Ok(stream)
}

fn measure(to: SocketAddr, time: Duration, count: u32) -> io::Result<Seen> {
    let mut stream = open(to, ECHO)?;
    let begun = Instant::now();
    for _ in 0..count {
        stream.write_all(b"x")?;
        stream.read_exact(&mut [0])?;
    }
    let round_trip = begun.elapsed() / count.max(1);
    let begun = Instant::now();
    for _ in 0..count {
        let stream = TcpStream::connect_timeout(&to, PATIENCE)?;
        // Closes without leaving state behind.
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
    }
    let connection = begun.elapsed() / count.max(1);
    let (mut stream, chunk) = (open(to, COUNT)?, vec![0; CHUNK]);
    let begun = Instant::now();
    while begun.elapsed() < time {
        stream.write_all(&chunk)?;
    }
    stream.shutdown(Shutdown::Write)?;
    let mut total = [0; 8];
    stream.read_exact(&mut total)?;
    let megabytes = u64::from_be_bytes(total) as f64 / 1e6;
    Ok(Seen {
        megabytes_per_second: megabytes / begun.elapsed().as_secs_f64(),
        round_trip,
        connection,
    })
}

/// A node with two pods and a Service to the second one.
struct Node {
    pods: Vec<Namespace>,
    _network: Arc<RoutedNetwork>,
    _state: tempfile::TempDir,
}

impl Node {
    async fn start() -> Result<Self> {
        let (state, nft) = (tempfile::tempdir()?, Nft::new());
        let network = network::Config {
            id: ID.into(),
            state_dir: state.path().into(),
            cluster_cidrs: vec!["10.42.0.0/16".parse()?],
            service_cidrs: vec!["10.43.0.0/16".parse()?],
            node_ips: vec![NODE_IP],
            mtu: 1500,
        };
        let network = network.build(nft.clone())?;
        network.set_pod_cidrs(vec!["10.42.0.0/24".parse()?]).await?;
        let mut pods = Vec::new();
        for name in ["client", "server"] {
            let pod = Namespace::new();
            let request = AttachRequest {
                sandbox_id: name.into(),
                netns: pod.path().into(),
                namespace: "default".into(),
                name: name.into(),
                uid: name.into(),
                ..AttachRequest::default()
            };
            network.attach(request).await?;
            pods.push(pod);
        }
        netns::run(pods[1].path(), serve).await??;
        serve()?;
        run_proxy(nft)?;
        rules_are_written().await?;
        Ok(Self {
            pods,
            _network: network,
            _state: state,
        })
    }
}

fn run_proxy(nft: Nft) -> Result<()> {
    let unreachable = tower::service_fn(|_: http::Request<Body>| async {
        Ok::<_, Infallible>(http::Response::new(Body::empty()))
    });
    let client = kube::Client::new(unreachable, "default");
    let sources = Sources::offline(&client);
    let labels = json!({"kubernetes.io/service-name": "web"});
    let metadata = json!({"name": "web", "namespace": "default", "uid": "web", "labels": labels});
    let service = json!({"metadata": metadata, "spec": {"type": "NodePort", "clusterIP": "10.43.0.9",
        "clusterIPs": ["10.43.0.9"], "ports": [{"name": "http", "port": 80, "targetPort": PORT, "nodePort": 30080,
        "protocol": "TCP"}]}});
    let slice = json!({"metadata": metadata, "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.42.0.2"], "conditions": {"ready": true}}],
        "ports": [{"name": "http", "port": PORT, "protocol": "TCP"}]});
    sources.services.upsert(serde_json::from_value(service)?);
    sources.slices.upsert(serde_json::from_value(slice)?);
    let config = proxy::Config {
        id: ID.into(),
        client,
        node_name: "here".into(),
        cluster_cidrs: vec!["10.42.0.0/16".parse()?],
        service_cidrs: vec!["10.43.0.0/16".parse()?],
        dns: None,
        allow_external_ips: false,
        health: None,
        metrics: None,
        node_ips: vec![NODE_IP],
        node_port_addresses: Vec::new(),
        clock: Arc::new(stdx::SystemClock),
    };
    let proxy = config.build(nft);
    tokio::spawn(async move {
        let context = Context::standalone("proxy", CancellationToken::new());
        if let Err(error) = proxy.follow(sources, &context).await {
            println!("the proxy failed: {error}");
        }
    });
    Ok(())
}

/// Waits until the kernel has the rules of the Service. An attempt before would be tracked without a translation for two
/// minutes; as soon as a later connection had the same source port, it would be refused.
async fn rules_are_written() -> Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let listed = Command::new("nft").args(["list", "ruleset"]).output()?;
        let rules = String::from_utf8_lossy(&listed.stdout);
        if rules.contains("10.43.0.9 . tcp . 80") && rules.contains("tcp . 30080") {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    bail!("the proxy writes no rules")
}

impl Route {
    /// Waits until the server answers.
    async fn opens(&self) -> Result<()> {
        let (begun, to) = (Instant::now(), self.to);
        let open = move || TcpStream::connect_timeout(&to, Duration::from_millis(200)).is_ok();
        while begun.elapsed() < PATIENCE {
            if netns::run(&self.from, open).await? {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        bail!("{}: {to} does not answer", self.name)
    }

    /// The medians, and their ratios to those of another path.
    fn print(&self, base: &Self) {
        let of = |route: &Self, value: fn(&Seen) -> f64| {
            let values: Vec<f64> = route.seen.iter().map(value).collect();
            median(&values).unwrap_or_default()
        };
        let columns: [fn(&Seen) -> f64; 3] = [
            |seen| seen.megabytes_per_second,
            |seen| seen.round_trip.as_secs_f64() * 1e6,
            |seen| seen.connection.as_secs_f64() * 1e6,
        ];
        let [speed, trip, connection] = columns.map(|value| (of(self, value), of(base, value)));
        let show = |(value, base): (f64, f64)| format!("{value:>8.1} ({:.2})", value / base);
        println!(
            "{:<28} {:>18} {:>18} {:>18}",
            self.name,
            show(speed),
            show(trip),
            show(connection)
        );
    }
}

async fn measure_all(outside: &Namespace, arguments: &Arguments) -> Result<()> {
    let node = Node::start().await?;
    let route = |name, from: &Namespace, to: &str| -> Result<Route> {
        let (from, to) = (from.path().to_owned(), to.parse()?);
        Ok(Route {
            name,
            from,
            to,
            seen: Vec::new(),
        })
    };
    let client = &node.pods[0];
    // The first of each client is the base of the others.
    let mut inside = [
        route("pod to pod", client, "10.42.0.2:8080")?,
        route("pod to Service", client, "10.43.0.9:80")?,
        route("pod to node port", client, "192.0.2.1:30080")?,
    ];
    let mut outer = [
        route("outside to node", outside, "192.0.2.1:8080")?,
        route("outside to node port", outside, "192.0.2.1:30080")?,
    ];
    for route in inside.iter().chain(&outer) {
        route.opens().await?;
    }
    for _ in 0..arguments.rounds {
        for route in inside.iter_mut().chain(&mut outer) {
            let (to, time, count) = (
                route.to,
                Duration::from_secs(arguments.seconds),
                arguments.count,
            );
            let seen = netns::run(&route.from, move || measure(to, time, count)).await?;
            route.seen.push(seen.context(route.name)?);
        }
    }
    println!(
        "{:<28} {:>18} {:>18} {:>18}",
        "(ratio to the first)", "MB/s", "round trip, µs", "connection, µs"
    );
    for routes in [&inside[..], &outer[..]] {
        for route in routes {
            route.print(&routes[0]);
        }
    }
    Ok(())
}

/// Measures all paths in namespaces of their own.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let mut outcome = Ok(());
    lab::node(|outside| async {
        outcome = measure_all(&outside, arguments).await;
        drop(outside);
    });
    outcome
}
