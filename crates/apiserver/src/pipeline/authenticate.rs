//! Authentication: finds the user by the connection's certificate or the request's headers.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use auth::authn;
use futures::future::BoxFuture;
use http::{Response, request::Parts};
use jiff::Timestamp;
use machinery::Status;
use rustls::pki_types::CertificateDer;
use server_metrics::{Access as AccessMetrics, AuthenticationResult};

use super::{
    Caller,
    arrival::{Arrival, Exchange},
    audit,
    caller::shows_certificate_alone,
    shared::Shared,
};
use crate::{Body, User, respond, user};

/// The user who makes a request.
pub(super) async fn authenticate(
    arrival: &Arrival,
    exchange: &Exchange,
) -> Result<Arc<User>, Status> {
    let shared = &exchange.pipeline.shared;
    let asked = Instant::now();
    let known = match cached_user(shared, &arrival.parts, &arrival.caller) {
        Some(user) => Ok(user),
        None => ask(shared, &arrival.parts, &arrival.caller).await,
    };
    count(&shared.metrics.access, &known, asked.elapsed());
    if let (Ok(user), Caller::Connection(connection)) = (&known, &arrival.caller)
        && user.name != user::ANONYMOUS
    {
        connection.sender.note_known();
    }
    known.inspect_err(|status| audit::unauthenticated(arrival, exchange, status))
}

/// The user, if it is known without reading or verifying anything.
fn cached_user(shared: &Shared, parts: &Parts, caller: &Caller) -> Option<Arc<User>> {
    let connection = match caller {
        Caller::Known(known) => return Some(known.user.clone()),
        Caller::Connection(connection) => connection,
    };
    let credentials = connection.credentials(&parts.headers);
    if !credentials.certificates.is_empty() {
        let alone = shows_certificate_alone(&credentials);
        return alone.then(|| connection.verified_user(shared.config.clock.now()))?;
    }
    let mut authenticators = shared.access.authenticators.iter();
    authenticators.find_map(|authenticator| authenticator.at_once(&credentials))
}

/// Calls the authenticators in order. Boxed: the compiler cannot prove the lifetimes otherwise.
fn ask<'a>(
    shared: &'a Shared,
    parts: &'a Parts,
    caller: &'a Caller,
) -> BoxFuture<'a, Result<Arc<User>, Status>> {
    Box::pin(async move {
        let connection = match caller {
            Caller::Known(known) => return Ok(known.user.clone()),
            Caller::Connection(connection) => connection,
        };
        let credentials = connection.credentials(&parts.headers);
        let now = shared.config.clock.now();
        let by_certificate = shows_certificate_alone(&credentials);
        // A later authenticator may still know the caller; but a caller with invalid credentials is not anonymous.
        let mut is_refused = authn::bearer::token(&parts.headers).is_some()
            || authn::bearer::is_malformed(&parts.headers);
        for authenticator in shared.access.authenticators.iter() {
            match authenticator.authenticate(&credentials).await {
                Ok(Some(user)) => {
                    let user = Arc::new(user);
                    if by_certificate {
                        count_expiry(&shared.metrics.access, &connection.certificates, now);
                        connection.remember(now, user.clone());
                    }
                    return Ok(user);
                }
                Ok(None) => {}
                Err(refused) => {
                    tracing::debug!(authenticator = authenticator.name(), %refused, "refused");
                    is_refused = true;
                }
            }
        }
        if is_refused {
            return Err(Status::unauthorized("Unauthorized"));
        }
        let jwt = shared.access.jwt.as_ref();
        if jwt.and_then(|jwt| jwt.admits_anonymous(parts.uri.path())) == Some(false) {
            return Err(Status::unauthorized("Unauthorized"));
        }
        Ok(Arc::new(User::anonymous()))
    })
}

/// Records the remaining lifetime of a certificate.
fn count_expiry(access: &AccessMetrics, certificates: &[CertificateDer<'_>], now: Timestamp) {
    let first = certificates.first();
    let parsed = first.and_then(|der| x509_parser::parse_x509_certificate(der).ok());
    if let Some((_, certificate)) = parsed {
        let end = certificate.validity().not_after.timestamp();
        let left = (end - now.as_second()) as f64;
        access.certificate(left);
    }
}

fn count(access: &AccessMetrics, known: &Result<Arc<User>, Status>, took: Duration) {
    let (result, name) = match known {
        Ok(user) if user.name == user::ANONYMOUS => (AuthenticationResult::Failure, ""),
        Ok(user) => (AuthenticationResult::Success, user.name.as_str()),
        Err(_) => (AuthenticationResult::Error, ""),
    };
    access.authenticated(result, name, took);
}

/// Response stage: warns of an Authorization header that no authenticator reads.
pub(super) fn warn_of_ignored_token(exchange: &mut Exchange, response: &mut Response<Body>) {
    if let Some(warning) = exchange.ignored_token {
        respond::warn_first(response.headers_mut(), warning);
    }
}
