//! `kubectl patch`

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;

use crate::{
    api::PatchType,
    args::{DryRun, Output, Selection},
    discovery::Discovery,
    resources,
    session::Session,
};

use super::create::report;

/// Flags of `patch`.
#[derive(Debug, Args)]
pub struct Patch {
    /// TYPE NAME or TYPE/NAME
    resources: Vec<String>,
    #[command(flatten)]
    selection: Selection,
    /// The patch, as JSON or YAML
    #[arg(short, long)]
    patch: Option<String>,
    /// A file with the patch
    #[arg(long, value_name = "FILE")]
    patch_file: Option<std::path::PathBuf>,
    /// json, merge or strategic
    #[arg(long = "type", default_value = "strategic")]
    kind: String,
    /// Patch a subresource such as status
    #[arg(long)]
    subresource: Option<String>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    dry_run: DryRun,
}

impl Patch {
    pub async fn run(self, session: &Session) -> Result<()> {
        let kind = match self.kind.as_str() {
            "json" => PatchType::Json,
            "merge" => PatchType::Merge,
            "strategic" => PatchType::Strategic,
            other => bail!("--type must be one of [json merge strategic], not {other:?}"),
        };
        let text = match (&self.patch, &self.patch_file) {
            (Some(text), None) => text.clone(),
            (None, Some(path)) => std::fs::read_to_string(path)?,
            _ => bail!("must specify --patch or --patch-file containing the contents of the patch"),
        };
        let patch: Value = serde_saphyr::from_str(&text).context("unable to parse the patch")?;
        let discovery = Discovery::load(&session.api).await?;
        let targets =
            resources::targets(session, &discovery, &self.selection, &self.resources, false)
                .await?;
        for target in targets {
            let subresource = self
                .subresource
                .as_ref()
                .map(|name| format!("/{name}"))
                .unwrap_or_default();
            let path = format!("{}{subresource}{}", target.path(), self.dry_run.query());
            let before = session.api.get(&target.path()).await?;
            let patched = session.api.patch(&path, kind, &patch).await?;
            let same =
                before["metadata"]["resourceVersion"] == patched["metadata"]["resourceVersion"];
            let deed = if same {
                "patched (no change)"
            } else {
                "patched"
            };
            report(&patched, deed, &self.output, &self.dry_run)?;
        }
        Ok(())
    }
}
