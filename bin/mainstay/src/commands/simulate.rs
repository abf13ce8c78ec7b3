//! `mainstay simulate`: simulated nodes, for tests of controllers and schedulers.

use anyhow::{Context, Result, bail};
use lifecycle::Context as Run;
use tokio_util::sync::CancellationToken;

use crate::{cli::Simulate, logging};

/// Runs until a stop signal; then deletes the nodes unless they are to be kept.
pub(super) fn run(asked: Simulate) -> Result<()> {
    logging::start(&cluster::Options::default(), false)?;
    let label = |label: &String| match label.split_once('=') {
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None => bail!("--labels: {label:?} is not KEY=VALUE"),
    };
    let labels = asked.labels.iter().map(label).collect::<Result<_>>()?;
    let nodes = simulate::Nodes {
        count: asked.nodes,
        prefix: asked.prefix,
        shape: simulate::Shape {
            cpu: asked.cpu,
            memory: asked.memory,
            pods: asked.pods,
            zones: asked.zones,
            labels,
        },
    };
    let config = super::read_kubeconfig(asked.kubeconfig, &asked.cluster)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let client = config.client(None)?;
        let token = CancellationToken::new();
        let context = Run::standalone("simulate", token.clone());
        tokio::select! {
            outcome = nodes.clone().run(&context, client.clone()) => {
                outcome.context("cannot register the nodes")?;
                println!("{} simulated nodes are running; stop them with Ctrl-C.", nodes.count);
                super::stopped().await?;
            }
            outcome = super::stopped() => outcome?,
        }
        token.cancel();
        if !asked.keep {
            nodes
                .remove(&client)
                .await
                .context("cannot delete the nodes")?;
        }
        Ok(())
    })
}
