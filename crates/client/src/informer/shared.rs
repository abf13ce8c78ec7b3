//! What the clones of an informer share. It does not depend on the kind of the objects, so that its code, and
//! that of the reflector that fills it, exists once in the binary.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use super::{
    cache::{Cache, Key, Named},
    slot::{Decoded, Slot},
    waiters::{DeletingObject, Waiters},
};

pub(super) struct Shared {
    /// Guards objects, indexes and subscribers, so that a subscriber sees every change exactly
    /// once: in its initial snapshot or as an event.
    pub(super) cache: RwLock<Cache>,
    /// The number of changes of `cache`; incremented by each while `cache` is locked, so that no event is seen before it.
    generation: AtomicU64,
    /// The objects that have a decoded form beside the stored one.
    pub(super) decoded: Arc<Decoded>,
    pub(super) synced: watch::Sender<bool>,
    /// Guards the newest version in the cache and the waiters for later ones. Locked after
    /// `cache` was written, or before `cache` is read; never while `cache` is locked.
    pub(super) waiters: Mutex<Waiters>,
}

impl Shared {
    pub(super) fn new(cache: Cache) -> Self {
        Self {
            decoded: cache.decoded.clone(),
            cache: RwLock::new(cache),
            generation: AtomicU64::new(0),
            synced: watch::Sender::new(false),
            waiters: Mutex::default(),
        }
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn change(&self, apply: impl FnOnce(&mut Cache)) {
        let mut cache = self.cache.write();
        apply(&mut cache);
        self.generation.fetch_add(1, Ordering::Release);
    }

    pub(super) fn store(&self, slot: Arc<Slot>) {
        let key = owned_key(&slot);
        self.change(|cache| cache.upsert(slot));
        self.check_departures(Some(&key));
    }

    /// Removes an object; `last` is its final version.
    pub(super) fn forget(&self, last: Arc<Slot>) {
        let key = owned_key(&last);
        self.change(|cache| cache.remove(&key.0, &key.1, Some(last)));
        self.check_departures(Some(&key));
    }

    pub(super) fn remove(&self, namespace: &str, name: &str) {
        self.change(|cache| cache.remove(namespace, name, None));
        self.check_departures(Some(&(namespace.to_owned(), name.to_owned())));
    }

    pub(super) fn replace(&self, slots: Vec<Arc<Slot>>) {
        self.change(|cache| cache.replace(slots));
        self.check_departures(None);
    }

    pub(super) async fn synced(&self) {
        // The sender is in the value that is borrowed here.
        let _ = self.synced.subscribe().wait_for(|synced| *synced).await;
    }

    pub(super) fn has_synced(&self) -> bool {
        *self.synced.borrow()
    }

    pub(super) async fn reached(&self, version: &str) {
        let Ok(version) = version.parse() else { return };
        let waiter = self.waiters.lock().version(version);
        if let Some(waiter) = waiter {
            // The sender is in the value that is borrowed here.
            let _ = waiter.await;
        }
    }

    pub(super) async fn reached_within(&self, version: &str, patience: Duration) -> bool {
        if tokio::time::timeout(patience, self.reached(version))
            .await
            .is_ok()
        {
            return true;
        }
        let version = version.parse().unwrap_or(0);
        self.waiters.lock().overdue_version(version);
        false
    }

    pub(super) async fn left_within(&self, departure: DeletingObject, patience: Duration) -> bool {
        let waiter = {
            let mut waiters = self.waiters.lock();
            if self.has_left(&departure.key, &departure.uid) {
                return true;
            }
            waiters.departure(departure.clone())
        };
        if tokio::time::timeout(patience, waiter).await.is_ok() {
            return true;
        }
        self.waiters.lock().overdue_departure(departure);
        false
    }

    pub(super) fn is_behind(&self) -> bool {
        let mut waiters = self.waiters.lock();
        waiters.is_behind(|key, uid| self.has_left(key, uid))
    }

    fn has_left(&self, (namespace, name): &Key, uid: &str) -> bool {
        let slot = self.cache.read().get(namespace, name);
        slot.is_none_or(|slot| {
            let object = slot.peek(&self.decoded);
            let meta = object.meta();
            meta.uid.as_deref() != Some(uid) || meta.deletion_timestamp.is_some()
        })
    }

    /// The cache now contains everything up to `version`.
    pub(super) fn advance(&self, version: &str) {
        let version = version.parse().unwrap_or(0);
        self.waiters.lock().advance(version);
    }

    /// The object of this key, or any object, may have been removed.
    fn check_departures(&self, key: Option<&Key>) {
        let mut waiters = self.waiters.lock();
        waiters.changed(key, &|key, uid| self.has_left(key, uid));
    }
}

fn owned_key(slot: &Slot) -> Key {
    let (namespace, name) = slot.key();
    (namespace.to_owned(), name.to_owned())
}
