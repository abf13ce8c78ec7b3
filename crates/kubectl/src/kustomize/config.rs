//! Which fields transformers change: of built-in kinds, and those added by `configurations` and
//! `crds`.

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;

use super::{
    fieldspec::{FieldSpec, merge},
    id::Gvk,
    loader::Loader,
};
use crate::json::entries;

/// The fields that reference objects of a kind by name.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct NameReference {
    #[serde(flatten)]
    pub target: Gvk,
    #[serde(rename = "fieldSpecs")]
    pub referrers: Vec<FieldSpec>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Config {
    pub name_prefix: Vec<FieldSpec>,
    pub name_suffix: Vec<FieldSpec>,
    pub namespace: Vec<FieldSpec>,
    pub common_labels: Vec<FieldSpec>,
    pub labels: Vec<FieldSpec>,
    pub template_labels: Vec<FieldSpec>,
    pub common_annotations: Vec<FieldSpec>,
    pub name_reference: Vec<NameReference>,
    pub var_reference: Vec<FieldSpec>,
    pub images: Vec<FieldSpec>,
    pub replicas: Vec<FieldSpec>,
}

const FIELDS: &[&str] = &[
    "namePrefix",
    "nameSuffix",
    "namespace",
    "commonLabels",
    "labels",
    "templateLabels",
    "commonAnnotations",
    "nameReference",
    "varReference",
    "images",
    "replicas",
];

impl Config {
    /// The defaults, with those of the kustomization's files.
    pub(super) fn load(
        loader: &Loader,
        configurations: &[String],
        crds: &[String],
    ) -> Result<Self> {
        let mut config = super::defaults::config();
        for path in configurations {
            let value: Value = serde_saphyr::from_str(&loader.text(path)?)?;
            if let Some((field, _)) = entries(&value)
                .into_iter()
                .find(|(field, _)| !FIELDS.contains(field))
            {
                anyhow::bail!(
                    "error unmarshaling JSON: while decoding JSON: json: unknown field {field:?}"
                );
            }
            config.merge(&serde_json::from_value(value)?)?;
        }
        for path in crds {
            let definitions: Value = serde_saphyr::from_str(&loader.text(path)?)
                .with_context(|| format!("unable to parse open API definition from '{path}'"))?;
            config.merge(&from_definitions(&definitions))?;
        }
        Ok(config)
    }

    pub(super) fn merge(&mut self, other: &Self) -> Result<()> {
        for (own, more, name) in [
            (&mut self.name_prefix, &other.name_prefix, "NamePrefix"),
            (&mut self.name_suffix, &other.name_suffix, "NameSuffix"),
            (&mut self.namespace, &other.namespace, "NameSpace"),
            (
                &mut self.common_annotations,
                &other.common_annotations,
                "CommonAnnotations",
            ),
            (
                &mut self.common_labels,
                &other.common_labels,
                "CommonLabels",
            ),
            (&mut self.labels, &other.labels, "Labels"),
            (
                &mut self.template_labels,
                &other.template_labels,
                "TemplateLabels",
            ),
            (
                &mut self.var_reference,
                &other.var_reference,
                "VarReference",
            ),
            (&mut self.images, &other.images, "Images"),
            (&mut self.replicas, &other.replicas, "Replicas"),
        ] {
            merge(own, more).with_context(|| format!("failed to merge {name} fieldSpec"))?;
        }
        for reference in &other.name_reference {
            let known = self
                .name_reference
                .iter_mut()
                .find(|known| known.target == reference.target);
            match known {
                Some(known) => merge(&mut known.referrers, &reference.referrers)
                    .context("failed to merge NameReference fieldSpec")?,
                None => self.name_reference.push(reference.clone()),
            }
        }
        Ok(())
    }
}

/// Field settings from extensions in the OpenAPI definitions of custom resources.
fn from_definitions(definitions: &Value) -> Config {
    let mut config = Config::default();
    for (name, definition) in entries(definitions) {
        let properties = &definition["Schema"]["properties"];
        let is_kind = ["kind", "apiVersion", "metadata"]
            .iter()
            .all(|field| properties.get(field).is_some());
        if is_kind {
            let kind = Gvk::kind(name.rsplit('.').next().unwrap_or(name));
            add_properties(&mut config, &kind, definitions, name, "", 0);
        }
    }
    config
}

const MAX_DEPTH: usize = 32;

fn add_properties(
    config: &mut Config,
    kind: &Gvk,
    definitions: &Value,
    name: &str,
    path: &str,
    depth: usize,
) {
    if depth > MAX_DEPTH {
        return;
    }
    for (property, schema) in entries(&definitions[name]["Schema"]["properties"]) {
        let path = match path {
            "" => property.to_owned(),
            path => format!("{path}/{property}"),
        };
        let spec = |path: &str| FieldSpec {
            gvk: kind.clone(),
            path: path.to_owned(),
            create: false,
        };
        let text = |extension: &str| schema[format!("x-kubernetes-{extension}")].as_str();
        if text("annotation").is_some() {
            config.common_annotations.push(spec(&path));
        }
        if text("label-selector").is_some() {
            config.common_labels.push(spec(&path));
        }
        if text("identity").is_some() {
            config.name_prefix.push(spec(&path));
        }
        if let (Some(version), Some(target)) =
            (text("object-ref-api-version"), text("object-ref-kind"))
        {
            let key = text("object-ref-name-key").unwrap_or("name");
            config.name_reference.push(NameReference {
                target: Gvk {
                    group: String::new(),
                    version: version.to_owned(),
                    kind: target.to_owned(),
                },
                referrers: vec![spec(&format!("{path}/{key}"))],
            });
        }
        if let Some(reference) = schema["$ref"].as_str() {
            add_properties(config, kind, definitions, reference, &path, depth + 1);
        }
    }
}
