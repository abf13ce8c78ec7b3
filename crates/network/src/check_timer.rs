//! When the owner of a table checks whether another program has changed it. Events must not
//! postpone that: a timer created in each iteration of a loop never fires while events are
//! frequent.

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};

const EVERY: Duration = Duration::from_secs(30);

/// Continues through all events.
#[derive(Debug)]
pub struct CheckTimer(Interval);

impl CheckTimer {
    /// The first check is due after one period.
    pub fn start() -> Self {
        Self::every(EVERY)
    }

    fn every(period: Duration) -> Self {
        let mut interval = interval(period);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        interval.reset();
        Self(interval)
    }

    /// Resolves when the next check is due. Cancel-safe: no time is lost.
    pub async fn due(&mut self) {
        self.0.tick().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn events_do_not_put_a_check_off() {
        let mut check = CheckTimer::every(Duration::from_millis(50));
        let events = async {
            loop {
                tokio::select! {
                    () = tokio::time::sleep(Duration::from_millis(5)) => {}
                    () = check.due() => return,
                }
            }
        };
        let due = tokio::time::timeout(Duration::from_secs(30), events).await;
        assert!(due.is_ok(), "no check while events come");
    }
}
