//! Time, memory of processes and writes of an API server.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use parking_lot::Mutex;

/// The timeout of a scenario.
const PATIENCE: Duration = Duration::from_secs(1800);
/// How long the processes rest before their idle CPU time is measured, and how long it is measured: nodes renew their
/// Leases every ten seconds.
const REST: Duration = Duration::from_secs(5);
const IDLE: Duration = Duration::from_secs(20);
const WRITES: [&str; 5] = ["POST", "PUT", "PATCH", "APPLY", "DELETE"];

pub(crate) struct Measure {
    client: kube::Client,
    pids: Vec<u32>,
    settle: Duration,
    /// Guards the idle CPU time of the processes, in seconds per second.
    idle: Mutex<f64>,
    /// Guards the most memory seen, in megabytes: the processes may have ended.
    most: Mutex<u64>,
    /// Guards the figures so far.
    figures: Mutex<Vec<Figure>>,
}

/// How long one step of a scenario took.
#[derive(Debug, Clone)]
pub(crate) struct Figure {
    pub(crate) what: String,
    pub(crate) seconds: f64,
    /// Seconds of CPU time of the processes, without what they need when they are idle.
    pub(crate) cpu: f64,
}

/// The beginning of a step.
pub(crate) struct Begun {
    at: Instant,
    writes: u64,
    cpu: f64,
}

impl Measure {
    pub(crate) fn new(client: kube::Client, pids: Vec<u32>, settle: u64) -> Self {
        Self {
            client,
            pids,
            settle: Duration::from_secs(settle),
            idle: Mutex::default(),
            most: Mutex::default(),
            figures: Mutex::default(),
        }
    }

    /// Measures the CPU time of the processes while nothing happens but the nodes' heartbeats.
    pub(crate) async fn idle(&self) {
        if self.pids.is_empty() {
            return;
        }
        tokio::time::sleep(REST).await;
        let (at, before) = (Instant::now(), self.cpu());
        tokio::time::sleep(IDLE).await;
        let idle = (self.cpu() - before) / at.elapsed().as_secs_f64();
        *self.idle.lock() = idle;
        println!("idle: {:.1} % of a core, subtracted below", 100.0 * idle);
    }

    /// Begins a step of a scenario.
    pub(crate) async fn begin(&self) -> Result<Begun> {
        Ok(Begun {
            writes: self.writes().await?,
            cpu: self.cpu(),
            at: Instant::now(),
        })
    }

    /// The figures so far.
    pub(crate) fn figures(&self) -> Vec<Figure> {
        self.figures.lock().clone()
    }

    /// The most memory that the processes had, in megabytes.
    pub(crate) fn peak(&self) -> u64 {
        let now = self.sum("VmHWM:");
        let mut most = self.most.lock();
        *most = now.max(*most);
        *most
    }

    /// The sum of a field of `/proc/PID/status` over the processes, in megabytes.
    fn sum(&self, name: &str) -> u64 {
        let each = self.pids.iter().map(|pid| {
            let text = std::fs::read_to_string(format!("/proc/{pid}/status"));
            field(&text.unwrap_or_default(), name)
        });
        each.sum()
    }

    /// The CPU time of the processes so far, in seconds.
    fn cpu(&self) -> f64 {
        let each = self.pids.iter().map(|pid| {
            let text = std::fs::read_to_string(format!("/proc/{pid}/stat"));
            cpu_seconds(&text.unwrap_or_default())
        });
        each.sum()
    }

    /// Prints the current memory of the processes.
    pub(crate) async fn memory(&self, what: &str) {
        let (now, own, peak) = (self.sum("VmRSS:"), self.sum("RssAnon:"), self.peak());
        println!("{what:<40} {now:>6} MB resident, {own:>6} MB anonymous, {peak:>6} MB at most");
    }

    /// Prints the memory after an idle period.
    pub(crate) async fn settled_memory(&self, what: &str) {
        tokio::time::sleep(self.settle).await;
        self.memory(&format!("{what}, settled")).await;
    }

    /// Waits until `is_done`, prints the duration, the CPU time, and the number of writes per one of `count`.
    pub(crate) async fn until<F>(
        &self,
        what: &str,
        count: usize,
        begun: Begun,
        mut is_done: impl FnMut() -> F,
    ) -> Result<()>
    where
        F: Future<Output = Result<bool>>,
    {
        while !is_done().await? {
            if begun.at.elapsed() > PATIENCE {
                bail!("{what}: not done after {PATIENCE:?}");
            }
            tokio::time::sleep(pause(begun.at.elapsed())).await;
        }
        let took = begun.at.elapsed().as_secs_f64();
        let cpu = (self.cpu() - begun.cpu - took * *self.idle.lock()).max(0.0);
        let writes = self.writes().await?.saturating_sub(begun.writes);
        let rate = count as f64 / took;
        let each = writes as f64 / count.max(1) as f64;
        println!(
            "{what:<40} {took:>8.1} s {rate:>8.0}/s, {each:.1} writes each, {cpu:.1} s of CPU time"
        );
        self.figures.lock().push(Figure {
            what: what.to_owned(),
            seconds: took,
            cpu,
        });
        self.memory(what).await;
        Ok(())
    }

    /// The number of writes the API server has answered, without Leases and Events.
    pub(crate) async fn writes(&self) -> Result<u64> {
        let request = http::Request::get("/metrics").body(Vec::new())?;
        let text = self.client.request_text(request).await?;
        let counted = |line: &&str| {
            let of = |label: &str, value: &str| line.contains(&format!("{label}=\"{value}\""));
            line.starts_with("apiserver_request_total{")
                && WRITES.iter().any(|verb| of("verb", verb))
                && !of("resource", "leases")
                && !of("resource", "events")
        };
        let value = |line: &str| line.rsplit(' ').next()?.parse::<f64>().ok();
        let values = text.lines().filter(counted).filter_map(value);
        Ok(values.sum::<f64>() as u64)
    }
}

/// The pause before the next look after this time: looks cost the measured processes CPU time, too.
fn pause(elapsed: Duration) -> Duration {
    (elapsed / 25).clamp(Duration::from_millis(10), Duration::from_secs(2))
}

/// The CPU time in `/proc/PID/stat`, of the process without its children.
fn cpu_seconds(text: &str) -> f64 {
    // The name of the program, in parentheses, may contain spaces. The fields after it begin with the third.
    let rest = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut fields = rest.split_whitespace().skip(11);
    let mut ticks = || fields.next().and_then(|field| field.parse().ok());
    let (user, system): (Option<f64>, Option<f64>) = (ticks(), ticks());
    // Linux counts in hundredths of a second on all platforms.
    (user.unwrap_or(0.0) + system.unwrap_or(0.0)) / 100.0
}

/// A field of `/proc/PID/status`, in megabytes.
fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kilobytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_a_step_takes_the_less_often_it_is_looked_at() {
        for (seconds, milliseconds) in [(0, 10), (10, 400), (60, 2000)] {
            let pause = pause(Duration::from_secs(seconds));
            assert_eq!(pause, Duration::from_millis(milliseconds), "{seconds}");
        }
    }

    #[test]
    fn cpu_time_is_user_and_system_time_whatever_the_program_is_called() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 9 9 20 0 4 0 100";
        assert!((cpu_seconds(stat) - 3.0).abs() < f64::EPSILON);
        assert!(cpu_seconds("").abs() < f64::EPSILON);
    }
}
