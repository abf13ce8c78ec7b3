//! Origins of objects and their changes, recorded as `buildMetadata` requests.

use std::path::{Component, Path, PathBuf};

use serde_json::{Value, json};

use crate::output::yaml;

pub(super) const ORIGIN: &str = "config.kubernetes.io/origin";
pub(super) const TRANSFORMATIONS: &str = "alpha.config.kubernetes.io/transformations";

/// The file of an object, or the kustomization and the generator or transformer that made or
/// changed it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Origin {
    path: String,
    configured_in: String,
    /// The type, name and namespace of a generator or transformer.
    configured_by: Vec<(&'static str, String)>,
}

impl Origin {
    /// The same with a path appended.
    pub(super) fn join(&self, path: &str) -> Self {
        Self {
            path: join(&self.path, path),
            ..self.clone()
        }
    }

    /// A built-in generator or transformer of a kustomization.
    pub(super) fn built_in(&self, file: &str, kind: &str) -> Self {
        Self {
            path: String::new(),
            configured_in: join(&self.path, file),
            configured_by: vec![
                ("apiVersion", "builtin".to_owned()),
                ("kind", kind.to_owned()),
            ],
        }
    }

    /// A generator or transformer configured by an object in a file.
    pub(super) fn plugin(&self, object: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let fields = [
            ("apiVersion", text(&object["apiVersion"])),
            ("kind", text(&object["kind"])),
            ("name", text(&object["metadata"]["name"])),
            ("namespace", text(&object["metadata"]["namespace"])),
        ];
        Self {
            path: String::new(),
            configured_in: self.path.clone(),
            configured_by: fields
                .into_iter()
                .filter(|(_, value)| !value.is_empty())
                .collect(),
        }
    }

    fn value(&self) -> Value {
        let mut value = json!({});
        if !self.path.is_empty() {
            value["path"] = json!(self.path);
        }
        if !self.configured_in.is_empty() {
            value["configuredIn"] = json!(self.configured_in);
        }
        for (field, text) in &self.configured_by {
            value["configuredBy"][field] = json!(text);
        }
        value
    }

    pub(super) fn text(&self) -> String {
        lines(&self.value(), 0)
    }
}

/// The annotation with all transformations of an object.
pub(super) fn list_text(origins: &[Origin]) -> String {
    let item = |origin: &Origin| {
        let text = lines(&origin.value(), 2);
        format!("- {}", text.trim_start())
    };
    origins.iter().map(item).collect()
}

/// A small YAML writer that keeps the order of fields.
fn lines(value: &Value, indent: usize) -> String {
    let mut out = String::new();
    for (key, field) in value.as_object().into_iter().flatten() {
        match field {
            Value::Object(_) => {
                out.push_str(&format!(
                    "{:indent$}{key}:\n{}",
                    "",
                    lines(field, indent + 2)
                ));
            }
            scalar => out.push_str(&format!("{:indent$}{key}: {}", "", yaml::to_string(scalar))),
        }
    }
    out
}

fn join(base: &str, path: &str) -> String {
    let mut parts = PathBuf::new();
    for part in Path::new(base).join(path).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if parts.file_name().is_some() => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_relative_to_the_kustomization_that_is_built() {
        let root = Origin::default();
        assert_eq!(
            root.join("../base").join("a.yaml").text(),
            "path: ../base/a.yaml\n"
        );
        let made = root
            .join("x")
            .built_in("kustomization.yaml", "ConfigMapGenerator");
        assert_eq!(
            made.text(),
            "configuredIn: x/kustomization.yaml\nconfiguredBy:\n  apiVersion: builtin\n  kind: ConfigMapGenerator\n"
        );
        assert_eq!(
            list_text(&[made]),
            "- configuredIn: x/kustomization.yaml\n  configuredBy:\n    apiVersion: builtin\n    kind: ConfigMapGenerator\n"
        );
    }
}
