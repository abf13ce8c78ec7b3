//! Snapshots while the store runs: when the log has grown past the live data, it is ended, the state
//! of that moment is written by a thread of its own, and the files before it are removed.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    thread::JoinHandle,
};

use super::{
    disk::Disk,
    log::segment_name,
    record::Marks,
    request::Request,
    snapshot::{self, snapshot_name},
    writer::Writer,
};
use crate::{
    Codec, Error,
    memory::{Millis, State},
};

/// How long a failed snapshot waits for the next try.
const RETRY: Millis = 5_000;

/// A snapshot that is being written.
pub struct RunningSnapshot {
    pub thread: JoinHandle<()>,
    /// Bytes of the log that it will cover.
    covers: u64,
}

impl<C: Codec> Writer<C> {
    /// Starts a snapshot if the log has grown or somebody wants one.
    pub fn start_snapshot_when_due(&mut self, now: Millis) {
        let grown = self.log.bytes() > self.config.min_log_bytes.max(self.state.bytes);
        let wanted = grown || !self.snapshot_waiters.is_empty();
        if self.snapshot.is_some() || !wanted || now < self.snapshot_not_before {
            return;
        }
        self.snapshot_not_before = now + RETRY;
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

    /// Takes the thread's report.
    pub fn snapshot_done(&mut self, result: Result<(), String>) {
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
