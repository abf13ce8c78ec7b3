//! `mainstay up`: a one-node cluster in the foreground.

use std::{io::IsTerminal, time::Instant};

use anyhow::{Context, Result, bail};
use cluster::{Options, Running, Settings};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::{checklist, logging};

/// Runs until a signal asks to stop.
pub fn run(options: Options) -> Result<()> {
    let begun = Instant::now();
    let options = options.with_file()?;
    logging::start(
        &options,
        std::io::stdout().is_terminal() && std::io::stderr().is_terminal(),
    )?;
    let settings = Settings::resolve(options)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(serve(settings, begun))
}

async fn serve(settings: Settings, begun: Instant) -> Result<()> {
    cluster::preflight::check(&settings)?;
    let shutdown = CancellationToken::new();
    let (mut interrupt, mut terminate) = (
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
    );
    let running = Running::up(settings, shutdown.clone()).await?;
    tokio::select! {
        () = checklist::show(&running, begun) => {}
        _ = interrupt.recv() => shutdown.cancel(),
        _ = terminate.recv() => shutdown.cancel(),
    }
    if !shutdown.is_cancelled() {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        shutdown.cancel();
    }
    println!("Stopping; containers keep running.");
    let unfinished = tokio::select! {
        unfinished = running.stopped() => unfinished,
        _ = interrupt.recv() => bail!("interrupted again; stopped at once"),
    };
    if unfinished.is_empty() {
        return Ok(());
    }
    Err(anyhow::anyhow!("{}", unfinished.join(", "))).context("parts that did not stop in time")
}
