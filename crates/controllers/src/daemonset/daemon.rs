//! A daemon pod by its facts: a set may have one on each of thousands of nodes, and only few are decoded.

use std::time::Duration;

#[cfg(test)]
use std::sync::Arc;

use client::{Informer, informer::Labelled};
use jiff::Timestamp;
use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Pod};

use super::pod;
use crate::{history, members::Member};

#[derive(Clone)]
pub(super) struct Daemon {
    member: Member,
    /// The node that the affinity of an unscheduled pod selects.
    waits_for: Option<Box<str>>,
}

impl Daemon {
    /// Decodes the pod only if it is not scheduled.
    pub(super) fn new(pods: &Informer<Pod>, member: Member) -> Self {
        let is_scheduled = !member.facts().node().is_empty();
        let waits_for = (!is_scheduled).then(|| pods.read_entry(member.entry()));
        let waits_for = waits_for.and_then(|pod| pod::target(&pod).map(Box::from));
        Self { member, waits_for }
    }

    #[cfg(test)]
    pub(super) fn detached(pod: Arc<Pod>) -> Self {
        let waits_for = pod::target(&pod).map(Box::from);
        let member = Member::detached(pod);
        Self { member, waits_for }
    }

    pub(super) fn member(&self) -> &Member {
        &self.member
    }

    pub(super) fn name(&self) -> &str {
        self.member.entry().name()
    }

    pub(super) fn namespace(&self) -> &str {
        self.member.entry().namespace()
    }

    /// Whether it is scheduled to a node.
    pub(super) fn is_scheduled(&self) -> bool {
        !self.member.facts().node().is_empty()
    }

    /// The node of the pod: bound to it, or selected by its affinity.
    pub(super) fn target(&self) -> Option<&str> {
        let node = Some(self.member.facts().node()).filter(|node| !node.is_empty());
        node.or(self.waits_for.as_deref())
    }

    pub(super) fn created(&self) -> Option<Timestamp> {
        self.member.facts().created()
    }

    pub(super) fn is_deleting(&self) -> bool {
        self.member.facts().is_deleting()
    }

    /// Whether its containers have ended for good, and failed.
    pub(super) fn has_failed(&self) -> bool {
        self.member.facts().has_failed()
    }

    /// Whether its containers have ended for good, without failure.
    pub(super) fn has_succeeded(&self) -> bool {
        self.member.facts().is_terminal() && !self.has_failed()
    }

    pub(super) fn is_ready(&self) -> bool {
        self.member.facts().is_ready()
    }

    /// How long until it has been ready for `min_ready_seconds`; `None` if it is not ready.
    pub(super) fn available_in(&self, min_ready_seconds: i32, now: Timestamp) -> Option<Duration> {
        self.member.facts().available_in(min_ready_seconds, now)
    }

    /// The hash of its revision.
    pub(super) fn hash(&self) -> Option<&str> {
        self.member.entry().label(history::HASH)
    }

    /// Whether it is of the newest template.
    pub(super) fn is_current(&self, set: &DaemonSet, newest: &str) -> bool {
        pod::is_current(set, newest, |key| self.member.entry().label(key))
    }
}
