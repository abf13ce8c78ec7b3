//! Removes a container with its processes, mounts, cgroup and files. The log stays: it belongs to
//! the kubelet.

use std::{path::Path, sync::Arc, time::Duration};

use cri::v1::ContainerEventType;

use super::Container;
use crate::{
    cgroup::Cgroup,
    disk,
    engine::Engine,
    error::{Error, Result},
    mounts,
    shim::protocol::Call,
};

/// How long a dead container's cgroup may take to become empty.
const CGROUP_DEADLINE: Duration = Duration::from_secs(2);

impl Engine {
    /// Removes a container; a running one is killed first. One that is gone is no error.
    pub(crate) async fn remove_container(self: &Arc<Self>, id: &str) -> Result<()> {
        let container = match self.container(id) {
            Ok(container) => container,
            Err(Error::NoContainer(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        self.stop_container(id, Duration::ZERO).await?;
        let _changing = container.changing.lock().await;
        if let Ok(shim) = self
            .sandbox(&container.facts.sandbox)
            .and_then(|sandbox| sandbox.shim())
        {
            let forget = Call::Forget {
                container: container.id.clone(),
            };
            match shim.ask(forget).await {
                Ok(()) | Err(Error::ShimGone(_)) => {}
                Err(error) => return Err(error),
            }
        }
        self.delete_oci_state(&container).await?;
        let cgroup = Cgroup::new(&container.facts.cgroup);
        let dir = container.dir.clone();
        self.blocking(move || {
            cgroup.kill_all(CGROUP_DEADLINE);
            cgroup
                .remove_within(CGROUP_DEADLINE)
                .map_err(Error::system("remove the cgroup"))?;
            discard(&dir)
        })
        .await??;
        self.containers.write().remove(&container.id);
        self.sweep_images(&container);
        self.announce(&container, ContainerEventType::ContainerDeletedEvent);
        Ok(())
    }

    /// Sweeps layers if the container's image was removed.
    fn sweep_images(self: &Arc<Self>, container: &Container) {
        if !matches!(self.images.get(&container.facts.image_id), Ok(None)) {
            return;
        }
        let images = self.images.clone();
        self.spawn("sweep images", async move {
            let swept = tokio::task::spawn_blocking(move || images.sweep()).await;
            if let Ok(Err(error)) = swept {
                tracing::warn!(%error, "cannot remove unused layers");
            }
        });
    }

    /// Deletes the OCI runtime's state of the container.
    async fn delete_oci_state(&self, container: &Container) -> Result<()> {
        let root = self.oci_root();
        if let Some(binary) = &container.facts.oci_runtime {
            let mut delete = tokio::process::Command::new(binary);
            delete
                .arg("--root")
                .arg(&root)
                .args(["delete", "--force", &container.id]);
            let output = delete.output().await.map_err(Error::file(binary))?;
            if !output.status.success() && root.join(&container.id).exists() {
                let message = String::from_utf8_lossy(&output.stderr);
                return Err(Error::Shim(format!(
                    "{}: {}",
                    binary.display(),
                    message.trim_end()
                )));
            }
        }
        disk::remove_dir(&root.join(&container.id))
    }

    /// Removes what a failed creation has left.
    pub(crate) async fn discard_container_dir(&self, dir: &Path) {
        let owned = dir.to_path_buf();
        match self.blocking(move || discard(&owned)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) | Err(error) => {
                tracing::warn!(dir = %dir.display(), %error, "cannot remove container directory");
            }
        }
    }
}

fn discard(dir: &Path) -> Result<()> {
    mounts::unmount(&dir.join("rootfs"))?;
    if let Ok(entries) = std::fs::read_dir(dir.join("images")) {
        for entry in entries.flatten() {
            mounts::unmount(&entry.path())?;
        }
    }
    disk::remove_dir(dir)
}
