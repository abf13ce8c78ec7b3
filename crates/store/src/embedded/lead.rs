//! A commit that arrives alone: its caller writes and syncs the batch itself, in place of the
//! writer. Handing the batch over and back takes two thread switches, a good part of a single
//! client's latency. Under load the writer does it, while callers fill the next batch.

use parking_lot::Mutex;

use super::{intake::Intake, writer::Writer};
use crate::Codec;

/// Writes the batch that the caller has started, or wakes the writer. Only for tasks of a
/// multi-threaded runtime.
pub(super) async fn lead<C: Codec>(intake: &Intake<C>, writer: &Mutex<Writer<C>>) {
    let mut unseen = Unseen(Some(intake));
    // Others may be about to commit, also in this task: then the writer writes the batch.
    tokio::task::yield_now().await;
    if !intake.is_led() {
        return;
    }
    // If the lock is held, the writer is busy and must be woken.
    if let Some(mut writer) = writer.try_lock() {
        unseen.0 = None;
        // Disks can be slow: another thread runs this thread's tasks meanwhile.
        tokio::task::block_in_place(|| writer.lead());
    }
}

/// A batch that no task writes yet. When this value is dropped, for example because the caller was
/// cancelled, the writer is woken.
struct Unseen<'a, C: Codec>(Option<&'a Intake<C>>);

impl<C: Codec> Drop for Unseen<'_, C> {
    fn drop(&mut self) {
        if let Some(intake) = self.0 {
            intake.wake();
        }
    }
}
