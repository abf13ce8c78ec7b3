//! The shim's end: everything is killed, collected, and then the daemon is told.

use std::time::{Duration, Instant};

use super::{protocol::Answer, serve::Shim, tasks::send_signal};
use crate::cgroup::Cgroup;

/// How long killed containers may take to be collected.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(5);

/// Who asked to shut down, and since when.
pub(super) struct Down {
    conn: u64,
    request: u64,
    until: Instant,
}

impl Shim {
    pub(super) fn shut_down(&mut self, conn: u64, request: u64) {
        for container in self.containers.values() {
            if container.exit.is_none() && container.pid != 0 {
                let _ = send_signal(container.pid, libc::SIGKILL);
                if container.run.kill_cgroup {
                    Cgroup::new(&container.run.cgroup).kill_all(Duration::from_millis(100));
                }
            }
        }
        if let Some(init) = self.init {
            let _ = send_signal(init, libc::SIGKILL);
        }
        self.down = Some(Down {
            conn,
            request,
            until: Instant::now() + SHUTDOWN_DEADLINE,
        });
    }

    /// Everything has ended, or had its time to.
    pub(super) fn is_down(&mut self) -> bool {
        let Some(down) = &self.down else { return false };
        let alive = self
            .containers
            .values()
            .any(|c| c.exit.is_none() && c.pid != 0);
        let busy = alive || self.init.is_some() || !self.helpers.is_empty();
        if busy && Instant::now() < down.until {
            return false;
        }
        let (conn, request) = (down.conn, down.request);
        self.reply(conn, request, Ok(Answer::Done), None);
        true
    }
}
