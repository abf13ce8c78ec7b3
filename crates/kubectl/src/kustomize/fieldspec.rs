//! Paths to the fields that a transformer changes, such as `spec/template/metadata/labels` of Deployments.

use anyhow::{Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};

use super::id::{Gvk, Id};

/// One field of a kind. Lists on the path are traversed without being named.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct FieldSpec {
    #[serde(flatten)]
    pub gvk: Gvk,
    pub path: String,
    pub create: bool,
}

/// What is created if a field is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    Skip,
    Scalar,
    Map,
}

impl FieldSpec {
    pub(super) fn any(path: &str, create: bool) -> Self {
        Self {
            path: path.to_owned(),
            create,
            ..Self::default()
        }
    }

    /// Calls a function with the field, wherever it is in the object.
    pub(super) fn visit(
        &self,
        object: &mut Value,
        missing: Missing,
        set: &mut dyn FnMut(&mut Value) -> Result<()>,
    ) -> Result<()> {
        if !Gvk::from_object(object).is_selected(&self.gvk) {
            return Ok(());
        }
        let missing = if self.create { missing } else { Missing::Skip };
        let steps = split(&self.path, '/');
        let id = Id::from_object(object);
        walk(object, &steps, missing, set).map_err(|error| {
            anyhow::anyhow!(
                "considering field '{}' of object {id}: {error:#}",
                self.path
            )
        })
    }
}

fn walk(
    value: &mut Value,
    steps: &[String],
    missing: Missing,
    set: &mut dyn FnMut(&mut Value) -> Result<()>,
) -> Result<()> {
    let Some((step, rest)) = steps.split_first() else {
        return set(value);
    };
    match value {
        Value::Null => Ok(()),
        Value::Array(items) => items
            .iter_mut()
            .try_for_each(|item| walk(item, steps, missing, set)),
        Value::Object(map) => {
            let (name, is_list) = match step.strip_suffix("[]") {
                Some(name) => (name, true),
                None => (step.as_str(), false),
            };
            if name.is_empty() {
                bail!("cannot set or create an empty field name");
            }
            let empty = match missing {
                _ if is_list => None,
                Missing::Skip => None,
                Missing::Scalar if rest.is_empty() => Some(json!("")),
                Missing::Scalar | Missing::Map => Some(json!({})),
            };
            if let Some(empty) = empty
                && map.get(name).is_none_or(Value::is_null)
            {
                map.insert(name.to_owned(), empty);
            }
            match map.get_mut(name) {
                Some(field) => walk(field, rest, missing, set),
                None => Ok(()),
            }
        }
        _ => bail!("expected sequence or mapping node"),
    }
}

/// The parts of a path; an escaped separator belongs to its part.
pub(super) fn split(path: &str, separator: char) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    let path = path.strip_prefix(separator).unwrap_or(path);
    for part in path.split(separator) {
        match parts.last_mut() {
            Some(last) if last.ends_with('\\') => {
                last.pop();
                last.push(separator);
                last.push_str(part);
            }
            _ => parts.push(part.to_owned()),
        }
    }
    parts
}

/// Adds new field specs; the same field with another `create` is a conflict.
pub(super) fn merge(specs: &mut Vec<FieldSpec>, more: &[FieldSpec]) -> Result<()> {
    for spec in more {
        let known = specs
            .iter()
            .find(|known| known.gvk.is_selected(&spec.gvk) && known.path == spec.path);
        match known {
            Some(known) if known.create != spec.create => bail!("conflicting fieldspecs"),
            Some(_) => {}
            None => specs.push(spec.clone()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_on_the_way_are_walked_through_and_missing_maps_are_made_on_request() {
        let mut object =
            json!({"kind": "Pod", "spec": {"containers": [{"image": "a"}, {"name": "b"}]}});
        let spec = FieldSpec::any("spec/containers[]/image", true);
        let set = &mut |field: &mut Value| {
            *field = json!("x");
            Ok(())
        };
        spec.visit(&mut object, Missing::Skip, set).unwrap();
        assert_eq!(
            object["spec"]["containers"],
            json!([{"image": "x"}, {"name": "b"}])
        );
        let labels = FieldSpec::any("metadata/labels", true);
        let set = &mut |field: &mut Value| {
            field["a"] = json!("b");
            Ok(())
        };
        labels.visit(&mut object, Missing::Map, set).unwrap();
        assert_eq!(object["metadata"]["labels"], json!({"a": "b"}));
        let other = FieldSpec {
            gvk: Gvk::kind("Job"),
            ..labels
        };
        other
            .visit(&mut object, Missing::Map, &mut |_| bail!("not for Pods"))
            .unwrap();
    }

    #[test]
    fn a_backslash_keeps_a_slash_in_a_part() {
        assert_eq!(
            split(r"/metadata/annotations/a.b\/c", '/'),
            ["metadata", "annotations", "a.b/c"]
        );
    }
}
