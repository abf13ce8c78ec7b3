//! Attaches a client to a container's streams. The shim copies to and from pipes that it gets; if
//! the daemon dies, the client is disconnected but the container keeps running.

use std::{io, os::fd::AsRawFd, sync::Arc};

use streaming::{ExitStatus, Session, server::Pending};

use super::exec::{drain, feed, sink, source};
use crate::{
    engine::Engine,
    error::{Error, Result},
    shim::protocol::Call,
};

pub(super) async fn run(engine: Arc<Engine>, container: String, pending: Pending) {
    let mut session = match pending.open().await {
        Ok(session) => session,
        Err(error) => {
            tracing::debug!(%error, "cannot open attach streams");
            return;
        }
    };
    let status = match attach(&engine, &container, &mut session).await {
        Ok(()) => ExitStatus::Code(0),
        Err(error) => ExitStatus::Failed(error.to_string()),
    };
    session.finish(status).await;
}

async fn attach(engine: &Engine, id: &str, session: &mut Session) -> Result<()> {
    let container = engine.container(id)?;
    let shim = engine.sandbox(&container.facts.sandbox)?.shim()?;
    let wrong = || Error::system::<io::Error>("make the streams of an attach");
    let wants = [
        session.stdin.is_some() && container.config.stdin,
        session.stdout.is_some(),
        session.stderr.is_some() && !container.config.tty,
    ];
    let (theirs_in, stdin) = source(wants[0]).map_err(wrong())?;
    let (theirs_out, stdout) = sink(wants[1]).map_err(wrong())?;
    let (theirs_err, stderr) = sink(wants[2]).map_err(wrong())?;
    let fds = [theirs_in, theirs_out, theirs_err];
    let wanted = fds.iter().zip(wants).filter(|(_, wanted)| *wanted);
    let raw: Vec<_> = wanted.map(|(fd, _)| fd.as_raw_fd()).collect();
    let call = Call::Attach {
        container: container.id.clone(),
        stdin: wants[0],
        stdout: wants[1],
        stderr: wants[2],
    };
    shim.call(call, &raw).await?;
    drop(fds);
    let closed = session.closed();
    let resizing = async {
        if let Some(mut resizes) = session.resize.take() {
            while let Some(size) = resizes.next().await {
                let (width, height) = (size.width, size.height);
                let _ = shim
                    .ask(Call::Resize {
                        container: container.id.clone(),
                        width,
                        height,
                    })
                    .await;
            }
        }
        std::future::pending::<()>().await;
    };
    let feeding = async {
        feed(session.stdin.take(), stdin).await;
        std::future::pending::<()>().await;
    };
    let reading = async {
        tokio::join!(
            drain(stdout, session.stdout.take()),
            drain(stderr, session.stderr.take())
        );
        // Without output to wait for, the container's end is the end.
        if !wants[1] && !wants[2] {
            container.ended().await;
        }
    };
    tokio::select! {
        () = reading => {}
        () = feeding => {}
        () = resizing => {}
        () = closed.cancelled() => {}
    }
    Ok(())
}
