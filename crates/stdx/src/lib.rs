//! Small extensions of the standard library: a clock that tests can control, backoff with jitter,
//! bounded blocking work, a resolver for a static binary, disk usage, metrics as text, percent-encoding,
//! the texts of OS errors, and this program's version. Nothing here knows Kubernetes' objects.

#![forbid(unsafe_code)]

pub mod backoff;
pub mod blocking;
pub mod clock;
pub mod disk_usage;
pub mod exposition;
pub mod os_error;
pub mod percent;
pub mod resolve;
pub mod tree_usage;
pub mod version;

pub use backoff::Backoff;
pub use blocking::Blocking;
pub use clock::{Clock, FakeClock, SystemClock};
pub use disk_usage::DiskUsage;
pub use tree_usage::{Freshness, TreeUsage, Walks};
pub use version::Version;
