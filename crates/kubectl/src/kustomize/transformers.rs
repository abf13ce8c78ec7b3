//! The transformers that set one value on many objects: namespace, prefixes and suffixes, labels,
//! annotations, replica counts.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::{
    fieldspec::{FieldSpec, Missing},
    id::{Gvk, Id},
    kustomization::Replica,
    resource::{Resource, Resources},
};
use crate::json::str_of;

/// Which subjects of role bindings get the namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subjects {
    /// Those named `default`.
    Default,
    AllServiceAccounts,
    None,
}

impl Subjects {
    pub(super) fn parse(text: &str) -> Result<Self> {
        match text {
            "" | "defaultOnly" => Ok(Self::Default),
            "allServiceAccounts" => Ok(Self::AllServiceAccounts),
            "none" => Ok(Self::None),
            other => bail!(
                "invalid value {other:?} for setRoleBindingSubjects: must be one of \"defaultOnly\", \"none\" or \"allServiceAccounts\""
            ),
        }
    }
}

#[derive(Debug)]
pub(super) struct Namespace {
    pub namespace: String,
    pub specs: Vec<FieldSpec>,
    pub unset_only: bool,
    pub subjects: Subjects,
}

impl Namespace {
    pub(super) fn run(&self, resources: &mut Resources) -> Result<()> {
        if self.namespace.is_empty() {
            return Ok(());
        }
        for at in 0..resources.0.len() {
            let resource = &mut resources.0[at];
            resource.remember_id();
            self.set(resource)?;
            let id = resource.id();
            let same = resources.0.iter().filter(|other| other.id().is_same(&id));
            let same: Vec<String> = same.map(|other| other.object.to_string()).collect();
            if same.len() > 1 {
                bail!(
                    "namespace transformation produces ID conflict: [{}]",
                    same.join(" ")
                );
            }
        }
        Ok(())
    }

    pub(super) fn set(&self, resource: &mut Resource) -> Result<()> {
        let object = &mut resource.object;
        let gvk = Gvk::from_object(object);
        let set = &mut |field: &mut Value| {
            if !self.unset_only || field.is_null() || *field == "" {
                *field = json!(self.namespace);
            }
            Ok(())
        };
        if !gvk.is_cluster_scoped() {
            FieldSpec::any("metadata/namespace", true).visit(object, Missing::Scalar, set)?;
        }
        let is_binding = ["RoleBinding", "ClusterRoleBinding"].contains(&gvk.kind.as_str());
        if is_binding {
            let subjects = object["subjects"].as_array_mut().into_iter().flatten();
            for subject in subjects {
                let is_meant = match self.subjects {
                    Subjects::None => false,
                    Subjects::Default => subject["name"] == "default",
                    Subjects::AllServiceAccounts => subject["kind"] == "ServiceAccount",
                };
                if is_meant {
                    set(&mut subject["namespace"])?;
                }
            }
        }
        for spec in &self.specs {
            let is_own = spec.path == "metadata/namespace"
                || spec.path == "metadata/name" && object["apiVersion"] != "v1"
                || is_binding && spec.path == "subjects/namespace";
            if !is_own {
                spec.visit(object, Missing::Scalar, set)
                    .map_err(|error| error.context("namespace transformation failed"))?;
            }
        }
        Ok(())
    }
}

/// A prefix or a suffix of names.
#[derive(Debug)]
pub(super) struct Affix {
    pub text: String,
    pub is_prefix: bool,
    pub specs: Vec<FieldSpec>,
}

impl Affix {
    pub(super) fn run(&self, resources: &mut Resources) -> Result<()> {
        for resource in &mut resources.0 {
            let id = resource.original_id();
            if keeps_name(&id) {
                continue;
            }
            for spec in self
                .specs
                .iter()
                .filter(|spec| id.gvk.is_selected(&spec.gvk))
            {
                if spec.path == "metadata/name" && !self.text.is_empty() {
                    let affixes = if self.is_prefix {
                        &mut resource.prefixes
                    } else {
                        &mut resource.suffixes
                    };
                    affixes.push(self.text.clone());
                    resource.remember_id();
                }
                spec.visit(&mut resource.object, Missing::Scalar, &mut |field| {
                    let name = str_of(field);
                    let name = match self.is_prefix {
                        true => format!("{}{name}", self.text),
                        false => format!("{name}{}", self.text),
                    };
                    *field = json!(name);
                    Ok(())
                })?;
            }
        }
        Ok(())
    }
}

/// Kinds that are not renamed.
fn keeps_name(id: &Id) -> bool {
    match id.gvk.kind.as_str() {
        "CustomResourceDefinition" | "Namespace" => true,
        "APIService" => id.gvk.group == "apiregistration.k8s.io",
        _ => false,
    }
}

/// Labels or annotations for the maps at some fields.
#[derive(Debug)]
pub(super) struct Entries {
    pub entries: BTreeMap<String, String>,
    pub specs: Vec<FieldSpec>,
}

impl Entries {
    pub(super) fn run(&self, resources: &mut Resources) -> Result<()> {
        if self.entries.is_empty() {
            return Ok(());
        }
        for resource in &mut resources.0 {
            for spec in &self.specs {
                spec.visit(&mut resource.object, Missing::Map, &mut |field| {
                    if field.is_null() {
                        *field = json!({});
                    }
                    let Some(map) = field.as_object_mut() else {
                        bail!("wrong node kind: expected MappingNode");
                    };
                    for (key, value) in &self.entries {
                        map.insert(key.clone(), json!(value));
                    }
                    Ok(())
                })?;
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
pub(super) struct Replicas {
    pub replica: Replica,
    pub specs: Vec<FieldSpec>,
}

impl Replicas {
    pub(super) fn run(&self, resources: &mut Resources) -> Result<()> {
        let mut is_found = false;
        for spec in &self.specs {
            let fits = |id: &Id| id.name == self.replica.name && id.gvk.is_selected(&spec.gvk);
            for at in resources.indices(&fits) {
                is_found = true;
                let set = &mut |field: &mut Value| {
                    *field = json!(self.replica.count);
                    Ok(())
                };
                spec.visit(&mut resources.0[at].object, Missing::Scalar, set)?;
            }
        }
        if !is_found {
            let kinds: Vec<String> = self.specs.iter().map(|spec| spec.gvk.to_string()).collect();
            bail!(
                "resource with name {} does not match a config with the following GVK [{}]",
                self.replica.name,
                kinds.join(" ")
            );
        }
        Ok(())
    }
}
