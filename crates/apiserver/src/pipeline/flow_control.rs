//! API Priority and Fairness: a request waits for a seat of its priority level, or is answered with 429.

use std::time::{Duration, Instant};

use flowcontrol::Seat;
use http::Response;

use super::arrival::{Arrival, Exchange};
use crate::{Body, User};

/// Waits for a seat; `None` when the request needs none.
pub(super) async fn seat(
    arrival: &Arrival,
    user: &User,
    deadline: Duration,
    exchange: &mut Exchange,
) -> Result<Option<Seat>, Response<Body>> {
    let shared = &exchange.pipeline.shared;
    exchange.flow = shared.traffic.fairness.classify(user, &arrival.info);
    let Some(flow) = &exchange.flow else {
        return Ok(None);
    };
    let ask = flowcontrol::SeatRequest {
        store: &shared.storage.store,
        user,
        info: &arrival.info,
        query: &arrival.query,
        resource: arrival.resource.as_deref(),
        begun: arrival.begun,
        deadline,
    };
    let since = Instant::now();
    let taken = flow.seat(ask).await;
    exchange.waited = since.elapsed();
    taken.map_err(|turned_away| {
        shared.metrics.count_terminated(exchange.about.clone(), 429);
        turned_away.answer()
    })
}
