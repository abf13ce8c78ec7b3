//! Which objects a command is about: `pods`, `pod/a deploy/b`, `pod a b`, `-f file`, `-l app=web`.

use anyhow::{Result, bail};
use serde_json::Value;

use crate::{
    args::Selection,
    discovery::{Discovery, Resource, encode},
    manifest,
    session::Session,
};

/// One object that a command is about.
#[derive(Debug, Clone)]
pub struct Target {
    pub resource: Resource,
    pub namespace: String,
    pub name: String,
    /// What the file says, when the object came from one.
    pub manifest: Option<Value>,
}

impl Target {
    /// The object's path.
    pub fn path(&self) -> String {
        self.resource.object(&self.namespace, &self.name)
    }

    /// `deployment.apps/web`.
    pub fn display(&self) -> String {
        format!("{}/{}", self.resource.qualified_singular(), self.name)
    }
}

/// What words on the command line name: whole types, or single objects.
#[derive(Debug, Clone)]
pub enum Named {
    Type(Vec<Resource>),
    Objects(Vec<(Resource, String)>),
}

/// Reads `TYPE[,TYPE] [NAME…]` or `TYPE/NAME…`.
pub fn named(discovery: &Discovery, words: &[String]) -> Result<Named> {
    let Some(first) = words.first() else {
        bail!("you must specify the type of resource, for example: pods");
    };
    if words.iter().any(|word| word.contains('/')) {
        let pair = |word: &String| match word.split_once('/') {
            Some((kind, name)) if !kind.is_empty() && !name.is_empty() => {
                Ok((discovery.resolve(kind)?.clone(), name.to_owned()))
            }
            _ => bail!("there is no need to mix TYPE/NAME with other forms: {word:?}"),
        };
        return Ok(Named::Objects(
            words.iter().map(pair).collect::<Result<_>>()?,
        ));
    }
    let mut types = Vec::new();
    for word in first.split(',').filter(|word| !word.is_empty()) {
        let category = discovery.category(word);
        if category.is_empty() {
            types.push(discovery.resolve(word)?.clone());
        } else {
            types.extend(category.into_iter().cloned());
        }
    }
    if words.len() == 1 {
        return Ok(Named::Type(types));
    }
    let names = |resource: &Resource| -> Vec<(Resource, String)> {
        words[1..]
            .iter()
            .map(|name| (resource.clone(), name.clone()))
            .collect()
    };
    Ok(Named::Objects(types.iter().flat_map(names).collect()))
}

/// The query of a list call.
pub fn query(selection: &Selection) -> String {
    let mut parts = Vec::new();
    if let Some(selector) = &selection.selector {
        parts.push(format!("labelSelector={}", encode(selector)));
    }
    if let Some(selector) = &selection.field_selector {
        parts.push(format!("fieldSelector={}", encode(selector)));
    }
    if parts.is_empty() {
        String::new()
    } else {
        format!("?{}", parts.join("&"))
    }
}

/// The objects of manifests.
pub fn from_manifests(
    session: &Session,
    discovery: &Discovery,
    objects: Vec<Value>,
) -> Result<Vec<Target>> {
    objects
        .into_iter()
        .map(|object| target_of(session, discovery, object))
        .collect()
}

/// Finds the resource and namespace of a manifest's object, and writes the namespace into it.
pub fn target_of(session: &Session, discovery: &Discovery, mut object: Value) -> Result<Target> {
    let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
    let resource = discovery.of_kind(&version, &kind)?.clone();
    let given = text(&object["metadata"]["namespace"]);
    let namespace = if given.is_empty() {
        session.namespace.clone()
    } else {
        given.clone()
    };
    if session.namespace_given && !given.is_empty() && given != session.namespace {
        bail!(
            "the namespace from the provided object \"{given}\" does not match the namespace \"{}\". \
             You must pass '--namespace={given}' to perform this operation.",
            session.namespace
        );
    }
    if resource.namespaced && given.is_empty() {
        object["metadata"]["namespace"] = Value::String(namespace.clone());
    }
    let name = text(&object["metadata"]["name"]);
    Ok(Target {
        resource,
        namespace,
        name,
        manifest: Some(object),
    })
}

/// Every object that files, words and selectors name. Types are listed.
pub async fn targets(
    session: &Session,
    discovery: &Discovery,
    selection: &Selection,
    words: &[String],
    all: bool,
) -> Result<Vec<Target>> {
    if !selection.filename.is_empty() {
        let objects = manifest::read(&selection.filename, selection.recursive)?;
        return from_manifests(session, discovery, objects);
    }
    match named(discovery, words)? {
        Named::Objects(objects) => {
            let of = |(resource, name)| Target {
                resource,
                name,
                namespace: session.namespace.clone(),
                manifest: None,
            };
            Ok(objects.into_iter().map(of).collect())
        }
        Named::Type(types) => {
            if !all && selection.selector.is_none() && selection.field_selector.is_none() {
                bail!("resource(s) were provided, but no name was specified");
            }
            let mut found = Vec::new();
            for resource in types {
                found.extend(list(session, selection, resource).await?);
            }
            Ok(found)
        }
    }
}

async fn list(session: &Session, selection: &Selection, resource: Resource) -> Result<Vec<Target>> {
    let namespace = (!selection.all_namespaces).then_some(session.namespace.as_str());
    let path = format!("{}{}", resource.collection(namespace), query(selection));
    let list = session.api.get(&path).await?;
    let of = |item: &Value| Target {
        resource: resource.clone(),
        namespace: text(&item["metadata"]["namespace"]),
        name: text(&item["metadata"]["name"]),
        manifest: None,
    };
    Ok(list["items"]
        .as_array()
        .into_iter()
        .flatten()
        .map(of)
        .collect())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
