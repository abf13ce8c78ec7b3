//! The shim's startup: reads its orders from standard input, detaches from its parent, which creates and pins the
//! sandbox's namespaces, and serves requests until one of them shuts it down.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::{fd::AsFd, unix::net::UnixListener},
    process::ExitCode,
};

use nix::{
    sys::{
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
    },
    unistd::setsid,
};

use super::{pin, protocol::Start, serve::Shim, spawn};
use crate::cgroup::Cgroup;

/// Called in a fork of the zygote, which has one thread.
pub(super) fn run() -> ExitCode {
    match start() {
        Ok(Some(shim)) => shim.serve(),
        Ok(None) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

/// Sets everything up. Returns `None` in the process that the daemon waits for, by its standard streams: the shim
/// continues as its child, in a session of its own.
fn start() -> io::Result<Option<Shim>> {
    // The file stays open, and so locked, for the shim's lifetime: that tells the daemon that the
    // shim exists.
    let mut held = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    // Not `from_reader`, which would make a system call for each byte.
    let mut orders = Vec::new();
    held.read_to_end(&mut orders)?;
    let mut orders: Start = serde_json::from_slice(&orders)?;
    if let Some(hierarchies) = orders.hierarchies.take() {
        hierarchies.use_as_host();
    }
    setsid()?;
    let _ = nix::sys::prctl::set_name(c"mainstay-shim");
    std::env::set_current_dir("/")?;
    let mut signals = SigSet::empty();
    for signal in [
        Signal::SIGCHLD,
        Signal::SIGHUP,
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGQUIT,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
    ] {
        signals.add(signal);
    }
    signals.thread_block()?;
    let _ = std::fs::remove_file(&orders.socket);
    let listener = UnixListener::bind(&orders.socket)?;
    listener.set_nonblocking(true)?;
    let (mut read_end, mut write_end) = io::pipe()?;
    let (mut pinned, mut pin_end) = io::pipe()?;
    if Cgroup::new(&orders.cgroup).fork()?.is_some() {
        drop((write_end, pinned));
        // Beside the second half, in this process, which ends soon: only files keep the namespaces.
        pin::pin(&orders)?;
        // If the second half has ended, its message says why.
        let _ = pin_end.write_all(spawn::PINNED);
        drop(pin_end);
        // The daemon attaches the network meanwhile. If it is gone, the next one removes the sandbox.
        let _ = nix::unistd::write(io::stdout(), spawn::PINNED);
        let mut message = String::new();
        read_end.read_to_string(&mut message)?;
        return if message.is_empty() {
            Ok(None)
        } else {
            Err(io::Error::other(message))
        };
    }
    drop((read_end, pin_end));
    let shim = settle(orders, held, listener, &signals).and_then(|shim| {
        // Requests are served only after this: a shim that answers has pinned its namespaces, so that a request to
        // shut down removes all of them.
        pinned.read_exact(&mut [0; spawn::PINNED.len()])?;
        Ok(shim)
    });
    match shim {
        Ok(shim) => Ok(Some(shim)),
        Err(error) => {
            let _ = write!(write_end, "{error}");
            Ok(None)
        }
    }
}

/// The second half, in the process that stays.
fn settle(orders: Start, held: File, listener: UnixListener, signals: &SigSet) -> io::Result<Shim> {
    Cgroup::new(&orders.cgroup).enter_everywhere()?;
    nix::sys::prctl::set_child_subreaper(true)?;
    let init = orders
        .namespaces
        .pid
        .as_deref()
        .map(pin::start_init)
        .transpose()?;
    detach_stdio(&orders)?;
    let signals = SignalFd::with_flags(signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    Ok(Shim::new(orders, held, listener, signals, init))
}

fn detach_stdio(orders: &Start) -> io::Result<()> {
    let null = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&orders.log)?;
    nix::unistd::dup2_stdin(&null)?;
    nix::unistd::dup2_stdout(&null)?;
    nix::unistd::dup2_stderr(&log)?;
    Ok(())
}
