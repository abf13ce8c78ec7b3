//! Response stage: how long a body may take to be sent.

use std::time::Instant;

use http::Response;
use request::Pace;

use super::{Core, arrival::Exchange};
use crate::{Body, RequestInfo};

/// How long the answer to a request may be on its way.
pub(super) fn of_request(
    core: &Core,
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
        false => Pace::Until((begun + core.config.limits.deadline).into()),
    }
}

/// Applies it to the body, after all stages that replace the body.
pub(super) fn limit(exchange: &mut Exchange, response: &mut Response<Body>) {
    response.body_mut().set_pace(exchange.pace);
}
