//! Waiters for a cache to contain a write: by version, or until an object was removed. Each is
//! woken only by its own event. Pure; the informer guards it with one lock.

use std::collections::{BTreeMap, HashMap};

use tokio::sync::oneshot;

use super::cache::Key;

/// An object that is being deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DeletingObject {
    pub(super) key: Key,
    pub(super) uid: String,
}

#[derive(Default)]
pub(super) struct Waiters {
    /// The newest version in the cache.
    seen: u64,
    versions: BTreeMap<u64, Vec<oneshot::Sender<()>>>,
    departures: HashMap<Key, Vec<(String, oneshot::Sender<()>)>>,
    /// Writes whose wait timed out: until the cache contains them it is too old to act on.
    overdue_version: u64,
    overdue_departures: Vec<DeletingObject>,
}

impl Waiters {
    /// The newest version in the cache.
    pub(super) fn seen(&self) -> u64 {
        self.seen
    }

    /// Resolves when the cache contains `version`; `None` if it already does.
    pub(super) fn version(&mut self, version: u64) -> Option<oneshot::Receiver<()>> {
        if self.seen >= version {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        self.versions.entry(version).or_default().push(sender);
        Some(receiver)
    }

    /// Resolves when the object was removed. The caller has checked that the object still exists.
    pub(super) fn departure(&mut self, departure: DeletingObject) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        let waiting = self.departures.entry(departure.key).or_default();
        waiting.retain(|(_, sender)| !sender.is_closed());
        waiting.push((departure.uid, sender));
        receiver
    }

    /// The cache now contains everything up to `version`.
    pub(super) fn advance(&mut self, version: u64) {
        if version <= self.seen {
            return;
        }
        self.seen = version;
        let later = self.versions.split_off(&(version + 1));
        let due = std::mem::replace(&mut self.versions, later);
        for sender in due.into_values().flatten() {
            // A waiter that timed out has dropped its end.
            let _ = sender.send(());
        }
    }

    /// Wakes waiters for objects that `has_left` reports as removed; `key` restricts it to one
    /// name.
    pub(super) fn changed(&mut self, key: Option<&Key>, has_left: &dyn Fn(&Key, &str) -> bool) {
        let Some(key) = key else {
            let keys: Vec<Key> = self.departures.keys().cloned().collect();
            for key in keys {
                self.changed(Some(&key), has_left);
            }
            return;
        };
        let Some(waiting) = self.departures.remove(key) else {
            return;
        };
        let (left, waiting): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|(uid, _)| has_left(key, uid));
        for (_, sender) in left {
            let _ = sender.send(());
        }
        if !waiting.is_empty() {
            self.departures.insert(key.clone(), waiting);
        }
    }

    pub(super) fn overdue_version(&mut self, version: u64) {
        self.overdue_version = self.overdue_version.max(version);
    }

    pub(super) fn overdue_departure(&mut self, departure: DeletingObject) {
        if !self.overdue_departures.contains(&departure) {
            self.overdue_departures.push(departure);
        }
    }

    /// Whether a write whose wait timed out is still missing.
    pub(super) fn is_behind(&mut self, has_left: impl Fn(&Key, &str) -> bool) -> bool {
        self.overdue_departures
            .retain(|departure| !has_left(&departure.key, &departure.uid));
        self.overdue_version > self.seen || !self.overdue_departures.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        ("default".to_owned(), name.to_owned())
    }

    #[test]
    fn a_version_wakes_only_the_waiters_for_it() {
        let mut waiters = Waiters::default();
        let (mut five, mut nine) = (waiters.version(5).unwrap(), waiters.version(9).unwrap());
        waiters.advance(4);
        assert!(five.try_recv().is_err());
        waiters.advance(6);
        assert!(five.try_recv().is_ok());
        assert!(nine.try_recv().is_err());
        assert!(waiters.version(6).is_none(), "it is shown already");
        waiters.advance(9);
        assert!(nine.try_recv().is_ok());
        assert!(waiters.versions.is_empty());
    }

    #[test]
    fn a_deletion_wakes_its_waiter_once() {
        let mut waiters = Waiters::default();
        let mut wait = |name: &str| {
            let uid = name.to_owned();
            waiters.departure(DeletingObject {
                key: key(name),
                uid,
            })
        };
        let (mut a, mut b) = (wait("a"), wait("b"));
        waiters.changed(Some(&key("b")), &|_, _| false);
        assert!(b.try_recv().is_err());
        waiters.changed(Some(&key("a")), &|_, uid| uid == "a");
        assert!(a.try_recv().is_ok());
        waiters.changed(None, &|_, _| true);
        assert!(b.try_recv().is_ok());
        assert!(waiters.departures.is_empty());
    }

    #[test]
    fn a_cache_is_behind_until_it_shows_overdue_writes() {
        let mut waiters = Waiters::default();
        assert!(!waiters.is_behind(|_, _| false));
        waiters.overdue_version(7);
        assert!(waiters.is_behind(|_, _| true));
        waiters.advance(7);
        assert!(!waiters.is_behind(|_, _| true));
        let uid = "u".to_owned();
        waiters.overdue_departure(DeletingObject { key: key("a"), uid });
        assert!(waiters.is_behind(|_, _| false));
        assert!(!waiters.is_behind(|_, _| true));
        assert!(!waiters.is_behind(|_, _| false), "it was seen to leave");
    }
}
