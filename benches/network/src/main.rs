//! How fast the node's network is, in a network namespace of its own.
//!
//! `cargo run --release -p bench-network -- dns` (as root; needs dnsperf and unbound): names of Services,
//! asked by dnsperf, beside Debian's unbound with the same names as local data.
//!
//! `cargo run --release -p bench-network -- services` (as root; needs nft): how soon a new Service is served
//! beside ten and beside ten thousand others, what connections cost, and how long a restart takes. With
//! `--kube-proxy PROGRAM` also of kube-proxy in nftables mode.
//!
//! `cargo run --release -p bench-network -- paths` (as root; needs nft): throughput, round trips and new connections
//! from pod to pod, through a Service, and through a node port.
//!
//! `cargo run --release -p bench-network -- policies` (as root; needs nft): how soon a changed policy or pod is in the
//! kernel, beside ten thousand policies and beside a tenant's that are as large as they can be.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "it prints its results")]

mod api;
mod dnsperf;
mod paced;
mod paths;
mod policies;
mod services;
mod subject;

use std::{cmp::Ordering, process::ExitCode};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use nix::sched::{CloneFlags, unshare};

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

/// What to measure.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Queries per second for names of Services.
    Dns(Dns),
    /// Programming of Services, and connections through them.
    Services(services::Arguments),
    /// Traffic from pod to pod, through a Service, and through a node port.
    Paths(paths::Arguments),
    /// Programming of network policies.
    Policies(policies::Arguments),
}

#[derive(clap::Args)]
struct Dns {
    /// The number of Services.
    #[arg(long, default_value_t = 1000)]
    services: usize,
    /// Seconds per run.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Runs per server, alternating.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Clients of dnsperf.
    #[arg(long, default_value_t = 16)]
    clients: usize,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    // Before any thread is started, so that all threads and child processes are in the namespace.
    unshare(CloneFlags::CLONE_NEWNET).context("a network namespace needs root")?;
    subject::command("ip", &["link", "set", "lo", "up"])?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    match &arguments.what {
        What::Dns(dns) => runtime.block_on(measure_dns(dns)),
        What::Services(services) => runtime.block_on(services::run(services)),
        What::Paths(paths) => paths::run(paths),
        What::Policies(policies) => runtime.block_on(policies::run(policies)),
    }
}

/// The one in the middle.
fn median<T: Copy + PartialOrd>(values: &[T]) -> Option<T> {
    let mut sorted = values.to_vec();
    sorted.sort_by(|a, b| a.partial_cmp(b).unwrap_or(Ordering::Equal));
    sorted.get(sorted.len() / 2).copied()
}

async fn measure_dns(arguments: &Dns) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let questions = subject::write_questions(directory.path(), arguments.services)?;
    let ours = subject::Mainstay::start(arguments.services).await?;
    let theirs = subject::Unbound::start(directory.path(), arguments.services).await?;
    println!(
        "{:>10} {:>14} {:>14} {:>8}",
        "round", "mainstay q/s", "unbound q/s", "ratio"
    );
    let (mut ratios, mut best) = (Vec::new(), 0.0_f64);
    for round in 1..=arguments.rounds {
        let load = dnsperf::Load {
            questions: &questions,
            clients: arguments.clients,
            seconds: arguments.seconds,
        };
        let mine = load.run(ours.port).await?;
        let other = load.run(theirs.port).await?;
        println!(
            "{round:>10} {mine:>14.0} {other:>14.0} {:>8.2}",
            mine / other
        );
        ratios.push(mine / other);
        best = best.max(other);
    }
    println!(
        "ratio of rates: median {:.2} (goal: above 1)",
        median(&ratios).unwrap_or_default()
    );
    // Latency at half of the other's maximum rate.
    let pace = paced::Pace {
        services: arguments.services,
        rate: best / 2.0,
        seconds: arguments.seconds,
    };
    let mut slowest = Vec::new();
    for round in 1..=arguments.rounds {
        for (name, port) in [("mainstay", ours.port), ("unbound", theirs.port)] {
            let seen = paced::run(port, pace).await?;
            println!(
                "{round:>10} {name} at {:.0} q/s: p50 {:?} p99 {:?}, {} lost",
                pace.rate, seen.p50, seen.p99, seen.lost
            );
            if port == ours.port {
                slowest.push(seen.p99);
            }
        }
    }
    println!(
        "p99 of mainstay: median {:?} (goal: at most 1 ms)",
        median(&slowest).unwrap_or_default()
    );
    Ok(())
}
