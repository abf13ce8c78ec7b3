//! Parses a request once: request info, resource, metric labels, form of the response.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use aggregator::Backend;
use flowcontrol::Flow;
use http::{HeaderValue, Method, Response, header, request::Parts};
use machinery::Status;
use request::Pace;
use server_metrics::{Counted, RequestLabels};

use super::{
    Caller, Connection, Pipeline,
    about::{is_long_running, request_labels},
    compress, indent, pace,
};
use crate::{
    Body, RequestInfo, Resource,
    admission::Peer,
    audit::{self, Ticket},
    authn, media,
    query::Query,
    respond,
    write::Fence,
};

/// One request as received, without its body.
pub(super) struct Arrival {
    pub(super) parts: Parts,
    pub(super) query: Query,
    pub(super) info: RequestInfo,
    /// The resource of its path, if served here.
    pub(super) resource: Option<Arc<Resource>>,
    /// The aggregated API server of its path, if any.
    pub(super) backend: Option<Arc<Backend>>,
    pub(super) caller: Caller,
    /// The address that the user is known to be at.
    pub(super) peer: Option<Peer>,
    /// The lease fence of its writes, if the caller is a leader.
    pub(super) fence: Option<Arc<Fence>>,
    pub(super) is_long_running: bool,
    pub(super) audit_id: HeaderValue,
    pub(super) begun: Instant,
}

/// What the response stages need of the request. It outlives the request's own stages, also when
/// they panic.
pub(super) struct Exchange {
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) connection: Option<Arc<Connection>>,
    pub(super) begun: Instant,
    pub(super) is_long_running: bool,
    pub(super) about: RequestLabels,
    pub(super) dry_run: bool,
    /// Counts the request as in flight.
    pub(super) in_flight: Option<Counted>,
    pub(super) audit_id: HeaderValue,
    /// Its audit record, if any.
    pub(super) ticket: Option<Arc<Ticket>>,
    /// Its flow schema and priority level.
    pub(super) flow: Option<Flow>,
    /// How long it waited for a seat.
    pub(super) waited: Duration,
    pub(super) deprecation: Option<String>,
    pub(super) ignored_token: Option<&'static str>,
    accept: Option<HeaderValue>,
    /// The error that the response was made from, if any.
    pub(super) refusal: Option<Status>,
    pub(super) indents: bool,
    pub(super) compresses: bool,
    pub(super) pace: Pace,
}

/// Parses a request that passed [`http_rules`](super::http_rules).
pub(super) fn read(pipeline: Arc<Pipeline>, parts: Parts, caller: Caller) -> (Arrival, Exchange) {
    let Pipeline { shared, .. } = &*pipeline;
    let begun = Instant::now();
    let query = Query::parse(parts.uri.query().unwrap_or_default());
    let info = RequestInfo::new(&parts.method, parts.uri.path(), &query);
    let is_long_running = is_long_running(&info, &query);
    let backend = shared.remote.aggregator.find(&info.path);
    let is_local = backend.is_none();
    let subject = info.resource.as_ref().filter(|_| is_local);
    let resource = subject.and_then(|subject| {
        let registry = &shared.storage.registry;
        registry.get(&subject.group, &subject.version, &subject.resource)
    });
    let about = request_labels(&info, resource.as_deref());
    let deprecation = resource.as_ref().and_then(|one| one.kind.deprecation());
    let reads = matches!(parts.method, Method::GET | Method::HEAD);
    let in_flight = match is_long_running {
        true => shared.metrics.count_long_running(&about),
        false => shared.metrics.count_in_flight(reads),
    };
    let audit_id = audit::id(&parts.headers);
    let exchange = Exchange {
        connection: match &caller {
            Caller::Connection(connection) => Some(connection.clone()),
            Caller::Known(..) => None,
        },
        begun,
        is_long_running,
        dry_run: query.filled("dryRun").is_some(),
        in_flight: Some(in_flight),
        audit_id: audit_id.clone(),
        ticket: None,
        flow: None,
        waited: Duration::ZERO,
        deprecation: deprecation.map(|warning| warning.into_owned()),
        ignored_token: authn::bearer::warning(&parts.headers),
        accept: parts.headers.get(header::ACCEPT).cloned(),
        refusal: None,
        indents: is_local && !is_long_running && indent::wanted(&info.path, &query, &parts.headers),
        compresses: is_local && !is_long_running && compress::wanted(&parts.headers, &caller),
        pace: pace::of_request(shared.config.limits.deadline, &info, is_long_running, begun),
        about,
        pipeline,
    };
    let arrival = Arrival {
        peer: caller.peer(&parts.headers),
        fence: caller.fence(),
        parts,
        query,
        info,
        resource,
        backend,
        caller,
        is_long_running,
        audit_id,
        begun,
    };
    (arrival, exchange)
}

impl Arrival {
    /// The other end of the connection; `None` for callers in this process.
    pub(super) fn remote(&self) -> Option<SocketAddr> {
        match &self.caller {
            Caller::Connection(connection) => Some(connection.remote),
            Caller::Known(..) => None,
        }
    }
}

impl Exchange {
    /// The response for an error, in an encoding that the client accepts.
    pub(super) fn refuse(&mut self, status: Status) -> Response<Body> {
        let encoding = media::of_status(self.accept.as_ref());
        self.indents |= encoding.is_none();
        let response = respond::status_as(&status, encoding.unwrap_or_default());
        self.refusal = Some(status);
        response
    }
}
