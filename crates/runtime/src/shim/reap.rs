//! Reaps ended processes. The shim is the subreaper of everything it started, so that it also reaps
//! processes whose parents have ended. A helper may report a pid that was already reaped, which is
//! why unknown exits are kept while a helper runs.

use std::collections::BTreeMap;

use nix::{
    errno::Errno,
    sys::wait::{WaitPidFlag, WaitStatus, waitpid},
    unistd::Pid,
};

/// Every process that has ended since the last call, with its exit code.
pub(super) fn ended() -> Vec<(i32, i32)> {
    let mut found = Vec::new();
    loop {
        match waitpid(None::<Pid>, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) => found.push((pid.as_raw(), code)),
            Ok(WaitStatus::Signaled(pid, signal, _)) => {
                found.push((pid.as_raw(), 128 + signal as i32));
            }
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return found,
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return found,
        }
    }
}

/// Exits of processes that are not known yet.
#[derive(Default)]
pub(super) struct Unclaimed(BTreeMap<i32, i32>);

impl Unclaimed {
    /// Keeps an exit until it is claimed.
    pub(super) fn keep(&mut self, pid: i32, code: i32) {
        self.0.insert(pid, code);
    }

    /// The exit code of a process that ended before it was known.
    pub(super) fn claim(&mut self, pid: i32) -> Option<i32> {
        self.0.remove(&pid)
    }

    /// No helper runs, so that no exit will be claimed.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
