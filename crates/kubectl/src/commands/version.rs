//! `kubectl version`

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use crate::{args::Output, output::Format, session::Session};

/// The version of this client.
const CLIENT: &str = concat!("v1.36.4+mainstay-", env!("CARGO_PKG_VERSION"));

/// Flags of `version`.
#[derive(Debug, Args)]
pub struct Version {
    /// Do not ask the server
    #[arg(long)]
    client: bool,
    #[command(flatten)]
    output: Output,
}

impl Version {
    /// Whether no server need be asked, and so no kubeconfig is needed.
    pub fn is_client_only(&self) -> bool {
        self.client
    }

    pub async fn run(self, session: &Session) -> Result<()> {
        let server = session.api.get("/version").await?;
        self.print(Some(server))
    }

    /// Prints the client's version, and the server's if it was asked.
    pub fn print(&self, server: Option<Value>) -> Result<()> {
        let format = Format::parse(self.output.output.as_deref())?;
        if let Format::Table { .. } = format {
            println!("Client Version: {CLIENT}");
            if let Some(server) = server {
                println!(
                    "Server Version: {}",
                    server["gitVersion"].as_str().unwrap_or_default()
                );
            }
            return Ok(());
        }
        let mut versions = json!({"clientVersion": {"gitVersion": CLIENT}});
        if let Some(server) = server {
            versions["serverVersion"] = server;
        }
        format.print(&versions, true)
    }
}
