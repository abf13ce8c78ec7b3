//! `kubectl edit`: objects in the user's editor.

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::{
    api::{PatchType, Query},
    args::{DryRunMode, Files, Validate},
    error::{self, Quiet, ServerError},
    json::{list, str_of},
    manifest, merge,
    output::PrintFlags,
    resources::{self, Target},
    session::Session,
    three_way,
};

use super::{editor::Editor, report::Report};

/// Flags of `edit`.
#[derive(Debug, Args)]
pub(crate) struct Edit {
    /// TYPE NAME or TYPE/NAME
    resources: Vec<String>,
    #[command(flatten)]
    files: Files,
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
    /// End lines as Windows does
    #[arg(long)]
    windows_line_endings: bool,
    /// Name of the manager used to track field ownership
    #[arg(long, default_value = "kubectl-edit", value_name = "NAME")]
    field_manager: String,
    #[command(flatten)]
    print: PrintFlags,
}

/// An object to edit as it was read.
struct Original {
    target: Target,
    object: Value,
}

/// What became of edited objects.
#[derive(Default)]
struct Outcome {
    /// Why objects were invalid: the editor is opened again with these lines.
    reasons: Vec<String>,
    is_gone: bool,
    is_refused: bool,
}

impl Edit {
    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        let originals = self.originals(session).await?;
        let before = match originals.as_slice() {
            [] => bail!("edit cancelled, no objects found"),
            [one] => one.object.clone(),
            many => {
                let items: Vec<&Value> = many.iter().map(|one| &one.object).collect();
                json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items})
            }
        };
        let mut editor = Editor::new(&self.print, self.windows_line_endings)?;
        let report = Report::new(&self.print, DryRunMode::None)?;
        let original = editor.text_of(&before);
        let mut text = original.clone();
        let mut reasons: Vec<String> = Vec::new();
        loop {
            let edited = editor.edit_text(&text, &reasons)?;
            if !reasons.is_empty() && edited == text {
                editor.keep_copy()?;
                bail!("Edit cancelled, no valid changes were saved.");
            }
            if edited == original {
                eprintln!("Edit cancelled, no changes made.");
                return Ok(());
            }
            if edited.trim().is_empty() {
                eprintln!("Edit cancelled, saved file was empty.");
                return Ok(());
            }
            text = edited;
            let objects = match manifest::parse(&text, "edited-file") {
                Ok(objects) => objects,
                Err(error) => {
                    reasons = vec![format!("The edited file had a syntax error: {error:#}")];
                    continue;
                }
            };
            let saved = self.save(session, &originals, &objects, &report).await;
            let outcome = match saved {
                Ok(outcome) => outcome,
                Err(error) => {
                    editor.keep_copy()?;
                    return Err(error);
                }
            };
            if outcome.is_refused || outcome.is_gone {
                return say_where(&mut editor, &outcome);
            }
            if outcome.reasons.is_empty() {
                return Ok(());
            }
            reasons = outcome.reasons;
        }
    }

    async fn originals(&self, session: &Session) -> Result<Vec<Original>> {
        let selection = (&self.files).into();
        let targets = resources::targets(session, &selection, &self.resources, true).await?;
        if targets.is_empty() {
            bail!("edit cancelled, no objects found");
        }
        let mut originals = Vec::new();
        for target in targets {
            let mut object = session.api.get(&self.path(&target)).await?;
            let metadata = object.pointer_mut("/metadata");
            if let Some(metadata) = metadata.and_then(Value::as_object_mut) {
                metadata.shift_remove("managedFields");
            }
            originals.push(Original { target, object });
        }
        Ok(originals)
    }

    fn path(&self, target: &Target) -> String {
        let subresource = self
            .subresource
            .as_ref()
            .map(|name| format!("/{name}"))
            .unwrap_or_default();
        format!("{}{subresource}", target.path())
    }

    /// Sends what was changed in each object.
    async fn save(
        &self,
        session: &Session,
        originals: &[Original],
        edited: &[Value],
        report: &Report,
    ) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        for wanted in edited {
            let same = |one: &&Original| {
                one.object["metadata"]["uid"] == wanted["metadata"]["uid"]
                    || one.object["metadata"]["uid"].is_null()
            };
            let Some(Original { target, object }) = originals.iter().find(same) else {
                bail!("no original object found for the edited one");
            };
            let is_same = |path: &str| object.pointer(path) == wanted.pointer(path);
            if !["/apiVersion", "/kind", "/metadata/name"]
                .into_iter()
                .all(is_same)
            {
                bail!("At least one of apiVersion, kind and name was changed");
            }
            let mut wanted = wanted.clone();
            if self.save_config {
                super::apply::annotate(&mut wanted);
            }
            if wanted == *object {
                report.print(object, "skipped")?;
                continue;
            }
            session.record(&mut wanted);
            match self.patch(session, target, object, &wanted).await {
                Ok(after) => report.print(&after, "edited")?,
                Err(error) => outcome.add(target, error)?,
            }
        }
        Ok(outcome)
    }

    async fn patch(
        &self,
        session: &Session,
        target: &Target,
        original: &Value,
        wanted: &Value,
    ) -> Result<Value> {
        let schema = merge::schema_of(original);
        let patch = three_way::patch(original, wanted, original, schema);
        if self.output_patch {
            println!("Patch: {}", crate::json::compact(&patch));
        }
        let how = match schema.is_some() {
            true => PatchType::Strategic,
            false => PatchType::Merge,
        };
        let query: Query = vec![
            self.validate.parameter()?,
            ("fieldManager", self.field_manager.clone()),
        ];
        let path = self.path(target);
        session.api.patch(&path, how, &patch, &query).await
    }
}

impl Outcome {
    /// Says why an object was not saved.
    fn add(&mut self, target: &Target, error: anyhow::Error) -> Result<()> {
        let what = format!("{} {:?}", target.resource.qualified_plural(), target.name);
        let Some(ServerError(status)) = error.downcast_ref() else {
            return Err(error);
        };
        match status.reason.as_str() {
            "Invalid" => {
                let mut reason = format!("{what} was not valid");
                let details = serde_json::to_value(&status.details)?;
                let causes: Vec<&Value> = list(&details["causes"]).collect();
                if !causes.is_empty() {
                    reason.push(':');
                }
                for cause in causes {
                    let (field, message) = (str_of(&cause["field"]), str_of(&cause["message"]));
                    reason.push_str(&format!("\n* {field}: {message}"));
                }
                self.reasons.push(reason);
                eprintln!("error: {what} is invalid");
            }
            "NotFound" => {
                self.is_gone = true;
                eprintln!("error: {what} could not be found on the server");
            }
            _ => {
                self.is_refused = true;
                let why = error::message(&error);
                eprintln!("error: {what} could not be patched: {why}");
            }
        }
        Ok(())
    }
}

/// Says where the changes are that could not be saved.
fn say_where(editor: &mut Editor, outcome: &Outcome) -> Result<()> {
    let file = editor.keep()?.unwrap_or_default();
    let file = file.display();
    match outcome.is_refused {
        true => eprintln!("You can run `kubectl replace -f {file}` to try this update again."),
        false => eprintln!(
            "The edits you made on deleted resources have been saved to {:?}",
            file.to_string()
        ),
    }
    Err(Quiet(1).into())
}
