//! `kubectl version`

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::{
    json::{indented, sorted, str_of},
    output::yaml,
    session::Session,
};

/// The version of this client.
pub(super) const CLIENT: &str = concat!("v1.36.4+mainstay-", env!("CARGO_PKG_VERSION"));
/// The version of the built-in Kustomize.
const KUSTOMIZE: &str = crate::kustomize::VERSION;

/// Flags of `version`.
#[derive(Debug, Args)]
pub(crate) struct Version {
    /// If true, shows client version only (no server required)
    #[arg(long)]
    client: bool,
    /// yaml or json
    #[arg(short, long, default_value = "")]
    output: String,
}

impl Version {
    /// Whether no server, and so no kubeconfig, is needed.
    pub(crate) fn is_client_only(&self) -> bool {
        self.client
    }

    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        match session.api.get("/version").await {
            Ok(server) => {
                self.print(Some(&server))?;
                warn_about_skew(&server);
                Ok(())
            }
            Err(error) => {
                self.print(None)?;
                Err(error)
            }
        }
    }

    /// Prints the client's version, and the server's if requested.
    pub(crate) fn print(&self, server: Option<&Value>) -> Result<()> {
        let mut versions = json!({
            "clientVersion": {
                "major": "1", "minor": "36", "gitVersion": CLIENT, "platform": platform(), "compiler": "rustc"},
            "kustomizeVersion": KUSTOMIZE});
        if let Some(server) = server {
            versions["serverVersion"] = server.clone();
        }
        match self.output.as_str() {
            "" => {
                println!("Client Version: {CLIENT}\nKustomize Version: {KUSTOMIZE}");
                if let Some(server) = server {
                    println!("Server Version: {}", str_of(&server["gitVersion"]));
                }
            }
            "json" => println!("{}", indented(&sorted(&versions)).replace("    ", "  ")),
            "yaml" => print!("{}", yaml::to_string(&versions)),
            _ => bail!("--output must be 'yaml' or 'json'"),
        }
        Ok(())
    }
}

fn platform() -> String {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("{}/{architecture}", std::env::consts::OS)
}

/// Warns if the minor versions of client and server differ by more than one.
fn warn_about_skew(server: &Value) {
    let minor: i64 = str_of(&server["minor"])
        .trim_end_matches('+')
        .parse()
        .unwrap_or(36);
    if (minor - 36).abs() > 1 {
        eprintln!(
            "Warning: version difference between client (1.36) and server (1.{minor}) exceeds the supported minor version skew of +/-1"
        );
    }
}

/// For `--match-server-version`.
pub(super) async fn require_match(session: &Session) -> Result<()> {
    let server = session.api.get("/version").await?;
    let version = str_of(&server["gitVersion"]);
    let base = |text: &str| text.split(['+', '-']).next().unwrap_or(text).to_owned();
    match base(version) == base(CLIENT) {
        true => Ok(()),
        false => bail!("server version ({version}) differs from client version ({CLIENT})"),
    }
}
