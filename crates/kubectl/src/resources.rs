//! The objects of a command: `pods`, `pod/a deploy/b`, `pod a b`, `-f file`, `-l app=web`.

use anyhow::{Result, bail};
use serde_json::{Value, json};

use crate::{
    api::{Query, with_query},
    args::Selection,
    discovery::Resource,
    error,
    json::{list, text},
    manifest::{self, Manifest},
    session::Session,
};

/// The error if no resource is given.
pub(crate) const NOTHING: &str = "You must provide one or more resources by argument or filename.\n\
    Example resource specifications include:\n   '-f rsrc.yaml'\n   '--filename=rsrc.json'\n   '<resource> <name>'\n   '<resource>'";

/// The error for an argument beside `TYPE/NAME`.
pub(crate) const STRAY_WORD: &str = "there is no need to specify a resource type as a separate argument when passing \
    arguments in resource/name form (e.g. 'kubectl get resource/<resource_name>' instead of \
    'kubectl get resource resource/<resource_name>'";

/// The error for types and names beside `--local`.
pub(crate) const LOCAL_TYPES: &str = "you must specify resources by --filename when --local is set.\n\
    Example resource specifications include:\n   '-f rsrc.yaml'\n   '--filename=rsrc.json'";

/// The error about an object's namespace, if the object was not found because of that.
pub(crate) async fn missing_namespace(
    session: &Session,
    namespace: &str,
    error: anyhow::Error,
) -> anyhow::Error {
    if !error::is_not_found(&error) || matches!(namespace, "" | "default") {
        return error;
    }
    let namespaces = format!("/api/v1/namespaces/{}", crate::discovery::encode(namespace));
    match session.api.get(&namespaces).await {
        Err(missing) if error::is_not_found(&missing) => missing,
        _ => error,
    }
}

/// One object that a command is about.
#[derive(Debug, Clone, Default)]
pub(crate) struct Target {
    pub resource: Resource,
    pub namespace: String,
    pub name: String,
    /// The manifest, if the object came from a file.
    pub manifest: Option<Value>,
    /// The file it came from.
    pub source: String,
    /// The live object, if it was listed.
    pub live: Option<Value>,
}

impl Target {
    /// The object's path.
    pub(crate) fn path(&self) -> String {
        self.resource.object(&self.namespace, &self.name)
    }

    /// The path of its collection.
    pub(crate) fn collection(&self) -> String {
        self.resource.collection(Some(&self.namespace))
    }

    /// `deployment.apps/web`.
    pub(crate) fn display(&self) -> String {
        format!("{}/{}", self.resource.qualified_singular(), self.name)
    }

    /// The live object.
    pub(crate) async fn get(&self, session: &Session) -> Result<Value> {
        match &self.live {
            Some(live) => Ok(live.clone()),
            None => match session.api.get(&self.path()).await {
                Ok(object) => Ok(object),
                Err(error) => Err(missing_namespace(session, &self.namespace, error).await),
            },
        }
    }

    /// The path and parameters of a watch of this object from a version on.
    pub(crate) fn watch_path(&self, version: &str) -> String {
        let query: Query = vec![
            ("watch", "true".into()),
            ("timeoutSeconds", "300".into()),
            ("fieldSelector", format!("metadata.name={}", self.name)),
            ("resourceVersion", version.to_owned()),
        ];
        with_query(&self.collection(), &query)
    }
}

/// What command-line words name: whole types, or single objects.
#[derive(Debug, Clone)]
pub(crate) enum Named {
    Types(Vec<Resource>),
    Objects(Vec<(Resource, String)>),
}

/// The error for names beside a selector.
pub(crate) fn beside_selector(words: &[String]) -> &'static str {
    match words.iter().any(|word| word.contains('/')) {
        true => "selectors and the all flag cannot be used when passing resource/name arguments",
        false => "name cannot be provided when a selector is specified",
    }
}

/// Parses `TYPE[,TYPE] [NAME…]` or `TYPE/NAME…`.
pub(crate) async fn named(session: &Session, words: &[String]) -> Result<Named> {
    let Some(first) = words.first() else {
        bail!(NOTHING);
    };
    if words.iter().any(|word| word.contains('/')) {
        return pairs(session, words).await;
    }
    let types = types(session, first).await?;
    if types.is_empty() {
        bail!("the server doesn't have a resource type \"\"");
    }
    if words[1..].iter().any(String::is_empty) {
        bail!("resource name may not be empty");
    }
    if words.len() == 1 {
        return Ok(Named::Types(types));
    }
    let mut objects = Vec::new();
    for resource in &types {
        objects.extend(
            words[1..]
                .iter()
                .map(|name| (resource.clone(), name.clone())),
        );
    }
    Ok(Named::Objects(objects))
}

async fn pairs(session: &Session, words: &[String]) -> Result<Named> {
    let mut objects = Vec::new();
    for word in words {
        let parts: Vec<&str> = word.split('/').collect();
        match parts.as_slice() {
            [_] => bail!(STRAY_WORD),
            [kind, name] if !kind.is_empty() && !name.is_empty() => {
                if kind.contains(',') {
                    bail!("arguments in resource/name form must have a single resource and name");
                }
                objects.push((session.discovery.resolve(kind).await?, (*name).to_owned()));
            }
            [_, _] => bail!("arguments in resource/name form must have a single resource and name"),
            _ => bail!("arguments in resource/name form may not have more than one slash"),
        }
    }
    Ok(Named::Objects(objects))
}

/// The resources of `pods,services` or `all`.
pub(crate) async fn types(session: &Session, word: &str) -> Result<Vec<Resource>> {
    let mut types: Vec<Resource> = Vec::new();
    for word in word.split(',').filter(|word| !word.is_empty()) {
        let category = session.discovery.category(word).await?;
        match category.is_empty() {
            true => types.push(session.discovery.resolve(word).await?),
            false => types.extend(category),
        }
    }
    Ok(types)
}

/// The parameters of a list call.
pub(crate) fn query(selection: &Selection) -> Query {
    let mut query = Query::new();
    if let Some(selector) = &selection.selector {
        query.push(("labelSelector", selector.clone()));
    }
    if let Some(selector) = &selection.field_selector {
        query.push(("fieldSelector", selector.clone()));
    }
    query
}

/// The objects of manifests.
pub(crate) async fn from_manifests(
    session: &Session,
    manifests: Vec<Manifest>,
) -> Result<Vec<Target>> {
    let mut targets = Vec::new();
    for manifest in manifests {
        targets.push(target_of(session, manifest).await?);
    }
    Ok(targets)
}

/// The objects of what could be read, and the errors about the others.
pub(crate) async fn of_each(
    session: &Session,
    found: Vec<Result<Manifest>>,
) -> (Vec<Target>, Vec<anyhow::Error>) {
    let (mut targets, mut errors) = (Vec::new(), Vec::new());
    for manifest in found {
        let target = match manifest {
            Ok(manifest) => target_of(session, manifest).await,
            Err(error) => Err(error),
        };
        match target {
            Ok(target) => targets.push(target),
            Err(error) => errors.push(error),
        }
    }
    (targets, errors)
}

/// Finds the resource and namespace of a manifest's object, and sets the namespace in it.
pub(crate) async fn target_of(session: &Session, manifest: Manifest) -> Result<Target> {
    let Manifest { mut object, source } = manifest;
    let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
    let name = text(&object["metadata"]["name"]);
    let given = text(&object["metadata"]["namespace"]);
    let Some(resource) = session.discovery.of_kind(&version, &kind).await? else {
        let known = session.discovery.resources().await?;
        let near = crate::hint::nearest(&kind, known.iter().map(|one| one.kind.as_str()));
        let near = near.map(|near| format!("\ndid you mean {near:?} instead of {kind:?}?"));
        bail!(
            "resource mapping not found for name: {name:?} namespace: {given:?} from {source:?}: \
             no matches for kind {kind:?} in version {version:?}\nensure CRDs are installed first{}",
            near.unwrap_or_default()
        );
    };
    let namespace = if given.is_empty() {
        session.namespace.clone()
    } else {
        given.clone()
    };
    if session.namespace_given
        && resource.namespaced
        && !given.is_empty()
        && given != session.namespace
    {
        bail!(
            "the namespace from the provided object \"{given}\" does not match the namespace \"{}\". \
             You must pass '--namespace={given}' to perform this operation.",
            session.namespace
        );
    }
    if resource.namespaced && given.is_empty() {
        if !object["metadata"].is_object() {
            object["metadata"] = json!({});
        }
        object["metadata"]["namespace"] = Value::String(namespace.clone());
    }
    if !resource.namespaced
        && let Some(metadata) = object["metadata"].as_object_mut()
    {
        metadata.remove("namespace");
    }
    Ok(Target {
        resource,
        namespace,
        name,
        manifest: Some(object),
        source,
        live: None,
    })
}

/// Leaves only the objects of a label selector, and the errors.
pub(crate) fn retain(found: &mut Vec<Result<Manifest>>, selector: Option<&str>) -> Result<()> {
    if let Some(selector) = selector {
        let selector = crate::json::selector(selector)?;
        let is_kept = |manifest: &Manifest| crate::json::selects(&selector, &manifest.object);
        found.retain(|manifest| manifest.as_ref().map_or(true, is_kept));
    }
    Ok(())
}

/// Every object that files, words and selectors select. Types are listed. Errors about single files
/// are reported at the end of the command.
pub(crate) async fn targets(
    session: &Session,
    selection: &Selection,
    words: &[String],
    all: bool,
) -> Result<Vec<Target>> {
    if !selection.files.is_empty() {
        if !words.is_empty() {
            bail!(
                "when paths, URLs, or stdin is provided as input, you may not specify resource arguments as well"
            );
        }
        let mut found = manifest::read_each(&selection.files, false).await?;
        retain(&mut found, selection.selector.as_deref())?;
        let (targets, errors) = of_each(session, found).await;
        if targets.is_empty() {
            error::aggregate(errors)?;
        } else {
            session.report_at_the_end(errors);
        }
        return Ok(targets);
    }
    let is_given = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    let has_selector = is_given(&selection.selector) || is_given(&selection.field_selector);
    if words.is_empty() && has_selector {
        bail!("at least one resource must be specified to use a selector");
    }
    match named(session, words).await? {
        Named::Objects(_) if has_selector => {
            bail!(beside_selector(words))
        }
        Named::Objects(objects) => {
            if selection.all_namespaces {
                bail!("a resource cannot be retrieved by name across all namespaces");
            }
            Ok(objects
                .into_iter()
                .map(|(resource, name)| target(session, resource, name))
                .collect())
        }
        Named::Types(_) if !all && !has_selector => {
            bail!("resource(s) were provided, but no name was specified")
        }
        Named::Types(types) => {
            let mut found = Vec::new();
            for resource in types {
                found.extend(listed(session, selection, resource).await?);
            }
            Ok(found)
        }
    }
}

/// An object by its name, in the session's namespace.
pub(crate) fn target(session: &Session, resource: Resource, name: String) -> Target {
    Target {
        resource,
        name,
        namespace: session.namespace.clone(),
        manifest: None,
        source: String::new(),
        live: None,
    }
}

async fn listed(
    session: &Session,
    selection: &Selection,
    resource: Resource,
) -> Result<Vec<Target>> {
    let namespace = (!selection.all_namespaces).then_some(session.namespace.as_str());
    let path = with_query(&resource.collection(namespace), &query(selection));
    let answer = session
        .api
        .list(
            &path,
            "application/json",
            selection.chunk_size.unwrap_or(500),
        )
        .await;
    let answer = answer.map_err(|error| refused(error, selection, &resource))?;
    Ok(list(&answer["items"])
        .map(|item| of_item(&resource, item))
        .collect())
}

/// The error for a failed list, with the resource that was listed, as upstream words it.
pub(crate) fn refused(
    mut error: anyhow::Error,
    selection: &Selection,
    resource: &Resource,
) -> anyhow::Error {
    if let Some(error::ServerError(status)) = error.downcast_mut()
        && matches!(status.code, 400 | 404)
    {
        let Resource {
            group,
            version,
            plural,
            ..
        } = resource;
        let listed = format!("\"{group}/{version}, Resource={plural}\"");
        let text = |selector: &Option<String>| selector.clone().unwrap_or_default();
        status.message = match (text(&selection.selector), text(&selection.field_selector)) {
            (labels, fields) if labels.is_empty() && fields.is_empty() => {
                format!("Unable to list {listed}: {}", status.message)
            }
            (labels, fields) => format!(
                "Unable to find {listed} that match label selector {labels:?}, field selector {fields:?}: {}",
                status.message
            ),
        };
    }
    error
}

/// An item of a list with its kind, which lists of built-in kinds leave out.
pub(crate) fn of_item(resource: &Resource, item: &Value) -> Target {
    let mut live = json!({"apiVersion": resource.api_version(), "kind": resource.kind});
    if let (Some(live), Some(fields)) = (live.as_object_mut(), item.as_object()) {
        live.extend(fields.clone());
    }
    Target {
        resource: resource.clone(),
        namespace: text(&item["metadata"]["namespace"]),
        name: text(&item["metadata"]["name"]),
        manifest: None,
        source: String::new(),
        live: Some(live),
    }
}
