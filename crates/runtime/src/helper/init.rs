//! The init of a PID namespace that a pod's containers share: only reaps orphans. It has an empty
//! file system and no capabilities, because the containers can see it. It ends with the shim: then
//! its standard input closes.

use std::{os::fd::AsFd, process::ExitCode};

use nix::{
    errno::Errno,
    mount::{MntFlags, MsFlags, mount, umount2},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sched::{CloneFlags, unshare},
    sys::{
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{Pid, pivot_root},
};

/// The entry point.
pub(crate) fn run() -> ExitCode {
    match prepare().and_then(|signals| serve(&signals)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn prepare() -> nix::Result<SignalFd> {
    let _ = nix::sys::prctl::set_name(c"mainstay-init");
    leave_file_system()?;
    for fd in [libc::STDOUT_FILENO, libc::STDERR_FILENO] {
        let _ = nix::unistd::close(fd);
    }
    // SAFETY: closes descriptors that nothing in this process uses.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
    for set in [caps::CapSet::Ambient, caps::CapSet::Bounding] {
        let _ = caps::clear(None, set);
    }
    for set in [
        caps::CapSet::Effective,
        caps::CapSet::Permitted,
        caps::CapSet::Inheritable,
    ] {
        caps::clear(None, set).map_err(|_| Errno::EPERM)?;
    }
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGCHLD);
    signals.add(Signal::SIGTERM);
    signals.thread_block()?;
    SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}

/// An empty, read-only root in a mount namespace of its own.
fn leave_file_system() -> nix::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(
        Some("tmpfs"),
        "/tmp",
        Some("tmpfs"),
        MsFlags::MS_RDONLY,
        Some("size=0,mode=0555"),
    )?;
    nix::unistd::chdir("/tmp")?;
    // Both roots at one place: the old one is on top and is unmounted.
    pivot_root(".", ".")?;
    umount2(".", MntFlags::MNT_DETACH)?;
    nix::unistd::chdir("/")
}

fn serve(signals: &SignalFd) -> nix::Result<()> {
    let stdin = std::io::stdin();
    loop {
        let mut fds = [
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(stdin.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut fds, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            other => other?,
        };
        if fds[1].revents().is_some_and(|events| !events.is_empty()) {
            return Ok(());
        }
        while let Ok(Some(info)) = signals.read_signal() {
            if info.ssi_signo == Signal::SIGTERM as u32 {
                return Ok(());
            }
        }
        while !matches!(
            waitpid(None::<Pid>, Some(WaitPidFlag::WNOHANG)),
            Ok(WaitStatus::StillAlive) | Err(_)
        ) {}
    }
}
