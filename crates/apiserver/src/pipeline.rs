//! The one way every request goes: panic guard, deadline, authentication, fairness, authorization,
//! then the handler of its verb. Requests from the socket and from this process differ only in how
//! the caller is known.

mod about;

use std::{
    net::{IpAddr, SocketAddr},
    panic::AssertUnwindSafe,
    sync::{Arc, OnceLock},
    task::Poll,
    time::{Duration, Instant},
};

use auth::{
    authn::{self, Authenticator, Credentials},
    authz::{self, Attributes, Authorizer, Decision, Rbac, forbidden},
    impersonation,
};
use bytes::Bytes;
use flowcontrol::{self, Fairness, Seat};
use futures::{FutureExt, future::BoxFuture};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Version, header, request::Parts};
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
use jiff::{SignedDuration, Timestamp};
use machinery::{Status, duration};
use parking_lot::Mutex;
use request::{BodyError, Pace};
use rustls::pki_types::CertificateDer;
use service_allocator::Allocator;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::error;

use self::about::{about, is_long, streams_by_reading};
use crate::{
    Body, Config, Error, Reader, Registry, RequestInfo, Resource, Store, User,
    admission::{self, Peer, Plugin},
    audit::{self, Arrival, Audit, Ticket},
    gzip, handlers, media,
    metrics::{Decided, Known, Metrics, Recent},
    pretty,
    query::{self, Query},
    respond::{self, Answer},
    sending::Budget,
    started::Started,
    user,
    write::Turns,
};

/// How long a verified certificate is believed on its connection. A certificate may end while a
/// connection lasts, but verifying it costs more than many a request.
const VERIFIED_FOR: SignedDuration = SignedDuration::from_secs(10);

pub(crate) type RequestBody = UnsyncBoxBody<Bytes, BodyError>;

/// How the caller is known.
pub(crate) enum Caller {
    /// By the part of this process that connects it; with the address of its node, if it is a kubelet.
    Known(Arc<User>, Option<IpAddr>),
    /// By what comes with the connection and the request.
    Connection(Arc<Connection>),
}

impl Caller {
    /// Where the user is, as far as the server knows it by itself: at the other end of a connection that shows the
    /// user's own certificate, or in this process.
    fn peer(&self, headers: &HeaderMap) -> Option<Peer> {
        match self {
            Self::Known(_, address) => address.map(Peer::InProcess),
            Self::Connection(connection) => {
                let certified = shows_certificate_alone(&connection.credentials(headers));
                certified.then(|| Peer::Certified(connection.remote.ip().to_canonical()))
            }
        }
    }
}

/// What the TLS handshake told.
pub(crate) struct Connection {
    pub(crate) remote: SocketAddr,
    pub(crate) certificates: Vec<CertificateDer<'static>>,
    /// Guards whom the certificate named, and when that was verified.
    verified: Mutex<Option<(Timestamp, Arc<User>)>>,
    counted: Recent,
}

impl Connection {
    pub(crate) fn new(remote: SocketAddr, certificates: Vec<CertificateDer<'static>>) -> Self {
        Self {
            remote,
            certificates,
            verified: Mutex::default(),
            counted: Recent::default(),
        }
    }

    /// What comes with a request on this connection.
    fn credentials<'a>(&'a self, headers: &'a HeaderMap) -> Credentials<'a> {
        Credentials {
            headers,
            certificates: &self.certificates,
            remote: Some(self.remote),
        }
    }

    /// Whom the certificate named a moment ago.
    fn known(&self, now: Timestamp) -> Option<Arc<User>> {
        let verified = self.verified.lock();
        let (at, user) = verified.as_ref()?;
        let age = now.duration_since(*at);
        (!age.is_negative() && age < VERIFIED_FOR).then(|| user.clone())
    }
}

/// What all requests share.
pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) store: Store,
    pub(crate) registry: Arc<Registry>,
    pub(crate) reader: Reader,
    pub(crate) authenticators: Vec<Arc<dyn Authenticator>>,
    /// Tokens in Secrets that were used.
    pub(crate) legacy_uses: Arc<authn::legacy_tokens::Uses>,
    pub(crate) authorizers: Vec<Arc<dyn Authorizer>>,
    /// The authorizer that can also say what somebody may do.
    pub(crate) rbac: Rbac,
    pub(crate) admission: Vec<Arc<dyn Plugin>>,
    /// Writes under way; they end even when their client is gone, and shutdown waits for them.
    pub(crate) writes: TaskTracker,
    pub(crate) turns: Turns,
    /// Joined connections under way; they end when the server stops.
    pub(crate) streams: TaskTracker,
    /// Cancelled when the server stops: long requests end.
    pub(crate) stopping: CancellationToken,
    /// The port that the server listens on, once it does.
    pub(crate) port: OnceLock<u16>,
    pub(crate) metrics: Metrics,
    pub(crate) audit: Option<Audit>,
    pub(crate) openapi: Arc<openapi::Documents>,
    pub(crate) fairness: Arc<Fairness>,
    /// Allocates addresses and ports of Services.
    pub(crate) service_allocator: Arc<Allocator>,
    /// What of the start is done.
    pub(crate) started: Started,
    /// How much of answers may be on its way.
    pub(crate) sending: Arc<Budget>,
}

/// One request as it came.
struct Arrived {
    parts: Parts,
    body: Option<RequestBody>,
    query: Query,
    info: RequestInfo,
    resource: Option<Arc<Resource>>,
    long: bool,
    id: HeaderValue,
    begun: Instant,
}

/// One request on its way, its caller known and allowed.
pub(crate) struct Request {
    pub(crate) core: Arc<Core>,
    pub(crate) user: Arc<User>,
    /// Where the user is known to be.
    pub(crate) peer: Option<Peer>,
    pub(crate) info: RequestInfo,
    /// What serves its path, if anything does.
    pub(crate) resource: Option<Arc<Resource>>,
    pub(crate) query: Query,
    pub(crate) parts: Parts,
    /// What is written down of it, if anything.
    pub(crate) audit: Option<Arc<Ticket>>,
    /// Guards the body until a handler takes it; a body can be sent but not shared.
    body: Mutex<Option<RequestBody>>,
    /// Guards the seat of a request that lasts until it has begun.
    seat: Mutex<Option<Seat>>,
}

impl Request {
    /// The body; empty when it was taken before.
    pub(crate) fn take_body(&self) -> RequestBody {
        let empty = || {
            http_body_util::Empty::new()
                .map_err(|never| match never {})
                .boxed_unsync()
        };
        self.body.lock().take().unwrap_or_else(empty)
    }

    /// The seat of a request that lasts, for whoever begins it.
    pub(crate) fn take_seat(&self) -> Option<Seat> {
        self.seat.lock().take()
    }
}

impl Core {
    pub(crate) fn new(
        config: Config,
        store: Store,
        registry: Arc<Registry>,
    ) -> Result<Self, Error> {
        let reader = Reader::new(store.clone(), registry.clone());
        let rbac = Rbac::new(reader.clone());
        let audit = config
            .audit
            .as_ref()
            .map(|audit| Audit::open(audit, config.clock.clone()))
            .transpose()
            .map_err(|why| Error::Invalid(format!("audit: {why}")))?;
        let authorizers = authz::chain(&reader, &rbac);
        let legacy_uses = Arc::default();
        let authn_options = authn::Options {
            client_ca: &config.client_ca,
            front_proxy_ca: &config.front_proxy_ca,
            token_auth_file: config.token_auth_file.as_deref(),
            tokens: config.tokens.as_ref(),
            clock: &config.clock,
        };
        let limits = &config.limits;
        let sending = Budget::new(limits.unsent, limits.stall);
        let metrics = Metrics::new(&sending);
        Ok(Self {
            authenticators: authn::chain(&authn_options, &reader, &legacy_uses)
                .map_err(Error::Invalid)?,
            legacy_uses,
            admission: admission::chain(
                &config.admission,
                &reader,
                &rbac,
                &authorizers,
                &metrics.policies,
            )?,
            authorizers,
            audit,
            rbac,
            fairness: Arc::new(Fairness::new(
                limits.in_flight,
                limits.deadline,
                &metrics.fairness,
            )),
            service_allocator: Arc::new(Allocator {
                store: store.clone(),
                reader: reader.clone(),
                clock: config.clock.clone(),
                cidrs: config.service_cidrs.clone(),
                node_ports: config.node_ports.clone(),
            }),
            metrics,
            sending,
            started: Started::default(),
            openapi: Arc::default(),
            port: OnceLock::new(),
            writes: TaskTracker::new(),
            turns: Turns::default(),
            streams: TaskTracker::new(),
            stopping: CancellationToken::new(),
            config,
            store,
            registry,
            reader,
        })
    }

    /// Answers one request. An answer to HEAD has the headers of the one to GET and no body, whatever it says.
    pub(crate) async fn handle(
        self: Arc<Self>,
        request: http::Request<Option<RequestBody>>,
        caller: Caller,
    ) -> Response<Body> {
        let is_head = request.method() == Method::HEAD;
        let response = self.handle_any(request, caller).await;
        match is_head {
            true => respond::without_body(response),
            false => response,
        }
    }

    /// A panic on the way is a 500.
    async fn handle_any(
        self: Arc<Self>,
        request: http::Request<Option<RequestBody>>,
        caller: Caller,
    ) -> Response<Body> {
        let begun = Instant::now();
        let (parts, body) = request.into_parts();
        if let Some(refused) = malformed(&parts, &caller) {
            return refused;
        }
        let query = Query::parse(parts.uri.query().unwrap_or_default());
        let info = RequestInfo::new(&parts.method, parts.uri.path(), &query);
        let long = is_long(&info, &query);
        let resource = self.resource(&info);
        let about = about(&info, resource.as_deref());
        let dry_run = query.filled("dryRun").is_some();
        let pace = self.pace(&info, long, begun);
        let mut indent = !long && pretty::wanted(&info.path, &query, &parts.headers);
        let compress = !long && gzip::wanted(&parts.headers, &caller);
        let reads = matches!(parts.method, Method::GET | Method::HEAD);
        let counted = if long {
            self.metrics.long(&about)
        } else {
            self.metrics.at_work(reads)
        };
        let uri = parts.uri.clone();
        let id = audit::id(&parts.headers);
        let accept = parts.headers.get(header::ACCEPT).cloned();
        let deprecated = resource.as_ref().and_then(|one| one.kind.deprecation());
        let deprecated = deprecated.map(|warning| (warning.into_owned(), about.clone()));
        let ignored = authn::bearer::warning(&parts.headers);
        let arrived = Arrived {
            parts,
            body,
            query,
            info,
            resource,
            long,
            id: id.clone(),
            begun,
        };
        let connection = match &caller {
            Caller::Connection(connection) => Some(connection.clone()),
            Caller::Known(..) => None,
        };
        let (mut ticket, mut flow, mut waited) = (None, None, Duration::ZERO);
        let answer = self.clone();
        let answer = answer.answer(arrived, caller, &mut ticket, &mut flow, &mut waited);
        let answer = AssertUnwindSafe(answer).catch_unwind().await;
        let answer = answer
            .unwrap_or_else(|panic| self.panicked(uri.path(), &*panic, ticket.take().as_deref()));
        let refusal = answer.as_ref().err().cloned();
        let mut response = answer.unwrap_or_else(|status| {
            let encoding = media::of_status(accept.as_ref());
            indent |= encoding.is_none();
            respond::status_as(&status, encoding.unwrap_or_default())
        });
        let code = response.status().as_u16();
        if let Some(ticket) = &ticket {
            note_response(ticket, &response);
            ticket.answered(code, refusal.as_ref());
        }
        if long {
            response.body_mut().hold((counted, ticket));
            self.metrics.count(about, dry_run, code);
        } else {
            let recent = connection.as_deref().map(|connection| &connection.counted);
            let took = begun.elapsed();
            let sizes = self
                .metrics
                .answered(recent, about, dry_run, code, took, waited);
            if let Some(sizes) = sizes {
                response.body_mut().measure(sizes);
            }
        }
        // Who may not use it is not told that it is old.
        if let Some((warning, about)) = deprecated.filter(|_| !matches!(code, 401 | 403)) {
            self.metrics.deprecated(&about);
            respond::warn_first(response.headers_mut(), &warning);
        }
        if let Some(warning) = ignored {
            respond::warn_first(response.headers_mut(), warning);
        }
        let headers = response.headers_mut();
        headers.insert(audit::ID, id);
        if let Some(flow) = &flow {
            flow.mark(headers);
        }
        headers
            .entry(header::CACHE_CONTROL)
            .or_insert(HeaderValue::from_static("no-cache, private"));
        if indent {
            response = pretty::apply(response);
        }
        if compress {
            response = gzip::apply(response, &self.sending);
        }
        response.body_mut().set_pace(pace);
        response
    }

    /// How long the answer to a request may be on its way.
    fn pace(&self, info: &RequestInfo, long: bool, begun: Instant) -> Pace {
        let is_log = || {
            info.resource
                .as_ref()
                .is_some_and(|what| what.subresource == "log")
        };
        match long {
            true if info.verb == "watch" => Pace::Steady,
            true => Pace::Endless,
            false if is_log() => Pace::Endless,
            false => Pace::Until((begun + self.config.limits.deadline).into()),
        }
    }

    fn panicked(
        &self,
        path: &str,
        panic: &(dyn std::any::Any + Send),
        ticket: Option<&Ticket>,
    ) -> Answer {
        let message = panic.downcast_ref::<&str>().copied();
        let message = message.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        error!(path, panic = message.unwrap_or("?"), "a request panicked");
        self.metrics.panicked();
        if let Some(ticket) = ticket {
            ticket.panicked(message.unwrap_or("?"));
        }
        Err(Status::internal(
            "the request made the server panic; its log says where",
        ))
    }

    /// What serves a request's path.
    fn resource(&self, info: &RequestInfo) -> Option<Arc<Resource>> {
        let subject = info.resource.as_ref()?;
        self.registry
            .get(&subject.group, &subject.version, &subject.resource)
    }

    async fn answer(
        self: Arc<Self>,
        arrived: Arrived,
        caller: Caller,
        ticket: &mut Option<Arc<Ticket>>,
        flow: &mut Option<flowcontrol::Flow>,
        waited: &mut Duration,
    ) -> Answer {
        let Arrived {
            mut parts,
            body,
            query,
            info,
            resource,
            long,
            id,
            begun,
        } = arrived;
        let remote = match &caller {
            Caller::Connection(connection) => Some(connection.remote),
            Caller::Known(..) => None,
        };
        let arrival = || Arrival {
            id: id.to_str().unwrap_or_default(),
            headers: &parts.headers,
            uri: &parts.uri,
            info: &info,
            remote,
            at: self.config.clock.now(),
            long,
        };
        let deadline = self.deadline(&query)?;
        let mut peer = caller.peer(&parts.headers);
        let asked = Instant::now();
        let known = match self.known(&parts, &caller) {
            Some(user) => Ok(user),
            None => self.authenticate(&parts, caller).await,
        };
        self.count_authentication(&known, asked.elapsed());
        let mut user = known.inspect_err(|status| {
            if let Some(audit) = &self.audit {
                audit.unauthenticated(&arrival(), status);
            }
        })?;
        if let Some(audit) = &self.audit {
            *ticket = audit.begin(&user, &arrival());
        }
        let asked = Attributes::from_request(&user, &info, &query);
        if let Some(assumed) =
            impersonation::apply(&self.authorizers, &asked, &parts.headers).await?
        {
            if let Some(ticket) = ticket {
                ticket.impersonates(&assumed);
            }
            user = Arc::new(assumed.user);
            peer = None;
        }
        let mut seat = None;
        *flow = self.fairness.classify(&user, &info);
        if let Some(flow) = flow {
            let ask = flowcontrol::Ask {
                store: &self.store,
                user: &user,
                info: &info,
                query: &query,
                resource: resource.as_deref(),
                begun,
                deadline,
            };
            let since = Instant::now();
            let taken = flow.seat(ask).await;
            *waited = since.elapsed();
            seat = match taken {
                Ok(seat) => seat,
                Err(turned_away) => {
                    let about = about(&info, resource.as_deref());
                    self.metrics.terminated(about, 429);
                    return Ok(turned_away.answer());
                }
            };
        }
        self.authorize(&user, &info, &query, ticket.as_deref())
            .await?;
        if streams_by_reading(&info) {
            // A WebSocket begins with GET; what it does is no reading.
            let writing = RequestInfo {
                verb: "create",
                ..info.clone()
            };
            self.authorize(&user, &writing, &query, None).await?;
        }
        authn::bearer::strip(&mut parts.headers);
        let late = (!long).then(|| about(&info, resource.as_deref()));
        let request = Request {
            core: self.clone(),
            user,
            peer,
            info,
            resource,
            query,
            parts,
            audit: ticket.clone(),
            body: Mutex::new(body),
            seat: Mutex::new(seat.take_if(|_| long)),
        };
        if long {
            return handlers::dispatch(request).await;
        }
        let mut work = handlers::dispatch(request);
        // Most reads need no second look, and then no clock.
        let answer = match futures::poll!(&mut work) {
            Poll::Ready(answer) => Ok(answer),
            Poll::Pending => {
                let left = deadline.saturating_sub(begun.elapsed());
                tokio::time::timeout(left, work).await
            }
        };
        match answer {
            Ok(answer) => answer.map(|mut response| {
                // What is made while it is sent is work until then.
                if let Some(seat) = seat.filter(|_| response.body().is_stream()) {
                    response.body_mut().hold(seat.while_sending());
                }
                response
            }),
            Err(_) => {
                if let Some(about) = late {
                    self.metrics.terminated(about, 504);
                }
                Err(Status::timeout(
                    "request did not complete within the allotted timeout",
                    0,
                ))
            }
        }
    }

    /// How long a request may take: as long as it says, and no longer than others.
    fn deadline(&self, query: &Query) -> Result<Duration, Status> {
        let most = self.config.limits.deadline;
        let Some(asked) = query.filled("timeout") else {
            return Ok(most);
        };
        let seconds = duration::parse(asked).map_err(|why| {
            Status::bad_request(format!(
                "invalid timeout specified in the request URL - time: {why}"
            ))
        })?;
        let asked = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        Ok(if asked.is_zero() {
            most
        } else {
            asked.min(most)
        })
    }

    /// The user, if that can be told at once.
    fn known(&self, parts: &Parts, caller: &Caller) -> Option<Arc<User>> {
        let connection = match caller {
            Caller::Known(user, _) => return Some(user.clone()),
            Caller::Connection(connection) => connection,
        };
        let credentials = connection.credentials(&parts.headers);
        if !credentials.certificates.is_empty() {
            let alone = shows_certificate_alone(&credentials);
            return alone.then(|| connection.known(self.config.clock.now()))?;
        }
        let mut authenticators = self.authenticators.iter();
        authenticators.find_map(|authenticator| authenticator.at_once(&credentials))
    }

    /// Counts what is left of a certificate's life.
    fn count_expiry(&self, certificates: &[CertificateDer<'_>], now: Timestamp) {
        let first = certificates.first();
        let parsed = first.and_then(|der| x509_parser::parse_x509_certificate(der).ok());
        if let Some((_, certificate)) = parsed {
            let end = certificate.validity().not_after.timestamp();
            self.metrics
                .access
                .certificate((end - now.as_second()) as f64);
        }
    }

    fn count_authentication(&self, known: &Result<Arc<User>, Status>, took: Duration) {
        let (result, name) = match known {
            Ok(user) if user.name == user::ANONYMOUS => (Known::Failure, ""),
            Ok(user) => (Known::Success, user.name.as_str()),
            Err(_) => (Known::Error, ""),
        };
        self.metrics.access.authenticated(result, name, took);
    }

    /// Boxed, so that the compiler need not prove more about lifetimes than it can.
    fn authenticate<'a>(
        &'a self,
        parts: &'a Parts,
        caller: Caller,
    ) -> BoxFuture<'a, Result<Arc<User>, Status>> {
        Box::pin(async move {
            let connection = match caller {
                Caller::Known(user, _) => return Ok(user),
                Caller::Connection(connection) => connection,
            };
            let credentials = connection.credentials(&parts.headers);
            let now = self.config.clock.now();
            let by_certificate = shows_certificate_alone(&credentials);
            // Another may still know the caller; but who shows something wrong is not anonymous.
            let mut wrong = authn::bearer::token(&parts.headers).is_some()
                || authn::bearer::is_malformed(&parts.headers);
            for authenticator in &self.authenticators {
                match authenticator.authenticate(&credentials).await {
                    Ok(Some(user)) => {
                        let user = Arc::new(user);
                        if by_certificate {
                            self.count_expiry(&connection.certificates, now);
                            *connection.verified.lock() = Some((now, user.clone()));
                        }
                        return Ok(user);
                    }
                    Ok(None) => {}
                    Err(refused) => {
                        tracing::debug!(authenticator = authenticator.name(), %refused, "refused");
                        wrong = true;
                    }
                }
            }
            if wrong {
                return Err(Status::unauthorized("Unauthorized"));
            }
            Ok(Arc::new(User::anonymous()))
        })
    }

    async fn authorize(
        &self,
        user: &User,
        info: &RequestInfo,
        query: &Query,
        ticket: Option<&Ticket>,
    ) -> Result<(), Status> {
        let attributes = Attributes::from_request(user, info, query);
        let asked = Instant::now();
        let decision = authz::decide(&self.authorizers, &attributes).await;
        let result = match &decision {
            Decision::Allow => Decided::Allow,
            Decision::Deny(_) => Decided::Deny,
            Decision::NoOpinion(_) => Decided::NoOpinion,
        };
        self.metrics.access.authorized(result, asked.elapsed());
        match decision {
            Decision::Allow => {
                if let Some(ticket) = ticket {
                    let reason = match user.is_in(user::MASTERS) {
                        true => None,
                        false => self.rbac.index().reason(&attributes),
                    };
                    note_decision(ticket, "allow", &reason.unwrap_or_default());
                }
                Ok(())
            }
            Decision::Deny(reason) | Decision::NoOpinion(reason) => {
                if let Some(ticket) = ticket {
                    note_decision(ticket, "forbid", &reason);
                }
                Err(forbidden(&attributes, &reason))
            }
        }
    }
}

/// The answer to what is no request by the rules of HTTP.
fn malformed(parts: &Parts, caller: &Caller) -> Option<Response<Body>> {
    let refuse = |code: StatusCode, words: &str| {
        let mut refused = respond::text(code, words.to_owned());
        let close = HeaderValue::from_static("close");
        refused.headers_mut().insert(header::CONNECTION, close);
        Some(refused)
    };
    let path = parts.uri.path();
    if path.is_empty() && parts.method == Method::CONNECT {
        return Some(handlers::no_page());
    }
    if path.is_empty() || !query::is_well_escaped(path) {
        return refuse(StatusCode::BAD_REQUEST, "400 Bad Request");
    }
    if parts.version != Version::HTTP_11 || matches!(caller, Caller::Known(..)) {
        return None;
    }
    if !parts.headers.contains_key(header::HOST) && parts.uri.host().is_none() {
        let words = "400 Bad Request: missing required Host header";
        return refuse(StatusCode::BAD_REQUEST, words);
    }
    let expects = parts.headers.get(header::EXPECT);
    if expects.is_some_and(|what| !what.as_bytes().eq_ignore_ascii_case(b"100-continue")) {
        return refuse(StatusCode::EXPECTATION_FAILED, "");
    }
    None
}

fn note_decision(ticket: &Ticket, decision: &str, reason: &str) {
    ticket.annotate("authorization.k8s.io/decision", decision);
    ticket.annotate("authorization.k8s.io/reason", reason);
}

/// Keeps the answer's body, where it is one piece of JSON and nobody has said better what it is.
fn note_response(ticket: &Ticket, response: &Response<Body>) {
    let json = response.headers().get(header::CONTENT_TYPE);
    let json = json.is_some_and(|media| media.as_bytes() == respond::JSON.as_bytes());
    if let (true, Some(bytes)) = (json, response.body().as_whole()) {
        ticket.response(|| bytes.clone());
    }
}

/// Whether nothing but the connection's certificate can say who the caller is.
fn shows_certificate_alone(credentials: &Credentials<'_>) -> bool {
    let headers = [
        header::AUTHORIZATION.as_str(),
        header::SEC_WEBSOCKET_PROTOCOL.as_str(),
        "x-remote-user",
    ];
    !credentials.certificates.is_empty()
        && !headers
            .iter()
            .any(|name| credentials.headers.contains_key(*name))
}
