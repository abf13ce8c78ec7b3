//! `kubectl edit`: objects in the user's editor.

use std::{io::Write, process::Command};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::{
    api::{PatchType, Query},
    args::{DryRunMode, Selection, Validate},
    error, manifest, merge,
    output::{PrintFlags, yaml},
    resources::{self, Target},
    session::Session,
    three_way,
};

use super::report::Report;

/// Flags of `edit`.
#[derive(Debug, Args)]
pub(crate) struct Edit {
    /// TYPE NAME or TYPE/NAME
    resources: Vec<String>,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    validate: Validate,
    /// Output the patch if the resource is edited
    #[arg(long)]
    output_patch: bool,
    /// Edit a subresource such as status
    #[arg(long, value_name = "NAME")]
    subresource: Option<String>,
    /// Save the configuration of the object in its annotation, for later applies
    #[arg(long)]
    save_config: bool,
    /// Name of the manager used to track field ownership
    #[arg(long, default_value = "kubectl-edit", value_name = "NAME")]
    field_manager: String,
    #[command(flatten)]
    print: PrintFlags,
}

impl Edit {
    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        let report = Report::new(&self.print, DryRunMode::None)?;
        let targets = resources::targets(session, &self.selection, &self.resources, false).await?;
        let mut originals = Vec::new();
        for target in &targets {
            let path = self.path(target);
            let mut object = session.api.get(&path).await?;
            if let Some(metadata) = object
                .pointer_mut("/metadata")
                .and_then(Value::as_object_mut)
            {
                metadata.remove("managedFields");
            }
            originals.push(object);
        }
        let before = match originals.as_slice() {
            [] => bail!("edit cancelled, no objects found"),
            [one] => one.clone(),
            many => json!({"apiVersion": "v1", "kind": "List", "items": many}),
        };
        let mut editor = Editor::default();
        let mut text = editor.text_of(&before);
        let mut reason = String::new();
        loop {
            let edited = editor.edit_text(&text, &reason)?;
            if edited == text && reason.is_empty() {
                println!("Edit cancelled, no changes made.");
                return Ok(());
            }
            if edited == text {
                editor.keep(&edited)?;
                bail!("Edit cancelled, no valid changes were saved.");
            }
            text = edited;
            let outcome = self
                .save(session, &targets, &originals, &text, &report)
                .await;
            match outcome {
                Ok(()) => return Ok(()),
                Err(error) => {
                    eprintln!("{}", error::line(&error));
                    reason = error::line(&error);
                }
            }
        }
    }

    fn path(&self, target: &Target) -> String {
        let subresource = self
            .subresource
            .as_ref()
            .map(|name| format!("/{name}"))
            .unwrap_or_default();
        format!("{}{subresource}", target.path())
    }

    async fn save(
        &self,
        session: &Session,
        targets: &[Target],
        originals: &[Value],
        text: &str,
        report: &Report,
    ) -> Result<()> {
        let edited = manifest::parse(&without_comments(text), "the edited file")?;
        for (target, original) in targets.iter().zip(originals) {
            let same = |object: &&Value| {
                object["metadata"]["name"] == original["metadata"]["name"]
                    && object["kind"] == original["kind"]
                    && object["metadata"]["namespace"] == original["metadata"]["namespace"]
            };
            let Some(wanted) = edited.iter().find(same) else {
                bail!("At least one of apiVersion, kind and name was changed");
            };
            let mut wanted = wanted.clone();
            if self.save_config {
                super::apply::annotate(&mut wanted);
            }
            if wanted == *original {
                report.print(original, "skipped")?;
                continue;
            }
            let schema = merge::schema_of(original);
            let patch = three_way::patch(original, &wanted, original, schema);
            if self.output_patch {
                println!("Patch: {patch}");
            }
            let how = if schema.is_some() {
                PatchType::Strategic
            } else {
                PatchType::Merge
            };
            let query: Query = vec![
                self.validate.parameter()?,
                ("fieldManager", self.field_manager.clone()),
            ];
            let after = session
                .api
                .patch(&self.path(target), how, &patch, &query)
                .await?;
            report.print(&after, "edited")?;
        }
        Ok(())
    }
}

/// The user's editor and a file for it.
#[derive(Debug, Default)]
pub(super) struct Editor {
    file: Option<tempfile::NamedTempFile>,
}

const HEAD: &str = "# Edit the object below. Lines that begin with '#' are ignored, and an empty file ends the edit.\n\
                    # If an error occurs while saving, this file is opened again with the failures.\n#\n";

impl Editor {
    /// The text shown for an object.
    pub(super) fn text_of(&self, object: &Value) -> String {
        format!("{HEAD}{}", yaml::to_string(object))
    }

    /// Edits one object.
    pub(super) fn edit_one(&mut self, object: &Value) -> Result<Value> {
        let text = self.text_of(object);
        let edited = self.edit_text(&text, "")?;
        let objects = manifest::parse(&without_comments(&edited), "the edited file")?;
        match objects.as_slice() {
            [one] => Ok(one.clone()),
            _ => bail!("the edited file must hold one object"),
        }
    }

    /// Edits a text, with the reason of a failure at its top.
    pub(super) fn edit_text(&mut self, text: &str, reason: &str) -> Result<String> {
        let mut file = tempfile::Builder::new()
            .prefix("kubectl-edit-")
            .suffix(".yaml")
            .tempfile()?;
        if !reason.is_empty() {
            for line in reason.lines() {
                writeln!(file, "# {line}")?;
            }
            writeln!(file, "#")?;
        }
        file.write_all(text.as_bytes())?;
        file.flush()?;
        launch(file.path())?;
        let edited = std::fs::read_to_string(file.path())?;
        self.file = Some(file);
        if without_comments(&edited).trim().is_empty() {
            bail!("Edit cancelled, saved file was empty.");
        }
        let shown = reason.lines().count() + usize::from(!reason.is_empty());
        Ok(match edited.starts_with("# ") && !reason.is_empty() {
            true => edited
                .lines()
                .skip(shown)
                .map(|line| format!("{line}\n"))
                .collect(),
            false => edited,
        })
    }

    /// Keeps the text in a file for the user.
    fn keep(&mut self, text: &str) -> Result<()> {
        if let Some(file) = self.file.take() {
            let (_, path) = file.keep()?;
            std::fs::write(&path, text)?;
            eprintln!(
                "A copy of your changes has been stored to {:?}",
                path.display().to_string()
            );
        }
        Ok(())
    }
}

fn without_comments(text: &str) -> String {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| format!("{line}\n"))
        .collect()
}

/// Runs `KUBE_EDITOR`, else `EDITOR`, else vi; the variable may include arguments.
fn launch(path: &std::path::Path) -> Result<()> {
    let named = ["KUBE_EDITOR", "EDITOR"]
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|text| !text.is_empty()));
    let editor = named.unwrap_or_else(|| "vi".to_owned());
    let shell = std::env::var("SHELL").unwrap_or_else(|_| "/bin/sh".to_owned());
    let is_simple = !editor.contains(['"', '\'', '\\', '$', '&', '|', ';']);
    let mut command = match is_simple {
        true => {
            let mut words = editor.split_whitespace();
            let mut command = Command::new(words.next().unwrap_or("vi"));
            command.args(words).arg(path);
            command
        }
        false => {
            let mut command = Command::new(shell);
            command
                .arg("-c")
                .arg(format!("{editor} {}", path.display()));
            command
        }
    };
    let status = command
        .status()
        .with_context(|| format!("unable to launch the editor {editor:?}"))?;
    if !status.success() {
        bail!("there was a problem with the editor {editor:?}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_no_part_of_the_object() {
        let editor = Editor::default();
        let text = editor.text_of(&json!({"kind": "A", "data": {"k": "# not a comment"}}));
        let back = without_comments(&text);
        assert_eq!(back, "data:\n  k: '# not a comment'\nkind: A\n");
    }
}
