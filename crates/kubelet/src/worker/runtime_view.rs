//! The last known state of a pod in the runtime: a response, updated by later events. The runtime
//! is asked again only if no event shows the effect of a finished task.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::{
    pod::observed::{Observed, Snapshot, State},
    runtime::Ended,
};

/// How long the event of a finished task may take before the runtime is asked.
const EVENT_PATIENCE: Duration = Duration::from_millis(20);

/// The effect of a finished task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Effect {
    /// A sandbox is ready.
    Sandbox { id: String },
    /// The container of this name has started with this restart count.
    Started { name: String, restarts: u32 },
    /// A container has ended.
    Ended { id: String },
}

#[derive(Default)]
pub(super) struct RuntimeView {
    pub(super) observed: Observed,
    pub(super) ended: Ended,
    /// Whether every known change is contained.
    is_current: bool,
    asked_at: Timestamp,
    /// Effects that no event has shown yet.
    expected: Vec<Effect>,
    /// When the last of them was added.
    expected_since: Option<Instant>,
}

impl RuntimeView {
    /// Applies an event's state. One older than the last response is dropped.
    pub(super) fn take(&mut self, snapshot: Snapshot) {
        if self.is_current && snapshot.at > self.asked_at {
            let observed = std::mem::take(&mut self.observed);
            self.observed = observed.with(snapshot);
        } else {
            self.is_current = false;
        }
    }

    /// Stores a response to a request of that time.
    pub(super) fn set(&mut self, observed: Observed, asked_at: Timestamp) {
        self.observed = observed;
        self.asked_at = asked_at;
        self.is_current = true;
        self.expected.clear();
    }

    /// Something unknown has changed.
    pub(super) fn ask_again(&mut self) {
        self.is_current = false;
    }

    /// A task has finished with this effect.
    pub(super) fn expect(&mut self, effect: Effect) {
        self.expected.push(effect);
        self.expected_since = Some(Instant::now());
    }

    /// How long to wait for the event of a task that has just finished, which comes on another way than its result.
    pub(super) fn awaits_event(&mut self) -> Option<Duration> {
        if self.is_current() || !self.is_current {
            return None;
        }
        let since = self.expected_since?;
        EVENT_PATIENCE
            .checked_sub(since.elapsed())
            .filter(|left| !left.is_zero())
    }

    /// Whether all known changes are contained.
    pub(super) fn is_current(&mut self) -> bool {
        let mut expected = std::mem::take(&mut self.expected);
        expected.retain(|effect| !self.shows(effect));
        self.expected = expected;
        self.is_current && self.expected.is_empty()
    }

    fn shows(&self, effect: &Effect) -> bool {
        let observed = &self.observed;
        match effect {
            Effect::Sandbox { id } => {
                let mut sandboxes = observed.sandboxes.iter();
                sandboxes.any(|sandbox| sandbox.id == *id && sandbox.ready)
            }
            Effect::Started { name, restarts } => observed.active(name).is_some_and(|container| {
                container.restart_count == *restarts && container.state != State::Created
            }),
            Effect::Ended { id } => {
                let mut containers = observed.containers.iter();
                containers.any(|c| c.id == *id && c.state == State::Exited)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::observed::{Container, Sandbox};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn snapshot(second: i64, state: Option<State>) -> Snapshot {
        let container = |state| Container {
            id: "c".into(),
            name: "main".into(),
            sandbox_id: "s".into(),
            state,
            ..Container::default()
        };
        Snapshot {
            at: at(second),
            sandbox: Sandbox {
                id: "s".into(),
                ready: true,
                ..Sandbox::default()
            },
            containers: state.map(container).into_iter().collect(),
        }
    }

    #[test]
    fn the_runtime_is_queried_only_when_an_expected_event_is_missing() {
        let effects = [
            (Effect::Sandbox { id: "s".into() }, None),
            (
                Effect::Started {
                    name: "main".into(),
                    restarts: 0,
                },
                Some(State::Running),
            ),
            (Effect::Ended { id: "c".into() }, Some(State::Exited)),
        ];
        for (effect, reported) in effects {
            // The event may come before or after the task has finished.
            for event_first in [true, false] {
                let mut view = RuntimeView::default();
                assert!(!view.is_current(), "never asked");
                view.set(Observed::default(), at(1));
                assert!(view.is_current());
                if event_first {
                    view.take(snapshot(2, reported));
                }
                view.expect(effect.clone());
                assert_eq!(view.is_current(), event_first, "{effect:?}");
                view.take(snapshot(3, reported));
                assert!(view.is_current(), "{effect:?}");
            }
            // Without an event the runtime is asked, and its response counts in any case.
            let mut view = RuntimeView::default();
            view.set(Observed::default(), at(1));
            view.expect(effect.clone());
            assert!(!view.is_current(), "{effect:?}");
            view.set(Observed::default(), at(2));
            assert!(view.is_current());
        }
    }

    #[test]
    fn the_event_of_a_finished_task_is_waited_for_but_not_for_long() {
        let expected = || {
            let mut view = RuntimeView::default();
            assert_eq!(view.awaits_event(), None, "never asked");
            view.set(Observed::default(), at(1));
            assert_eq!(view.awaits_event(), None, "nothing is expected");
            view.expect(Effect::Sandbox { id: "s".into() });
            view
        };
        let mut view = expected();
        assert!(
            view.awaits_event()
                .is_some_and(|wait| wait <= EVENT_PATIENCE)
        );
        view.take(snapshot(2, None));
        assert_eq!(view.awaits_event(), None, "it came");
        let mut view = expected();
        view.expected_since = Some(Instant::now() - EVENT_PATIENCE);
        assert_eq!(view.awaits_event(), None, "it did not come in time");
        let mut view = expected();
        view.ask_again();
        assert_eq!(view.awaits_event(), None, "something else has changed");
    }

    #[test]
    fn old_and_empty_events_lead_to_a_query() {
        let mut view = RuntimeView::default();
        view.set(Observed::default(), at(5));
        view.take(snapshot(4, Some(State::Running)));
        assert!(!view.is_current());
        view.set(Observed::default(), at(6));
        view.ask_again();
        assert!(!view.is_current());
        let restarted = Effect::Started {
            name: "main".into(),
            restarts: 1,
        };
        view.set(Observed::default(), at(7));
        view.take(snapshot(8, Some(State::Running)));
        view.expect(restarted);
        assert!(!view.is_current(), "the one before it is shown");
    }
}
