//! A container held by the shim: its first process, streams, log and attached clients.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use nix::errno::Errno;

use super::{
    attached::{Attached, Sink, set_nonblocking},
    log::{Log, Stream},
    log_file::Target,
    protocol::{EXIT_FILE, Exit, Run},
};
use crate::{cgroup::Cgroup, stamp::now};

/// How long processes that outlive a container's first one may take to die.
const KILL_DEADLINE: Duration = Duration::from_secs(5);

/// The maximum buffered input of a container.
const MAX_INPUT: usize = 64 * 1024;

/// The maximum number of reads for the last output.
const MAX_LAST_READS: usize = 256;

/// A container.
pub(super) struct Container {
    /// The request that started it.
    pub run: Run,
    /// Its first process; zero until a helper has created it.
    pub pid: i32,
    /// When it was started.
    pub started_at: i64,
    /// Set once it has ended.
    pub exit: Option<Exit>,
    /// Its output, or its terminal.
    pub stdout: Option<File>,
    /// Its error output.
    pub stderr: Option<File>,
    /// Its input, or its terminal.
    pub stdin: Option<Sink>,
    /// Attached clients.
    pub attached: Vec<Attached>,
    log: Log,
}

/// The container's ends of its streams.
pub(super) struct Ends {
    /// Standard input.
    pub stdin: OwnedFd,
    /// Standard output.
    pub stdout: OwnedFd,
    /// Standard error.
    pub stderr: OwnedFd,
}

impl Container {
    /// Opens the log and creates the pipes, unless there will be a terminal.
    pub(super) fn prepare(run: Run) -> io::Result<(Self, Option<Ends>)> {
        let whole = run.log.as_deref().map(Target::unlimited);
        let log = Log::open(run.log_target.clone().or(whole))?;
        let mut container = Self {
            run,
            pid: 0,
            started_at: 0,
            exit: None,
            stdout: None,
            stderr: None,
            stdin: None,
            attached: Vec::new(),
            log,
        };
        if container.run.tty {
            return Ok((container, None));
        }
        let (out_read, stdout) = io::pipe()?;
        let (err_read, stderr) = io::pipe()?;
        container.stdout = Some(readable(out_read.into())?);
        container.stderr = Some(readable(err_read.into())?);
        let stdin = if container.run.stdin {
            let (stdin, write) = io::pipe()?;
            container.stdin = Some(Sink::new(write.into())?);
            stdin.into()
        } else {
            File::open("/dev/null")?.into()
        };
        Ok((
            container,
            Some(Ends {
                stdin,
                stdout: stdout.into(),
                stderr: stderr.into(),
            }),
        ))
    }

    /// Sets the terminal.
    pub(super) fn set_terminal(&mut self, terminal: OwnedFd) -> io::Result<()> {
        if self.run.stdin {
            self.stdin = Some(Sink::new(terminal.try_clone()?)?);
        }
        self.stdout = Some(readable(terminal)?);
        Ok(())
    }

    /// Reopens the log.
    pub(super) fn reopen_log(&mut self) -> io::Result<()> {
        self.log.reopen()
    }

    /// Sets the size of its terminal.
    pub(super) fn resize(&self, width: u16, height: u16) -> io::Result<()> {
        let Some(terminal) = self.stdout.as_ref().filter(|_| self.run.tty) else {
            return Err(io::Error::other("the container has no terminal"));
        };
        crate::terminal::resize(terminal.as_fd(), width, height)
    }

    /// Copies available output to the log and the clients. Closes the stream at its end. Reads a
    /// bounded amount, so that one container does not starve the others.
    pub(super) fn pump(&mut self, stream: Stream) {
        let mut buffer = [0; 32 * 1024];
        for _ in 0..8 {
            let source = match stream {
                Stream::Stdout => &mut self.stdout,
                Stream::Stderr => &mut self.stderr,
            };
            let Some(file) = source else { return };
            match file.read(&mut buffer) {
                Ok(0) => {
                    *source = None;
                    return;
                }
                Ok(length) => self.spread(stream, &buffer[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // A terminal returns EIO when its last user is gone.
                Err(_) => {
                    *source = None;
                    return;
                }
            }
        }
    }

    fn spread(&mut self, stream: Stream, bytes: &[u8]) {
        self.log.write(stream, bytes);
        for client in &mut self.attached {
            let sink = match stream {
                Stream::Stdout => &mut client.stdout,
                Stream::Stderr => &mut client.stderr,
            };
            if sink.as_mut().is_some_and(|sink| sink.write(bytes).is_err()) {
                *sink = None;
            }
        }
        self.attached.retain(|client| !client.is_gone());
    }

    /// Whether the container can accept more input now.
    pub(super) fn takes_input(&self) -> bool {
        self.stdin
            .as_ref()
            .is_some_and(|stdin| stdin.backlog() < MAX_INPUT)
    }

    /// Copies a client's input to the container. At its end the container's stdin is closed if the
    /// container has `stdinOnce` and no terminal; otherwise the client's output ends, since the
    /// container may run for ever.
    pub(super) fn pump_input(&mut self, client: usize) {
        let Some(source) = self.attached.get_mut(client).and_then(|c| c.stdin.as_mut()) else {
            return;
        };
        let mut buffer = [0; 16 * 1024];
        match nix::unistd::read(source.as_fd(), &mut buffer) {
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            Ok(0) | Err(_) => {
                let left = &mut self.attached[client];
                left.stdin = None;
                if self.run.stdin_once && !self.run.tty {
                    self.stdin = None;
                } else {
                    left.stdout = None;
                    left.stderr = None;
                }
            }
            Ok(length) => {
                let lost = self
                    .stdin
                    .as_mut()
                    .is_some_and(|s| s.write(&buffer[..length]).is_err());
                if lost {
                    self.stdin = None;
                }
            }
        }
    }

    /// A client's stream is writable again, or the client has disconnected.
    pub(super) fn flush_client(&mut self, client: usize, stream: Stream) {
        let Some(client) = self.attached.get_mut(client) else {
            return;
        };
        let sink = match stream {
            Stream::Stdout => &mut client.stdout,
            Stream::Stderr => &mut client.stderr,
        };
        let gone = sink.as_mut().is_some_and(|sink| {
            let left = crate::poll::is_closed(sink.fd());
            left || sink.flush().is_err()
        });
        if gone {
            *sink = None;
        }
        self.attached.retain(|client| !client.is_gone());
    }

    /// Handles the end of its first process: reads the last output, kills remaining processes, and
    /// writes the exit record.
    pub(super) fn finish(&mut self, code: i32) -> Exit {
        let cgroup = Cgroup::new(&self.run.cgroup);
        let oom = cgroup.oom_kills() > 0;
        if self.run.kill_cgroup {
            cgroup.kill_all(KILL_DEADLINE);
        }
        for stream in [Stream::Stdout, Stream::Stderr] {
            // A process that left the cgroup may hold the other end and write without end.
            for _ in 0..MAX_LAST_READS {
                if !self.has_output(stream) {
                    break;
                }
                self.pump(stream);
            }
        }
        self.log.close();
        self.stdout = None;
        self.stderr = None;
        self.stdin = None;
        self.attached.clear();
        let exit = Exit {
            code,
            oom,
            finished_at: now(),
        };
        let _ = self.record(exit);
        self.exit = Some(exit);
        exit
    }

    fn has_output(&self, stream: Stream) -> bool {
        let source = match stream {
            Stream::Stdout => &self.stdout,
            Stream::Stderr => &self.stderr,
        };
        source
            .as_ref()
            .is_some_and(|file| crate::poll::is_readable(file.as_fd()))
    }

    /// Writes the record atomically.
    fn record(&self, exit: Exit) -> io::Result<()> {
        let place = self.run.bundle.join(EXIT_FILE);
        let beside = self.run.bundle.join(".exit.json");
        let mut file = File::create(&beside)?;
        file.write_all(&serde_json::to_vec(&exit)?)?;
        std::fs::rename(beside, place)
    }
}

fn readable(fd: OwnedFd) -> io::Result<File> {
    set_nonblocking(fd.as_fd())?;
    Ok(fd.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_without_input_is_not_waited_for_and_one_that_has_ended_is_noticed() {
        let run = serde_json::json!({"container": "c", "bundle": "/", "oci_root": "/", "cgroup": "",
            "kill_cgroup": false, "tty": false, "stdin": true, "stdin_once": true});
        let (mut container, _ends) =
            Container::prepare(serde_json::from_value(run).unwrap()).unwrap();
        let (stdin, client) = io::pipe().unwrap();
        let stdin = OwnedFd::from(stdin);
        set_nonblocking(stdin.as_fd()).unwrap();
        container.attached.push(Attached {
            stdin: Some(stdin),
            ..Attached::default()
        });
        // The index of a client that has left.
        container.pump_input(1);
        container.pump_input(0);
        assert!(container.attached[0].stdin.is_some());
        drop(client);
        container.pump_input(0);
        assert!(container.attached[0].stdin.is_none() && container.stdin.is_none());
    }
}
