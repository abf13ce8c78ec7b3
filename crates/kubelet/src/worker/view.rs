//! The runtime's state as decisions see it, and as the status shows it.

use std::{borrow::Cow, time::Duration};

use jiff::Timestamp;

use super::Worker;
use crate::pod::{
    observed::{Observed, State},
    spec,
};

/// How long a container that is replaced at once is shown in its old state.
const REPLACEMENT: Duration = Duration::from_secs(2);

impl Worker {
    /// A container does not count as running before its postStart hook has ended.
    pub(super) fn observed_for_decision(&self) -> Cow<'_, Observed> {
        let mut seen = Cow::Borrowed(&self.runtime.observed);
        if self.life.ending().is_some() {
            return seen;
        }
        for (index, container) in self.runtime.observed.containers.iter().enumerate() {
            let hooked = || {
                let found = spec::find(&self.subject.pod, &container.name);
                found.is_some_and(|(_, container)| spec::has_post_start(&container))
            };
            if container.state == State::Running
                && self.memory.is_starting(&container.name)
                && hooked()
            {
                seen.to_mut().containers[index].state = State::Created;
            }
        }
        seen
    }

    /// Also shows a container that was killed in order to restart in its old state until the next
    /// one runs, so that endpoints are not removed for a moment.
    pub(super) fn observed_for_users(&self, now: Timestamp) -> Cow<'_, Observed> {
        let mut seen = self.observed_for_decision();
        if self.life.ending().is_some() {
            return seen;
        }
        for (name, replaced) in &self.memory.replaced {
            if replaced.shown_until.is_some_and(|until| now < until) {
                let containers = &mut seen.to_mut().containers;
                let Some(place) = containers.iter().position(|c| c.id == replaced.was.id) else {
                    continue;
                };
                containers[place] = replaced.was.clone();
                // Omit the new container, which was created but does not run yet.
                let mut index = 0;
                containers.retain(|container| {
                    index += 1;
                    container.name != *name || index > place
                });
            }
        }
        seen
    }

    /// Tracks containers that were killed in order to restart; returns when the status shows that
    /// one is missing.
    pub(super) fn keep_replaced(&mut self, now: Timestamp) -> Option<Timestamp> {
        let observed = &self.runtime.observed;
        self.memory.reset.retain(|name, was| {
            let next = observed.latest(name).filter(|next| next.id != *was);
            next.is_none_or(|next| next.state == State::Created)
        });
        let starting = &self.memory.running;
        self.memory.replaced.retain(|name, replaced| {
            let latest = observed.latest(name);
            match latest {
                Some(latest) if latest.id == replaced.was.id => {
                    if latest.state == State::Exited {
                        replaced.shown_until.get_or_insert(now + REPLACEMENT);
                    }
                    true
                }
                Some(next) => {
                    let begins = crate::pod::memory::Task::Start(name.clone());
                    next.state == State::Created && starting.contains_key(&begins)
                }
                None => false,
            }
        });
        let times = self.memory.replaced.values();
        times.filter_map(|replaced| replaced.shown_until).min()
    }
}
