//! All transformers by name: those of a kustomization's fields, and those configured in
//! `transformers` and `generators`. Programs and containers as plugins are not run.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow, bail};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    config::Config,
    fieldspec::{self, FieldSpec, Missing},
    generators,
    images::Images,
    kustomization::{GeneratorArgs, Image, Kustomization, PatchEntry, Replica},
    loader::Loader,
    patches::{Json6902, Patch, StrategicMerge},
    replacements::{self, Replacement, ReplacementEntry},
    resource::{Resource, Resources, Selector},
    transformers::{Affix, Entries, Namespace, Replicas, Subjects},
};
use crate::json::str_of;

#[derive(Debug)]
pub(super) enum Transformer {
    StrategicMerge(StrategicMerge),
    Patch(Patch),
    Namespace(Namespace),
    Prefix(Affix),
    Suffix(Affix),
    PrefixSuffix(Affix, Affix),
    Labels(Entries),
    Annotations(Entries),
    Json6902(Json6902),
    Replicas(Replicas),
    Images(Images),
    Replacements(Vec<Replacement>),
    ValueAdd(ValueAdd),
    Hash,
}

impl Transformer {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::StrategicMerge(_) => "PatchStrategicMergeTransformer",
            Self::Patch(_) => "PatchTransformer",
            Self::Namespace(_) => "NamespaceTransformer",
            Self::Prefix(_) => "PrefixTransformer",
            Self::Suffix(_) => "SuffixTransformer",
            Self::PrefixSuffix(..) => "PrefixSuffixTransformer",
            Self::Labels(_) => "LabelTransformer",
            Self::Annotations(_) => "AnnotationsTransformer",
            Self::Json6902(_) => "PatchJson6902Transformer",
            Self::Replicas(_) => "ReplicaCountTransformer",
            Self::Images(_) => "ImageTagTransformer",
            Self::Replacements(_) => "ReplacementTransformer",
            Self::ValueAdd(_) => "ValueAddTransformer",
            Self::Hash => "HashTransformer",
        }
    }

    pub(super) fn run(&self, resources: &mut Resources) -> Result<()> {
        match self {
            Self::StrategicMerge(own) => own.run(resources),
            Self::Patch(own) => own.run(resources),
            Self::Namespace(own) => own.run(resources),
            Self::Prefix(own) | Self::Suffix(own) => own.run(resources),
            Self::PrefixSuffix(prefix, suffix) => {
                prefix.run(resources)?;
                suffix.run(resources)
            }
            Self::Labels(own) | Self::Annotations(own) => own.run(resources),
            Self::Json6902(own) => own.run(resources),
            Self::Replicas(own) => own.run(resources),
            Self::Images(own) => own.run(resources),
            Self::Replacements(own) => replacements::run(own, resources),
            Self::ValueAdd(own) => own.run(resources),
            Self::Hash => {
                generators::add_hashes(resources);
                Ok(())
            }
        }
    }
}

/// The transformers of a kustomization's fields, in their order.
pub(super) fn built_in(
    own: &Kustomization,
    config: &Config,
    loader: &Loader,
    document: Option<&Value>,
) -> Result<Vec<Transformer>> {
    let mut all = Vec::new();
    if let Some(paths) = own
        .patches_strategic_merge
        .as_ref()
        .filter(|p| !p.is_empty())
    {
        all.push(Transformer::StrategicMerge(StrategicMerge::load(
            paths, loader, document,
        )?));
    }
    for entry in &own.patches {
        all.push(Transformer::Patch(Patch::load(entry, loader, document)?));
    }
    if !own.namespace.is_empty() {
        all.push(Transformer::Namespace(Namespace {
            namespace: own.namespace.clone(),
            specs: config.namespace.clone(),
            unset_only: false,
            subjects: Subjects::Default,
        }));
    }
    for (text, is_prefix, specs) in [
        (&own.name_prefix, true, &config.name_prefix),
        (&own.name_suffix, false, &config.name_suffix),
    ] {
        if !text.is_empty() {
            let affix = Affix {
                text: text.clone(),
                is_prefix,
                specs: specs.clone(),
            };
            all.push(match is_prefix {
                true => Transformer::Prefix(affix),
                false => Transformer::Suffix(affix),
            });
        }
    }
    all.extend(labels(own, config)?);
    if !own.common_annotations.is_empty() {
        all.push(Transformer::Annotations(Entries {
            entries: own.common_annotations.clone(),
            specs: config.common_annotations.clone(),
        }));
    }
    for entry in own.patches_json6902.iter().flatten() {
        all.push(Transformer::Json6902(Json6902::load(entry, loader)?));
    }
    all.extend(own.replicas.iter().map(|replica| {
        Transformer::Replicas(Replicas {
            replica: replica.clone(),
            specs: config.replicas.clone(),
        })
    }));
    all.extend(own.images.iter().map(|image| {
        Transformer::Images(Images {
            image: image.clone(),
            specs: config.images.clone(),
        })
    }));
    if !own.replacements.is_empty() {
        let replacements = replacements::load(&own.replacements, loader)?;
        all.push(Transformer::Replacements(replacements));
    }
    Ok(all)
}

fn labels(own: &Kustomization, config: &Config) -> Result<Vec<Transformer>> {
    let mut all = Vec::new();
    for label in &own.labels {
        let mut specs = label.field_specs.clone();
        let mut add = |more: &[FieldSpec]| {
            fieldspec::merge(&mut specs, more)
                .map_err(|error| anyhow!("failed to merge labels: {error}"))
        };
        add(&config.labels)?;
        if label.include_selectors {
            add(&config.common_labels)?;
        } else {
            if label.include_templates {
                add(&config.template_labels)?;
            }
            add(&[FieldSpec::any("metadata/labels", true)])?;
        }
        all.push(Transformer::Labels(Entries {
            entries: label.pairs.clone(),
            specs,
        }));
    }
    if !own.labels.is_empty() || own.common_labels.is_some() {
        all.push(Transformer::Labels(Entries {
            entries: own.common_labels.clone().unwrap_or_default(),
            specs: config.common_labels.clone(),
        }));
    }
    Ok(all)
}

/// The settings of a file of `transformers`, for all kinds.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Settings {
    metadata: Value,
    field_specs: Vec<FieldSpec>,
    unset_only: bool,
    set_role_binding_subjects: String,
    prefix: String,
    suffix: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    image_tag: Image,
    replica: Replica,
    replacements: Vec<ReplacementEntry>,
    path: String,
    paths: Vec<String>,
    patch: String,
    patches: String,
    json_op: String,
    target: Option<Selector>,
    options: Option<super::kustomization::PatchOptions>,
    value: String,
    targets: Vec<ValueTarget>,
    target_file_path: String,
}

/// The transformer configured by an object of `transformers`.
pub(super) fn transformer(
    object: &Value,
    loader: &Loader,
    document: Option<&Value>,
) -> Result<Transformer> {
    let id = Resource::new(object.clone()).id();
    require_built_in(object)?;
    let fails = |error: anyhow::Error| anyhow!("plugin {id} fails configuration: {error:#}");
    let settings: Settings =
        serde_json::from_value(object.clone()).map_err(|error| fails(error.into()))?;
    configured(&id.gvk.kind, settings, loader, document).map_err(fails)
}

fn configured(
    kind: &str,
    settings: Settings,
    loader: &Loader,
    document: Option<&Value>,
) -> Result<Transformer> {
    let specs = settings.field_specs;
    let affix = |text: &str, is_prefix: bool, specs: &[FieldSpec]| {
        if specs.is_empty() {
            bail!("fieldSpecs is not expected to be nil");
        }
        Ok(Affix {
            text: text.to_owned(),
            is_prefix,
            specs: specs.to_vec(),
        })
    };
    let entry = PatchEntry {
        path: settings.path.clone(),
        patch: settings.patch.clone(),
        target: settings.target.clone(),
        options: settings.options,
    };
    Ok(match kind {
        "NamespaceTransformer" => Transformer::Namespace(Namespace {
            namespace: str_of(&settings.metadata["namespace"]).to_owned(),
            specs,
            unset_only: settings.unset_only,
            subjects: Subjects::parse(&settings.set_role_binding_subjects)?,
        }),
        "PrefixTransformer" => Transformer::Prefix(affix(&settings.prefix, true, &specs)?),
        "SuffixTransformer" => Transformer::Suffix(affix(&settings.suffix, false, &specs)?),
        "PrefixSuffixTransformer" => Transformer::PrefixSuffix(
            affix(&settings.prefix, true, &specs)?,
            affix(&settings.suffix, false, &specs)?,
        ),
        "LabelTransformer" => Transformer::Labels(Entries {
            entries: settings.labels,
            specs,
        }),
        "AnnotationsTransformer" => Transformer::Annotations(Entries {
            entries: settings.annotations,
            specs,
        }),
        "ImageTagTransformer" => Transformer::Images(Images {
            image: settings.image_tag,
            specs,
        }),
        "ReplicaCountTransformer" => Transformer::Replicas(Replicas {
            replica: settings.replica,
            specs,
        }),
        "ReplacementTransformer" => {
            Transformer::Replacements(replacements::load(&settings.replacements, loader)?)
        }
        "PatchTransformer" => Transformer::Patch(Patch::load(&entry, loader, document)?),
        "PatchJson6902Transformer" => {
            let entry = PatchEntry {
                patch: settings.json_op,
                ..entry
            };
            Transformer::Json6902(Json6902::load(&entry, loader)?)
        }
        "PatchStrategicMergeTransformer" => {
            let mut paths = settings.paths;
            paths.extend((!settings.patches.is_empty()).then_some(settings.patches));
            Transformer::StrategicMerge(StrategicMerge::load(&paths, loader, document)?)
        }
        "ValueAddTransformer" => Transformer::ValueAdd(ValueAdd::load(
            &settings.value,
            settings.targets,
            &settings.target_file_path,
            loader,
        )?),
        "HashTransformer" => Transformer::Hash,
        kind => bail!("unable to load builtin {kind}.builtin.[noGrp]"),
    })
}

/// The object of one of `generators`.
pub(super) fn generator(object: &Value, loader: &Loader) -> Result<Resource> {
    require_built_in(object)?;
    let id = Resource::new(object.clone()).id();
    let kind = match id.gvk.kind.as_str() {
        "ConfigMapGenerator" => "ConfigMap",
        "SecretGenerator" => "Secret",
        kind => bail!("the generator {kind} is not supported"),
    };
    let mut args: GeneratorArgs = serde_json::from_value(object.clone())?;
    for (field, own) in [("name", &mut args.name), ("namespace", &mut args.namespace)] {
        if own.is_empty() {
            str_of(&object["metadata"][field]).clone_into(own);
        }
    }
    generators::generate(kind, &args, None, loader)
}

fn require_built_in(object: &Value) -> Result<()> {
    if object["apiVersion"] != "builtin" {
        bail!(
            "external plugins disabled; unable to load external plugin '{}'",
            str_of(&object["kind"])
        );
    }
    Ok(())
}

/// Writes a value into fields, or into a part of a path in a field.
#[derive(Debug)]
pub(super) struct ValueAdd {
    value: String,
    targets: Vec<ValueTarget>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ValueTarget {
    selector: Option<Selector>,
    field_path: String,
    file_path_position: usize,
}

impl ValueAdd {
    fn load(value: &str, own: Vec<ValueTarget>, file: &str, loader: &Loader) -> Result<Self> {
        let mut targets = own;
        if !file.is_empty() {
            let more: Value = serde_saphyr::from_str(&loader.text(file)?)?;
            targets.extend(serde_json::from_value::<Vec<ValueTarget>>(
                more["targets"].clone(),
            )?);
        }
        if targets.is_empty() {
            bail!("must specify at least one target");
        }
        if targets.iter().any(|target| target.field_path.is_empty()) {
            bail!("fieldPath cannot be empty");
        }
        let value = match value.trim() {
            "" => {
                let name = loader.root().file_name().unwrap_or_default();
                name.to_string_lossy().into_owned()
            }
            value => value.to_owned(),
        };
        Ok(Self { value, targets })
    }

    fn run(&self, resources: &mut Resources) -> Result<()> {
        for target in &self.targets {
            let places = match &target.selector {
                Some(selector) => resources.select(selector)?,
                None => (0..resources.0.len()).collect(),
            };
            for at in places {
                let resource = &mut resources.0[at];
                if target.field_path == "metadata/namespace" {
                    let namespace = Namespace {
                        namespace: self.value.clone(),
                        specs: Vec::new(),
                        unset_only: false,
                        subjects: Subjects::Default,
                    };
                    namespace.set(resource)?;
                    continue;
                }
                let spec = FieldSpec::any(&target.field_path, true);
                spec.visit(&mut resource.object, Missing::Scalar, &mut |field| {
                    let old = str_of(field);
                    *field = json!(match target.file_path_position {
                        0 => self.value.clone(),
                        position => insert_part(old, position - 1, &self.value),
                    });
                    Ok(())
                })?;
            }
        }
        Ok(())
    }
}

/// Inserts a part into a file path, at its end if the position is beyond it.
fn insert_part(path: &str, position: usize, part: &str) -> String {
    let (root, rest) = match path.strip_prefix('/') {
        Some(rest) => ("/", rest),
        None => ("", path),
    };
    let mut parts: Vec<&str> = rest.split('/').filter(|part| !part.is_empty()).collect();
    parts.insert(position.min(parts.len()), part);
    format!("{root}{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_put_into_a_path() {
        for (path, position, expected) in [
            ("", 0, "x"),
            ("/", 5, "/x"),
            ("pie", 0, "x/pie"),
            ("/raw", 1, "/raw/x"),
            ("a/b/c/d", 3, "a/b/c/x/d"),
        ] {
            assert_eq!(insert_part(path, position, "x"), expected);
        }
    }
}
