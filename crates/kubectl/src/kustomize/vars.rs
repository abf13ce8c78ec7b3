//! Variables: `$(NAME)` in some fields is replaced by the value of another object's field.
//! Superseded by replacements.

use std::{cell::RefCell, collections::BTreeMap, fmt};

use anyhow::{Result, anyhow, bail};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    fieldspec::{FieldSpec, Missing},
    id::{Gvk, Id},
    paths::{self, scalar_text},
    resource::Resources,
};

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Var {
    pub name: String,
    objref: ObjectReference,
    fieldref: FieldReference,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ObjectReference {
    api_version: String,
    group: String,
    version: String,
    kind: String,
    name: String,
    namespace: String,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct FieldReference {
    field_path: String,
}

impl Var {
    fn id(&self) -> Id {
        let object = &self.objref;
        let gvk = match object.api_version.as_str() {
            "" => Gvk {
                group: object.group.clone(),
                version: object.version.clone(),
                kind: object.kind.clone(),
            },
            version => Gvk::new(version, &object.kind),
        };
        Id {
            gvk,
            name: object.name.clone(),
            namespace: object.namespace.clone(),
        }
    }

    fn path(&self) -> &str {
        match self.fieldref.field_path.as_str() {
            "" => "metadata.name",
            path => path,
        }
    }
}

impl fmt::Display for Var {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{} {} {{{}}}}}", self.name, self.id().gvk, self.path())
    }
}

/// Adds the variables of one kustomization, and marks the objects with their values.
pub(super) fn merge(known: &mut Vec<Var>, more: &[Var], resources: &mut Resources) -> Result<()> {
    for var in more {
        let id = var.id();
        let fits = |other: &Id| {
            let is_exact = !id.namespace.is_empty() || id.gvk.is_cluster_scoped();
            match is_exact {
                true => other.is_same(&id),
                false => other.name == id.name && other.gvk == id.gvk,
            }
        };
        match resources.indices(&fits).as_slice() {
            [] => {}
            [at] => resources.0[*at].variables.push(var.name.clone()),
            many => bail!(
                "found {} resId matches for var {} (unable to disambiguate)",
                many.len(),
                var.name
            ),
        }
    }
    add(known, more)
}

/// Adds variables; names must be unique.
pub(super) fn add(known: &mut Vec<Var>, more: &[Var]) -> Result<()> {
    for var in more {
        if known.iter().any(|other| other.name == var.name) {
            bail!("var '{}' already encountered", var.name);
        }
        known.push(var.clone());
    }
    Ok(())
}

/// Replaces the variables by their values.
pub(super) fn resolve(vars: &[Var], specs: &[FieldSpec], resources: &mut Resources) -> Result<()> {
    if vars.is_empty() {
        return Ok(());
    }
    let mut values = BTreeMap::new();
    for var in vars {
        let mut sources = resources.0.iter();
        let Some(source) = sources.find(|resource| resource.variables.contains(&var.name)) else {
            bail!("var '{var}' cannot be mapped to a field in the set of known resources");
        };
        let steps: Vec<String> = paths::steps(var.path())
            .iter()
            .flat_map(|step| indexed(step))
            .collect();
        let value = paths::lookup(&source.object, &steps)?.ok_or_else(|| {
            anyhow!("field specified in var '{var}' not found in corresponding resource")
        })?;
        values.insert(var.name.clone(), value.clone());
    }
    let used = RefCell::new(Vec::new());
    for resource in &mut resources.0 {
        for spec in specs {
            spec.visit(&mut resource.object, Missing::Skip, &mut |field| {
                replace_in(field, &values, &used)
            })?;
        }
    }
    let used = used.into_inner();
    let unused: Vec<&str> = values
        .keys()
        .map(String::as_str)
        .filter(|name| !used.iter().any(|known: &String| known == name))
        .collect();
    if !unused.is_empty() {
        eprintln!(
            "well-defined vars that were never replaced: {}",
            unused.join(",")
        );
    }
    Ok(())
}

/// `ports[0]` is two steps.
fn indexed(step: &str) -> Vec<String> {
    match step.strip_suffix(']').and_then(|step| step.split_once('[')) {
        Some((name, index)) if !name.is_empty() && index.parse::<usize>().is_ok() => {
            vec![name.to_owned(), index.to_owned()]
        }
        _ => vec![step.to_owned()],
    }
}

fn replace_in(
    field: &mut Value,
    values: &BTreeMap<String, Value>,
    used: &RefCell<Vec<String>>,
) -> Result<()> {
    match field {
        Value::String(text) => *field = expand(text, values, used),
        Value::Object(map) => {
            for value in map.values_mut() {
                if let Value::String(text) = value {
                    *value = expand(text, values, used);
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                match item {
                    Value::String(text) => *item = expand(text, values, used),
                    _ => bail!("invalid value type expect a string"),
                }
            }
        }
        _ => {}
    }
    Ok(())
}

/// `$$` is a dollar sign; a variable that is the whole text keeps its type.
fn expand(text: &str, values: &BTreeMap<String, Value>, used: &RefCell<Vec<String>>) -> Value {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(after) = after.strip_prefix('$') {
            out.push('$');
            rest = after;
            continue;
        }
        let name = after
            .strip_prefix('(')
            .and_then(|after| after.split_once(')'));
        let Some((name, behind)) = name else {
            out.push('$');
            rest = after;
            continue;
        };
        match values.get(name).filter(|v| !v.is_object() && !v.is_array()) {
            Some(value) => {
                used.borrow_mut().push(name.to_owned());
                if text == format!("$({name})") {
                    return value.clone();
                }
                out.push_str(&scalar_text(value));
            }
            None => out.push_str(&format!("$({name})")),
        }
        rest = behind;
    }
    out.push_str(rest);
    json!(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_expand_inside_text_and_keep_their_type_alone() {
        let values = BTreeMap::from([("A".to_owned(), json!("x")), ("N".to_owned(), json!(3))]);
        let used = RefCell::default();
        for (text, expected) in [
            ("$(A)", json!("x")),
            ("$(N)", json!(3)),
            ("a-$(A)-$(N)", json!("a-x-3")),
            ("$(B)", json!("$(B)")),
            ("$$(A)", json!("$(A)")),
            ("$A $(", json!("$A $(")),
        ] {
            assert_eq!(expand(text, &values, &used), expected, "{text}");
        }
    }
}
