//! The queue of changes between an informer and one subscriber. A subscriber that is slow gets the
//! changes of one object merged: what waits is bounded by the number of objects, not by how often
//! they change.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use kube::Resource;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{Event, cache::key};

/// Up to this many changes wait as they came; then changes of the same object are merged.
const MERGE_AT: usize = 4096;

struct State<K> {
    events: VecDeque<Event<K>>,
    /// The length at which changes are merged next; twice what the last merge left, at least.
    merge_at: usize,
    closed: bool,
}

struct Buffer<K> {
    /// Guards the changes that wait; never held over an await.
    state: Mutex<State<K>>,
    changed: Notify,
}

/// The informer's end; dropping it ends the subscription.
pub(super) struct Sender<K>(Arc<Buffer<K>>);

/// A queue of changes. Nothing is lost between the subscription and the last `next`: an object that
/// changes again and again before it is read may be seen with its last state only, and one that came
/// and went meanwhile not at all.
pub struct Subscription<K>(Arc<Buffer<K>>);

pub(super) fn channel<K>() -> (Sender<K>, Subscription<K>) {
    let state = State {
        events: VecDeque::new(),
        merge_at: MERGE_AT,
        closed: false,
    };
    let buffer = Arc::new(Buffer {
        state: Mutex::new(state),
        changed: Notify::new(),
    });
    (Sender(buffer.clone()), Subscription(buffer))
}

impl<K: Resource> Sender<K> {
    /// Whether the subscriber still listens.
    pub(super) fn send(&self, event: Event<K>) -> bool {
        if Arc::strong_count(&self.0) == 1 {
            return false;
        }
        let mut state = self.0.state.lock();
        state.events.push_back(event);
        if state.events.len() >= state.merge_at {
            let events = std::mem::take(&mut state.events);
            state.events = merged(events);
            state.merge_at = MERGE_AT.max(2 * state.events.len());
        }
        drop(state);
        self.0.changed.notify_one();
        true
    }
}

impl<K> Drop for Sender<K> {
    fn drop(&mut self) {
        self.0.state.lock().closed = true;
        self.0.changed.notify_one();
    }
}

impl<K> Subscription<K> {
    /// The next change; `None` when the informer is gone.
    pub async fn next(&mut self) -> Option<Event<K>> {
        loop {
            let changed = self.0.changed.notified();
            {
                let mut state = self.0.state.lock();
                if let Some(event) = state.events.pop_front() {
                    return Some(event);
                }
                if state.closed {
                    return None;
                }
            }
            changed.await;
        }
    }

    /// The next change if one waits already.
    pub fn try_next(&mut self) -> Option<Event<K>> {
        self.0.state.lock().events.pop_front()
    }
}

/// At most one change for each object, at the place of its first one.
fn merged<K: Resource>(events: VecDeque<Event<K>>) -> VecDeque<Event<K>> {
    let mut places: HashMap<_, usize> = HashMap::new();
    let mut merged: Vec<Option<Event<K>>> = Vec::new();
    for event in events {
        let object = event.object();
        // An object that was made anew is another one.
        let identity = (key(&**object), object.meta().uid.clone());
        let place = places.get(&identity).copied();
        let before = place.and_then(|place| merged[place].take());
        let (Some(place), Some(before)) = (place, before) else {
            places.insert(identity, merged.len());
            merged.push(Some(event));
            continue;
        };
        merged[place] = match (before, event) {
            (Event::Added(_), Event::Deleted(_)) => None,
            (Event::Added(_), Event::Modified { new, .. }) => Some(Event::Added(new)),
            (Event::Modified { old, .. }, Event::Modified { new, .. } | Event::Added(new)) => {
                Some(Event::Modified { old, new })
            }
            (_, event) => Some(event),
        };
    }
    merged.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::api::ObjectMeta;

    use super::*;

    fn object(name: &str, version: u32) -> Arc<ConfigMap> {
        Arc::new(ConfigMap {
            metadata: ObjectMeta {
                name: Some(name.into()),
                uid: Some(name.into()),
                resource_version: Some(version.to_string()),
                ..Default::default()
            },
            ..Default::default()
        })
    }

    fn change(name: &str, version: u32) -> Event<ConfigMap> {
        Event::Modified {
            old: object(name, version - 1),
            new: object(name, version),
        }
    }

    fn show(event: &Event<ConfigMap>) -> String {
        let show = |map: &ConfigMap| {
            let meta = &map.metadata;
            let (name, version) = (meta.name.as_deref(), meta.resource_version.as_deref());
            format!("{}{}", name.unwrap(), version.unwrap())
        };
        match event {
            Event::Added(new) => format!("+{}", show(new)),
            Event::Modified { old, new } => format!("{}→{}", show(old), show(new)),
            Event::Deleted(old) => format!("-{}", show(old)),
        }
    }

    #[test]
    fn changes_of_one_object_are_merged_in_order() {
        let events = [
            change("a", 2),
            Event::Added(object("b", 1)),
            Event::Added(object("c", 1)),
            change("a", 3),
            change("b", 2),
            Event::Deleted(object("c", 2)),
            change("d", 5),
            Event::Deleted(object("d", 6)),
        ];
        let merged = merged(events.into());
        let shown: Vec<_> = merged.iter().map(show).collect();
        assert_eq!(shown, ["a1→a3", "+b2", "-d6"]);
    }

    #[test]
    fn a_slow_subscriber_holds_as_many_changes_as_there_are_objects() {
        let (sender, mut subscription) = channel();
        for version in 2..100_000 {
            assert!(sender.send(change(["a", "b", "c"][version as usize % 3], version)));
        }
        assert!(subscription.0.state.lock().events.len() <= MERGE_AT);
        let last = std::iter::from_fn(|| subscription.try_next()).last();
        assert_eq!(show(&last.unwrap()), "a99998→a99999");
        drop(subscription);
        assert!(!sender.send(change("a", 7)));
    }

    #[tokio::test]
    async fn a_subscription_ends_with_its_informer() {
        let (sender, mut subscription) = channel();
        sender.send(change("a", 2));
        drop(sender);
        assert!(subscription.next().await.is_some());
        assert!(subscription.next().await.is_none());
    }
}
