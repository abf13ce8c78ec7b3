//! Writes the pod's status to the API when it changed, one write at a time, and deletes a
//! terminated pod's object.

use std::{sync::Arc, time::Duration};

use client::Api;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::Value;
use tracing::{debug, warn};

use super::{Worker, actions::Done, is_newer, life::Life, patch::patch};
use crate::pod::spec;

/// The delay after a failed write.
const RETRY: Duration = Duration::from_secs(1);
/// How long the first status of a new pod waits for a better one: most pods run soon, and then one write tells all.
const FIRST: Duration = Duration::from_millis(50);
/// The same while no container has begun and nothing has failed. On a busy node one more write for each pod would delay
/// the starts of all.
const UNBEGUN: Duration = Duration::from_secs(1);
/// How long another writer's change of our status is left alone.
const RECONCILE: Duration = Duration::from_secs(10);

/// The object after a write, and whether the write succeeded.
pub(super) struct Answer {
    pod: Box<Pod>,
    taken: bool,
}

/// The status, and whether the API has it.
pub(super) struct Report {
    status: Arc<PodStatus>,
    /// The last status that the API accepted.
    taken: Option<Arc<PodStatus>>,
    /// The patch of the last accepted status, as text: parsed JSON would take ten times the memory while the pod
    /// exists. An equal patch is not sent again, even if the API dropped some of its fields.
    sent: Option<Box<str>>,
    state: State,
    /// The object and the status between which there was no difference: most evaluations change neither.
    equal: Option<(Arc<Pod>, Arc<PodStatus>)>,
    /// Whether the last write failed: further failures are not logged, since the servers may be away
    /// for hours.
    is_failing: bool,
    /// When the worker of a pod began that no kubelet had begun with; its first status is held.
    begun: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Idle,
    /// A write or the deletion is in flight.
    Busy,
    /// The last write failed.
    Refused {
        until: Timestamp,
    },
    /// Another writer changed what we wrote.
    Overwritten {
        until: Timestamp,
    },
}

impl Report {
    pub(super) fn new(status: PodStatus) -> Self {
        Self {
            status: Arc::new(status),
            taken: None,
            sent: None,
            state: State::Idle,
            equal: None,
            is_failing: false,
            begun: None,
        }
    }

    /// The report of a pod that no kubelet has begun with.
    pub(super) fn of_new_pod(status: PodStatus, now: Timestamp) -> Self {
        Self {
            begun: Some(now),
            ..Self::new(status)
        }
    }

    /// Until when a status is held, if it only says that the pod begins.
    fn held(&self, now: Timestamp) -> Option<Timestamp> {
        let begun = self.begun.filter(|begun| *begun <= now)?;
        if self.status.phase.as_deref() != Some("Pending") {
            return None;
        }
        let until = match is_unbegun(&self.status) {
            true => begun + UNBEGUN,
            false => begun + FIRST,
        };
        (until > now).then_some(until)
    }

    pub(super) fn status(&self) -> &PodStatus {
        &self.status
    }

    pub(super) fn shared(&self) -> Arc<PodStatus> {
        self.status.clone()
    }

    /// Whether the API has accepted the current status.
    pub(super) fn is_taken(&self) -> bool {
        self.taken.as_ref() == Some(&self.status)
    }

    pub(super) fn set_status(&mut self, status: PodStatus) {
        if *self.status != status {
            self.status = Arc::new(status);
        }
    }

    /// The object in the API is another one, which has no status yet.
    pub(super) fn forget_writes(&mut self) {
        self.sent = None;
        self.taken = None;
    }

    /// The difference between the API's status and this one.
    fn difference(&mut self, shown: &Arc<Pod>) -> Option<Value> {
        let is_equal = |(pod, status): &(Arc<Pod>, Arc<PodStatus>)| {
            Arc::ptr_eq(pod, shown) && Arc::ptr_eq(status, &self.status)
        };
        if self.equal.as_ref().is_some_and(is_equal) {
            return None;
        }
        let difference = patch(shown, &self.status);
        self.equal = match &difference {
            None => Some((shown.clone(), self.shared())),
            Some(_) => None,
        };
        difference
    }

    /// The next step for a difference between this status and the API's.
    fn next(&mut self, difference: Option<Value>, may_delete: bool, now: Timestamp) -> Next {
        match self.state {
            State::Busy => return Next::Nothing,
            State::Refused { until } if until > now => return Next::Wait(until),
            _ => {}
        }
        let difference =
            difference.filter(|patch| self.sent.as_deref() != Some(&*text(&patch["status"])));
        let Some(patch) = difference else {
            self.state = State::Idle;
            return if may_delete {
                Next::Delete
            } else {
                Next::Nothing
            };
        };
        // Our status has not changed since it was accepted: leave another writer's change alone for
        // a while.
        if self.taken.as_ref() == Some(&self.status) && !may_delete {
            let until = match self.state {
                State::Overwritten { until } => until,
                _ => now + RECONCILE,
            };
            if until > now {
                self.state = State::Overwritten { until };
                return Next::Wait(until);
            }
        }
        Next::Write(patch)
    }
}

/// Whether all containers wait for their creation.
fn is_unbegun(status: &PodStatus) -> bool {
    let lists = [
        &status.init_container_statuses,
        &status.container_statuses,
        &status.ephemeral_container_statuses,
    ];
    lists.into_iter().flatten().flatten().all(|container| {
        let state = container.state.as_ref();
        let waiting = state.and_then(|state| state.waiting.as_ref());
        waiting.is_some_and(|waiting| {
            let reason = waiting.reason.as_deref();
            matches!(reason, Some("ContainerCreating" | "PodInitializing"))
        })
    })
}

#[derive(Debug, PartialEq)]
enum Next {
    Nothing,
    Wait(Timestamp),
    Write(Value),
    Delete,
}

impl Worker {
    /// Writes the status if the API's differs; deletes the object after the final one. Returns when
    /// to retry.
    pub(super) fn write_status(&mut self, now: Timestamp) -> Option<Timestamp> {
        let shown = self.subject.shown.clone()?;
        if let Some(until) = self.report.held(now) {
            return Some(until);
        }
        let (namespace, name) = (spec::namespace(&shown), spec::name(&shown).to_owned());
        let deleted = self.subject.pod.metadata.deletion_timestamp.is_some();
        let may_delete = deleted && self.subject.wanted && matches!(self.life, Life::Stopped(_));
        let difference = self.report.difference(&shown);
        let api: Api<Pod> = Api::namespaced(self.core.config.client.clone(), namespace);
        match self.report.next(difference, may_delete, now) {
            Next::Nothing => None,
            Next::Wait(until) => Some(until),
            Next::Write(patch) => {
                debug!(pod = self.subject.uid, %patch, "updating pod status");
                self.report.state = State::Busy;
                self.report.sent = Some(text(&patch["status"]));
                self.report.taken = Some(self.report.shared());
                self.work.spawn(write(api, name, patch));
                None
            }
            Next::Delete => {
                self.report.state = State::Busy;
                let uid = spec::uid(&shown).to_owned();
                self.work.spawn(delete(api, name, uid));
                None
            }
        }
    }

    pub(super) fn finish_write(&mut self, outcome: Result<Answer, kube::Error>) {
        let report = &mut self.report;
        report.state = State::Idle;
        if !matches!(outcome, Ok(Answer { taken: true, .. })) {
            report.forget_writes();
        }
        match outcome {
            Ok(Answer { mut pod, .. }) => {
                // If the watch has already delivered a newer version, keep that shared object.
                let shown = self.subject.shown.as_deref();
                if !shown.is_some_and(|shown| is_newer(shown, Some(&pod))) {
                    pod.metadata.managed_fields = None;
                    self.subject.shown = Some((*pod).into());
                }
                report.is_failing = false;
                return;
            }
            // The watch will report the deletion.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) if report.is_failing => {
                debug!(pod = self.subject.uid, %error, "cannot update pod status");
            }
            Err(error) => {
                report.is_failing = true;
                let pod = &self.subject.uid;
                warn!(pod, %error, "cannot update pod status, trying every second");
            }
        }
        let until = self.core.now() + RETRY;
        report.state = State::Refused { until };
    }

    pub(super) fn finish_delete(&mut self, outcome: Result<(), kube::Error>) {
        match outcome {
            Ok(()) => self.subject.wanted = false,
            Err(error) => {
                warn!(pod = self.subject.uid, %error, "cannot delete pod");
                let until = self.core.now() + RETRY;
                self.report.state = State::Refused { until };
            }
        }
    }
}

/// The text of a patch. Patches are serialized from types with a fixed field order, so equal patches have equal text.
fn text(value: &Value) -> Box<str> {
    value.to_string().into()
}

async fn write(api: Api<Pod>, name: String, patch: Value) -> Done {
    let params = PatchParams::default();
    let (outcome, taken) = match api
        .patch_status(&name, &params, &Patch::Strategic(&patch))
        .await
    {
        // Another pod of the same name, or a conflict: read the current object.
        Err(kube::Error::Api(status)) if status.code == 409 => (api.get(&name).await, false),
        other => (other, true),
    };
    Done::Written(outcome.map(|pod| Answer {
        pod: Box::new(pod),
        taken,
    }))
}

async fn delete(api: Api<Pod>, name: String, uid: String) -> Done {
    let params = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions {
            uid: Some(uid),
            resource_version: None,
        }),
        ..Default::default()
    };
    let outcome = match api.delete(&name, &params).await {
        Ok(_) => Ok(()),
        // Already deleted, or another pod of the same name.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        Err(error) => Err(error),
    };
    Done::Deleted(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn patch(phase: &str) -> Option<Value> {
        Some(serde_json::json!({"status": {"phase": phase}}))
    }

    fn taken(report: &mut Report, sent: &Option<Value>) {
        report.taken = Some(report.shared());
        report.sent = sent.as_ref().map(|sent| text(&sent["status"]));
        report.state = State::Idle;
    }

    #[test]
    fn foreign_status_changes_are_overwritten_later_and_own_changes_written_at_once() {
        let mut report = Report::new(PodStatus::default());
        let first = patch("Running");
        assert_eq!(
            report.next(first.clone(), false, at(0)),
            Next::Write(first.clone().unwrap())
        );
        taken(&mut report, &first);
        assert_eq!(report.next(None, false, at(1)), Next::Nothing);
        let back = patch("Pending");
        assert_eq!(report.next(back.clone(), false, at(2)), Next::Wait(at(12)));
        assert_eq!(report.next(back.clone(), false, at(11)), Next::Wait(at(12)));
        assert_eq!(
            report.next(back.clone(), false, at(12)),
            Next::Write(back.clone().unwrap())
        );
        taken(&mut report, &back);
        report.set_status(PodStatus {
            reason: Some("changed".into()),
            ..Default::default()
        });
        let change = patch("Failed");
        assert_eq!(
            report.next(change.clone(), false, at(13)),
            Next::Write(change.unwrap())
        );
    }

    #[test]
    fn the_first_status_waits_for_a_better_one_but_not_for_long() {
        let waiting = |reason: &str| serde_json::json!({"waiting": {"reason": reason}});
        let status = |phase: &str, states: &[Value]| -> PodStatus {
            let container = |state| serde_json::json!({"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state});
            let containers: Vec<Value> = states.iter().map(container).collect();
            let status = serde_json::json!({"phase": phase, "containerStatuses": containers});
            serde_json::from_value(status).unwrap()
        };
        let (begun, creating) = (at(10), waiting("ContainerCreating"));
        let running = serde_json::json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
        let (soon, late) = (begun + FIRST, begun + UNBEGUN);
        for (phase, states, now, expected) in [
            ("Pending", vec![creating.clone()], begun, Some(late)),
            ("Pending", vec![creating.clone()], soon, Some(late)),
            (
                "Pending",
                vec![waiting("PodInitializing")],
                soon,
                Some(late),
            ),
            ("Pending", vec![creating.clone()], late, None),
            // The clock was set back.
            ("Pending", vec![creating.clone()], at(9), None),
            (
                "Pending",
                vec![creating.clone(), running.clone()],
                begun,
                Some(soon),
            ),
            (
                "Pending",
                vec![creating.clone(), running.clone()],
                soon,
                None,
            ),
            ("Pending", vec![waiting("ErrImagePull")], begun, Some(soon)),
            ("Pending", vec![waiting("ErrImagePull")], soon, None),
            ("Running", vec![running], begun, None),
            ("Failed", vec![creating], begun, None),
        ] {
            let mut report = Report::of_new_pod(PodStatus::default(), begun);
            report.set_status(status(phase, &states));
            assert_eq!(report.held(now), expected, "{phase} {states:?} {now}");
        }
        // An earlier kubelet has started this pod: its status is not held.
        assert_eq!(Report::new(status("Pending", &[])).held(begun), None);
    }

    #[test]
    fn a_difference_is_found_again_when_the_object_or_the_status_changes() {
        let mut report = Report::new(PodStatus::default());
        let shown = |phase: &str| {
            let pod = serde_json::json!({"status": {"phase": phase}});
            Arc::new(serde_json::from_value(pod).unwrap())
        };
        let (empty, running) = (Arc::new(Pod::default()), shown("Running"));
        for _ in 0..2 {
            assert_eq!(report.difference(&empty), None);
        }
        assert!(report.difference(&running).is_some());
        assert_eq!(report.difference(&empty), None);
        report.set_status(PodStatus {
            phase: Some("Running".into()),
            ..PodStatus::default()
        });
        assert!(report.difference(&empty).is_some());
        assert_eq!(report.difference(&running), None);
    }

    #[test]
    fn a_new_mirror_gets_the_status_that_the_one_before_it_had() {
        let mut report = Report::new(PodStatus::default());
        let running = patch("Running");
        taken(&mut report, &running);
        assert_eq!(report.next(running.clone(), false, at(0)), Next::Nothing);
        report.forget_writes();
        let next = report.next(running.clone(), false, at(0));
        assert_eq!(next, Next::Write(running.unwrap()));
    }

    #[test]
    fn a_pod_is_deleted_after_its_last_status_and_dropped_fields_are_not_sent_again() {
        let mut report = Report::new(PodStatus::default());
        let dropped = patch("Failed");
        assert!(matches!(
            report.next(dropped.clone(), true, at(0)),
            Next::Write(_)
        ));
        taken(&mut report, &dropped);
        assert_eq!(report.next(dropped, true, at(1)), Next::Delete);
        report.state = State::Refused { until: at(3) };
        assert_eq!(report.next(None, true, at(2)), Next::Wait(at(3)));
        assert_eq!(report.next(None, true, at(3)), Next::Delete);
    }
}
