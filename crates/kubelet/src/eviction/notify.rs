//! Kernel notifications about memory, so that evictions need not wait for the next poll: memory
//! stalls (PSI), and memory usage of all pods near their limit (a threshold on cgroup v1, events of
//! the limit on v2). On kernels without them only polling remains.

use std::{
    fs::{File, OpenOptions},
    io::Write,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    time::{Duration, Instant},
};

use libcgroups::Cgroup;
use rustix::{
    event::{EventfdFlags, eventfd},
    fs::{
        OFlags,
        inotify::{self, CreateFlags, WatchFlags},
    },
};
use tokio::io::{Interest, unix::AsyncFd};
use tracing::debug;

use super::thresholds::{Signal, Threshold};
use crate::{
    cgroups::{below, is_v2},
    core::Core,
};

const PRESSURE: &str = "/proc/pressure/memory";
/// PSI trigger: 100 ms of memory stall within one second.
const STALL: &str = "some 100000 1000000";
/// How long a usage threshold is kept: the reclaimable part of the usage changes.
const REARM_INTERVAL: Duration = Duration::from_secs(10);

/// The notifications of the kernel.
pub(super) struct Notifier {
    stalls: Option<Source>,
    pods: Option<Source>,
    armed: Option<Instant>,
}

impl Notifier {
    pub(super) fn new() -> Self {
        let stalls = stalls(PRESSURE);
        if let Err(error) = &stalls {
            debug!(%error, "no notifications of memory pressure from the kernel");
        }
        Self {
            stalls: stalls.ok(),
            pods: None,
            armed: None,
        }
    }

    /// Sets the notification for memory usage of all pods near their limit.
    pub(super) fn arm(&mut self, core: &Core, thresholds: &[Threshold]) {
        if self.armed.is_some_and(|at| at.elapsed() < REARM_INTERVAL) {
            return;
        }
        self.armed = Some(Instant::now());
        let root = core.cgroup_root();
        let of_pods = thresholds
            .iter()
            .find(|threshold| threshold.signal == Signal::AllocatableMemoryAvailable);
        let Some(threshold) = of_pods.filter(|_| !root.is_empty()) else {
            self.pods = None;
            return;
        };
        let path = root.kubepods();
        let armed = if is_v2() {
            // Limit events need no threshold, so that the inotify watch is kept.
            self.pods.take().map_or_else(|| limit_events(&path), Ok)
        } else {
            let allowed = core.machine.memory - core.settings().reserved("memory").value();
            let usage = Cgroup::new(&path).usage();
            let reclaimable = usage.memory.zip(usage.working_set);
            let reclaimable = reclaimable.map_or(0, |(all, needed)| all.saturating_sub(needed));
            let at = usage_at(allowed, threshold.value.resolve(allowed), reclaimable);
            crossing(&path, at)
        };
        if let Err(error) = &armed {
            debug!(%error, "no memory threshold notifications from the kernel");
        }
        self.pods = armed.ok();
    }

    /// Waits for the next notification; for ever if the kernel has none.
    pub(super) async fn notified(&self) {
        tokio::select! {
            () = fired(self.stalls.as_ref()) => {}
            () = fired(self.pods.as_ref()) => {}
        }
    }
}

/// The usage at which less than `least` remains of what is allowed. Reclaimable memory does not
/// count as used.
fn usage_at(allowed: i64, least: i64, reclaimable: u64) -> u64 {
    let needed = u64::try_from(allowed.saturating_sub(least)).unwrap_or(0);
    needed.saturating_add(reclaimable)
}

/// A file descriptor that becomes ready with a notification.
struct Source {
    fd: AsyncFd<OwnedFd>,
    interest: Interest,
}

impl Source {
    fn new(fd: OwnedFd, interest: Interest) -> std::io::Result<Self> {
        // SAFETY: the descriptor is owned by the AsyncFd alone and is neither replaced nor closed
        // before it is deregistered there.
        let registered = unsafe { AsyncFd::register_with_interest(fd, interest) };
        Ok(Self {
            fd: registered.map_err(std::io::Error::from)?,
            interest,
        })
    }
}

async fn fired(source: Option<&Source>) {
    let Some(source) = source else {
        return std::future::pending().await;
    };
    let Ok(mut guard) = source.fd.ready(source.interest).await else {
        return std::future::pending().await;
    };
    if source.interest == Interest::READABLE {
        let mut buffer = [0; 1024];
        while rustix::io::read(source.fd.get_ref(), &mut buffer).is_ok_and(|count| count > 0) {}
    }
    guard.clear_ready();
}

fn stalls(path: &str) -> std::io::Result<Source> {
    let flags = OFlags::NONBLOCK.bits() as i32;
    let mut options = OpenOptions::new();
    let mut file = options
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(path)?;
    file.write_all(STALL.as_bytes())?;
    Source::new(file.into(), Interest::PRIORITY)
}

/// Notifies whenever the usage of a v1 cgroup crosses this many bytes.
fn crossing(path: &str, bytes: u64) -> std::io::Result<Source> {
    let dir = below("memory", path);
    let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
    let usage = File::open(dir.join("memory.usage_in_bytes"))?;
    let line = format!("{} {} {bytes}", event.as_raw_fd(), usage.as_raw_fd());
    std::fs::write(dir.join("cgroup.event_control"), line)?;
    Source::new(event, Interest::READABLE)
}

/// Notifies whenever a v2 cgroup reaches one of its limits.
fn limit_events(path: &str) -> std::io::Result<Source> {
    let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
    let file = below("", path).join("memory.events");
    inotify::add_watch(&watch, file, WatchFlags::MODIFY)?;
    Source::new(watch, Interest::READABLE)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn reclaimable_memory_does_not_count_as_used() {
        assert_eq!(usage_at(1000, 100, 0), 900);
        assert_eq!(usage_at(1000, 100, 50), 950);
        assert_eq!(usage_at(100, 1000, 0), 0);
    }

    #[tokio::test]
    async fn without_kernel_notifications_the_periodic_checks_remain() {
        assert!(stalls("/there/is/no/such").is_err());
        assert!(crossing("/there/is/no/such", 1).is_err());
        assert!(limit_events("/there/is/no/such").is_err());
        let silent = Notifier {
            stalls: None,
            pods: None,
            armed: None,
        };
        let waited = tokio::time::timeout(Duration::from_millis(10), silent.notified());
        assert!(waited.await.is_err());
    }

    /// Needs root and the memory controller of cgroup v1; passes without checking elsewhere.
    #[tokio::test]
    async fn the_kernel_notifies_when_a_cgroup_exceeds_its_threshold() {
        let path = format!("/mainstay-notify-{}", std::process::id());
        let dir = below("memory", &path);
        if is_v2() || std::fs::create_dir(&dir).is_err() {
            return;
        }
        let source = crossing(&path, 4 << 20).unwrap();
        let early = tokio::time::timeout(Duration::from_millis(10), fired(Some(&source))).await;
        let grow = "echo $$ > \"$0/cgroup.procs\"; head -c 16777216 /dev/zero | tail -n 1 | wc -c";
        let mut grown = Command::new("sh")
            .args(["-c", grow])
            .arg(&dir)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let said = tokio::time::timeout(Duration::from_secs(30), fired(Some(&source))).await;
        grown.wait().unwrap();
        let removed = Cgroup::new(&path).remove();
        assert!(early.is_err(), "nothing was used yet");
        assert!(said.is_ok(), "the threshold was crossed");
        assert!(removed.is_ok());
    }
}
