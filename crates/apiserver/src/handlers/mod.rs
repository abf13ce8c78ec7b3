//! What is behind each path: from a request whose caller is known and allowed to its answer.

mod apply;
mod body;
mod objects;
mod patch;
mod pods;
mod read;
mod reviews;
mod scale;
mod tokens;
mod watch;

use std::sync::Arc;

pub(crate) use body::check_dry_run;
use futures::future::BoxFuture;
use http::Method;
use machinery::Status;

pub(crate) use self::objects::returns_deleted;
use crate::{Resource, discovery, health, openapi, pipeline::Request, respond::Answer};

/// Hands a request to what serves its path and verb.
pub(crate) fn dispatch(request: Request) -> BoxFuture<'static, Answer> {
    Box::pin(route(request))
}

async fn route(request: Request) -> Answer {
    let Some(subject) = &request.info.resource else {
        return Box::pin(document(request)).await;
    };
    let resource = request.resource.clone();
    let resource = resource.ok_or_else(Status::path_not_found)?;
    check_place(&request, &resource)?;
    if subject.subresource.is_empty() {
        object(request, resource).await
    } else {
        Box::pin(subresource(request, resource)).await
    }
}

/// Paths that are no resource.
async fn document(request: Request) -> Answer {
    let path = request.info.path.trim_end_matches('/').to_owned();
    if !matches!(request.parts.method, Method::GET | Method::HEAD) {
        return Err(Status::method_not_allowed());
    }
    match path.split('/').nth(1).unwrap_or_default() {
        "healthz" | "livez" | "readyz" => health::serve(&request).await,
        "version" => Ok(health::version()),
        "api" | "apis" => {
            let address = request.core.config.advertise.to_string();
            let headers = &request.parts.headers;
            discovery::serve(&request.core.registry.table(), &path, headers, &address)
                .ok_or_else(Status::path_not_found)
        }
        "metrics" => metrics(&request).await,
        "openapi" => openapi::Ask {
            table: &request.core.registry.table(),
            hashes: &request.core.openapi,
            headers: &request.parts.headers,
            query: &request.query,
            now: request.core.config.clock.now().as_second(),
        }
        .serve(&path)
        .ok_or_else(Status::path_not_found),
        "" => Ok(crate::respond::json(
            &machinery::json::json!({"paths": paths(&request)}),
        )),
        _ => tokens::openid(&request, &path),
    }
}

/// The server's figures; objects are counted when somebody asks.
async fn metrics(request: &Request) -> Answer {
    let resources = request.core.registry.table().all().to_vec();
    for resource in resources
        .iter()
        .filter(|r| r.storage.is_none() && !r.kind.is_virtual())
    {
        let ask = store::ListRequest {
            prefix: resource.prefix(""),
            from: None,
            limit: Some(1),
            freshness: store::Freshness::AtLeast(0),
        };
        let listed = request
            .core
            .store
            .list(ask)
            .await
            .map_err(crate::failure::of_store)?;
        let count = listed.entries.len() + listed.remaining;
        request
            .core
            .metrics
            .stored(&resource.group, &resource.plural, count);
    }
    if let Some(audit) = &request.core.audit {
        request.core.metrics.audited(audit.figures());
    }
    let media = "text/plain; version=0.0.4; charset=utf-8";
    Ok(crate::respond::bytes(
        http::StatusCode::OK,
        media,
        request.core.metrics.text(),
    ))
}

/// The paths worth a look, for `/`.
fn paths(request: &Request) -> Vec<String> {
    let fixed = [
        "/.well-known/openid-configuration",
        "/api",
        "/api/v1",
        "/apis",
    ];
    let mut paths: Vec<String> = fixed.map(str::to_owned).to_vec();
    for resource in request.core.registry.table().all() {
        if !resource.group.is_empty() {
            paths.push(format!("/apis/{}", resource.group));
            paths.push(format!("/apis/{}/{}", resource.group, resource.version));
        }
    }
    let more = [
        "/healthz",
        "/livez",
        "/openid/v1/jwks",
        "/readyz",
        "/version",
    ];
    paths.extend(more.map(str::to_owned));
    paths.sort();
    paths.dedup();
    paths
}

/// A namespaced object has a namespace in its path, others have none.
fn check_place(request: &Request, resource: &Resource) -> Result<(), Status> {
    let Some(subject) = &request.info.resource else {
        return Ok(());
    };
    let in_namespace = !subject.namespace.is_empty();
    let is_namespace = resource.group.is_empty() && resource.plural == "namespaces";
    let named = matches!(request.info.verb, "get" | "update" | "patch" | "delete");
    if resource.namespaced() {
        if !in_namespace && named {
            return Err(Status::path_not_found());
        }
        if !in_namespace && !matches!(request.info.verb, "list" | "watch") {
            return Err(Status::method_not_allowed());
        }
    } else if in_namespace && !is_namespace {
        return Err(Status::path_not_found());
    }
    if named && subject.name.is_empty() {
        return Err(Status::method_not_allowed());
    }
    Ok(())
}

/// The object itself.
async fn object(request: Request, resource: Arc<Resource>) -> Answer {
    let verb = request.info.verb;
    if !resource.kind.verbs().contains(&verb) {
        return Err(Status::method_not_allowed());
    }
    // Each in a box of its own size: a read is not to carry the space that a write needs.
    if resource.kind.is_virtual() {
        return match (verb, resource.plural.as_str()) {
            ("create", "bindings") => Box::pin(pods::bind_named(request)).await,
            ("create", _) => Box::pin(reviews::serve(request, resource)).await,
            // Nothing is stored there, and so nothing is found.
            ("list", _) => Box::pin(read::list(request, resource)).await,
            ("get", _) => read::get(request, resource).await,
            _ => Err(Status::method_not_allowed()),
        };
    }
    let is_named = request.info.names_one();
    match verb {
        "get" => read::get(request, resource).await,
        "list" => Box::pin(read::list(request, resource)).await,
        "watch" => Box::pin(watch::watch(request, resource)).await,
        "create" if is_named => Err(Status::method_not_allowed()),
        "create" => Box::pin(objects::create(request, resource)).await,
        "update" => Box::pin(objects::update(request, resource)).await,
        "patch" => Box::pin(patch::serve(request, resource)).await,
        "delete" => Box::pin(objects::delete(request, resource)).await,
        "deletecollection" => Box::pin(objects::delete_collection(request, resource)).await,
        _ => Err(Status::method_not_allowed()),
    }
}

/// What hangs below an object.
async fn subresource(request: Request, resource: Arc<Resource>) -> Answer {
    let subject = request.info.resource.clone().unwrap_or_default();
    let name = subject.subresource.as_str();
    if !resource.kind.subresources().contains(&name) {
        return Err(Status::path_not_found());
    }
    // Whatever is proxied may be asked in every way there is.
    let verbs = discovery::subresource_verbs(&resource, name);
    if name != "proxy" && !verbs.contains(&request.info.verb) {
        return Err(Status::method_not_allowed());
    }
    match (name, request.info.verb) {
        ("scale", _) => scale::serve(request, resource).await,
        ("binding", _) => pods::bind(request, resource).await,
        ("eviction", _) => pods::evict(request, resource).await,
        ("token", _) => tokens::request(request, resource).await,
        ("log" | "exec" | "attach" | "portforward" | "proxy", _) => {
            crate::proxy::serve(request, resource).await
        }
        (_, "get") => read::get(request, resource).await,
        (_, "update") => objects::update(request, resource).await,
        (_, "patch") => patch::serve(request, resource).await,
        _ => Err(Status::method_not_allowed()),
    }
}
