//! `kubectl patch`

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;

use crate::{
    api::{PatchType, Query},
    args::{DryRun, DryRunMode, Files},
    discovery::Resource,
    error, manifest, merge,
    output::PrintFlags,
    resources::{self, Target},
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
        let dry_run = self.dry_run.mode()?;
        let kind = self.check(dry_run)?;
        let patch = self.patch()?;
        // Printed without a suffix for dry runs, as upstream does.
        let report = Report::new(&self.print, DryRunMode::None)?;
        if self.local {
            return self.change_files(kind, &patch, &report).await;
        }
        let selection = (&self.files).into();
        let targets = resources::targets(session, &selection, &self.resources, false).await?;
        if targets.is_empty() {
            bail!("no objects passed to patch");
        }
        let mut errors = Vec::new();
        for target in targets {
            let patched = self.change(session, &target, kind, &patch, &report).await;
            errors.extend(patched.err());
        }
        error::aggregate(errors)
    }

    /// The type of the patch, if the flags fit.
    fn check(&self, dry_run: DryRunMode) -> Result<PatchType> {
        let is_given = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        let is_file = self.file().is_some();
        match (is_given(&self.patch), is_file) {
            (true, true) => bail!("cannot specify --patch and --patch-file together"),
            (false, false) => {
                bail!("must specify --patch or --patch-file containing the contents of the patch")
            }
            _ => {}
        }
        if self.local && !self.resources.is_empty() {
            bail!("cannot specify --local and server resources");
        }
        if self.local && dry_run == DryRunMode::Server {
            bail!("cannot specify --local and --dry-run=server - did you mean --dry-run=client?");
        }
        Ok(match self.kind.to_lowercase().as_str() {
            "json" => PatchType::Json,
            "merge" => PatchType::Merge,
            "strategic" | "" => PatchType::Strategic,
            _ => bail!(
                "--type must be one of [json merge strategic], not {:?}",
                self.kind
            ),
        })
    }

    /// `--local`: changes the objects of the files.
    async fn change_files(&self, kind: PatchType, patch: &Text, report: &Report) -> Result<()> {
        if self.files.is_empty() {
            bail!(resources::NOTHING);
        }
        let mut errors = Vec::new();
        for manifest in manifest::read(&self.files).await? {
            let patched = patched_here(&manifest.object, kind, patch);
            let printed =
                patched.and_then(|after| report.print(&after, deed(&manifest.object, &after)));
            errors.extend(printed.err());
        }
        error::aggregate(errors)
    }

    async fn change(
        &self,
        session: &Session,
        target: &Target,
        kind: PatchType,
        patch: &Text,
        report: &Report,
    ) -> Result<()> {
        let dry_run = self.dry_run.mode()?;
        let mut query: Query = vec![("fieldManager", self.field_manager.clone())];
        query.extend(dry_run.parameter());
        let subresource = self.subresource.as_ref();
        let subresource = subresource.map(|name| format!("/{name}"));
        let path = format!("{}{}", target.path(), subresource.unwrap_or_default());
        // With `--dry-run=client` the object of the file is printed, if it came from one.
        let before = match &target.manifest {
            Some(object) if dry_run.is_client() => object.clone(),
            _ => session.api.get(&path).await?,
        };
        let patched = match dry_run.is_client() {
            true => patched_here(&before, kind, patch)?,
            false => {
                let text = patch.0.clone().into_bytes();
                let patched = session.api.patch_text(&path, kind, text, &query).await;
                let patched =
                    patched.map_err(|error| unsupported(error, kind, &target.resource))?;
                session.record_afterwards(&path, &query).await?;
                patched
            }
        };
        report.print(&patched, deed(&before, &patched))
    }

    fn file(&self) -> Option<&std::path::Path> {
        let file = self.patch_file.as_deref();
        file.filter(|file| !file.as_os_str().is_empty())
    }

    fn patch(&self) -> Result<Text> {
        let text = match (&self.patch, self.file()) {
            (text, None) => text.clone().unwrap_or_default(),
            (_, Some(path)) => std::fs::read_to_string(path).map_err(|error| {
                let reason = error::io_reason(&error);
                anyhow::anyhow!(
                    "unable to read patch file: open {}: {reason}",
                    path.display()
                )
            })?,
        };
        Text::new(text)
    }
}

/// A patch as JSON. What begins as JSON is sent as it is written, and the server rejects invalid
/// text.
#[derive(Debug)]
struct Text(String);

impl Text {
    fn new(text: String) -> Result<Self> {
        if text.trim_start().starts_with('{') {
            return Ok(Self(text));
        }
        let value: Value =
            serde_saphyr::from_str(&text).with_context(|| format!("unable to parse {text:?}"))?;
        Ok(Self(value.to_string()))
    }

    /// For patches that are applied here.
    fn parse(&self, kind: PatchType) -> Result<Value> {
        serde_json::from_str(&self.0).map_err(|_| {
            anyhow::anyhow!(match kind {
                PatchType::Merge => "Invalid JSON Patch",
                _ => "invalid JSON document",
            })
        })
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

/// The object after a patch that is not sent.
fn patched_here(object: &Value, kind: PatchType, patch: &Text) -> Result<Value> {
    if kind == PatchType::Strategic && merge::schema_of(object).is_none() {
        let version = crate::json::str_of(&object["apiVersion"]);
        let version = match version.contains('/') {
            true => version.to_owned(),
            false => format!("/{version}"),
        };
        bail!(
            "strategic merge patch is not supported for {version}, Kind={} locally, try --type merge",
            crate::json::str_of(&object["kind"])
        );
    }
    merge::apply(object, kind, &patch.parse(kind)?).map_err(|error| {
        let message = error.to_string();
        match message.split_once("doc is missing key: ") {
            Some((_, key)) => {
                anyhow::anyhow!("Object to be patched is missing field ({key})")
            }
            None => error,
        }
    })
}

fn deed(before: &Value, after: &Value) -> &'static str {
    match before == after {
        true => "patched (no change)",
        false => "patched",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_json_is_left_to_the_server_and_yaml_becomes_json() {
        let text = |text: &str| Text::new(text.to_owned()).unwrap().0;
        assert_eq!(text("{\"a\""), "{\"a\"");
        assert_eq!(text("{a: b}"), "{a: b}");
        assert_eq!(text("a: {b: [1]}"), "{\"a\":{\"b\":[1]}}");
        let cut = Text("{".to_owned());
        for (kind, expected) in [
            (PatchType::Strategic, "invalid JSON document"),
            (PatchType::Merge, "Invalid JSON Patch"),
        ] {
            assert_eq!(cut.parse(kind).unwrap_err().to_string(), expected);
        }
    }
}
