//! Takes over what an earlier daemon left: records on disk and shims that still hold their
//! containers. Half-made sandboxes are torn down, and containers without a shim are reported as
//! lost.

use std::{collections::BTreeSet, path::Path, sync::Arc, time::Duration};

use super::Engine;
use crate::{
    container::{self, Container},
    error::{Error, Result},
    sandbox::{Phase, Sandbox},
    shim,
};

/// How long a shim may take to start.
const START_DEADLINE: Duration = Duration::from_secs(10);

impl Engine {
    pub(super) async fn reattach(self: &Arc<Self>) -> Result<()> {
        self.load_records().await?;
        let sandboxes: Vec<_> = self.sandboxes.read().values().cloned().collect();
        let mut alive = BTreeSet::new();
        for sandbox in sandboxes {
            match sandbox.state().phase {
                Phase::Ready if self.revive(&sandbox).await => {
                    alive.insert(sandbox.id.clone());
                }
                Phase::Ready | Phase::Stopped => self.bury(&sandbox).await,
                Phase::Creating => {
                    self.catch_up(&sandbox).await;
                    if let Err(error) = self.remove_sandbox(&sandbox.id).await {
                        tracing::warn!(sandbox = sandbox.id, %error, "cannot remove incomplete sandbox");
                    }
                }
            }
        }
        self.config.network.retain(&alive).await?;
        Ok(())
    }

    /// Waits until the shim of a half-made sandbox serves or is gone, so that it does not start
    /// after the teardown.
    async fn catch_up(self: &Arc<Self>, sandbox: &Arc<Sandbox>) {
        let deadline = tokio::time::Instant::now() + START_DEADLINE;
        while self.connect_shim(sandbox).await.is_err() && shim::is_held(&sandbox.paths().orders())
        {
            if tokio::time::Instant::now() > deadline {
                tracing::warn!(sandbox = sandbox.id, "shim neither responds nor exits");
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn load_records(&self) -> Result<()> {
        for id in names(&self.config.root_dir.join("sandboxes"))? {
            match Sandbox::load(&self.config, &id) {
                Ok(sandbox) => {
                    self.sandboxes.write().insert(id, sandbox);
                }
                // Nothing was started before its record was complete.
                Err(error) => {
                    tracing::warn!(sandbox = id, %error, "removing sandbox with unreadable record");
                    crate::disk::remove_dir(&self.config.root_dir.join("sandboxes").join(id))?;
                }
            }
        }
        for id in names(&self.config.root_dir.join("containers"))? {
            let loaded = Container::load(&self.config, &id);
            match loaded {
                Ok(container) if container.status().phase != container::Phase::Creating => {
                    self.containers.write().insert(id, container);
                }
                _ => {
                    tracing::info!(container = id, "incomplete container removed");
                    self.discard_container_dir(&container::dir(&self.config, &id))
                        .await;
                }
            }
        }
        Ok(())
    }

    /// Connects to a shim and syncs the containers' status with it; false if it is gone.
    async fn revive(self: &Arc<Self>, sandbox: &Arc<Sandbox>) -> bool {
        let held = match self.connect_shim(sandbox).await {
            Ok(held) => held,
            Err(error) => {
                tracing::warn!(sandbox = sandbox.id, %error, "shim has exited");
                return false;
            }
        };
        for container in self.containers_of(&sandbox.id) {
            match held.iter().find(|held| held.id == container.id) {
                Some(held) => match held.exit {
                    Some(exit) => {
                        if container.record_exit(exit) {
                            self.sweep(&container);
                        }
                    }
                    None => container.adopt(held.pid, held.started_at),
                },
                None => {
                    container.lose(crate::stamp::now());
                }
            }
        }
        if let Err(error) = self.attach_network(sandbox).await {
            tracing::warn!(sandbox = sandbox.id, %error, "cannot restore the network of a sandbox");
        }
        tracing::info!(
            sandbox = sandbox.id,
            containers = held.len(),
            "sandbox reattached"
        );
        true
    }
}

fn names(dir: &Path) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(dir).map_err(Error::file(dir))?;
    Ok(entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect())
}
