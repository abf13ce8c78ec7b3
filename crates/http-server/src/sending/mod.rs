//! Responses being sent, and a bound on their memory.
//!
//! A piece of a response counts against one [`Budget`] from when it is produced until the
//! connection has sent it: queues of HTTP/1.1 and windows of HTTP/2 are included, because the count
//! ends when the piece's memory is freed. The next piece is produced when most of the last one is
//! sent ([`Paced`]), so that a client that does not read costs two pieces, however long its list
//! is.
//!
//! A client that reads nothing for the time given to [`Budget::new`] is cut off: on HTTP/1.1 its
//! connection is closed ([`StallTimeout`]), on HTTP/2 its stream is reset ([`watched`]). When the budget
//! is used up, pieces wait, and clients that have read nothing for a fifteenth of that time are cut
//! off. Streams into containers, logs and proxies are endless and may pause; they are cut off only
//! in the second case.
//!
//! Requests from this process are not counted: they are few and read promptly.

mod body;
mod connection;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::task::AtomicWaker;
use prometheus_client::metrics::counter::Counter;
use tokio::time::Instant;

pub(crate) use self::{
    body::pace,
    connection::{Line, StallTimeout, current_flight, watched},
};

/// The stall time is divided by this while the budget is used up.
const STALL_DIVISOR: u32 = 15;
/// How long the budget counts as used up after a piece had to wait for it.
const SHORTAGE: Duration = Duration::from_secs(5);

/// Bounds the unsent bytes of all responses.
pub struct Budget {
    limit: usize,
    used: AtomicUsize,
    /// How long a client may read nothing.
    stall: Duration,
    epoch: Instant,
    /// When a piece last had to wait for the budget, in milliseconds after the epoch; 0 is never.
    short_at: AtomicU64,
    /// Clients cut off.
    cut: Counter,
}

impl Budget {
    pub fn new(limit: usize, stall: Duration) -> Arc<Self> {
        Arc::new(Self {
            limit,
            used: AtomicUsize::new(0),
            stall,
            epoch: Instant::now(),
            short_at: AtomicU64::new(0),
            cut: Counter::default(),
        })
    }

    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Clients cut off so far.
    pub fn cut(&self) -> &Counter {
        &self.cut
    }

    /// Milliseconds after the epoch, at least 1.
    fn now(&self) -> u64 {
        let passed = self.epoch.elapsed().as_millis();
        u64::try_from(passed).unwrap_or(u64::MAX).max(1)
    }

    /// Counts bytes until the result is dropped, also beyond the limit: for data that exists
    /// already.
    pub fn charge(self: &Arc<Self>, bytes: usize) -> Charge {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        Charge {
            budget: self.clone(),
            bytes,
        }
    }

    /// Whether no further piece should be produced. Callers then wait, so this also records a
    /// shortage.
    fn is_used_up(&self) -> bool {
        let is_used_up = self.used() >= self.limit;
        if is_used_up {
            self.short_at.store(self.now(), Ordering::Relaxed);
        }
        is_used_up
    }

    fn is_short(&self, now: u64) -> bool {
        let short_at = self.short_at.load(Ordering::Relaxed);
        let shortage = SHORTAGE.min(self.stall).as_millis() as u64;
        short_at > 0 && now.saturating_sub(short_at) <= shortage
    }

    /// Whether a client that has read nothing since then is to be cut off.
    fn is_overdue(&self, since: u64, endless: bool) -> bool {
        self.is_overdue_at(self.now(), since, endless)
    }

    fn is_overdue_at(&self, now: u64, since: u64, endless: bool) -> bool {
        let idle = Duration::from_millis(now.saturating_sub(since));
        if self.is_short(now) {
            return idle >= self.stall / STALL_DIVISOR;
        }
        !endless && idle >= self.stall
    }

    /// How often a blocked client is checked.
    fn tick(&self) -> Duration {
        (self.stall / STALL_DIVISOR).max(Duration::from_millis(1))
    }
}

/// Counted bytes; released on drop.
pub struct Charge {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The unsent pieces of one response.
pub(crate) struct Flight {
    budget: Arc<Budget>,
    unsent: AtomicUsize,
    /// When a piece was last added or sent, in the budget's milliseconds.
    moved: AtomicU64,
    /// Whether the response may pause indefinitely.
    endless: AtomicBool,
    /// The task that waits for pieces to be sent.
    task: AtomicWaker,
}

impl Flight {
    pub(crate) fn new(budget: Arc<Budget>) -> Arc<Self> {
        Arc::new(Self {
            budget,
            unsent: AtomicUsize::new(0),
            moved: AtomicU64::new(0),
            endless: AtomicBool::new(false),
            task: AtomicWaker::new(),
        })
    }

    fn unsent(&self) -> usize {
        self.unsent.load(Ordering::Acquire)
    }

    fn is_stalled(&self) -> bool {
        let (since, endless) = (&self.moved, &self.endless);
        let (since, endless) = (
            since.load(Ordering::Relaxed),
            endless.load(Ordering::Relaxed),
        );
        self.unsent() > 0 && self.budget.is_overdue(since, endless)
    }

    /// The same bytes, counted until they are freed.
    fn piece(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        let size = bytes.len();
        if self.unsent.fetch_add(size, Ordering::AcqRel) == 0 {
            self.moved.store(self.budget.now(), Ordering::Relaxed);
        }
        Bytes::from_owner(Piece {
            _charge: self.budget.charge(size),
            flight: self.clone(),
            bytes,
        })
    }
}

/// An unsent piece.
struct Piece {
    bytes: Bytes,
    _charge: Charge,
    flight: Arc<Flight>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let flight = &self.flight;
        flight.moved.store(flight.budget.now(), Ordering::Relaxed);
        flight.unsent.fetch_sub(self.bytes.len(), Ordering::AcqRel);
        flight.task.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_piece_counts_until_its_last_byte_is_freed() {
        let budget = Budget::new(100, Duration::from_secs(30));
        let flight = Flight::new(budget.clone());
        let mut piece = flight.piece(Bytes::from(vec![b'x'; 100]));
        let head = piece.split_to(10);
        drop(piece);
        assert_eq!((budget.used(), flight.unsent()), (100, 100));
        drop(head);
        assert_eq!((budget.used(), flight.unsent()), (0, 0));
    }

    #[tokio::test]
    async fn connections_that_read_nothing_are_closed_and_sooner_when_memory_is_short() {
        let budget = Budget::new(100, Duration::from_secs(30));
        let cut = |now: u64| {
            let overdue = |endless| budget.is_overdue_at(now * 1000, 1000, endless);
            (overdue(false), overdue(true))
        };
        assert_eq!(cut(21), (false, false));
        assert_eq!(cut(31), (true, false), "thirty seconds have passed");
        let much = budget.charge(1000);
        assert!(budget.is_used_up());
        budget.short_at.store(20_000, Ordering::Relaxed);
        assert_eq!(cut(2), (false, false));
        assert_eq!(cut(21), (true, true), "memory is short");
        assert_eq!(cut(26), (false, false), "it no longer is");
        drop(much);
        assert!(!budget.is_used_up());
    }
}
