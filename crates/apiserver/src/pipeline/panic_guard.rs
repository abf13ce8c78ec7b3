//! A panic while serving a request becomes a 500.

use std::{any::Any, future::Future, panic::AssertUnwindSafe};

use futures::FutureExt;
use http::Uri;
use machinery::Status;
use tracing::error;

use super::arrival::{Arrival, Exchange};
use crate::respond::Answer;

/// Catches panics of one request's stages.
pub(super) struct PanicGuard {
    uri: Uri,
}

/// A panic that was caught.
pub(super) struct Panicked {
    uri: Uri,
    payload: Box<dyn Any + Send>,
}

impl PanicGuard {
    pub(super) fn new(arrival: &Arrival) -> Self {
        Self {
            uri: arrival.parts.uri.clone(),
        }
    }

    pub(super) async fn run(self, serve: impl Future<Output = Answer>) -> Result<Answer, Panicked> {
        let answer = AssertUnwindSafe(serve).catch_unwind().await;
        answer.map_err(|payload| Panicked {
            uri: self.uri,
            payload,
        })
    }
}

impl Panicked {
    /// Logs and counts the panic, and ends the audit event with it.
    pub(super) fn answer(self, exchange: &mut Exchange) -> Answer {
        let panic = &*self.payload;
        let message = panic.downcast_ref::<&str>().copied();
        let message = message.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let message = message.unwrap_or("?");
        error!(
            path = self.uri.path(),
            panic = message,
            "request handler panicked"
        );
        exchange.pipeline.shared.metrics.count_panic();
        if let Some(ticket) = exchange.ticket.take() {
            ticket.panicked(message);
        }
        Err(Status::internal(
            "the request made the server panic; see its log",
        ))
    }
}
