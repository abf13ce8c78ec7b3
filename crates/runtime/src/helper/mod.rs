//! Short-lived processes for dangerous work: creating a container or a process in one, and the init
//! of a shared PID namespace. The shim starts them; they have one thread and no async runtime.
//!
//! Containers are created by a fork of the shim, which also has one thread: that costs a tenth of
//! executing the program again, and runs from the same sealed copy.

pub(crate) mod bound_dev;
mod complaints;
mod executor;
pub(crate) mod init;
mod mount_points;
mod oci;
mod outside;
mod own_mounts;
pub(crate) mod placed_devices;
mod prepare;
pub(crate) mod propagate;
mod seccomp;

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
};

use nix::{
    sys::{
        memfd::{MFdFlags, memfd_create},
        signal::{SigSet, Signal},
    },
    unistd::{ForkResult, Pid, fork, getpid, getppid},
};

pub(crate) use own_mounts::Base;

use crate::{
    shim::protocol::{Exec, Job, Report, Run},
    wire::Inbox,
};

/// The maximum length of a helper's error output in an error.
const MAX_COMPLAINT: u64 = 4096;

/// A running helper.
pub(crate) struct Helper {
    pid: i32,
    socket: UnixStream,
    inbox: Inbox,
    complaints: File,
    ended: Option<i32>,
}

/// The progress of a helper.
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
    /// The program was executed.
    Running {
        /// Why it was slower than necessary.
        slow: Option<String>,
    },
    /// Starting failed.
    Failed(String),
}

impl Helper {
    pub(crate) fn run_job(run: &Run, base: Option<Base>) -> Job {
        Job::Run {
            container: run.container.clone(),
            bundle: run.bundle.clone(),
            oci_root: run.oci_root.clone(),
            oci_runtime: run.oci_runtime.clone(),
            base,
        }
    }

    pub(crate) fn exec_job(run: &Run, exec: &Exec) -> Job {
        Job::Exec {
            container: run.container.clone(),
            bundle: run.bundle.clone(),
            oci_root: run.oci_root.clone(),
            oci_runtime: run.oci_runtime.clone(),
            process: exec.process.clone(),
        }
    }

    /// Starts a helper for a job, with the standard streams of the new process.
    pub(crate) fn start(job: Job, stdio: Option<[OwnedFd; 3]>) -> io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        let complaints = File::from(memfd_create(c"complaints", MFdFlags::MFD_CLOEXEC)?);
        let shim = getpid();
        // SAFETY: the shim has one thread, so that the child may call any function.
        match unsafe { fork() }? {
            ForkResult::Child => {
                let ready = settle(shim, &complaints, &theirs, stdio.as_ref(), &job);
                let code = match ready {
                    Ok(()) => oci::run(job, stdio, theirs),
                    Err(_) => 1,
                };
                // SAFETY: ends this child without running the destructors of the shim's state.
                unsafe { libc::_exit(code) }
            }
            ForkResult::Parent { child } => {
                socket.set_nonblocking(true)?;
                Ok(Self {
                    pid: child.as_raw(),
                    socket,
                    inbox: Inbox::default(),
                    complaints,
                    ended: None,
                })
            }
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Records the exit of the helper.
    pub(crate) fn set_ended(&mut self, code: i32) {
        self.ended = Some(code);
    }

    /// The next report of the helper. Ending before the last one is a failure.
    pub(crate) fn progress(&mut self) -> Progress {
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
            Ok(Some(Report::Running { slow })) => Progress::Running { slow },
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

    /// The message with the helper's error output.
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

/// Detaches a fork from the shim: closes the shim's descriptors, and makes it die with the shim,
/// since nothing else would hold the container.
fn settle(
    shim: Pid,
    complaints: &File,
    socket: &UnixStream,
    stdio: Option<&[OwnedFd; 3]>,
    job: &Job,
) -> io::Result<()> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    if getppid() != shim {
        return Err(io::Error::other("the shim is gone"));
    }
    let _ = nix::sys::prctl::set_name(c"mainstay-oci");
    SigSet::empty().thread_set_mask()?;
    let null = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    nix::unistd::dup2_stdin(&null)?;
    nix::unistd::dup2_stdout(&null)?;
    nix::unistd::dup2_stderr(complaints)?;
    let mut kept: Vec<i32> = stdio
        .into_iter()
        .flatten()
        .map(|fd| fd.as_raw_fd())
        .collect();
    kept.push(socket.as_raw_fd());
    if let Job::Run {
        base: Some(base), ..
    } = job
    {
        kept.push(base.namespace.as_raw_fd());
    }
    kept.sort_unstable();
    std::mem::forget(null);
    close_all_but(&kept);
    Ok(())
}

/// Closes every descriptor above standard error but these, which are sorted.
fn close_all_but(kept: &[i32]) {
    let mut first = libc::STDERR_FILENO + 1;
    let close = |from: i32, to: u32| {
        // SAFETY: closes descriptors that this process, a fork that never returns, does not use.
        unsafe { libc::syscall(libc::SYS_close_range, from, to, 0) };
    };
    for fd in kept {
        if *fd > first {
            close(first, (fd - 1).cast_unsigned());
        }
        first = first.max(fd + 1);
    }
    close(first, libc::c_uint::MAX);
}
