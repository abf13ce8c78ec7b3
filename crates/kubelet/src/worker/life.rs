//! The states of a pod on this node, and all transitions. A pod never goes back: one that stops is
//! not started again.

use jiff::Timestamp;

use crate::pod::{decide::Stop, status::Failure};

/// The state of a pod.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Life {
    /// Not admitted yet: nothing of it may start.
    Arrived,
    /// Admitted: its containers run as its spec says.
    Active,
    /// Its containers, then its sandbox and its volumes are being stopped.
    Stopping(Ending),
    /// Nothing of it runs or is mounted.
    Stopped(Ending),
}

/// How a pod ends.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Ending {
    pub stop: Stop,
    /// Set if the node failed the pod.
    pub failure: Option<Failure>,
    /// Whether containers were stopped that had not ended by themselves.
    pub forced: bool,
}

/// An event that may change a pod's state.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Change {
    /// The pod was admitted, now or by an earlier kubelet.
    Admitted,
    /// The pod is deleted, gone from its source, or past its deadline: stop it within `grace`
    /// seconds.
    Stop { grace: i64 },
    /// The node rejects or fails the pod.
    Fail { failure: Failure, grace: i64 },
    /// Everything of the pod has ended.
    Ended { grace: i64 },
}

impl Life {
    /// The next state.
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
            // The remaining time never grows.
            (Self::Stopping(mut ending), Change::Stop { grace }) => {
                ending.stop.grace = ending.stop.grace.min(grace);
                Self::Stopping(ending)
            }
            (Self::Stopping(ending), Change::Ended { .. }) => Self::Stopped(ending),
            (Self::Active, Change::Ended { grace }) => Self::Stopped(ending(grace, None, false)),
            // The first reason to end is kept, and an ended pod never changes.
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
    fn an_ended_pod_never_runs_again() {
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
