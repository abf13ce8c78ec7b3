//! Binding and eviction of pods.

mod binding_edit;

use std::sync::Arc;

use http::StatusCode;
use machinery::field::{Error, Path, aggregate};
use machinery::json::json;
use machinery::{Object, Status, Value, schema::Type};

use super::{
    body::{self, Verb, WriteOptions},
    objects,
};
use crate::{
    Draft, Resource, Stored,
    convert::{self, Decoded, PartType},
    disruption, media, meta,
    pipeline::Request,
    respond::{self, Answer},
    write::{self, DeleteOptions, ObjectChange, Preconditions, Write, WritePath},
};

/// Assigns a pod to a node.
pub(crate) async fn bind(
    writes: &Arc<WritePath>,
    request: Request,
    resource: Arc<Resource>,
) -> Answer {
    let options = WriteOptions::parse(&request, Verb::Create)?;
    let binding = decode(&request, &convert::BINDING, &options).await?;
    let write = objects::requested_write(writes, &request, &resource, &options);
    assign_node(write, binding, BindingPath::Pod).await
}

/// The path on which a binding was posted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BindingPath {
    /// `pods/binding`.
    Pod,
    /// `bindings`.
    Bindings,
}

/// The same on `bindings`: the binding names the pod.
pub(crate) async fn bind_named(writes: &Arc<WritePath>, request: Request) -> Answer {
    let pods = writes
        .registry
        .get("", "v1", "pods")
        .ok_or_else(Status::path_not_found)?;
    let options = WriteOptions::parse(&request, Verb::Create)?;
    let mut binding = decode(&request, &convert::BINDING, &options).await?;
    // The uid of a new Binding object is not a precondition on the pod.
    meta::of_mut(&mut binding.object).shift_remove("uid");
    let mut write = objects::requested_write(writes, &request, &pods, &options);
    meta::text(&binding.object, "name").clone_into(&mut write.name);
    assign_node(write, binding, BindingPath::Bindings).await
}

async fn assign_node(mut write: Write, binding: Decoded, posted_at: BindingPath) -> Answer {
    let Decoded {
        object: mut binding,
        warnings,
    } = binding;
    write
        .ensure_namespace_matches(&mut binding)
        .map_err(|why| why.warned(warnings.clone()))?;
    write.internal = true;
    write.tracked = true;
    "binding".clone_into(&mut write.subresource);
    let path = write.path.clone();
    let now = meta::time(path.clock.now());
    let task = async move {
        match posted_at {
            BindingPath::Pod => write.admit_part("v1", "Binding", &mut binding).await?,
            BindingPath::Bindings => write.admit_binding(&mut binding).await?,
        }
        write.admitted = true;
        let node = check_binding(&write, &mut binding)?;
        let change = Assignment {
            schema: write.resource.schema,
            binding,
            node,
            now,
        };
        write::update(&write, &change).await
    };
    let written = path.supervise(task).await;
    let written = written.map_err(|why| why.warned(warnings.clone()))?;
    let warnings = [warnings, written.warnings].concat();
    Ok(respond::warn(success(StatusCode::CREATED), &warnings))
}

/// Assigns a node to a pod.
struct Assignment {
    schema: Option<&'static Type>,
    binding: Object,
    node: String,
    now: String,
}

impl ObjectChange for Assignment {
    fn apply(&self, old: &Object) -> Result<Object, Status> {
        assign(old, &self.binding, &self.node, &self.now)
    }

    fn edit(&self, stored: &Stored) -> Option<Draft> {
        let condition = scheduled(&self.now);
        binding_edit::assign(stored, self.schema?, &self.binding, &self.node, &condition)
    }
}

/// Validates a binding; returns the node that it names.
fn check_binding(write: &Write, binding: &mut Object) -> Result<String, Status> {
    write.ensure_namespace_matches(binding)?;
    if meta::text(binding, "name") != write.name {
        return Err(Status::bad_request(
            "name in URL does not match name in Binding object",
        ));
    }
    let target = binding.get("target").unwrap_or(&Value::Null);
    let text = |key: &str| target[key].as_str().unwrap_or_default();
    let (path, mut errors) = (Path::new("target"), Vec::new());
    if !matches!(text("kind"), "" | "Node") {
        let known = ["Node", "<empty>"];
        let at = path.child("kind");
        errors.push(Error::not_supported(&at, text("kind"), &known));
    }
    if text("name").is_empty() {
        errors.push(Error::required(&path.child("name"), ""));
    }
    if !errors.is_empty() {
        return Err(Status::unknown(aggregate(&errors)));
    }
    if write.name.is_empty() {
        return Err(Status::bad_request("Name parameter required."));
    }
    Ok(text("name").to_owned())
}

/// Checks the binding's uid and resourceVersion as preconditions on the pod.
fn check_conditions(old: &Object, binding: &Object) -> Result<(), Status> {
    let (name, namespace) = (meta::text(old, "name"), meta::text(old, "namespace"));
    for (field, called) in [("uid", "UID"), ("resourceVersion", "ResourceVersion")] {
        let (wanted, own) = (meta::text(binding, field), meta::text(old, field));
        if !wanted.is_empty() && wanted != own {
            let why = format!(
                "StorageError: invalid object, Code: 4, Key: /registry/pods/{namespace}/{name}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: {called} in precondition: {wanted}, {called} in object meta: {own}"
            );
            return Err(Status::conflict("", "pods", name, &why));
        }
    }
    Ok(())
}

/// The pod with its node, or why it cannot be bound.
fn assign(old: &Object, binding: &Object, node: &str, now: &str) -> Result<Object, Status> {
    let name = meta::text(old, "name");
    let conflict = |why: String| Err(Status::conflict("", "pods/binding", name, &why));
    check_conditions(old, binding)?;
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
        let given = meta::metadata(binding).and_then(|metadata| metadata.get(key));
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
    if let Some(Value::Object(status)) = pod.get_mut("status") {
        // The nomination served its purpose once the pod is bound.
        status.shift_remove("nominatedNodeName");
    }
    set_condition(&mut pod, Value::Object(scheduled(now)));
    Ok(pod)
}

/// The condition PodScheduled of a pod with a node.
fn scheduled(now: &str) -> Object {
    let condition = [
        ("type", "PodScheduled".into()),
        ("status", "True".into()),
        ("lastProbeTime", Value::Null),
        ("lastTransitionTime", now.into()),
    ];
    condition.into_iter().collect()
}

/// Replaces the condition of the same type; keeps lastTransitionTime if the status is unchanged.
fn set_condition(pod: &mut Object, mut condition: Value) {
    let status = pod.entry("status").or_insert_with(|| json!({}));
    let Some(status) = status.as_object_mut() else {
        return;
    };
    let conditions = status.entry("conditions").or_insert_with(|| json!([]));
    let Some(conditions) = conditions.as_array_mut() else {
        return;
    };
    match conditions
        .iter_mut()
        .find(|old| old["type"] == condition["type"])
    {
        Some(old) => {
            if old["status"] == condition["status"] {
                condition["lastTransitionTime"] = old["lastTransitionTime"].clone();
            }
            *old = condition;
        }
        None => conditions.push(condition),
    }
}

/// Sets the DisruptionTarget condition before the deletion; returns the revision of the pod so
/// marked.
async fn mark_evicted(write: &mut Write, conditions: &Preconditions) -> Result<u64, Status> {
    let now = meta::time(write.path.clock.now());
    let change = move |old: &Object| {
        check_pod(old, conditions)?;
        let mut pod = old.clone();
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "lastProbeTime": null,
            "lastTransitionTime": now, "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
        });
        set_condition(&mut pod, condition);
        Ok(pod)
    };
    let eviction = std::mem::replace(&mut write.subresource, "status".to_owned());
    write.internal = true;
    write.tracked = true;
    let marked = write::update(write, &change).await;
    write.internal = false;
    write.subresource = eviction;
    marked.map(|marked| marked.object.revision)
}

fn check_pod(pod: &Object, conditions: &Preconditions) -> Result<(), Status> {
    let name = meta::text(pod, "name");
    let differs = |wanted: &Option<String>, own: &str| {
        let wanted = wanted.as_deref().unwrap_or_default();
        (!wanted.is_empty() && wanted != own).then(|| wanted.to_owned())
    };
    let (uid, revision) = (meta::text(pod, "uid"), meta::text(pod, "resourceVersion"));
    let why = if let Some(wanted) = differs(&conditions.uid, uid) {
        format!(
            "the UID in the precondition ({wanted}) does not match the UID in record ({uid}). The object might have been deleted and then recreated"
        )
    } else if let Some(wanted) = differs(&conditions.resource_version, revision) {
        format!(
            "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record ({revision}). The object might have been modified"
        )
    } else {
        return Ok(());
    };
    Err(Status::conflict("", "Pod", name, &why))
}

/// Evicts a pod unless a disruption budget forbids it.
pub(crate) async fn evict(
    writes: &Arc<WritePath>,
    request: Request,
    resource: Arc<Resource>,
) -> Answer {
    let options = WriteOptions::parse(&request, Verb::Create)?;
    let decoded = decode(&request, &convert::EVICTION, &options).await?;
    let Decoded {
        object: mut eviction,
        warnings,
    } = decoded;
    let mut write = objects::requested_write(writes, &request, &resource, &options);
    let refuse = |why: Status| why.warned(warnings.clone());
    write
        .ensure_namespace_matches(&mut eviction)
        .map_err(refuse)?;
    // Plugins see whether it is a dry run.
    check_eviction(&mut write, &eviction).map_err(refuse)?;
    writes
        .supervise(async move { evict_pod(write, eviction).await })
        .await
        .map_err(refuse)?;
    Ok(respond::warn(success(StatusCode::CREATED), &warnings))
}

/// Validates an eviction; returns its DeleteOptions.
fn check_eviction(write: &mut Write, eviction: &Object) -> Result<DeleteOptions, Status> {
    if meta::text(eviction, "name") != write.name {
        return Err(Status::bad_request(
            "name in URL does not match name in Eviction object",
        ));
    }
    let given = eviction.get("deleteOptions").unwrap_or(&Value::Null);
    const UNSAFE: &str = "ignoreStoreReadErrorWithClusterBreakingPotential";
    if given[UNSAFE] == true {
        let at = Path::new("deleteOptions");
        let at = at.child(UNSAFE);
        let detail = "can not be set for pod eviction, try after removing the option";
        let error = Error::invalid(&at, true, detail);
        return Err(Status::invalid("policy", "Eviction", &write.name, &[error]));
    }
    let delete: DeleteOptions = match given {
        Value::Null => DeleteOptions::default(),
        given => machinery::json::from_value(given.clone())
            .map_err(|error| Status::bad_request(format!("deleteOptions: {error}")))?,
    };
    if write.dry_run && !delete.dry_run.is_empty() && delete.dry_run != ["All"] {
        let asked = delete.dry_run.join(" ");
        return Err(Status::unknown(format!(
            "Non-matching dry-run options in request and content: [All] and [{asked}]"
        )));
    }
    write::check_options(&delete)?;
    write.dry_run |= !delete.dry_run.is_empty();
    Ok(delete)
}

/// How often an eviction is retried after a conflict.
const EVICTIONS: usize = 10;

async fn evict_pod(mut write: Write, mut eviction: Object) -> Result<(), Status> {
    // An eviction is created but not stored: plugins may change its options, and refuse it before a
    // disruption is taken. The pod's deletion is not admitted separately.
    let (version, kind) = ("policy/v1", "Eviction");
    write.mutate_part(version, kind, &mut eviction).await?;
    let delete = check_eviction(&mut write, &eviction)?;
    write.validate_part(version, kind, &eviction).await?;
    write.admitted = true;
    let asked = delete.preconditions.clone().unwrap_or_default();
    let mut attempts = EVICTIONS;
    loop {
        attempts -= 1;
        let allowed = disruption::allow(&write).await?;
        let mut conditions = asked.clone();
        if conditions.resource_version.is_none() {
            conditions.resource_version = allowed.revision.map(|r| r.to_string());
        }
        let mut delete = delete.clone();
        delete.preconditions = Some(conditions.clone());
        let evicted = async {
            if !write.dry_run {
                let marked = mark_evicted(&mut write, &conditions).await?;
                if conditions.resource_version.is_some() {
                    // This eviction itself changed the pod.
                    conditions.resource_version = Some(marked.to_string());
                    delete.preconditions = Some(conditions);
                }
            }
            write::delete(&write, &delete).await
        };
        match evicted.await {
            // Changed concurrently and the client set no resourceVersion precondition: retry.
            Err(status) if status.code == 409 && asked.resource_version.is_none() => {
                match allowed.budget {
                    Some(budget) if allowed.revision.is_some() => {
                        return Err(disruption::in_progress(&budget));
                    }
                    None if allowed.revision.is_some() && attempts > 0 => {}
                    _ => return Err(status),
                }
            }
            other => return other.map(|_| ()),
        }
    }
}

async fn decode(
    request: &Request,
    part: &PartType,
    options: &WriteOptions,
) -> Result<Decoded, Status> {
    let media = media::Body::from_headers(&request.parts.headers)?;
    let bytes = body::read(request).await?;
    convert::decode_part(part, media, &bytes, options.validation)
}

fn success(code: StatusCode) -> http::Response<crate::Body> {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
        "code": code.as_u16(),
    });
    respond::line(code, body.to_string().as_bytes())
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
        assert_eq!(
            assign(&pod, &other, "n1", "").unwrap_err().message,
            "Operation cannot be fulfilled on pods \"a\": StorageError: invalid object, Code: 4, Key: /registry/pods//a, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: 2, UID in object meta: 1"
        );
    }
}
