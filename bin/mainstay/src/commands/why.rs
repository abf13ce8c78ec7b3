//! `mainstay why`: explains an object's state, and what would help.

use anyhow::Result;
use why::Question;

use crate::cli::Why;

/// Runs with a kubeconfig, as the administrator of the cluster in the data directory, or as this
/// user.
pub(super) fn run(asked: Why) -> Result<()> {
    let question = Question::parse(&asked.words, &asked.namespace, &asked.groups)?;
    let path = super::find_kubeconfig(asked.kubeconfig, &asked.cluster)?;
    let config = super::read_kubeconfig(Some(path), &asked.cluster)?;
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
