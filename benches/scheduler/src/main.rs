//! How fast pods get nodes, over the shapes of upstream's scheduler_perf.
//!
//!     cargo build --release -p bench-scheduler
//!     B=target/x86_64-unknown-linux-gnu/release/bench-scheduler
//!     $B decisions                                    # the decision alone, without an API server
//!     $B cluster                                      # our API server with our scheduler inside
//!     $B cluster --kube-scheduler FILE                # and upstream's on the same API server
//!     $B cluster --kubeconfig FILE                    # any cluster with the scheduler that it runs
//!     $B serve DIR --scheduler --controllers          # a control plane for bench-controllers
//!
//! With `cluster`, all pods wait before the scheduler starts, and the rate is taken from the first
//! binding that a watch shows to the last. Of a cluster that runs already, it is taken from the first
//! create on.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "it prints its results")]

mod churn;
mod cluster;
mod decisions;
mod objects;
mod process;
mod serve;
mod shapes;
mod subject;

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Args, Parser, Subcommand};
use shapes::{SHAPES, Shape};

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

#[derive(Debug, Parser)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Decisions only.
    Decisions {
        #[command(flatten)]
        load: Load,
        /// The same seed makes the same decisions.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// With an API server.
    Cluster {
        #[command(flatten)]
        load: Load,
        #[command(flatten)]
        subjects: subject::Options,
    },
    /// Serves the API from a directory, which gets a kubeconfig of the administrator.
    Serve {
        /// Where the store, the keys and the kubeconfigs are.
        directory: PathBuf,
        /// Schedules at once.
        #[arg(long)]
        scheduler: bool,
        /// Runs all controllers, too.
        #[arg(long)]
        controllers: bool,
    },
    /// Runs our scheduler alone; for `cluster`.
    #[command(hide = true)]
    Scheduler { kubeconfig: PathBuf },
}

/// The size of the load.
#[derive(Debug, Clone, Args)]
pub(crate) struct Load {
    /// The number of nodes.
    #[arg(long, default_value_t = 5000)]
    nodes: usize,
    /// The number of pods before the measurement.
    #[arg(long, default_value_t = 1000)]
    initial: usize,
    /// The number of measured pods.
    #[arg(long, default_value_t = 10_000)]
    pods: usize,
    /// Only the shapes of these names.
    #[arg(long, value_delimiter = ',')]
    shape: Vec<String>,
}

impl Load {
    fn wants(&self, shape: &Shape) -> bool {
        self.shape.is_empty() || self.shape.iter().any(|name| name == shape.name)
    }

    fn before(&self, shape: &Shape) -> usize {
        let on_each = shape.before.on_each_node;
        on_each.map_or(self.initial, |pods| pods * self.nodes)
    }

    fn measured(&self, shape: &Shape) -> usize {
        let taken = match shape.before.on_each_node {
            None => self.initial,
            Some(_) => 0,
        };
        if shape.one_on_a_node {
            self.pods.min(self.nodes.saturating_sub(taken))
        } else {
            self.pods
        }
    }

    fn check(&self) -> Result<()> {
        let known = |name: &&String| SHAPES.iter().any(|shape| shape.name == name.as_str());
        if let Some(name) = self.shape.iter().find(|name| !known(name)) {
            let names: Vec<_> = SHAPES.iter().map(|shape| shape.name).collect();
            bail!("no shape {name}; there are {}", names.join(", "));
        }
        println!(
            "{} nodes, {} pods before, {} measured",
            self.nodes, self.initial, self.pods
        );
        Ok(())
    }
}

fn main() -> Result<()> {
    match Options::parse().command {
        Command::Decisions { load, seed } => {
            load.check()?;
            decisions::run(&load, seed)
        }
        Command::Cluster { load, subjects } => {
            load.check()?;
            runtime()?.block_on(cluster::run(&load, &subjects))
        }
        Command::Serve {
            directory,
            scheduler,
            controllers,
        } => runtime()?.block_on(serve::serve(&directory, scheduler, controllers)),
        Command::Scheduler { kubeconfig } => runtime()?.block_on(serve::schedule(&kubeconfig)),
    }
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    Ok(runtime.enable_all().build()?)
}
