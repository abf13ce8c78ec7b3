//! Exponential backoff with jitter.

use std::time::Duration;

use rand::Rng;

/// The delay before the next attempt: doubles up to a cap, with jitter so that many clients do not
/// retry at the same time.
#[derive(Debug, Clone)]
pub struct Backoff {
    initial: Duration,
    cap: Duration,
    jitter: f64,
    next: Duration,
}

impl Backoff {
    /// Starts at `initial`, doubles up to `cap`, and adds up to a fifth at random.
    pub fn new(initial: Duration, cap: Duration) -> Self {
        Self {
            initial,
            cap,
            jitter: 0.2,
            next: initial,
        }
    }

    /// The same without jitter, for delays that users can observe.
    pub fn exact(initial: Duration, cap: Duration) -> Self {
        Self {
            jitter: 0.0,
            ..Self::new(initial, cap)
        }
    }

    /// The next delay.
    pub fn step(&mut self) -> Duration {
        let base = self.next;
        self.next = base.saturating_mul(2).min(self.cap);
        if self.jitter == 0.0 {
            return base;
        }
        base.mul_f64(1.0 + rand::rng().random_range(0.0..self.jitter))
    }

    /// After success: the next delay is the initial one.
    pub fn reset(&mut self) {
        self.next = self.initial;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_cap_and_start_over_after_reset() {
        let mut backoff = Backoff::exact(Duration::from_secs(1), Duration::from_secs(5));
        let seen: Vec<u64> = (0..5).map(|_| backoff.step().as_secs()).collect();
        assert_eq!(seen, [1, 2, 4, 5, 5]);
        backoff.reset();
        assert_eq!(backoff.step(), Duration::from_secs(1));
    }

    #[test]
    fn jitter_never_shortens_and_never_adds_more_than_a_fifth() {
        for _ in 0..1000 {
            let delay = Backoff::new(Duration::from_secs(10), Duration::from_secs(60)).step();
            assert!((10.0..=12.0).contains(&delay.as_secs_f64()), "{delay:?}");
        }
    }
}
