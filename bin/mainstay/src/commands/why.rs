//! `mainstay why`: why something is as it is, and what would help.

use anyhow::{Context, Result};
use cluster::Options;
use why::Question;

use crate::cli::Why;

/// Runs it with a kubeconfig, or as the administrator of the cluster in the data directory.
pub fn run(asked: Why) -> Result<()> {
    let question = Question::parse(&asked.words, &asked.namespace, &asked.groups)?;
    let path = match asked.kubeconfig {
        Some(path) => path,
        None => {
            let options = Options {
                data_dir: asked.cluster.data_dir,
                ..Options::default()
            };
            cluster::settings::data_dir(&options)?.join("admin.kubeconfig")
        }
    };
    let config = client::Kubeconfig::read(&path);
    let config = config.context("ask on a server of the cluster, or name a --kubeconfig")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let answer = runtime.block_on(async {
        why::answer(&config.client(None)?, &question)
            .await
            .map_err(anyhow::Error::from)
    })?;
    print!("{answer}");
    Ok(())
}
