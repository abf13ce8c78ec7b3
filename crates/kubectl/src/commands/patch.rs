//! `kubectl patch`

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;

use crate::{
    api::{PatchType, Query},
    args::{DryRun, Files},
    discovery::Resource,
    error, manifest, merge,
    output::PrintFlags,
    resources,
    session::Session,
};

use super::report::Report;

/// Flags of `patch`.
#[derive(Debug, Args)]
pub(crate) struct Patch {
    /// TYPE NAME or TYPE/NAME
    resources: Vec<String>,
    #[command(flatten)]
    files: Files,
    /// The patch to be applied to the resource, as JSON or YAML
    #[arg(short, long)]
    patch: Option<String>,
    /// A file containing a patch to be applied to the resource
    #[arg(long, value_name = "FILE")]
    patch_file: Option<std::path::PathBuf>,
    /// The type of patch being provided: json, merge or strategic
    #[arg(long = "type", default_value = "strategic", value_name = "TYPE")]
    kind: String,
    /// Patch a subresource such as status
    #[arg(long, value_name = "NAME")]
    subresource: Option<String>,
    /// Patch the content of the file and print it, not the server's object
    #[arg(long)]
    local: bool,
    /// Name of the manager used to track field ownership
    #[arg(long, default_value = "kubectl-patch", value_name = "NAME")]
    field_manager: String,
    #[command(flatten)]
    print: PrintFlags,
    #[command(flatten)]
    dry_run: DryRun,
}

impl Patch {
    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        let kind = match self.kind.to_lowercase().as_str() {
            "json" => PatchType::Json,
            "merge" => PatchType::Merge,
            "strategic" => PatchType::Strategic,
            other => {
                bail!("--type must be one of [json merge strategic], not {other:?}");
            }
        };
        let patch = self.patch()?;
        let dry_run = self.dry_run.mode()?;
        let report = Report::new(&self.print, dry_run)?;
        if self.local {
            if !self.resources.is_empty() {
                bail!("cannot specify --local and server resources");
            }
            for manifest in manifest::read(&self.files).await? {
                if matches!(kind, PatchType::Strategic)
                    && merge::schema_of(&manifest.object).is_none()
                {
                    bail!(
                        "strategic merge patch is not supported for {}, Kind={} locally, try --type merge",
                        crate::json::str_of(&manifest.object["apiVersion"]),
                        crate::json::str_of(&manifest.object["kind"])
                    );
                }
                let patched = merge::apply(&manifest.object, kind, &patch)?;
                report.print(&patched, deed(&manifest.object, &patched))?;
            }
            return Ok(());
        }
        let mut query: Query = vec![("fieldManager", self.field_manager.clone())];
        query.extend(dry_run.parameter());
        let selection = (&self.files).into();
        let targets = resources::targets(session, &selection, &self.resources, false).await?;
        if targets.is_empty() {
            bail!("no objects passed to patch");
        }
        for target in targets {
            let subresource = self
                .subresource
                .as_ref()
                .map(|name| format!("/{name}"))
                .unwrap_or_default();
            let path = format!("{}{subresource}", target.path());
            // With `--dry-run=client` the object of the file is printed, if it came from one.
            let before = match &target.manifest {
                Some(object) if dry_run.is_client() => object.clone(),
                _ => session.api.get(&path).await?,
            };
            let patched = match dry_run.is_client() {
                true => merge::apply(&before, kind, &patch)?,
                false => {
                    let patched = session.api.patch(&path, kind, &patch, &query).await;
                    let patched =
                        patched.map_err(|error| unsupported(error, kind, &target.resource))?;
                    session.record_afterwards(&path, &query).await?;
                    patched
                }
            };
            match before == patched && !report.prints_objects() {
                // Printed without the dry-run suffix, as upstream does.
                true => println!("{} patched (no change)", crate::output::name(&patched)),
                false => report.print(&patched, "patched")?,
            }
        }
        Ok(())
    }

    fn patch(&self) -> Result<Value> {
        let text = match (&self.patch, &self.patch_file) {
            (Some(text), None) => text.clone(),
            (None, Some(path)) => std::fs::read_to_string(path).map_err(|error| {
                let reason = error::io_reason(&error);
                anyhow::anyhow!(
                    "unable to read patch file: open {}: {reason}",
                    path.display()
                )
            })?,
            (Some(_), Some(_)) => bail!("cannot specify --patch and --patch-file together"),
            (None, None) => {
                bail!("must specify --patch or --patch-file containing the contents of the patch");
            }
        };
        // Upstream sends invalid JSON, and the server rejects it.
        if text.trim_start().starts_with(['{', '['])
            && let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(&text)
            && error.is_eof()
        {
            let why = "Error from server (BadRequest): unexpected end of JSON input";
            return Err(error::Plain(why.to_owned()).into());
        }
        serde_saphyr::from_str(&text).with_context(|| format!("unable to parse {text:?}"))
    }
}

/// The error for a patch type that the resource does not support.
fn unsupported(error: anyhow::Error, kind: PatchType, resource: &Resource) -> anyhow::Error {
    match error.downcast_ref::<error::ServerError>() {
        Some(error::ServerError(status)) if status.code == 415 => anyhow::anyhow!(
            "{} is not supported by {}, Kind={}: {}",
            kind.media_type(),
            resource.api_version(),
            resource.kind,
            status.message
        ),
        _ => error,
    }
}

fn deed(before: &Value, after: &Value) -> &'static str {
    match before == after {
        true => "patched (no change)",
        false => "patched",
    }
}
