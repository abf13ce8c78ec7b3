//! `mainstay up`, `mainstay server` and `mainstay agent`: a machine's components in the foreground.

use std::{io::IsTerminal, time::Instant};

use anyhow::{Context, Result, bail};
use cluster::{Options, Role, Running, Settings, agent::Join};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::{checklist, logging, notify, user_kubeconfig};

/// Which components.
pub(super) enum Run {
    /// A control plane and a node.
    Up,
    /// A control plane.
    Server,
    /// A node, with its options for joining.
    Agent(Join),
}

impl Run {
    fn role(&self) -> Role {
        match self {
            Self::Up => Role::Up,
            Self::Server => Role::Server,
            Self::Agent(_) => Role::Agent,
        }
    }
}

/// Runs here, or in the background.
pub(super) fn start(options: Options, what: Run, detach: bool) -> Result<()> {
    if !detach {
        return run(options, what);
    }
    let options = options.with_file()?;
    options.check(what.role())?;
    super::detach::run(&cluster::settings::data_dir(&options)?)
}

/// Runs until a stop signal.
fn run(options: Options, run: Run) -> Result<()> {
    let begun = Instant::now();
    let mut options = options.with_file()?;
    options.check(run.role())?;
    if matches!(run, Run::Agent(_)) && options.node_name.is_none() {
        options.node_name = cluster::agent::joined_name(&cluster::settings::data_dir(&options)?)?;
    }
    logging::start(
        &options,
        std::io::stdout().is_terminal() && std::io::stderr().is_terminal(),
    )?;
    let settings = Settings::resolve(options)?;
    allocator::purge_in_background();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(serve(settings, run, begun))
}

async fn serve(settings: Settings, run: Run, begun: Instant) -> Result<()> {
    cluster::preflight::check(&settings, run.role())?;
    let shutdown = CancellationToken::new();
    let (mut interrupt, mut terminate) = (
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
    );
    let running = async {
        match run {
            Run::Up => Running::up(settings, shutdown.clone()).await,
            Run::Server => Running::server(settings, shutdown.clone()).await,
            Run::Agent(join) => Running::agent(settings, &join, shutdown.clone()).await,
        }
    };
    // An agent may wait for its server for a long time.
    let running = tokio::select! {
        running = running => running?,
        _ = interrupt.recv() => return Ok(()),
        _ = terminate.recv() => return Ok(()),
    };
    tokio::select! {
        () = checklist::show(&running, begun) => notify::ready(),
        _ = interrupt.recv() => shutdown.cancel(),
        _ = terminate.recv() => shutdown.cancel(),
    }
    if !shutdown.is_cancelled() {
        let data_dir = running.settings().data_dir.clone();
        tokio::select! {
            () = user_kubeconfig::keep_current(&data_dir, running.kubeconfigs()) => {}
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        shutdown.cancel();
    }
    if running.settings().shutdown_on_stop {
        checklist::print_line("Stopping; terminating this node's pods first.");
    } else {
        checklist::print_line("Stopping; containers keep running.");
    }
    let unfinished = tokio::select! {
        unfinished = running.stopped() => unfinished,
        _ = interrupt.recv() => bail!("interrupted again; stopped at once"),
    };
    if unfinished.is_empty() {
        return Ok(());
    }
    Err(anyhow::anyhow!("{}", unfinished.join(", ")))
        .context("components that did not stop in time")
}
