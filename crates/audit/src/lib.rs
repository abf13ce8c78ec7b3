//! The audit log: each request that the policy selects becomes lines of JSON in a log file.
//! Requests only queue their events; a thread writes them. When it cannot keep up, events are
//! dropped and counted instead of delaying requests.
//!
//! [`Audit::begin`] makes the [`Ticket`] of a request, which collects what the stages of the request learn.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod event;
mod file;
mod log;
mod policy;

use std::{path::PathBuf, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use machinery::{Object, Status, Value};
use parking_lot::Mutex;
use stdx::Clock;

use event::{AuthenticationMetadata, Event, Payload};
use log::Log;
use policy::{Policy, Verdict};
use request::{AuditTrail, RequestInfo, User};

pub use policy::{Level, Stage};

/// The header that ties requests, responses and audit events together.
pub const ID: &str = "audit-id";
/// Longer ids of clients are truncated.
const ID_LENGTH: usize = 64;

/// Which events are logged, and to which file.
#[derive(Debug, Clone)]
pub struct Config {
    /// The policy, `audit.k8s.io/v1`.
    pub policy: PathBuf,
    /// The log; `-` is the standard output.
    pub log: PathBuf,
    /// Megabytes after which the log is rotated.
    pub max_size: u64,
    /// Rotated logs that are kept; 0 keeps all.
    pub max_backups: usize,
    /// Days that rotated logs are kept; 0 keeps them forever.
    pub max_age: u64,
}

/// The audit log of one server.
pub struct Audit {
    policy: Policy,
    log: Arc<Log>,
    clock: Arc<dyn Clock>,
}

/// The parts of a request that are known when it arrives.
pub struct Arrival<'a> {
    pub id: &'a str,
    pub headers: &'a HeaderMap,
    pub uri: &'a http::Uri,
    pub info: &'a RequestInfo,
    pub remote: Option<std::net::SocketAddr>,
    pub at: jiff::Timestamp,
    pub long: bool,
}

impl Audit {
    /// Reads the policy and opens the log.
    pub fn open(config: &Config, clock: Arc<dyn Clock>) -> Result<Self, String> {
        let policy = Policy::load(&config.policy)?;
        let because = |error| format!("{}: {error}", config.log.display());
        let log = Arc::new(Log::open(config, clock.clone()).map_err(because)?);
        Ok(Self { policy, log, clock })
    }

    /// Events written and events dropped so far.
    pub fn figures(&self) -> (u64, u64) {
        self.log.figures()
    }

    /// Starts the audit of an authenticated request; `None` when the policy omits it.
    pub fn begin(&self, user: &User, arrival: &Arrival<'_>) -> Option<Arc<Ticket>> {
        let ticket = self.ticket(Some(user), arrival)?;
        ticket.write(Stage::RequestReceived);
        Some(Arc::new(ticket))
    }

    /// Logs a request that failed authentication.
    pub fn unauthenticated(&self, arrival: &Arrival<'_>, status: &Status) {
        let Some(ticket) = self.ticket(None, arrival) else {
            return;
        };
        let tried = if arrival.headers.contains_key(http::header::AUTHORIZATION) {
            "bearer"
        } else {
            "x509"
        };
        {
            let mut state = ticket.state.lock();
            state.done = true;
            state.event.response_status = Some(machinery::json::json!({
                "metadata": {}, "code": status.code,
                "message": format!("Authentication failed, attempted: {tried}"),
            }));
        }
        ticket.write(Stage::ResponseStarted);
    }

    fn ticket(&self, user: Option<&User>, arrival: &Arrival<'_>) -> Option<Ticket> {
        let verdict = self.policy.evaluate(user, arrival.info);
        if verdict.level == Level::None {
            return None;
        }
        let event = Event::new(verdict.level, user, arrival);
        let state = Progress {
            event,
            done: false,
            started: false,
        };
        Some(Ticket {
            verdict,
            log: self.log.clone(),
            clock: self.clock.clone(),
            long: arrival.long,
            state: Mutex::new(state),
        })
    }
}

/// The id of a request: the client's, or a new one.
pub fn id(headers: &HeaderMap) -> HeaderValue {
    let given = headers.get(ID).and_then(|id| id.to_str().ok());
    let made: String;
    let mut buffer = [0; uuid::fmt::Hyphenated::LENGTH];
    let id = match given.filter(|id| !id.is_empty()) {
        Some(given) => {
            made = given.chars().take(ID_LENGTH).collect();
            made.as_str()
        }
        None => uuid::Uuid::from_u128(rand::random())
            .hyphenated()
            .encode_lower(&mut buffer),
    };
    HeaderValue::from_str(id).unwrap_or(HeaderValue::from_static("invalid"))
}

/// One audited request. Dropping the last reference writes its final event.
pub struct Ticket {
    verdict: Verdict,
    log: Arc<Log>,
    clock: Arc<dyn Clock>,
    long: bool,
    /// Guards the event built so far.
    state: Mutex<Progress>,
}

/// The event of a request, and how far the request is.
struct Progress {
    event: Event,
    /// Whether the last event has been written.
    done: bool,
    /// Whether the response has begun.
    started: bool,
}

impl AuditTrail for Ticket {
    fn annotate(&self, key: &str, value: &str) {
        let annotations = &mut self.state.lock().event.annotations;
        annotations
            .entry(key.to_owned())
            .or_insert_with(|| value.to_owned());
    }

    fn wants_request(&self) -> bool {
        self.verdict.level >= Level::Request
    }
}

impl Ticket {
    /// Whether the response's body is logged.
    pub fn wants_response(&self) -> bool {
        self.verdict.level == Level::RequestResponse
    }

    /// Records the impersonated user, and the constraint that allowed it, if one did.
    pub fn impersonates(&self, user: &User, constraint: Option<String>) {
        let event = &mut self.state.lock().event;
        event.impersonated_user = Some(user.into());
        event.authentication_metadata = constraint.map(AuthenticationMetadata::new);
    }

    /// Records the body as received.
    pub fn request(&self, body: &Bytes) {
        if self.wants_request() && !body.is_empty() {
            self.state.lock().event.request = Some(Payload::Bytes(body.clone()));
        }
    }

    /// Records the decoded object.
    pub fn request_object(&self, object: &Object) {
        let mut state = self.state.lock();
        if self.wants_request() {
            state.event.request = Some(Payload::Object(Arc::new(object.clone())));
        }
        if let Some(reference) = &mut state.event.object_ref {
            let metadata = object.get("metadata").and_then(Value::as_object);
            let text = |key: &str| metadata.and_then(|metadata| metadata.get(key)?.as_str());
            let fill = |slot: &mut String, key: &str| {
                if slot.is_empty() {
                    text(key).unwrap_or_default().clone_into(slot);
                }
            };
            fill(&mut reference.name, "name");
            fill(&mut reference.namespace, "namespace");
            fill(&mut reference.uid, "uid");
            fill(&mut reference.resource_version, "resourceVersion");
        }
    }

    /// Records the response as JSON; only the first call counts.
    pub fn response(&self, body: impl FnOnce() -> Bytes) {
        if self.wants_response() && self.state.lock().event.response.is_none() {
            let body = Payload::Bytes(body());
            self.state.lock().event.response = Some(body);
        }
    }

    /// Records the response's code; a request that is not long-running is complete with it.
    pub fn answered(&self, code: u16, refusal: Option<&Status>) {
        {
            let mut state = self.state.lock();
            let mut status = machinery::json::json!({"metadata": {}, "code": code});
            if let Some(refusal) = refusal {
                for (key, value) in [
                    ("status", "Failure"),
                    ("reason", refusal.reason.as_str()),
                    ("message", refusal.message.as_str()),
                ] {
                    status[key] = value.into();
                }
                if let Ok(details) = machinery::json::to_value(&refusal.details)
                    && !details.is_null()
                {
                    status["details"] = details;
                }
            }
            state.event.response_status = Some(status);
            state.started = true;
            state.done = !self.long;
        }
        self.write(if self.long {
            Stage::ResponseStarted
        } else {
            Stage::ResponseComplete
        });
    }

    /// Records that the handler panicked.
    pub fn panicked(&self, message: &str) {
        {
            let mut state = self.state.lock();
            state.done = true;
            state.event.response_status = Some(machinery::json::json!({
                "metadata": {}, "code": 500, "status": "Failure", "reason": "InternalError",
                "message": format!("APIServer panic'd: {message}"),
            }));
        }
        self.write(Stage::Panic);
    }

    fn write(&self, stage: Stage) {
        if self.verdict.omit_stages.contains(&stage) {
            return;
        }
        let mut event = self.state.lock().event.clone();
        event.stage = stage;
        event.stage_timestamp = event::time(self.clock.now());
        event.omit_managed_fields = self.verdict.omit_managed_fields;
        self.log.write(event);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let (done, started) = {
            let state = self.state.get_mut();
            (std::mem::replace(&mut state.done, true), state.started)
        };
        if done {
            return;
        }
        if !started {
            self.state.get_mut().event.response_status = Some(machinery::json::json!({
                "metadata": {}, "code": 200, "status": "Success", "message": "Connection closed early",
            }));
            if self.long {
                self.write(Stage::ResponseStarted);
            }
        }
        self.write(Stage::ResponseComplete);
    }
}
