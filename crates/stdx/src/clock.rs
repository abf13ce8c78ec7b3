//! Time as a dependency: code that depends on time takes a [`Clock`], tests use a [`FakeClock`].
//!
//! A clock has wall time and sleeps. A sleep on a fake clock ends only when the test has advanced
//! the time far enough.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// A future that ends after a delay.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A source of time.
pub trait Clock: Send + Sync + 'static {
    /// The wall time.
    fn now(&self) -> Timestamp;
    /// Waits for `duration` of this clock's time.
    fn sleep(&self, duration: Duration) -> Sleep;
}

/// The machine's own clock.
#[derive(Debug, Default, Clone, Copy)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// A clock that only moves when it is advanced.
#[derive(Clone)]
pub struct FakeClock {
    shared: Arc<Shared>,
}

struct Shared {
    /// Guards the current time.
    now: Mutex<Timestamp>,
    moved: Notify,
}

impl FakeClock {
    /// A clock that shows `now`.
    pub fn at(now: Timestamp) -> Self {
        Self {
            shared: Arc::new(Shared {
                now: Mutex::new(now),
                moved: Notify::new(),
            }),
        }
    }

    /// Advances the time and wakes all due sleeps.
    pub fn advance(&self, by: Duration) {
        *self.shared.now.lock() += by;
        self.shared.moved.notify_waiters();
    }
}

impl Clock for FakeClock {
    fn now(&self) -> Timestamp {
        *self.shared.now.lock()
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        let shared = self.shared.clone();
        let deadline = *shared.now.lock() + duration;
        Box::pin(async move {
            loop {
                let moved = shared.moved.notified();
                tokio::pin!(moved);
                moved.as_mut().enable();
                if *shared.now.lock() >= deadline {
                    return;
                }
                moved.await;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_sleep_on_a_fake_clock_ends_when_time_has_moved_far_enough() {
        let clock = FakeClock::at(Timestamp::UNIX_EPOCH);
        let sleeper = tokio::spawn(clock.sleep(Duration::from_secs(10)));
        clock.advance(Duration::from_secs(9));
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        clock.advance(Duration::from_secs(1));
        sleeper.await.unwrap();
        assert_eq!(clock.now(), Timestamp::UNIX_EPOCH + Duration::from_secs(10));
    }
}
