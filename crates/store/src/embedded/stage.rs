//! The last step of a batch: publishes what is durable to readers and watchers, and replies to
//! callers.
//!
//! With many callers a task of their own tokio runtime replies, because waking a task from outside
//! its runtime takes much longer, and because the writer can then write the next batch. The runtime
//! may be busy or gone: the writer publishes the rest itself before batches pile up, before it
//! sleeps, and before anything that needs the newest state.

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

/// With fewer callers the writer replies itself.
const MIN_CALLERS_FOR_TASK: usize = 8;
/// The maximum number of batches that wait for a runtime.
const MAX_WAITING_BATCHES: usize = 2;
/// Readers wait for at most this many commits.
const SHOWN_AT_ONCE: usize = 128;

/// Durable batches that are not published yet.
pub(super) struct Stage<C: Codec> {
    pub intake: Arc<Intake<C>>,
    pub published: Arc<Published<C::Object>>,
    pub hub: Arc<Hub<C::Object>>,
    pub limits: Limits,
    /// Guards batches to publish, in order, and memory for the next.
    pub waiting: Mutex<Waiting<C::Object>>,
    /// Held while a batch is published, so that they are published in order. Locked before
    /// `waiting`.
    pub showing: Mutex<PublishState>,
    /// Figures for the writer, which it reads between batches without this lock.
    pub gauges: Gauges,
}

/// As of the last published batch.
#[derive(Default)]
pub(super) struct Gauges {
    /// Bytes of live keys and values.
    pub live_bytes: AtomicU64,
    /// When the first key expires, or earlier; 0 if none does.
    pub next_expiry: AtomicI64,
}

/// A durable batch to publish.
pub(super) struct Durable<T> {
    pub time: Millis,
    pub steps: Vec<Step<T>>,
}

/// Batches to publish.
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

/// State needed to publish batches.
#[derive(Default)]
pub(super) struct PublishState {
    /// Keys with an expiry, soonest first.
    pub expiring: BTreeSet<(Millis, Key)>,
    /// Memory for the keys of a batch.
    pub spare: Pending,
}

/// A pending reply.
enum Answer<T> {
    Commit(Reply<Done<T>>, Result<Done<T>, Error>),
    Compact(Reply<()>),
}

impl<T> Answer<T> {
    /// A caller that no longer waits misses only the reply.
    fn send(self) {
        match self {
            Self::Commit(reply, result) => drop(reply.send(result)),
            Self::Compact(reply) => drop(reply.send(Ok(()))),
        }
    }
}

impl<C: Codec> Stage<C> {
    pub(super) fn new(
        intake: &Arc<Intake<C>>,
        published: &Arc<Published<C::Object>>,
        hub: &Arc<Hub<C::Object>>,
        limits: Limits,
    ) -> Self {
        Self {
            intake: intake.clone(),
            published: published.clone(),
            hub: hub.clone(),
            limits,
            waiting: Mutex::default(),
            showing: Mutex::default(),
            gauges: Gauges::default(),
        }
    }

    /// Begins with what recovery found: the keys with an expiry, and the bytes of live keys and values.
    pub(super) fn begin(&self, expiring: BTreeSet<(Millis, Key)>, live_bytes: u64) {
        self.gauges.live_bytes.store(live_bytes, Ordering::Relaxed);
        let mut showing = self.showing.lock();
        showing.expiring = expiring;
        self.note_next_expiry(&showing);
    }

    /// Queues a batch for publishing, by a task of this runtime if there is one.
    pub(super) fn push(self: &Arc<Self>, batch: Durable<C::Object>, runtime: Option<Handle>) {
        let is_much = batch.steps.len() >= MIN_CALLERS_FOR_TASK;
        let mut waiting = self.waiting.lock();
        waiting.batches.push_back(batch);
        let is_late = waiting.batches.len() > MAX_WAITING_BATCHES;
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

    /// Publishes everything that is durable.
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
        showing: &mut PublishState,
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
            // Dropped without the lock, since it takes time.
            drop(forgotten);
        }
        drop(rest);
        self.waiting.lock().spare = steps;
        note_expiring(&answers, &mut showing.expiring);
        self.note_next_expiry(showing);
        answers
    }

    /// Tells the writer when the first key expires.
    pub(super) fn note_next_expiry(&self, showing: &PublishState) {
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

/// Stops the store for good if publishing a batch panics halfway.
struct Unfinished<'a, C: Codec>(&'a Intake<C>);

impl<C: Codec> Drop for Unfinished<'_, C> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.close("the writer panicked");
        }
    }
}

/// The caller's runtime, if it is multi-threaded.
pub(super) fn runtime() -> Option<Handle> {
    let runtime = Handle::try_current().ok()?;
    (runtime.runtime_flavor() == RuntimeFlavor::MultiThread).then_some(runtime)
}
