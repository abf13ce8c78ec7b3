//! Starting a shim from the daemon. The process that the daemon starts ends as soon as the shim
//! serves; the shim itself is nobody's child any more.

use std::{io, process::Stdio};

use tokio::io::AsyncWriteExt;

use super::protocol::Start;
use crate::{
    error::{Error, Result},
    reexec::{self, Program},
};

/// Starts a shim and waits until it serves.
pub(crate) async fn start(program: &Program, orders: &Start) -> Result<()> {
    let failed = || Error::system::<io::Error>("start the shim");
    let mut command = tokio::process::Command::from(program.command(reexec::SHIM));
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command.kill_on_drop(true).spawn().map_err(failed())?;
    let text = serde_json::to_vec(orders).map_err(|error| failed()(error.into()))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(&text).await.map_err(failed())?;
    }
    let output = child.wait_with_output().await.map_err(failed())?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    Err(Error::Shim(format!(
        "the shim did not start ({}): {}",
        output.status,
        message.trim_end()
    )))
}
