//! How fast a control plane reconciles workloads on simulated nodes, its memory, and its number of
//! writes. Works with any cluster by kubeconfig.
//!
//!     cargo run --release -p bench-controllers -- --kubeconfig admin.kubeconfig --pid PID --nodes 5000
//!
//! `--pid` names the processes whose memory is printed, separated by commas: the server's, or those of
//! kube-apiserver, kube-controller-manager and kube-scheduler. `--beside` names another control plane, such as
//! upstream's: it runs the same scenarios after the first, and a table compares both. `--server` is a command that
//! starts a server: each scenario then has its own, so that its memory is only that of the scenario.

#![allow(clippy::print_stdout, reason = "it prints its results")]

mod compare;
mod fresh;
mod measure;
mod scenarios;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Parser;
use fresh::Fresh;
use lifecycle::Context;
use measure::Measure;
use scenarios::Scenario;
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

#[derive(Debug, Parser)]
struct Options {
    /// The cluster.
    #[arg(long, required_unless_present = "server")]
    kubeconfig: Option<PathBuf>,
    /// A command that starts a server for each scenario, such as `mainstay server --data-dir {} --node-ip 10.99.0.2`.
    /// `{}` is replaced by an empty directory, in which the server writes admin.kubeconfig.
    #[arg(long, conflicts_with_all = ["kubeconfig", "pid"])]
    server: Option<String>,
    /// Processes whose memory is printed.
    #[arg(long, value_delimiter = ',')]
    pid: Vec<u32>,
    /// Another cluster, which runs the same scenarios afterwards.
    #[arg(long)]
    beside: Option<PathBuf>,
    /// The processes of the other cluster.
    #[arg(long, value_delimiter = ',')]
    beside_pid: Vec<u32>,
    /// How many nodes are simulated.
    #[arg(long, default_value_t = 5000)]
    nodes: usize,
    /// How large scenarios are, in percent.
    #[arg(long, default_value_t = 100)]
    scale: usize,
    /// Only these scenarios, in this order.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Scenario>,
    /// Seconds after a scenario before the memory is measured once more.
    #[arg(long, default_value_t = 30)]
    settle: u64,
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::parse();
    let scenarios = match options.only.is_empty() {
        true => &Scenario::ALL[..],
        false => &options.only,
    };
    let mut first = Vec::new();
    match &options.server {
        Some(command) => {
            for scenario in scenarios {
                let fresh = Fresh::start(command).await?;
                let (kubeconfig, pid) = (fresh.kubeconfig(), fresh.pid());
                first.push(run(&options, &kubeconfig, &[pid], &[*scenario]).await?);
                fresh.stop().await?;
            }
        }
        None => {
            // Without `--server` it is required.
            let kubeconfig = options.kubeconfig.as_deref().context("no --kubeconfig")?;
            first.push(run(&options, kubeconfig, &options.pid, scenarios).await?);
        }
    }
    if let Some(beside) = &options.beside {
        println!();
        let second = run(&options, beside, &options.beside_pid, scenarios).await?;
        println!();
        compare::print(&first, &second);
    }
    Ok(())
}

/// Runs scenarios in one cluster.
async fn run(
    options: &Options,
    kubeconfig: &Path,
    pids: &[u32],
    scenarios: &[Scenario],
) -> Result<Measure> {
    println!("{}", kubeconfig.display());
    let client = client::from_kubeconfig(kubeconfig)?;
    let measure = Measure::new(client.clone(), pids.to_vec(), options.settle);
    let token = CancellationToken::new();
    let context = Context::standalone("bench", token.clone());
    let nodes = simulate::Nodes {
        count: options.nodes,
        prefix: "bench-".to_owned(),
        shape: simulate::Shape {
            zones: 3,
            ..simulate::Shape::default()
        },
    };
    measure.memory("before").await;
    nodes.clone().run(&context, client.clone()).await?;
    measure.memory(&format!("{} nodes", options.nodes)).await;
    measure.idle().await;
    for scenario in scenarios {
        scenario
            .run(&client, &measure, options.nodes, options.scale)
            .await?;
    }
    nodes.remove(&client).await?;
    token.cancel();
    Ok(measure)
}
