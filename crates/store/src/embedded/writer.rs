//! The one writer: takes what is waiting, gives revisions, appends one frame, syncs once, and only
//! then publishes and answers. Whoever reads a value, hears of it in a watch, or learns that it stood
//! in the way of a precondition, learns it after the sync.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use super::{
    Config,
    checkpoint::RunningSnapshot,
    disk::Disk,
    frame,
    log::{Fault, Log},
    record::{self, Marks},
    request::{Answer, Reply, Request, payload_bound, refuse},
};
use crate::{
    Action, Codec, Committed, Durability, Error, Key, Op, Precondition, Revision,
    memory::{Hub, Millis, State, Write},
};

/// Most commits in one batch.
const BATCH_COMMITS: usize = 4096;
/// A batch with this many bytes takes no further commit.
const BATCH_BYTES: usize = 4 << 20;
/// How long keys that could not be deleted wait for the next try.
const EXPIRY_RETRY: Millis = 5_000;

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
        if self.broken.lock().is_some() {
            return wait;
        }
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
                    Some(Write::Put(draft, expiry(now, expires_in)))
                }
                Action::Delete => Some(Write::Delete),
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
            // A key that was written again has another time by now, or none.
            if let Some(slot) = self
                .state
                .entries
                .get(&key)
                .filter(|slot| slot.expires <= now)
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
            let retry = again.into_iter().map(|(at, key)| (at + EXPIRY_RETRY, key));
            self.expiring.extend(retry);
        }
    }

    fn publish(&self) {
        self.published.store(Arc::new(self.state.clone()));
        self.hub.wake();
    }

    /// What a fault means for those who wait; a broken log stops the writer for good.
    pub fn fail(&mut self, fault: Fault) -> Error {
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

fn expiry(now: Millis, expires_in: Option<Duration>) -> Millis {
    expires_in.map_or(0, |wait| now.saturating_add(wait.as_millis() as Millis))
}
