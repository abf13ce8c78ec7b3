//! Everything that the shim waits for, in one `poll`. Clients' descriptors are polled only for
//! their end, and for writability while they have a backlog.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{held::Container, log::Stream, serve::Shim};

/// How long the shim must be idle before it releases memory: longer than many pods take that start at once.
const IDLE_MILLIS: u16 = 5000;

/// What one `poll` found ready.
pub(super) enum Ready {
    Listener,
    Signals,
    Conn(u64),
    Helper(usize),
    Output(String, Stream),
    Input(String),
    ClientInput(String, usize),
    ClientOutput(String, usize, Stream),
}

impl Shim {
    /// Waits for the next events.
    pub(super) fn wait(&self) -> io::Result<Vec<Ready>> {
        let mut sources = vec![
            (self.listener.as_fd(), PollFlags::POLLIN, Ready::Listener),
            (self.signals.as_fd(), PollFlags::POLLIN, Ready::Signals),
        ];
        for (id, conn) in &self.conns {
            sources.push((
                conn.fd(),
                interest(PollFlags::POLLIN, conn.is_behind()),
                Ready::Conn(*id),
            ));
        }
        for (index, task) in self.helpers.iter().enumerate() {
            sources.push((task.helper.fd(), PollFlags::POLLIN, Ready::Helper(index)));
        }
        for (id, container) in &self.containers {
            watch_container(id, container, &mut sources);
        }
        let mut fds: Vec<_> = sources
            .iter()
            .map(|(fd, want, _)| PollFd::new(*fd, *want))
            .collect();
        let timeout = match &self.down {
            Some(_) => PollTimeout::from(20u8),
            None if self.fat => PollTimeout::from(IDLE_MILLIS),
            None => PollTimeout::NONE,
        };
        poll(&mut fds, timeout)?;
        let happened = fds
            .iter()
            .map(|fd| fd.revents().is_some_and(|events| !events.is_empty()));
        let ready = happened.collect::<Vec<_>>().into_iter().zip(sources);
        Ok(ready
            .filter_map(|(happened, (_, _, source))| happened.then_some(source))
            .collect())
    }
}

fn interest(always: PollFlags, is_behind: bool) -> PollFlags {
    if is_behind {
        always | PollFlags::POLLOUT
    } else {
        always
    }
}

fn watch_container<'a>(
    id: &str,
    container: &'a Container,
    sources: &mut Vec<(BorrowedFd<'a>, PollFlags, Ready)>,
) {
    let id = || id.to_owned();
    let none = PollFlags::empty();
    for (index, client) in container.attached.iter().enumerate() {
        if let Some(stdin) = client.stdin.as_ref().filter(|_| container.takes_input()) {
            sources.push((
                stdin.as_fd(),
                PollFlags::POLLIN,
                Ready::ClientInput(id(), index),
            ));
        }
        for (sink, stream) in [
            (&client.stdout, Stream::Stdout),
            (&client.stderr, Stream::Stderr),
        ] {
            if let Some(sink) = sink {
                let ready = Ready::ClientOutput(id(), index, stream);
                sources.push((sink.fd(), interest(none, sink.is_behind()), ready));
            }
        }
    }
    if let Some(stdin) = container.stdin.as_ref().filter(|stdin| stdin.is_behind()) {
        sources.push((stdin.fd(), PollFlags::POLLOUT, Ready::Input(id())));
    }
    for (output, stream) in [
        (&container.stdout, Stream::Stdout),
        (&container.stderr, Stream::Stderr),
    ] {
        if let Some(output) = output {
            sources.push((
                output.as_fd(),
                PollFlags::POLLIN,
                Ready::Output(id(), stream),
            ));
        }
    }
}
