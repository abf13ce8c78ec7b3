//! `mainstay version`: this program's version, and that of a kubeconfig's server.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result, bail};
use cluster::Options;
use serde_json::json;
use stdx::Version;

use crate::cli;

/// The timeout of the request.
const PATIENCE: Duration = Duration::from_secs(10);

/// Prints both, and warns if they are incompatible. Without a kubeconfig no server is asked.
pub(super) fn run(asked: cli::Version) -> Result<()> {
    let server = match kubeconfig(&asked)? {
        Some(path) if !asked.client => Some(ask(&path)?),
        _ => None,
    };
    let own = cluster::version();
    match asked.output.as_deref() {
        None => {
            println!("Client: {own}");
            if let Some(server) = &server {
                println!("Server: {server}");
            }
        }
        Some("json") => println!("{}", json!({"client": own, "server": server})),
        Some(other) => bail!("--output: {other:?} is not json"),
    }
    let found = server.and_then(|server| server.parse::<Version>().ok());
    if let Some(found) = found.filter(|found| !Version::own().works_with(*found)) {
        eprintln!(
            "Warning: {} and {found} are more than one minor version apart and do not work together",
            Version::own()
        );
    }
    Ok(())
}

/// The named kubeconfig, or the administrator's if a server has run here.
fn kubeconfig(asked: &cli::Version) -> Result<Option<PathBuf>> {
    if let Some(path) = &asked.kubeconfig {
        return Ok(Some(path.clone()));
    }
    let options = Options {
        data_dir: asked.cluster.data_dir.clone(),
        ..Options::default()
    };
    let path = cluster::settings::data_dir(&options)?.join("admin.kubeconfig");
    Ok(path.exists().then_some(path))
}

fn ask(kubeconfig: &std::path::Path) -> Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let client = client::Kubeconfig::read(kubeconfig)?.client(None)?;
        let answer = tokio::time::timeout(PATIENCE, client.apiserver_version()).await;
        let answer = answer.with_context(|| format!("no answer within {PATIENCE:?}"))?;
        Ok(answer.context("the server's version")?.git_version)
    })
}
