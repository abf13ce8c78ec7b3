//! Time, memory of processes and writes of an API server.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// The timeout of a scenario.
const PATIENCE: Duration = Duration::from_secs(1800);
const WRITES: [&str; 5] = ["POST", "PUT", "PATCH", "APPLY", "DELETE"];

pub(crate) struct Measure {
    client: kube::Client,
    pids: Vec<u32>,
    settle: Duration,
}

impl Measure {
    pub(crate) fn new(client: kube::Client, pids: Vec<u32>, settle: u64) -> Self {
        Self {
            client,
            pids,
            settle: Duration::from_secs(settle),
        }
    }

    /// Prints the current memory of the processes.
    pub(crate) async fn memory(&self, what: &str) {
        let (now, peak) = self.pids.iter().fold((0, 0), |(now, peak), pid| {
            let text = std::fs::read_to_string(format!("/proc/{pid}/status"));
            let text = text.unwrap_or_default();
            (now + field(&text, "VmRSS:"), peak + field(&text, "VmHWM:"))
        });
        println!("{what:<40} {now:>6} MB resident, {peak:>6} MB at most");
    }

    /// Prints the memory after an idle period.
    pub(crate) async fn settled_memory(&self, what: &str) {
        tokio::time::sleep(self.settle).await;
        self.memory(&format!("{what}, settled")).await;
    }

    /// Waits until `is_done`, prints the duration and the number of writes per one of `count`.
    pub(crate) async fn until<F>(
        &self,
        what: &str,
        count: usize,
        begun: Instant,
        writes_before: u64,
        mut is_done: impl FnMut() -> F,
    ) -> Result<()>
    where
        F: Future<Output = Result<bool>>,
    {
        while !is_done().await? {
            if begun.elapsed() > PATIENCE {
                bail!("{what}: not done after {PATIENCE:?}");
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let took = begun.elapsed().as_secs_f64();
        let writes = self.writes().await?.saturating_sub(writes_before);
        let rate = count as f64 / took;
        let each = writes as f64 / count.max(1) as f64;
        println!("{what:<40} {took:>8.1} s {rate:>8.0}/s, {each:.1} writes each");
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

/// A field of `/proc/PID/status`, in megabytes.
fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kilobytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) / 1024
}
