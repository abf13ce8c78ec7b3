//! Components as services: each says what it needs, tells when it is ready, and hears one shutdown
//! signal. The supervisor starts them in dependency order, restarts what fails with backoff, catches
//! panics, and drains everything before a deadline. No task of the house runs without an owner here.

#![forbid(unsafe_code)]

mod context;
mod supervisor;

use std::{error::Error, future::Future, pin::Pin, sync::Arc};

pub use context::{Context, Problems};
pub use supervisor::{GraphError, Health, ServiceHealth, State, Supervisor, panics_caught};

/// Why a service stopped. Anything that can be printed; the supervisor logs it and restarts.
pub type Failure = Box<dyn Error + Send + Sync>;

/// What a run of a service ends with. `Ok` before shutdown counts as a failure too: services stay.
pub type Outcome = Result<(), Failure>;

/// A boxed run.
pub type Run = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// A component that runs until shutdown.
pub trait Service: Send + Sync + 'static {
    /// Unique, short, as it appears in logs and in `/readyz`.
    fn name(&self) -> &'static str;

    /// Names of the services that must be ready before this one starts.
    fn after(&self) -> &'static [&'static str] {
        &[]
    }

    /// What it counts, in the text format of OpenMetrics; `/metrics` of the API server shows it.
    fn metrics(&self) -> String {
        String::new()
    }

    /// Runs until `context.shutdown()` resolves. Called again, after a backoff, when it fails.
    /// Must call `context.ready()` once it does its work.
    fn run(self: Arc<Self>, context: Context) -> Run;
}
