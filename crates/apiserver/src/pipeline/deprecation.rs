//! Response stage: warns users of deprecated kinds, and counts that they are used.

use http::Response;

use super::arrival::Exchange;
use crate::{Body, respond};

/// Warns callers who may use the kind.
pub(super) fn warn(exchange: &mut Exchange, response: &mut Response<Body>) {
    if let Some(warning) = &exchange.deprecation
        && !matches!(response.status().as_u16(), 401 | 403)
    {
        exchange.core.metrics.deprecated(&exchange.about);
        respond::warn_first(response.headers_mut(), warning);
    }
}
