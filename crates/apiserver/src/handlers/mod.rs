//! Handlers: from an authorized request to its response.

mod aggregated;
mod apply;
mod body;
mod component_statuses;
mod connect;
mod diagnoses;
mod documents;
mod objects;
mod patch;
mod pods;
pub(crate) mod read;
mod reviews;
mod routes;
mod scale;
mod tokens;
mod usage;
mod watch;

use std::sync::Arc;

pub(crate) use body::check_dry_run;
use futures::future::BoxFuture;
use machinery::Status;

pub(crate) use self::{
    aggregated::trace_to_backend,
    routes::no_page,
    scale::{scale_for_admission, set_admitted_replicas},
};
use crate::{Resource, pipeline::Request, respond::Answer};

/// Routes a request to the handler of its path and verb.
pub(crate) fn dispatch(request: Request) -> BoxFuture<'static, Answer> {
    Box::pin(route(request))
}

async fn route(request: Request) -> Answer {
    if let Some(backend) = request.backend.clone() {
        return Box::pin(aggregated::serve(request, backend)).await;
    }
    let Some(subject) = &request.info.resource else {
        return Box::pin(documents::serve(request)).await;
    };
    let Some(resource) = request.resource.clone() else {
        if subject.group == diagnoses::GROUP {
            return Box::pin(diagnoses::serve(request)).await;
        }
        return routes::missing(&request.core.storage.registry.table(), &subject.group);
    };
    if let Some(refused) = routes::refuse(&request.parts.method, &request.info, &resource) {
        return refused;
    }
    routes::check_name(&request.info, &resource)?;
    if subject.subresource.is_empty() {
        object(request, resource).await
    } else {
        Box::pin(subresource(request, resource)).await
    }
}

/// Requests for the object itself.
async fn object(request: Request, resource: Arc<Resource>) -> Answer {
    let verb = request.info.verb;
    // Each handler's future is boxed separately: a read should not allocate the space that a write
    // needs.
    if resource.kind.is_virtual() {
        return match (verb, resource.plural.as_str()) {
            ("create", "bindings") => Box::pin(pods::bind_named(request)).await,
            ("create", _) => Box::pin(reviews::serve(request, resource)).await,
            ("get" | "list", "componentstatuses") => {
                Box::pin(component_statuses::serve(request, resource)).await
            }
            ("get" | "list", _) if resource.group == metrics_api::GROUP => {
                Box::pin(usage::serve(request, resource)).await
            }
            // Nothing is stored for these kinds: lists are empty, and get finds nothing.
            ("list", _) => Box::pin(read::list(request, resource)).await,
            ("get", _) => read::get(request, resource).await,
            _ => Err(Status::method_not_allowed()),
        };
    }
    match verb {
        "get" => read::get(request, resource).await,
        "list" => Box::pin(read::list(request, resource)).await,
        "watch" => Box::pin(watch::watch(request, resource)).await,
        "create" => Box::pin(objects::create(request, resource)).await,
        "update" => Box::pin(objects::update(request, resource)).await,
        "patch" => Box::pin(patch::serve(request, resource)).await,
        "delete" => Box::pin(objects::delete(request, resource)).await,
        "deletecollection" => Box::pin(objects::delete_collection(request, resource)).await,
        _ => Err(Status::method_not_allowed()),
    }
}

/// Requests for subresources.
async fn subresource(request: Request, resource: Arc<Resource>) -> Answer {
    let subject = request.info.resource.clone().unwrap_or_default();
    let name = subject.subresource.as_str();
    match (name, request.info.verb) {
        ("scale", _) => scale::serve(request, resource).await,
        ("binding", _) => pods::bind(request, resource).await,
        ("eviction", _) => pods::evict(request, resource).await,
        ("token", _) => tokens::request(request, resource).await,
        ("log" | "exec" | "attach" | "portforward" | "proxy", _) => {
            connect::serve(request, resource).await
        }
        (_, "get") => read::get(request, resource).await,
        (_, "update") => objects::update(request, resource).await,
        (_, "patch") => patch::serve(request, resource).await,
        _ => Err(Status::method_not_allowed()),
    }
}
