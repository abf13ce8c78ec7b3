//! `scale`: how many replicas an object wants and has, whatever its kind.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use machinery::{
    Object, Status, Value,
    field::{Error, Path},
    labels, schema,
};
use serde_json::json;

use super::{
    body::{self, WriteOptions},
    objects,
    patch::Patch,
    read,
};
use crate::{
    Resource,
    custom::ScalePaths,
    failure, media, meta,
    pipeline::Request,
    respond::{self, Answer},
    write::{self, Change},
};

pub(crate) async fn serve(request: Request, resource: Arc<Resource>) -> Answer {
    match request.info.verb {
        "get" => get(request, resource).await,
        _ => write(request, resource).await,
    }
}

async fn get(request: Request, resource: Arc<Resource>) -> Answer {
    let subject = request.info.resource.clone().unwrap_or_default();
    let key = resource.key(&subject.namespace, &subject.name);
    let read = request.core.store.get(&key, store::Freshness::Newest).await;
    let (_, entry) = read.map_err(failure::of_store)?;
    let missing = || Status::not_found(&resource.group, &resource.plural, &subject.name);
    let entry = entry.ok_or_else(missing)?;
    Ok(respond::json(&scale_of(
        &resource.parse(&entry.object),
        resource.scale().as_ref(),
    )))
}

async fn write(request: Request, resource: Arc<Resource>) -> Answer {
    let options = WriteOptions::parse(&request)?;
    // A client that cannot be answered must not have changed anything.
    read::output(&request, &resource)?;
    let media = media::content_type(&request.parts.headers);
    let bytes = body::take(&request).await?;
    let wanted = if request.info.verb == "patch" {
        Wanted::Patch(Patch::parse(
            schema::lookup("autoscaling/v1.Scale"),
            &media,
            &bytes,
        )?)
    } else {
        Wanted::Whole(decode(&bytes)?)
    };
    let write = objects::write(&request, &resource, &options);
    let change = Rescale {
        wanted,
        resource: resource.clone(),
    };
    let core = request.core.clone();
    let written = core
        .supervise(async move { write::update(&write, &change).await })
        .await?;
    let scale = scale_of(&resource.parse(&written.object), resource.scale().as_ref());
    let response = respond::bytes(StatusCode::OK, respond::JSON, scale.to_string());
    Ok(objects::with_warnings(response, &written.warnings))
}

fn decode(bytes: &Bytes) -> Result<Object, Status> {
    serde_json::from_slice(bytes).map_err(|error| {
        Status::bad_request(format!(
            "Scale in version \"v1\" cannot be handled as a Scale: {error}"
        ))
    })
}

enum Wanted {
    Whole(Object),
    Patch(Patch),
}

struct Rescale {
    wanted: Wanted,
    resource: Arc<Resource>,
}

impl Change for Rescale {
    fn apply(&self, old: &Object) -> Result<Object, Status> {
        let scale = match &self.wanted {
            Wanted::Whole(scale) => scale.clone(),
            Wanted::Patch(patch) => {
                let current = scale_of(old, self.resource.scale().as_ref());
                let current = current.as_object().cloned().unwrap_or_default();
                patch.apply(&current)?
            }
        };
        let replicas = scale.get("spec").and_then(|spec| spec.get("replicas"));
        let replicas = replicas.and_then(Value::as_i64).unwrap_or(0);
        if replicas < 0 {
            let path = Path::new("spec").child("replicas");
            let why = "must be greater than or equal to 0";
            let error = Error::invalid(&path, replicas, why);
            return Err(Status::invalid(
                &self.resource.group,
                &self.resource.kind.names().kind,
                meta::text(old, "name"),
                &[error],
            ));
        }
        let mut object = old.clone();
        meta::set(
            &mut object,
            "resourceVersion",
            meta::text(&scale, "resourceVersion"),
        );
        let uid = meta::text(&scale, "uid");
        if !uid.is_empty() {
            meta::set(&mut object, "uid", uid);
        }
        let mut object = Value::Object(object);
        match self.resource.scale() {
            Some(paths) => paths.spec.set(&mut object, replicas.into()),
            None => object["spec"]["replicas"] = replicas.into(),
        }
        match object {
            Value::Object(object) => Ok(object),
            _ => Err(Status::internal("an object stays one")),
        }
    }
}

/// An object's Scale.
fn scale_of(object: &Object, paths: Option<&ScalePaths>) -> Value {
    let whole = Value::Object(object.clone());
    let number = |value: Option<&Value>| value.and_then(Value::as_i64).unwrap_or(0);
    let (wanted, current, selector) = match paths {
        Some(paths) => {
            let selector = paths.selector.as_ref().and_then(|path| path.first(&whole));
            let selector = selector.and_then(Value::as_str).map(str::to_owned);
            (
                number(paths.spec.first(&whole)),
                number(paths.status.first(&whole)),
                selector,
            )
        }
        None => (
            number(whole["spec"].get("replicas")),
            number(whole["status"].get("replicas")),
            selector_text(whole["spec"].get("selector")),
        ),
    };
    let mut metadata = Object::new();
    for key in [
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "creationTimestamp",
    ] {
        if let Some(value) = meta::of(object).and_then(|metadata| metadata.get(key)) {
            metadata.insert(key.to_owned(), value.clone());
        }
    }
    let mut status = json!({"replicas": current});
    if let Some(selector) = selector {
        status["selector"] = selector.into();
    }
    json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": metadata,
        "spec": {"replicas": wanted},
        "status": status,
    })
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
    fn a_scale_shows_counts_and_the_selector() {
        let object = json!({"metadata": {"name": "a", "namespace": "b", "labels": {"x": "y"}},
            "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "a"}}},
            "status": {"replicas": 2}});
        let scale = scale_of(object.as_object().unwrap(), None);
        assert_eq!(scale["spec"]["replicas"], 3);
        assert_eq!(scale["status"], json!({"replicas": 2, "selector": "app=a"}));
        assert_eq!(scale["metadata"], json!({"name": "a", "namespace": "b"}));
    }
}
