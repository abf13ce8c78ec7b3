//! Stops and removes sandboxes. Every step is idempotent: a kubelet retries after an error, and a
//! restarted daemon finishes what it finds.

use std::{sync::Arc, time::Duration};

use super::{Phase, Sandbox};
use crate::{
    cgroup::Cgroup,
    disk,
    engine::Engine,
    error::{Error, Result},
    mounts,
    shim::protocol::Call,
};

/// How long a shim may take to end its containers.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(10);

impl Engine {
    /// Stops all containers of the sandbox and detaches its network. One that is gone is no error.
    pub(crate) async fn stop_sandbox(self: &Arc<Self>, id: &str) -> Result<()> {
        let sandbox = match self.sandbox(id) {
            Ok(sandbox) => sandbox,
            Err(Error::NoSandbox(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        let _changing = sandbox.changing.lock().await;
        self.lower_sandbox(&sandbox).await
    }

    /// Removes a sandbox and its containers. One that is gone is no error.
    pub(crate) async fn remove_sandbox(self: &Arc<Self>, id: &str) -> Result<()> {
        let sandbox = match self.sandbox(id) {
            Ok(sandbox) => sandbox,
            Err(Error::NoSandbox(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        let _changing = sandbox.changing.lock().await;
        self.lower_sandbox(&sandbox).await?;
        for container in self.containers_of(&sandbox.id) {
            self.remove_container(&container.id).await?;
        }
        if sandbox.facts.owns_cgroup {
            let cgroup = Cgroup::new(&sandbox.facts.cgroup_parent);
            self.blocking(move || cgroup.remove_within(Duration::from_secs(1)))
                .await?
                .map_err(Error::system("remove the sandbox's cgroup"))?;
        }
        disk::remove_dir(&sandbox.paths.root)?;
        self.sandboxes.write().remove(&sandbox.id);
        self.announce_sandbox_removed(&sandbox);
        Ok(())
    }

    async fn lower_sandbox(self: &Arc<Self>, sandbox: &Arc<Sandbox>) -> Result<()> {
        for container in self.containers_of(&sandbox.id) {
            self.stop_container(&container.id, Duration::ZERO).await?;
        }
        if let Ok(shim) = sandbox.shim() {
            // From now on the shim's end is expected.
            sandbox.set_shim(None);
            let shutdown = shim.ask(Call::Shutdown);
            let failed = match tokio::time::timeout(SHUTDOWN_DEADLINE, shutdown).await {
                Ok(Ok(()) | Err(Error::ShimGone(_))) => None,
                Ok(Err(error)) => Some(error),
                Err(_) => Some(Error::Deadline("the shim does not end".into())),
            };
            if let Some(error) = failed {
                sandbox.set_shim(Some(shim));
                return Err(error);
            }
        }
        let netns = sandbox.facts.pins.net.as_deref();
        if netns.is_some() {
            self.config.network.detach(&sandbox.id, netns).await?;
        }
        let pins = &sandbox.facts.pins;
        for pin in [&pins.net, &pins.ipc, &pins.uts, &pins.pid]
            .into_iter()
            .flatten()
        {
            mounts::unmount(pin)?;
        }
        mounts::unmount(&sandbox.paths.state.join("shm"))?;
        disk::remove_dir(&sandbox.paths.state)?;
        if sandbox.state().phase != Phase::Stopped {
            sandbox.set_state(|state| state.phase = Phase::Stopped)?;
        }
        Ok(())
    }
}
