//! Services and their supervisor: each service declares its dependencies, reports when it is ready,
//! and gets one shutdown signal. The supervisor starts them in dependency order, restarts failed
//! ones with backoff, catches panics, and drains everything before a deadline. Every task has an
//! owner here.

#![forbid(unsafe_code)]

mod context;
mod supervisor;

use std::{error::Error, future::Future, pin::Pin, sync::Arc};

pub use context::{Context, Problems};
pub use supervisor::{GraphError, Health, ServiceHealth, State, Supervisor, panics_caught};

/// Why a service stopped; the supervisor logs it and restarts the service.
pub type Failure = Box<dyn Error + Send + Sync>;

/// The result of a run. `Ok` before shutdown counts as a failure, too.
pub type Outcome = Result<(), Failure>;

/// A boxed run.
pub type Run = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// A component that runs until shutdown.
pub trait Service: Send + Sync + 'static {
    /// A short, unique name for logs and `/readyz`.
    fn name(&self) -> &'static str;

    /// Names of the services that must be ready before this one starts.
    fn after(&self) -> &'static [&'static str] {
        &[]
    }

    /// Its metrics in the OpenMetrics text format, for `/metrics` of the API server.
    fn metrics(&self) -> String {
        String::new()
    }

    /// Runs until `context.shutdown()` resolves. Called again with backoff if it fails. Must call
    /// `context.ready()` once it works.
    fn run(self: Arc<Self>, context: Context) -> Run;
}
