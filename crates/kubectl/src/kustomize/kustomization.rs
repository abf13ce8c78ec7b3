//! The fields of a kustomization file.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow, bail};
use serde::Deserialize;
use serde_json::Value;

use super::{
    fieldspec::FieldSpec, loader::Loader, order::SortOptions, replacements::ReplacementEntry,
    resource::Selector, vars::Var,
};

const NAMES: &[&str] = &["kustomization.yaml", "kustomization.yml", "Kustomization"];
pub(super) const COMPONENT: &str = "Component";

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Kustomization {
    pub api_version: String,
    pub kind: String,
    pub metadata: Value,
    pub openapi: Option<BTreeMap<String, String>>,
    pub name_prefix: String,
    pub name_suffix: String,
    pub namespace: String,
    pub common_labels: Option<BTreeMap<String, String>>,
    pub labels: Vec<Label>,
    pub common_annotations: BTreeMap<String, String>,
    pub patches_strategic_merge: Option<Vec<String>>,
    pub patches_json6902: Option<Vec<PatchEntry>>,
    pub patches: Vec<PatchEntry>,
    pub images: Vec<Image>,
    pub image_tags: Option<Vec<Image>>,
    pub replacements: Vec<ReplacementEntry>,
    pub replicas: Vec<Replica>,
    pub vars: Option<Vec<Var>>,
    pub sort_options: Option<SortOptions>,
    pub resources: Vec<String>,
    pub components: Vec<String>,
    pub crds: Vec<String>,
    pub bases: Option<Vec<String>>,
    pub config_map_generator: Vec<GeneratorArgs>,
    pub secret_generator: Vec<GeneratorArgs>,
    pub helm_globals: Option<Value>,
    pub helm_charts: Vec<Value>,
    pub helm_chart_inflation_generator: Vec<Value>,
    pub generator_options: Option<GeneratorOptions>,
    pub configurations: Vec<String>,
    pub generators: Vec<String>,
    pub transformers: Vec<String>,
    pub validators: Vec<String>,
    pub build_metadata: Vec<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Label {
    pub pairs: BTreeMap<String, String>,
    pub include_selectors: bool,
    pub include_templates: bool,
    #[serde(rename = "fields")]
    pub field_specs: Vec<FieldSpec>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct PatchEntry {
    pub path: String,
    pub patch: String,
    pub target: Option<Selector>,
    pub options: Option<PatchOptions>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct PatchOptions {
    pub allow_name_change: bool,
    pub allow_kind_change: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Image {
    pub name: String,
    pub new_name: String,
    pub tag_suffix: String,
    pub new_tag: String,
    pub digest: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Replica {
    pub name: String,
    pub count: i64,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct GeneratorArgs {
    pub namespace: String,
    pub name: String,
    pub behavior: String,
    pub literals: Vec<String>,
    pub files: Vec<String>,
    pub envs: Vec<String>,
    pub env: String,
    pub options: Option<GeneratorOptions>,
    /// For Secrets.
    #[serde(rename = "type")]
    pub secret_type: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct GeneratorOptions {
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub disable_name_suffix_hash: bool,
    pub immutable: bool,
}

impl Kustomization {
    /// Reads the file of a directory; also returns its name.
    pub(super) fn load(loader: &Loader) -> Result<(Self, &'static str)> {
        let found: Vec<(&'static str, String)> = NAMES
            .iter()
            .filter_map(|name| Some((*name, loader.text(name).ok()?)))
            .collect();
        let root = loader.root().display();
        let (name, text) = match found.as_slice() {
            [] => bail!(
                "unable to find one of 'kustomization.yaml', 'kustomization.yml' or 'Kustomization' in directory '{root}'"
            ),
            [(name, text)] => (*name, text),
            _ => bail!("Found multiple kustomization files under: {root}\n"),
        };
        let mut own = Self::parse(text)?;
        own.warn();
        own.fix();
        if text_is_empty(text) {
            bail!("kustomization.yaml is empty");
        }
        own.check(loader)?;
        Ok((own, name))
    }

    fn parse(text: &str) -> Result<Self> {
        let value: Value = serde_saphyr::from_str(text).map_err(|error| {
            anyhow!("invalid Kustomization: {}", first_line(&error.to_string()))
        })?;
        if value.is_null() {
            return Ok(Self::default());
        }
        serde_json::from_value(without_nulls(value)).map_err(|error| {
            let text = error.to_string();
            match text.strip_prefix("unknown field `") {
                Some(rest) => {
                    let field = rest.split('`').next().unwrap_or_default();
                    anyhow!("invalid Kustomization: json: unknown field {field:?}")
                }
                None => anyhow!("invalid Kustomization: {text}"),
            }
        })
    }

    /// Warns of deprecated fields, which still work.
    fn warn(&self) {
        let warnings = [
            (self.bases.is_some(), "bases", "resources", ""),
            (self.common_labels.is_some(), "commonLabels", "labels", ""),
            (self.image_tags.is_some(), "imageTags", "images", ""),
            (
                self.patches_json6902.is_some(),
                "patchesJson6902",
                "patches",
                "",
            ),
            (
                self.patches_strategic_merge.is_some(),
                "patchesStrategicMerge",
                "patches",
                "",
            ),
            (
                self.vars.is_some(),
                "vars",
                "replacements",
                "[EXPERIMENTAL] ",
            ),
        ];
        for (is_used, field, other, mark) in warnings {
            if is_used {
                eprintln!(
                    "# Warning: '{field}' is deprecated. Please use '{other}' instead. {mark}Run 'kustomize edit fix' to update your Kustomization automatically."
                );
            }
        }
    }

    fn fix(&mut self) {
        if self.kind.is_empty() {
            "Kustomization".clone_into(&mut self.kind);
        }
        self.resources.extend(self.bases.take().unwrap_or_default());
        self.images
            .extend(self.image_tags.take().unwrap_or_default());
        for generator in self
            .config_map_generator
            .iter_mut()
            .chain(&mut self.secret_generator)
        {
            if !generator.env.is_empty() {
                generator.envs.push(std::mem::take(&mut generator.env));
            }
        }
    }

    fn check(&self, loader: &Loader) -> Result<()> {
        let mut wrong = Vec::new();
        if !["Kustomization", COMPONENT].contains(&self.kind.as_str()) {
            wrong.push("kind should be Kustomization or Component".to_owned());
        }
        let version = match self.kind.as_str() {
            COMPONENT => "kustomize.config.k8s.io/v1alpha1",
            _ => "kustomize.config.k8s.io/v1beta1",
        };
        if !self.api_version.is_empty() && self.api_version != version {
            wrong.push(format!("apiVersion for {} should be {version}", self.kind));
        }
        if !wrong.is_empty() {
            bail!(
                "Failed to read kustomization file under {}:\n{}",
                loader.root().display(),
                wrong.join("\n")
            );
        }
        let has_charts =
            !self.helm_charts.is_empty() || !self.helm_chart_inflation_generator.is_empty();
        if has_charts {
            bail!(
                "helmCharts are not supported: inflate the chart with helm template and list the result in resources"
            );
        }
        Ok(())
    }
}

/// Whether it has only apiVersion and kind, which is a mistake.
fn text_is_empty(text: &str) -> bool {
    let value: Value = serde_saphyr::from_str(text).unwrap_or_default();
    value.as_object().is_none_or(|map| {
        map.iter()
            .all(|(key, value)| ["apiVersion", "kind"].contains(&key.as_str()) || value.is_null())
    })
}

/// Go ignores null fields.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(map) => map
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key, without_nulls(value)))
            .collect(),
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        scalar => scalar,
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}
