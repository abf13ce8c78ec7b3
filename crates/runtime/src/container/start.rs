//! Starts a container. On success the container's program was executed; on failure the container
//! has exit code 128 and a message.

use std::{
    path::Path,
    sync::{Arc, atomic::Ordering},
};

use cri::v1::ContainerEventType;

use super::{Container, Phase, Status};
use crate::{
    base_mounts::BaseMounts,
    engine::Engine,
    error::{Error, Result},
    shim::{
        Target,
        protocol::{Answer, BASE_MOUNTS, Call, Run},
    },
    stamp,
};

impl Engine {
    /// Starts a created container.
    pub(crate) async fn start_container(self: &Arc<Self>, id: &str) -> Result<()> {
        let container = self.container(id)?;
        let _changing = container.changing.lock().await;
        let status = container.status();
        if status.phase != Phase::Created {
            let message = format!("container {id} is {:?}, not created", status.phase);
            return Err(Error::Precondition(message));
        }
        let shim = self.sandbox(&container.facts.sandbox)?.shim()?;
        let base = self.base_mounts.as_ref();
        let base = base.filter(|_| shim.version() >= BASE_MOUNTS);
        let call = Call::Run(Run {
            base_mounts: base.map(|base| base.slots.clone()),
            ..self.run_call(&container)
        });
        let descriptor = base.map(BaseMounts::fd);
        match shim.call(call, descriptor.as_slice()).await {
            Ok((Answer::Started { pid, slow, .. }, _)) => {
                if let Some(why) = slow {
                    self.note_slow(id, &why);
                }
                self.note_started(&container, pid)?;
                Ok(())
            }
            Ok((other, _)) => Err(Error::Shim(format!("unexpected answer {other:?}"))),
            Err(error) => {
                container.set_status(failed(&status, &error))?;
                self.announce(&container, ContainerEventType::ContainerStoppedEvent);
                Err(error)
            }
        }
    }

    fn run_call(&self, container: &Container) -> Run {
        Run {
            container: container.id.clone(),
            bundle: container.dir.clone(),
            oci_root: self.oci_root(),
            oci_runtime: container.facts.oci_runtime.clone(),
            cgroup: container.facts.cgroup.clone(),
            kill_cgroup: container.facts.shares_pids,
            log: container.facts.log.clone(),
            log_target: self.log_target(container),
            tty: container.config.tty,
            stdin: container.config.stdin,
            stdin_once: container.config.stdin_once,
            base_mounts: None,
        }
    }

    /// The log with its limits. The parent of the pod's log directory is trusted: a pod that may
    /// write there is trusted, too.
    fn log_target(&self, container: &Container) -> Option<Target> {
        let log = container.facts.log.as_ref()?;
        let sandbox = self.sandbox(&container.facts.sandbox).ok()?;
        let base = Path::new(&sandbox.config.log_directory).parent()?;
        let limits = self.config.log_limits;
        Some(Target {
            base: base.to_path_buf(),
            file: log.strip_prefix(base).ok()?.to_path_buf(),
            max_bytes: limits.max_bytes,
            max_files: limits.max_files,
        })
    }

    /// A cause that all containers of a node share is a warning only once.
    fn note_slow(&self, container: &str, why: &str) {
        let message = "container was created from the node's mounts, which is slower";
        match self.has_been_slow.swap(true, Ordering::Relaxed) {
            false => tracing::warn!(container, why, "{message}"),
            true => tracing::info!(container, why, "{message}"),
        }
    }

    /// Records that it runs, unless it has ended already.
    fn note_started(&self, container: &Arc<Container>, pid: i32) -> Result<()> {
        let now = stamp::now();
        let mut ended = false;
        let mut saved = None;
        container.status.send_modify(|status| {
            ended = status.phase == Phase::Exited;
            status.pid = pid;
            status.started_at = now;
            if !ended {
                status.phase = Phase::Running;
            }
            saved = Some(status.clone());
        });
        if let Some(status) = saved {
            crate::disk::record(&container.dir.join("status.json"), &status)?;
        }
        self.announce(container, ContainerEventType::ContainerStartedEvent);
        if ended {
            self.announce(container, ContainerEventType::ContainerStoppedEvent);
        }
        Ok(())
    }
}

fn failed(status: &Status, error: &Error) -> Status {
    Status {
        phase: Phase::Exited,
        finished_at: stamp::now(),
        exit_code: 128,
        reason: "StartError".to_owned(),
        message: error.to_string(),
        ..status.clone()
    }
}
