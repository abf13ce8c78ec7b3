//! The workers by pod: routes messages about a pod to its worker.

use std::{collections::HashMap, sync::Arc};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use crate::{
    pod::{observed::Snapshot, spec},
    probe::ProbeResult,
};

/// A message to a worker.
#[derive(Debug)]
pub enum Message {
    /// The pod was added or changed.
    Pod(Arc<Pod>),
    /// The pod is gone from its source.
    Removed,
    /// The mirror pod of a static pod was added or changed, or is gone.
    Mirror(Option<Arc<Pod>>),
    /// The runtime's state of the pod changed.
    Runtime,
    /// The runtime's state of the pod changed to this.
    Snapshot(Box<Snapshot>),
    /// A ConfigMap or Secret changed.
    Sources,
    /// Resources were freed: a pod that waits for them may fit now, or has got them.
    Room,
    /// A probe's verdict changed.
    Probe(ProbeResult),
    /// The node ends the pod.
    Fail {
        reason: &'static str,
        message: String,
        /// The grace period, if shorter than the pod's.
        grace: Option<i64>,
    },
}

/// What a worker publishes about its pod.
#[derive(Clone)]
pub struct PublishedPod {
    pub pod: Arc<Pod>,
    pub status: Arc<PodStatus>,
    /// Whether a source still has the pod.
    pub is_wanted: bool,
    /// Whether it is ending or has ended.
    pub is_ending: bool,
    /// Nothing of the pod runs or is mounted.
    pub is_stopped: bool,
    /// Whether the API has this status.
    pub is_reported: bool,
}

impl PublishedPod {
    /// A pod whose worker has not published anything yet.
    pub fn new(pod: Arc<Pod>) -> Self {
        let status = Arc::new(pod.status.clone().unwrap_or_default());
        Self {
            pod,
            status,
            is_wanted: true,
            is_ending: false,
            is_stopped: false,
            is_reported: false,
        }
    }
}

struct Entry {
    sender: mpsc::UnboundedSender<Message>,
    /// The published state, for watchers of this pod.
    seen: watch::Sender<PublishedPod>,
    /// Namespace and name, by which it is found. Static pods that give themselves the same uid have several.
    name: (String, String),
}

/// The workers by the uid of their pod.
#[derive(Default)]
struct Entries {
    by_uid: HashMap<String, Entry>,
    /// The uids of the pods of a namespace and a name: more than one while a pod ends and its successor exists.
    by_name: HashMap<(String, String), Vec<String>>,
}

impl Entries {
    fn get(&self, uid: &str) -> Option<&Entry> {
        self.by_uid.get(uid)
    }

    fn insert(&mut self, uid: &str, entry: Entry) {
        self.remove(uid);
        let uids = self.by_name.entry(entry.name.clone()).or_default();
        uids.push(uid.to_owned());
        self.by_uid.insert(uid.to_owned(), entry);
    }

    fn remove(&mut self, uid: &str) {
        let Some(entry) = self.by_uid.remove(uid) else {
            return;
        };
        if let Some(uids) = self.by_name.get_mut(&entry.name) {
            uids.retain(|other| other != uid);
            if uids.is_empty() {
                self.by_name.remove(&entry.name);
            }
        }
    }
}

fn full_name(pod: &Pod) -> (String, String) {
    (spec::namespace(pod).to_owned(), spec::name(pod).to_owned())
}

/// All workers.
#[derive(Clone, Default)]
pub struct Registry {
    /// Guards the maps only; never held across an await.
    entries: Arc<Mutex<Entries>>,
    /// Guards the current static pods, by uid.
    from_files: Arc<Mutex<HashMap<String, Arc<Pod>>>>,
}

impl Registry {
    /// Sends a message to one worker; false if there is none.
    pub fn send(&self, uid: &str, message: Message) -> bool {
        let entries = self.entries.lock();
        entries
            .get(uid)
            .is_some_and(|entry| entry.sender.send(message).is_ok())
    }

    /// Tells every worker that the runtime may have changed.
    pub fn wake_all(&self) {
        for entry in self.entries.lock().by_uid.values() {
            let _ = entry.sender.send(Message::Runtime);
        }
    }

    /// Adds a worker and returns its queue.
    pub fn register(&self, uid: &str, pod: Arc<Pod>) -> mpsc::UnboundedReceiver<Message> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let entry = Entry {
            sender,
            name: full_name(&pod),
            seen: watch::Sender::new(PublishedPod::new(pod)),
        };
        self.entries.lock().insert(uid, entry);
        receiver
    }

    /// The worker has ended.
    pub fn remove(&self, uid: &str) {
        self.entries.lock().remove(uid);
    }

    /// Whether a worker has this pod.
    pub fn contains(&self, uid: &str) -> bool {
        self.entries.lock().by_uid.contains_key(uid)
    }

    /// Publishes a worker's state of its pod.
    pub fn publish(&self, uid: &str, now: PublishedPod) {
        if let Some(entry) = self.entries.lock().get(uid) {
            entry.seen.send_if_modified(|seen| {
                let flags = |seen: &PublishedPod| {
                    let ending = [seen.is_ending, seen.is_stopped];
                    (ending, seen.is_wanted, seen.is_reported)
                };
                let is_new = !Arc::ptr_eq(&seen.pod, &now.pod)
                    || !Arc::ptr_eq(&seen.status, &now.status)
                    || flags(seen) != flags(&now);
                *seen = now;
                is_new
            });
        }
    }

    /// Watches one pod's published state. The channel closes with the worker.
    pub fn follow(&self, uid: &str) -> Option<watch::Receiver<PublishedPod>> {
        let entries = self.entries.lock();
        entries.get(uid).map(|entry| entry.seen.subscribe())
    }

    /// Says which pods files describe now.
    pub fn set_from_files(&self, pods: &[Arc<Pod>]) {
        let by_uid = pods
            .iter()
            .map(|pod| (spec::uid(pod).to_owned(), pod.clone()));
        *self.from_files.lock() = by_uid.collect();
    }

    /// Whether this is the uid of a current static pod.
    pub fn is_from_file(&self, uid: &str) -> bool {
        self.from_files.lock().contains_key(uid)
    }

    /// The static pod that a mirror pod belongs to. Every user who can create pods can set the mirror
    /// annotation, so it is ignored unless the pod has the name and namespace of a static pod with this uid, which may
    /// be ending.
    pub fn mirrored(&self, mirror: &Pod) -> Option<Arc<Pod>> {
        let uid = spec::annotation(mirror, spec::MIRROR_ANNOTATION)?;
        let current = self.from_files.lock().get(uid).cloned();
        let ending = || {
            let entries = self.entries.lock();
            let pod = entries.get(uid)?.seen.borrow().pod.clone();
            spec::is_static(&pod).then_some(pod)
        };
        let shown = current.or_else(ending)?;
        let is_of_name = spec::name(&shown) == spec::name(mirror)
            && spec::namespace(&shown) == spec::namespace(mirror);
        is_of_name.then_some(shown)
    }

    /// All pods.
    pub fn pods(&self) -> Vec<PublishedPod> {
        self.entries
            .lock()
            .by_uid
            .values()
            .map(|entry| entry.seen.borrow().clone())
            .collect()
    }

    /// The pod of this name.
    pub fn find(&self, namespace: &str, name: &str) -> Option<PublishedPod> {
        let entries = self.entries.lock();
        let uids = entries
            .by_name
            .get(&(namespace.to_owned(), name.to_owned()))?;
        let seen = uids.iter().filter_map(|uid| entries.get(uid));
        // A new pod of the same name may exist: prefer the one without a deletion timestamp.
        seen.map(|entry| entry.seen.borrow())
            .min_by_key(|seen| seen.pod.metadata.deletion_timestamp.is_some())
            .map(|seen| seen.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(namespace: &str, name: &str, uid: &str, mirrors: &str) -> Arc<Pod> {
        let annotations = serde_json::json!({spec::MIRROR_ANNOTATION: mirrors});
        let metadata = serde_json::json!({"namespace": namespace, "name": name, "uid": uid, "annotations": annotations});
        Arc::new(serde_json::from_value(serde_json::json!({"metadata": metadata})).unwrap())
    }

    #[test]
    fn pods_are_found_by_name_until_their_worker_ends_and_a_successor_before_one_that_ends() {
        let registry = Registry::default();
        let mut ending = Pod::clone(&pod("ns", "p", "old", ""));
        ending.metadata.deletion_timestamp = serde_json::from_str("\"2026-01-01T00:00:00Z\"").ok();
        let _queues = [
            registry.register("old", Arc::new(ending)),
            registry.register("other", pod("ns2", "p", "other", "")),
        ];
        let found = |namespace: &str, name: &str| {
            let seen = registry.find(namespace, name)?;
            Some(spec::uid(&seen.pod).to_owned())
        };
        assert_eq!(found("ns", "p").as_deref(), Some("old"));
        assert_eq!(found("ns2", "p").as_deref(), Some("other"));
        assert_eq!(found("ns", "q"), None);
        // Registered again, as a static pod that begins again is.
        for _ in 0..2 {
            drop(registry.register("new", pod("ns", "p", "new", "")));
            assert_eq!(found("ns", "p").as_deref(), Some("new"));
        }
        registry.remove("new");
        assert_eq!(found("ns", "p").as_deref(), Some("old"));
        registry.remove("old");
        // Two manifests can give the same uid.
        registry.publish("other", PublishedPod::new(pod("ns2", "q", "other", "")));
        registry.remove("other");
        assert_eq!(found("ns", "p"), None);
        assert!(registry.entries.lock().by_name.is_empty());
    }

    #[test]
    fn a_mirror_shows_only_the_static_pod_of_its_own_name() {
        let registry = Registry::default();
        registry.set_from_files(&[pod("kube-system", "dns-n1", "static", "")]);
        let _of_the_api = registry.register("victim", pod("other", "web", "victim", ""));
        let shown = |mirror: Arc<Pod>| {
            registry
                .mirrored(&mirror)
                .map(|pod| spec::uid(&pod).to_owned())
        };
        let true_one = pod("kube-system", "dns-n1", "m", "static");
        assert_eq!(shown(true_one), Some("static".to_owned()));
        for forged in [
            pod("tenant", "dns-n1", "m", "static"),
            pod("kube-system", "other", "m", "static"),
            pod("other", "web", "m", "victim"),
            pod("kube-system", "dns-n1", "m", ""),
        ] {
            assert_eq!(shown(forged), None);
        }
    }
}
