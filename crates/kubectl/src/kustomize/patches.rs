//! Patches: strategic merges and JSON patches, for the object they name or for all that a target
//! selects.

use anyhow::{Result, anyhow, bail};
use serde_json::Value;

use super::{
    kustomization::{PatchEntry, PatchOptions},
    loader::Loader,
    merge,
    resource::{Resource, Resources, Selector, parse},
};
use crate::{api::PatchType, json::str_of};

#[derive(Debug)]
enum Content {
    Strategic(Vec<Value>),
    Json(Value),
}

/// A parsed entry of `patches`.
#[derive(Debug)]
pub(super) struct Patch {
    content: Content,
    source: String,
    target: Option<Selector>,
    options: PatchOptions,
    document: Option<Value>,
}

impl Patch {
    pub(super) fn load(
        entry: &PatchEntry,
        loader: &Loader,
        document: Option<&Value>,
    ) -> Result<Self> {
        let inline = entry.patch.trim();
        let (text, source) = match (inline, entry.path.as_str()) {
            ("", "") => bail!(
                "must specify one of patch and path in\n{}",
                entry_text(entry)
            ),
            (inline, "") => (inline.to_owned(), format!("[patch: {inline:?}]")),
            ("", path) => {
                let text = loader.text(path).map_err(|error| {
                    anyhow!("failed to get the patch file from path({path}): {error:#}")
                })?;
                (text, format!("[path: {path:?}]"))
            }
            _ => bail!(
                "patch and path can't be set at the same time\n{}",
                entry_text(entry)
            ),
        };
        Ok(Self {
            content: content(&text, &source)?,
            source,
            target: entry.target.clone(),
            options: entry.options.unwrap_or_default(),
            document: document.cloned(),
        })
    }

    pub(super) fn run(&self, resources: &mut Resources) -> Result<()> {
        match (&self.content, &self.target) {
            (Content::Json(_), None) => {
                bail!("must specify a target for JSON patch {}", self.source)
            }
            (Content::Json(patch), Some(target)) => {
                for at in resources.select(target)? {
                    let resource = &mut resources.0[at];
                    resource.remember_id();
                    resource.object = json_patch(&resource.object, patch)?;
                }
                Ok(())
            }
            (Content::Strategic(patches), Some(target)) => {
                let [patch] = patches.as_slice() else {
                    bail!(
                        "Multiple Strategic-Merge Patches in one `patches` entry is not allowed to set `patches.target` field: {}",
                        self.source
                    );
                };
                for at in resources.select(target)? {
                    let resource = &mut resources.0[at];
                    let mut patch = patch.clone();
                    patch["apiVersion"] = resource.object["apiVersion"].clone();
                    strategic(resource, &patch, self.options, self.document.as_ref())?;
                }
                unique(resources)
            }
            (Content::Strategic(patches), None) => {
                for patch in patches {
                    let id = Resource::new(patch.clone()).id();
                    let at = resources.find(&id).map_err(|error| {
                        let id = id.to_string();
                        anyhow!("no resource matches strategic merge patch {id:?}: {error}")
                    })?;
                    let document = self.document.as_ref();
                    strategic(&mut resources.0[at], patch, self.options, document)?;
                }
                Ok(())
            }
        }
    }
}

fn entry_text(entry: &PatchEntry) -> String {
    let mut text = String::new();
    for (field, value) in [("patch", &entry.patch), ("path", &entry.path)] {
        if !value.is_empty() {
            text.push_str(&format!("{field}: {value}\n"));
        }
    }
    if text.is_empty() {
        text.push_str("{}\n");
    }
    text
}

/// Fails if two objects have the same name.
fn unique(resources: &mut Resources) -> Result<()> {
    let all = std::mem::take(&mut resources.0);
    resources.extend(all.into_iter().filter(|resource| !resource.is_deleted()))
}

fn content(text: &str, source: &str) -> Result<Content> {
    let documents = crate::manifest::strict_documents(text, source);
    if let Ok(documents) = &documents
        && let [one] = documents.as_slice()
        && merge::is_json_patch(one)
    {
        return Ok(Content::Json(one.clone()));
    }
    match parse(text, source) {
        Ok(patches) if !patches.is_empty() => Ok(Content::Strategic(
            patches.into_iter().map(|patch| patch.object).collect(),
        )),
        _ => bail!("unable to parse SM or JSON patch from {source}"),
    }
}

fn strategic(
    resource: &mut Resource,
    patch: &Value,
    options: PatchOptions,
    document: Option<&Value>,
) -> Result<()> {
    let (name, namespace) = (resource.name().to_owned(), resource.namespace().to_owned());
    let kind = resource.object["kind"].clone();
    if options.allow_name_change || options.allow_kind_change {
        resource.remember_id();
    }
    let patched = merge::apply(&resource.object, patch, document)?;
    resource.object = patched.unwrap_or_default();
    if resource.is_deleted() {
        return Ok(());
    }
    if !options.allow_kind_change {
        resource.object["kind"] = kind;
    }
    if !options.allow_name_change {
        resource.set_name(&name);
    }
    resource.set_namespace(&namespace);
    Ok(())
}

fn json_patch(object: &Value, patch: &Value) -> Result<Value> {
    crate::merge::apply(object, PatchType::Json, patch)
}

/// `patchesStrategicMerge`: files, or inline patches.
#[derive(Debug)]
pub(super) struct StrategicMerge {
    patches: Vec<Value>,
    document: Option<Value>,
}

impl StrategicMerge {
    pub(super) fn load(
        paths: &[String],
        loader: &Loader,
        document: Option<&Value>,
    ) -> Result<Self> {
        let mut patches = Vec::new();
        for path in paths {
            let parsed = match parse(path, "a patch") {
                Ok(parsed) => parsed,
                Err(_) => parse(&loader.text(path)?, path)?,
            };
            patches.extend(parsed.into_iter().map(|patch| patch.object));
        }
        if patches.is_empty() {
            bail!(
                "patch appears to be empty; files=[{}], Patch=",
                paths.join(" ")
            );
        }
        Ok(Self {
            patches,
            document: document.cloned(),
        })
    }

    pub(super) fn run(&self, resources: &mut Resources) -> Result<()> {
        for patch in &self.patches {
            let at = resources.find(&Resource::new(patch.clone()).id())?;
            let options = PatchOptions::default();
            strategic(&mut resources.0[at], patch, options, self.document.as_ref())?;
            unique(resources)?;
        }
        Ok(())
    }
}

/// `patchesJson6902`: operations for the named objects.
#[derive(Debug)]
pub(super) struct Json6902 {
    patch: Value,
    target: Selector,
}

impl Json6902 {
    pub(super) fn load(entry: &PatchEntry, loader: &Loader) -> Result<Self> {
        let target = entry.target.clone().unwrap_or_default();
        if target.id.name.is_empty() {
            bail!("must specify the target name");
        }
        let text = match (entry.path.as_str(), entry.patch.as_str()) {
            ("", "") => bail!("empty file path and empty jsonOp"),
            ("", patch) => patch.to_owned(),
            (path, "") => loader.text(path)?,
            _ => bail!("must specify a file path or jsonOp, not both"),
        };
        let patch: Value = serde_saphyr::from_str(&text)?;
        if !merge::is_json_patch(&patch) || patch.as_array().is_none_or(Vec::is_empty) {
            bail!(
                "patch appears to be empty; file={}, JsonOp={}",
                entry.path,
                str_of(&patch)
            );
        }
        Ok(Self { patch, target })
    }

    pub(super) fn run(&self, resources: &mut Resources) -> Result<()> {
        for at in resources.select(&self.target)? {
            let object = &mut resources.0[at].object;
            *object = json_patch(object, &self.patch)?;
        }
        Ok(())
    }
}
