//! The queue of changes for one subscriber. For a slow subscriber successive modifications of an object are
//! merged: the queue is bounded by the number of objects that come, are there and go, not by how often they change.

use std::{
    any::Any,
    collections::{HashMap, VecDeque},
    marker::PhantomData,
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    Event, Object,
    cache::{Key, Named},
    slot::{Decoded, Slot},
    typed,
};

/// Above this many queued changes, modifications of the same object are merged.
const MERGE_AT: usize = 4096;

/// A queued change; its objects are decoded when it is read.
#[derive(Clone)]
pub(super) enum Change {
    Added(Arc<Slot>),
    Modified { old: Arc<Slot>, new: Arc<Slot> },
    Deleted(Arc<Slot>),
}

impl Change {
    /// The newest state of the object.
    pub(super) fn slot(&self) -> &Arc<Slot> {
        match self {
            Self::Added(new) | Self::Modified { new, .. } | Self::Deleted(new) => new,
        }
    }

    fn read<K: Object>(&self, decoded: &Decoded, with_old: bool) -> Event<K> {
        let read = |slot: &Arc<Slot>| typed(slot.read(decoded));
        match self {
            Self::Added(new) => Event::Added(read(new)),
            Self::Modified { new, .. } if !with_old => Event::Added(read(new)),
            Self::Modified { old, new } => Event::Modified {
                old: read(old),
                new: read(new),
            },
            Self::Deleted(old) => Event::Deleted(read(old)),
        }
    }
}

struct State {
    events: VecDeque<Change>,
    /// The queue length at which changes are merged next; at least twice the length after the last merge.
    merge_at: usize,
    closed: bool,
    /// Notified too, for a reader of several subscriptions.
    reader: Option<Arc<Notify>>,
}

struct Buffer {
    /// Guards the queued changes; never held across an await.
    state: Mutex<State>,
    changed: Notify,
    decoded: Arc<Decoded>,
}

/// Whether changes of an object with this summary are wanted.
pub(super) type Wants = Arc<dyn Fn(&(dyn Any + Send + Sync)) -> bool + Send + Sync>;

/// The informer's end; dropping it ends the subscription.
pub(super) struct Sender {
    buffer: Arc<Buffer>,
    /// `None` if all changes are wanted.
    wants: Option<Wants>,
}

/// A queue of changes. No addition, deletion or final state is lost; of modifications that follow each other before they
/// are read, those between the first version and the last may be left out.
pub struct Subscription<K> {
    buffer: Arc<Buffer>,
    /// Whether changes come with the version before.
    with_old: bool,
    kind: PhantomData<fn() -> K>,
}

pub(super) fn channel<K>(decoded: Arc<Decoded>, wants: Option<Wants>) -> (Sender, Subscription<K>) {
    let state = State {
        events: VecDeque::new(),
        merge_at: MERGE_AT,
        closed: false,
        reader: None,
    };
    let buffer = Arc::new(Buffer {
        state: Mutex::new(state),
        changed: Notify::new(),
        decoded,
    });
    let subscription = Subscription {
        buffer: buffer.clone(),
        with_old: true,
        kind: PhantomData,
    };
    (Sender { buffer, wants }, subscription)
}

impl Sender {
    /// The number of queued changes.
    pub(super) fn len(&self) -> usize {
        self.buffer.state.lock().events.len()
    }

    /// Queues a change; returns false if the subscription was dropped.
    pub(super) fn send(&self, event: Change) -> bool {
        if Arc::strong_count(&self.buffer) == 1 {
            return false;
        }
        if !self.is_wanted(&event) {
            return true;
        }
        let mut state = self.buffer.state.lock();
        state.events.push_back(event);
        if state.events.len() >= state.merge_at {
            let events = std::mem::take(&mut state.events);
            state.events = merged(events);
            state.merge_at = MERGE_AT.max(2 * state.events.len());
        }
        let reader = state.reader.clone();
        drop(state);
        self.buffer.notify(reader);
        true
    }

    fn is_wanted(&self, change: &Change) -> bool {
        let Some(wants) = &self.wants else {
            return true;
        };
        let is_wanted = |slot: &Slot| slot.summary().is_none_or(|summary| wants(summary));
        match change {
            Change::Added(slot) | Change::Deleted(slot) => is_wanted(slot),
            Change::Modified { old, new } => is_wanted(old) || is_wanted(new),
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let mut state = self.buffer.state.lock();
        state.closed = true;
        let reader = state.reader.clone();
        drop(state);
        self.buffer.notify(reader);
    }
}

impl<K: Object> Subscription<K> {
    /// Changes come as [`Event::Added`] without the version before, which would often have to be decoded again.
    pub fn without_old(mut self) -> Self {
        self.with_old = false;
        self
    }

    /// Also notifies `reader` of every change: one task can so wait for several subscriptions, and then read all of them
    /// with [`Subscription::try_next`].
    pub fn notifying(self, reader: &Arc<Notify>) -> Self {
        self.buffer.state.lock().reader = Some(reader.clone());
        // Changes may be waiting.
        reader.notify_one();
        self
    }

    /// Whether the informer was dropped and everything was read.
    pub fn is_over(&self) -> bool {
        self.buffer.is_over()
    }

    /// The next change; `None` if the informer was dropped.
    pub async fn next(&mut self) -> Option<Event<K>> {
        loop {
            let changed = self.buffer.changed.notified();
            if let Some(event) = self.pop() {
                return Some(event);
            }
            if self.buffer.is_over() {
                return None;
            }
            changed.await;
        }
    }

    /// The next change, if one is queued.
    pub fn try_next(&mut self) -> Option<Event<K>> {
        self.pop()
    }

    fn pop(&self) -> Option<Event<K>> {
        let change = self.buffer.pop()?;
        Some(change.read(&self.buffer.decoded, self.with_old))
    }
}

impl Buffer {
    fn notify(&self, reader: Option<Arc<Notify>>) {
        self.changed.notify_one();
        if let Some(reader) = reader {
            reader.notify_one();
        }
    }

    fn pop(&self) -> Option<Change> {
        let mut state = self.state.lock();
        let change = state.events.pop_front()?;
        if state.events.is_empty() && state.events.capacity() > MERGE_AT {
            // The queue was very long, e.g. with all existing objects: release its memory.
            state.events = VecDeque::new();
        }
        Some(change)
    }

    fn is_over(&self) -> bool {
        let state = self.state.lock();
        state.closed && state.events.is_empty()
    }
}

/// The changes with successive modifications of an object as one, at the position of the first: from the version before all of
/// them to the last one. Additions and deletions stay, since readers act on what an object was when it came or left, and
/// on how it changed since then.
fn merged(changes: VecDeque<Change>) -> VecDeque<Change> {
    let mut places: HashMap<Key, usize> = HashMap::new();
    let mut merged: VecDeque<Change> = VecDeque::new();
    for change in changes {
        let (namespace, name) = change.slot().key();
        let key = (namespace.to_owned(), name.to_owned());
        let Change::Modified { new, .. } = &change else {
            // Later modifications are those of another object of this name.
            places.remove(&key);
            merged.push_back(change);
            continue;
        };
        match places.get(&key).and_then(|place| merged.get_mut(*place)) {
            Some(Change::Modified { new: last, .. }) => *last = new.clone(),
            _ => {
                places.insert(key, merged.len());
                merged.push_back(change);
            }
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::api::ObjectMeta;

    use super::*;

    fn object(name: &str, version: u32) -> Arc<Slot> {
        let object = ConfigMap {
            metadata: ObjectMeta {
                name: Some(name.into()),
                uid: Some(name.into()),
                resource_version: Some(version.to_string()),
                ..Default::default()
            },
            ..Default::default()
        };
        Slot::typed(Arc::new(object), &Decoded::new::<ConfigMap>())
    }

    fn change(name: &str, version: u32) -> Change {
        Change::Modified {
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
    fn modifications_of_one_object_are_merged_in_order_and_nothing_else_is() {
        let changes = [
            change("a", 2),
            Change::Added(object("b", 1)),
            Change::Added(object("c", 1)),
            change("a", 3),
            change("b", 2),
            change("b", 3),
            Change::Deleted(object("c", 2)),
            change("a", 4),
            change("d", 5),
            Change::Deleted(object("d", 6)),
            Change::Added(object("d", 7)),
            change("d", 8),
            Change::Added(object("c", 9)),
        ];
        let merged = merged(changes.into());
        let decoded = Decoded::new::<ConfigMap>();
        let shown: Vec<_> = merged
            .iter()
            .map(|one| show(&one.read(&decoded, true)))
            .collect();
        assert_eq!(
            shown,
            [
                "a1→a4", "+b1", "+c1", "b1→b3", "-c2", "d4→d5", "-d6", "+d7", "d7→d8", "+c9"
            ]
        );
    }

    #[test]
    fn a_slow_subscriber_holds_as_many_changes_as_there_are_objects() {
        let (sender, mut subscription) =
            channel::<ConfigMap>(Arc::new(Decoded::new::<ConfigMap>()), None);
        for version in 2..100_000 {
            assert!(sender.send(change(["a", "b", "c"][version as usize % 3], version)));
        }
        assert!(subscription.buffer.state.lock().events.len() <= MERGE_AT);
        let last = std::iter::from_fn(|| subscription.try_next()).last();
        assert_eq!(show(&last.unwrap()), "a99998→a99999");
        drop(subscription);
        assert!(!sender.send(change("a", 7)));
    }

    #[test]
    fn a_subscription_without_old_versions_has_only_the_newest() {
        let (sender, subscription) =
            channel::<ConfigMap>(Arc::new(Decoded::new::<ConfigMap>()), None);
        let mut subscription = subscription.without_old();
        sender.send(change("a", 2));
        sender.send(Change::Deleted(object("a", 3)));
        let all = std::iter::from_fn(|| subscription.try_next());
        assert_eq!(
            all.map(|event| show(&event)).collect::<Vec<_>>(),
            ["+a2", "-a3"]
        );
    }

    #[test]
    fn memory_for_many_changes_goes_when_they_are_read() {
        let (sender, mut subscription) =
            channel::<ConfigMap>(Arc::new(Decoded::new::<ConfigMap>()), None);
        for number in 0..2 * MERGE_AT {
            assert!(sender.send(Change::Added(object(&number.to_string(), 1))));
        }
        while subscription.try_next().is_some() {}
        assert_eq!(subscription.buffer.state.lock().events.capacity(), 0);
    }

    #[tokio::test]
    async fn one_reader_is_notified_of_several_subscriptions() {
        let decoded = Arc::new(Decoded::new::<ConfigMap>());
        let (one, first) = channel::<ConfigMap>(decoded.clone(), None);
        let (other, second) = channel::<ConfigMap>(decoded, None);
        one.send(change("a", 2));
        let reader = Arc::new(Notify::new());
        let (mut first, mut second) = (first.notifying(&reader), second.notifying(&reader));
        reader.notified().await;
        assert!(first.try_next().is_some() && second.try_next().is_none());
        other.send(change("b", 2));
        reader.notified().await;
        assert!(first.try_next().is_none() && second.try_next().is_some());
        drop(other);
        reader.notified().await;
        assert!(!first.is_over() && second.is_over());
    }

    #[tokio::test]
    async fn a_subscription_ends_with_its_informer() {
        let (sender, mut subscription) =
            channel::<ConfigMap>(Arc::new(Decoded::new::<ConfigMap>()), None);
        sender.send(change("a", 2));
        drop(sender);
        assert!(subscription.next().await.is_some());
        assert!(subscription.next().await.is_none());
    }

    #[tokio::test]
    async fn only_changes_of_objects_with_a_wanted_summary_are_queued() {
        let refused = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("no server"))
        });
        let informer = crate::Informer::<ConfigMap>::builder(crate::in_process(refused));
        let informer = informer.summary(|map: &ConfigMap| map.immutable).offline();
        let put = |name: &str, version: u32, immutable: bool| {
            informer.upsert(ConfigMap {
                metadata: ObjectMeta {
                    name: Some(name.into()),
                    uid: Some(name.into()),
                    resource_version: Some(version.to_string()),
                    ..Default::default()
                },
                immutable: Some(immutable),
                ..Default::default()
            });
        };
        put("before", 1, true);
        put("unwanted", 2, false);
        let wanted = informer.only(|immutable: &Option<bool>| *immutable == Some(true));
        let mut events = wanted.subscribe();
        let mut all = informer.subscribe();
        put("unwanted", 3, false);
        put("unwanted", 4, true);
        put("unwanted", 5, false);
        put("unwanted", 6, false);
        informer.remove("", "unwanted");
        informer.remove("", "before");
        let version = |map: &ConfigMap| map.metadata.resource_version.clone().unwrap();
        let seen: Vec<_> = std::iter::from_fn(|| events.try_next())
            .map(|event| match event {
                Event::Added(new) => format!("+{}", version(&new)),
                Event::Modified { old, new } => format!("{}→{}", version(&old), version(&new)),
                Event::Deleted(old) => format!("-{}", version(&old)),
            })
            .collect();
        assert_eq!(seen, ["+1", "3→4", "4→5", "-1"]);
        assert_eq!(std::iter::from_fn(|| all.try_next()).count(), 8);
    }
}
