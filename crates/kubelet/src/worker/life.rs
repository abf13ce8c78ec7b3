//! The states of a pod on this node, and the only place where one follows another. A pod never goes
//! back: what stops is not started again.

use jiff::Timestamp;

use crate::pod::{decide::Stop, status::Failure};

/// Where a pod is in its life.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Life {
    /// Not decided about yet: nothing of it may start.
    Arrived,
    /// Its containers run as its spec says.
    Active,
    /// Its containers are being stopped, then its sandbox and its volumes.
    Stopping(Ending),
    /// Nothing of it runs or is mounted any more.
    Stopped(Ending),
}

/// How a pod ends.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Ending {
    pub stop: Stop,
    /// The node ended it.
    pub failure: Option<Failure>,
    /// Its containers did not all end by themselves.
    pub forced: bool,
}

/// What can change a pod's state.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Change {
    /// It may run here, or has begun to before this worker.
    Admitted,
    /// It is deleted, no longer wanted or over: it has this many seconds.
    Stop { grace: i64 },
    /// The node refuses or fails it.
    Fail { failure: Failure, grace: i64 },
    /// Everything of it has ended.
    Ended { grace: i64 },
}

impl Life {
    /// The state that follows.
    pub(super) fn after(self, change: Change, now: Timestamp) -> Self {
        let ending = |grace, failure, forced| Ending {
            stop: Stop { grace, since: now },
            failure,
            forced,
        };
        match (self, change) {
            (Self::Arrived, Change::Admitted) => Self::Active,
            (Self::Arrived | Self::Active, Change::Stop { grace }) => {
                Self::Stopping(ending(grace, None, true))
            }
            (Self::Arrived | Self::Active, Change::Fail { failure, grace }) => {
                Self::Stopping(ending(grace, Some(failure), true))
            }
            // The time that is left only ever gets shorter.
            (Self::Stopping(mut ending), Change::Stop { grace }) => {
                ending.stop.grace = ending.stop.grace.min(grace);
                Self::Stopping(ending)
            }
            (Self::Stopping(ending), Change::Ended { .. }) => Self::Stopped(ending),
            (Self::Active, Change::Ended { grace }) => Self::Stopped(ending(grace, None, false)),
            // What ends keeps the reason that it had first, and what has ended stays so.
            (state, _) => state,
        }
    }

    /// How the pod ends, if it does.
    pub(super) fn ending(&self) -> Option<&Ending> {
        match self {
            Self::Arrived | Self::Active => None,
            Self::Stopping(ending) | Self::Stopped(ending) => Some(ending),
        }
    }

    /// Why the node failed the pod, if it did.
    pub(super) fn failure(&self) -> Option<&Failure> {
        self.ending().and_then(|ending| ending.failure.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn failure(reason: &str) -> Failure {
        Failure {
            reason: reason.into(),
            message: String::new(),
            rejected: false,
        }
    }

    fn live(changes: &[Change]) -> Life {
        let steps = changes.iter().cloned().zip(1..);
        steps.fold(Life::Arrived, |life, (change, second)| {
            life.after(change, at(second))
        })
    }

    #[test]
    fn a_pod_that_stops_gets_less_time_and_never_more_and_keeps_its_first_reason() {
        let life = live(&[
            Change::Admitted,
            Change::Fail {
                failure: failure("Evicted"),
                grace: 9,
            },
            Change::Stop { grace: 30 },
            Change::Fail {
                failure: failure("DeadlineExceeded"),
                grace: 1,
            },
            Change::Stop { grace: 4 },
        ]);
        let Life::Stopping(ending) = &life else {
            panic!("{life:?}")
        };
        assert_eq!(
            ending.stop,
            Stop {
                grace: 4,
                since: at(2)
            }
        );
        assert_eq!(life.failure().map(|f| f.reason.as_str()), Some("Evicted"));
    }

    #[test]
    fn what_has_ended_stays_so() {
        let by_itself = live(&[Change::Admitted, Change::Ended { grace: 30 }]);
        assert!(matches!(&by_itself, Life::Stopped(ending) if !ending.forced));
        let later = [
            Change::Admitted,
            Change::Stop { grace: 1 },
            Change::Ended { grace: 1 },
        ];
        for change in later {
            assert_eq!(by_itself.clone().after(change, at(9)), by_itself);
        }
        let deleted = live(&[Change::Stop { grace: 1 }, Change::Ended { grace: 1 }]);
        assert!(matches!(deleted, Life::Stopped(ending) if ending.forced));
    }

    #[test]
    fn a_pod_that_was_not_admitted_cannot_end_by_itself() {
        assert_eq!(live(&[Change::Ended { grace: 1 }]), Life::Arrived);
    }
}
