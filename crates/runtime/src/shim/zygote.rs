//! A process that becomes shims: executing the program, with its relocations and page faults, costs more than all else that
//! a shim does until it serves, so it is done once for all shims of a daemon.
//!
//! The zygote has one thread, runs from the sealed program, and knows nothing of pods: for each message it forks, and the
//! fork gets the three descriptors of the message as its standard streams and no others. It ends with the daemon, which
//! starts it with the first pod, so that each version of the program has its own.

use std::{
    io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::net::UnixStream,
    },
    process::{Child, ExitCode, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{SigHandler, Signal, signal},
    unistd::{ForkResult, fork},
};
use parking_lot::Mutex;

use super::main;
use crate::{
    reexec::{self, Program},
    wire::{Inbox, send_all},
};

/// How long a message waits while many others do. A zygote that does not take it then was stopped.
const TAKES_WITHIN: Duration = Duration::from_secs(1);
/// The number of standard streams.
const STREAMS: usize = 3;

/// The daemon's zygote, once there is one.
#[derive(Default)]
pub(crate) struct Zygote {
    /// Guards the process, so that there is one.
    running: Mutex<Option<Running>>,
}

struct Running {
    socket: UnixStream,
    child: Child,
}

impl Zygote {
    /// Starts a process with these standard streams, whose orders are in the first. A zygote that has ended, or that does
    /// not take messages, is replaced. The streams of a message that ends with its zygote are closed without a word.
    pub(super) fn fork(&self, program: &Program, streams: [OwnedFd; STREAMS]) -> io::Result<()> {
        let raw = streams.each_ref().map(AsRawFd::as_raw_fd);
        let mut running = self.running.lock();
        if let Some(zygote) = &*running
            && send_all(zygote.socket.as_fd(), &(), &raw).is_ok()
        {
            return Ok(());
        }
        // Ends the former one first.
        *running = None;
        let zygote = running.insert(Running::start(program)?);
        send_all(zygote.socket.as_fd(), &(), &raw)
    }
}

impl Running {
    fn start(program: &Program) -> io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        socket.set_write_timeout(Some(TAKES_WITHIN))?;
        let mut command = program.command(reexec::SHIM);
        command
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn()?;
        Ok(Self { socket, child })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The entry point, called before any thread exists: serves as zygote, and returns from its forks when their shim has ended.
pub(crate) fn run() -> ExitCode {
    match serve() {
        Ok(true) => main::run(),
        Ok(false) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// True in a fork, which has its standard streams; false when the daemon has ended.
fn serve() -> io::Result<bool> {
    // SAFETY: nothing in this process has opened any of them.
    unsafe { close_others() }?;
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    let _ = nix::sys::prctl::set_name(c"mainstay-zygote");
    // Apart from the daemon's terminal; it ends with the daemon's socket.
    let _ = nix::unistd::setsid();
    std::env::set_current_dir("/")?;
    // The kernel reaps the forks.
    handle_children(SigHandler::SigIgn)?;
    let mut inbox = Inbox::default();
    loop {
        while inbox.take::<()>()?.is_none() {
            match inbox.fill(socket.as_fd()) {
                Ok(0) => return Ok(false),
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
        let streams = [inbox.fd()?, inbox.fd()?, inbox.fd()?];
        // SAFETY: this process has one thread, so that the child may call any function.
        match unsafe { fork() } {
            Ok(ForkResult::Child) => {
                take_streams(&streams)?;
                // Their copies, the socket and whatever was already received for others.
                std::mem::forget((streams, inbox, socket));
                handle_children(SigHandler::SigDfl)?;
                return Ok(true);
            }
            Ok(ForkResult::Parent { .. }) => {}
            Err(error) => {
                let message = format!("cannot fork: {error}");
                let _ = nix::unistd::write(&streams[2], message.as_bytes());
            }
        }
    }
}

fn handle_children(how: SigHandler) -> io::Result<()> {
    // SAFETY: neither disposition runs code of this process.
    unsafe { signal(Signal::SIGCHLD, how) }?;
    Ok(())
}

/// Makes the descriptors the standard streams and closes all others.
fn take_streams(streams: &[OwnedFd; STREAMS]) -> io::Result<()> {
    let [stdin, stdout, stderr] = streams;
    nix::unistd::dup2_stdin(stdin)?;
    nix::unistd::dup2_stdout(stdout)?;
    nix::unistd::dup2_stderr(stderr)?;
    // SAFETY: what owns these descriptors is forgotten by the caller.
    unsafe { close_others() }
}

/// Closes all descriptors but the standard streams.
///
/// # Safety
///
/// Nothing may use what owns one of them afterwards.
unsafe fn close_others() -> io::Result<()> {
    // SAFETY: as the caller guarantees.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, STREAMS, libc::c_uint::MAX, 0) };
    match closed {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
