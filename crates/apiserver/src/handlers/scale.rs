//! `scale`: the desired and current replicas of an object of any kind.

use std::sync::Arc;

use http::StatusCode;
use machinery::json::json;
use machinery::{
    Object, Status, Value,
    apply::{OneVersion, Root, Writer, scale, track},
    decode::Findings,
    field::{Error, Errors, Path},
    labels, protobuf, schema, text, time,
};

use super::{
    apply,
    body::{self, Verb, WriteOptions},
    objects, patch, read,
};
use crate::{
    Resource, convert, failure,
    media::{self, ResponseShape},
    meta,
    output::{self, Output},
    pipeline::Request,
    respond::{self, Answer},
    write::{self, ObjectChange, Versions, WritePath},
};
use apiextensions::{FieldPath, ScalePaths};

const SCALE: &str = "autoscaling/v1.Scale";
const APPLY: &str = "application/apply-patch+yaml";
/// The value for replicas that a custom resource does not set.
const UNSET: i64 = i32::MIN as i64;

pub(crate) async fn serve(
    writes: &Arc<WritePath>,
    request: Request,
    resource: Arc<Resource>,
) -> Answer {
    match request.info.verb {
        "get" => get(writes, request, resource).await,
        _ => write(writes, request, resource).await,
    }
}

async fn get(writes: &Arc<WritePath>, request: Request, resource: Arc<Resource>) -> Answer {
    let subject = request.info.resource.clone().unwrap_or_default();
    let key = resource.key(&subject.namespace, &subject.name);
    let read = writes.store.get(&key, store::Freshness::Newest).await;
    let (_, entry) = read.map_err(failure::of_store)?;
    let missing = || Status::not_found(&resource.group, &resource.plural, &subject.name);
    let entry = entry.ok_or_else(missing)?;
    let output = read::output(&writes.clock, &request, &resource)?;
    let object = resource.parse_converted(&entry.object).await?;
    if let Some(paths) = resource.scale()
        && read_number(&paths.spec, &object)?.is_none()
    {
        let path = text::quote(&paths.spec.text);
        let why = format!("the spec replicas field {path} does not exist");
        return Err(Status::internal(why));
    }
    scale_response(&output, &resource, &object)
}

/// The response with an object's Scale.
fn scale_response(output: &Output, resource: &Resource, object: &Object) -> Answer {
    let paths = resource.scale();
    let scale = scale_of(object, paths.as_ref())?;
    let metadata = scale.get("metadata").cloned().unwrap_or_default();
    let partial = json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": output.wanted.meta_version(),
        "metadata": metadata,
    });
    let shown = match output.wanted.shape {
        ResponseShape::Object => Value::Object(scale),
        ResponseShape::Metadata { .. } => partial,
        ResponseShape::Table => {
            let revision = json!({"resourceVersion": metadata["resourceVersion"]});
            let row = output.row_of(row(&scale, output.now()), &scale);
            output.table_of(columns(paths.is_some()), vec![row], revision)
        }
    };
    let schema = match output.wanted.shape {
        ResponseShape::Metadata { .. } => output.message_type(),
        _ => schema::lookup(SCALE).filter(|_| output.message_type().is_some()),
    };
    Ok(match (schema, &shown) {
        (Some(schema), Value::Object(object)) => {
            let message = protobuf::encode(schema, object);
            respond::bytes(StatusCode::OK, output::PROTOBUF, message)
        }
        _ => output.encoded(StatusCode::OK, shown.to_string().into()),
    })
}

fn read_number(path: &FieldPath, object: &Object) -> Result<Option<i64>, Status> {
    path.number(object).map_err(Status::unknown)
}

/// The columns of a Table of Scales; custom resources describe theirs differently, as upstream.
fn columns(custom: bool) -> Value {
    let column = |name: &str, kind: &str, format: &str, about: &str| json!({"name": name, "type": kind, "format": format, "description": about, "priority": 0});
    let (name, age) = if custom {
        ("name", "date")
    } else {
        ("", "string")
    };
    json!([
        column("Name", "string", name, "Name of the object."),
        column("Desired", "integer", "", "Desired number of replicas."),
        column("Available", "integer", "", "Current number of replicas."),
        column("Age", age, "", "Time since the object was created."),
    ])
}

fn row(scale: &Object, now: i64) -> Vec<Value> {
    let number = |part: &str| {
        let replicas = scale.get(part).and_then(|part| part.get("replicas"));
        replicas.cloned().unwrap_or(0.into())
    };
    let created = meta::metadata(scale).and_then(|metadata| metadata.get("creationTimestamp"));
    let age = time::age(created.and_then(Value::as_str), now);
    vec![
        meta::text(scale, "name").into(),
        number("spec"),
        number("status"),
        age.into(),
    ]
}

async fn write(writes: &Arc<WritePath>, request: Request, resource: Arc<Resource>) -> Answer {
    // Parsed first: a request whose response cannot be served must not change anything.
    let output = read::output(&writes.clock, &request, &resource)?;
    let media = media::content_type(&request.parts.headers);
    let is_patch = request.info.verb == "patch";
    let (wanted, options) = if is_patch && media == APPLY {
        let (config, options) = apply::Configuration::from_request(&request).await?;
        (Wanted::Applied(config), options)
    } else if is_patch {
        let options = WriteOptions::parse(&request, Verb::Patch)?;
        let typed = resource.schema.is_some();
        let patch = patch::Received::from_request(&request, typed, options.validation).await?;
        (Wanted::Patch(patch), options)
    } else {
        let media = media::Body::from_headers(&request.parts.headers)?;
        let bytes = body::read(&request).await?;
        let options = WriteOptions::parse(&request, Verb::Update)?;
        let scale = convert::decode_part(&convert::SCALE, media, &bytes, options.validation)?;
        (Wanted::Whole(scale.object, scale.warnings), options)
    };
    let mut write = objects::requested_write(writes, &request, &resource, &options);
    write.tracked = true;
    if let Wanted::Whole(scale, warnings) = &wanted {
        let mut scale = scale.clone();
        let placed = write.ensure_namespace_matches(&mut scale);
        placed
            .and_then(|()| write.check_name(&scale))
            .map_err(|status| status.warned(warnings.clone()))?;
    }
    let change = Rescale {
        wanted,
        resource: resource.clone(),
        versions: write.versions(),
        manager: write.field_manager.clone(),
        now: meta::time(writes.clock.now()),
        warnings: parking_lot::Mutex::default(),
    };
    let task = async move { write::update(&write, &change).await };
    let written = writes.supervise(task).await?;
    let object = resource.parse_converted(&written.object).await?;
    let response = scale_response(&output, &resource, &object)?;
    Ok(respond::warn(response, &written.warnings))
}

enum Wanted {
    /// The Scale as sent, with warnings.
    Whole(Object, Vec<String>),
    Patch(patch::Received),
    Applied(apply::Configuration),
}

struct Rescale {
    wanted: Wanted,
    resource: Arc<Resource>,
    versions: Versions,
    manager: String,
    now: String,
    warnings: parking_lot::Mutex<Vec<String>>,
}

impl Rescale {
    /// The Scale that the client wants, with managed fields.
    fn scale(&self, current: &Object) -> Result<Object, Status> {
        let schema = convert::SCALE.schema()?;
        let versions = OneVersion {
            api_version: scale::API_VERSION,
            root: Root::Typed(schema),
        };
        let writer = Writer {
            manager: &self.manager,
            api_version: scale::API_VERSION,
            subresource: "scale",
            now: &self.now,
            reset: &[],
            versions: &versions,
        };
        let (mut scale, warnings) = match &self.wanted {
            Wanted::Whole(scale, warnings) => (scale.clone(), warnings.clone()),
            Wanted::Patch(patch) => {
                let patched =
                    patch.apply(&patch::Target::Part(&convert::SCALE, schema), current)?;
                (patched.object, patched.warnings)
            }
            Wanted::Applied(config) => {
                let target = apply::Target {
                    api_version: scale::API_VERSION,
                    kind: "Scale",
                    schema: Some(schema),
                    definition: None,
                };
                self.check_convertible(current)?;
                let (scale, warnings) = config.merged(&target, Some(current), &writer)?;
                *self.warnings.lock() = warnings;
                return Ok(scale);
            }
        };
        *self.warnings.lock() = warnings;
        track(Some(current), &mut scale, &writer);
        Ok(scale)
    }

    /// Upstream fails to apply a Scale to a custom resource without managed fields.
    fn check_convertible(&self, current: &Object) -> Result<(), Status> {
        let is_owned =
            meta::metadata(current).is_some_and(|metadata| metadata.contains_key("managedFields"));
        if is_owned || !self.resource.custom {
            return Ok(());
        }
        Err(Status::unknown(
            "failed to create manager for existing fields: failed to convert live object (/; autoscaling/v1, Kind=Scale) to proper version: request to convert CR to an invalid group/version: autoscaling/v1",
        ))
    }

    /// A uid in the Scale is a precondition, also if a patch set it.
    fn check_uid(&self, scale: &Object, old: &Object) -> Result<(), Status> {
        let (wanted, uid) = (meta::text(scale, "uid"), meta::text(old, "uid"));
        if wanted.is_empty() || wanted == uid {
            return Ok(());
        }
        let why = format!(
            "Precondition failed: UID in precondition: {wanted}, UID in object meta: {uid}"
        );
        let plural = format!("{}/scale", self.resource.plural);
        let name = meta::text(old, "name");
        Err(Status::conflict(&self.resource.group, &plural, name, &why))
    }

    /// The path of the replicas field in each version.
    fn path(&self, api_version: &str) -> Option<Vec<String>> {
        let resource = self.versions.find(api_version)?;
        Some(match (&resource.definition, resource.scale()) {
            (None, _) => vec!["spec".to_owned(), "replicas".to_owned()],
            (Some(_), Some(paths)) => paths.spec.names,
            (Some(_), None) => Vec::new(),
        })
    }
}

impl ObjectChange for Rescale {
    fn uid(&self) -> Option<&str> {
        match &self.wanted {
            Wanted::Whole(scale, _) => Some(meta::text(scale, "uid")),
            _ => None,
        }
    }

    fn apply(&self, old: &Object) -> Result<Object, Status> {
        let paths = self.resource.scale();
        let mut current = scale_of(old, paths.as_ref())?;
        if let Some(paths) = &paths
            && read_number(&paths.spec, old)?.is_none()
        {
            current.insert("spec".to_owned(), json!({"replicas": UNSET}));
        }
        let path = |version: &str| self.path(version);
        if let Some(managers) = scale::shown(old, &path) {
            meta::set(&mut current, "managedFields", managers);
        }
        let mut scale = self.scale(&current)?;
        meta::ensure_namespace_matches(&mut scale, meta::text(old, "namespace"))?;
        meta::check_name(&scale, meta::text(old, "name"))?;
        let errors = match &paths {
            None => check(&scale),
            // Custom resources are validated when they are stored.
            Some(_) => Errors::new(),
        };
        if !errors.is_empty() {
            let name = meta::text(&scale, "name");
            return Err(Status::invalid("autoscaling", "Scale", name, &errors));
        }
        if paths.is_none() {
            self.check_uid(&scale, old)?;
        }
        let replicas = scale.get("spec").and_then(|spec| spec.get("replicas"));
        let replicas = replicas.and_then(Value::as_i64).unwrap_or(0);
        if let Some(paths) = paths.as_ref().filter(|_| replicas == UNSET) {
            let path = text::quote(&paths.spec.text);
            let why = format!("the spec replicas field {path} cannot be empty");
            return Err(Status::bad_request(why));
        }
        let mut object = old.clone();
        let revision = meta::text(&scale, "resourceVersion");
        if paths.is_none() || !revision.is_empty() {
            meta::set(&mut object, "resourceVersion", revision);
        }
        match paths {
            Some(paths) => {
                let set = paths.spec.set(&mut object, replicas.into());
                set.map_err(Status::unknown)?;
                // A replicas path that is not in the schema is pruned.
                if let Some(definition) = &self.resource.definition {
                    let pruned = definition.prune(&mut object, &mut Findings::default());
                    pruned.map_err(Status::unknown)?;
                }
            }
            None => {
                let spec = object.entry("spec").or_insert_with(|| json!({}));
                spec["replicas"] = replicas.into();
            }
        }
        scale::take_over(&mut object, &scale, &self.resource.api_version, &path);
        Ok(object)
    }

    fn warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.warnings.lock())
    }
}

/// Validates a Scale.
fn check(scale: &Object) -> Errors {
    let mut errors = Errors::new();
    let metadata = scale.get("metadata").unwrap_or(&Value::Null);
    let path = Path::new("metadata");
    kinds::metadata::check_scale(metadata, &path, &mut errors);
    let replicas = scale.get("spec").and_then(|spec| spec.get("replicas"));
    let replicas = replicas.and_then(Value::as_i64).unwrap_or(0);
    if replicas < 0 {
        let path = Path::new("spec.replicas");
        let why = "must be greater than or equal to 0";
        errors.push(Error::invalid(&path, replicas, why));
    }
    errors
}

/// An object's Scale.
fn scale_of(object: &Object, paths: Option<&ScalePaths>) -> Result<Object, Status> {
    let (wanted, current, selector) = match paths {
        Some(paths) => {
            let selector = paths.selector.as_ref().map(|path| path.text(object));
            (
                read_number(&paths.spec, object)?.unwrap_or(0),
                read_number(&paths.status, object)?.unwrap_or(0),
                selector.transpose().map_err(Status::unknown)?.flatten(),
            )
        }
        None => {
            let part = |part: &str, key: &str| object.get(part).and_then(|part| part.get(key));
            let number = |at: &str| part(at, "replicas").and_then(Value::as_i64).unwrap_or(0);
            (
                number("spec"),
                number("status"),
                selector_text(part("spec", "selector")),
            )
        }
    };
    let mut metadata = Object::new();
    for key in [
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "creationTimestamp",
    ] {
        if let Some(value) = meta::metadata(object).and_then(|metadata| metadata.get(key)) {
            metadata.insert(key.to_owned(), value.clone());
        }
    }
    let spec = match wanted {
        0 => json!({}),
        wanted => json!({"replicas": wanted}),
    };
    let mut status = json!({"replicas": current});
    if let Some(selector) = selector {
        status["selector"] = selector.into();
    }
    Ok(Object::from_iter([
        ("kind".to_owned(), "Scale".into()),
        ("apiVersion".to_owned(), "autoscaling/v1".into()),
        ("metadata".to_owned(), metadata.into()),
        ("spec".to_owned(), spec),
        ("status".to_owned(), status),
    ]))
}

/// The Scale that admission sees instead of the object.
pub(crate) fn scale_for_admission(resource: &Resource, object: &Object) -> Result<Object, Status> {
    scale_of(object, resource.scale().as_ref())
}

/// Sets the replicas of the admitted Scale on the object.
pub(crate) fn set_admitted_replicas(
    resource: &Resource,
    object: &mut Object,
    scale: &Object,
) -> Result<(), Status> {
    let replicas = scale.get("spec").and_then(|spec| spec.get("replicas"));
    let replicas = replicas.and_then(Value::as_i64).unwrap_or(0);
    match resource.scale() {
        Some(paths) => {
            let set = paths.spec.set(object, replicas.into());
            set.map_err(Status::unknown)
        }
        None => {
            let spec = object.entry("spec").or_insert_with(|| json!({}));
            spec["replicas"] = replicas.into();
            Ok(())
        }
    }
}

/// A label selector, or the plain map of a ReplicationController, as text.
fn selector_text(selector: Option<&Value>) -> Option<String> {
    let map = selector?.as_object()?;
    let structured = map.contains_key("matchLabels") || map.contains_key("matchExpressions");
    let selector = if structured {
        labels::Selector::from_label_selector(selector).ok()?
    } else {
        labels::Selector::from_map(map)
    };
    Some(selector.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_table_shows_desired_and_current_replicas() {
        let object = json!({"metadata": {"name": "a", "creationTimestamp": "1970-01-01T00:00:00Z"},
            "spec": {"replicas": 3, "selector": {}}, "status": {"replicas": 2}});
        let scale = scale_of(object.as_object().unwrap(), None).unwrap();
        let expected = [json!("a"), json!(3), json!(2), json!("10s")];
        assert_eq!(row(&scale, 10), expected);
        assert_eq!(columns(false).as_array().unwrap().len(), expected.len());
        assert_eq!(columns(true)[3]["type"], "date");
    }

    #[test]
    fn a_scale_shows_counts_and_the_selector() {
        let object = json!({"metadata": {"name": "a", "namespace": "b", "labels": {"x": "y"}},
            "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "a"}}},
            "status": {"replicas": 2}});
        let scale = scale_of(object.as_object().unwrap(), None).unwrap();
        assert_eq!(scale["spec"]["replicas"], 3);
        assert_eq!(scale["status"], json!({"replicas": 2, "selector": "app=a"}));
        assert_eq!(scale["metadata"], json!({"name": "a", "namespace": "b"}));
    }
}
