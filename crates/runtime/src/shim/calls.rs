//! Handles the daemon's calls.

use std::{io, os::fd::AsFd};

use super::{
    attached::{Attached, MAX_ATTACHED, Sink, set_nonblocking},
    held::Container,
    protocol::{Answer, Call, HeldContainer, VERSION},
    serve::Shim,
    tasks::send_signal,
};
use crate::cgroup::Cgroup;

impl Shim {
    pub(super) fn call(&mut self, conn: u64, id: u64, call: Call) {
        let result = match call {
            Call::Run(run) => match self.start_container(conn, id, run) {
                Ok(()) => return,
                Err(error) => Err(error),
            },
            Call::Exec(exec) => match self.start_exec(conn, id, exec) {
                Ok(()) => return,
                Err(error) => Err(error),
            },
            Call::Shutdown => {
                self.shut_down(conn, id);
                return;
            }
            other => self.answer(conn, other),
        };
        self.reply(conn, id, result.map_err(|error| error.to_string()), None);
    }

    /// Calls that are answered at once.
    fn answer(&mut self, conn: u64, call: Call) -> io::Result<Answer> {
        match call {
            Call::Hello { .. } => return Ok(self.hello()),
            Call::Signal {
                container,
                signal,
                all,
            } => self.signal(&container, signal, all)?,
            Call::SignalExec { exec, signal } => {
                let pid = self
                    .execs
                    .get(&exec)
                    .ok_or_else(|| missing("process", &exec))?;
                send_signal(*pid, signal)?;
            }
            Call::ReopenLog { container } => self.held(&container)?.reopen_log()?,
            Call::Resize {
                container,
                width,
                height,
            } => {
                self.held(&container)?.resize(width, height)?;
            }
            Call::Attach {
                container,
                stdin,
                stdout,
                stderr,
            } => {
                self.attach(conn, &container, [stdin, stdout, stderr])?;
            }
            Call::Forget { container } => {
                self.containers.remove(&container);
            }
            Call::Run(_) | Call::Exec(_) | Call::Shutdown => {
                return Err(io::Error::other("answered elsewhere"));
            }
        }
        Ok(Answer::Done)
    }

    fn hello(&self) -> Answer {
        let held = self
            .containers
            .iter()
            .filter(|(_, c)| c.pid != 0)
            .map(|(id, c)| HeldContainer {
                id: id.clone(),
                pid: c.pid,
                started_at: c.started_at,
                exit: c.exit,
            });
        let pid = std::process::id().cast_signed();
        Answer::Hello {
            version: VERSION,
            pid,
            containers: held.collect(),
        }
    }

    pub(super) fn held(&mut self, id: &str) -> io::Result<&mut Container> {
        self.containers
            .get_mut(id)
            .ok_or_else(|| missing("container", id))
    }

    fn signal(&mut self, id: &str, signal: i32, all: bool) -> io::Result<()> {
        let container = self.held(id)?;
        if container.exit.is_some() || container.pid == 0 {
            return Ok(());
        }
        if all {
            for pid in Cgroup::new(&container.run.cgroup).processes() {
                send_signal(pid, signal)?;
            }
        }
        send_signal(container.pid, signal)
    }

    fn attach(&mut self, conn: u64, id: &str, wanted: [bool; 3]) -> io::Result<()> {
        let Some(inbox) = self.conns.get_mut(&conn).map(|conn| &mut conn.inbox) else {
            return Ok(());
        };
        let mut fds = [None, None, None];
        for (slot, wanted) in fds.iter_mut().zip(wanted) {
            if wanted {
                *slot = Some(inbox.fd()?);
            }
        }
        let [stdin, stdout, stderr] = fds;
        // Events of one wait may be handled for another client: a read must not wait for input.
        if let Some(stdin) = &stdin {
            set_nonblocking(stdin.as_fd())?;
        }
        let container = self.held(id)?;
        if container.exit.is_some() {
            return Err(io::Error::other("the container has ended"));
        }
        if container.attached.len() >= MAX_ATTACHED {
            // Input that the container does not take does not show that its client has left.
            container.attached.retain(|client| {
                let stdin = client.stdin.as_ref();
                client.stdout.is_some()
                    || client.stderr.is_some()
                    || stdin.is_some_and(|stdin| !crate::poll::is_closed(stdin.as_fd()))
            });
        }
        if container.attached.len() >= MAX_ATTACHED {
            return Err(io::Error::other("too many clients are attached"));
        }
        container.attached.push(Attached {
            stdin,
            stdout: stdout.map(Sink::new).transpose()?,
            stderr: stderr.map(Sink::new).transpose()?,
        });
        Ok(())
    }
}

fn missing(what: &str, id: &str) -> io::Error {
    io::Error::other(format!("no {what} {id:?}"))
}
