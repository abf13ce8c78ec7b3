//! Small things the standard library does not have: a clock that tests can drive, and backoff with
//! jitter. Nothing here knows about Kubernetes.

pub mod backoff;
pub mod clock;

pub use backoff::Backoff;
pub use clock::{Clock, FakeClock, SystemClock};
