//! A load on any Kubernetes API server: give it a kubeconfig, and it prints a table of rates and
//! latencies, and the same as JSON. It works in a namespace of its own and removes it at the end.
#![allow(clippy::print_stdout)]

mod load;
mod peer;
mod scenario;

use std::{path::PathBuf, time::Duration};

use clap::Parser;
use serde_json::json;

use load::Figures;
use peer::Peer;

/// What to measure.
#[derive(Debug, Clone, Parser)]
struct Arguments {
    /// Whom to ask, and as whom.
    #[arg(long, env = "KUBECONFIG")]
    kubeconfig: PathBuf,
    /// How long each measurement lasts, in seconds.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// How many connections ask at the same time, one measurement each.
    #[arg(long, value_delimiter = ',', default_value = "1,16,64")]
    connections: Vec<usize>,
    /// How many pods stand there when lists are measured.
    #[arg(long, default_value_t = 10_000)]
    pods: usize,
    /// How many watchers follow the same pods.
    #[arg(long, default_value_t = 1000)]
    watchers: usize,
    /// The server's process, to read its memory.
    #[arg(long)]
    pid: Option<u32>,
    /// Where the figures go as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let peer = Peer::read(&arguments.kubeconfig)?;
    let lasts = Duration::from_secs(arguments.seconds);
    let mut table: Vec<Figures> = Vec::new();
    let before = memory(arguments.pid);
    scenario::prepare(&peer).await?;
    for connections in &arguments.connections {
        table.push(scenario::create_maps(&peer, *connections, lasts).await?);
        table.push(scenario::create_pods(&peer, *connections, lasts).await?);
    }
    scenario::fill(&peer, arguments.pods).await?;
    for connections in &arguments.connections {
        table.push(scenario::get(&peer, *connections, lasts, "").await?);
        table.push(scenario::get(&peer, *connections, lasts, "?resourceVersion=0").await?);
    }
    table.push(scenario::list(&peer, 16, lasts, "?limit=500").await?);
    table.push(scenario::list(&peer, 2, lasts, "").await?);
    table.push(scenario::watch(&peer, arguments.watchers, lasts).await?);
    let after = memory(arguments.pid);
    scenario::clean(&peer).await?;
    println!(
        "{:<34} {:>6} {:>11} {:>10} {:>10} {:>10}",
        "what", "conns", "per second", "p50 ms", "p99 ms", "MB/s"
    );
    for figures in &table {
        println!("{figures}");
    }
    if let (Some(before), Some(after)) = (before, after) {
        println!("memory of the server: {before} MB before, {after} MB after");
    }
    if let Some(path) = arguments.json {
        let all: Vec<_> = table.iter().map(Figures::json).collect();
        let all = json!({"figures": all, "memory_mb": {"before": before, "after": after}});
        std::fs::write(path, serde_json::to_vec_pretty(&all)?)?;
    }
    Ok(())
}

/// Resident memory of a process in megabytes.
fn memory(pid: Option<u32>) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid?)).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace()
        .nth(1)?
        .parse::<u64>()
        .ok()
        .map(|kilobytes| kilobytes / 1024)
}
