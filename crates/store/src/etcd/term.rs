//! The raft term of etcd, by which slow calls notice a new leader.
//!
//! A member forwards a write to the leader that it knows. If that leader hangs, neither this member
//! nor the next leader answers the write: the member returns an error after seven seconds. A term
//! that has grown shows earlier that the write is lost or late. Late, because a leader that
//! continues after a pause forwards what it received to the next leader: the outcome stays unknown.

use std::time::Duration;

use tokio::sync::{Notify, watch};

/// How long a call may take after the election of a new leader. Members answer the calls that they
/// held back without a leader within this time.
const GRACE: Duration = Duration::from_millis(300);

/// How often members are asked.
const INTERVAL: Duration = Duration::from_millis(100);

/// The newest term, and the members to be asked for it.
pub(super) struct Term {
    /// The newest term that a member has reported; 0 before the first report.
    newest: watch::Sender<u64>,
    /// One per member: a call is slow, so ask this member for its term.
    requested: Vec<Notify>,
}

impl Term {
    pub(super) fn new(members: usize) -> Self {
        Self {
            newest: watch::Sender::new(0),
            requested: (0..members).map(|_| Notify::new()).collect(),
        }
    }

    /// The newest known term.
    pub(super) fn newest(&self) -> u64 {
        *self.newest.borrow()
    }

    /// A member has reported its term. It is that of the last entry that the member applied: a
    /// leader of a new term has a quorum.
    pub(super) fn report(&self, term: u64) {
        self.newest.send_if_modified(|newest| {
            let is_newer = term > *newest;
            *newest = term.max(*newest);
            is_newer
        });
    }

    /// Resolves when a member is to be asked.
    pub(super) async fn requested(&self, member: usize) {
        self.requested[member].notified().await;
    }

    /// Resolves when a leader of a later term was elected some time ago. Members are asked for
    /// their terms while this is awaited.
    pub(super) async fn superseded(&self, term: u64) {
        if term == 0 {
            return std::future::pending().await;
        }
        let mut newest = self.newest.subscribe();
        while *newest.borrow_and_update() <= term {
            self.requested.iter().for_each(Notify::notify_one);
            // Either a report, or time to ask again.
            let _ = tokio::time::timeout(INTERVAL, newest.changed()).await;
        }
        tokio::time::sleep(GRACE).await;
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn only_a_later_term_supersedes_a_known_one() {
        let term = Term::new(3);
        term.report(4);
        // Nothing was known when the call was made.
        assert_eq!(term.superseded(0).now_or_never(), None);
        term.report(3);
        assert_eq!(term.newest(), 4, "a late answer changes nothing");
        assert_eq!(term.requested(2).now_or_never(), None);
        assert_eq!(term.superseded(4).now_or_never(), None);
        // Members are asked while a call is slow.
        term.requested(2).await;
        term.report(5);
        term.superseded(4).await;
    }
}
