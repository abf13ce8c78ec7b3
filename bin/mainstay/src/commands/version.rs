//! `mainstay version`: this program's version, and that of a kubeconfig's server.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, bail};
use serde_json::json;
use stdx::Version;

use crate::cli;

/// The timeout of the request.
const PATIENCE: Duration = Duration::from_secs(10);

/// Prints both, and warns if they are incompatible. Without a kubeconfig no server is asked; if it
/// does not answer, that is an error after this program's version.
pub(super) fn run(asked: cli::Version) -> Result<()> {
    let is_named = asked.kubeconfig.is_some();
    let path = super::find_kubeconfig(asked.kubeconfig, &asked.cluster)?;
    let server = match !asked.client && (is_named || path.exists()) {
        true => ask(&path).map(Some),
        false => Ok(None),
    };
    let text = show(&cluster::version(), &server, asked.output.as_deref())?;
    println!("{text}");
    let found = server?.and_then(|server| server.parse::<Version>().ok());
    if let Some(found) = found.filter(|found| !Version::own().works_with(*found)) {
        eprintln!(
            "Warning: {} and {found} are more than one minor version apart and do not work together",
            Version::own()
        );
    }
    Ok(())
}

/// What is known of both.
fn show(own: &str, server: &Result<Option<String>>, output: Option<&str>) -> Result<String> {
    let server = server.as_ref().ok().and_then(Option::as_ref);
    match (output, server) {
        (None, None) => Ok(format!("Client: {own}")),
        (None, Some(server)) => Ok(format!("Client: {own}\nServer: {server}")),
        (Some("json"), _) => Ok(json!({"client": own, "server": server}).to_string()),
        (Some(other), _) => bail!("--output: {other:?} is not json"),
    }
}

fn ask(kubeconfig: &Path) -> Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let client = client::Kubeconfig::read_list(kubeconfig)?.client(None)?;
        let answer = tokio::time::timeout(PATIENCE, client.apiserver_version()).await;
        let answer = answer.with_context(|| format!("no answer within {PATIENCE:?}"))?;
        Ok(answer.context("the server's version")?.git_version)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clients_version_is_printed_also_if_the_server_cannot_be_asked() {
        let refused = Err(anyhow::anyhow!("cannot read the kubeconfig"));
        assert_eq!(show("v1", &refused, None).unwrap(), "Client: v1");
        let json = r#"{"client":"v1","server":null}"#;
        assert_eq!(show("v1", &refused, Some("json")).unwrap(), json);
        let both = show("v1", &Ok(Some("v2".to_owned())), None).unwrap();
        assert_eq!(both, "Client: v1\nServer: v2");
        assert!(show("v1", &refused, Some("yaml")).is_err());
    }
}
