//! The interval between two probes, counted from the start of the last one.

use std::time::Duration;

/// The first interval for a container that is not ready yet.
const FIRST: Duration = Duration::from_millis(250);

/// The interval of one probe. A container that is not ready yet is probed more often, at growing
/// intervals up to the period, so that it becomes ready soon after it listens.
pub(super) struct Pace {
    period: Duration,
    soon: Option<Duration>,
}

impl Pace {
    pub(super) fn new(period: Duration, awaited: bool) -> Self {
        Self {
            period,
            soon: awaited.then_some(FIRST),
        }
    }

    /// The container is ready: use the period from now on.
    pub(super) fn succeeded(&mut self) {
        self.soon = None;
    }

    /// The time until the next probe.
    pub(super) fn next(&mut self) -> Duration {
        match self.soon {
            Some(soon) if soon < self.period => {
                self.soon = Some(soon * 2);
                soon
            }
            _ => self.period,
        }
    }
}

/// A part of the period that depends on the container id.
pub(super) fn spread(period: Duration, container_id: &str) -> Duration {
    let hash = container_id.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    period.mul_f64(f64::from(hash) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_that_are_found_together_are_probed_at_different_times_of_the_period() {
        let period = Duration::from_secs(10);
        let mut times: Vec<_> = (0..20).map(|n| spread(period, &format!("id{n}"))).collect();
        assert!(times.iter().all(|time| *time <= period));
        times.sort();
        times.dedup();
        assert_eq!(times.len(), 20);
    }

    #[test]
    fn readiness_is_probed_with_growing_delays_until_ready_and_then_periodically() {
        let millis = |pace: &mut Pace| pace.next().as_millis();
        let mut pace = Pace::new(Duration::from_secs(3), true);
        let asked: Vec<_> = (0..6).map(|_| millis(&mut pace)).collect();
        assert_eq!(asked, [250, 500, 1000, 2000, 3000, 3000]);
        let mut pace = Pace::new(Duration::from_secs(3), true);
        assert_eq!(millis(&mut pace), 250);
        pace.succeeded();
        assert_eq!(millis(&mut pace), 3000);
        assert_eq!(millis(&mut Pace::new(Duration::from_secs(3), false)), 3000);
    }
}
