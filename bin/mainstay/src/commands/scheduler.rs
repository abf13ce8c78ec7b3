//! `mainstay scheduler`: only the scheduler, for another cluster. With `leaderElection` in the
//! configuration, several processes elect a leader.

use anyhow::{Context, Result};
use tokio_util::sync::CancellationToken;

use crate::{cli::Scheduler, logging};

/// Runs until a stop signal.
pub(super) fn run(asked: Scheduler) -> Result<()> {
    let options = cluster::Options {
        log_level: asked.log_level,
        ..cluster::Options::default()
    };
    logging::start(&options, false)?;
    allocator::purge_in_background();
    let document = asked
        .config
        .as_deref()
        .map(cluster::settings::scheduler_config)
        .transpose()?;
    let configuration = document
        .as_ref()
        .map(scheduler::configuration::parse)
        .transpose()
        .map_err(anyhow::Error::msg)?;
    let named = configuration
        .as_ref()
        .and_then(|configuration| configuration.kubeconfig.clone());
    let kubeconfig = asked.kubeconfig.or(named);
    let kubeconfig = kubeconfig.context(
        "which cluster? give --kubeconfig, or clientConnection.kubeconfig in the configuration",
    )?;
    let kubeconfig = client::Kubeconfig::read_list(&kubeconfig)?;
    let rate = configuration
        .as_ref()
        .and_then(|configuration| configuration.rate);
    let election = configuration.and_then(|configuration| configuration.leader_election);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let client = kubeconfig.client(None)?;
        let config = |client: client::kube::Client| {
            // The leader election has its own requests, which do not wait for the scheduler's.
            let client = rate.map_or(client.clone(), |rate| client::limited(&client, rate));
            match &document {
                Some(document) => scheduler::Config::configured(client, document),
                None => Ok(scheduler::Config::new(client)),
            }
        };
        let stop = CancellationToken::new();
        let identity = identity();
        let running = scheduler::alone::run(client, election.as_ref(), &identity, config, &stop);
        tokio::pin!(running);
        let outcome = tokio::select! {
            outcome = &mut running => outcome,
            stopped = super::stopped() => {
                stopped?;
                stop.cancel();
                running.await
            }
        };
        outcome.map_err(anyhow::Error::msg)
    })
}

/// The identity of this process for leader election.
fn identity() -> String {
    let host = nix::unistd::gethostname().ok();
    let host = host.map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    format!("{host}_{}", std::process::id())
}
