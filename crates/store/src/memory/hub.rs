//! Sends events to watchers. Watchers of the same prefix form a group that shares one slice of
//! events per revision. A watcher whose queue is full is dropped from its group: its stream catches
//! up from history, and only if history no longer has its revision does it get an error.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering, fence},
    },
};

use futures::{StreamExt, stream};
use parking_lot::Mutex;
use stdx::Clock;
use tokio::sync::{Notify, mpsc};

use super::{Batch, History, Published, State};
use crate::{Error, Key, Revision, Watch, WatchItem};

/// Shared by the writer and the watchers.
pub(crate) struct Hub<T> {
    state: Arc<Published<T>>,
    published: Notify,
    /// Whether there may be watchers; without them nothing is woken. Set under the lock before the
    /// state is read; read after a state was published.
    is_watched: AtomicBool,
    queue: usize,
    /// Guards the groups and their revision. Locked by the fan-out for one revision at a time, and
    /// by subscribers.
    groups: Mutex<Groups<T>>,
}

struct Groups<T> {
    /// Events up to this revision were sent.
    served: Revision,
    closed: bool,
    /// By length of prefix, then by prefix: an event finds its groups by looking up the prefixes of
    /// its key.
    by_length: BTreeMap<usize, HashMap<Key, Vec<Watcher<T>>>>,
}

struct Watcher<T> {
    queue: mpsc::Sender<WatchItem<T>>,
    /// Events up to this revision must not be sent to it again.
    after: Revision,
}

/// A watcher's stream.
struct Subscription<T> {
    hub: Arc<Hub<T>>,
    prefix: Key,
    /// Everything up to this revision was yielded.
    cursor: Revision,
    /// History to yield before the queue, and its last revision.
    backlog: Option<(History<T>, Revision)>,
    queue: mpsc::Receiver<WatchItem<T>>,
}

impl<T: Send + Sync + 'static> Hub<T> {
    /// A hub for the published states.
    pub(crate) fn new(state: Arc<Published<T>>, queue: usize) -> Self {
        let served = state.revision();
        let groups = Mutex::new(Groups {
            served,
            closed: false,
            by_length: BTreeMap::new(),
        });
        Self {
            state,
            published: Notify::new(),
            is_watched: AtomicBool::new(false),
            queue,
            groups,
        }
    }

    /// A new state was published.
    pub(crate) fn wake(&self) {
        // Pairs with the fence in `subscribe`: either the new watcher sees the state that was just
        // published, or it is seen here.
        fence(Ordering::SeqCst);
        if self.is_watched.load(Ordering::Relaxed) {
            self.published.notify_one();
        }
    }

    /// Ends all watches.
    pub(crate) fn close(&self) {
        let mut groups = self.groups.lock();
        groups.closed = true;
        groups.by_length.clear();
        drop(groups);
        self.published.notify_one();
    }

    /// Watches changes under `prefix` after a revision.
    pub(crate) fn watch(self: &Arc<Self>, prefix: Key, after: Revision) -> Result<Watch<T>, Error> {
        let newest = self.state.revision();
        if after > newest {
            return Err(Error::Future {
                requested: after,
                newest,
            });
        }
        self.watch_ahead(prefix, after)
    }

    /// The same for a revision that is known to exist, but may not be published yet.
    pub(crate) fn watch_ahead(
        self: &Arc<Self>,
        prefix: Key,
        after: Revision,
    ) -> Result<Watch<T>, Error> {
        let subscription = self.subscribe(prefix, after)?;
        Ok(stream::unfold(Some(subscription), |subscription| async {
            let mut subscription = subscription?;
            match subscription.next().await {
                Ok(item) => Some((Ok(item), Some(subscription))),
                Err(error) => Some((Err(error), None)),
            }
        })
        .boxed())
    }

    fn subscribe(self: &Arc<Self>, prefix: Key, after: Revision) -> Result<Subscription<T>, Error> {
        let mut groups = self.groups.lock();
        if groups.closed {
            return Err(Error::Unavailable("the store is closed".into()));
        }
        self.is_watched.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let is_first = groups.by_length.is_empty();
        let (served, floor, backlog) = self.state.read(|state| {
            // Without earlier watchers nothing was sent.
            let newest = if is_first { state.revision } else { 0 };
            let served = groups.served.max(newest);
            let backlog = (after < served).then(|| (state.history.clone(), served));
            (served, state.history.floor(), backlog)
        });
        groups.served = served;
        if after < floor {
            return Err(Error::Compacted {
                requested: after,
                oldest: floor,
            });
        }
        let (sender, queue) = mpsc::channel(self.queue);
        let group = groups.by_length.entry(prefix.len()).or_default();
        group.entry(prefix.clone()).or_default().push(Watcher {
            queue: sender,
            after: after.max(served),
        });
        Ok(Subscription {
            hub: self.clone(),
            prefix,
            cursor: after,
            backlog,
            queue,
        })
    }

    /// Sends what is published until the hub is closed.
    pub(crate) async fn serve(&self, clock: &dyn Clock, progress: std::time::Duration) {
        let mut tick = clock.sleep(progress);
        loop {
            tokio::select! {
                biased;
                () = self.published.notified() => self.fan_out(),
                () = &mut tick => {
                    self.fan_out();
                    let mut groups = self.groups.lock();
                    let is_watched = groups.progress();
                    self.is_watched.store(is_watched, Ordering::Relaxed);
                    drop(groups);
                    tick = clock.sleep(progress);
                }
            }
            if self.groups.lock().closed {
                return;
            }
        }
    }

    fn fan_out(&self) {
        let groups = self.groups.lock();
        let (served, is_watched) = (groups.served, !groups.by_length.is_empty());
        drop(groups);
        if !is_watched {
            return;
        }
        let look = |state: &State<T>| (state.revision, state.history.clone());
        let (newest, history) = self.state.read(look);
        if history.floor() > served {
            // History was dropped faster than it was sent: the watchers catch up or get an error.
            self.groups.lock().by_length.clear();
        } else {
            for (revision, batch) in history.after(served) {
                self.groups.lock().deliver(*revision, batch);
            }
        }
        let mut groups = self.groups.lock();
        groups.served = groups.served.max(newest);
    }
}

impl<T> Groups<T> {
    fn deliver(&mut self, revision: Revision, batch: &Batch<T>) {
        self.served = self.served.max(revision);
        for (length, groups) in &mut self.by_length {
            for prefix in prefixes(batch, *length) {
                let Some(watchers) = groups.get_mut(prefix) else {
                    continue;
                };
                let Some(events) = batch.events(revision, prefix) else {
                    continue;
                };
                watchers.retain(|watcher| {
                    let events = events.clone();
                    let item = WatchItem::Events { revision, events };
                    revision <= watcher.after || watcher.queue.try_send(item).is_ok()
                });
            }
        }
    }

    /// Sends a progress notification to all watchers. Returns whether there are any.
    fn progress(&mut self) -> bool {
        let served = self.served;
        for groups in self.by_length.values_mut() {
            for watchers in groups.values_mut() {
                // A full queue needs no notification: more events are pending.
                watchers.retain(|watcher| {
                    let sent = watcher.queue.try_send(WatchItem::Progress(served));
                    !matches!(sent, Err(mpsc::error::TrySendError::Closed(_)))
                });
            }
            groups.retain(|_, watchers| !watchers.is_empty());
        }
        self.by_length.retain(|_, groups| !groups.is_empty());
        !self.by_length.is_empty()
    }
}

/// The distinct prefixes of this length of the changed keys; few, since a commit has few keys.
fn prefixes<T>(batch: &Batch<T>, length: usize) -> Vec<&[u8]> {
    let mut found = Vec::new();
    for change in batch.changes() {
        if let Some(prefix) = change.key().get(..length)
            && !found.contains(&prefix)
        {
            found.push(prefix);
        }
    }
    found
}

impl<T: Send + Sync + 'static> Subscription<T> {
    async fn next(&mut self) -> Result<WatchItem<T>, Error> {
        loop {
            if let Some(item) = self.next_of_backlog() {
                return Ok(item);
            }
            match self.queue.recv().await {
                Some(WatchItem::Events { revision, events }) => {
                    self.cursor = revision;
                    return Ok(WatchItem::Events { revision, events });
                }
                Some(WatchItem::Progress(revision)) => {
                    // Ignore a notification from before the start.
                    if revision >= self.cursor {
                        self.cursor = revision;
                        return Ok(WatchItem::Progress(revision));
                    }
                }
                None => self.resume()?,
            }
        }
    }

    fn next_of_backlog(&mut self) -> Option<WatchItem<T>> {
        let (history, end) = self.backlog.as_ref()?;
        for (revision, batch) in history.after(self.cursor) {
            if *revision > *end {
                break;
            }
            self.cursor = *revision;
            if let Some(events) = batch.events(*revision, &self.prefix) {
                let revision = *revision;
                return Some(WatchItem::Events { revision, events });
            }
        }
        self.cursor = *end;
        self.backlog = None;
        Some(WatchItem::Progress(self.cursor))
    }

    /// The queue was full and is drained now: continues from history.
    fn resume(&mut self) -> Result<(), Error> {
        let resumed = self.hub.clone().subscribe(self.prefix.clone(), self.cursor);
        *self = resumed.map_err(|error| match error {
            Error::Compacted { .. } => Error::Lagged,
            other => other,
        })?;
        Ok(())
    }
}
