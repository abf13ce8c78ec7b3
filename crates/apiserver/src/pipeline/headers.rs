//! Response stage: the headers that every response carries.

use http::{HeaderValue, Response, header};

use super::arrival::Exchange;
use crate::{Body, audit};

/// Adds the audit ID, the flow schema and priority level, and Cache-Control.
pub(super) fn complete(exchange: &mut Exchange, response: &mut Response<Body>) {
    let headers = response.headers_mut();
    let audit_id = HeaderValue::from_static("");
    let audit_id = std::mem::replace(&mut exchange.audit_id, audit_id);
    headers.insert(audit::ID, audit_id);
    if let Some(flow) = &exchange.flow {
        flow.mark(headers);
    }
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-cache, private"));
}
