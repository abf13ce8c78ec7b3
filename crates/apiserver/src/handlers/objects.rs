//! Create, update, delete and deletecollection of objects, and of subresources that are parts of
//! them.

use std::sync::Arc;

use http::{Response, StatusCode};
use machinery::{Object, Status, text};

use super::{
    body::{self, Verb, WriteOptions},
    read::{self, Reads},
};
use crate::{
    Body, Resource, ResourceRequest,
    admission::RequestOptions,
    meta,
    output::Output,
    pieces,
    pipeline::Request,
    respond::{self, Answer},
    write::{self, DeleteOptions, Deleted, Write, WritePath, Written, owners},
};

/// The write that a request asks for.
pub(crate) fn requested_write(
    path: &Arc<WritePath>,
    request: &Request,
    resource: &Arc<Resource>,
    options: &WriteOptions,
) -> Write {
    let subject = request.info.resource.clone().unwrap_or_default();
    let ResourceRequest {
        mut namespace,
        name,
        subresource,
        ..
    } = subject;
    if !resource.namespaced() {
        // The path of a namespace object states its name also as the namespace.
        namespace.clear();
    }
    Write {
        path: path.clone(),
        user: request.user.clone(),
        peer: request.peer,
        fence: request.fence.clone(),
        resource: resource.clone(),
        namespace,
        name,
        subresource,
        verb: request.info.verb,
        dry_run: options.dry_run,
        field_manager: options.field_manager.clone(),
        tracked: false,
        internal: false,
        admitted: false,
        options: options.given.clone(),
        effects: request.effects(),
    }
}

/// The response to a write.
pub(crate) async fn respond(output: &Output, written: Written) -> Answer {
    let code = if written.created {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    let object = output.resource.convert_one(written.object).await?;
    Ok(respond::warn(
        output.respond(code, &object),
        &written.warnings,
    ))
}

pub(crate) async fn create(
    writes: &Arc<WritePath>,
    request: Request,
    resource: Arc<Resource>,
) -> Answer {
    let output = read::output(&writes.clock, &request, &resource)?;
    let body = body::Received::from_request(&request).await?;
    let options = WriteOptions::parse(&request, Verb::Create)?;
    let decoded = body.object(&resource, options.validation)?;
    if let Some(ticket) = &request.audit {
        ticket.request_object(&decoded.object);
    }
    let write = requested_write(writes, &request, &resource, &options);
    let task = async move {
        let again = || {
            let decoded = body.object(&resource, options.validation)?;
            Ok(decoded.object)
        };
        let created = write::create(&write, decoded.object, again).await;
        created.map_err(|status| status.warned(write.effects.take_warnings()))
    };
    match writes.supervise(task).await {
        Ok(mut written) => {
            written.warnings.splice(0..0, decoded.warnings);
            respond(&output, written).await
        }
        Err(status) => Err(status.warned(decoded.warnings)),
    }
}

/// Replaces an object, or the part of it that a subresource selects.
pub(crate) async fn update(
    writes: &Arc<WritePath>,
    request: Request,
    resource: Arc<Resource>,
) -> Answer {
    let output = read::output(&writes.clock, &request, &resource)?;
    let body = body::Received::from_request(&request).await?;
    let options = WriteOptions::parse(&request, Verb::Update)?;
    let decoded = body.audited_object(&request, &resource, options.validation)?;
    let warnings = decoded.warnings;
    let write = requested_write(writes, &request, &resource, &options);
    let mut object = decoded.object;
    let placed = write.ensure_namespace_matches(&mut object);
    if let Err(status) = placed.and_then(|()| write.check_name(&object)) {
        return Err(status.warned(warnings));
    }
    owners::without_duplicates(&mut object, owners::Stage::Request, &write.effects);
    let creates = resource.kind.allows_create_on_update() && write.subresource.is_empty();
    let change = Replace {
        object,
        creates,
        warnings,
    };
    let task = async move { write::update(&write, &change).await };
    respond(&output, writes.supervise(task).await?).await
}

struct Replace {
    object: Object,
    creates: bool,
    warnings: Vec<String>,
}

impl write::ObjectChange for Replace {
    fn apply(&self, _old: &Object) -> Result<Object, Status> {
        Ok(self.object.clone())
    }

    fn uid(&self) -> Option<&str> {
        Some(meta::text(&self.object, "uid"))
    }

    fn create(&self) -> Option<Result<Object, Status>> {
        self.creates.then(|| Ok(self.object.clone()))
    }

    fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }
}

/// DeleteOptions: from the body, or from the query if there is none.
async fn delete_options(request: &Request) -> Result<DeleteOptions, Status> {
    let bytes = body::read(request).await?;
    let options = if bytes.is_empty() {
        let query = &request.query;
        let grace = query.get("gracePeriodSeconds").map(text::parse_int);
        DeleteOptions {
            grace_period_seconds: grace.transpose().map_err(Status::bad_request)?,
            orphan_dependents: query
                .get("orphanDependents")
                .map(|_| query.flag("orphanDependents")),
            propagation_policy: query.get("propagationPolicy").map(str::to_owned),
            dry_run: query.all("dryRun").map(str::to_owned).collect(),
            preconditions: write::preconditions_of(query),
        }
    } else {
        let media = crate::media::Body::from_headers(&request.parts.headers)?;
        crate::convert::delete_options(media, &bytes)?
    };
    write::check_options(&options)?;
    Ok(options)
}

/// The write options that DeleteOptions imply.
fn delete_write_options(options: &DeleteOptions) -> WriteOptions {
    let dry_run = !options.dry_run.is_empty();
    WriteOptions {
        dry_run,
        given: RequestOptions {
            dry_run,
            delete: Some(options.clone()),
            ..RequestOptions::default()
        },
        ..WriteOptions::default()
    }
}

pub(crate) async fn delete(
    writes: &Arc<WritePath>,
    request: Request,
    resource: Arc<Resource>,
) -> Answer {
    let output = read::output(&writes.clock, &request, &resource)?;
    let options = delete_options(&request).await?;
    let write_options = delete_write_options(&options);
    let write = requested_write(writes, &request, &resource, &write_options);
    let accepted = options.orphan_dependents == Some(false);
    let warning = write::orphan_warning(&options, &resource).map(str::to_owned);
    let task = async move { delete_and_warn(&write, &options).await };
    let (deleted, mut warnings) = writes.supervise(task).await?;
    warnings.extend(warning);
    let deleted = Deleted {
        object: resource.convert_one(deleted.object).await?,
        ..deleted
    };
    let answer = answer_deleted(&output, &resource, deleted, accepted);
    Ok(respond::warn(answer, &warnings))
}

/// Deletes; also returns admission's warnings.
async fn delete_and_warn(
    write: &Write,
    options: &DeleteOptions,
) -> Result<(Deleted, Vec<String>), Status> {
    let deleted = write::delete(write, options).await;
    let warnings = write.effects.take_warnings();
    match deleted {
        Ok(deleted) => Ok((deleted, warnings)),
        Err(status) => Err(status.warned(warnings)),
    }
}

fn answer_deleted(
    output: &Output,
    resource: &Resource,
    deleted: Deleted,
    accepted: bool,
) -> Response<Body> {
    if deleted.gone && !resource.kind.returns_deleted() {
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

/// Deletes the selected objects one by one.
pub(crate) async fn delete_collection(
    reads: &Reads,
    writes: &Arc<WritePath>,
    request: Request,
    resource: Arc<Resource>,
) -> Answer {
    let output = read::output(&writes.clock, &request, &resource)?;
    read::check(&request, &resource)?;
    let options = delete_options(&request).await?;
    let write_options = delete_write_options(&options);
    let namespace = request
        .info
        .resource
        .as_ref()
        .map(|r| r.namespace.clone())
        .unwrap_or_default();
    let page = read::selected(reads, &request, &resource, &namespace).await?;
    let warning = write::orphan_warning(&options, &resource).map(str::to_owned);
    let mut warnings = Vec::new();
    warnings.extend(warning.filter(|_| !page.objects.is_empty()));
    for object in &page.objects {
        let mut write = requested_write(writes, &request, &resource, &write_options);
        write.name = object.header.name().to_string();
        write.namespace = object.header.namespace().to_string();
        let options = options.clone();
        let task = async move { delete_and_warn(&write, &options).await };
        match writes.supervise(task).await {
            Err(status) if status.code != 404 => return Err(status),
            Err(_) => {}
            Ok((_, found)) => {
                for warning in found {
                    if !warnings.contains(&warning) {
                        warnings.push(warning);
                    }
                }
            }
        }
    }
    let answer = pieces::respond(output, page);
    Ok(respond::warn(answer, &warnings))
}
