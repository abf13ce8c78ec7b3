//! Small things the standard library does not have: a clock that tests can drive, backoff with
//! jitter, and a resolver that a static binary can use. Nothing here knows about Kubernetes.

pub mod backoff;
pub mod clock;
pub mod resolve;

pub use backoff::Backoff;
pub use clock::{Clock, FakeClock, SystemClock};
