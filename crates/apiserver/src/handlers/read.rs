//! Get and list: stored bytes, filtered by the stored objects' headers.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use connect::Streams;
use http::{Response, StatusCode};
use http_server::Budget;
use machinery::json::json;
use machinery::{Status, Value, field, text};
use registry::store_metrics::Operation;
use request::heavy;
use server_metrics::ServerMetrics;
use stdx::Clock;
use store::{Entry, Freshness, ListRequest, Listed, Revision};

use super::watch::sink::served;
use crate::{
    Body, Resource, Store, Stored, failure,
    media::{self, ResponseShape},
    output::{self, Output},
    page::Continue,
    pieces,
    pipeline::Request,
    query::Query,
    respond::{self, Answer},
    selection::Selection,
};

const EXPIRED: &str = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";

/// What reads and watches need.
pub(crate) struct Reads {
    pub(crate) store: Store,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Arc<ServerMetrics>,
    /// What clients have not read yet.
    pub(crate) budget: Arc<Budget>,
    /// Watches over WebSockets.
    pub(crate) streams: Streams,
    /// Minimum duration of a watch without `timeoutSeconds`.
    pub(crate) watch_timeout: Duration,
}

/// The form in which the request wants objects.
pub(crate) fn output(
    clock: &Arc<dyn Clock>,
    request: &Request,
    resource: &Arc<Resource>,
) -> Result<Output, Status> {
    let many = matches!(request.info.verb, "list" | "watch");
    let wanted = media::wanted(&request.parts.headers, resource.schema.is_some(), many)?;
    if wanted.shape == ResponseShape::Table {
        output::check_include(&request.query)?;
    }
    let output = Output::new(resource.clone(), wanted, &request.query, clock.clone());
    Ok(output.audited(request.audit.as_ref()))
}

/// Parses a resourceVersion parameter.
pub(crate) fn revision(given: &str) -> Result<Revision, String> {
    text::parse_uint(given).map_err(|why| {
        let path = field::Path::new("resourceVersion");
        field::Error::invalid(&path, given, why).to_string()
    })
}

/// Parses the resourceVersion parameter of a list.
fn list_revision(given: &str) -> Result<Revision, Status> {
    revision(given).map_err(|why| Status::bad_request(format!("invalid resource version: {why}")))
}

/// Validates the parameters as for a list.
pub(crate) fn check(request: &Request, resource: &Arc<Resource>) -> Result<(), Status> {
    Paging::parse(&request.query)?;
    Selection::from_request(resource, request).map(drop)
}

/// Serves one object.
pub(crate) async fn get(reads: &Reads, request: Request, resource: Arc<Resource>) -> Answer {
    let (namespace, name) = request.info.place();
    let output = output(&reads.clock, &request, &resource)?;
    let freshness = match request.query.filled("resourceVersion") {
        None => Freshness::Newest,
        Some(text) => Freshness::AtLeast(revision(text).map_err(Status::unknown)?),
    };
    let key = resource.key(namespace, name);
    let (all, begun) = (&reads.metrics.storage, Instant::now());
    let read = reads.store.get(&key, freshness).await;
    let stores = &resource.stores;
    stores.count(all, &resource.labels, Operation::Get, begun, read.is_err());
    let (_, entry) = read.map_err(failure::of_store)?;
    let entry = entry.ok_or_else(|| Status::not_found(&resource.group, &resource.plural, name))?;
    let object = resource.convert_one(entry.object).await?;
    Ok(output.respond(StatusCode::OK, &object))
}

/// The paging parameters of a list.
struct Paging {
    freshness: Freshness,
    /// Whether the revision is exact only because the client reads pages.
    by_pages: bool,
    limit: Option<usize>,
    start: Option<String>,
    /// The continue token to return if the given one has expired: it resumes at the current
    /// revision.
    fallback: Option<Continue>,
}

impl Paging {
    fn parse(query: &Query) -> Result<Self, Status> {
        let number = |key: &str| query.get(key).map(text::parse_int).transpose();
        let limit = number("limit").map_err(Status::bad_request)?;
        number("timeoutSeconds").map_err(Status::bad_request)?;
        check_options(query)?;
        let limit = limit
            .and_then(|limit| usize::try_from(limit).ok())
            .filter(|limit| *limit > 0);
        let version = query.filled("resourceVersion");
        // With resourceVersion=0 the limit is ignored, as upstream.
        let limit = limit.filter(|_| version != Some("0"));
        if let Some(token) = query.filled("continue") {
            let token = Continue::decode(token)?;
            if version.is_some_and(|version| version != "0") {
                let why = "specifying resource version is not allowed when using continue";
                return Err(Status::bad_request(why));
            }
            let freshness = token.revision.map_or(Freshness::Newest, Freshness::Exactly);
            let fallback = Some(Continue {
                revision: None,
                start: token.start.clone(),
            });
            return Ok(Self {
                freshness,
                by_pages: false,
                limit,
                start: Some(token.start),
                fallback,
            });
        }
        let mut by_pages = false;
        let freshness = match (version, query.filled("resourceVersionMatch")) {
            (None, _) => Freshness::Newest,
            (Some(text), Some("Exact")) => Freshness::Exactly(list_revision(text)?),
            (Some(text), Some(_)) => Freshness::AtLeast(list_revision(text)?),
            (Some(text), None) => match list_revision(text)? {
                exact if exact > 0 && limit.is_some() => {
                    by_pages = true;
                    Freshness::Exactly(exact)
                }
                least => Freshness::AtLeast(least),
            },
        };
        Ok(Self {
            freshness,
            by_pages,
            limit,
            start: None,
            fallback: None,
        })
    }
}

/// Rejects invalid combinations of list parameters.
fn check_options(query: &Query) -> Result<(), Status> {
    let mut errors = field::Errors::new();
    let path = field::Path::new("resourceVersionMatch");
    let mut forbid =
        |path: &field::Path, why: &str| errors.push(field::Error::forbidden(path, why));
    if let Some(matching) = query.filled("resourceVersionMatch") {
        if query.filled("resourceVersion").is_none() {
            forbid(
                &path,
                "resourceVersionMatch is forbidden unless resourceVersion is provided",
            );
        }
        if query.filled("continue").is_some() {
            forbid(
                &path,
                "resourceVersionMatch is forbidden when continue is provided",
            );
        }
        if matching == "Exact" && query.get("resourceVersion") == Some("0") {
            forbid(
                &path,
                "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
            );
        }
        if !matches!(matching, "Exact" | "NotOlderThan") {
            let known = ["Exact", "NotOlderThan", ""];
            errors.push(field::Error::not_supported(&path, matching, &known));
        }
    }
    if query.get("sendInitialEvents").is_some() {
        let path = field::Path::new("sendInitialEvents");
        errors.push(field::Error::forbidden(
            &path,
            "sendInitialEvents is forbidden for list",
        ));
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(Status::invalid("meta.k8s.io", "ListOptions", "", &errors))
}

/// One page of objects.
pub(crate) struct ListPage {
    pub(crate) objects: Vec<Arc<Stored>>,
    pub(crate) metadata: Value,
}

/// Lists objects of a kind, in a namespace or all, filtered by selectors, page by page.
pub(crate) async fn list(reads: &Reads, request: Request, resource: Arc<Resource>) -> Answer {
    let (namespace, _) = request.info.place();
    let output = output(&reads.clock, &request, &resource)?;
    media::check_list(output.wanted, true, &resource)?;
    let selection = Selection::from_request(&resource, &request)?;
    let paging = Paging::parse(&request.query)?;
    let page = page(reads, &resource, namespace, &selection, paging).await?;
    if request
        .parts
        .extensions
        .get::<feed::WantsObjects>()
        .is_some()
    {
        return Ok(fed(&output, page));
    }
    let held = page.objects.len() * size_of::<Arc<Stored>>();
    let mut response = pieces::respond(output, page);
    if response.body().is_stream() {
        response.body_mut().hold(reads.budget.charge(held));
    }
    Ok(response)
}

/// A page as shared objects, for an informer of this process.
fn fed(output: &Output, page: ListPage) -> Response<Body> {
    pieces::note(output, &page);
    let text = |key: &str| page.metadata.get(key).and_then(Value::as_str);
    let objects = page.objects.iter();
    let objects = objects.map(|object| served(&output.resource, object));
    let page = feed::Page {
        objects: objects.collect(),
        revision: text("resourceVersion")
            .and_then(|text| text.parse().ok())
            .unwrap_or_default(),
        next: text("continue").map(ToOwned::to_owned),
    };
    let mut response = respond::bytes(StatusCode::OK, respond::JSON, Bytes::new());
    response.extensions_mut().insert(page);
    response
}

/// The selected objects at one revision, for handlers that act on each.
pub(crate) async fn selected(
    reads: &Reads,
    request: &Request,
    resource: &Arc<Resource>,
    namespace: &str,
) -> Result<ListPage, Status> {
    let selection = Selection::from_request(resource, request)?;
    let paging = Paging::parse(&request.query)?;
    page(reads, resource, namespace, &selection, paging).await
}

async fn page(
    reads: &Reads,
    resource: &Resource,
    namespace: &str,
    selection: &Selection,
    paging: Paging,
) -> Result<ListPage, Status> {
    let root = resource.prefix("");
    let only = selection.name();
    // With a name and a namespace the complete key is the prefix; the selector excludes longer
    // names.
    let only = only.filter(|_| !resource.namespaced() || !namespace.is_empty());
    let prefix = only.map_or_else(
        || resource.prefix(namespace),
        |name| resource.key(namespace, name),
    );
    let freshness = match paging.freshness {
        // A single object has no pages.
        Freshness::Exactly(moment) if paging.by_pages && only.is_some() => {
            Freshness::AtLeast(moment)
        }
        freshness => freshness,
    };
    let from = paging
        .start
        .as_ref()
        .map(|start| Bytes::from([&root[..], start.as_bytes()].concat()));
    let limit = if selection.is_everything() {
        paging.limit
    } else {
        None
    };
    let ask = ListRequest {
        prefix,
        from,
        limit,
        freshness,
        skip_unreadable: false,
    };
    let exactly = matches!(ask.freshness, Freshness::Exactly(_));
    let (all, begun) = (&reads.metrics.storage, Instant::now());
    let listed = reads.store.list(ask).await;
    let (stores, labels) = (&resource.stores, &resource.labels);
    stores.count(all, labels, Operation::List, begun, listed.is_err());
    let mut listed = match listed {
        Ok(listed) => listed,
        Err(store::Error::Compacted { .. }) if paging.fallback.is_some() => {
            return Err(expired(paging.fallback));
        }
        Err(store::Error::Compacted { .. }) if exactly => {
            let why = "The resourceVersion for the provided list is too old.";
            return Err(Status::expired(why));
        }
        // A list at an exact future revision fails at once instead of waiting.
        Err(error @ store::Error::Future { .. }) if exactly => {
            let mut status = failure::of_store(error);
            if let Some(details) = &mut status.details {
                details.retry_after_seconds = 0;
            }
            return Err(status);
        }
        Err(error) => return Err(failure::of_store(error)),
    };
    if resource.converts() {
        let objects = listed.entries.iter().map(|entry| entry.object.clone());
        let objects: Vec<Arc<Stored>> = objects.collect();
        heavy::mark_large(objects.iter().map(|object| object.size()).sum()).await;
        let objects = resource.convert_all(objects).await?;
        for (entry, object) in listed.entries.iter_mut().zip(objects) {
            entry.object = object;
        }
    }
    let read = listed.entries.len();
    let page = cut(listed, selection, paging.limit, root.len());
    stores.listed(all, labels, read, read, page.objects.len());
    Ok(page)
}

fn expired(fallback: Option<Continue>) -> Status {
    let mut status = Status::expired(EXPIRED);
    status.continue_token = fallback.map(|token| token.encode()).unwrap_or_default();
    status
}

/// Filters up to the limit, and makes the continue token.
fn cut(
    listed: Listed<Stored>,
    selection: &Selection,
    limit: Option<usize>,
    root: usize,
) -> ListPage {
    let mut metadata = json!({"resourceVersion": listed.revision.to_string()});
    let everything = selection.is_everything();
    let mut more = listed.remaining > 0;
    let mut kept: Vec<Entry<Stored>> = Vec::new();
    for entry in listed.entries {
        if !everything && !selection.matches(&entry.object) {
            continue;
        }
        if limit.is_some_and(|limit| kept.len() == limit) {
            more = true;
            break;
        }
        kept.push(entry);
    }
    if let (true, Some(last)) = (more, kept.last()) {
        let mut start = String::from_utf8_lossy(&last.key[root..]).into_owned();
        start.push('\0');
        let token = Continue {
            revision: Some(listed.revision),
            start,
        };
        metadata["continue"] = token.encode().into();
        if everything {
            metadata["remainingItemCount"] = listed.remaining.into();
        }
    }
    ListPage {
        objects: kept.into_iter().map(|entry| entry.object).collect(),
        metadata,
    }
}
