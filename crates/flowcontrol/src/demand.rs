//! The seat demand of a priority level: its maximum and time-weighted average.

use std::time::{Duration, Instant};

/// The smoothing factor per adjustment: half of the past is forgotten in five minutes.
const KEPT: f64 = 0.977;

/// The observations since the last adjustment.
#[derive(Debug)]
pub(super) struct Demand {
    begun: Instant,
    last: Instant,
    seats: usize,
    most: usize,
    /// Seats times seconds, and squared seats times seconds.
    sum: f64,
    squares: f64,
}

/// The statistics for the adjustment of limits.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct DemandStats {
    pub(super) most: usize,
    pub(super) average: f64,
    pub(super) deviation: f64,
    pub(super) smoothed: f64,
}

impl Demand {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            begun: now,
            last: now,
            seats: 0,
            most: 0,
            sum: 0.0,
            squares: 0.0,
        }
    }

    /// Records the current demand.
    pub(super) fn record(&mut self, seats: usize, now: Instant) {
        self.pass(now);
        self.seats = seats;
        self.most = self.most.max(seats);
    }

    fn pass(&mut self, now: Instant) {
        // Observations of concurrent requests may arrive out of order.
        let passed = now.saturating_duration_since(self.last).as_secs_f64();
        self.last = self.last.max(now);
        let seats = self.seats as f64;
        self.sum += seats * passed;
        self.squares += seats * seats * passed;
    }

    /// Ends a period and begins the next.
    pub(super) fn take(&mut self, now: Instant, before: &DemandStats) -> DemandStats {
        self.pass(now);
        let lasted = self.last.saturating_duration_since(self.begun);
        let seen = before.after(self.most, self.sum, self.squares, lasted);
        *self = Self {
            seats: self.seats,
            most: self.seats,
            ..Self::new(self.last)
        };
        seen
    }
}

impl DemandStats {
    fn after(&self, most: usize, sum: f64, squares: f64, lasted: Duration) -> Self {
        let lasted = lasted.as_secs_f64();
        if lasted <= 0.0 {
            return Self { most, ..*self };
        }
        let average = sum / lasted;
        let deviation = (squares / lasted - average * average).max(0.0).sqrt();
        let envelope = average + deviation;
        // Rises at once and falls slowly.
        let smoothed = envelope.max(KEPT * self.smoothed + (1.0 - KEPT) * envelope);
        Self {
            most,
            average,
            deviation,
            smoothed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demand_rises_at_once_and_falls_slowly() {
        let begun = Instant::now();
        let at = |seconds: u64| begun + Duration::from_secs(seconds);
        let mut demand = Demand::new(begun);
        demand.record(4, at(0));
        demand.record(0, at(5));
        let first = demand.take(at(10), &DemandStats::default());
        assert_eq!((first.most, first.average, first.deviation), (4, 2.0, 2.0));
        assert_eq!(first.smoothed, 4.0);
        let second = demand.take(at(20), &first);
        assert_eq!((second.most, second.average), (0, 0.0));
        assert_eq!(second.smoothed, KEPT * 4.0);
    }

    #[test]
    fn samples_out_of_order_do_not_change_the_past() {
        let begun = Instant::now();
        let mut demand = Demand::new(begun);
        demand.record(2, begun + Duration::from_secs(2));
        demand.record(1, begun + Duration::from_secs(1));
        let seen = demand.take(begun + Duration::from_secs(4), &DemandStats::default());
        assert_eq!((seen.most, seen.average), (2, 0.5));
    }
}
