//! Impersonation: the request continues as the user in its `Impersonate-*` headers.

use std::sync::Arc;

use auth::{authz::Attributes, impersonation};
use machinery::Status;

use super::arrival::{Arrival, Exchange};
use crate::User;

/// Replaces the user, if the headers name another one and the caller may impersonate it.
pub(super) async fn apply(
    arrival: &mut Arrival,
    user: &mut Arc<User>,
    exchange: &Exchange,
) -> Result<(), Status> {
    let authorizers = &exchange.pipeline.shared.access.authorizers;
    let attributes = Attributes::from_request(user, &arrival.info, &arrival.query);
    let assumed = impersonation::apply(authorizers, &attributes, &arrival.parts.headers).await?;
    if let Some(assumed) = assumed {
        if let Some(ticket) = &exchange.ticket {
            ticket.impersonates(&assumed.user, assumed.constraint.clone());
        }
        *user = Arc::new(assumed.user);
        // The address is the caller's, not the impersonated user's.
        arrival.peer = None;
    }
    Ok(())
}
