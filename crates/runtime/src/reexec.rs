//! Helper processes are re-executions of this program with another name. The daemon's `main` calls
//! [`dispatch`] before anything else: cloning and namespaces need a single-threaded process.
//!
//! Helpers run from a sealed memfd copy of the program: a container that opens `/proc/PID/exe` of a
//! helper cannot change what the next helper runs, and replacing the program's file on disk does
//! not mix versions.

use std::{
    ffi::CStr,
    fs::File,
    io::{self, Read, Seek, Write},
    os::fd::{AsFd, AsRawFd},
    process::{Command, ExitCode},
};

use nix::{
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::{
        memfd::{MFdFlags, memfd_create},
        signal::SigSet,
    },
};

pub(crate) const SHIM: &CStr = c"mainstay:shim";
pub(crate) const INIT: &CStr = c"mainstay:init";
pub(crate) const PROPAGATE: &CStr = c"mainstay:propagate";
pub(crate) const BIND_DEV: &CStr = c"mainstay:bind-dev";
pub(crate) const MAKE_DEVICES: &CStr = c"mainstay:make-devices";

/// Runs a helper if this process was started as one. Must be called first in `main`, before any
/// thread is started.
pub fn dispatch() -> Option<ExitCode> {
    let name = std::env::args_os().next()?;
    let is = |helper: &CStr| name.as_encoded_bytes() == helper.to_bytes();
    let helper: fn() -> ExitCode = if is(SHIM) {
        crate::shim::run
    } else if is(INIT) {
        crate::helper::init::run
    } else if is(PROPAGATE) {
        crate::helper::propagate::run
    } else if is(BIND_DEV) {
        crate::helper::bound_dev::run
    } else if is(MAKE_DEVICES) {
        crate::helper::placed_devices::run
    } else {
        return None;
    };
    // The parent may have blocked signals.
    let _ = SigSet::empty().thread_set_mask();
    Some(helper())
}

/// The sealed copy.
pub(crate) struct Program(File);

impl Program {
    /// Copies the running program.
    pub(crate) fn seal() -> io::Result<Self> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let mut copy = File::from(memfd_create(c"mainstay", flags)?);
        let mut original = File::open("/proc/self/exe")?;
        copy_by_pages(&mut original, &mut copy)?;
        copy.rewind()?;
        let seals = SealFlag::F_SEAL_SEAL
            | SealFlag::F_SEAL_SHRINK
            | SealFlag::F_SEAL_GROW
            | SealFlag::F_SEAL_WRITE;
        fcntl(copy.as_fd(), FcntlArg::F_ADD_SEALS(seals))?;
        Ok(Self(copy))
    }

    /// A command that executes it with a helper's name.
    pub(crate) fn command(&self, helper: &CStr) -> Command {
        let mut command = Command::new(format!("/proc/self/fd/{}", self.0.as_raw_fd()));
        name(&mut command, helper);
        command
    }
}

/// Larger writes make the kernel use larger pages, which count as resident as a whole in every shim
/// that touches a byte of them.
fn copy_by_pages(from: &mut File, to: &mut File) -> io::Result<()> {
    let mut buffer = vec![0; 256 * 1024];
    loop {
        let length = from.read(&mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        for page in buffer[..length].chunks(4096) {
            to.write_all(page)?;
        }
    }
}

fn name(command: &mut Command, helper: &CStr) {
    use std::os::unix::{ffi::OsStrExt, process::CommandExt};
    command
        .arg0(std::ffi::OsStr::from_bytes(helper.to_bytes()))
        .env_clear();
    // OCI runtimes look for their own helpers in PATH.
    command.env(
        "PATH",
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    );
}
