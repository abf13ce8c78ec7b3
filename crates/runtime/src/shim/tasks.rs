//! Starts containers and processes by helpers, and reaps them.

use std::{
    io::{self, Write},
    os::fd::OwnedFd,
};

use super::{
    held::Container,
    protocol::{Answer, Exec, Exit, Message, Run},
    reap,
    serve::Shim,
};
use crate::{
    helper::{Base, Helper, Progress},
    stamp::now,
};

/// A running helper, and the connection that waits for it.
pub(super) struct Task {
    pub(super) helper: Helper,
    conn: u64,
    request: u64,
    purpose: Purpose,
    terminal: Option<OwnedFd>,
    pid: i32,
}

enum Purpose {
    Run { container: String },
    Exec { exec: String },
}

impl Shim {
    pub(super) fn start_container(&mut self, conn: u64, request: u64, run: Run) -> io::Result<()> {
        // Taken in any case: the next call's descriptors come after it.
        let base = match (&run.base_mounts, self.conns.get_mut(&conn)) {
            (Some(slots), Some(conn)) => Some(Base {
                namespace: conn.inbox.fd()?,
                slots: slots.clone(),
            }),
            _ => None,
        };
        let id = run.container.clone();
        if self.containers.contains_key(&id) {
            return Err(io::Error::other(format!("container {id} exists")));
        }
        let job = Helper::run_job(&run, base);
        let (container, ends) = Container::prepare(run)?;
        let stdio = ends.map(|ends| [ends.stdin, ends.stdout, ends.stderr]);
        let helper = Helper::start(job, stdio)?;
        self.containers.insert(id.clone(), container);
        let purpose = Purpose::Run { container: id };
        self.helpers.push(Task {
            helper,
            conn,
            request,
            purpose,
            terminal: None,
            pid: 0,
        });
        Ok(())
    }

    pub(super) fn start_exec(&mut self, conn: u64, request: u64, exec: Exec) -> io::Result<()> {
        let stdio = if exec.tty {
            None
        } else {
            let Some(conn) = self.conns.get_mut(&conn) else {
                return Ok(());
            };
            Some([conn.inbox.fd()?, conn.inbox.fd()?, conn.inbox.fd()?])
        };
        let container = self.held(&exec.container)?;
        if container.exit.is_some() || container.pid == 0 {
            return Err(io::Error::other("the container is not running"));
        }
        let job = Helper::exec_job(&container.run, &exec);
        let helper = Helper::start(job, stdio)?;
        let purpose = Purpose::Exec { exec: exec.exec };
        self.helpers.push(Task {
            helper,
            conn,
            request,
            purpose,
            terminal: None,
            pid: 0,
        });
        Ok(())
    }

    /// Handles a helper's reports; its task ends with the last one.
    pub(super) fn advance(&mut self, index: usize) {
        loop {
            let Some(task) = self.helpers.get_mut(index) else {
                return;
            };
            match task.helper.progress() {
                Progress::Waiting => return,
                Progress::Created { pid, terminal } => {
                    task.pid = pid;
                    task.terminal = terminal;
                }
                Progress::Running { slow } => {
                    let task = self.helpers.swap_remove(index);
                    return self.started(task, slow);
                }
                Progress::Failed(message) => {
                    let task = self.helpers.swap_remove(index);
                    return self.failed(task, message);
                }
            }
        }
    }

    fn started(&mut self, mut task: Task, slow: Option<String>) {
        let (pid, terminal) = (task.pid, task.terminal.take());
        let mut passed = None;
        match &task.purpose {
            Purpose::Run { container } => {
                if let Some(container) = self.containers.get_mut(container) {
                    container.pid = pid;
                    container.started_at = now();
                    if let Some(Err(error)) = terminal.map(|t| container.set_terminal(t)) {
                        let _ = writeln!(io::stderr(), "terminal: {error}");
                    }
                }
            }
            Purpose::Exec { exec } => {
                self.execs.insert(exec.clone(), pid);
                passed = terminal;
            }
        }
        let answer = Answer::Started {
            pid,
            terminal: passed.is_some(),
            slow,
        };
        self.reply(task.conn, task.request, Ok(answer), passed);
        if let Some(code) = self.unclaimed.claim(pid) {
            self.ended(pid, code);
        }
        self.forget_unclaimed();
    }

    fn failed(&mut self, task: Task, message: String) {
        if task.pid != 0 {
            let _ = send_signal(task.pid, libc::SIGKILL);
        }
        if let Purpose::Run { container } = &task.purpose {
            self.containers.remove(container);
        }
        self.reply(task.conn, task.request, Err(message), None);
        self.forget_unclaimed();
    }

    fn forget_unclaimed(&mut self) {
        if self.helpers.is_empty() {
            self.unclaimed.clear();
        }
    }

    pub(super) fn collect(&mut self) {
        while let Ok(Some(_)) = self.signals.read_signal() {}
        for (pid, code) in reap::ended() {
            self.ended(pid, code);
        }
    }

    fn ended(&mut self, pid: i32, code: i32) {
        if self.init == Some(pid) {
            self.init = None;
        } else if let Some(index) = self.helpers.iter().position(|t| t.helper.pid() == pid) {
            self.helpers[index].helper.set_ended(code);
            self.advance(index);
        } else if let Some((id, container)) = self
            .containers
            .iter_mut()
            .find(|(_, c)| c.pid == pid && c.exit.is_none())
        {
            let (container, exit) = (id.clone(), container.finish(code));
            self.announce(&Message::Exited { container, exit });
        } else if let Some(exec) = self
            .execs
            .iter()
            .find(|(_, p)| **p == pid)
            .map(|(id, _)| id.clone())
        {
            self.execs.remove(&exec);
            let exit = Exit {
                code,
                oom: false,
                finished_at: now(),
            };
            self.announce(&Message::ExecExited { exec, exit });
        } else if !self.helpers.is_empty() {
            self.unclaimed.keep(pid, code);
        }
    }
}

/// An ended process needs no signal.
pub(super) fn send_signal(pid: i32, signal: i32) -> io::Result<()> {
    // nix has no names for real-time signals.
    // SAFETY: kill takes two numbers.
    match unsafe { libc::kill(pid, signal) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            error => Err(error),
        },
    }
}
