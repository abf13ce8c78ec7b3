//! Non-resource paths: health, version, discovery, OpenAPI, metrics, service account keys.

use std::sync::Arc;

use ::request::zpages;
use aggregator::{Aggregator, ApiServices, Backend};
use connect::Streams;
use flowcontrol::Fairness;
use http::{HeaderValue, Method, StatusCode, header};
use http_server::Budget;
use machinery::{Status, Value};
use server_metrics::ServerMetrics;
use stdx::{Clock, exposition::Exposition};

use super::{
    routes::{self, no_page},
    tokens,
};
use crate::{
    Reader, Registry, Store, TokenIssuer,
    audit::Audit,
    discovery::{self, DiscoveryCache},
    health::{self, HealthChecks},
    pipeline::Request,
    respond::{self, Answer},
    started::ServerState,
};
use registry::Table;

/// The group and plural of APIServices.
const SERVICES: (&str, &str) = (FRONT, "apiservices");

/// The group of the aggregation layer itself, whose group document upstream serves by a router.
const FRONT: &str = "apiregistration.k8s.io";

/// The name in `/statusz` and `/flagz`.
const COMPONENT: &str = "kube-apiserver";

/// What the documents are made of.
pub(crate) struct Documents {
    pub(crate) registry: Arc<Registry>,
    pub(crate) store: Store,
    pub(crate) reader: Reader,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) state: Arc<ServerState>,
    pub(crate) openapi: Arc<openapi::Documents>,
    pub(crate) discovery: DiscoveryCache,
    /// The API servers behind APIServices.
    pub(crate) aggregator: Arc<Aggregator>,
    /// For forwarded requests.
    pub(crate) streams: Streams,
    pub(crate) fairness: Arc<Fairness>,
    /// What clients have not read yet.
    pub(crate) budget: Arc<Budget>,
    pub(crate) audit: Option<Arc<Audit>>,
    /// The services of this process, for their metrics.
    pub(crate) services: lifecycle::Health,
    pub(crate) metrics: Arc<ServerMetrics>,
    pub(crate) issuer: Option<Arc<dyn TokenIssuer>>,
}

pub(super) async fn serve(
    documents: &Documents,
    health: &HealthChecks,
    request: Request,
) -> Answer {
    let table = documents.registry.kept_table();
    let path = request.info.path.clone();
    if is_routed(&table, &path) && request.parts.method != Method::GET {
        return Err(Status::method_not_allowed());
    }
    let bare = path.trim_end_matches('/');
    match bare.split('/').nth(1).unwrap_or_default() {
        "healthz" | "livez" | "readyz" => health::serve(health, &request).await,
        "version" if bare == "/version" => health::version(&request.parts.headers),
        "version" => Err(Status::path_not_found()),
        "api" => {
            discover(documents, &request, &table, bare).unwrap_or(Err(Status::path_not_found()))
        }
        "apis" => {
            let group = bare.split('/').nth(2).unwrap_or_default();
            discover(documents, &request, &table, bare)
                .unwrap_or_else(|| routes::missing(&table, group))
        }
        "metrics" if path == "/metrics" => metrics(documents).await,
        "metrics" if path == "/metrics/slis" => health::indicators(health),
        "statusz" | "flagz" if matches!(path.as_str(), "/statusz" | "/flagz") => {
            zpage(documents, &request, &table)
        }
        "debug" => Ok(documents.fairness.page(&path).unwrap_or_else(no_page)),
        "openapi" => {
            let services = documents.aggregator.known();
            if let Some(backend) = describing(&services, bare) {
                return super::aggregated::serve(&documents.streams, request, backend).await;
            }
            let ask = openapi::DocumentRequest {
                table: documents.registry.kept_table(),
                documents: documents.openapi.clone(),
                remote: services.remote().map(described).collect(),
                headers: &request.parts.headers,
                query: &request.query,
                now: documents.clock.now().as_second(),
            };
            Ok(ask.serve(&path).await?.unwrap_or_else(no_page))
        }
        "" | "index.html" if matches!(path.as_str(), "" | "/" | "/index.html") => Ok(
            respond::lines(&machinery::json::json!({"paths": paths(documents, &table)})),
        ),
        _ => tokens::openid(documents.issuer.as_ref(), &request, bare)
            .unwrap_or_else(|| Ok(no_page())),
    }
}

/// Whether upstream serves a path by a router, which accepts only GET; other paths accept any
/// method.
fn is_routed(table: &Table, path: &str) -> bool {
    let mut parts = path.trim_matches('/').split('/');
    match parts.next().unwrap_or_default() {
        "api" => matches!((parts.next(), parts.next()), (None | Some("v1"), None)),
        "version" => parts.next().is_none(),
        "apis" => match (parts.next(), parts.next(), parts.next()) {
            (Some(FRONT), None, _) => true,
            (Some(group), Some(version), None) => {
                table.has_router(group) && table.serves(group, version)
            }
            _ => false,
        },
        ".well-known" => path.starts_with("/.well-known/openid-configuration"),
        "openid" => path.starts_with("/openid/v1/jwks"),
        _ => false,
    }
}

fn discover(documents: &Documents, request: &Request, table: &Table, path: &str) -> Option<Answer> {
    let address = documents.state.advertise().to_string();
    let headers = &request.parts.headers;
    let moment = documents.aggregator.moment();
    discovery::serve(
        &documents.discovery,
        table,
        &moment,
        path,
        headers,
        &address,
    )
}

/// The aggregated server that describes the group and version of a path below `/openapi/v3`, if
/// any.
fn describing(services: &ApiServices, path: &str) -> Option<Arc<Backend>> {
    let mut remote = services.remote();
    let place = path.strip_prefix("/openapi/v3/")?;
    let describes = |backend: &&Arc<Backend>| backend.openapi().is_some_and(|(at, _)| at == place);
    remote.find(describes).cloned()
}

/// The OpenAPI of an aggregated server for its group and version.
fn described(backend: &Arc<Backend>) -> openapi::Remote {
    let older = backend.swagger();
    openapi::Remote {
        place: format!("apis/{}/{}", backend.group, backend.version),
        url: backend.openapi().map(|(_, url)| url),
        hash: match &older {
            Some(older) => older.hash.clone(),
            None => backend.name.clone(),
        },
        document: older.map(|older| older.document.clone()),
    }
}

/// The server's metrics; objects are counted for each request.
async fn metrics(documents: &Documents) -> Answer {
    let resources: Vec<_> = documents.registry.table().all().cloned().collect();
    for resource in resources
        .iter()
        .filter(|r| r.storage.is_none() && !r.kind.is_virtual())
    {
        let ask = store::ListRequest {
            prefix: resource.prefix(""),
            from: None,
            limit: Some(1),
            freshness: store::Freshness::AtLeast(0),
            skip_unreadable: true,
        };
        let listed = documents.store.list(ask).await;
        let listed = listed.map_err(crate::failure::of_store)?;
        let count = listed.entries.len() + listed.remaining + listed.unreadable.len();
        let metrics = &documents.metrics;
        metrics.set_stored_objects(&resource.group, &resource.plural, count);
    }
    let metrics = &documents.metrics;
    metrics.set_unsent_bytes(documents.budget.used());
    let reader = &documents.reader;
    let services = reader.list_readable(SERVICES.0, SERVICES.1).await?;
    let services = services.objects();
    let unavailable = services.iter().filter(|service| {
        let object = service.parse();
        let status = object.get("status").map(|status| &status["conditions"]);
        let mut conditions = status.and_then(Value::as_array).into_iter().flatten();
        !conditions.any(|one| one["type"] == "Available" && one["status"] == "True")
    });
    metrics.set_unavailable_services(unavailable.map(|service| service.header.name().to_string()));
    if let Some(size) = documents.store.size().await {
        metrics.set_store_size(size);
    }
    if let Some(audit) = &documents.audit {
        metrics.set_audit_events(audit.figures());
    }
    let mut text = metrics.text();
    text += &server_metrics::plain_text(&documents.services.metrics());
    let mut informers = Exposition::default();
    client::metrics::show_informers(&mut informers);
    text += &informers.finish();
    Ok(respond::bytes(
        http::StatusCode::OK,
        server_metrics::MEDIA,
        text,
    ))
}

/// `/statusz` and `/flagz`.
fn zpage(documents: &Documents, request: &Request, table: &Table) -> Answer {
    let now = documents.clock.now().as_second();
    let own = stdx::Version::own();
    let version = format!("{}.{}.{}", own.major, own.minor, own.patch);
    let process = zpages::Process::own(now, version);
    let headers = &request.parts.headers;
    let page = match request.info.path.as_str() {
        "/flagz" => zpages::flagz(COMPONENT, &process, headers)?,
        _ => zpages::statusz(COMPONENT, &process, &paths(documents, table), headers)?,
    };
    let mut response = respond::bytes(StatusCode::OK, page.media, page.body);
    if let Some(warning) = page.warning {
        let warning = HeaderValue::from_static(warning);
        response.headers_mut().insert(header::WARNING, warning);
    }
    Ok(response)
}

/// The paths listed at `/`.
fn paths(documents: &Documents, table: &Table) -> Vec<String> {
    let fixed = [
        "/.well-known/openid-configuration",
        "/api",
        "/api/v1",
        "/apis",
        "/apis/",
        "/flagz",
        "/healthz",
        "/livez",
        "/metrics",
        "/metrics/slis",
        "/openapi/v2",
        "/openapi/v3",
        "/openapi/v3/",
        "/openid/v1/jwks",
        "/readyz",
        "/statusz",
        "/version",
    ];
    let mut paths: Vec<String> = fixed.map(str::to_owned).to_vec();
    for resource in table.discoverable() {
        if !resource.group.is_empty() {
            paths.push(format!("/apis/{}", resource.group));
            paths.push(format!("/apis/{}/{}", resource.group, resource.version));
        }
    }
    for backend in documents.aggregator.known().remote() {
        paths.push(format!("/apis/{}", backend.group));
        paths.push(format!("/apis/{}/{}", backend.group, backend.version));
    }
    for check in health::names() {
        for place in ["healthz", "livez", "readyz"] {
            paths.push(format!("/{place}/{check}"));
        }
    }
    paths.sort();
    paths.dedup();
    paths
}
