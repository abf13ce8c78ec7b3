//! Figures as a table and as JSON.

use std::time::Duration;

use serde_json::{Value, json};

/// One measurement.
#[derive(Debug, Clone)]
pub(crate) struct Figures {
    pub what: String,
    pub connections: usize,
    pub rate: f64,
    pub median: Duration,
    pub worst_of_hundred: Duration,
    pub megabytes: f64,
    /// The server's CPU time per request.
    pub cpu: Duration,
}

impl Figures {
    /// From single durations.
    pub(crate) fn of(
        what: &str,
        connections: usize,
        mut durations: Vec<Duration>,
        bytes: u64,
        took: Duration,
        cpu: Duration,
    ) -> Self {
        durations.sort_unstable();
        let at = |part: f64| {
            let index = (durations.len() as f64 * part) as usize;
            durations
                .get(index.min(durations.len().saturating_sub(1)))
                .copied()
                .unwrap_or_default()
        };
        Self {
            what: what.to_owned(),
            connections,
            rate: durations.len() as f64 / took.as_secs_f64(),
            median: at(0.5),
            worst_of_hundred: at(0.99),
            megabytes: bytes as f64 / 1e6 / took.as_secs_f64(),
            cpu: cpu / u32::try_from(durations.len().max(1)).unwrap_or(u32::MAX),
        }
    }

    fn json(&self) -> Value {
        json!({
            "what": self.what,
            "connections": self.connections,
            "per_second": self.rate,
            "p50_ms": ms(self.median),
            "p99_ms": ms(self.worst_of_hundred),
            "mb_per_second": self.megabytes,
            "server_cpu_us": self.cpu.as_secs_f64() * 1e6,
        })
    }

    pub(crate) fn line(&self) -> String {
        format!(
            "{:<30} {:>5} {:>10.0} {:>9.2} {:>9.2} {:>8.1} {:>9.0}",
            self.what,
            self.connections,
            self.rate,
            ms(self.median),
            ms(self.worst_of_hundred),
            self.megabytes,
            self.cpu.as_secs_f64() * 1e6,
        )
    }
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// All figures of one server, in the order of the scenarios.
#[derive(Debug, Clone, Default)]
pub(crate) struct Run {
    pub name: &'static str,
    pub table: Vec<Figures>,
    /// The resident megabytes at some points.
    pub memory: Vec<(&'static str, u64)>,
}

impl Run {
    pub(crate) fn json(&self) -> Value {
        let memory: serde_json::Map<String, Value> = self
            .memory
            .iter()
            .map(|(when, megabytes)| ((*when).to_owned(), (*megabytes).into()))
            .collect();
        let figures: Vec<Value> = self.table.iter().map(Figures::json).collect();
        json!({"name": self.name, "figures": figures, "memory_mb": memory})
    }

    pub(crate) fn print(&self) {
        println!(
            "\n{}\n{:<30} {:>5} {:>10} {:>9} {:>9} {:>8} {:>9}",
            self.name, "what", "conns", "per s", "p50 ms", "p99 ms", "MB/s", "CPU µs"
        );
        for figures in &self.table {
            println!("{}", figures.line());
        }
        for (when, megabytes) in &self.memory {
            println!("memory {when}: {megabytes} MB");
        }
    }
}

/// How many times better the first is than the second, line by line.
pub(crate) fn compare(one: &Run, other: &Run) {
    println!(
        "\n{} beside {}\n{:<30} {:>5} {:>10} {:>9} {:>9}",
        one.name, other.name, "what", "conns", "rate ×", "p50 1/", "p99 1/"
    );
    for (mine, theirs) in one.table.iter().zip(&other.table) {
        println!(
            "{:<30} {:>5} {:>10.1} {:>9.1} {:>9.1}",
            mine.what,
            mine.connections,
            mine.rate / theirs.rate,
            ms(theirs.median) / ms(mine.median),
            ms(theirs.worst_of_hundred) / ms(mine.worst_of_hundred),
        );
    }
    for ((when, mine), (_, theirs)) in one.memory.iter().zip(&other.memory) {
        let ratio = *theirs as f64 / (*mine).max(1) as f64;
        println!("memory {when}: 1/{ratio:.1} ({mine} MB of {theirs} MB)");
    }
}
