//! Shutdown of the shim: kills and reaps everything, then tells the daemon.

use std::time::{Duration, Instant};

use super::{protocol::Answer, serve::Shim, tasks::send_signal};
use crate::cgroup::Cgroup;

/// How long killed containers may take to be reaped.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(5);

/// The connection that requested the shutdown, and since when.
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

    /// Whether everything has ended, or the deadline has passed.
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
