//! Response stage: warns of deprecated kinds, and counts their use.

use http::Response;

use super::arrival::Exchange;
use crate::{Body, respond};

/// Adds the warning, unless the request was unauthenticated or forbidden.
pub(super) fn warn(exchange: &mut Exchange, response: &mut Response<Body>) {
    if let Some(warning) = &exchange.deprecation
        && !matches!(response.status().as_u16(), 401 | 403)
    {
        exchange
            .pipeline
            .shared
            .metrics
            .mark_deprecated(&exchange.about);
        respond::warn_first(response.headers_mut(), warning);
    }
}
