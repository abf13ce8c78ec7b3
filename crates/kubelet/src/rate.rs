//! A token bucket: an average rate with a burst.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A token bucket.
pub(crate) struct Rate {
    per_second: f64,
    burst: f64,
    /// Guards the number of tokens, and when it was updated.
    left: Mutex<(f64, Instant)>,
}

impl Rate {
    /// `None` without a limit.
    pub(crate) fn new(per_second: i32, burst: i32) -> Option<Self> {
        let burst = f64::from(burst);
        (per_second > 0).then(|| Self {
            per_second: f64::from(per_second),
            burst,
            left: Mutex::new((burst, Instant::now())),
        })
    }

    /// Takes a token, if there is one.
    pub(crate) fn take(&self, now: Instant) -> bool {
        let mut left = self.left.lock();
        let since = now.saturating_duration_since(left.1).as_secs_f64();
        *left = ((left.0 + since * self.per_second).min(self.burst), now);
        let may = left.0 >= 1.0;
        if may {
            left.0 -= 1.0;
        }
        may
    }

    /// Waits for a token.
    pub(crate) async fn wait(&self) {
        while !self.take(Instant::now()) {
            tokio::time::sleep(Duration::from_secs_f64(1.0 / self.per_second)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_at_once_and_the_rest_at_the_rate() {
        let rate = Rate::new(5, 3).unwrap();
        let begin = Instant::now();
        let after = |milliseconds: u64| begin + Duration::from_millis(milliseconds);
        for (milliseconds, expected) in [
            // The burst.
            (0, true),
            (0, true),
            (0, true),
            (0, false),
            // One every 200 ms.
            (150, false),
            (250, true),
            (260, false),
            (450, true),
            // A pause saves no more than the burst.
            (3_600_000, true),
            (3_600_000, true),
            (3_600_000, true),
            (3_600_000, false),
            // The clock of another thread may be behind.
            (3_599_000, false),
        ] {
            assert_eq!(rate.take(after(milliseconds)), expected, "{milliseconds}");
        }
    }

    #[test]
    fn zero_is_no_limit() {
        assert!(Rate::new(0, 10).is_none());
        assert!(Rate::new(-1, 10).is_none());
    }
}
