//! References by name follow renamed objects.

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::{
    config::NameReference,
    fieldspec::{FieldSpec, Missing},
    id::{Gvk, Id},
    resource::{Resource, Resources},
};
use crate::{
    json::{list, str_of},
    output::yaml,
};

/// Updates references to renamed objects.
pub(super) fn follow(resources: &mut Resources, references: &[NameReference]) -> Result<()> {
    let all = resources.0.clone();
    for referrer in &mut resources.0 {
        let original = referrer.original_id();
        let candidates: Vec<&Resource> = reachable(referrer, &all);
        for reference in references {
            for spec in &reference.referrers {
                if original.gvk.is_selected(&spec.gvk) {
                    update(referrer, spec, &reference.target, &candidates)?;
                }
            }
        }
    }
    Ok(())
}

/// The objects that one may reference: in its namespace, cluster-scoped, and accounts that a
/// binding names.
fn reachable<'a>(referrer: &Resource, all: &'a [Resource]) -> Vec<&'a Resource> {
    let id = referrer.id();
    if id.gvk.is_cluster_scoped() {
        return all.iter().collect();
    }
    let mut namespaces: Vec<&str> = Vec::new();
    if id.gvk.kind == "RoleBinding" {
        let subjects = list(&referrer.object["subjects"]);
        let accounts = subjects.filter(|subject| subject["kind"] == "ServiceAccount");
        namespaces.extend(accounts.filter_map(|subject| subject["namespace"].as_str()));
    }
    let fits = |other: &&Resource| {
        let other_id = other.id();
        other_id.gvk.is_cluster_scoped()
            || other_id.effective_namespace() == id.effective_namespace()
            || namespaces.contains(&other.namespace())
    };
    all.iter().filter(fits).collect()
}

fn update(
    referrer: &mut Resource,
    spec: &FieldSpec,
    target: &Gvk,
    candidates: &[&Resource],
) -> Result<()> {
    let view = Referrer {
        id: referrer.id(),
        role: spec
            .path
            .ends_with("roleRef/name")
            .then(|| role(&referrer.object))
            .flatten(),
        resource: referrer.clone(),
        target,
    };
    let anywhere = FieldSpec {
        gvk: Gvk::default(),
        ..spec.clone()
    };
    let set = &mut |field: &mut Value| match field {
        Value::Array(items) => items
            .iter_mut()
            .try_for_each(|item| view.set(item, candidates)),
        field => view.set(field, candidates),
    };
    let result = anywhere.visit(&mut referrer.object, Missing::Skip, set);
    result.map_err(|error| {
        anyhow::anyhow!(
            "updating name reference in '{}' field of '{}': {error:#}",
            spec.path,
            view.id
        )
    })
}

/// The kind that a binding's `roleRef` names.
fn role(object: &Value) -> Option<Gvk> {
    let reference = &object["roleRef"];
    Some(Gvk {
        group: reference["apiGroup"].as_str()?.to_owned(),
        version: String::new(),
        kind: reference["kind"].as_str()?.to_owned(),
    })
}

struct Referrer<'a> {
    id: Id,
    role: Option<Gvk>,
    resource: Resource,
    target: &'a Gvk,
}

impl Referrer<'_> {
    fn set(&self, field: &mut Value, candidates: &[&Resource]) -> Result<()> {
        match field {
            Value::Null => Ok(()),
            Value::Object(_) => self.set_map(field, candidates),
            _ => {
                let old = str_of(field).to_owned();
                let same = |one: &Resource, other: &Resource| one.name() == other.name();
                if let Some(found) = self.select(&old, candidates, &same)? {
                    *field = json!(found.name());
                }
                Ok(())
            }
        }
    }

    /// A map with a name, and a namespace that restricts the choice and is updated too.
    fn set_map(&self, field: &mut Value, candidates: &[&Resource]) -> Result<()> {
        let Some(old) = field["name"].as_str().map(ToOwned::to_owned) else {
            bail!("path config error; no 'name' field in node");
        };
        let narrowed: Vec<&Resource> = match field["namespace"].as_str() {
            None => candidates.to_vec(),
            Some(namespace) => {
                let of = |id: &dyn Fn(&Resource) -> Id| -> Vec<&Resource> {
                    let fits = |other: &&&Resource| {
                        let id = id(other);
                        !id.gvk.is_cluster_scoped() && id.effective_namespace() == namespace
                    };
                    candidates.iter().filter(fits).copied().collect()
                };
                let original = of(&Resource::original_id);
                match original.is_empty() {
                    true => of(&Resource::id),
                    false => original,
                }
            }
        };
        let same = |one: &Resource, other: &Resource| {
            one.name() == other.name() && one.namespace() == other.namespace()
        };
        let Some(found) = self.select(&old, &narrowed, &same)? else {
            return Ok(());
        };
        field["name"] = json!(found.name());
        if !found.namespace().is_empty() {
            field["namespace"] = json!(found.namespace());
        }
        Ok(())
    }

    /// The object that a name references; `None` if no object was renamed from it.
    fn select<'a>(
        &self,
        old: &str,
        candidates: &[&'a Resource],
        is_same: &dyn Fn(&Resource, &Resource) -> bool,
    ) -> Result<Option<&'a Resource>> {
        let was =
            |resource: &Resource, fits: &dyn Fn(&Id) -> bool| resource.previous.iter().any(fits);
        let is_near = |other: &Resource| {
            let id = other.id();
            self.id.gvk.is_cluster_scoped()
                || id.gvk.is_cluster_scoped()
                || id.gvk.kind == "ServiceAccount"
                || id.effective_namespace() == self.id.effective_namespace()
        };
        let mut found: Vec<&Resource> = candidates.to_vec();
        found.retain(|other| {
            was(other, &|id| id.name == old)
                && was(other, &|id| id.gvk.is_selected(self.target))
                && self
                    .role
                    .as_ref()
                    .is_none_or(|role| was(other, &|id| id.gvk.is_selected(role)))
                && is_near(other)
        });
        for allow_empty in [true, false] {
            if found.len() > 1 {
                found.retain(|other| has_same_affixes(other, &self.resource, allow_empty));
            }
        }
        match found.as_slice() {
            [] => Ok(None),
            [first, rest @ ..] if rest.iter().all(|other| is_same(first, other)) => Ok(Some(first)),
            many => bail!("{}", self.ambiguous(many)),
        }
    }

    fn ambiguous(&self, many: &[&Resource]) -> String {
        let ids: Vec<String> = many.iter().map(|other| other.id().to_string()).collect();
        let mut text = format!(
            "found multiple possible referrals: {}\n\n**** Too many possible referral targets to referrer:\n{}\n",
            ids.join(", "),
            yaml::to_string(&self.resource.object)
        );
        for (at, other) in many.iter().enumerate() {
            let other = yaml::to_string(&other.object);
            text.push_str(&format!("--- possible referral {at}:\n{other}\n"));
        }
        text
    }
}

fn has_same_affixes(one: &Resource, other: &Resource, allow_empty: bool) -> bool {
    let same = |one: &[String], other: &[String]| match one.is_empty() || other.is_empty() {
        true => allow_empty || one.is_empty() == other.is_empty(),
        false => one
            .iter()
            .rev()
            .zip(other.iter().rev())
            .all(|(a, b)| a == b),
    };
    same(&one.prefixes, &other.prefixes) && same(&one.suffixes, &other.suffixes)
}
