//! Load on any Kubernetes API server and our own: rates, latencies, the server's CPU time and
//! memory, as a table and as JSON. See docs/benchmarks/apiserver.md.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod alone;
mod decide;
mod definitions;
mod extension;
mod flood;
mod load;
mod peer;
mod policies;
mod process;
mod report;
mod scenario;
mod serve;
mod upstream;
mod validate;
mod wire;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand};

use peer::Peer;
use report::{Figures, Run};
use serve::Own;
use upstream::Upstream;

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure one server, or two alternately.
    Run(Box<Measure>),
    /// Measure policies beside upstream's kube-apiserver, rules, and many definitions, with goals.
    Extension(extension::Extension),
    /// Measure RBAC decisions among a thousand bindings.
    Decide,
    /// Measure the validation of an object whose definition has fifty rules.
    Validate,
    /// Measure creates in this process, without a network.
    Alone {
        /// The number of objects per kind.
        #[arg(long, default_value_t = 10_000)]
        count: usize,
        /// Only this resource.
        #[arg(long)]
        only: Option<String>,
        /// Only beside these objects, instead of all in turn.
        #[arg(long)]
        beside: Option<alone::Beside>,
        /// The directory of the store; a tmpfs is fine.
        #[arg(long, default_value = "/dev/shm")]
        data: PathBuf,
    },
    /// Run only our API server, with its data in a directory.
    Serve {
        directory: PathBuf,
        #[arg(long, default_value = "127.0.0.1:0")]
        listen: SocketAddr,
        /// Assign dual-stack addresses to Services.
        #[arg(long)]
        dual_stack: bool,
    },
}

/// What to measure. Without a server, our own is started.
#[derive(Debug, Clone, Args)]
struct Measure {
    /// The server's kubeconfig.
    #[arg(long, conflicts_with = "server")]
    kubeconfig: Option<PathBuf>,
    /// The server's address, as https://127.0.0.1:6443.
    #[arg(long, requires = "token")]
    server: Option<String>,
    /// A bearer token of an administrator.
    #[arg(long)]
    token: Option<String>,
    /// The server's processes, to read their memory and CPU time.
    #[arg(long, value_delimiter = ',')]
    pid: Vec<u32>,
    /// A second server to compare with, by kubeconfig.
    #[arg(long, conflicts_with = "compare_server")]
    compare_kubeconfig: Option<PathBuf>,
    /// A second server to compare with, by address.
    #[arg(long, requires = "compare_token")]
    compare_server: Option<String>,
    #[arg(long)]
    compare_token: Option<String>,
    /// The second server's processes.
    #[arg(long, value_delimiter = ',')]
    compare_pid: Vec<u32>,
    /// A second server to compare with: upstream's kube-apiserver, started from this file.
    #[arg(long, conflicts_with_all = ["compare_server", "compare_kubeconfig"])]
    upstream: Option<PathBuf>,
    /// The etcd for it.
    #[arg(long, default_value = "etcd")]
    etcd: PathBuf,
    /// The data directory of our own server.
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    data: PathBuf,
    /// How long each measurement lasts, in seconds.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// The numbers of concurrent connections, one measurement each.
    #[arg(long, value_delimiter = ',', default_value = "1,16,64")]
    connections: Vec<usize>,
    /// The number of pods for reads.
    #[arg(long, default_value_t = 10_000)]
    pods: usize,
    /// The number of watchers of the same changes.
    #[arg(long, default_value_t = 1000)]
    watchers: usize,
    /// How many requests one user keeps in flight.
    #[arg(long, default_value_t = 2000)]
    flood: usize,
    /// The number of definitions.
    #[arg(long, default_value_t = 1000)]
    definitions: usize,
    /// Only these: get, list, watch, maps, pods (creates), policies, rules, webhooks (creates),
    /// flood, definitions.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "get,list,watch,maps,pods,policies,rules,webhooks,flood,definitions"
    )]
    only: Vec<String>,
    /// The file for the figures as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into()),
        )
        .with_writer(std::io::stderr)
        .init();
    match Arguments::parse().command {
        Command::Run(measure) => measure.run(),
        Command::Extension(extension) => extension.run(),
        Command::Decide => {
            decide::run();
            Ok(())
        }
        Command::Validate => validate::run(),
        Command::Alone {
            count,
            only,
            beside,
            data,
        } => tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(alone::run(
                tempfile::tempdir_in(data)?.path(),
                count,
                only.as_deref(),
                beside,
            )),
        Command::Serve {
            directory,
            listen,
            dual_stack,
        } => tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?
            .block_on(serve::serve(&directory, listen, dual_stack)),
    }
}

impl Measure {
    fn run(self) -> anyhow::Result<()> {
        let (own, mut peers) = self.first()?;
        peers.extend(self.second()?);
        let start = |program: &PathBuf| Upstream::start(program, &self.etcd, &self.data);
        let upstream = self.upstream.as_ref().map(start).transpose()?;
        peers.extend(upstream.iter().map(|upstream| upstream.peer.clone()));
        let mut runs: Vec<Run> = peers
            .iter()
            .map(|peer| Run {
                name: peer.name,
                ..Run::default()
            })
            .collect();
        let mut measurement = Measurement {
            peers: &peers,
            runs: &mut runs,
        };
        self.measure(&mut measurement)?;
        drop((own, upstream));
        for run in &runs {
            run.print();
        }
        if let [one, other] = runs.as_slice() {
            report::compare(one, other);
        }
        if let Some(path) = self.json {
            let all: Vec<_> = runs.iter().map(Run::json).collect();
            std::fs::write(path, serde_json::to_vec_pretty(&all)?)?;
        }
        Ok(())
    }

    fn first(&self) -> anyhow::Result<(Option<Own>, Vec<Peer>)> {
        let pid = self.pid.clone();
        let peer = match (&self.kubeconfig, &self.server, &self.token) {
            (Some(path), _, _) => Peer::read("server", path, pid)?,
            (_, Some(server), Some(token)) => Peer::with_token("server", server, token, pid)?,
            _ => {
                let own = Own::start(&self.data)?;
                let peer = own.peer.clone();
                return Ok((Some(own), vec![peer]));
            }
        };
        Ok((None, vec![peer]))
    }

    fn second(&self) -> anyhow::Result<Option<Peer>> {
        let pid = self.compare_pid.clone();
        let (kubeconfig, server, token) = (
            &self.compare_kubeconfig,
            &self.compare_server,
            &self.compare_token,
        );
        Ok(match (kubeconfig, server, token) {
            (Some(path), _, _) => Some(Peer::read("other", path, pid)?),
            (_, Some(server), Some(token)) => Some(Peer::with_token("other", server, token, pid)?),
            _ => None,
        })
    }

    fn wants(&self, what: &str) -> bool {
        self.only.iter().any(|only| only == what)
    }

    fn measure(&self, measurement: &mut Measurement<'_>) -> anyhow::Result<()> {
        let lasts = Duration::from_secs_f64(self.seconds);
        measurement.remember("idle");
        for peer in measurement.peers {
            scenario::prepare(peer)?;
            scenario::fill(peer, self.pods)?;
        }
        measurement.remember("with the pods");
        if self.wants("get") {
            for query in ["", "?resourceVersion=0"] {
                for count in &self.connections {
                    measurement.take(|peer| scenario::get(peer, *count, lasts, query))?;
                }
            }
        }
        if self.wants("list") {
            measurement.take(|peer| scenario::list(peer, 1, lasts, "?limit=500"))?;
            measurement.take(|peer| scenario::list(peer, 16, lasts, "?limit=500"))?;
            measurement.take(|peer| scenario::list(peer, 2, lasts, ""))?;
        }
        if self.wants("watch") {
            measurement.take(|peer| scenario::watch(peer, self.watchers))?;
            measurement.take(|peer| scenario::watch_flow(peer, self.watchers, lasts))?;
        }
        measurement.remember("after the reads");
        if self.wants("maps") {
            for count in &self.connections {
                measurement.take(|peer| scenario::create_maps(peer, *count, lasts))?;
            }
        }
        if self.wants("pods") {
            for count in &self.connections {
                measurement.take(|peer| scenario::create_pods(peer, *count, lasts))?;
            }
        }
        if self.wants("policies") {
            for count in &self.connections {
                measurement.take(|peer| policies::create_maps(peer, *count, lasts))?;
            }
        }
        if self.wants("rules") {
            for count in &self.connections {
                measurement.take(|peer| policies::create_ruled(peer, *count, lasts))?;
            }
        }
        if self.wants("webhooks") {
            for count in &self.connections {
                measurement.take(|peer| scenario::create_maps(peer, *count, lasts))?;
                measurement.take(|peer| policies::create_unmatched(peer, *count, lasts))?;
            }
        }
        if self.wants("flood") {
            for (peer, run) in measurement.both() {
                let flooded = flood::run(peer, self.flood, lasts)?;
                for figures in &flooded.figures {
                    eprintln!("{:<9} {}", peer.name, figures.line());
                }
                run.table.extend(flooded.figures);
                println!(
                    "{}: a flood of {} in flight: {} served, {} turned away",
                    peer.name, self.flood, flooded.served, flooded.turned_away
                );
            }
        }
        if self.wants("definitions") {
            for (peer, run) in measurement.both() {
                let served = definitions::run(peer, self.definitions)?;
                run.table.extend(served.documents);
            }
        }
        for peer in measurement.peers {
            scenario::clean(peer)?;
        }
        Ok(())
    }
}

/// The servers, and their figures so far.
struct Measurement<'a> {
    peers: &'a [Peer],
    runs: &'a mut [Run],
}

impl Measurement<'_> {
    fn both(&mut self) -> impl Iterator<Item = (&Peer, &mut Run)> {
        self.peers.iter().zip(self.runs.iter_mut())
    }

    /// Runs the same on each server, one after the other, so that both see the same state of the
    /// machine.
    fn take(&mut self, what: impl Fn(&Peer) -> anyhow::Result<Figures>) -> anyhow::Result<()> {
        for (peer, run) in self.both() {
            let figures = what(peer)?;
            eprintln!("{:<9} {}", peer.name, figures.line());
            run.table.push(figures);
        }
        Ok(())
    }

    fn remember(&mut self, when: &'static str) {
        for (peer, run) in self.both() {
            if let Some(megabytes) = process::memory(&peer.processes) {
                run.memory.push((when, megabytes));
            }
        }
    }
}
