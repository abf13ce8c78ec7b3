//! Unstages volumes that no pod uses any more, in the background: each is retried until it succeeds
//! or a pod needs the volume again.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use stdx::Backoff;
use tokio::task::JoinSet;
use tracing::warn;

use super::{Key, Manager, Step, state::Progress};

/// The maximum delay between two attempts.
const CAP: Duration = Duration::from_secs(122);

impl Manager {
    /// Unstages unused volumes. Never returns.
    pub async fn run(self: Arc<Self>) {
        let mut inbox = self.idle_inbox.lock().await;
        let mut tasks = JoinSet::new();
        loop {
            tokio::select! {
                Some(key) = inbox.recv() => {
                    tasks.spawn(self.clone().unstage_until_done(key));
                }
                Some(_) = tasks.join_next(), if !tasks.is_empty() => {}
                else => return,
            }
        }
    }

    async fn unstage_until_done(self: Arc<Self>, key: Key) {
        let mut backoff = Backoff::new(Duration::from_millis(500), CAP);
        while let Err(error) = self.unstage(&key).await {
            warn!(volume = %key, %error, "cannot unstage volume");
            self.clock.sleep(backoff.step()).await;
        }
    }

    /// Unstages a volume unless a pod uses it.
    pub(super) async fn unstage(&self, key: &Key) -> Step<()> {
        let Some(steps) = self.with(key, |entry| entry.steps.clone()) else {
            return Ok(());
        };
        let _guard = steps.lock_owned().await;
        // A pod that joins from here on waits for the end of this step, and stages again.
        let found = self.with(key, |entry| {
            let idle = entry.is_idle() && entry.staged != Progress::No;
            idle.then(|| {
                entry.staged = Progress::Maybe;
                (entry.plugin, entry.staged(key))
            })
        });
        let Some((plugin, staged)) = found.flatten() else {
            return Ok(());
        };
        let begun = Instant::now();
        let unstaged = plugin.unstage(&staged, &*self.host).await;
        let name = match staged.is_block {
            true => "unmap_device",
            false => "unmount_device",
        };
        self.report(key, name, begun, unstaged.is_ok());
        unstaged?;
        let mut volumes = self.volumes.lock();
        if let Some(entry) = volumes.get_mut(key) {
            entry.staged = Progress::No;
            if entry.is_idle() {
                volumes.remove(key);
            }
        }
        drop(volumes);
        self.show_in_use();
        Ok(())
    }

    /// Queues every staged volume that no pod uses, after a restart.
    pub fn unstage_idle(&self) {
        let volumes = self.volumes.lock();
        for (key, _) in volumes.iter().filter(|(_, entry)| entry.is_idle()) {
            let _ = self.idle.send(key.clone());
        }
    }
}
