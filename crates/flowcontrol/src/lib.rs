//! Flow control: API Priority and Fairness by FlowSchemas and PriorityLevelConfigurations.
//!
//! A request belongs to the first FlowSchema that it matches ([`rules`], [`table`]), which assigns
//! it to a priority level. A level has seats, its share of all the server's ([`limits`]); every ten
//! seconds levels lend unused seats and borrow others' ([`demand`]). A request without a free seat
//! waits in one of the level's queues, served fairly ([`queues`], [`shuffle`]), for at most a
//! quarter of its deadline, or is answered with 429. [`keep`] and [`upkeep`] maintain the default
//! objects; requests read one [`table::Table`] that is replaced atomically.
//!
//! Simpler than upstream: virtual time advances with served requests instead of the clock; while no
//! request waits, no queue is charged; and [`estimate`] counts objects, not bytes.
//!
//! On a small machine the processor is the bottleneck, and reads use nothing else: running more of
//! one user's reads at once makes nothing faster and other users slower. So lists take more seats
//! than upstream: by their work, up to a sixth of the seats that their level has at the time. About
//! six large lists of a level run at once, however many seats it borrows, and the rest of a flood
//! waits without cost. Two more differences from upstream: a rejection is delayed ([`PAUSE`]), so
//! that clients which retry at once cost little; and a seat is held until a long response has been
//! sent, but a client that does not read loses it.
//!
//! Watches hold a seat until their initial objects are sent; exec, attach, port-forward, proxies
//! and logs need none.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod defaults;
mod demand;
mod dump;
mod estimate;
mod figures;
mod keep;
mod level;
mod limits;
mod queues;
mod retry;
mod rules;
mod shuffle;
mod spec;
mod status;
mod table;
mod upkeep;

use std::{
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use machinery::Object;
use parking_lot::Mutex;

pub use self::{figures::Figures, keep::Upkeep, level::Seat};
use self::{
    level::Needs,
    queues::Refusal,
    table::{Levels, Schema, Table},
};
use registry::{Resource, Store};
use request::{Body, Query, RequestInfo, User, respond};

const GROUP: &str = "flowcontrol.apiserver.k8s.io";
const LEVELS: &str = "prioritylevelconfigurations";
const SCHEMAS: &str = "flowschemas";

/// The path of the debug pages.
pub const DEBUG: &str = "/debug/api_priority_and_fairness/";

const SCHEMA_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
const LEVEL_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");

/// The delay of a rejection, with jitter, so that clients do not all retry together.
const PAUSE: Range<Duration> = Duration::from_millis(100)..Duration::from_millis(300);
/// The same if other requests wait longer than that in a queue.
const PAUSE_IN_LINE: Range<Duration> = Duration::from_millis(500)..Duration::from_millis(1000);
/// Maximum wait for a seat.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(60);

/// A path of these kinds.
fn path(resource: &str, name: &str) -> String {
    let slash = if name.is_empty() { "" } else { "/" };
    format!("/apis/{GROUP}/v1/{resource}{slash}{name}")
}

/// Flow control.
pub struct Fairness {
    table: ArcSwap<Table>,
    /// Guards the levels' limits; requests do not need it.
    levels: Mutex<Levels>,
    /// Maximum duration of a request.
    longest: Duration,
}

/// A request to seat.
pub struct SeatRequest<'a> {
    pub store: &'a Store,
    pub user: &'a User,
    pub info: &'a RequestInfo,
    pub query: &'a Query,
    pub resource: Option<&'a Resource>,
    pub begun: Instant,
    pub deadline: Duration,
}

/// The flow of a request, until it is answered.
pub struct Flow(Arc<Schema>);

/// The request is rejected; the client should retry later.
pub struct RejectedRequest {
    /// Seconds.
    retry_after: u32,
}

impl Fairness {
    /// Divides this many seats. Only the mandatory objects exist until objects are read.
    pub fn new(seats: usize, longest: Duration, figures: &Figures) -> Self {
        let mut levels = Levels::new(seats, figures.clone());
        let table = levels.digest(&[], &[]);
        Self {
            table: ArcSwap::from_pointee(table),
            levels: Mutex::new(levels),
            longest,
        }
    }

    /// Classifies a request. `None`: it is not subject to flow control.
    pub fn classify(&self, user: &User, info: &RequestInfo) -> Option<Flow> {
        if is_endless(info) {
            return None;
        }
        let table = self.table.load();
        let schema = table.classify(user, info)?.clone();
        if schema.level.is_exempt() {
            schema.level.begin_exempt();
            schema.figures.dispatched.inc();
            schema.figures.executing.inc();
            schema.figures.executing_seats.inc();
        }
        Some(Flow(schema))
    }

    /// Uses these objects from now on.
    fn digest(&self, levels: &[Object], schemas: &[Object]) {
        let table = self.levels.lock().digest(levels, schemas);
        self.table.store(Arc::new(table));
    }

    /// Adjusts the limits.
    fn adjust(&self) {
        let mut levels = self.levels.lock();
        for (level, _) in levels.all() {
            level.take_from_idlers(self.longest);
        }
        levels.adjust();
    }

    /// The page at a path below [`DEBUG`].
    pub fn page(&self, path: &str) -> Option<Response<Body>> {
        let table = dump::table(self, path.strip_prefix(DEBUG)?)?;
        Some(respond::text(StatusCode::OK, table))
    }
}

/// Whether a request is an endless stream, without flow control. Watches are not: their start takes
/// a seat.
fn is_endless(info: &RequestInfo) -> bool {
    let subresource = info.resource.as_ref().map(|what| what.subresource.as_str());
    matches!(
        subresource,
        Some("exec" | "attach" | "portforward" | "proxy" | "log")
    )
}

impl Flow {
    /// Waits for a seat. `None`: it needs none.
    pub async fn seat(&self, ask: SeatRequest<'_>) -> Result<Option<Seat>, RejectedRequest> {
        let schema = &self.0;
        let level = &schema.level;
        if level.is_exempt() {
            return Ok(None);
        }
        let SeatRequest {
            store,
            user,
            info,
            query,
            resource,
            begun,
            deadline,
        } = ask;
        let needs = Needs {
            seats: estimate::seats(store, info, query, resource, level.widest()).await,
            lingers: estimate::lingers(info, resource),
            patience: (deadline / 4).min(QUEUE_TIMEOUT),
            longest: deadline,
        };
        let flow = || schema.flow(user, info);
        let taken = Seat::take(schema, flow, needs, begun).await;
        match taken {
            Ok(seat) => Ok(Some(seat)),
            Err(why) => {
                let pause = match why {
                    Refusal::ConcurrencyLimit => Some(PAUSE),
                    Refusal::QueueFull => Some(PAUSE_IN_LINE),
                    Refusal::TimeOut => None,
                };
                if let Some(pause) = pause {
                    tokio::time::sleep(rand::random_range(pause)).await;
                }
                let second = jiff::Timestamp::now().as_second();
                Err(RejectedRequest {
                    retry_after: level.turn_away(second),
                })
            }
        }
    }

    /// Sets the response headers with the flow schema and priority level.
    pub fn mark(&self, headers: &mut HeaderMap) {
        let Schema { uid, level_uid, .. } = &*self.0;
        if let (Some(schema), Some(level)) = (uid, level_uid) {
            headers.insert(SCHEMA_UID, schema.clone());
            headers.insert(LEVEL_UID, level.clone());
        }
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        let schema = &self.0;
        if schema.level.is_exempt() {
            schema.level.end_exempt();
            schema.figures.executing.dec();
            schema.figures.executing_seats.dec();
        }
    }
}

impl RejectedRequest {
    pub fn answer(&self) -> Response<Body> {
        let words = "Too many requests, please try again later.\n";
        let page = respond::text(StatusCode::TOO_MANY_REQUESTS, words);
        let mut page = respond::unsniffed(page);
        let retry = HeaderValue::from(self.retry_after);
        page.headers_mut().insert(header::RETRY_AFTER, retry);
        page
    }
}
