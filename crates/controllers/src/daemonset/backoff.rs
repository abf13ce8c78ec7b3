//! How long a failed daemon pod stays before it is deleted and created again: one second after the
//! first failure on a node, doubled after every further one, up to fifteen minutes. Otherwise a
//! kubelet that rejects a pod at once would cause an endless loop. Pure.

use std::{collections::HashMap, time::Duration};

use jiff::Timestamp;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(15 * 60);

/// A DaemonSet's uid and generation, and the node.
pub(super) type BackoffKey = (String, i64, String);

/// The delays of all failed daemon pods.
#[derive(Debug, Default)]
pub(super) struct Backoffs {
    delays: HashMap<BackoffKey, (Duration, Timestamp)>,
}

fn passed(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

impl Backoffs {
    /// Starts the next delay; fails with the current one if it is not over.
    pub(super) fn try_next(&mut self, key: BackoffKey, now: Timestamp) -> Result<(), Duration> {
        // Drop old entries: they start from the first delay again.
        self.delays
            .retain(|_, (_, since)| passed(*since, now) <= LONGEST * 2);
        let known = self.delays.get(&key).copied();
        if let Some((delay, since)) = known
            && passed(since, now) < delay
        {
            return Err(delay);
        }
        let next = known.map_or(FIRST, |(delay, _)| (delay * 2).min(LONGEST));
        self.delays.insert(key, (next, now));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::samples::at;

    #[test]
    fn the_delay_doubles_from_a_second_to_a_quarter_of_an_hour_and_is_forgotten_after_two() {
        let mut backoffs = Backoffs::default();
        let key = || ("uid".to_owned(), 1, "n1".to_owned());
        let seconds = Duration::from_secs;
        for (now, expected) in [
            (0, Ok(())),
            (0, Err(seconds(1))),
            (1, Ok(())),
            (2, Err(seconds(2))),
            (3, Ok(())),
            (7, Ok(())),
            (14, Err(seconds(8))),
            (15, Ok(())),
        ] {
            assert_eq!(backoffs.try_next(key(), at(now)), expected, "{now}");
        }
        let mut now = 15;
        for _ in 0..20 {
            now += 900;
            backoffs.try_next(key(), at(now)).unwrap();
        }
        assert_eq!(backoffs.try_next(key(), at(now)), Err(LONGEST));
        assert_eq!(backoffs.try_next(key(), at(now + 1801)), Ok(()));
        assert_eq!(backoffs.try_next(key(), at(now + 1801)), Err(FIRST));
        let other = ("uid".to_owned(), 2, "n1".to_owned());
        assert_eq!(
            backoffs.try_next(other, at(now + 1801)),
            Ok(()),
            "a new generation"
        );
    }
}
