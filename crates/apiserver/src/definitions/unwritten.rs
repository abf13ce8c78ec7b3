//! Definitions whose status could not be written, and when to try again. They are not listed in
//! discovery until then. Other definitions do not wait for them.

use std::{collections::BTreeSet, time::Duration};

use machinery::Status;
use stdx::{Backoff, Clock, clock::Sleep};

const RETRY_INITIAL: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// Whether a write may succeed later: the store is unavailable, or overloaded.
pub(super) fn is_passing(status: &Status) -> bool {
    status.code >= 500 || status.code == 429
}

pub(super) struct Unwritten {
    names: BTreeSet<String>,
    backoff: Backoff,
    /// The time of the next attempt; `None` without definitions.
    due: Option<Sleep>,
}

impl Default for Unwritten {
    fn default() -> Self {
        Self {
            names: BTreeSet::new(),
            backoff: Backoff::new(RETRY_INITIAL, RETRY_MAX),
            due: None,
        }
    }
}

impl Unwritten {
    pub(super) fn contains(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.names.remove(name);
    }

    pub(super) fn extend(&mut self, names: Vec<String>) {
        self.names.extend(names);
    }

    /// Sets the time of the next attempt, unless it is already set.
    pub(super) fn schedule(&mut self, clock: &dyn Clock) {
        if self.names.is_empty() {
            self.due = None;
            self.backoff.reset();
        } else if self.due.is_none() {
            self.due = Some(clock.sleep(self.backoff.step()));
        }
    }

    /// Waits for the time of the next attempt, which must then be scheduled again. Never returns
    /// without one. Cancel safe.
    pub(super) async fn due(&mut self) {
        match &mut self.due {
            Some(due) => due.await,
            None => std::future::pending().await,
        }
        self.due = None;
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use stdx::FakeClock;

    use super::*;

    #[test]
    fn a_status_is_written_again_until_it_succeeds() {
        let clock = FakeClock::at("2026-01-01T00:00:00Z".parse().unwrap());
        let mut unwritten = Unwritten::default();
        unwritten.schedule(&clock);
        assert_eq!(unwritten.due().now_or_never(), None);
        unwritten.extend(vec!["gadgets.example.com".into()]);
        for seconds in [2, 3, 5, 10, 20, 36, 36] {
            unwritten.schedule(&clock);
            assert_eq!(unwritten.due().now_or_never(), None);
            // Changes of other definitions do not postpone it.
            clock.advance(Duration::from_secs(seconds) / 2);
            unwritten.schedule(&clock);
            assert_eq!(unwritten.due().now_or_never(), None);
            clock.advance(Duration::from_secs(seconds) / 2);
            assert_eq!(unwritten.due().now_or_never(), Some(()), "{seconds}");
        }
        unwritten.schedule(&clock);
        unwritten.remove("gadgets.example.com");
        unwritten.schedule(&clock);
        clock.advance(RETRY_MAX * 2);
        assert_eq!(unwritten.due().now_or_never(), None);
    }

    #[test]
    fn only_errors_that_pass_are_retried() {
        let status = |code| Status {
            code,
            ..Status::internal("")
        };
        for (code, passes) in [
            (500, true),
            (503, true),
            (429, true),
            (404, false),
            (422, false),
        ] {
            assert_eq!(is_passing(&status(code)), passes, "{code}");
        }
    }
}
