//! Binding and eviction of pods.

use std::sync::Arc;

use http::StatusCode;
use machinery::json::json;
use machinery::{Object, Status, Value};

use super::{
    body::{self, Verb, WriteOptions},
    objects,
};
use crate::{
    Resource, convert, media, meta,
    pipeline::Request,
    respond::{self, Answer},
    write::{self, DeleteOptions, Write},
};

/// Gives a pod its node.
pub(crate) async fn bind(request: Request, resource: Arc<Resource>) -> Answer {
    let binding = decode(&request, "core/v1.Binding").await?;
    let name = request
        .info
        .resource
        .as_ref()
        .map(|subject| subject.name.clone());
    give_node(request, resource, binding, name.unwrap_or_default()).await
}

/// The same through `bindings`: the binding names the pod.
pub(crate) async fn bind_named(request: Request) -> Answer {
    let pods = request
        .core
        .registry
        .get("", "v1", "pods")
        .ok_or_else(Status::path_not_found)?;
    let binding = decode(&request, "core/v1.Binding").await?;
    let name = meta::text(&binding, "name").to_owned();
    give_node(request, pods, binding, name).await
}

async fn give_node(
    request: Request,
    resource: Arc<Resource>,
    binding: Object,
    name: String,
) -> Answer {
    let options = WriteOptions::parse(&request, Verb::Create)?;
    let [kind, node] = ["kind", "name"].map(|key| {
        let target = binding.get("target").and_then(|target| target.get(key));
        target
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    });
    if !matches!(kind.as_str(), "" | "Node") {
        return Err(refuse_binding("target.kind", &kind, "must be Node"));
    }
    if node.is_empty() {
        return Err(refuse_binding("target.name", "", "is required"));
    }
    let mut write = objects::write(&request, &resource, &options);
    write.internal = true;
    write.name = name;
    write.subresource = "binding".to_owned();
    let now = meta::time(request.core.config.clock.now());
    let change = move |old: &Object| assign(old, &binding, &node, &now);
    let core = request.core.clone();
    core.supervise(async move { write::update(&write, &change).await })
        .await?;
    Ok(success(StatusCode::CREATED))
}

fn refuse_binding(field: &str, value: &str, why: &str) -> Status {
    use machinery::field::{Error, Path};
    let error = Error::invalid(&Path::new(field), value, why);
    Status::invalid("", "Binding", "", &[error])
}

/// The pod with its node, or why it cannot have it.
fn assign(old: &Object, binding: &Object, node: &str, now: &str) -> Result<Object, Status> {
    let name = meta::text(old, "name");
    let conflict = |why: String| Err(Status::conflict("", "pods/binding", name, &why));
    let uid = meta::text(binding, "uid");
    if !uid.is_empty() && uid != meta::text(old, "uid") {
        return conflict(format!(
            "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
            meta::text(old, "uid")
        ));
    }
    if meta::is_deleting(old) {
        return conflict(format!(
            "pod {name} is being deleted, cannot be assigned to a host"
        ));
    }
    let spec = |key: &str| old.get("spec").and_then(|spec| spec.get(key));
    if let Some(taken) = spec("nodeName")
        .and_then(Value::as_str)
        .filter(|taken| !taken.is_empty())
    {
        return conflict(format!("pod {name} is already assigned to node {taken:?}"));
    }
    if spec("schedulingGates")
        .and_then(Value::as_array)
        .is_some_and(|gates| !gates.is_empty())
    {
        return conflict(format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    let mut pod = old.clone();
    for key in ["annotations", "labels"] {
        let given = meta::of(binding).and_then(|metadata| metadata.get(key));
        let Some(given) = given.and_then(Value::as_object) else {
            continue;
        };
        let own = meta::of_mut(&mut pod)
            .entry(key)
            .or_insert_with(|| json!({}));
        if let Some(own) = own.as_object_mut() {
            own.extend(given.clone());
        }
    }
    let spec = pod.entry("spec").or_insert_with(|| json!({}));
    spec["nodeName"] = node.into();
    mark_scheduled(&mut pod, now);
    Ok(pod)
}

/// Sets the condition PodScheduled to True.
fn mark_scheduled(pod: &mut Object, now: &str) {
    let condition = json!({
        "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now,
    });
    set_condition(pod, condition);
}

/// Puts a condition in the place of the one of its type.
fn set_condition(pod: &mut Object, mut condition: Value) {
    let generation = meta::number(pod, "generation");
    let status = pod.entry("status").or_insert_with(|| json!({}));
    let Some(status) = status.as_object_mut() else {
        return;
    };
    let conditions = status.entry("conditions").or_insert_with(|| json!([]));
    let Some(conditions) = conditions.as_array_mut() else {
        return;
    };
    if let Some(generation) = generation {
        condition["observedGeneration"] = generation.into();
    }
    match conditions
        .iter_mut()
        .find(|old| old["type"] == condition["type"])
    {
        Some(old) => *old = condition,
        None => conditions.push(condition),
    }
}

/// Notes on a pod why it goes, for those who see it go.
async fn mark_evicted(write: &mut Write) -> Result<(), Status> {
    let now = meta::time(write.core.config.clock.now());
    let change = move |old: &Object| {
        let mut pod = old.clone();
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "lastProbeTime": null,
            "lastTransitionTime": now, "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
        });
        if !meta::is_deleting(&pod) {
            set_condition(&mut pod, condition);
        }
        Ok(pod)
    };
    let eviction = std::mem::replace(&mut write.subresource, "status".to_owned());
    write.internal = true;
    let marked = write::update(write, &change).await;
    write.internal = false;
    write.subresource = eviction;
    marked.map(|_| ())
}

/// Deletes a pod unless a disruption budget forbids it.
pub(crate) async fn evict(request: Request, resource: Arc<Resource>) -> Answer {
    let options = WriteOptions::parse(&request, Verb::Create)?;
    let eviction = decode(&request, "policy/v1.Eviction").await?;
    let delete: DeleteOptions = match eviction.get("deleteOptions") {
        Some(value) => machinery::json::from_value(value.clone())
            .map_err(|error| Status::bad_request(format!("deleteOptions: {error}")))?,
        None => DeleteOptions::default(),
    };
    delete.check()?;
    let mut write = objects::write(&request, &resource, &options);
    let name = meta::text(&eviction, "name");
    if !name.is_empty() && name != write.name {
        return Err(Status::bad_request(
            "name in URL does not match name in Eviction object",
        ));
    }
    write.dry_run |= !delete.dry_run.is_empty();
    let core = request.core.clone();
    let task = async move {
        crate::disruption::allow(&write).await?;
        if !write.dry_run {
            mark_evicted(&mut write).await?;
        }
        write::delete(&write, &delete).await
    };
    core.supervise(task).await?;
    Ok(success(StatusCode::CREATED))
}

async fn decode(request: &Request, name: &str) -> Result<Object, Status> {
    let media = media::Body::of(&request.parts.headers)?;
    let bytes = body::take(request).await?;
    convert::decode_type(name, media, &bytes)
}

fn success(code: StatusCode) -> http::Response<crate::Body> {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
        "code": code.as_u16(),
    });
    respond::bytes(code, respond::JSON, body.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> Object {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn a_pod_gets_one_node_and_keeps_it() {
        let pod = object(json!({"metadata": {"name": "a", "uid": "1"}, "spec": {}}));
        let binding = object(json!({"metadata": {"uid": "1", "annotations": {"k": "v"}}}));
        let bound = assign(&pod, &binding, "n1", "2026-01-01T00:00:00Z").unwrap();
        assert_eq!(bound["spec"]["nodeName"], "n1");
        assert_eq!(bound["status"]["conditions"][0]["status"], "True");
        assert_eq!(bound["metadata"]["annotations"]["k"], "v");
        let again = assign(&bound, &binding, "n2", "").unwrap_err();
        assert_eq!(again.code, 409);
        assert!(
            again
                .message
                .ends_with("pod a is already assigned to node \"n1\""),
            "{again}"
        );
        let other = object(json!({"metadata": {"uid": "2"}}));
        assert_eq!(assign(&pod, &other, "n1", "").unwrap_err().code, 409);
    }
}
