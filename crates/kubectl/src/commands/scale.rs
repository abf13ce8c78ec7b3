//! `kubectl scale`

use anyhow::{Result, bail};
use clap::Args;
use serde_json::json;

use crate::{
    api::PatchType,
    args::{DryRun, Selection},
    discovery::Discovery,
    resources,
    session::Session,
};

/// Flags of `scale`.
#[derive(Debug, Args)]
pub struct Scale {
    /// TYPE NAME… or TYPE/NAME…
    resources: Vec<String>,
    #[command(flatten)]
    selection: Selection,
    /// The new number
    #[arg(long)]
    replicas: i32,
    /// Only when there are this many now
    #[arg(long)]
    current_replicas: Option<i64>,
    #[command(flatten)]
    dry_run: DryRun,
}

impl Scale {
    pub async fn run(self, session: &Session) -> Result<()> {
        if self.replicas < 0 {
            bail!(
                "The --replicas=COUNT flag is required, and COUNT must be greater than or equal to 0"
            );
        }
        let discovery = Discovery::load(&session.api).await?;
        let targets =
            resources::targets(session, &discovery, &self.selection, &self.resources, false)
                .await?;
        for target in targets {
            let path = format!("{}/scale", target.path());
            if let Some(expected) = self.current_replicas {
                let scale = session.api.get(&path).await?;
                let current = scale["spec"]["replicas"].as_i64().unwrap_or(0);
                if current != expected {
                    bail!("Expected replicas to be {expected}, was {current}");
                }
            }
            if !self.dry_run.is_client() {
                let patch = json!({"spec": {"replicas": self.replicas}});
                let path = format!("{path}{}", self.dry_run.query());
                session.api.patch(&path, PatchType::Merge, &patch).await?;
            }
            println!("{} scaled{}", target.display(), self.dry_run.suffix());
        }
        Ok(())
    }
}
