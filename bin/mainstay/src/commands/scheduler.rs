//! `mainstay scheduler`: the scheduler alone, for a cluster that is served elsewhere. There is no leader
//! election here: run one process for each scheduler name.

use std::sync::Arc;

use anyhow::Result;
use lifecycle::{Context as Run, Service};
use tokio_util::sync::CancellationToken;

use crate::{cli::Scheduler, logging};

/// Runs until a signal asks to stop.
pub fn run(asked: Scheduler) -> Result<()> {
    let options = cluster::Options {
        log_level: asked.log_level,
        ..cluster::Options::default()
    };
    logging::start(&options, false)?;
    let document = asked
        .config
        .as_deref()
        .map(cluster::settings::scheduler_config)
        .transpose()?;
    let kubeconfig = client::Kubeconfig::read(&asked.kubeconfig)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let client = kubeconfig.client(None)?;
        let config = match &document {
            Some(document) => scheduler::Config::configured(client, document),
            None => Ok(scheduler::Config::new(client)),
        };
        let scheduler = config.map_err(anyhow::Error::msg)?.build();
        let token = CancellationToken::new();
        let context = Run::standalone("scheduler", token.clone());
        tokio::select! {
            outcome = Arc::new(scheduler).run(context) => {
                outcome.map_err(|error| anyhow::anyhow!("{error}"))?;
            }
            outcome = super::stopped() => outcome?,
        }
        token.cancel();
        Ok(())
    })
}
