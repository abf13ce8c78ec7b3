//! The single writer: takes the open batch, writes it to the log as one frame, syncs it once, and
//! only then has it published (see [`super::stage`]). Meanwhile the next batch is filled. It has a
//! thread, but a caller that holds its lock may do its work ([`super::lead`]).

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{
    Config,
    batch::{Batch, Reply},
    checkpoint::RunningSnapshot,
    disk::Disk,
    frame::Buffer,
    intake::{Intake, WriterCommand},
    log::{Fault, Log},
    manifest::{Manifest, Synced},
    record::{self, Marks},
    stage::{Durable, Stage},
};
use crate::{
    Action, Codec, Durability, Error, Op, Precondition, Revision,
    memory::{Millis, Published, State},
};

/// How long the writer polls for the next batch before it sleeps.
const SPIN: Duration = Duration::from_micros(60);
/// The failure of a store whose writer panicked.
pub(super) const PANICKED: &str = "the writer panicked";
/// The delay before expired keys that could not be deleted are retried.
const EXPIRY_RETRY: Millis = 5_000;
/// How far the manifest may lag behind the log, in milliseconds.
const MANIFEST_EVERY: Millis = 1_000;

/// Owns the log.
pub(super) struct Writer<C: Codec> {
    pub config: Config,
    pub codec: Arc<C>,
    pub disk: Arc<dyn Disk>,
    pub log: Log,
    pub marks: Marks,
    pub intake: Arc<Intake<C>>,
    pub published: Arc<Published<C::Object>>,
    /// Publishes batches.
    pub stage: Arc<Stage<C>>,
    /// Why nothing more is written to the log, if so.
    pub broken: Option<String>,
    /// When the oldest unsynced frame was written.
    pub dirty_since: Option<Millis>,
    /// When its thread wakes up by itself.
    pub wakes_at: Millis,
    /// The current batch.
    pub batch: Batch<C::Object>,
    /// The newest revision in the log, synced or not.
    pub appended: Revision,
    /// What is durable.
    pub synced: Synced,
    /// Records that for the next start.
    pub manifest: Manifest,
    /// When it was last written, or failed to be.
    pub manifest_at: Millis,
    pub snapshot: Option<RunningSnapshot>,
    pub snapshot_waiters: Vec<Reply<()>>,
    pub snapshot_not_before: Millis,
    /// No snapshot before this time, unless space is short.
    pub snapshot_rests_until: Millis,
}

/// Runs until the store is closed.
pub(super) async fn run<C: Codec>(writer: &Mutex<Writer<C>>) {
    // Needed while another holds the lock.
    let intake = writer.lock().intake.clone();
    let stage = writer.lock().stage.clone();
    let clock = writer.lock().config.clock.clone();
    // Whether batches follow each other closely.
    let mut is_brisk = false;
    loop {
        if writer.lock().turn() {
            return;
        }
        if intake.has_news() {
            continue;
        }
        is_brisk = is_brisk && spin(&intake);
        if is_brisk {
            continue;
        }
        stage.show();
        let wait = writer.lock().rest();
        let asleep = Instant::now();
        tokio::select! {
            biased;
            () = intake.news() => {}
            () = clock.sleep(wait) => {}
        }
        is_brisk = asleep.elapsed() < SPIN;
    }
}

/// Polls for a batch before going to sleep, since being woken takes longer. Only if the last one
/// came soon, too. Returns whether there is one.
fn spin<C: Codec>(intake: &Intake<C>) -> bool {
    let begin = Instant::now();
    loop {
        if intake.has_news() {
            return true;
        }
        if begin.elapsed() >= SPIN {
            return false;
        }
        std::hint::spin_loop();
    }
}

impl<C: Codec> Writer<C> {
    /// Does all pending work. Returns whether the store was closed.
    fn turn(&mut self) -> bool {
        let is_closing = self.handle_commands();
        let is_idle = !self.flush();
        match is_closing {
            true => self.close(),
            false => self.duties(is_idle),
        }
        is_closing
    }

    /// Writes a small batch on the caller's thread. A panic stops the store for good, like one in
    /// the writer's thread.
    pub(super) fn lead(&mut self) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.flush())) {
            self.broken = Some(PANICKED.to_owned());
            self.intake.close(PANICKED);
            self.batch.steps.clear();
            self.intake.wake();
            resume_unwind(panic);
        }
        let next_duty = self.now() + self.until_next_duty().as_millis() as Millis;
        if self.intake.has_news() || next_duty < self.wakes_at {
            self.intake.wake();
        }
    }

    /// The time until the next periodic task.
    fn rest(&mut self) -> Duration {
        let wait = self.until_next_duty();
        self.wakes_at = self.now() + wait.as_millis() as Millis;
        wait
    }

    /// Handles commands. Returns whether the store is to be closed.
    fn handle_commands(&mut self) -> bool {
        let mut is_closing = false;
        for command in self.intake.commands() {
            match command {
                WriterCommand::Close => is_closing = true,
                WriterCommand::SnapshotDone(result) => self.snapshot_done(result),
                WriterCommand::Snapshot(reply) => {
                    self.snapshot_waiters.push(reply);
                    self.snapshot_not_before = 0;
                }
            }
        }
        is_closing
    }

    pub(super) fn now(&self) -> Millis {
        self.config.clock.now().as_millisecond()
    }

    fn until_next_duty(&self) -> Duration {
        let now = self.now();
        let mut wait = self.config.history.age.min(Duration::from_secs(30));
        if self.intake.failure().is_some() {
            return wait;
        }
        let next_expiry = self.stage.gauges.next_expiry.load(Ordering::Relaxed);
        if next_expiry != 0 {
            wait = wait.min(Duration::from_millis((next_expiry - now).max(0) as u64));
        }
        if self.dirty_since.is_some() {
            wait = wait.min(self.config.relaxed_sync);
        }
        if self.synced.revision > self.manifest.written.revision {
            let due = self.manifest_at + MANIFEST_EVERY;
            wait = wait.min(Duration::from_millis((due - now).max(0) as u64));
        }
        if self.snapshot.is_none() && self.log.bytes() > self.log_limit() {
            let due = self.snapshot_rests_until.max(self.snapshot_not_before);
            wait = wait.min(Duration::from_millis((due - now).max(0) as u64));
        }
        wait
    }

    /// Periodic tasks: expiry, the sync of relaxed writes, pruning of history, snapshots. While
    /// there are batches, nothing here waits for the publishing lock.
    fn duties(&mut self, is_idle: bool) {
        if let Some(why) = self.intake.failure() {
            return self.finish_snapshot_waiters(Err(Error::Unavailable(why)));
        }
        let now = self.now();
        self.expire(now);
        let patience = self.config.relaxed_sync.as_millis() as Millis;
        if self
            .dirty_since
            .is_some_and(|since| now - since >= patience)
        {
            self.dirty_since = None;
            if let Err(fault) = self.sync() {
                self.fail(fault);
                return;
            }
        }
        if now - self.manifest_at >= MANIFEST_EVERY {
            self.write_manifest(now);
        }
        if is_idle {
            let limits = &self.config.history;
            let prune = |state: &mut State<C::Object>| state.history.prune(limits, now);
            if !self.published.change(prune).is_empty() {
                self.stage.hub.wake();
            }
        }
        self.start_snapshot_when_due(now);
    }

    /// Makes the open batch durable and has it published. False if it is empty.
    fn flush(&mut self) -> bool {
        if !self.intake.take(&mut self.batch) {
            return false;
        }
        let before = self.marks;
        let (time, revision) = (self.batch.time, self.batch.revision);
        self.marks.floor = self.marks.floor.max(self.batch.floor);
        if self.batch.relaxed && revision > self.marks.high_water {
            self.marks.high_water = revision + self.config.high_water_step;
            self.batch.synced = true;
        }
        if self.batch.writes() {
            let marks = record::marks(&Marks { time, ..self.marks });
            self.batch.frame.payload()[..record::MARKS].copy_from_slice(&marks);
            if let Err(fault) = self.write() {
                self.marks = before;
                let error = self.fail(fault);
                self.stage.show();
                self.intake.give_up(&error);
                let steps = self.batch.steps.drain(..);
                steps.for_each(|step| step.fail(&error));
                return true;
            }
        }
        let steps = std::mem::replace(&mut self.batch.steps, self.stage.spare());
        let batch = Durable { time, steps };
        self.stage.push(batch, self.batch.runtime.take());
        true
    }

    fn write(&mut self) -> Result<(), Fault> {
        let Batch {
            frame,
            time,
            revision,
            synced,
            ..
        } = &mut self.batch;
        if let Some(why) = &self.broken {
            return Err(Fault::Refused(why.clone()));
        }
        self.log.prepare(frame.len())?;
        self.log.append(frame)?;
        self.appended = *revision;
        if *synced {
            self.sync()?;
            self.dirty_since = None;
        } else {
            self.dirty_since.get_or_insert(*time);
        }
        Ok(())
    }

    /// Syncs the log.
    fn sync(&mut self) -> Result<(), Fault> {
        self.log.sync()?;
        self.synced = Synced {
            revision: self.appended,
            segment: self.log.segment(),
        };
        Ok(())
    }

    /// Updates the manifest. If that fails, it is retried later: the older record is still true.
    fn write_manifest(&mut self, now: Millis) {
        self.manifest_at = now;
        if let Err(error) = self.manifest.write(&*self.disk, self.synced) {
            tracing::warn!(%error, "cannot write the store manifest");
        }
    }

    /// The error for callers; a broken log stops the writer for good.
    pub(super) fn fail(&mut self, fault: Fault) -> Error {
        match fault {
            Fault::Full(why) => {
                // A snapshot would free the space of the log.
                self.snapshot_rests_until = 0;
                Error::Full(why)
            }
            Fault::Refused(why) => Error::Unavailable(why),
            Fault::Broken(why) => {
                tracing::error!(why, "store is read-only until restarted");
                self.intake.close(&why);
                self.broken = Some(why.clone());
                Error::Unavailable(why)
            }
        }
    }

    /// Deletes expired keys, some hundred per commit.
    fn expire(&mut self, now: Millis) {
        let next = self.stage.gauges.next_expiry.load(Ordering::Relaxed);
        if next == 0 || next > now {
            return;
        }
        let mut due = Vec::new();
        let mut showing = self.stage.showing.lock();
        while let Some((at, key)) = showing.expiring.first().cloned() {
            if at > now || due.len() == 256 {
                break;
            }
            showing.expiring.pop_first();
            // A key that was written again has another expiry, or none.
            let revision = self.published.read(|state| {
                let slot = state.entries.get(&key)?;
                let is_over = slot.expires != 0 && slot.expires <= now;
                is_over.then_some(slot.entry.mod_revision)
            });
            if let Some(revision) = revision {
                due.push(Op {
                    key,
                    precondition: Precondition::Revision(revision),
                    action: Action::Delete,
                });
            }
        }
        self.stage.note_next_expiry(&showing);
        drop(showing);
        if due.is_empty() {
            return;
        }
        let again: Vec<_> = due.iter().map(|op| (now, op.key.clone())).collect();
        let answer = self.intake.commit(due, Durability::Relaxed);
        self.flush();
        self.stage.show();
        let is_done = answer.is_ok_and(|mut added| matches!(added.answer.try_recv(), Ok(Ok(_))));
        if !is_done {
            // No space, or a conflict: retry later.
            let retry = again.into_iter().map(|(at, key)| (at + EXPIRY_RETRY, key));
            let mut showing = self.stage.showing.lock();
            showing.expiring.extend(retry);
            self.stage.note_next_expiry(&showing);
        }
    }

    /// Shuts down: records that everything is synced, and frees reserved space.
    fn close(&mut self) {
        self.intake.close("the store is closed");
        while self.intake.has_news() {
            // Also handles commands that were queued meanwhile; no caller waits for them.
            self.handle_commands();
            self.flush();
        }
        if let Some(running) = self.snapshot.take() {
            let _ = running.thread.join();
        }
        let has_news =
            !self.log.is_untouched() || self.marks.high_water > self.published.revision();
        if self.broken.is_none() && has_news {
            let marks = Marks {
                high_water: 0,
                time: self.now(),
                ..self.marks
            };
            let mut frame = Buffer::new();
            let marks = record::marks(&marks);
            frame.room(marks.len()).extend_from_slice(&marks);
            let closed = self
                .log
                .prepare(frame.len())
                .and_then(|()| self.log.append(&mut frame))
                .and_then(|()| self.sync())
                .and_then(|()| self.log.close());
            match closed {
                Ok(()) => self.write_manifest(self.now()),
                Err(fault) => {
                    let error = self.fail(fault);
                    tracing::warn!(%error, "cannot close the store cleanly");
                }
            }
        }
        self.intake.end();
        self.stage.hub.close();
    }
}
