//! Response stage: time limits for sending the body.

use std::time::{Duration, Instant};

use http::Response;
use request::Pace;

use super::arrival::Exchange;
use crate::{Body, RequestInfo};

/// The time limit for sending a request's response.
pub(super) fn of_request(
    deadline: Duration,
    info: &RequestInfo,
    is_long_running: bool,
    begun: Instant,
) -> Pace {
    let is_log = || {
        info.resource
            .as_ref()
            .is_some_and(|what| what.subresource == "log")
    };
    match is_long_running {
        true if info.verb == "watch" => Pace::Steady,
        true => Pace::Endless,
        false if is_log() => Pace::Endless,
        false => Pace::Until((begun + deadline).into()),
    }
}

/// Applies the limit to the body, after all stages that replace the body.
pub(super) fn limit(exchange: &mut Exchange, response: &mut Response<Body>) {
    response.body_mut().set_pace(exchange.pace);
}
