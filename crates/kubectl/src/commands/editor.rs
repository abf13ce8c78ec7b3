//! The user's editor: objects as text in a temporary file.

use std::{io::Write, path::PathBuf, process::Command};

use anyhow::{Result, bail};
use serde_json::Value;

use crate::{
    json, manifest,
    output::{PrintFlags, kyaml, yaml},
};

const HEAD: &str = "# Edit the object below. Lines that begin with '#' are ignored, and an empty file ends the edit.\n\
                    # If an error occurs while saving, this file is opened again with the failures.\n#\n";

/// How objects are written for the editor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Yaml,
    Kyaml,
    /// Without comments, which JSON does not have.
    Json,
}

/// An editor, and the file that it was last opened with.
#[derive(Debug)]
pub(super) struct Editor {
    form: Form,
    windows_line_endings: bool,
    file: Option<tempfile::NamedTempFile>,
}

impl Editor {
    /// An editor for the format of `-o`, which is YAML without it.
    pub(super) fn new(print: &PrintFlags, windows_line_endings: bool) -> Result<Self> {
        let form = match print.output.as_deref().unwrap_or_default() {
            "" | "yaml" => Form::Yaml,
            "kyaml" => Form::Kyaml,
            "json" => Form::Json,
            other => bail!(
                "unable to match a printer suitable for the output format \"{other}\", allowed formats are: json,kyaml,yaml"
            ),
        };
        Ok(Self {
            form,
            windows_line_endings,
            file: None,
        })
    }

    /// The text of an object, without comments.
    pub(super) fn text_of(&self, object: &Value) -> String {
        match self.form {
            Form::Yaml => yaml::to_string(object),
            Form::Kyaml => kyaml::to_string(&json::sorted(object)),
            Form::Json => format!("{}\n", json::indented(&json::sorted(object))),
        }
    }

    /// Edits one object; `None` if nothing was changed or the file was emptied.
    pub(super) fn edit_one(&mut self, object: &Value) -> Result<Option<Value>> {
        let text = self.text_of(object);
        let edited = self.edit_text(&text, &[])?;
        if edited == text {
            eprintln!("Edit cancelled, no changes made.");
            return Ok(None);
        }
        if edited.trim().is_empty() {
            eprintln!("Edit cancelled, saved file was empty.");
            return Ok(None);
        }
        let objects = manifest::parse(&edited, "the edited file")?;
        match objects.as_slice() {
            [one] => Ok(Some(one.clone())),
            _ => bail!("the edited file must hold one object"),
        }
    }

    /// Opens the editor with a text, reasons of failures above it; returns the text without comments.
    pub(super) fn edit_text(&mut self, text: &str, reasons: &[String]) -> Result<String> {
        let mut shown = String::new();
        if self.form != Form::Json {
            shown.push_str(HEAD);
            for reason in reasons {
                shown.extend(reason.lines().map(|line| format!("# {line}\n")));
                shown.push_str("#\n");
            }
        }
        shown.push_str(text);
        if self.windows_line_endings {
            shown = shown.replace('\n', "\r\n");
        }
        let suffix = match self.form {
            Form::Json => ".json",
            _ => ".yaml",
        };
        let mut file = tempfile::Builder::new()
            .prefix("kubectl-edit-")
            .suffix(suffix)
            .tempfile()?;
        file.write_all(shown.as_bytes())?;
        file.flush()?;
        launch(file.path())?;
        let edited = std::fs::read_to_string(file.path())?;
        self.file = Some(file);
        Ok(without_comments(&edited.replace("\r\n", "\n")))
    }

    /// Keeps the last file for the user; gives its path.
    pub(super) fn keep(&mut self) -> Result<Option<PathBuf>> {
        match self.file.take() {
            Some(file) => Ok(Some(file.keep()?.1)),
            None => Ok(None),
        }
    }

    /// Keeps the last file and says where, before an error is reported.
    pub(super) fn keep_copy(&mut self) -> Result<()> {
        if let Some(path) = self.keep()? {
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
    let status = command.status();
    if !status.is_ok_and(|status| status.success()) {
        bail!("there was a problem with the editor {editor:?}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_are_written_in_the_asked_form_and_comments_are_no_part_of_them() {
        let object = json!({"kind": "A", "data": {"k": "# not a comment"}});
        for (output, expected) in [
            (None, "data:\n  k: '# not a comment'\nkind: A\n"),
            (Some("yaml"), "data:\n  k: '# not a comment'\nkind: A\n"),
            (
                Some("json"),
                "{\n    \"data\": {\n        \"k\": \"# not a comment\"\n    },\n    \"kind\": \"A\"\n}\n",
            ),
        ] {
            let print = PrintFlags {
                output: output.map(ToOwned::to_owned),
                ..PrintFlags::default()
            };
            let editor = Editor::new(&print, false).unwrap();
            let text = editor.text_of(&object);
            assert_eq!(text, expected);
            assert_eq!(without_comments(&format!("{HEAD}{text}")), text);
        }
        let print = PrintFlags {
            output: Some("name".to_owned()),
            ..PrintFlags::default()
        };
        assert!(Editor::new(&print, false).is_err());
    }
}
