//! Hands events to watchers. Watchers of the same prefix form a group that gets one shared slice of
//! events per revision. A watcher whose queue is full is let go: its stream catches up from history
//! by itself, and only when history no longer reaches back far enough is it told that it lagged.

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

/// The meeting point of writer and watchers.
pub(crate) struct Hub<T> {
    state: Arc<Published<T>>,
    published: Notify,
    /// Whether anybody may be watching: nobody is woken for nobody. Set under the lock, before the
    /// state is looked at; read after a state is published.
    is_watched: AtomicBool,
    queue: usize,
    /// Guards the groups and how far they have been served. Taken by the fan-out for one revision at
    /// a time, and by whoever subscribes.
    groups: Mutex<Groups<T>>,
}

struct Groups<T> {
    /// Everything up to here has been handed out.
    served: Revision,
    closed: bool,
    /// By length of prefix, then by prefix: an event finds its groups by looking up the beginnings
    /// of its key.
    by_length: BTreeMap<usize, HashMap<Key, Vec<Watcher<T>>>>,
}

struct Watcher<T> {
    queue: mpsc::Sender<WatchItem<T>>,
    /// Nothing up to here may be sent to it again.
    after: Revision,
}

/// A watcher's end.
struct Subscription<T> {
    hub: Arc<Hub<T>>,
    prefix: Key,
    /// Everything up to here has been yielded.
    cursor: Revision,
    /// The past that must be yielded before the queue, and where it ends.
    backlog: Option<(History<T>, Revision)>,
    queue: mpsc::Receiver<WatchItem<T>>,
}

impl<T: Send + Sync + 'static> Hub<T> {
    /// A hub over the published states.
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

    /// There is a new state.
    pub(crate) fn wake(&self) {
        // Together with the one in `subscribe`: either the new watcher sees the state that was just
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

    /// Changes under `prefix` after a revision.
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

    /// The same for a revision that is known to exist, also when it has not been published yet.
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
        let (served, floor, backlog) = self.state.look(|state| {
            // Before the first there was nobody to serve.
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

    /// Hands out what is published until the hub is closed.
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
        let (newest, history) = self.state.look(look);
        if history.floor() > served {
            // History went faster than the fan-out: the watchers catch up or learn that they cannot.
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

    /// Tells all watchers how far they are. Returns whether there are any.
    fn progress(&mut self) -> bool {
        let served = self.served;
        for groups in self.by_length.values_mut() {
            for watchers in groups.values_mut() {
                // A full queue says that there is more to come: no need for a mark.
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

/// The beginnings of this length that the changed keys have, each once. Few: a commit has few keys.
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
                    // A mark from before the beginning says nothing.
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

    /// The queue was full once, and has been drained now: goes on from history.
    fn resume(&mut self) -> Result<(), Error> {
        let resumed = self.hub.clone().subscribe(self.prefix.clone(), self.cursor);
        *self = resumed.map_err(|error| match error {
            Error::Compacted { .. } => Error::Lagged,
            other => other,
        })?;
        Ok(())
    }
}
