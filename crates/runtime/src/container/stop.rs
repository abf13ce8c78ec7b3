//! Stops and kills containers.

use std::{sync::Arc, time::Duration};

use crate::{
    engine::Engine,
    error::{Error, Result},
    shim::protocol::Call,
};

/// How long the kernel may take to end a killed container.
const KILL_DEADLINE: Duration = Duration::from_secs(30);

impl Engine {
    /// Sends the stop signal and kills the container after `timeout`. One that does not run, or is
    /// gone, is no error.
    pub(crate) async fn stop_container(
        self: &Arc<Self>,
        id: &str,
        timeout: Duration,
    ) -> Result<()> {
        let container = match self.container(id) {
            Ok(container) => container,
            Err(Error::NoContainer(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        if !container.is_running() {
            return Ok(());
        }
        let shim = self.sandbox(&container.facts.sandbox)?.shim()?;
        let signal = |signal: i32, all: bool| Call::Signal {
            container: container.id.clone(),
            signal,
            all,
        };
        if !timeout.is_zero() {
            shim.ask(signal(container.facts.stop_signal, false)).await?;
            if tokio::time::timeout(timeout, container.ended())
                .await
                .is_ok()
            {
                return Ok(());
            }
        }
        shim.ask(signal(libc::SIGKILL, container.facts.shares_pids))
            .await?;
        let ended = tokio::time::timeout(KILL_DEADLINE, container.ended()).await;
        ended.map_err(|_| Error::Deadline(format!("container {id} does not exit after SIGKILL")))
    }
}
