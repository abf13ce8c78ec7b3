//! Snapshots while the store runs: when the log is longer than the live data, its segment is ended,
//! a thread writes the state at that point, and the files before it are removed.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::Ordering,
    thread::JoinHandle,
};

use super::{
    disk::Disk,
    intake::WriterCommand,
    log::spare_name,
    record::Marks,
    snapshot::{self, snapshot_name},
    writer::Writer,
};
use crate::{
    Codec, Error,
    memory::{Millis, State},
};

/// The delay after a failed snapshot.
const RETRY: Millis = 5_000;

/// The nice value of the snapshot thread (on Linux it applies to this thread only).
const NICE: i32 = 5;

/// A snapshot that is being written.
pub(super) struct RunningSnapshot {
    pub thread: JoinHandle<()>,
    /// Bytes of the log that it covers.
    covers: u64,
}

impl<C: Codec> Writer<C> {
    /// The log length that triggers a snapshot.
    pub(super) fn log_limit(&self) -> u64 {
        let live = self.stage.gauges.live_bytes.load(Ordering::Relaxed);
        self.config.log_limit(live)
    }

    /// Starts a snapshot if the log is long enough or one was requested.
    pub(super) fn start_snapshot_when_due(&mut self, now: Millis) {
        let limit = self.log_limit();
        let length = self.log.bytes();
        let rested = now >= self.snapshot_rests_until || length > self.config.max_log_bytes;
        let grown = length > limit && rested;
        let wanted = grown || !self.snapshot_waiters.is_empty();
        if self.snapshot.is_some() || !wanted || now < self.snapshot_not_before {
            return;
        }
        self.snapshot_not_before = now + RETRY;
        // The state must be that at the end of the log.
        self.stage.show();
        let ended = self.log.end();
        self.dirty_since = None;
        let (number, covers) = match ended {
            Ok(ended) => ended,
            Err(fault) => {
                let error = self.fail(fault);
                return self.finish_snapshot_waiters(Err(error));
            }
        };
        // Keep as many old segments as are needed until the next snapshot.
        let spares = limit.div_ceil(self.config.segment_bytes) as usize;
        let keep = SegmentReuse {
            spares: spares.saturating_sub(self.log.spares()),
            at_least: self.config.segment_bytes / 2,
        };
        let (disk, codec) = (self.disk.clone(), self.codec.clone());
        let (state, marks) = (
            self.published.moment(),
            Marks {
                time: now,
                ..self.marks
            },
        );
        let report = self.intake.clone();
        let work = move || {
            // Commits have priority. Without permission the priorities stay equal.
            let _ = rustix::process::setpriority_process(None, NICE);
            let write = || write_snapshot(&*disk, &*codec, number, &state, &marks, &keep);
            let result = catch_unwind(AssertUnwindSafe(write))
                .unwrap_or_else(|_| Err("writing a snapshot panicked".into()));
            // If the report is dropped, the next start cleans up.
            report.ask(WriterCommand::SnapshotDone(result));
        };
        match std::thread::Builder::new()
            .name("store-snapshot".into())
            .spawn(work)
        {
            Ok(thread) => self.snapshot = Some(RunningSnapshot { thread, covers }),
            Err(error) => tracing::warn!(%error, "cannot start a snapshot thread"),
        }
    }

    /// Handles the thread's report.
    pub(super) fn snapshot_done(&mut self, result: Result<Vec<String>, String>) {
        if let Some(running) = self.snapshot.take() {
            // A panic was already reported, and the log still has everything.
            let _ = running.thread.join();
            match &result {
                Ok(spares) => {
                    self.log.forget(running.covers, spares.clone());
                    self.snapshot_not_before = 0;
                    let rest = self.config.snapshot_rest.as_millis() as Millis;
                    self.snapshot_rests_until = self.now() + rest;
                }
                Err(why) => tracing::warn!(why, "cannot write a snapshot"),
            }
        }
        self.finish_snapshot_waiters(result.map(drop).map_err(Error::Unavailable));
    }

    /// Answers the callers that requested a snapshot.
    pub(super) fn finish_snapshot_waiters(&mut self, result: Result<(), Error>) {
        for waiter in self.snapshot_waiters.drain(..) {
            let _ = waiter.send(result.clone());
        }
    }
}

/// Which obsolete segments are kept for reuse.
pub(super) struct SegmentReuse {
    /// Their number.
    pub spares: usize,
    /// Their minimum length.
    pub at_least: u64,
}

fn write_snapshot<C: Codec>(
    disk: &dyn Disk,
    codec: &C,
    number: u64,
    state: &State<C::Object>,
    marks: &Marks,
    keep: &SegmentReuse,
) -> Result<Vec<String>, String> {
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
    remove_before(disk, number, keep).map_err(|error| {
        format!(
            "cannot remove files before {}: {error}",
            disk.path(&name).display()
        )
    })
}

/// Removes segments and snapshots that the snapshot `number` makes obsolete. Returns the names of
/// segments kept for reuse.
pub(super) fn remove_before(
    disk: &dyn Disk,
    number: u64,
    keep: &SegmentReuse,
) -> std::io::Result<Vec<String>> {
    let mut spares = Vec::new();
    for name in disk.list()? {
        let of = |prefix: &str| u64::from_str_radix(name.strip_prefix(prefix)?, 16).ok();
        if let Some(old) = of("log-").filter(|old| *old < number) {
            if spares.len() < keep.spares && disk.open(&name)?.size()? >= keep.at_least {
                let spare = spare_name(old);
                disk.rename(&name, &spare)?;
                spares.push(spare);
            } else {
                disk.remove(&name)?;
            }
        } else if of("snapshot-").is_some_and(|old| old < number) {
            disk.remove(&name)?;
        }
    }
    disk.sync()?;
    Ok(spares)
}
