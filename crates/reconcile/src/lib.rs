//! The parts of controllers: a builder that starts them, a queue that never gives one key to two
//! workers, an event recorder, writes that wait until the writer's own informer has them,
//! conditions, and label selectors over typed objects.

#![forbid(unsafe_code)]

use std::{future::Future, vec::IntoIter};

use futures::stream::{self, Buffered, Collect, Iter, StreamExt};

pub mod builder;
pub mod condition;
pub mod devices;
pub mod election;
mod metrics;
pub mod placement;
pub mod pod_resources;
pub mod queue;
pub mod recorder;
pub mod runner;
pub mod selector;
pub mod storage;
pub mod writer;

pub use builder::{Builder, Starting, Startup, controller_of};
pub use condition::StatusPatch;
pub use metrics::QueueMetrics;
pub use queue::Queue;
pub use recorder::{Kind, Recorder};
pub use runner::{Action, Controller, Key, follow};
pub use selector::Selector;
pub use writer::{Writer, Written};

/// Why a reconciliation failed; it is retried with backoff.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server returned an error or is unreachable.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// An object is invalid.
    #[error("{0}")]
    Invalid(String),
    /// Several operations of a batch failed; this is the first error.
    #[error("{count} failed, the first: {first}")]
    Several {
        /// The number of errors.
        count: usize,
        /// The first error.
        first: Box<Error>,
    },
}

impl Error {
    /// The status code, if the API server answered.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Api(kube::Error::Api(status)) => Some(status.code),
            Self::Several { first, .. } => first.code(),
            _ => None,
        }
    }

    /// Whether the object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// Whether it is a conflict, or the name is in use.
    pub fn is_conflict(&self) -> bool {
        self.code() == Some(409)
    }

    /// The API server's reason, e.g. `AlreadyExists`.
    pub fn reason(&self) -> &str {
        match self {
            Self::Api(kube::Error::Api(status)) => &status.reason,
            Self::Several { first, .. } => first.reason(),
            _ => "",
        }
    }

    /// Whether the object's namespace is being deleted, so that nothing can be created there.
    pub fn is_namespace_terminating(&self) -> bool {
        match self {
            Self::Api(kube::Error::Api(status)) => {
                let causes = status.details.iter().flat_map(|details| &details.causes);
                status.code == 403
                    && (causes
                        .into_iter()
                        .any(|cause| cause.reason == "NamespaceTerminating")
                        || status.message.contains("because it is being terminated"))
            }
            Self::Several { first, .. } => first.is_namespace_terminating(),
            _ => false,
        }
    }
}

/// How many calls of one reconciliation run at once: each takes memory for its request and response.
const CALLS_AT_ONCE: usize = 64;

/// The results of calls of which a bounded number runs at once.
pub type JoinBounded<F> = Collect<Buffered<Iter<IntoIter<F>>>, Vec<<F as Future>::Output>>;

/// Runs these calls, a bounded number at once, and returns their results in order.
pub fn join_bounded<F: Future>(calls: impl IntoIterator<Item = F>) -> JoinBounded<F> {
    let calls: Vec<_> = calls.into_iter().collect();
    stream::iter(calls).buffered(CALLS_AT_ONCE).collect()
}

/// Combines the results of a batch: the first error with the number of errors.
pub fn all(results: Vec<Result<(), Error>>) -> Result<(), Error> {
    let mut errors: Vec<Error> = results.into_iter().filter_map(Result::err).collect();
    match errors.len() {
        0 => Ok(()),
        1 => Err(errors.remove(0)),
        count => Err(Error::Several {
            count,
            first: Box::new(errors.remove(0)),
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn many_calls_run_a_bounded_number_at_once_and_keep_their_order() {
        let (running, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let calls = (0..1000).map(async |number| {
            let now = running.fetch_add(1, Ordering::Relaxed) + 1;
            most.fetch_max(now, Ordering::Relaxed);
            tokio::task::yield_now().await;
            running.fetch_sub(1, Ordering::Relaxed);
            number
        });
        let results = join_bounded(calls).await;
        assert_eq!(results, (0..1000).collect::<Vec<_>>());
        assert_eq!(most.into_inner(), CALLS_AT_ONCE);
    }
}
