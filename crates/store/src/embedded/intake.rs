//! Adds commits to batches.
//!
//! Callers add their commits themselves to the open batch: under one lock a commit is checked
//! against all earlier ones, gets its revision and is encoded. The writer takes the whole batch as
//! soon as the disk is free. Under low load the first caller of a batch writes it in place of the
//! writer ([`super::lead`]). A commit is checked against the keys of unpublished batches, then
//! against the published state.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use stdx::Clock;
use tokio::sync::{Notify, oneshot};

use super::{
    batch::{Batch, Done, Reply, Step},
    record,
};
use crate::{
    Action, Codec, Durability, Error, Key, Op, Precondition, Revision,
    memory::{Fresh, Millis, OneOrMany, Published, Slot, Write},
};

/// After a batch of at most this many steps, the next caller may write its batch itself.
const MAX_STEPS_FOR_CALLER_WRITE: usize = 2;

/// Shared by callers and the writer.
pub(super) struct Intake<C: Codec> {
    codec: Arc<C>,
    clock: Arc<dyn Clock>,
    published: Arc<Published<C::Object>>,
    /// Guards the open batch. The published state may be read under this lock, not the reverse.
    open: Mutex<Open<C>>,
    /// Whether there is work for the writer. Changed under the lock.
    has_news: AtomicBool,
    news: Notify,
}

struct Open<C: Codec> {
    /// Why no more commits are accepted.
    closed: Option<String>,
    /// Whether the writer has ended.
    has_ended: bool,
    /// The newest assigned revision.
    revision: Revision,
    batch: Batch<C::Object>,
    /// The pending revisions of the keys in `batch`.
    young: Pending,
    /// The same of earlier batches until they are published; the oldest first.
    old: VecDeque<Pending>,
    /// Memory for the next batch's keys.
    spare: Pending,
    /// Commits that did not fit into the batch.
    waiting: VecDeque<Commit<C>>,
    commands: Vec<WriterCommand>,
    /// The number of steps of the batch taken last.
    last: usize,
    /// Whether a caller writes `batch`, without the writer knowing.
    is_led: bool,
}

/// Revisions of keys that are not published yet; `None` if deleted.
pub(super) type Pending = HashMap<Key, Option<Revision>>;

struct Commit<C: Codec> {
    ops: Vec<Op<C::Draft>>,
    durability: Durability,
    reply: Reply<Done<C::Object>>,
}

/// A command to the writer.
pub(super) enum WriterCommand {
    /// Write a snapshot now.
    Snapshot(Reply<()>),
    /// The snapshot thread has finished, with these files for reuse.
    SnapshotDone(Result<Vec<String>, String>),
    /// Shut down.
    Close,
}

/// Receives the reply to a commit.
pub(super) type Answer<T> = oneshot::Receiver<Result<T, Error>>;

/// An added commit.
pub(super) struct Added<T> {
    pub answer: Answer<Done<T>>,
    /// Whether the caller must write the batch: the writer was not woken.
    pub leads: bool,
}

impl<C: Codec> Intake<C> {
    /// Continues after the published state.
    pub(super) fn new(
        codec: Arc<C>,
        clock: Arc<dyn Clock>,
        published: Arc<Published<C::Object>>,
    ) -> Self {
        let open = Open {
            closed: None,
            has_ended: false,
            revision: published.revision(),
            batch: Batch::default(),
            young: Pending::new(),
            old: VecDeque::new(),
            spare: Pending::new(),
            waiting: VecDeque::new(),
            commands: Vec::new(),
            last: 0,
            is_led: false,
        };
        Self {
            codec,
            clock,
            published,
            open: Mutex::new(open),
            has_news: AtomicBool::new(false),
            news: Notify::new(),
        }
    }

    /// Adds a commit that [`crate::check::ops`] has validated.
    pub(super) fn commit(
        &self,
        ops: Vec<Op<C::Draft>>,
        durability: Durability,
    ) -> Result<Added<C::Object>, Error> {
        let (reply, answer) = oneshot::channel();
        let commit = Commit {
            ops,
            durability,
            reply,
        };
        let mut open = self.open.lock();
        open.check()?;
        if open.batch.is_full() {
            open.waiting.push_back(commit);
        } else {
            self.add(&mut open, commit);
        }
        let may_lead = open.last <= MAX_STEPS_FOR_CALLER_WRITE && open.batch.runtime.is_some();
        let leads = self.tell(open, may_lead);
        Ok(Added { answer, leads })
    }

    /// Whether the batch is still a single commit whose caller writes it.
    pub(super) fn is_led(&self) -> bool {
        self.open.lock().is_led
    }

    /// Adds a compaction.
    pub(super) fn compact(&self, revision: Revision) -> Result<Answer<()>, Error> {
        let (reply, answer) = oneshot::channel();
        let mut open = self.open.lock();
        open.check()?;
        if revision > open.revision {
            return Err(Error::Future {
                requested: revision,
                newest: open.revision,
            });
        }
        self.begin(&mut open);
        open.batch.floor = open.batch.floor.max(revision);
        open.batch.synced = true;
        open.batch.steps.push(Step::Compact(revision, reply));
        self.tell(open, false);
        Ok(answer)
    }

    /// Sends a command to the writer; dropped if it has ended.
    pub(super) fn ask(&self, command: WriterCommand) {
        let mut open = self.open.lock();
        if !open.has_ended {
            open.commands.push(command);
            self.tell(open, false);
        }
    }

    /// Why nothing is accepted any more, if so.
    pub(super) fn failure(&self) -> Option<String> {
        self.open.lock().closed.clone()
    }

    /// Accepts nothing any more. The first reason is kept.
    pub(super) fn close(&self, why: &str) {
        let mut open = self.open.lock();
        open.closed.get_or_insert_with(|| why.to_owned());
    }

    /// The writer has ended: pending callers get an error.
    pub(super) fn end(&self) {
        let mut open = self.open.lock();
        open.has_ended = true;
        open.closed
            .get_or_insert_with(|| "the store is closed".into());
        let dropped = (
            std::mem::take(&mut open.batch),
            std::mem::take(&mut open.waiting),
            std::mem::take(&mut open.commands),
        );
        drop(open);
        drop(dropped);
    }

    /// Whether there is work for the writer.
    pub(super) fn has_news(&self) -> bool {
        self.has_news.load(Ordering::Relaxed)
    }

    /// Waits until there is, or was, work for the writer.
    pub(super) async fn news(&self) {
        self.news.notified().await;
    }

    /// Takes the commands to the writer.
    pub(super) fn commands(&self) -> Vec<WriterCommand> {
        std::mem::take(&mut self.open.lock().commands)
    }

    /// Takes the batch, in exchange for memory for the next. False if it is empty.
    pub(super) fn take(&self, batch: &mut Batch<C::Object>) -> bool {
        let mut open = self.open.lock();
        let is_taken = !open.batch.steps.is_empty();
        if is_taken {
            open.last = open.batch.steps.len();
            open.is_led = false;
            let whole = open.batch.whole;
            open.batch.frame.truncate(whole);
            std::mem::swap(&mut open.batch, batch);
            let spare = std::mem::take(&mut open.spare);
            let pending = std::mem::replace(&mut open.young, spare);
            open.old.push_back(pending);
        }
        self.add_waiting(&mut open);
        self.has_news.store(!open.is_idle(), Ordering::Relaxed);
        is_taken
    }

    /// The oldest taken batch was published. Also exchanges memory for keys.
    pub(super) fn settle(&self, spare: &mut Pending) {
        let mut open = self.open.lock();
        std::mem::swap(&mut open.spare, spare);
        let settled = open.old.pop_front();
        drop(open);
        if let Some(mut settled) = settled {
            settled.clear();
            *spare = settled;
        }
    }

    /// The batch taken last has failed, and with it all that were checked against it. All earlier
    /// ones are published.
    pub(super) fn give_up(&self, error: &Error) {
        let mut open = self.open.lock();
        open.revision = self.published.revision();
        open.young.clear();
        open.old.clear();
        let steps = std::mem::take(&mut open.batch.steps);
        drop(open);
        for step in steps {
            step.fail(error);
        }
    }

    /// Wakes the writer if there is new work. The caller of the first commit may write the batch
    /// instead, until another commit joins it. Returns whether the caller does.
    fn tell(&self, mut open: MutexGuard<'_, Open<C>>, may_lead: bool) -> bool {
        let is_first = !self.has_news() && !open.is_idle();
        if is_first {
            self.has_news.store(true, Ordering::Relaxed);
        }
        let leads = is_first && may_lead;
        let was_led = std::mem::replace(&mut open.is_led, leads);
        drop(open);
        if is_first && !leads || was_led {
            self.wake();
        }
        leads
    }

    /// Wakes the writer.
    pub(super) fn wake(&self) {
        self.news.notify_one();
    }

    fn begin(&self, open: &mut Open<C>) {
        if open.batch.steps.is_empty() {
            open.batch.begin(self.after(Duration::ZERO), open.revision);
        }
    }

    /// The time after `wait`.
    fn after(&self, wait: Duration) -> Millis {
        let now = self.clock.now().as_millisecond();
        now.saturating_add(wait.as_millis() as Millis)
    }

    fn add_waiting(&self, open: &mut Open<C>) {
        while !open.batch.is_full()
            && let Some(commit) = open.waiting.pop_front()
        {
            self.add(open, commit);
        }
    }

    /// Checks a commit against all earlier ones, and adds it.
    fn add(&self, open: &mut Open<C>, commit: Commit<C>) {
        let Commit {
            ops,
            durability,
            reply,
        } = commit;
        if let Err(refusal) = self.check(open, &ops) {
            return match refusal {
                // A caller that no longer waits misses only the reply.
                Refusal::ForGood(error) => drop(reply.send(Err(error))),
                Refusal::Yet(error) => {
                    self.begin(open);
                    open.batch.steps.push(Step::Refuse(error, reply));
                }
            };
        }
        self.begin(open);
        let written = ops.iter().filter(|op| self.changes(open, op)).count();
        let revision = open.revision + u64::from(written > 0);
        let writes = self.encode(open, ops, revision, written);
        // Nothing fails from here on.
        for write in writes.as_slice().iter().flatten() {
            match write {
                Write::Put(key, _) => open.young.insert(key.clone(), Some(revision)),
                Write::Delete(key) => open.young.insert(key.clone(), None),
            };
        }
        let batch = &mut open.batch;
        batch.whole = batch.frame.len();
        if written > 0 {
            batch.synced |= durability == Durability::Synced;
            batch.relaxed |= durability == Durability::Relaxed;
        }
        batch.revision = revision;
        batch.steps.push(Step::Commit {
            revision,
            writes,
            reply,
        });
        open.revision = revision;
    }

    /// Appends a commit to the batch's frame. It counts only once the caller updates `whole`.
    fn encode(
        &self,
        open: &mut Open<C>,
        ops: Vec<Op<C::Draft>>,
        revision: Revision,
        written: usize,
    ) -> OneOrMany<Option<Write<C::Object>>> {
        open.batch.frame.truncate(open.batch.whole);
        if written > 0 {
            record::put_commit(&mut open.batch.frame, revision, written);
        }
        OneOrMany::from(ops).map(|op| {
            if !self.changes(open, &op) {
                return None;
            }
            let frame = &mut open.batch.frame;
            Some(match op.action {
                Action::Put { draft, expires_in } => {
                    let expires = expires_in.map_or(0, |wait| self.after(wait));
                    let sealed = self.codec.seal(&op.key, self.codec.bytes(&draft));
                    record::put_put(frame, &op.key, expires, &sealed);
                    let fresh = Fresh::new(&*self.codec, &op.key, draft, revision, expires);
                    Write::Put(op.key, fresh)
                }
                Action::Delete | Action::Check => {
                    record::put_delete(frame, &op.key);
                    Write::Delete(op.key)
                }
            })
        })
    }

    /// Checks all preconditions.
    fn check(&self, open: &Open<C>, ops: &[Op<C::Draft>]) -> Result<(), Refusal> {
        for op in ops {
            if op.precondition == Precondition::Any {
                continue;
            }
            let pending = open.pending(&op.key);
            let current = pending.unwrap_or_else(|| self.published(&op.key));
            let holds = match op.precondition {
                Precondition::Any => true,
                Precondition::Absent => current.is_none(),
                Precondition::Exists => current.is_some(),
                Precondition::Revision(revision) => current == Some(revision),
            };
            if !holds {
                let key = op.key.clone();
                let error = Error::Conflict { key, current };
                return Err(match pending {
                    None => Refusal::ForGood(error),
                    Some(_) => Refusal::Yet(error),
                });
            }
        }
        Ok(())
    }

    /// Whether an operation changes anything.
    fn changes(&self, open: &Open<C>, op: &Op<C::Draft>) -> bool {
        match op.action {
            Action::Put { .. } => true,
            Action::Delete => {
                let pending = open.pending(&op.key);
                pending.unwrap_or_else(|| self.published(&op.key)).is_some()
            }
            Action::Check => false,
        }
    }

    /// The revision of a key in the published state.
    fn published(&self, key: &[u8]) -> Option<Revision> {
        let revision = |slot: &Arc<Slot<C::Object>>| slot.entry.mod_revision;
        self.published
            .read(|state| state.entries.get(key).map(revision))
    }
}

impl<C: Codec> Open<C> {
    fn check(&self) -> Result<(), Error> {
        match &self.closed {
            Some(why) => Err(Error::Unavailable(why.clone())),
            None => Ok(()),
        }
    }

    fn is_idle(&self) -> bool {
        self.batch.steps.is_empty() && self.waiting.is_empty() && self.commands.is_empty()
    }

    /// The pending revision of a key, if it is not published yet.
    fn pending(&self, key: &[u8]) -> Option<Option<Revision>> {
        let newest = std::iter::once(&self.young).chain(self.old.iter().rev());
        newest
            .filter_map(|pending| pending.get(key))
            .next()
            .copied()
    }
}

/// Why a commit is rejected.
enum Refusal {
    /// Because of a published write.
    ForGood(Error),
    /// Because of a write that is not durable yet: the caller must not learn of it before it is.
    Yet(Error),
}
