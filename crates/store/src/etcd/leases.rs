//! Leases for keys with an expiry. Keys written in the same minute share one, because a lease costs
//! etcd much more than a key.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use stdx::Clock;

use super::client::Client;
use crate::Error;

/// The current leases.
#[derive(Default)]
pub(super) struct Leases {
    /// By lifetime in seconds: the lease, and until when keys may join it (milliseconds).
    shared: Mutex<HashMap<i64, (i64, i64)>>,
}

impl Leases {
    /// A lease that lasts at least this long.
    pub(super) async fn lease(
        &self,
        client: &Client,
        clock: &dyn Clock,
        expires_in: Duration,
    ) -> Result<i64, Error> {
        let seconds = i64::try_from(expires_in.as_secs_f64().ceil() as u64).unwrap_or(i64::MAX);
        let now = clock.now().as_millisecond();
        let known = self.shared.lock().get(&seconds).copied();
        if let Some((lease, _)) = known.filter(|(_, until)| now < *until) {
            return Ok(lease);
        }
        let joining = (seconds / 20).min(60);
        let lease = client.grant(seconds.saturating_add(joining)).await?;
        self.shared
            .lock()
            .insert(seconds, (lease, now + joining * 1000));
        Ok(lease)
    }
}
