//! The pods that wait for a node: ready to be tried, waiting out a backoff, or waiting for a change
//! that could help. Pure: whoever calls says what time it is.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;

use crate::{
    plugins::{ALL, Change},
    pod::PodInfo,
};

const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const LAST_BACKOFF: Duration = Duration::from_secs(10);
/// A pod that nothing has helped is tried again after this long all the same.
const LEFTOVER: Duration = Duration::from_secs(300);

/// A pod and what is known of its tries.
#[derive(Debug, Clone)]
pub struct Waiting {
    /// The pod.
    pub pod: Arc<PodInfo>,
    /// How often it was tried.
    pub attempts: u32,
    /// The plugins that turned it away last time.
    pub rejected_by: Vec<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Active,
    Backoff(Instant),
    /// Since when, and until when it may not be tried even if something helps.
    Unschedulable(Instant, Instant),
    Gated,
}

type Rank = (Reverse<i32>, Timestamp, String);

/// All waiting pods.
#[derive(Default)]
pub struct Queue {
    pods: HashMap<String, (Waiting, Place)>,
    active: BTreeSet<Rank>,
    backoff: BTreeSet<(Instant, String)>,
    /// The uids of those that wait for a change, since when: few, and looked through often.
    unschedulable: BTreeSet<(Instant, String)>,
}

fn rank(pod: &PodInfo) -> Rank {
    (Reverse(pod.priority), pod.created, pod.uid.clone())
}

fn is_gated(pod: &PodInfo) -> bool {
    pod.spec()
        .scheduling_gates
        .as_ref()
        .is_some_and(|gates| !gates.is_empty())
}

fn backoff(attempts: u32) -> Duration {
    let factor = 1u32
        .checked_shl(attempts.saturating_sub(1))
        .unwrap_or(u32::MAX);
    FIRST_BACKOFF.saturating_mul(factor).min(LAST_BACKOFF)
}

impl Queue {
    /// Takes a new pod in, or a pod's newest version: one that changed may fit now.
    pub fn put(&mut self, pod: Arc<PodInfo>, now: Instant) {
        let gated = is_gated(&pod);
        let Some((mut waiting, place)) = self.take(&pod.uid) else {
            let waiting = Waiting {
                pod,
                attempts: 0,
                rejected_by: Vec::new(),
            };
            return self.place(waiting, if gated { Place::Gated } else { Place::Active });
        };
        let changed = waiting.pod.pod.spec != pod.pod.spec || waiting.pod.labels() != pod.labels();
        waiting.pod = pod;
        let place = match place {
            _ if gated => Place::Gated,
            Place::Gated => Place::Active,
            Place::Unschedulable(_, until) if changed => resume(until, now),
            other => other,
        };
        self.place(waiting, place);
    }

    /// Forgets a pod.
    pub fn remove(&mut self, uid: &str) {
        self.take(uid);
    }

    /// Whether the pod waits here.
    pub fn contains(&self, uid: &str) -> bool {
        self.pods.contains_key(uid)
    }

    /// The next pod to try, out of the queue: it comes back with [`Queue::retry`] or
    /// [`Queue::turned_away`].
    pub fn pop(&mut self, now: Instant) -> Option<Waiting> {
        self.flush(now);
        let (_, _, uid) = self.active.first().cloned()?;
        let (mut waiting, _) = self.take(&uid)?;
        waiting.attempts += 1;
        Some(waiting)
    }

    /// A try that failed for a reason that has nothing to do with the cluster.
    pub fn retry(&mut self, waiting: Waiting, now: Instant) {
        let until = now + backoff(waiting.attempts);
        self.place(waiting, Place::Backoff(until));
    }

    /// A try that found no node, turned away by these plugins.
    pub fn turned_away(&mut self, mut waiting: Waiting, by: Vec<&'static str>, now: Instant) {
        waiting.rejected_by = by;
        let until = now + backoff(waiting.attempts);
        self.place(waiting, Place::Unschedulable(now, until));
    }

    /// Something happened: the pods that it could help are tried again.
    pub fn changed(&mut self, change: Change, now: Instant) {
        let helped = |waiting: &Waiting| {
            let by = &waiting.rejected_by;
            by.is_empty()
                || ALL
                    .iter()
                    .any(|p| by.contains(&p.name()) && p.helped_by(change))
        };
        let found = self
            .unschedulable
            .iter()
            .filter_map(|(_, uid)| match self.pods.get(uid)? {
                (waiting, Place::Unschedulable(_, until)) if helped(waiting) => {
                    Some((uid.clone(), *until))
                }
                _ => None,
            });
        for (uid, until) in found.collect::<Vec<_>>() {
            self.move_to(&uid, resume(until, now));
        }
    }

    /// When there will be something to do without any change.
    pub fn due(&self) -> Option<Instant> {
        let leftover = self
            .unschedulable
            .first()
            .map(|(since, _)| *since + LEFTOVER);
        leftover
            .into_iter()
            .chain(self.backoff.first().map(|(due, _)| *due))
            .min()
    }

    /// How many pods wait, and how many of them could be tried now.
    pub fn depth(&self) -> (usize, usize) {
        (self.pods.len(), self.active.len())
    }

    fn flush(&mut self, now: Instant) {
        while let Some((due, uid)) = self.backoff.first().cloned() {
            if due > now {
                break;
            }
            self.move_to(&uid, Place::Active);
        }
        while let Some((since, uid)) = self.unschedulable.first().cloned() {
            if since + LEFTOVER > now {
                break;
            }
            self.move_to(&uid, Place::Active);
        }
    }

    fn move_to(&mut self, uid: &str, place: Place) {
        if let Some((waiting, _)) = self.take(uid) {
            self.place(waiting, place);
        }
    }

    fn take(&mut self, uid: &str) -> Option<(Waiting, Place)> {
        let (waiting, place) = self.pods.remove(uid)?;
        match place {
            Place::Active => {
                self.active.remove(&rank(&waiting.pod));
            }
            Place::Backoff(until) => {
                self.backoff.remove(&(until, uid.to_owned()));
            }
            Place::Unschedulable(since, _) => {
                self.unschedulable.remove(&(since, uid.to_owned()));
            }
            Place::Gated => {}
        }
        Some((waiting, place))
    }

    fn place(&mut self, waiting: Waiting, place: Place) {
        let uid = waiting.pod.uid.clone();
        match place {
            Place::Active => {
                self.active.insert(rank(&waiting.pod));
            }
            Place::Backoff(until) => {
                self.backoff.insert((until, uid.clone()));
            }
            Place::Unschedulable(since, _) => {
                self.unschedulable.insert((since, uid.clone()));
            }
            Place::Gated => {}
        }
        self.pods.insert(uid, (waiting, place));
    }
}

fn resume(until: Instant, now: Instant) -> Place {
    if until <= now {
        Place::Active
    } else {
        Place::Backoff(until)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodSchedulingGate;

    use super::*;
    use crate::samples;

    fn name(waiting: Option<Waiting>) -> String {
        waiting.map_or("nobody".into(), |waiting| waiting.pod.name.clone())
    }

    fn prioritised(name: &str, priority: i32) -> Arc<PodInfo> {
        samples::pod_with(name, |spec| spec.priority = Some(priority))
    }

    #[test]
    fn more_important_pods_are_tried_first() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.put(prioritised("low", 0), now);
        queue.put(prioritised("high", 100), now);
        assert_eq!(name(queue.pop(now)), "high");
        assert_eq!(name(queue.pop(now)), "low");
        assert_eq!(name(queue.pop(now)), "nobody");
    }

    #[test]
    fn a_pod_that_was_turned_away_waits_for_a_change_that_could_help() {
        let (mut queue, start) = (Queue::default(), Instant::now());
        queue.put(prioritised("a", 0), start);
        let waiting = queue.pop(start).unwrap();
        queue.turned_away(waiting, vec!["NodeResourcesFit"], start);
        let later = start + Duration::from_secs(2);
        queue.changed(Change::NodeTaints, later);
        assert_eq!(
            name(queue.pop(later)),
            "nobody",
            "taints do not make a node larger"
        );
        queue.changed(Change::PodGone, later);
        assert_eq!(name(queue.pop(later)), "a");
    }

    #[test]
    fn help_that_comes_at_once_waits_for_the_backoff() {
        let (mut queue, start) = (Queue::default(), Instant::now());
        queue.put(prioritised("a", 0), start);
        let waiting = queue.pop(start).unwrap();
        queue.turned_away(waiting, vec!["NodeResourcesFit"], start);
        queue.changed(Change::PodGone, start);
        assert_eq!(name(queue.pop(start)), "nobody");
        assert_eq!(queue.due(), Some(start + FIRST_BACKOFF));
        assert_eq!(name(queue.pop(start + FIRST_BACKOFF)), "a");
    }

    #[test]
    fn a_gated_pod_is_not_tried_until_its_gates_are_gone() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let gate = PodSchedulingGate {
            name: "wait".into(),
        };
        queue.put(
            samples::pod_with("a", |spec| spec.scheduling_gates = Some(vec![gate])),
            now,
        );
        assert_eq!(name(queue.pop(now)), "nobody");
        queue.put(samples::pod_with("a", |_| {}), now);
        assert_eq!(name(queue.pop(now)), "a");
    }

    #[test]
    fn what_nothing_helps_is_tried_again_after_five_minutes() {
        let (mut queue, start) = (Queue::default(), Instant::now());
        queue.put(prioritised("a", 0), start);
        let waiting = queue.pop(start).unwrap();
        queue.turned_away(waiting, vec!["NodeName"], start);
        assert_eq!(queue.due(), Some(start + LEFTOVER));
        assert_eq!(name(queue.pop(start + LEFTOVER)), "a");
    }
}
