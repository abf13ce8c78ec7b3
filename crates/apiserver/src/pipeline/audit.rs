//! Audit: an event begins when the user is known and ends with the answer.

use http::{Response, header};
use machinery::Status;

use super::arrival::{Arrival, Exchange};
use crate::{
    Body, User,
    audit::{self, Ticket},
    respond,
};

/// Begins the event of a request, if the policy asks for one.
pub(super) fn begin(arrival: &Arrival, user: &User, exchange: &mut Exchange) {
    let shared = &exchange.pipeline.shared;
    if let Some(audit) = &shared.audit {
        exchange.ticket = audit.begin(user, &audit_arrival(arrival, exchange));
    }
}

/// Records a request without a known user.
pub(super) fn unauthenticated(arrival: &Arrival, exchange: &Exchange, status: &Status) {
    if let Some(audit) = &exchange.pipeline.shared.audit {
        audit.unauthenticated(&audit_arrival(arrival, exchange), status);
    }
}

fn audit_arrival<'a>(arrival: &'a Arrival, exchange: &Exchange) -> audit::Arrival<'a> {
    audit::Arrival {
        id: arrival.audit_id.to_str().unwrap_or_default(),
        headers: &arrival.parts.headers,
        uri: &arrival.parts.uri,
        info: &arrival.info,
        remote: arrival.remote(),
        at: exchange.pipeline.shared.config.clock.now(),
        long: arrival.is_long_running,
    }
}

/// Response stage: ends the event, for long-running requests when their body ends.
pub(super) fn record_response(exchange: &mut Exchange, response: &mut Response<Body>) {
    let Some(ticket) = &exchange.ticket else {
        return;
    };
    note_body(ticket, response);
    ticket.answered(response.status().as_u16(), exchange.refusal.as_ref());
}

/// Records the response's body if it is one piece of JSON and the handler has not recorded the
/// object itself.
fn note_body(ticket: &Ticket, response: &Response<Body>) {
    let json = response.headers().get(header::CONTENT_TYPE);
    let json = json.is_some_and(|media| media.as_bytes() == respond::JSON.as_bytes());
    if let (true, Some(bytes)) = (json, response.body().as_whole()) {
        ticket.response(|| bytes.clone());
    }
}
