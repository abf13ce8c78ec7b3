//! CRI timestamps: nanoseconds since 1970.

use std::time::{SystemTime, UNIX_EPOCH};

/// Now.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
