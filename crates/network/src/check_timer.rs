//! When the owner of a table looks whether another program has changed it. Events must not put that off: a timer that is made
//! anew in each round of a loop never ends while they come often enough.

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};

const EVERY: Duration = Duration::from_secs(30);

/// Counts through all events.
#[derive(Debug)]
pub struct CheckTimer(Interval);

impl CheckTimer {
    /// The first look is due after the usual time.
    pub fn start() -> Self {
        Self::every(EVERY)
    }

    fn every(period: Duration) -> Self {
        let mut interval = interval(period);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        interval.reset();
        Self(interval)
    }

    /// Resolves when the next look is due. May be dropped and called again: no time is lost.
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
