//! The deadline of a request: its `timeout` parameter, bounded by the server's limit.

use std::time::Duration;

use machinery::{Status, duration};

use crate::query::Query;

/// How long a request may take; `most` is the server's limit.
pub(super) fn of_request(most: Duration, query: &Query) -> Result<Duration, Status> {
    let Some(asked) = query.filled("timeout") else {
        return Ok(most);
    };
    let seconds = duration::parse(asked).map_err(|why| {
        Status::bad_request(format!(
            "invalid timeout specified in the request URL - time: {why}"
        ))
    })?;
    let asked = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    Ok(if asked.is_zero() {
        most
    } else {
        asked.min(most)
    })
}
