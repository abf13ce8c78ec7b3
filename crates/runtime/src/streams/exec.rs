//! Runs a command in a container with a client's streams.

use std::{fs::OpenOptions, io, os::fd::OwnedFd, sync::Arc};

use streaming::{ExitStatus, Session, server::Pending};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, copy},
    net::unix::pipe,
};
use tokio_util::sync::CancellationToken;

use super::{DRAIN, terminal::Terminal};
use crate::{
    container::Process,
    engine::Engine,
    error::{Error, Result},
    shim::{ExecStdio, set_nonblocking},
};

pub(super) async fn run(
    engine: Arc<Engine>,
    container: String,
    command: Vec<String>,
    tty: bool,
    pending: Pending,
) {
    let mut session = match pending.open().await {
        Ok(session) => session,
        Err(error) => {
            tracing::debug!(%error, "cannot open exec streams");
            return;
        }
    };
    let done = if tty {
        with_terminal(&engine, &container, &command, &mut session).await
    } else {
        with_pipes(&engine, &container, &command, &mut session).await
    };
    let status = match done {
        Ok(code) => ExitStatus::Code(code),
        Err(error) => ExitStatus::Failed(error.to_string()),
    };
    session.finish(status).await;
}

async fn with_pipes(
    engine: &Arc<Engine>,
    container: &str,
    command: &[String],
    session: &mut Session,
) -> Result<i32> {
    let wrong = || Error::system::<io::Error>("make the streams of a command");
    let (stdin, input) = source(session.stdin.is_some()).map_err(wrong())?;
    let (stdout, output) = sink(session.stdout.is_some()).map_err(wrong())?;
    let (stderr, errors) = sink(session.stderr.is_some()).map_err(wrong())?;
    let container = engine.container(container)?;
    let stdio = ExecStdio {
        stdin,
        stdout,
        stderr,
    };
    let mut process = engine.exec(&container, command, Some(stdio)).await?;
    let closed = session.closed();
    let feeding = feed(session.stdin.take(), input);
    let reading = async {
        tokio::join!(
            drain(output, session.stdout.take()),
            drain(errors, session.stderr.take())
        );
    };
    carry(&mut process, closed, feeding, reading).await
}

/// Copies bytes until the process has ended and its output was read.
async fn carry(
    process: &mut Process,
    closed: CancellationToken,
    feeding: impl Future<Output = ()>,
    reading: impl Future<Output = ()>,
) -> Result<i32> {
    tokio::pin!(feeding, reading);
    let (mut fed, mut read) = (false, false);
    let code = loop {
        tokio::select! {
            exit = process.exit() => break exit?.code,
            () = &mut feeding, if !fed => fed = true,
            () = &mut reading, if !read => read = true,
            // As with other runtimes, the command continues without its client; only closing a
            // terminal sends SIGHUP.
            () = closed.cancelled() => return Err(Error::Deadline("the client disconnected".into())),
        }
    };
    if !read {
        let _ = tokio::time::timeout(DRAIN, reading).await;
    }
    Ok(code)
}

async fn with_terminal(
    engine: &Arc<Engine>,
    container: &str,
    command: &[String],
    session: &mut Session,
) -> Result<i32> {
    let container = engine.container(container)?;
    let mut process = engine.exec(&container, command, None).await?;
    let terminal = process.terminal.take();
    let terminal = terminal.ok_or_else(|| Error::Shim("the terminal was not created".into()))?;
    let terminal = Arc::new(Terminal::new(terminal).map_err(Error::system("use a terminal"))?);
    let closed = session.closed();
    let typing = async {
        if let Some(mut stdin) = session.stdin.take() {
            let _ = copy(&mut stdin, &mut terminal.stream()).await;
        }
    };
    let resizing = async {
        if let Some(mut resizes) = session.resize.take() {
            while let Some(size) = resizes.next().await {
                let _ = terminal.resize(size.width, size.height);
            }
        }
    };
    let feeding = async {
        tokio::join!(typing, resizing);
    };
    let reading = async {
        if let Some(mut stdout) = session.stdout.take() {
            let _ = copy(&mut terminal.stream(), &mut stdout).await;
        }
    };
    carry(&mut process, closed, feeding, reading).await
}

/// The process' input, and our end of it.
pub(super) fn source(wanted: bool) -> io::Result<(OwnedFd, Option<pipe::Sender>)> {
    if !wanted {
        return Ok((
            OpenOptions::new().read(true).open("/dev/null")?.into(),
            None,
        ));
    }
    let (reader, writer) = io::pipe()?;
    let writer = OwnedFd::from(writer);
    set_nonblocking(std::os::fd::AsFd::as_fd(&writer))?;
    Ok((reader.into(), Some(pipe::Sender::from_owned_fd(writer)?)))
}

/// The process' output, and our end of it.
pub(super) fn sink(wanted: bool) -> io::Result<(OwnedFd, Option<pipe::Receiver>)> {
    if !wanted {
        return Ok((
            OpenOptions::new().write(true).open("/dev/null")?.into(),
            None,
        ));
    }
    let (reader, writer) = io::pipe()?;
    let reader = OwnedFd::from(reader);
    set_nonblocking(std::os::fd::AsFd::as_fd(&reader))?;
    Ok((writer.into(), Some(pipe::Receiver::from_owned_fd(reader)?)))
}

/// Passes a client's input on, including its end.
pub(super) async fn feed(
    from: Option<impl AsyncRead + Unpin>,
    to: Option<impl AsyncWrite + Unpin>,
) {
    if let (Some(mut from), Some(mut to)) = (from, to) {
        let _ = copy(&mut from, &mut to).await;
        let _ = to.shutdown().await;
    }
}

/// Passes output to the client.
pub(super) async fn drain(
    from: Option<impl AsyncRead + Unpin>,
    to: Option<impl AsyncWrite + Unpin>,
) {
    if let (Some(mut from), Some(mut to)) = (from, to) {
        let _ = copy(&mut from, &mut to).await;
        let _ = to.shutdown().await;
    }
}
