//! The members of etcd and which of them is used.
//!
//! A hanging member is not left to the timeouts of calls: all members are checked periodically, and
//! at once when a call is slow. Calls to an unresponsive member are then cancelled, and later ones
//! go to a member that answers and knows a leader. While a call is slow, members are also asked for
//! their term at short intervals: see [`Term`].

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::join_all;
use tokio::sync::{Notify, watch};

use super::{client::Client, connect::Member, term::Term};

/// The period of checks. HTTP/2 pings would show as much, but etcd rejects clients that send them
/// more often than every five seconds.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The minimum time between two checks, however many calls are slow.
const REST: Duration = Duration::from_millis(100);
/// The timeout of a check.
pub(super) const ANSWER: Duration = Duration::from_secs(1);

/// The result of a member's last check, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Condition {
    /// It knows a leader.
    Serving,
    /// It answers and knows no leader.
    Leaderless,
    /// It refuses connections, or does not answer while another member does.
    Silent,
}

/// The members of one cluster, shared by all clients of a store.
pub(super) struct Members {
    members: Vec<Member>,
    /// The member that calls go to.
    current: AtomicUsize,
    conditions: watch::Sender<Vec<Condition>>,
    /// A call is slow: check the members.
    doubt: Notify,
    term: Term,
}

impl Members {
    pub(super) fn new(members: Vec<Member>) -> Arc<Self> {
        let conditions = vec![Condition::Serving; members.len()];
        Arc::new(Self {
            term: Term::new(members.len()),
            members,
            current: AtomicUsize::new(0),
            conditions: watch::Sender::new(conditions),
            doubt: Notify::new(),
        })
    }

    pub(super) fn all(&self) -> &[Member] {
        &self.members
    }

    /// Whether there are other members.
    pub(super) fn are_several(&self) -> bool {
        self.members.len() > 1
    }

    /// The member that calls go to.
    pub(super) fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    /// The term of the cluster.
    pub(super) fn term(&self) -> &Term {
        &self.term
    }

    /// A call failed or is slow.
    pub(super) fn doubt(&self) {
        self.doubt.notify_one();
    }

    /// A call to this member failed: later ones use another member, the best of them.
    pub(super) fn leave(&self, index: usize) {
        self.doubt();
        let best = best_other(&self.conditions.borrow(), index);
        self.replace_current(index, best);
    }

    pub(super) fn is_silent(&self, index: usize) -> bool {
        self.conditions.borrow()[index] == Condition::Silent
    }

    /// Resolves when the member is unresponsive.
    pub(super) async fn silence(&self, index: usize) {
        let mut conditions = self.conditions.subscribe();
        let silent = conditions.wait_for(|all| all[index] == Condition::Silent);
        // The sender is our own field.
        let _ = silent.await;
    }

    /// Checks the members periodically. Never returns.
    pub(super) async fn watch_over(&self, client: &Client) {
        if !self.are_several() {
            return std::future::pending().await;
        }
        let terms = (0..self.members.len()).map(|index| self.follow_term(client, index));
        tokio::join!(self.check_regularly(client), join_all(terms));
    }

    /// Asks one member for its term while calls are slow. One that hangs does not delay the others.
    async fn follow_term(&self, client: &Client, index: usize) {
        loop {
            self.term.requested(index).await;
            client.condition(index).await;
            tokio::time::sleep(REST).await;
        }
    }

    async fn check_regularly(&self, client: &Client) {
        loop {
            let doubted = tokio::time::timeout(CHECK_INTERVAL, self.doubt.notified());
            let _ = doubted.await;
            self.probe(client).await;
            tokio::time::sleep(REST).await;
        }
    }

    async fn probe(&self, client: &Client) {
        let indices = 0..self.members.len();
        let now = join_all(indices.map(|index| client.condition(index))).await;
        // If no member answers, the problem is probably ours.
        if now.iter().all(|how| *how == Condition::Silent) {
            return;
        }
        self.conditions.send_if_modified(|known| {
            let is_new = *known != now;
            *known = now;
            is_new
        });
        let conditions = self.conditions.borrow();
        let current = self.current();
        let best = best_other(&conditions, current);
        if conditions[best] < conditions[current] {
            tracing::warn!(
                endpoint = self.members[current].endpoint,
                condition = ?conditions[current],
                next = self.members[best].endpoint,
                "switching to another etcd member"
            );
            self.replace_current(current, best);
        }
    }

    fn replace_current(&self, before: usize, next: usize) {
        let order = Ordering::Relaxed;
        // Another call may have switched already.
        let _ = self.current.compare_exchange(before, next, order, order);
    }
}

/// The member to use instead of this one: the next of those in the best condition.
fn best_other(conditions: &[Condition], index: usize) -> usize {
    let count = conditions.len();
    let others = (1..count).map(|step| (index + step) % count);
    others
        .min_by_key(|other| conditions[*other])
        .unwrap_or(index)
}

#[cfg(test)]
mod tests {
    use super::{Condition::*, *};

    #[test]
    fn the_next_member_is_the_best_of_the_others() {
        for (conditions, from, expected) in [
            (vec![Serving], 0, 0),
            (vec![Serving, Serving, Serving], 0, 1),
            (vec![Serving, Serving, Serving], 2, 0),
            (vec![Serving, Silent, Serving], 0, 2),
            (vec![Serving, Silent, Leaderless], 0, 2),
            (vec![Serving, Silent, Silent], 0, 1),
            (vec![Silent, Leaderless, Serving], 2, 1),
        ] {
            assert_eq!(best_other(&conditions, from), expected, "{conditions:?}");
        }
    }
}
