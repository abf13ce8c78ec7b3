//! The one writer: takes what is waiting, gives revisions, appends one frame, syncs once, and only
//! then publishes and answers. Whoever reads a value, hears of it in a watch, or learns that it stood
//! in the way of a precondition, learns it after the sync.

use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use super::{
    Config,
    disk::Disk,
    frame,
    log::{Fault, Log, segment_name},
    record::{self, Marks},
    snapshot::{self, snapshot_name},
};
use crate::{
    Action, Codec, Committed, Durability, Error, Key, Op, Precondition, Revision,
    memory::{Change, Hub, Millis, State},
};

/// Most commits in one batch.
const BATCH_COMMITS: usize = 4096;
/// A batch with this many bytes takes no further commit.
const BATCH_BYTES: usize = 4 << 20;
/// How long a failed snapshot waits for the next try.
const SNAPSHOT_RETRY: Millis = 5_000;

/// What the writer is asked for.
pub enum Request<C: Codec> {
    /// A commit, checked by [`crate::check::ops`].
    Commit {
        /// Its operations.
        ops: Vec<Op<C::Draft>>,
        /// Bytes of keys and values.
        bytes: usize,
        /// Whether it waits for the disk.
        durability: Durability,
        /// Who waits.
        reply: oneshot::Sender<Result<Committed<C::Object>, Error>>,
    },
    /// Forget history.
    Compact {
        /// Up to here.
        revision: Revision,
        /// Who waits.
        reply: oneshot::Sender<Result<(), Error>>,
    },
    /// Write a snapshot now.
    Snapshot {
        /// Hears when it is done and the old files are gone.
        reply: oneshot::Sender<Result<(), Error>>,
    },
    /// The snapshot thread is done.
    SnapshotDone(Result<(), String>),
    /// End, cleanly.
    Close,
}

type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// An answer that waits for the sync.
enum Answer<T> {
    Commit(Reply<Committed<T>>, Result<Committed<T>, Error>),
    Compact(Reply<()>, Result<(), Error>),
}

impl<T> Answer<T> {
    /// Whoever no longer waits loses only the answer.
    fn send(self, failure: Option<&Error>) {
        match self {
            Self::Commit(reply, result) => {
                let _ = reply.send(failure.map_or(result, |error| Err(error.clone())));
            }
            Self::Compact(reply, result) => {
                let _ = reply.send(failure.map_or(result, |error| Err(error.clone())));
            }
        }
    }
}

/// The writer's own data; everything shared is behind `published`, `hub` and `broken`.
pub struct Writer<C: Codec> {
    pub config: Config,
    pub codec: Arc<C>,
    pub disk: Arc<dyn Disk>,
    pub log: Log,
    pub marks: Marks,
    pub state: State<C::Object>,
    pub published: Arc<ArcSwap<State<C::Object>>>,
    pub hub: Arc<Hub<C::Object>>,
    /// Guards why the writer stopped, if it did.
    pub broken: Arc<Mutex<Option<String>>>,
    /// When the oldest unsynced frame was written.
    pub dirty_since: Millis,
    /// Keys that go by themselves, soonest first.
    pub expiring: BTreeSet<(Millis, Key)>,
    pub requests: mpsc::Receiver<Request<C>>,
    /// For the snapshot thread's report.
    pub to_self: mpsc::WeakSender<Request<C>>,
    pub snapshot: Option<RunningSnapshot>,
    pub snapshot_waiters: Vec<Reply<()>>,
    pub snapshot_not_before: Millis,
}

/// A snapshot that is being written.
pub struct RunningSnapshot {
    thread: JoinHandle<()>,
    /// Bytes of the log that it will cover.
    covers: u64,
}

impl<C: Codec> Writer<C> {
    /// Runs until it is closed or all handles are gone.
    pub async fn run(mut self) {
        loop {
            let wait = self.until_next_duty();
            let request = tokio::select! {
                biased;
                request = self.requests.recv() => request,
                () = self.config.clock.sleep(wait) => {
                    self.duties();
                    continue;
                }
            };
            let mut close = false;
            let mut batch = Vec::new();
            let mut bytes = 0;
            let mut next = Some(request.unwrap_or(Request::Close));
            while let Some(request) = next.take() {
                match request {
                    Request::Close => close = true,
                    Request::SnapshotDone(result) => self.snapshot_done(result),
                    Request::Snapshot { reply } => {
                        self.snapshot_waiters.push(reply);
                        self.snapshot_not_before = 0;
                    }
                    other => {
                        if let Request::Commit { bytes: more, .. } = &other {
                            bytes += more;
                        }
                        batch.push(other);
                    }
                }
                if !close && batch.len() < BATCH_COMMITS && bytes < BATCH_BYTES {
                    next = self.requests.try_recv().ok();
                }
            }
            self.process(batch);
            self.duties();
            if close {
                return self.close();
            }
        }
    }

    fn now(&self) -> Millis {
        self.config.clock.now().as_millisecond()
    }

    fn until_next_duty(&self) -> Duration {
        let now = self.now();
        let mut wait = self.config.history.age.min(Duration::from_secs(30));
        if let Some((at, _)) = self.expiring.first() {
            wait = wait.min(Duration::from_millis((at - now).max(0) as u64));
        }
        if self.log.is_dirty() {
            wait = wait.min(self.config.relaxed_sync);
        }
        wait
    }

    /// What is due without being asked for: expiry, the sync of relaxed writes, pruning, snapshots.
    fn duties(&mut self) {
        if self.broken.lock().is_some() {
            return;
        }
        let now = self.now();
        self.expire(now);
        let patience = self.config.relaxed_sync.as_millis() as Millis;
        if self.log.is_dirty()
            && now - self.dirty_since >= patience
            && let Err(fault) = self.log.sync()
        {
            self.fail(fault);
            return;
        }
        let floor = self.state.history.floor();
        self.state.history.prune(&self.config.history, now);
        if self.state.history.floor() != floor {
            self.publish();
        }
        self.start_snapshot_when_due(now);
    }

    /// One batch: one frame, one sync.
    fn process(&mut self, batch: Vec<Request<C>>) {
        if batch.is_empty() {
            return;
        }
        let broken = self.broken.lock().clone();
        let room = match broken {
            Some(why) => Err(Error::Unavailable(why)),
            None => self
                .log
                .prepare(payload_bound(&batch))
                .map_err(|fault| self.fail(fault)),
        };
        if let Err(error) = room {
            return refuse(batch, &error);
        }
        let now = self.now();
        let before = (self.state.clone(), self.marks);
        let (mut commits, mut answers) = (Vec::new(), Vec::with_capacity(batch.len()));
        let (mut synced, mut relaxed) = (false, false);
        let mut touched = Vec::new();
        for request in batch {
            match request {
                Request::Commit {
                    ops,
                    durability,
                    reply,
                    ..
                } => {
                    let written = commits.len();
                    let result = self.commit(ops, now, &mut commits, &mut touched);
                    if commits.len() > written {
                        synced |= durability == Durability::Synced;
                        relaxed |= durability == Durability::Relaxed;
                    }
                    answers.push(Answer::Commit(reply, result));
                }
                Request::Compact { revision, reply } => {
                    let result = self.compact(revision);
                    synced |= result.is_ok();
                    answers.push(Answer::Compact(reply, result));
                }
                Request::Snapshot { .. } | Request::SnapshotDone(_) | Request::Close => {}
            }
        }
        if relaxed && self.state.revision > self.marks.high_water {
            self.marks.high_water = self.state.revision + self.config.high_water_step;
            synced = true;
        }
        let failure = self
            .write(commits, now, synced)
            .err()
            .map(|fault| self.fail(fault));
        match &failure {
            None => {
                self.expiring.extend(touched);
                self.state.history.prune(&self.config.history, now);
                self.publish();
            }
            Some(_) => (self.state, self.marks) = before,
        }
        answers
            .into_iter()
            .for_each(|answer| answer.send(failure.as_ref()));
    }

    /// Appends and syncs, if there is anything to write.
    fn write(&mut self, commits: Vec<u8>, now: Millis, sync: bool) -> Result<(), Fault> {
        if commits.is_empty() && !sync {
            return Ok(());
        }
        if !self.log.is_dirty() {
            self.dirty_since = now;
        }
        let marks = Marks {
            time: now,
            ..self.marks
        };
        let mut frame = frame::begin();
        record::put_marks(&mut frame, &marks);
        frame.extend_from_slice(&commits);
        self.log.append(frame)?;
        if sync { self.log.sync() } else { Ok(()) }
    }

    /// Evaluates one commit against everything before it, and encodes it.
    fn commit(
        &mut self,
        ops: Vec<Op<C::Draft>>,
        now: Millis,
        out: &mut Vec<u8>,
        expiring: &mut Vec<(Millis, Key)>,
    ) -> Result<Committed<C::Object>, Error> {
        self.state.check(&ops)?;
        let revision = self.state.revision + 1;
        if self.state.would_change(&ops) {
            let is_written = |op: &&Op<C::Draft>| match op.action {
                Action::Put { .. } => true,
                Action::Delete => self.state.entries.contains_key(&op.key),
                Action::Check => false,
            };
            record::put_commit(out, revision, ops.iter().filter(is_written).count());
            for op in ops.iter().filter(is_written) {
                match &op.action {
                    Action::Put { draft, expires_in } => {
                        let expires = expiry(now, *expires_in);
                        record::put_put(out, &op.key, expires, self.codec.bytes(draft));
                        if expires != 0 {
                            expiring.push((expires, op.key.clone()));
                        }
                    }
                    _ => record::put_delete(out, &op.key),
                }
            }
        }
        let changes = ops.into_iter().map(|op| {
            let change = match op.action {
                Action::Put { draft, expires_in } => {
                    Some(Change::Put(draft, expiry(now, expires_in)))
                }
                Action::Delete => Some(Change::Delete),
                Action::Check => None,
            };
            (op.key, change)
        });
        Ok(self.state.apply(&*self.codec, revision, now, changes))
    }

    fn compact(&mut self, revision: Revision) -> Result<(), Error> {
        if revision > self.state.revision {
            return Err(Error::Future {
                requested: revision,
                newest: self.state.revision,
            });
        }
        self.state.history.forget(revision);
        self.marks.floor = self.marks.floor.max(revision);
        Ok(())
    }

    /// Deletes keys whose time has come, some hundred per commit.
    fn expire(&mut self, now: Millis) {
        let mut due = Vec::new();
        while let Some((at, key)) = self.expiring.first().cloned() {
            if at > now || due.len() == 256 {
                break;
            }
            self.expiring.pop_first();
            // A key that was written again has another time by now.
            if let Some(slot) = self
                .state
                .entries
                .get(&key)
                .filter(|slot| slot.expires == at)
            {
                let precondition = Precondition::Revision(slot.entry.mod_revision);
                due.push(Op {
                    key: key.clone(),
                    precondition,
                    action: Action::Delete,
                });
            }
        }
        if due.is_empty() {
            return;
        }
        let again: Vec<_> = due.iter().map(|op| (now, op.key.clone())).collect();
        let bytes = due.iter().map(|op| op.key.len()).sum();
        let (reply, mut answer) = oneshot::channel();
        self.process(vec![Request::Commit {
            ops: due,
            bytes,
            durability: Durability::Relaxed,
            reply,
        }]);
        if !matches!(answer.try_recv(), Ok(Ok(_))) {
            // No space: they go when there is.
            let retry = again
                .into_iter()
                .map(|(at, key)| (at + SNAPSHOT_RETRY, key));
            self.expiring.extend(retry);
        }
    }

    fn publish(&self) {
        self.published.store(Arc::new(self.state.clone()));
        self.hub.wake();
    }

    /// What a fault means for those who wait; a broken log stops the writer for good.
    fn fail(&mut self, fault: Fault) -> Error {
        match fault {
            Fault::Full(why) => Error::Full(why),
            Fault::Refused(why) => Error::Unavailable(why),
            Fault::Broken(why) => {
                tracing::error!(why, "the store takes no more writes until it is restarted");
                *self.broken.lock() = Some(why.clone());
                Error::Unavailable(why)
            }
        }
    }

    fn start_snapshot_when_due(&mut self, now: Millis) {
        let grown = self.log.bytes() > self.config.min_log_bytes.max(self.state.bytes);
        let wanted = grown || !self.snapshot_waiters.is_empty();
        if self.snapshot.is_some() || !wanted || now < self.snapshot_not_before {
            return;
        }
        self.snapshot_not_before = now + SNAPSHOT_RETRY;
        let (number, covers) = match self.log.end() {
            Ok(ended) => ended,
            Err(fault) => {
                let error = self.fail(fault);
                return self.finish_snapshot_waiters(Err(error));
            }
        };
        let (disk, codec) = (self.disk.clone(), self.codec.clone());
        let (state, marks) = (
            self.state.clone(),
            Marks {
                time: now,
                ..self.marks
            },
        );
        let report = self.to_self.clone();
        let work = move || {
            let write = || write_snapshot(&*disk, &*codec, number, &state, &marks);
            let result = catch_unwind(AssertUnwindSafe(write))
                .unwrap_or_else(|_| Err("writing a snapshot panicked".into()));
            if let Some(report) = report.upgrade() {
                let _ = report.blocking_send(Request::SnapshotDone(result));
            }
        };
        match std::thread::Builder::new()
            .name("store-snapshot".into())
            .spawn(work)
        {
            Ok(thread) => self.snapshot = Some(RunningSnapshot { thread, covers }),
            Err(error) => tracing::warn!(%error, "no thread for a snapshot now"),
        }
    }

    fn snapshot_done(&mut self, result: Result<(), String>) {
        if let Some(running) = self.snapshot.take() {
            // A panic in it has been reported by the runtime, and the log still has everything.
            let _ = running.thread.join();
            match &result {
                Ok(()) => {
                    self.log.forget(running.covers);
                    self.snapshot_not_before = 0;
                }
                Err(why) => tracing::warn!(why, "no snapshot now"),
            }
        }
        self.finish_snapshot_waiters(result.map_err(Error::Unavailable));
    }

    fn finish_snapshot_waiters(&mut self, result: Result<(), Error>) {
        for waiter in self.snapshot_waiters.drain(..) {
            let _ = waiter.send(result.clone());
        }
    }

    /// Says that nothing unsynced was lost, and gives reserved space back.
    fn close(mut self) {
        // Also ends the snapshot thread's wait for room in the queue.
        self.requests.close();
        if let Some(running) = self.snapshot.take() {
            let _ = running.thread.join();
        }
        let has_news = !self.log.is_untouched() || self.marks.high_water > self.state.revision;
        if self.broken.lock().is_none() && has_news {
            self.marks.high_water = 0;
            let now = self.now();
            let closed = self
                .log
                .prepare(record::MARKS)
                .and_then(|()| self.write(Vec::new(), now, true))
                .and_then(|()| self.log.end());
            if let Err(fault) = closed {
                let error = self.fail(fault);
                tracing::warn!(%error, "the store could not be closed cleanly");
            }
        }
        *self.broken.lock() = Some("the store is closed".into());
        self.hub.close();
    }
}

fn refuse<C: Codec>(batch: Vec<Request<C>>, error: &Error) {
    for request in batch {
        match request {
            Request::Commit { reply, .. } => {
                let _ = reply.send(Err(error.clone()));
            }
            Request::Compact { reply, .. } | Request::Snapshot { reply } => {
                let _ = reply.send(Err(error.clone()));
            }
            Request::SnapshotDone(_) | Request::Close => {}
        }
    }
}

fn payload_bound<C: Codec>(batch: &[Request<C>]) -> usize {
    let commits = batch.iter().map(|request| match request {
        Request::Commit { ops, bytes, .. } => record::commit_bound(ops.len(), *bytes),
        _ => 0,
    });
    record::MARKS + commits.sum::<usize>()
}

fn expiry(now: Millis, expires_in: Option<Duration>) -> Millis {
    expires_in.map_or(0, |wait| now.saturating_add(wait.as_millis() as Millis))
}

fn write_snapshot<C: Codec>(
    disk: &dyn Disk,
    codec: &C,
    number: u64,
    state: &State<C::Object>,
    marks: &Marks,
) -> Result<(), String> {
    let name = snapshot_name(number);
    snapshot::write(
        disk,
        &name,
        number,
        state.revision,
        marks,
        state.saved(codec),
    )
    .map_err(|error| format!("cannot write {}: {error}", disk.path(&name).display()))?;
    remove_before(disk, number).map_err(|error| {
        format!(
            "cannot remove files before {}: {error}",
            disk.path(&name).display()
        )
    })
}

/// Removes segments and snapshots that the snapshot `number` makes superfluous.
pub fn remove_before(disk: &dyn Disk, number: u64) -> std::io::Result<()> {
    let (first_log, first_snapshot) = (segment_name(number), snapshot_name(number));
    for name in disk.list()? {
        let old_log = name.starts_with("log-") && name < first_log;
        let old_snapshot = name.starts_with("snapshot-") && name < first_snapshot;
        if (old_log || old_snapshot) && !name.ends_with(".tmp") {
            disk.remove(&name)?;
        }
    }
    disk.sync()
}
