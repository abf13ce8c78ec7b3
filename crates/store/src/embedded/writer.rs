//! The one writer: takes what is waiting, gives revisions, makes one frame of it and has it synced
//! once. Whoever reads a value, hears of it in a watch, or learns that it stood in the way of a
//! precondition, learns it after the sync (see [`super::publisher`]).

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{
    Config,
    checkpoint::RunningSnapshot,
    disk::Disk,
    frame,
    publisher::{Stage, Work},
    queue::Queue,
    record::{self, Marks},
    request::{Answer, Reply, Request},
};
use crate::{
    Action, Codec, Committed, Durability, Error, Key, Op, Precondition, Revision,
    memory::{Batch, Millis, State, Write},
};

/// Most commits in one batch.
const BATCH_COMMITS: usize = 4096;
/// A batch with this many bytes takes no further commit.
const BATCH_BYTES: usize = 4 << 20;
/// Fewer commits than this are synced by the writer itself.
const FEW: usize = 8;
/// How long the writer looks for the next request before it sleeps.
const SPIN: Duration = Duration::from_micros(60);
/// How long keys that could not be deleted wait for the next try.
const EXPIRY_RETRY: Millis = 5_000;

/// The writer's own data; everything that others see is with the publisher.
pub struct Writer<C: Codec> {
    pub config: Config,
    pub codec: Arc<C>,
    pub disk: Arc<dyn Disk>,
    /// The log, and the way to readers and callers.
    pub stage: Stage<C::Object>,
    pub marks: Marks,
    /// The newest state: ahead of what is published while that is on its way to the disk.
    pub state: State<C::Object>,
    /// Guards why the writer stopped, if it did.
    pub broken: Arc<Mutex<Option<String>>>,
    /// When the oldest unsynced frame was written.
    pub dirty_since: Option<Millis>,
    /// Bytes of log that no snapshot covers.
    pub log_bytes: u64,
    /// Keys that go by themselves, soonest first.
    pub expiring: BTreeSet<(Millis, Key)>,
    pub queue: Arc<Queue<Request<C>>>,
    /// Taken from the queue, not looked at yet.
    pub waiting: VecDeque<Request<C>>,
    /// Whether requests follow each other closely.
    pub is_brisk: bool,
    /// The batch that is being made. There is none while duties are done.
    pub draft: Option<Draft<C>>,
    /// Memory for the next frame.
    pub buffer: Vec<u8>,
    pub snapshot: Option<RunningSnapshot>,
    pub snapshot_waiters: Vec<Reply<()>>,
    pub snapshot_not_before: Millis,
}

/// One batch: what the commits in it have come to so far. It is open for more for as long as the
/// batch before it is on its way to the disk.
pub struct Draft<C: Codec> {
    /// The state and the marks before it.
    before: (State<C::Object>, Marks),
    now: Millis,
    frame: Vec<u8>,
    answers: Vec<Answer<C::Object>>,
    news: Vec<(Revision, Batch<C::Object>)>,
    synced: bool,
    relaxed: bool,
}

impl<C: Codec> Draft<C> {
    fn is_full(&self) -> bool {
        self.answers.len() >= BATCH_COMMITS || self.frame.len() >= BATCH_BYTES
    }
}

impl<C: Codec> Writer<C> {
    /// Runs until it is closed.
    pub async fn run(mut self) {
        loop {
            if self.waiting.is_empty() {
                self.queue.take(&mut self.waiting);
            }
            let close = self.take_waiting();
            let is_full = self.draft.as_ref().is_some_and(Draft::is_full);
            if self.draft.is_some() && !is_full && !close && !self.stage.is_here() {
                self.queue.news().await;
                continue;
            }
            self.flush(true);
            self.duties();
            if close {
                return self.close();
            }
            if self.waiting.is_empty() && !self.spin() {
                let wait = self.until_next_duty();
                let asleep = Instant::now();
                tokio::select! {
                    biased;
                    () = self.queue.news() => {}
                    () = self.config.clock.sleep(wait) => {}
                }
                self.is_brisk = asleep.elapsed() < SPIN;
            }
        }
    }

    /// Looks for a request for a moment before going to sleep: to be woken takes longer. Only after
    /// the last one, too, came soon, and only while nothing is on its way: the processor is then
    /// better left to those who wait. Returns whether there is one.
    fn spin(&mut self) -> bool {
        let mut found = !self.queue.is_empty();
        if self.is_brisk && !found && self.stage.is_here() {
            let begin = Instant::now();
            while !found && begin.elapsed() < SPIN {
                std::hint::spin_loop();
                found = !self.queue.is_empty();
            }
            self.is_brisk = found;
        }
        found
    }

    /// Takes what waits, until the batch is full. Returns whether the store is to be closed behind it.
    fn take_waiting(&mut self) -> bool {
        while self.draft.as_ref().is_none_or(|draft| !draft.is_full())
            && let Some(request) = self.waiting.pop_front()
        {
            match request {
                Request::Close => return true,
                Request::SnapshotDone(result) => self.snapshot_done(result),
                Request::Snapshot { reply } => {
                    self.snapshot_waiters.push(reply);
                    self.snapshot_not_before = 0;
                }
                Request::Commit {
                    ops,
                    durability,
                    reply,
                } => self.add(ops, durability, reply),
                Request::Compact { revision, reply } => {
                    let mut draft = self.draft.take().unwrap_or_else(|| self.begin());
                    self.state.history.push(std::mem::take(&mut draft.news));
                    let result = self.compact(revision);
                    draft.synced |= result.is_ok();
                    draft.answers.push(Answer::Compact(reply, result));
                    self.draft = Some(draft);
                }
            }
        }
        false
    }

    /// Adds a commit to the batch.
    fn add(
        &mut self,
        ops: Vec<Op<C::Draft>>,
        durability: Durability,
        reply: Reply<Committed<C::Object>>,
    ) {
        let mut draft = self.draft.take().unwrap_or_else(|| self.begin());
        let written = draft.news.len();
        let result = self.commit(ops, &mut draft);
        if draft.news.len() > written {
            draft.synced |= durability == Durability::Synced;
            draft.relaxed |= durability == Durability::Relaxed;
        }
        draft.answers.push(Answer::Commit(reply, result));
        self.draft = Some(draft);
    }

    fn begin(&mut self) -> Draft<C> {
        let mut frame = std::mem::take(&mut self.buffer);
        frame::begin_again(&mut frame);
        // The marks' place; what they are is known at the end.
        frame.resize(frame.len() + record::MARKS, 0);
        Draft {
            before: (self.state.clone(), self.marks),
            now: self.now(),
            frame,
            answers: Vec::new(),
            news: Vec::new(),
            synced: false,
            relaxed: false,
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
        if self.dirty_since.is_some() {
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
        if self
            .dirty_since
            .is_some_and(|since| now - since >= patience)
        {
            self.dirty_since = None;
            if let Some(publisher) = self.stage.here()
                && let Err(fault) = publisher.log.sync()
            {
                publisher.fail(fault);
                return;
            }
        }
        let floor = self.state.history.floor();
        self.state.history.prune(&self.config.history, now);
        if self.state.history.floor() != floor {
            let state = self.state.clone();
            if let Some(publisher) = self.stage.here()
                && publisher.failure().is_none()
            {
                publisher.publish(state);
            }
        }
        self.start_snapshot_when_due(now);
    }

    /// Ends the batch: one frame, one sync. `beside`: the next may be made meanwhile.
    fn flush(&mut self, beside: bool) {
        let Some(mut draft) = self.draft.take() else {
            return;
        };
        self.state.history.push(std::mem::take(&mut draft.news));
        self.state.history.prune(&self.config.history, draft.now);
        if draft.relaxed && self.state.revision > self.marks.high_water {
            self.marks.high_water = self.state.revision + self.config.high_water_step;
            draft.synced = true;
        }
        let marks = Marks {
            time: draft.now,
            ..self.marks
        };
        frame::payload(&mut draft.frame)[..record::MARKS].copy_from_slice(&record::marks(&marks));
        let writes = draft.synced || draft.relaxed;
        let length = writes.then_some(draft.frame.len());
        let mut work = Work {
            frame: writes.then_some(draft.frame),
            sync: draft.synced,
            state: writes.then(|| self.state.clone()),
            answers: draft.answers,
        };
        // From here on the batch before this one is durable, or the store is broken.
        let Some(publisher) = self.stage.here() else {
            return;
        };
        let refused = publisher.failure().or_else(|| {
            let prepared = publisher.log.prepare(length?);
            prepared.err().map(|fault| publisher.fail(fault))
        });
        if let Some(error) = refused {
            (self.state, self.marks) = draft.before;
            self.buffer = work.frame.take().unwrap_or_default();
            let answers = work.answers.into_iter();
            return answers.for_each(|answer| answer.send(Some(&error)));
        }
        self.log_bytes = publisher.log.bytes() + length.unwrap_or(0) as u64;
        self.buffer = std::mem::take(&mut publisher.buffer);
        let past = publisher.past.take();
        if draft.synced {
            self.dirty_since = None;
        } else if writes {
            self.dirty_since.get_or_insert(draft.now);
        }
        // A few are done sooner than another thread is woken.
        let is_busy = work.answers.len() >= FEW || !self.queue.is_empty();
        if beside && is_busy {
            self.stage.send(work);
        } else {
            publisher.run(work).finish();
        }
        // Only now, when others work on: this takes its time.
        drop((past, draft.before));
    }

    /// Evaluates one commit against everything before it, and encodes it.
    fn commit(
        &mut self,
        ops: Vec<Op<C::Draft>>,
        draft: &mut Draft<C>,
    ) -> Result<Committed<C::Object>, Error> {
        self.state.check(&ops)?;
        let (revision, now, out) = (self.state.revision + 1, draft.now, &mut draft.frame);
        let written = ops.iter().filter(|op| self.state.would_change(op)).count();
        if written > 0 {
            record::put_commit(out, revision, written);
        }
        for op in ops.iter().filter(|op| self.state.would_change(op)) {
            match &op.action {
                Action::Put { draft, expires_in } => {
                    let expires = expiry(now, *expires_in);
                    record::put_put(out, &op.key, expires, self.codec.bytes(draft));
                    if expires != 0 {
                        self.expiring.insert((expires, op.key.clone()));
                    }
                }
                _ => record::put_delete(out, &op.key),
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
        let codec = &*self.codec;
        let news = &mut draft.news;
        Ok(self.state.apply(codec, revision, now, changes, news))
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
        let (reply, mut answer) = oneshot::channel();
        self.add(due, Durability::Relaxed, reply);
        self.flush(false);
        if !matches!(answer.try_recv(), Ok(Ok(_))) {
            // No space: they go when there is.
            let retry = again.into_iter().map(|(at, key)| (at + EXPIRY_RETRY, key));
            self.expiring.extend(retry);
        }
    }

    /// Says that nothing unsynced was lost, and gives reserved space back.
    fn close(mut self) {
        self.queue.close();
        if let Some(running) = self.snapshot.take() {
            let _ = running.thread.join();
        }
        let Some(publisher) = self.stage.here() else {
            return;
        };
        let has_news = !publisher.log.is_untouched() || self.marks.high_water > self.state.revision;
        if publisher.broken.lock().is_none() && has_news {
            let marks = Marks {
                high_water: 0,
                time: self.config.clock.now().as_millisecond(),
                ..self.marks
            };
            let mut frame = frame::begin();
            frame.extend_from_slice(&record::marks(&marks));
            let closed = publisher
                .log
                .prepare(frame.len())
                .and_then(|()| publisher.log.append(&mut frame))
                .and_then(|()| publisher.log.sync())
                .and_then(|()| publisher.log.close());
            if let Err(fault) = closed {
                let error = publisher.fail(fault);
                tracing::warn!(%error, "the store could not be closed cleanly");
            }
        }
        *publisher.broken.lock() = Some("the store is closed".into());
        publisher.hub.close();
    }
}

fn expiry(now: Millis, expires_in: Option<Duration>) -> Millis {
    expires_in.map_or(0, |wait| now.saturating_add(wait.as_millis() as Millis))
}
