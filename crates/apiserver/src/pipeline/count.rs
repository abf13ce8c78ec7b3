//! Response stage: counts the response in the server's metrics.

use http::Response;

use super::arrival::Exchange;
use crate::Body;

/// Counts a request and its duration; a long-running one stays in flight, with its audit event, until its body ends.
pub(super) fn answered(exchange: &mut Exchange, response: &mut Response<Body>) {
    let code = response.status().as_u16();
    let (about, dry_run) = (std::mem::take(&mut exchange.about), exchange.dry_run);
    let metrics = &exchange.pipeline.shared.metrics;
    if exchange.is_long_running {
        let guards = (exchange.in_flight.take(), exchange.ticket.take());
        response.body_mut().hold(guards);
        metrics.count_request(about, dry_run, code);
        return;
    }
    let recent = exchange.connection.as_deref();
    let recent = recent.map(|connection| &connection.counted);
    let took = exchange.begun.elapsed();
    let sizes = metrics.record_response(recent, about, dry_run, code, took, exchange.waited);
    if let Some(sizes) = sizes {
        response.body_mut().measure(sizes);
    }
}
