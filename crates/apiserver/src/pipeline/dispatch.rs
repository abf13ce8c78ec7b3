//! Passes a request to its handler, and ends it at its deadline.

use std::{
    sync::Arc,
    task::Poll,
    time::{Duration, Instant},
};

use aggregator::Backend;
use flowcontrol::Seat;
use http::{Response, request::Parts};
use http_body_util::BodyExt;
use machinery::Status;
use parking_lot::Mutex;
use request::{AuditTrail, RequestBody};

use super::arrival::{Arrival, Exchange};
use crate::{
    Body, RequestInfo, Resource, User,
    admission::{Effects, Peer},
    audit::Ticket,
    authn, handlers,
    query::Query,
    respond::Answer,
    write::Fence,
};

/// One authorized request.
pub(crate) struct Request {
    pub(crate) user: Arc<User>,
    /// The address that the user is known to be at.
    pub(crate) peer: Option<Peer>,
    /// The lease fence of its writes, if the caller is a leader.
    pub(crate) fence: Option<Arc<Fence>>,
    pub(crate) info: RequestInfo,
    /// The resource of its path, if served here.
    pub(crate) resource: Option<Arc<Resource>>,
    /// The aggregated API server of its path, if any.
    pub(crate) backend: Option<Arc<Backend>>,
    pub(crate) query: Query,
    pub(crate) parts: Parts,
    /// Its audit record, if any.
    pub(crate) audit: Option<Arc<Ticket>>,
    /// Its deadline; `None` if it is long-running.
    pub(crate) deadline: Option<Instant>,
    /// Maximum bytes of its body.
    pub(crate) body_limit: usize,
    /// Guards the body until a handler takes it; a body can be sent but not shared.
    body: Mutex<Option<RequestBody>>,
    /// Guards the seat of a long-running request until it has begun, and of a forwarded request
    /// until it is sent.
    seat: Mutex<Option<Seat>>,
}

impl Request {
    /// The body; empty if already taken.
    pub(crate) fn take_body(&self) -> RequestBody {
        let empty = || {
            http_body_util::Empty::new()
                .map_err(|never| match never {})
                .boxed_unsync()
        };
        self.body.lock().take().unwrap_or_else(empty)
    }

    /// Collects its admission's warnings, audit annotations and additional store operations.
    pub(crate) fn effects(&self) -> Effects {
        let audit = self
            .audit
            .clone()
            .map(|ticket| ticket as Arc<dyn AuditTrail>);
        Effects::new(audit, self.deadline)
    }

    /// The seat of a long-running or forwarded request; the handler that begins it drops the seat.
    pub(crate) fn take_seat(&self) -> Option<Seat> {
        self.seat.lock().take()
    }
}

/// Runs the handler.
pub(super) async fn dispatch(
    arrival: Arrival,
    body: Option<RequestBody>,
    user: Arc<User>,
    mut seat: Option<Seat>,
    deadline: Duration,
    exchange: &Exchange,
) -> Answer {
    let remote = arrival.remote();
    let Arrival {
        mut parts,
        query,
        info,
        resource,
        backend,
        peer,
        fence,
        is_long_running,
        audit_id,
        begun,
        ..
    } = arrival;
    authn::bearer::strip(&mut parts.headers);
    let is_passed_on = backend.is_some();
    if is_passed_on {
        handlers::trace_to_backend(&mut parts.headers, remote, audit_id);
    }
    let request = Request {
        user,
        peer,
        fence,
        info,
        resource,
        backend,
        query,
        parts,
        audit: exchange.ticket.clone(),
        deadline: (!is_long_running).then(|| begun + deadline),
        body_limit: exchange.pipeline.shared.config.limits.body,
        body: Mutex::new(body),
        seat: Mutex::new(seat.take_if(|_| is_long_running || is_passed_on)),
    };
    let handled = handlers::dispatch(exchange.pipeline.handlers.clone(), request);
    let mut work = exchange.pipeline.shared.traffic.slots.run(handled);
    if is_long_running {
        return work.await;
    }
    // Most reads are ready at the first poll and need no timer.
    let answer = match futures::poll!(&mut work) {
        Poll::Ready(answer) => Ok(answer),
        Poll::Pending => {
            let left = deadline.saturating_sub(begun.elapsed());
            tokio::time::timeout(left, work).await
        }
    };
    match answer {
        Ok(answer) => answer.map(|response| keep_seat(response, seat)),
        Err(_) => {
            let shared = &exchange.pipeline.shared;
            shared.metrics.count_terminated(exchange.about.clone(), 504);
            let why = "request did not complete within the allotted timeout";
            Err(Status::timeout(why, 0))
        }
    }
}

/// A streamed body keeps the request's seat until it is sent.
fn keep_seat(mut response: Response<Body>, seat: Option<Seat>) -> Response<Body> {
    if let Some(seat) = seat.filter(|_| response.body().is_stream()) {
        response.body_mut().hold(seat.while_sending());
    }
    response
}
