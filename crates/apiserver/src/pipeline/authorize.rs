//! Authorization: whether the user may perform the request.

use std::time::Instant;

use auth::authz::{self, Attributes, Decision, forbidden};
use machinery::Status;
use request::AuditTrail;
use server_metrics::Decided;

use super::{
    about::opens_stream_by_get,
    arrival::{Arrival, Exchange},
    shared::Shared,
};
use crate::{RequestInfo, User, audit::Ticket, query::Query, user};

/// 403 for what the user may not do.
pub(super) async fn authorize(
    arrival: &Arrival,
    user: &User,
    exchange: &Exchange,
) -> Result<(), Status> {
    let (info, query) = (&arrival.info, &arrival.query);
    let ticket = exchange.ticket.as_deref();
    decide(&exchange.pipeline.shared, user, info, query, ticket).await?;
    if opens_stream_by_get(info, &arrival.parts.headers) {
        // WebSockets start with GET, but exec and attach also require `create`.
        let create = RequestInfo {
            verb: "create",
            ..info.clone()
        };
        decide(&exchange.pipeline.shared, user, &create, query, None).await?;
    }
    Ok(())
}

async fn decide(
    shared: &Shared,
    user: &User,
    info: &RequestInfo,
    query: &Query,
    ticket: Option<&Ticket>,
) -> Result<(), Status> {
    let attributes = Attributes::from_request(user, info, query);
    let asked = Instant::now();
    let decision = authz::decide(&shared.access.authorizers, &attributes).await;
    let result = match &decision {
        Decision::Allow => Decided::Allow,
        Decision::Deny(_) => Decided::Deny,
        Decision::NoOpinion(_) => Decided::NoOpinion,
    };
    shared.metrics.access.authorized(result, asked.elapsed());
    match decision {
        Decision::Allow => {
            if let Some(ticket) = ticket {
                let reason = match user.is_in(user::MASTERS) {
                    true => None,
                    false => shared.access.rbac.index().reason(&attributes),
                };
                annotate(ticket, "allow", &reason.unwrap_or_default());
            }
            Ok(())
        }
        Decision::Deny(reason) | Decision::NoOpinion(reason) => {
            if let Some(ticket) = ticket {
                annotate(ticket, "forbid", &reason);
            }
            Err(forbidden(&attributes, &reason))
        }
    }
}

fn annotate(ticket: &Ticket, decision: &str, reason: &str) {
    ticket.annotate("authorization.k8s.io/decision", decision);
    ticket.annotate("authorization.k8s.io/reason", reason);
}
