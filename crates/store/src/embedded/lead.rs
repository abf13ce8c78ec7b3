//! A commit that comes alone: its caller writes and syncs the batch itself, in the writer's place. To hand
//! the batch over and to be told takes two changes of threads, a good part of what one client waits for.
//! Under load the writer does it, while callers make the next batch.

use parking_lot::Mutex;

use super::{intake::Intake, writer::Writer};
use crate::Codec;

/// Sees to the batch that the caller has begun: writes it, or wakes the writer. Only for tasks of a
/// runtime with threads.
pub(super) async fn lead<C: Codec>(intake: &Intake<C>, writer: &Mutex<Writer<C>>) {
    let mut unseen = Unseen(Some(intake));
    // Others may be about to commit, also in this task: together they are for the writer.
    tokio::task::yield_now().await;
    if !intake.is_led() {
        return;
    }
    // Whoever has the lock works on something else.
    if let Some(mut writer) = writer.try_lock() {
        unseen.0 = None;
        // Disks can be slow: another thread looks after the tasks of this one meanwhile.
        tokio::task::block_in_place(|| writer.lead());
    }
}

/// A batch that nobody sees to. When it is dropped, also because the caller no longer waits, it is left
/// to the writer.
struct Unseen<'a, C: Codec>(Option<&'a Intake<C>>);

impl<C: Codec> Drop for Unseen<'_, C> {
    fn drop(&mut self) {
        if let Some(intake) = self.0 {
            intake.wake();
        }
    }
}
