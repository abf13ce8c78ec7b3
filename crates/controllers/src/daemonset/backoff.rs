//! How long a failed daemon stays before it is deleted and made again: one second after the first
//! failure on a node, twice as long after every further one, up to fifteen minutes. A kubelet that
//! refuses a pod at once would otherwise be asked again without end. Pure.

use std::{collections::HashMap, time::Duration};

use jiff::Timestamp;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(15 * 60);

/// A DaemonSet's uid, the generation it was at, and the node.
pub(super) type BackoffKey = (String, i64, String);

/// The delays of all daemons that have failed.
#[derive(Debug, Default)]
pub(super) struct Backoffs {
    delays: HashMap<BackoffKey, (Duration, Timestamp)>,
}

fn passed(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

impl Backoffs {
    /// Begins a new delay and says so, or says how long the last one is that is not over yet.
    pub(super) fn try_next(&mut self, key: BackoffKey, now: Timestamp) -> Result<(), Duration> {
        // Long without a failure: begin anew. Nobody asks about others again.
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
