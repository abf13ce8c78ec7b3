//! The last-applied annotation of client-side apply, and its commands.

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::{
    api::{PatchType, Query},
    args::{DryRun, Files, FilesOrSelector, Validate},
    json, manifest,
    output::{PrintFlags, yaml},
    resources::{self, target_of},
    session::Session,
};

use super::super::{editor::Editor, report::Report};

/// The annotation.
pub(crate) const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Writes the manifest into its own annotation, so that the next apply can find removed fields.
pub(crate) fn annotate(object: &mut Value) {
    if !object["metadata"].is_object() {
        object["metadata"] = json!({});
    }
    if !object["metadata"]["annotations"].is_object() {
        object["metadata"]["annotations"] = json!({});
    }
    if let Some(annotations) = object
        .pointer_mut("/metadata/annotations")
        .and_then(Value::as_object_mut)
    {
        annotations.remove(LAST_APPLIED);
    }
    // Byte-identical to upstream kubectl, so that both can be used on the same object.
    let note = format!("{}\n", json::compact(object));
    object["metadata"]["annotations"][LAST_APPLIED] = Value::String(note);
}

/// The last applied configuration; null if there is none.
pub(crate) fn last_applied(live: &Value) -> Value {
    let note = live["metadata"]["annotations"][LAST_APPLIED].as_str();
    note.and_then(|note| serde_json::from_str(note).ok())
        .unwrap_or_default()
}

/// Flags of `apply view-last-applied`.
#[derive(Debug, Args)]
pub(super) struct View {
    /// TYPE [NAME…] or TYPE/NAME…
    resources: Vec<String>,
    #[command(flatten)]
    selection: FilesOrSelector,
    /// Select all resources in the namespace of the specified resource types
    #[arg(long)]
    all: bool,
    /// yaml or json
    #[arg(short, long, default_value = "yaml")]
    output: String,
}

impl View {
    pub(super) async fn run(self, session: &Session) -> Result<()> {
        let selection: crate::args::Selection = (&self.selection).into();
        if let Some(selector) = selection.selector.as_ref().filter(|_| self.all) {
            bail!(
                "found non-empty label selector {selector:?} with previously set 'all' parameter. "
            );
        }
        for target in resources::targets(session, &selection, &self.resources, self.all).await? {
            let applied = last_applied(&target.get(session).await?);
            if applied.is_null() {
                continue;
            }
            match self.output.as_str() {
                "yaml" => print!("{}", yaml::to_string(&applied)),
                "json" => {
                    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"  ");
                    let mut out = Vec::new();
                    let mut serializer =
                        serde_json::Serializer::with_formatter(&mut out, formatter);
                    serde::Serialize::serialize(&json::sorted(&applied), &mut serializer)?;
                    println!("{}", String::from_utf8_lossy(&out));
                }
                other => {
                    return Err(crate::error::usage(
                        "apply view-last-applied",
                        format!(
                            "Unexpected -o output mode: {other}, the flag 'output' must be one of yaml|json"
                        ),
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Flags of `apply set-last-applied`.
#[derive(Debug, Args)]
pub(super) struct Set {
    /// Files with the last applied configurations
    #[arg(short, long, value_name = "FILE", value_delimiter = ',')]
    filename: Vec<String>,
    /// Also set the annotation on objects that lack it
    #[arg(long)]
    create_annotation: bool,
    #[command(flatten)]
    print: PrintFlags,
    #[command(flatten)]
    dry_run: DryRun,
}

impl Set {
    pub(super) async fn run(self, session: &Session) -> Result<()> {
        let dry_run = self.dry_run.mode()?;
        let report = Report::new(&self.print, dry_run)?;
        if self.filename.iter().all(String::is_empty) {
            bail!(resources::NOTHING);
        }
        let files = Files {
            filename: self.filename.clone(),
            ..Files::default()
        };
        for manifest in manifest::read(&files).await? {
            let target = target_of(session, manifest).await?;
            let live = session.api.get(&target.path()).await?;
            if last_applied(&live).is_null() && !self.create_annotation {
                bail!(
                    "no last-applied-configuration annotation found on resource: {}, to create the annotation, run the command with --create-annotation",
                    target.name
                );
            }
            // The manifest unchanged: unlike `apply`, no empty annotations are added.
            let mut wanted = target.manifest.clone().unwrap_or_default();
            let annotations = wanted.pointer_mut("/metadata/annotations");
            if let Some(annotations) = annotations.and_then(Value::as_object_mut) {
                annotations.remove(LAST_APPLIED);
            }
            let note = json!(format!("{}\n", json::compact(&wanted)));
            if note == live["metadata"]["annotations"][LAST_APPLIED] {
                println!("set-last-applied {}: no changes required.", target.name);
                continue;
            }
            let patch = json!({"metadata": {"annotations": {LAST_APPLIED: note}}});
            let query: Query = dry_run.parameter().into_iter().collect();
            let answer = match dry_run.is_client() {
                true => live,
                false => {
                    session
                        .api
                        .managed_by("")
                        .patch(&target.path(), PatchType::Merge, &patch, &query)
                        .await?
                }
            };
            report.print(&answer, "configured")?;
        }
        Ok(())
    }
}

/// Flags of `apply edit-last-applied`.
#[derive(Debug, Args)]
pub(super) struct Edit {
    /// TYPE NAME or TYPE/NAME
    resources: Vec<String>,
    #[command(flatten)]
    files: Files,
    #[command(flatten)]
    validate: Validate,
    /// Name of the manager used to track field ownership
    #[arg(long, default_value = "kubectl-client-side-apply", value_name = "NAME")]
    field_manager: String,
    /// End lines as Windows does
    #[arg(long)]
    windows_line_endings: bool,
    #[command(flatten)]
    print: PrintFlags,
}

impl Edit {
    pub(super) async fn run(self, session: &Session) -> Result<()> {
        let selection = (&self.files).into();
        let mut applied = Vec::new();
        let targets = resources::targets(session, &selection, &self.resources, true).await?;
        let report = Report::new(&self.print, crate::args::DryRunMode::None)?;
        let mut editor = Editor::new(&self.print, self.windows_line_endings)?;
        for target in targets {
            let live = session.api.get(&target.path()).await?;
            match last_applied(&live) {
                Value::Null => {}
                last => applied.push((target, last)),
            }
        }
        if applied.is_empty() {
            bail!(
                "no last-applied-configuration annotation found on resources, to create the annotation, use command `kubectl apply set-last-applied --create-annotation`"
            );
        }
        let query: Query = vec![
            self.validate.parameter()?,
            ("fieldManager", self.field_manager.clone()),
        ];
        for (target, last) in applied {
            let Some(edited) = editor.edit_one(&last)? else {
                continue;
            };
            let note = format!("{}\n", json::compact(&edited));
            let patch = json!({"metadata": {"annotations": {LAST_APPLIED: note}}});
            let api = &session.api;
            api.patch(&target.path(), PatchType::Merge, &patch, &query)
                .await?;
            report.print(&edited, "edited")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_annotation_holds_the_manifest_without_itself() {
        let mut object = json!({"kind": "A", "metadata": {"name": "x"}});
        annotate(&mut object);
        annotate(&mut object);
        let note = object["metadata"]["annotations"][LAST_APPLIED]
            .as_str()
            .unwrap();
        assert_eq!(
            note,
            "{\"kind\":\"A\",\"metadata\":{\"annotations\":{},\"name\":\"x\"}}\n"
        );
        assert_eq!(last_applied(&object)["metadata"]["name"], "x");
    }
}
