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
use kinds::Answers;
use machinery::Status;

pub(crate) use self::{
    aggregated::trace_to_backend,
    connect::ConnectContext,
    diagnoses::Diagnoses,
    documents::Documents,
    read::Reads,
    reviews::Reviews,
    routes::no_page,
    scale::{scale_for_admission, set_admitted_replicas},
    usage::Usage,
};
use crate::{
    Resource, TokenIssuer, health::HealthChecks, pipeline::Request, respond::Answer,
    write::WritePath,
};

/// What each handler needs.
pub(crate) struct Handlers {
    pub(crate) reads: Reads,
    pub(crate) writes: Arc<WritePath>,
    pub(crate) connect: ConnectContext,
    pub(crate) reviews: Reviews,
    pub(crate) documents: Documents,
    pub(crate) health: HealthChecks,
    pub(crate) usage: Usage,
    pub(crate) diagnoses: Diagnoses,
    /// Signs service account tokens.
    pub(crate) issuer: Option<Arc<dyn TokenIssuer>>,
}

/// Routes a request to the handler of its path and verb.
pub(crate) fn dispatch(handlers: Arc<Handlers>, request: Request) -> BoxFuture<'static, Answer> {
    Box::pin(async move { route(&handlers, request).await })
}

async fn route(handlers: &Handlers, request: Request) -> Answer {
    if let Some(backend) = request.backend.clone() {
        return Box::pin(aggregated::serve(&handlers.reads.streams, request, backend)).await;
    }
    let Some(subject) = &request.info.resource else {
        return Box::pin(documents::serve(
            &handlers.documents,
            &handlers.health,
            request,
        ))
        .await;
    };
    let Some(resource) = request.resource.clone() else {
        if subject.group == diagnoses::GROUP {
            return Box::pin(diagnoses::serve(&handlers.diagnoses, request)).await;
        }
        return routes::missing(&handlers.documents.registry.table(), &subject.group);
    };
    if let Some(refused) = routes::refuse(&request.parts.method, &request.info, &resource) {
        return refused;
    }
    routes::check_name(&request.info, &resource)?;
    if subject.subresource.is_empty() {
        object(handlers, request, resource).await
    } else {
        Box::pin(subresource(handlers, request, resource)).await
    }
}

/// Requests for the object itself.
async fn object(handlers: &Handlers, request: Request, resource: Arc<Resource>) -> Answer {
    let (reads, writes) = (&handlers.reads, &handlers.writes);
    let verb = request.info.verb;
    // Each handler's future is boxed separately: a read should not allocate the space that a write
    // needs.
    if resource.kind.is_virtual() {
        return match (verb, resource.kind.server_side().answers) {
            ("create", Answers::Binding) => Box::pin(pods::bind_named(writes, request)).await,
            ("create", _) => Box::pin(reviews::serve(&handlers.reviews, request, resource)).await,
            ("get" | "list", Answers::ComponentHealth) => {
                let (health, clock) = (&handlers.health, &reads.clock);
                Box::pin(component_statuses::serve(health, clock, request, resource)).await
            }
            ("get" | "list", Answers::Usage) => {
                Box::pin(usage::serve(&handlers.usage, request, resource)).await
            }
            ("list", _) => Box::pin(read::list(reads, request, resource)).await,
            ("get", _) => read::get(reads, request, resource).await,
            _ => Err(Status::method_not_allowed()),
        };
    }
    match verb {
        "get" => read::get(reads, request, resource).await,
        "list" => Box::pin(read::list(reads, request, resource)).await,
        "watch" => Box::pin(watch::watch(reads, request, resource)).await,
        "create" => Box::pin(objects::create(writes, request, resource)).await,
        "update" => Box::pin(objects::update(writes, request, resource)).await,
        "patch" => Box::pin(patch::serve(writes, request, resource)).await,
        "delete" => Box::pin(objects::delete(writes, request, resource)).await,
        "deletecollection" => {
            Box::pin(objects::delete_collection(reads, writes, request, resource)).await
        }
        _ => Err(Status::method_not_allowed()),
    }
}

/// Requests for subresources.
async fn subresource(handlers: &Handlers, request: Request, resource: Arc<Resource>) -> Answer {
    let subject = request.info.resource.clone().unwrap_or_default();
    let name = subject.subresource.as_str();
    let (reads, writes) = (&handlers.reads, &handlers.writes);
    match (name, request.info.verb) {
        ("scale", _) => scale::serve(writes, request, resource).await,
        ("binding", _) => pods::bind(writes, request, resource).await,
        ("eviction", _) => pods::evict(writes, request, resource).await,
        ("token", _) => tokens::request(handlers.issuer.as_ref(), writes, request, resource).await,
        ("log" | "exec" | "attach" | "portforward" | "proxy", _) => {
            connect::serve(&handlers.connect, request, resource).await
        }
        (_, "get") => read::get(reads, request, resource).await,
        (_, "update") => objects::update(writes, request, resource).await,
        (_, "patch") => patch::serve(writes, request, resource).await,
        _ => Err(Status::method_not_allowed()),
    }
}
