//! The time of the change that a write of endpoints follows: the annotation
//! `endpoints.kubernetes.io/last-change-trigger-time`, from which proxies compute how long the network took. As
//! upstream, a change is a new Service or a pod that became ready or unready. Of several changes between two writes the
//! earliest counts.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::ObjectMeta;
use parking_lot::Mutex;
use reconcile::Key;

use super::pack::Change;
use crate::pods::condition;

const ANNOTATION: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// The times that the last reconciliation of a Service saw.
struct Seen {
    service: Option<Timestamp>,
    /// By the hash of the pod's name, sorted: the last transition of its Ready condition.
    pods: Box<[(u64, Timestamp)]>,
}

impl Seen {
    fn pod(&self, hash: u64) -> Option<Timestamp> {
        let found = self.pods.binary_search_by_key(&hash, |(known, _)| *known);
        found.ok().map(|at| self.pods[at].1)
    }
}

/// The times seen of all Services, by hashes of names: the names of all endpoints would take much memory.
#[derive(Default)]
pub(crate) struct TriggerTimes {
    hasher: RandomState,
    /// Guards the times by Service. A Service is reconciled by one worker at a time.
    seen: Mutex<HashMap<u64, Seen>>,
}

impl TriggerTimes {
    /// The earliest change since the last call for this Service.
    pub(crate) fn observe(
        &self,
        key: &Key,
        service: &Service,
        pods: &[Arc<Pod>],
    ) -> Option<Timestamp> {
        let created = service.metadata.creation_timestamp.as_ref();
        let pods = pods.iter().filter_map(|pod| ready_changed(pod));
        let pods = pods.map(|(name, time)| (self.hasher.hash_one(name), time));
        let mut pods: Box<[_]> = pods.collect();
        pods.sort_unstable();
        let now = Seen {
            service: created.map(|time| time.0),
            pods,
        };
        let key = self.hasher.hash_one(key);
        let mut seen = self.seen.lock();
        let Some(before) = seen.get(&key) else {
            let created = now.service;
            seen.insert(key, now);
            return created;
        };
        let pods = now.pods.iter();
        let pods = pods.filter(|(hash, time)| before.pod(*hash).is_none_or(|old| *time > old));
        let service = now.service.filter(|_| now.service > before.service);
        let earliest = pods.map(|(_, time)| *time).chain(service).min();
        seen.insert(key, now);
        earliest
    }

    /// Forgets a deleted Service.
    pub(crate) fn forget(&self, key: &Key) {
        self.seen.lock().remove(&self.hasher.hash_one(key));
    }
}

fn ready_changed(pod: &Pod) -> Option<(&str, Timestamp)> {
    let changed = condition(pod, "Ready")?.last_transition_time.as_ref()?.0;
    Some((pod.metadata.name.as_deref()?, changed))
}

/// Writes the time into an object's annotations, or removes one of an earlier write.
pub(crate) fn annotate(metadata: &mut ObjectMeta, time: Option<Timestamp>) {
    let annotations = metadata.annotations.get_or_insert_default();
    match time {
        Some(time) => annotations.insert(ANNOTATION.to_owned(), time.to_string()),
        None => annotations.remove(ANNOTATION),
    };
    if annotations.is_empty() {
        metadata.annotations = None;
    }
}

/// Annotates the slices that are written anyway.
pub(super) fn annotate_changes(changes: &mut [Change], time: Option<Timestamp>) {
    for change in changes {
        match change {
            Change::Create(slice) | Change::Update(slice) => annotate(&mut slice.metadata, time),
            Change::Delete(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::{apis::meta::v1::Time, util::intstr::IntOrString};

    use super::*;
    use crate::{endpointslice::view::samples, pods::samples::at};

    fn service(created: i64) -> Service {
        let mut service = samples::service(IntOrString::Int(80));
        service.metadata.creation_timestamp = Some(Time(at(created)));
        service
    }

    fn pod(name: &str, ready_at: i64) -> Arc<Pod> {
        Arc::new(crate::pods::samples::pod(name, Some(ready_at)))
    }

    #[test]
    fn a_new_service_counts_by_its_creation_and_later_the_earliest_new_change() {
        let (times, key) = (TriggerTimes::default(), Key::new("default", "web"));
        let observe = |created: i64, pods: &[Arc<Pod>]| {
            let found = times.observe(&key, &service(created), pods);
            found.map(|time| time.as_second() - at(0).as_second())
        };
        assert_eq!(observe(10, &[pod("a", 12)]), Some(10));
        assert_eq!(observe(10, &[pod("a", 12)]), None, "nothing changed");
        let all = [pod("a", 12), pod("b", 17), pod("c", 15)];
        assert_eq!(observe(10, &all), Some(15));
        assert_eq!(observe(10, &all[..2]), None, "a deleted pod has no time");
        assert_eq!(observe(10, &[pod("a", 20), pod("b", 17)]), Some(20));
        // Deleted and created again between two reconciliations.
        assert_eq!(observe(30, &[]), Some(30));
        times.forget(&key);
        assert_eq!(observe(30, &[pod("a", 40)]), Some(30));
    }

    #[test]
    fn a_write_without_a_trigger_removes_the_old_annotation_and_keeps_others() {
        let mut metadata = ObjectMeta::default();
        annotate(&mut metadata, Some(at(0)));
        let written = metadata.annotations.clone().unwrap();
        assert_eq!(written[ANNOTATION], at(0).to_string());
        annotate(&mut metadata, None);
        assert_eq!(metadata.annotations, None);
        metadata.annotations = Some([("a".to_owned(), "b".to_owned())].into());
        annotate(&mut metadata, Some(at(1)));
        annotate(&mut metadata, None);
        assert_eq!(metadata.annotations.unwrap().len(), 1);
    }
}
