//! Small things the standard library does not have: a clock that tests can drive, backoff with
//! jitter, a resolver that a static binary can use, the size of a tree on disk, metrics as text, and this program's
//! version. Nothing here knows about Kubernetes' objects.

#![forbid(unsafe_code)]

pub mod backoff;
pub mod clock;
pub mod disk_usage;
pub mod exposition;
pub mod resolve;
pub mod version;

pub use backoff::Backoff;
pub use clock::{Clock, FakeClock, SystemClock};
pub use disk_usage::DiskUsage;
pub use version::Version;
