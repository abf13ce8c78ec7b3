//! Create, update, delete and deletecollection of objects and of subresources that are parts of
//! them.

use std::sync::Arc;

use http::{HeaderValue, Response, StatusCode};
use machinery::{Object, Status, Value};

use super::{
    body::{self, WriteOptions},
    read,
};
use crate::{
    Body, Resource, ResourceRequest,
    admission::Effects,
    meta,
    output::Output,
    pipeline::Request,
    respond::Answer,
    write::{self, DeleteOptions, Deleted, Write, Written},
};

/// Kinds whose deletion answers with the object instead of a Status, as upstream's do.
const RETURN_DELETED: &[(&str, &str)] = &[
    ("", "namespaces"),
    ("", "persistentvolumeclaims"),
    ("", "persistentvolumes"),
    ("", "pods"),
    ("", "podtemplates"),
    ("", "resourcequotas"),
    ("", "serviceaccounts"),
    ("", "services"),
    ("resource.k8s.io", "deviceclasses"),
    ("resource.k8s.io", "resourceclaims"),
    ("resource.k8s.io", "resourceclaimtemplates"),
    ("resource.k8s.io", "resourceslices"),
    ("storage.k8s.io", "csidrivers"),
    ("storage.k8s.io", "csinodes"),
    ("storage.k8s.io", "storageclasses"),
    ("storage.k8s.io", "volumeattachments"),
    ("storage.k8s.io", "volumeattributesclasses"),
];

/// Whether a deletion answers with the object.
pub(crate) fn returns_deleted(resource: &Resource) -> bool {
    RETURN_DELETED.contains(&(resource.group.as_str(), resource.plural.as_str()))
}

/// The write that a request asks for.
pub(crate) fn write(request: &Request, resource: &Arc<Resource>, options: &WriteOptions) -> Write {
    let subject = request.info.resource.clone().unwrap_or_default();
    let ResourceRequest {
        mut namespace,
        name,
        subresource,
        ..
    } = subject;
    if !resource.namespaced() {
        // A namespace itself is asked for by a path that names it twice.
        namespace.clear();
    }
    Write {
        core: request.core.clone(),
        user: request.user.clone(),
        resource: resource.clone(),
        namespace,
        name,
        subresource,
        dry_run: options.dry_run,
        field_manager: options.field_manager.clone(),
        tracked: false,
        internal: false,
        effects: Effects::of(request.audit.clone()),
    }
}

/// The answer to a write.
pub(crate) fn respond(output: &Output, written: Written) -> Response<Body> {
    let code = if written.created {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    with_warnings(output.respond(code, &written.object), &written.warnings)
}

/// Adds Warning headers.
pub(crate) fn with_warnings(mut response: Response<Body>, warnings: &[String]) -> Response<Body> {
    for warning in warnings {
        let text: String = warning.chars().filter(|c| !c.is_control()).collect();
        let text = text.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_bytes(format!("299 - \"{text}\"").as_bytes()) {
            response.headers_mut().append(http::header::WARNING, value);
        }
    }
    response
}

pub(crate) async fn create(request: Request, resource: Arc<Resource>) -> Answer {
    let options = WriteOptions::parse(&request)?;
    let output = read::output(&request, &resource)?;
    let body = body::Received::take(&request).await?;
    let decoded = body.object(&resource, options.validation)?;
    if let Some(ticket) = &request.audit {
        ticket.request_object(&decoded.object);
    }
    let write = write(&request, &resource, &options);
    let core = request.core.clone();
    let task = async move {
        let again = || {
            let decoded = body.object(&resource, options.validation)?;
            Ok(decoded.object)
        };
        write::create(&write, decoded.object, again).await
    };
    let mut written = core.supervise(task).await?;
    written.warnings.splice(0..0, decoded.warnings);
    Ok(respond(&output, written))
}

/// Replaces an object or the part of it that a subresource names.
pub(crate) async fn update(request: Request, resource: Arc<Resource>) -> Answer {
    let options = WriteOptions::parse(&request)?;
    let output = read::output(&request, &resource)?;
    let decoded = body::object(&request, &resource, options.validation).await?;
    let write = write(&request, &resource, &options);
    let name = meta::text(&decoded.object, "name");
    if name != write.name {
        return Err(Status::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            write.name
        )));
    }
    let creates = resource.kind.allows_create_on_update() && write.subresource.is_empty();
    let change = Replace {
        object: decoded.object,
        creates,
    };
    let core = request.core.clone();
    let mut written = core
        .supervise(async move { write::update(&write, &change).await })
        .await?;
    written.warnings.splice(0..0, decoded.warnings);
    Ok(respond(&output, written))
}

struct Replace {
    object: Object,
    creates: bool,
}

impl write::Change for Replace {
    fn apply(&self, _old: &Object) -> Result<Object, Status> {
        Ok(self.object.clone())
    }

    fn create(&self) -> Option<Result<Object, Status>> {
        self.creates.then(|| Ok(self.object.clone()))
    }
}

/// Takes over the finalizers in the spec of a namespace, and nothing else.
pub(crate) async fn finalize(request: Request, resource: Arc<Resource>) -> Answer {
    let options = WriteOptions::parse(&request)?;
    let output = read::output(&request, &resource)?;
    let decoded = body::object(&request, &resource, options.validation).await?;
    let mut write = write(&request, &resource, &options);
    write.internal = true;
    let new = decoded.object;
    let change = move |old: &Object| {
        let mut object = old.clone();
        let uid = meta::text(&new, "uid");
        meta::set(
            &mut object,
            "resourceVersion",
            meta::text(&new, "resourceVersion"),
        );
        if !uid.is_empty() {
            meta::set(&mut object, "uid", uid);
        }
        let finalizers = new.get("spec").and_then(|spec| spec.get("finalizers"));
        let finalizers = finalizers.filter(|list| list.as_array().is_some_and(|l| !l.is_empty()));
        let spec = object
            .entry("spec")
            .or_insert_with(|| Value::Object(Object::new()));
        if let Some(spec) = spec.as_object_mut() {
            match finalizers {
                Some(list) => drop(spec.insert("finalizers".to_owned(), list.clone())),
                None => drop(spec.shift_remove("finalizers")),
            }
        }
        Ok(object)
    };
    let core = request.core.clone();
    let written = core
        .supervise(async move { write::update(&write, &change).await })
        .await?;
    Ok(respond(&output, written))
}

/// Options of a deletion: the body, or the query when there is none.
async fn delete_options(request: &Request) -> Result<DeleteOptions, Status> {
    let bytes = body::take(request).await?;
    let mut options: DeleteOptions = if bytes.is_empty() {
        let query = &request.query;
        let number = |text: &str| {
            text.parse().map_err(|_| {
                Status::bad_request(format!(
                    "strconv.ParseInt: parsing {text:?}: invalid syntax"
                ))
            })
        };
        DeleteOptions {
            grace_period_seconds: query.filled("gracePeriodSeconds").map(number).transpose()?,
            orphan_dependents: query
                .get("orphanDependents")
                .map(|_| query.flag("orphanDependents")),
            propagation_policy: query.filled("propagationPolicy").map(str::to_owned),
            ..DeleteOptions::default()
        }
    } else {
        let media = crate::media::Body::of(&request.parts.headers)?;
        crate::convert::delete_options(media, &bytes)?
    };
    if request.query.get("dryRun").is_some() {
        options
            .dry_run
            .extend(request.query.all("dryRun").map(str::to_owned));
    }
    options.check()?;
    Ok(options)
}

pub(crate) async fn delete(request: Request, resource: Arc<Resource>) -> Answer {
    let options = delete_options(&request).await?;
    let output = read::output(&request, &resource)?;
    let write_options = WriteOptions {
        dry_run: body::check_dry_run(options.dry_run.iter().map(String::as_str))?,
        ..WriteOptions::parse(&request)?
    };
    let write = write(&request, &resource, &write_options);
    let accepted = options.orphan_dependents == Some(false);
    let warning = options.warning(&resource).map(str::to_owned);
    let core = request.core.clone();
    let deleted = core
        .supervise(async move { write::delete(&write, &options).await })
        .await?;
    let answer = answer_deleted(&output, &resource, deleted, accepted);
    Ok(with_warnings(answer, warning.as_slice()))
}

fn answer_deleted(
    output: &Output,
    resource: &Resource,
    deleted: Deleted,
    accepted: bool,
) -> Response<Body> {
    if deleted.gone && !returns_deleted(resource) {
        let object = deleted.object.parse();
        let (name, uid) = (meta::text(&object, "name"), meta::text(&object, "uid"));
        let (group, plural) = (&resource.group, &resource.plural);
        return output.status(&Status::success(group, plural, name, uid));
    }
    let code = if !deleted.gone && accepted {
        StatusCode::ACCEPTED
    } else {
        StatusCode::OK
    };
    output.respond(code, &deleted.object)
}

/// Deletes what is selected, one by one.
pub(crate) async fn delete_collection(request: Request, resource: Arc<Resource>) -> Answer {
    let options = delete_options(&request).await?;
    let output = read::output(&request, &resource)?;
    let write_options = WriteOptions {
        dry_run: body::check_dry_run(options.dry_run.iter().map(String::as_str))?,
        ..WriteOptions::parse(&request)?
    };
    let namespace = request
        .info
        .resource
        .as_ref()
        .map(|r| r.namespace.clone())
        .unwrap_or_default();
    let objects = read::selected(&request, &resource, &namespace).await?;
    for object in &objects {
        let mut write = write(&request, &resource, &write_options);
        write.name = object.header.name.to_string();
        write.namespace = object.header.namespace.to_string();
        let options = options.clone();
        let task = async move { write::delete(&write, &options).await };
        match request.core.supervise(task).await {
            Err(status) if status.code != 404 => return Err(status),
            _ => {}
        }
    }
    let revision = request
        .core
        .store
        .revision()
        .await
        .map_err(crate::failure::of_store)?;
    Ok(read::send_list(
        output,
        objects,
        machinery::json::json!({"resourceVersion": revision.to_string()}),
    ))
}
