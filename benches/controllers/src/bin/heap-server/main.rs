//! `mainstay server` (with `--node`: `mainstay up`) with a heap profiler: on SIGUSR1 it writes the live memory by call
//! stack to a file.
//!
//!     heap-server --data-dir DIR --heap FILE --node-ip 10.99.0.2 & bench-controllers --pid $! …; kill -USR1 $!

#![allow(clippy::print_stdout, reason = "it prints what it did")]

mod sampled;

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;
use cluster::{Options, Running, Settings};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOCATOR: sampled::Sampled = sampled::Sampled;

#[derive(Debug, Parser)]
struct Arguments {
    /// The file to which the report is written.
    #[arg(long)]
    heap: PathBuf,
    /// Also run a node, with service proxy, network policies and DNS.
    #[arg(long)]
    node: bool,
    #[command(flatten)]
    options: Options,
}

fn main() -> Result<std::process::ExitCode> {
    // The node executes this program again as its helper processes; this must happen before any thread starts.
    if let Some(code) = runtime::reexec::dispatch() {
        return Ok(code);
    }
    let arguments = Arguments::parse();
    // As the server does.
    allocator::purge_in_background();
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(serve(arguments))?;
    Ok(std::process::ExitCode::SUCCESS)
}

async fn serve(arguments: Arguments) -> Result<()> {
    let settings = Settings::resolve(arguments.options)?;
    let (mut report, mut end) = (
        signal(SignalKind::user_defined1())?,
        signal(SignalKind::terminate())?,
    );
    let shutdown = CancellationToken::new();
    let running = match arguments.node {
        true => Running::up(settings, shutdown.clone()).await?,
        false => Running::server(settings, shutdown.clone()).await?,
    };
    loop {
        tokio::select! {
            _ = report.recv() => {
                // Before the report, which takes memory itself.
                println!("{}", sampled::totals());
                std::fs::write(&arguments.heap, sampled::report()?)?;
                println!("{}", arguments.heap.display());
            }
            _ = end.recv() => break,
        }
    }
    shutdown.cancel();
    running.stopped().await;
    Ok(())
}
