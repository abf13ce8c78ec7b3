//! Conflict retry. A write whose object changed concurrently starts again from the newest object,
//! as often as needed: a client that set no resourceVersion gets no conflict. To prevent
//! starvation, a write that conflicts for the second time queues for the key. The queue is
//! advisory, not a lock: the store's preconditions decide.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::{Duration, Instant},
};

use machinery::Status;
use store::Key;
use tokio::sync::{Mutex, MutexGuard};

/// The longest wait in the queue: the write ahead may itself wait for a key of ours.
const COURTESY: Duration = Duration::from_secs(1);

/// The key that a concurrent writer changed.
#[derive(Debug)]
pub(crate) struct Lost(pub(super) Key);

/// Key queues, each shared by many keys.
pub(crate) struct Turns([Mutex<()>; 64]);

impl Default for Turns {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }
}

impl Turns {
    fn of(&self, key: &Key) -> &Mutex<()> {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        &self.0[hasher.finish() as usize % self.0.len()]
    }
}

/// The attempts of one write.
pub(crate) struct Race<'a> {
    turns: &'a Turns,
    ends: Instant,
    courtesy: Duration,
    losses: usize,
    turn: Option<MutexGuard<'a, ()>>,
}

impl<'a> Race<'a> {
    pub(super) fn new(turns: &'a Turns, patience: Duration) -> Self {
        Self {
            turns,
            ends: Instant::now() + patience,
            courtesy: COURTESY,
            losses: 0,
            turn: None,
        }
    }

    /// Returns when to retry; fails when the request's deadline has passed.
    pub(super) async fn lost(&mut self, Lost(key): Lost) -> Result<(), Status> {
        if Instant::now() >= self.ends {
            return Err(Status::timeout(
                "request did not complete within requested timeout - context deadline exceeded",
                0,
            ));
        }
        self.losses += 1;
        if self.losses > 1 {
            // Holds one queue at a time.
            self.turn = None;
            let turn = tokio::time::timeout(self.courtesy, self.turns.of(&key).lock()).await;
            self.turn = turn.ok();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(key: &'static str) -> Lost {
        Lost(Key::from_static(key.as_bytes()))
    }

    #[tokio::test]
    async fn writers_that_conflict_twice_take_turns() {
        let turns = Turns::default();
        let patience = Duration::from_secs(60);
        let (mut one, mut other) = (Race::new(&turns, patience), Race::new(&turns, patience));
        for race in [&mut one, &mut other] {
            race.lost(lost("a")).await.unwrap();
            assert!(race.turn.is_none());
        }
        one.lost(lost("a")).await.unwrap();
        let (waits, ended) = (other.lost(lost("a")), async { drop(one) });
        let (waited, ()) = tokio::join!(waits, ended);
        waited.unwrap();
        assert!(other.turn.is_some());
        // A further conflict releases its queue position before it queues again.
        other.lost(lost("a")).await.unwrap();
        assert!(other.turn.is_some());
    }

    #[tokio::test]
    async fn the_wait_in_a_queue_is_bounded() {
        let turns = Turns::default();
        let patience = Duration::from_secs(60);
        let (mut one, mut other) = (Race::new(&turns, patience), Race::new(&turns, patience));
        for race in [&mut one, &mut other] {
            race.courtesy = Duration::from_millis(1);
            race.lost(lost("a")).await.unwrap();
            race.lost(lost("a")).await.unwrap();
        }
        assert!(one.turn.is_some() && other.turn.is_none());
    }

    #[tokio::test]
    async fn a_request_ends_in_its_time() {
        let turns = Turns::default();
        let status = Race::new(&turns, Duration::ZERO).lost(lost("a")).await;
        assert_eq!(status.unwrap_err().code, 504);
    }
}
