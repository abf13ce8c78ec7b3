//! Small things the standard library does not have: a clock that tests can drive, backoff with
//! jitter, a resolver that a static binary can use, and the size of a tree on disk. Nothing here knows
//! about Kubernetes.

#![forbid(unsafe_code)]

pub mod backoff;
pub mod clock;
pub mod disk_usage;
pub mod resolve;

pub use backoff::Backoff;
pub use clock::{Clock, FakeClock, SystemClock};
pub use disk_usage::DiskUsage;
