//! Runs commands in a container.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use tokio::{io::AsyncReadExt, net::unix::pipe, sync::Semaphore};
use tracing::debug;

use super::Container;
use crate::{
    disk,
    engine::Engine,
    error::{Error, Result},
    id,
    sandbox::{ExpectedExit, Sandbox},
    shim::{
        ExecStdio,
        protocol::{Call, Exec, Exit},
    },
    spec,
};

/// The maximum output of ExecSync, for each of the two streams.
const MAX_OUTPUT: usize = 16 * 1024 * 1024;

/// The maximum output that all running ExecSyncs keep together, beyond the first [`ALWAYS_KEPT`] bytes of each stream:
/// hooks may write and run as long as their containers want, and there may be many.
pub(crate) const ALL_OUTPUT: usize = 64 * 1024 * 1024;
const ALWAYS_KEPT: usize = 16 * 1024;

/// How much is read at a time.
const CHUNK: usize = 4096;

/// How long output is read after a command has ended: its child processes may keep the streams
/// open.
const DRAIN: Duration = Duration::from_secs(1);

/// The output and exit code of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExecOutput {
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// Its exit code.
    pub code: i32,
}

/// A running command.
pub(crate) struct Process {
    sandbox: Arc<Sandbox>,
    expected: ExpectedExit,
    /// Its terminal, if it has one.
    pub terminal: Option<OwnedFd>,
}

impl Process {
    /// Waits until it has ended.
    pub(crate) async fn exit(&mut self) -> Result<Exit> {
        (&mut self.expected.exit)
            .await
            .map_err(|_| Error::ShimGone(self.sandbox.id.clone()))
    }

    /// Kills it.
    pub(crate) async fn kill(&self) -> Result<()> {
        let call = Call::SignalExec {
            exec: self.expected.id.clone(),
            signal: libc::SIGKILL,
        };
        self.sandbox.shim()?.ask(call).await
    }
}

impl Engine {
    /// Starts a command. Without `stdio` it gets a terminal.
    pub(crate) async fn exec(
        self: &Arc<Self>,
        container: &Container,
        command: &[String],
        stdio: Option<ExecStdio>,
    ) -> Result<Process> {
        if command.is_empty() {
            return Err(Error::Invalid("no command".into()));
        }
        if !container.is_running() {
            return Err(Error::Precondition(format!(
                "container {} is not running",
                container.id
            )));
        }
        let sandbox = self.sandbox(&container.facts.sandbox)?;
        let shim = sandbox.shim()?;
        let exec = id::generate();
        // The OCI runtime's state directory: on tmpfs, and removed with the container.
        let scratch = self.oci_root().join(&container.id);
        let process = scratch.join(format!("exec-{}.json", &exec[..16]));
        let spec = disk::load(&container.dir.join("config.json"))?;
        disk::save(
            &process,
            &spec::exec_process(&spec, command, stdio.is_none()),
        )?;
        let call = Call::Exec(Exec {
            exec: exec.clone(),
            container: container.id.clone(),
            process: process.clone(),
            tty: stdio.is_none(),
        });
        let expected = sandbox.execs.expect(&exec);
        let fds = stdio.as_ref().map(ExecStdio::raw);
        match shim
            .call(call, fds.as_ref().map_or(&[], |fds| fds.as_slice()))
            .await
        {
            Ok((_, terminal)) => Ok(Process {
                sandbox,
                expected,
                terminal,
            }),
            Err(error) => {
                let _ = std::fs::remove_file(process);
                Err(error)
            }
        }
    }

    /// Runs a command and returns its output. A timeout of zero means none.
    pub(crate) async fn exec_sync(
        self: &Arc<Self>,
        container: &str,
        command: &[String],
        timeout: Duration,
    ) -> Result<ExecOutput> {
        let container = self.container(container)?;
        let (stdout, out) = pipe().map_err(Error::system("make a pipe"))?;
        let (stderr, err) = pipe().map_err(Error::system("make a pipe"))?;
        let null = File::open("/dev/null").map_err(Error::file("/dev/null"))?;
        let stdio = ExecStdio {
            stdin: null.into(),
            stdout: out,
            stderr: err,
        };
        let mut session = self.exec(&container, command, Some(stdio)).await?;
        let room = &self.exec_output;
        let (mut out, mut err) = (Kept::new(room), Kept::new(room));
        let streams = async {
            tokio::join!(read(stdout, &mut out), read(stderr, &mut err));
        };
        let exit = wait(streams, session.exit(), timeout).await;
        match exit {
            Some(exit) => Ok(ExecOutput {
                code: exit?.code,
                stdout: out.into_bytes(),
                stderr: err.into_bytes(),
            }),
            None => {
                if let Err(error) = session.kill().await {
                    // It may just have ended.
                    debug!(container = container.id, %error, "cannot kill a command that timed out");
                }
                Err(Error::Deadline(format!(
                    "command {command:?} timed out after {timeout:?}"
                )))
            }
        }
    }
}

/// Waits for the end of a command while its output is read, and then for the rest of its output. Nothing if it has not
/// ended within the timeout, if there is one.
async fn wait<T>(
    streams: impl Future<Output = ()>,
    exit: impl Future<Output = T>,
    timeout: Duration,
) -> Option<T> {
    tokio::pin!(streams, exit);
    let ended = async {
        tokio::select! {
            () = &mut streams => (exit.await, true),
            ended = &mut exit => (ended, false),
        }
    };
    let (exit, is_read) = match timeout.is_zero() {
        true => ended.await,
        false => tokio::time::timeout(timeout, ended).await.ok()?,
    };
    if !is_read {
        // Outside the timeout: the command has ended in time.
        let _ = tokio::time::timeout(DRAIN, streams).await;
    }
    Some(exit)
}

fn pipe() -> io::Result<(pipe::Receiver, OwnedFd)> {
    let (reader, writer) = io::pipe()?;
    crate::shim::set_nonblocking(reader.as_fd())?;
    Ok((pipe::Receiver::from_owned_fd(reader.into())?, writer.into()))
}

/// Reads to the end; output beyond the limits is discarded, so that the command does not block.
async fn read(mut pipe: pipe::Receiver, kept: &mut Kept<'_>) {
    let mut chunk = vec![0; CHUNK];
    // Keep what was read before an error.
    while let Ok(length @ 1..) = pipe.read(&mut chunk).await {
        kept.push(&chunk[..length]);
    }
}

/// The output of one stream.
struct Kept<'a> {
    bytes: Vec<u8>,
    /// What all streams may keep together.
    room: &'a Semaphore,
    /// How much of it this one has.
    taken: usize,
    is_full: bool,
}

impl<'a> Kept<'a> {
    fn new(room: &'a Semaphore) -> Self {
        Self {
            bytes: Vec::new(),
            room,
            taken: 0,
            is_full: false,
        }
    }

    /// Keeps the bytes, or nothing more if there is no room for them.
    fn push(&mut self, bytes: &[u8]) {
        let all = self.bytes.len() + bytes.len();
        self.is_full =
            self.is_full || all > MAX_OUTPUT || (all > ALWAYS_KEPT && !self.take(bytes.len()));
        if !self.is_full {
            self.bytes.extend_from_slice(bytes);
        }
    }

    fn take(&mut self, count: usize) -> bool {
        let permits = u32::try_from(count).ok();
        let room = permits.and_then(|count| self.room.try_acquire_many(count).ok());
        let is_there = room.is_some();
        if let Some(room) = room {
            room.forget();
            self.taken += count;
        }
        is_there
    }

    fn into_bytes(mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        self.room.add_permits(self.taken);
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test]
    async fn a_command_that_ended_in_time_has_its_exit_though_its_children_keep_the_streams_open() {
        let short = Duration::from_millis(10);
        assert_eq!(wait(pending(), ready(3), short).await, Some(3));
        assert_eq!(wait(ready(()), ready(3), short).await, Some(3));
        assert_eq!(wait(ready(()), ready(3), Duration::ZERO).await, Some(3));
        assert_eq!(wait(ready(()), pending::<u8>(), short).await, None);
        assert_eq!(wait(pending(), pending::<u8>(), short).await, None);
    }

    #[test]
    fn all_commands_together_keep_no_more_output_than_there_is_room_for() {
        let room = Semaphore::new(100);
        let (mut loud, mut late) = (Kept::new(&room), Kept::new(&room));
        loud.push(&[b'a'; ALWAYS_KEPT]);
        loud.push(&[b'b'; 90]);
        loud.push(&[b'c'; 11]);
        // What follows a gap is not kept, though it would fit.
        loud.push(b"d");
        late.push(&[b'a'; ALWAYS_KEPT]);
        late.push(&[b'b'; 11]);
        assert_eq!(loud.bytes.len(), ALWAYS_KEPT + 90);
        assert_eq!(late.into_bytes().len(), ALWAYS_KEPT);
        assert_eq!(room.available_permits(), 10);
        assert!(loud.into_bytes().ends_with(b"b"));
        assert_eq!(room.available_permits(), 100);
        let room = Semaphore::new(ALL_OUTPUT);
        let mut endless = Kept::new(&room);
        (0..2 * MAX_OUTPUT / CHUNK).for_each(|_| endless.push(&[0; CHUNK]));
        assert_eq!(endless.bytes.len(), MAX_OUTPUT);
    }
}
