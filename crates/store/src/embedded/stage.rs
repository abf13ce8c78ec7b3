//! The last step of a batch: what is durable is shown to readers and watchers, and callers are told.
//!
//! Many callers are told by a task of their own runtime, because to wake a task from outside of its
//! runtime takes much longer, and because the writer then has the next batch on its way already. A
//! runtime may be busy, or gone: the writer does what the runtime has not come round to before it
//! lets batches pile up, sleeps, or does anything that needs the newest state.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::runtime::{Handle, RuntimeFlavor};

use super::{
    batch::{Done, Reply, Step},
    intake::{Intake, Pending},
};
use crate::{
    Codec, Error, Key,
    memory::{Hub, Limits, Millis, Published},
};

/// Fewer callers than this are told at once.
const MANY: usize = 8;
/// Most batches that wait for a runtime.
const PATIENCE: usize = 2;
/// Readers wait for so many commits at most.
const SHOWN_AT_ONCE: usize = 128;

/// What is durable and not shown yet.
pub(super) struct Stage<C: Codec> {
    pub intake: Arc<Intake<C>>,
    pub published: Arc<Published<C::Object>>,
    pub hub: Arc<Hub<C::Object>>,
    pub limits: Limits,
    /// Guards batches that wait to be shown, in order, and memory for the next.
    pub waiting: Mutex<Waiting<C::Object>>,
    /// Held by whoever shows a batch, so that they are shown in order. Taken before `waiting`.
    pub showing: Mutex<Showing>,
    /// What the writer looks at between batches, without waiting for whoever shows one.
    pub gauges: Gauges,
}

/// As of the last batch that was shown.
#[derive(Default)]
pub(super) struct Gauges {
    /// Bytes of live keys and values.
    pub live_bytes: AtomicU64,
    /// When the first key goes by itself, or earlier; 0 when none does.
    pub next_expiry: AtomicI64,
}

/// A batch that waits to be shown.
pub(super) struct Durable<T> {
    pub time: Millis,
    pub steps: Vec<Step<T>>,
}

/// Batches that wait to be shown.
pub(super) struct Waiting<T> {
    batches: VecDeque<Durable<T>>,
    spare: Vec<Step<T>>,
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Self {
            batches: VecDeque::new(),
            spare: Vec::new(),
        }
    }
}

/// What whoever shows a batch needs.
#[derive(Default)]
pub(super) struct Showing {
    /// Keys that go by themselves, soonest first.
    pub expiring: BTreeSet<(Millis, Key)>,
    /// Memory for the keys of a batch.
    pub spare: Pending,
}

/// An answer that is due.
enum Answer<T> {
    Commit(Reply<Done<T>>, Result<Done<T>, Error>),
    Compact(Reply<()>),
}

impl<T> Answer<T> {
    /// Whoever no longer waits loses only the answer.
    fn send(self) {
        match self {
            Self::Commit(reply, result) => drop(reply.send(result)),
            Self::Compact(reply) => drop(reply.send(Ok(()))),
        }
    }
}

impl<C: Codec> Stage<C> {
    /// Has a batch shown, by a task of this runtime if there is one.
    pub(super) fn push(self: &Arc<Self>, batch: Durable<C::Object>, runtime: Option<Handle>) {
        let is_much = batch.steps.len() >= MANY;
        let mut waiting = self.waiting.lock();
        waiting.batches.push_back(batch);
        let is_late = waiting.batches.len() > PATIENCE;
        drop(waiting);
        match runtime {
            Some(runtime) if is_much && !is_late => {
                let stage = self.clone();
                runtime.spawn(async move { stage.show() });
            }
            _ => self.show(),
        }
    }

    /// Memory for the steps of a batch.
    pub(super) fn spare(&self) -> Vec<Step<C::Object>> {
        std::mem::take(&mut self.waiting.lock().spare)
    }

    /// Shows everything that is durable.
    pub(super) fn show(&self) {
        loop {
            let mut showing = self.showing.lock();
            let Some(batch) = self.waiting.lock().batches.pop_front() else {
                return;
            };
            let guard = Unfinished(&self.intake);
            let answers = self.show_batch(batch, &mut showing);
            self.intake.settle(&mut showing.spare);
            drop(showing);
            drop(guard);
            answers.into_iter().for_each(Answer::send);
            self.hub.wake();
        }
    }

    fn show_batch(
        &self,
        batch: Durable<C::Object>,
        showing: &mut Showing,
    ) -> Vec<Answer<C::Object>> {
        let Durable { time, mut steps } = batch;
        let mut answers = Vec::with_capacity(steps.len());
        let mut rest = steps.drain(..);
        while rest.len() > 0 {
            let forgotten = self.published.change(|state| {
                let (mut news, mut forgotten) = (Vec::with_capacity(rest.len()), Vec::new());
                for step in rest.by_ref().take(SHOWN_AT_ONCE) {
                    answers.push(match step {
                        Step::Refuse(error, reply) => Answer::Commit(reply, Err(error)),
                        Step::Compact(revision, reply) => {
                            state.history.push(std::mem::take(&mut news));
                            forgotten.push(state.history.forget(revision));
                            Answer::Compact(reply)
                        }
                        Step::Commit {
                            revision,
                            writes,
                            reply,
                        } => {
                            let slots = state.apply(revision, time, writes, &mut news);
                            Answer::Commit(reply, Ok(Done { revision, slots }))
                        }
                    });
                }
                state.history.push(news);
                forgotten.push(state.history.prune(&self.limits, time));
                self.gauges.live_bytes.store(state.bytes, Ordering::Relaxed);
                forgotten
            });
            // Only now, without the lock: this takes its time.
            drop(forgotten);
        }
        drop(rest);
        self.waiting.lock().spare = steps;
        note_expiring(&answers, &mut showing.expiring);
        self.note_next_expiry(showing);
        answers
    }

    /// Tells the writer when the first key goes by itself.
    pub(super) fn note_next_expiry(&self, showing: &Showing) {
        let next = showing.expiring.first().map_or(0, |(at, _)| *at);
        self.gauges.next_expiry.store(next, Ordering::Relaxed);
    }
}

fn note_expiring<T>(answers: &[Answer<T>], expiring: &mut BTreeSet<(Millis, Key)>) {
    for answer in answers {
        let Answer::Commit(_, Ok(done)) = answer else {
            continue;
        };
        for slot in done.slots.as_slice().iter().flatten() {
            if slot.expires != 0 && slot.entry.mod_revision == done.revision {
                expiring.insert((slot.expires, slot.entry.key.clone()));
            }
        }
    }
}

/// Stops the store for good when a batch is shown by halves.
struct Unfinished<'a, C: Codec>(&'a Intake<C>);

impl<C: Codec> Drop for Unfinished<'_, C> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.close("the writer panicked");
        }
    }
}

/// The runtime of the caller, if it has threads that look after its tasks.
pub(super) fn runtime() -> Option<Handle> {
    let runtime = Handle::try_current().ok()?;
    (runtime.runtime_flavor() == RuntimeFlavor::MultiThread).then_some(runtime)
}
