//! How long a Job waits after failures before it creates new pods: ten seconds, doubled after every
//! further failure without a success in between, up to ten minutes. Pure.

use std::{cmp::Reverse, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::pod::{earlier_failures, finished_at};

const FIRST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(600);

/// The failures of a Job since its last success. Kept in memory, since counted pods may be gone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Backoff {
    failures: u32,
    last: Option<Timestamp>,
}

impl Backoff {
    /// Adds pods that have ended since.
    pub(super) fn after(self, succeeded: &[&Arc<Pod>], failed: &[&Arc<Pod>]) -> Self {
        let success = succeeded.iter().map(|pod| finished_at(pod)).max();
        let mut failures: Vec<Timestamp> = failed
            .iter()
            .map(|pod| finished_at(pod))
            .filter(|end| success.is_none_or(|success| *end > success))
            .collect();
        failures.sort_by_key(|end| Reverse(*end));
        let before = if success.is_some() {
            Self::default()
        } else {
            self
        };
        let count = u32::try_from(failures.len()).unwrap_or(u32::MAX);
        Self {
            failures: before.failures.saturating_add(count),
            last: failures.first().copied().or(before.last),
        }
    }

    /// The remaining delay.
    pub(super) fn remaining(self, now: Timestamp) -> Duration {
        let (Some(last), Some(doublings)) = (self.last, self.failures.checked_sub(1)) else {
            return Duration::ZERO;
        };
        let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
        let wait = FIRST.saturating_mul(factor).min(LONGEST);
        Duration::try_from((last + wait).duration_since(now)).unwrap_or_default()
    }
}

/// The remaining delay of a failed pod's index.
pub(super) fn remaining_of_index(failed: &Pod, now: Timestamp) -> Duration {
    let (counted, ignored) = earlier_failures(failed);
    let failures = u32::try_from(counted.saturating_add(ignored)).unwrap_or(0) + 1;
    let last = Some(finished_at(failed));
    Backoff { failures, last }.remaining(now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::samples::{self, at};

    fn ended(second: i64) -> Arc<Pod> {
        let mut pod = samples::pod("p", Some(second));
        let conditions = pod.status.as_mut().unwrap().conditions.as_mut().unwrap();
        conditions[0].status = "False".into();
        Arc::new(pod)
    }

    #[test]
    fn failures_after_the_last_success_count_and_double_the_wait() {
        let known = Backoff {
            failures: 2,
            last: Some(at(50)),
        };
        for (before, succeeded, failed, failures, last) in [
            (Backoff::default(), vec![], vec![], 0, None),
            (Backoff::default(), vec![], vec![10, 30], 2, Some(30)),
            (known, vec![], vec![], 2, Some(50)),
            (known, vec![], vec![60], 3, Some(60)),
            (known, vec![70], vec![], 0, None),
            (known, vec![70], vec![60, 80, 90], 2, Some(90)),
            (known, vec![70], vec![70], 0, None),
        ] {
            let pods =
                |ends: &[i64]| -> Vec<Arc<Pod>> { ends.iter().map(|end| ended(*end)).collect() };
            let (succeeded, failed) = (pods(&succeeded), pods(&failed));
            let (succeeded, failed): (Vec<_>, Vec<_>) =
                (succeeded.iter().collect(), failed.iter().collect());
            let seen = before.after(&succeeded, &failed);
            let last = last.map(at);
            assert_eq!(seen, Backoff { failures, last });
        }
    }

    #[test]
    fn the_wait_doubles_up_to_ten_minutes_and_runs_from_the_last_failure() {
        for (failures, elapsed, expected) in [
            (0, 0, 0),
            (1, 0, 10),
            (1, 4, 6),
            (1, 10, 0),
            (2, 0, 20),
            (3, 0, 40),
            (7, 0, 600),
            (40, 0, 600),
            (40, 700, 0),
        ] {
            let backoff = Backoff {
                failures,
                last: Some(at(100)),
            };
            let seen = backoff.remaining(at(100 + elapsed));
            assert_eq!(seen, Duration::from_secs(expected), "{failures} {elapsed}");
        }
    }
}
