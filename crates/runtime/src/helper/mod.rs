//! Processes that do one dangerous thing and end: making a container or a process in one, and the
//! init of a shared PID namespace. The shim starts them; they have one thread and no async runtime.

mod complaints;
mod executor;
pub(crate) mod init;
mod oci;
mod outside;
mod prepare;
pub(crate) mod propagate;
mod seccomp;

use std::{
    fs::File,
    io::{self, Read, Seek},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    process::{Child, Stdio},
};

use nix::sys::memfd::{MFdFlags, memfd_create};
pub(crate) use oci::run;

use crate::{
    reexec,
    shim::protocol::{Exec, Job, Report, Run},
    wire::{Inbox, send_all},
};

/// How much of a helper's complaints goes into an error.
const MAX_COMPLAINT: u64 = 4096;

/// A helper at work, seen from the shim.
pub(crate) struct Helper {
    child: Child,
    socket: UnixStream,
    inbox: Inbox,
    complaints: File,
    ended: Option<i32>,
}

/// How far a helper has come.
pub(crate) enum Progress {
    /// Nothing new.
    Waiting,
    /// The process exists.
    Created {
        /// Its pid.
        pid: i32,
        /// Its terminal.
        terminal: Option<OwnedFd>,
    },
    /// The process runs what it should.
    Running,
    /// It does not, for this reason.
    Failed(String),
}

impl Helper {
    pub fn run_job(run: &Run) -> Job {
        Job::Run {
            container: run.container.clone(),
            bundle: run.bundle.clone(),
            oci_root: run.oci_root.clone(),
            oci_runtime: run.oci_runtime.clone(),
            tty: run.tty,
        }
    }

    pub fn exec_job(run: &Run, exec: &Exec) -> Job {
        Job::Exec {
            container: run.container.clone(),
            bundle: run.bundle.clone(),
            oci_root: run.oci_root.clone(),
            oci_runtime: run.oci_runtime.clone(),
            process: exec.process.clone(),
            tty: exec.tty,
        }
    }

    /// Starts a helper on a job, with the standard streams of the process to be.
    pub fn start(job: &Job, stdio: Option<[OwnedFd; 3]>) -> io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        let complaints = File::from(memfd_create(c"complaints", MFdFlags::MFD_CLOEXEC)?);
        let child = reexec::again(reexec::OCI)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(complaints.try_clone()?)
            .spawn()?;
        let fds: Vec<_> = stdio.iter().flatten().map(|fd| fd.as_raw_fd()).collect();
        send_all(socket.as_fd(), job, &fds)?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            child,
            socket,
            inbox: Inbox::default(),
            complaints,
            ended: None,
        })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// The helper was collected.
    pub fn set_ended(&mut self, code: i32) {
        self.ended = Some(code);
    }

    /// The next thing the helper has to say. Its end before it said the last one is a failure.
    pub fn progress(&mut self) -> Progress {
        let gone = loop {
            match self.inbox.fill(self.socket.as_fd()) {
                Ok(0) => break true,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break error.kind() != io::ErrorKind::WouldBlock,
            }
        };
        match self.inbox.take() {
            Ok(Some(Report::Created { pid, terminal })) => {
                let terminal = terminal.then(|| self.inbox.fd().ok()).flatten();
                Progress::Created { pid, terminal }
            }
            Ok(Some(Report::Running)) => Progress::Running,
            Ok(Some(Report::Failed(message))) => Progress::Failed(self.explain(message)),
            Ok(None) if gone || self.ended.is_some() => {
                let how = self
                    .ended
                    .map_or_else(String::new, |code| format!(" with {code}"));
                Progress::Failed(self.explain(format!("the OCI helper ended early{how}")))
            }
            Ok(None) => Progress::Waiting,
            Err(error) => Progress::Failed(error.to_string()),
        }
    }

    /// The message with what the helper has written about it.
    fn explain(&mut self, message: String) -> String {
        let mut text = String::new();
        let read = self.complaints.rewind().and_then(|()| {
            (&mut self.complaints)
                .take(MAX_COMPLAINT)
                .read_to_string(&mut text)
        });
        match read {
            Ok(length) if length > 0 => format!("{message}: {}", text.trim_end()),
            _ => message,
        }
    }
}
