//! The objects of a build, with their history: earlier names, prefixes, and origin.

use anyhow::{Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    id::{Gvk, Id},
    origin::Origin,
};
use crate::json::{entries, list, selector, str_of};

/// The effect of a generated object on one of the same name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Behavior {
    #[default]
    Unspecified,
    Create,
    Replace,
    Merge,
}

impl Behavior {
    pub(super) fn parse(text: &str) -> Self {
        match text {
            "create" => Self::Create,
            "replace" => Self::Replace,
            "merge" => Self::Merge,
            _ => Self::Unspecified,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Unspecified => "unspecified",
            Self::Create => "create",
            Self::Replace => "replace",
            Self::Merge => "merge",
        }
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Resource {
    /// Null after a patch deleted it.
    pub object: Value,
    /// Earlier names, oldest first.
    pub previous: Vec<Id>,
    pub prefixes: Vec<String>,
    pub suffixes: Vec<String>,
    pub behavior: Behavior,
    /// Whether a content hash is added to its name.
    pub needs_hash: bool,
    /// The variables whose value comes from it.
    pub variables: Vec<String>,
    pub origin: Option<Origin>,
    pub transformations: Vec<Origin>,
}

impl Resource {
    pub(super) fn new(object: Value) -> Self {
        Self {
            object,
            ..Self::default()
        }
    }

    pub(super) fn id(&self) -> Id {
        Id::from_object(&self.object)
    }

    /// The name in its file.
    pub(super) fn original_id(&self) -> Id {
        self.previous.first().cloned().unwrap_or_else(|| self.id())
    }

    pub(super) fn name(&self) -> &str {
        str_of(&self.object["metadata"]["name"])
    }

    pub(super) fn namespace(&self) -> &str {
        str_of(&self.object["metadata"]["namespace"])
    }

    pub(super) fn is_deleted(&self) -> bool {
        self.object
            .as_object()
            .is_none_or(serde_json::Map::is_empty)
    }

    pub(super) fn remember_id(&mut self) {
        let mut id = self.id();
        id.namespace = id.effective_namespace().to_owned();
        self.previous.push(id);
    }

    pub(super) fn set_name(&mut self, name: &str) {
        self.object["metadata"]["name"] = json!(name);
    }

    pub(super) fn set_namespace(&mut self, namespace: &str) {
        if !namespace.is_empty() {
            self.object["metadata"]["namespace"] = json!(namespace);
        } else if let Some(metadata) = self.object["metadata"].as_object_mut() {
            metadata.shift_remove("namespace");
        }
    }

    /// All names: the current and the earlier ones.
    pub(super) fn ids(&self) -> Vec<Id> {
        let mut ids = vec![self.id()];
        ids.extend(self.previous.iter().cloned());
        ids
    }

    fn is_known_as(&self, fits: &dyn Fn(&Id) -> bool) -> bool {
        !self.is_deleted() && (self.previous.iter().any(fits) || fits(&self.id()))
    }

    /// Merges the metadata of the object that this generated one replaces or extends.
    fn take_metadata(&mut self, old: &Self) {
        for field in ["labels", "annotations"] {
            let mut merged = json!({});
            for object in [&old.object, &self.object] {
                for (key, value) in entries(&object["metadata"][field]) {
                    merged[key] = value.clone();
                }
            }
            if merged != json!({}) {
                self.object["metadata"][field] = merged;
            }
        }
        self.needs_hash &= old.needs_hash;
        self.behavior = old.behavior;
        self.previous.clone_from(&old.previous);
        self.prefixes.clone_from(&old.prefixes);
        self.suffixes.clone_from(&old.suffixes);
        self.variables.clone_from(&old.variables);
        let (name, namespace) = (old.name().to_owned(), old.namespace().to_owned());
        self.set_name(&name);
        self.set_namespace(&namespace);
    }

    fn take_data(&mut self, old: &Self) {
        for field in ["data", "binaryData"] {
            let mut merged = json!({});
            for object in [&old.object, &self.object] {
                for (key, value) in entries(&object[field]) {
                    merged[key] = value.clone();
                }
            }
            if merged != json!({}) {
                self.object[field] = merged;
            }
        }
    }
}

/// The objects of a patch or a replacement; names and kinds are anchored regular expressions.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Selector {
    #[serde(flatten)]
    pub id: Id,
    #[serde(rename = "annotationSelector")]
    pub annotations: String,
    #[serde(rename = "labelSelector")]
    pub labels: String,
}

impl Selector {
    pub(super) fn matches_gvk(&self, gvk: &Gvk) -> Result<bool> {
        let wanted = &self.id.gvk;
        Ok(matches(&wanted.group, &gvk.group)?
            && matches(&wanted.version, &gvk.version)?
            && matches(&wanted.kind, &gvk.kind)?)
    }

    pub(super) fn matches_id(&self, id: &Id) -> Result<bool> {
        Ok(self.matches_gvk(&id.gvk)?
            && matches(&self.id.name, &id.name)?
            && matches(&self.id.namespace, &id.namespace)?)
    }

    pub(super) fn matches_metadata(&self, object: &Value) -> Result<bool> {
        for (text, field) in [(&self.labels, "labels"), (&self.annotations, "annotations")] {
            let values = &object["metadata"][field];
            if !text.is_empty() && !selector(text)?.matches(|key| values[key].as_str()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn matches(&self, resource: &Resource) -> Result<bool> {
        let (current, original) = (resource.id(), resource.original_id());
        let either = |pattern: &str, one: &str, other: &str| -> Result<bool> {
            Ok(matches(pattern, one)? || matches(pattern, other)?)
        };
        Ok(either(
            &self.id.namespace,
            original.effective_namespace(),
            current.effective_namespace(),
        )? && either(&self.id.name, &original.name, &current.name)?
            && self.matches_gvk(&current.gvk)?
            && self.matches_metadata(&resource.object)?)
    }
}

fn matches(pattern: &str, text: &str) -> Result<bool> {
    Ok(pattern.is_empty() || regex::Regex::new(&format!("^(?:{pattern})$"))?.is_match(text))
}

/// The objects of a build in input order.
#[derive(Debug, Clone, Default)]
pub(super) struct Resources(pub Vec<Resource>);

impl Resources {
    /// Adds an object; its name must be new.
    pub(super) fn push(&mut self, resource: Resource) -> Result<()> {
        let id = resource.id();
        if self.0.iter().any(|known| known.id().is_same(&id)) {
            bail!("may not add resource with an already registered id: {id}");
        }
        self.0.push(resource);
        Ok(())
    }

    pub(super) fn extend(&mut self, resources: impl IntoIterator<Item = Resource>) -> Result<()> {
        resources
            .into_iter()
            .try_for_each(|resource| self.push(resource))
    }

    /// Adds a generated object, or merges it into the one of its name, by its behavior.
    pub(super) fn absorb(&mut self, mut resource: Resource) -> Result<()> {
        let id = resource.id();
        let found = self.indices(&|known| known.is_same(&id));
        let behavior = resource.behavior;
        match (found.as_slice(), behavior) {
            ([], Behavior::Merge | Behavior::Replace) => {
                bail!(
                    "id {} does not exist; cannot merge or replace",
                    go_syntax(&id)
                )
            }
            ([], _) => self.push(resource),
            ([at], Behavior::Merge | Behavior::Replace) => {
                let old = &self.0[*at];
                resource.take_metadata(old);
                if behavior == Behavior::Merge {
                    resource.take_data(old);
                    if old.origin.is_some() {
                        resource.origin.clone_from(&old.origin);
                    }
                }
                self.0[*at] = resource;
                Ok(())
            }
            ([_], _) => bail!(
                "id {} exists; can not use behavior: '{}', behavior must be merge or replace",
                go_syntax(&id),
                behavior.name()
            ),
            _ => bail!("found multiple objects that could accept merge of {id}"),
        }
    }

    /// The indexes of objects that have, or had, a name.
    pub(super) fn indices(&self, fits: &dyn Fn(&Id) -> bool) -> Vec<usize> {
        (0..self.0.len())
            .filter(|at| self.0[*at].is_known_as(fits))
            .collect()
    }

    /// The index of the one object that a patch names.
    pub(super) fn find(&self, id: &Id) -> Result<usize> {
        let suffix = format!("failed to find unique target for patch {id}");
        match self.indices(&|known| id.is_same(known)).as_slice() {
            [one] => Ok(*one),
            [] => bail!("no matches for Id {id}; {suffix}"),
            _ => bail!("multiple matches for Id {id}; {suffix}"),
        }
    }

    pub(super) fn select(&self, selector: &Selector) -> Result<Vec<usize>> {
        let mut found = Vec::new();
        for (at, resource) in self.0.iter().enumerate() {
            if selector.matches(resource)? {
                found.push(at);
            }
        }
        Ok(found)
    }

    pub(super) fn drop_deleted(&mut self) {
        self.0.retain(|resource| !resource.is_deleted());
    }
}

/// An id as Go prints a struct, for messages of generators.
fn go_syntax(id: &Id) -> String {
    let Gvk {
        group,
        version,
        kind,
    } = &id.gvk;
    format!(
        "resid.ResId{{Gvk:resid.Gvk{{Group:{group:?}, Version:{version:?}, Kind:{kind:?}, isClusterScoped:{}}}, Name:{:?}, Namespace:{:?}}}",
        id.gvk.is_cluster_scoped(),
        id.name,
        id.namespace
    )
}

/// The objects of one text; lists are expanded.
pub(super) fn parse(text: &str, source: &str) -> Result<Vec<Resource>> {
    let mut found = Vec::new();
    for document in crate::manifest::strict_documents(text, source)? {
        flatten(document, &mut found)?;
    }
    Ok(found)
}

fn flatten(object: Value, found: &mut Vec<Resource>) -> Result<()> {
    let kind = str_of(&object["kind"]);
    if kind.ends_with("List") && object.get("items").is_some() {
        for item in list(&object["items"]) {
            flatten(item.clone(), found)?;
        }
        return Ok(());
    }
    if !object.is_object() {
        bail!("wrong node kind: expected a mapping of fields");
    }
    if kind.is_empty() {
        bail!(
            "missing kind in object {{{{{} }} {{{{{} {}}} map[] map[]}}}}",
            str_of(&object["apiVersion"]),
            str_of(&object["metadata"]["name"]),
            str_of(&object["metadata"]["namespace"])
        );
    }
    if str_of(&object["metadata"]["name"]).is_empty() {
        bail!(
            "missing metadata.name in object {{{{{} {kind}}} {{{{ }} map[] map[]}}}}",
            str_of(&object["apiVersion"])
        );
    }
    found.push(Resource::new(object));
    Ok(())
}
