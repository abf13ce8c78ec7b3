//! Replacements: copy a value of one object, or a fixed one, to fields of others.

use anyhow::{Result, anyhow, bail};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    id::Id,
    loader::Loader,
    paths::{self, Create, scalar_text},
    resource::{Resources, Selector},
};

const DEFAULT_PATH: &str = "metadata.name";

/// One entry of `replacements`: inline, or in a file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ReplacementEntry {
    pub path: String,
    #[serde(flatten)]
    pub replacement: Replacement,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Replacement {
    source: Option<Source>,
    source_value: Option<String>,
    targets: Option<Vec<Target>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Source {
    #[serde(flatten)]
    id: Id,
    field_path: String,
    options: Option<Options>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Target {
    select: Option<Selector>,
    reject: Vec<Selector>,
    field_paths: Vec<String>,
    options: Option<Options>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Options {
    delimiter: String,
    index: i64,
    create: bool,
}

/// The replacements of a kustomization, including those in files.
pub(super) fn load(entries: &[ReplacementEntry], loader: &Loader) -> Result<Vec<Replacement>> {
    let mut found = Vec::new();
    for entry in entries {
        let inline = &entry.replacement;
        if entry.path.is_empty() {
            found.push(inline.clone());
            continue;
        }
        if inline.source.is_some() || inline.targets.as_ref().is_some_and(|t| !t.is_empty()) {
            bail!("cannot specify both path and inline replacement");
        }
        let value: Value = serde_saphyr::from_str(&loader.text(&entry.path)?)?;
        match value {
            Value::Array(_) => found.extend(serde_json::from_value::<Vec<Replacement>>(value)?),
            Value::Object(_) => found.push(serde_json::from_value(value)?),
            _ => bail!("unsupported replacement type encountered within replacement path: string"),
        }
    }
    Ok(found)
}

pub(super) fn run(replacements: &[Replacement], resources: &mut Resources) -> Result<()> {
    for replacement in replacements {
        let Some(targets) = &replacement.targets else {
            bail!("replacements must specify a source and at least one target");
        };
        let value = replacement.value(resources)?;
        for target in targets {
            target.apply(resources, &value)?;
        }
    }
    Ok(())
}

impl Replacement {
    fn value(&self, resources: &Resources) -> Result<Value> {
        match (&self.source, &self.source_value) {
            (None, None) => bail!("replacements must specify a source and at least one target"),
            (Some(_), Some(_)) => bail!("value and resource selectors are mutually exclusive"),
            (None, Some(text)) => Ok(json!(text)),
            (Some(source), None) => source.value(resources),
        }
    }
}

impl Source {
    fn value(&self, resources: &Resources) -> Result<Value> {
        let is_selected = |id: &Id| id.is_selected(&self.id);
        let mut found = resources
            .0
            .iter()
            .filter(|resource| resource.ids().iter().any(is_selected));
        let Some(resource) = found.next() else {
            bail!("nothing selected by {}", self.text());
        };
        if found.next().is_some() {
            bail!("multiple matches for selector {}", self.text());
        }
        let path = match self.field_path.as_str() {
            "" => DEFAULT_PATH,
            path => path,
        };
        let value = paths::lookup(&resource.object, &paths::steps(path))
            .map_err(|error| anyhow!("error looking up replacement source: {error:#}"))?;
        let is_empty = |value: &&Value| {
            crate::json::is_empty(value) && !value.is_boolean() && !value.is_number()
        };
        let Some(value) = value.filter(|value| !is_empty(value)) else {
            bail!(
                "fieldPath `{path}` is missing for replacement source {}",
                self.id
            );
        };
        let Some(options) = self.options.as_ref().filter(|o| !o.delimiter.is_empty()) else {
            return Ok(value.clone());
        };
        if value.is_object() || value.is_array() {
            bail!("delimiter option can only be used with scalar nodes");
        }
        let text = scalar_text(value);
        let parts: Vec<&str> = text.split(&options.delimiter).collect();
        let part = usize::try_from(options.index)
            .ok()
            .and_then(|at| parts.get(at));
        match part {
            Some(part) => Ok(json!(part)),
            None => bail!(
                "options.index {} is out of bounds for value {text}",
                options.index
            ),
        }
    }

    fn text(&self) -> String {
        let mut parts = vec![self.id.to_string()];
        if !self.field_path.is_empty() {
            parts.push(self.field_path.clone());
        }
        if let Some(options) = &self.options
            && (!options.delimiter.is_empty() || options.create)
        {
            parts.push(format!(
                "{}({}), create={}",
                options.delimiter, options.index, options.create
            ));
        }
        parts.join(":")
    }
}

impl Target {
    fn apply(&self, resources: &mut Resources, value: &Value) -> Result<()> {
        let Some(select) = &self.select else {
            bail!("target must specify resources to select");
        };
        for resource in &mut resources.0 {
            let ids = resource.ids();
            if !select.matches_metadata(&resource.object)?
                || self.rejects(&ids, &resource.object)?
            {
                continue;
            }
            let mut is_selected = false;
            for id in &ids {
                is_selected |= select.matches_id(id)?;
            }
            if is_selected {
                self.copy(&mut resource.object, value)?;
                make_texts(&mut resource.object);
            }
        }
        Ok(())
    }

    fn rejects(&self, ids: &[Id], object: &Value) -> Result<bool> {
        for reject in &self.reject {
            let by_metadata = !reject.labels.is_empty() || !reject.annotations.is_empty();
            if by_metadata && reject.matches_metadata(object)? {
                return Ok(true);
            }
            if reject.id == Id::default() {
                continue;
            }
            for id in ids {
                if reject.matches_id(id)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn copy(&self, object: &mut Value, value: &Value) -> Result<()> {
        let default = [DEFAULT_PATH.to_owned()];
        let field_paths = match self.field_paths.as_slice() {
            [] => &default,
            paths => paths,
        };
        let does_create = self.options.as_ref().is_some_and(|options| options.create);
        let create = match does_create {
            true => Create::like(value),
            false => Create::No,
        };
        for path in field_paths {
            let missing = || match does_create {
                true => format!("unable to find or create field {path:?} in replacement target"),
                false => format!("unable to find field {path:?} in replacement target"),
            };
            let set = &mut |field: &mut Value| self.set(field, value);
            let count = paths::visit(object, &paths::steps(path), create, set)
                .map_err(|error| anyhow!("{}: {error:#}", missing()))?;
            if count == 0 {
                bail!("{}", missing());
            }
        }
        Ok(())
    }

    fn set(&self, field: &mut Value, value: &Value) -> Result<()> {
        let is_scalar = |value: &Value| !value.is_object() && !value.is_array();
        let options = self.options.as_ref().filter(|o| !o.delimiter.is_empty());
        let mut text = scalar_text(value);
        if let Some(options) = options {
            if !is_scalar(field) {
                bail!("delimiter option can only be used with scalar nodes");
            }
            let old = scalar_text(field);
            let mut parts: Vec<&str> = old.split(&options.delimiter).collect();
            match usize::try_from(options.index) {
                Err(_) => parts.insert(0, &text),
                Ok(at) if at >= parts.len() => parts.push(&text),
                Ok(at) => parts[at] = &text,
            }
            text = parts.join(&options.delimiter);
        }
        *field = match (is_scalar(field), is_scalar(value)) {
            (true, true) => retyped(field, &text),
            _ => value.clone(),
        };
        Ok(())
    }
}

/// Annotations are text, also those that were created from a number.
fn make_texts(object: &mut Value) {
    let annotations = object.pointer_mut("/metadata/annotations");
    let annotations = annotations.and_then(Value::as_object_mut);
    for value in annotations.into_iter().flat_map(|all| all.values_mut()) {
        if value.is_number() || value.is_boolean() {
            *value = json!(value.to_string());
        }
    }
}

/// A scalar keeps its type: strings stay strings, other types are parsed as YAML.
fn retyped(field: &Value, text: &str) -> Value {
    if field.is_string() {
        return json!(text);
    }
    match serde_saphyr::from_str::<Value>(text) {
        Ok(value) if value.is_number() || value.is_boolean() => value,
        _ => json!(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kustomize::resource::Resource;

    fn replaced(entry: Value) -> Result<Vec<Value>> {
        let source = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"host": "a:80", "n": "3"}});
        let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
            "spec": {"replicas": 1, "url": "http/x/y"}});
        let mut resources = Resources(vec![Resource::new(source), Resource::new(target)]);
        run(&[serde_json::from_value(entry)?], &mut resources)?;
        Ok(resources
            .0
            .into_iter()
            .map(|resource| resource.object)
            .collect())
    }

    #[test]
    fn a_value_is_copied_cut_and_put_into_parts() {
        let entry = |source: Value, target: Value| {
            let mut target = target;
            target["select"] = json!({"kind": "Deploy.*"});
            json!({"source": source, "targets": [target]})
        };
        let out = replaced(entry(
            json!({"kind": "ConfigMap", "fieldPath": "data.n"}),
            json!({"fieldPaths": ["spec.replicas"]}),
        ))
        .unwrap();
        assert_eq!(out[1]["spec"]["replicas"], 3);
        let out = replaced(entry(
            json!({"kind": "ConfigMap", "fieldPath": "data.host", "options": {"delimiter": ":", "index": 0}}),
            json!({"fieldPaths": ["spec.url"], "options": {"delimiter": "/", "index": 1}}),
        ))
        .unwrap();
        assert_eq!(out[1]["spec"]["url"], "http/a/y");
        let out = replaced(entry(
            json!({"kind": "ConfigMap"}),
            json!({"fieldPaths": ["metadata.annotations.[a.b/c]"], "options": {"create": true}}),
        ))
        .unwrap();
        assert_eq!(out[1]["metadata"]["annotations"]["a.b/c"], "c");
        let out = replaced(entry(
            json!({"kind": "ConfigMap", "fieldPath": "data.n"}),
            json!({"fieldPaths": ["metadata.annotations.n", "spec.n"], "options": {"create": true}}),
        ))
        .unwrap();
        assert_eq!(out[1]["metadata"]["annotations"]["n"], "3");
        assert_eq!(out[1]["spec"]["n"], 3);
    }

    #[test]
    fn missing_sources_and_targets_are_errors() {
        let error = |entry: Value| replaced(entry).unwrap_err().to_string();
        let target = json!([{"select": {"kind": "Deployment"}, "fieldPaths": ["spec.none"]}]);
        assert_eq!(
            error(json!({"source": {"kind": "ConfigMap"}, "targets": target})),
            "unable to find field \"spec.none\" in replacement target"
        );
        assert_eq!(
            error(json!({"source": {"kind": "Pod"}, "targets": []})),
            "nothing selected by Pod.[noVer].[noGrp]/[noName].[noNs]"
        );
        assert!(error(json!({"sourceValue": "x"})).contains("at least one target"));
    }
}
