//! `kubectl version`

use anyhow::Result;
use clap::Args;
use serde_json::json;

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
    pub async fn run(self, session: &Session) -> Result<()> {
        let server = if self.client {
            None
        } else {
            Some(session.api.get("/version").await?)
        };
        match Format::parse(self.output.output.as_deref())? {
            Format::Table { .. } => {
                println!("Client Version: {CLIENT}");
                if let Some(server) = server {
                    println!(
                        "Server Version: {}",
                        server["gitVersion"].as_str().unwrap_or_default()
                    );
                }
            }
            format => {
                let mut versions = json!({"clientVersion": {"gitVersion": CLIENT}});
                if let Some(server) = server {
                    versions["serverVersion"] = server;
                }
                format.print(&versions, true)?;
            }
        }
        Ok(())
    }
}
