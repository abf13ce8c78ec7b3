//! Many connections doing the same thing for a while, and what came of it.

use std::{
    fmt,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::peer::{Connection, Peer};

/// One measurement.
#[derive(Debug, Clone)]
pub struct Figures {
    pub what: String,
    pub connections: usize,
    pub rate: f64,
    pub median: Duration,
    pub worst_of_hundred: Duration,
    pub megabytes: f64,
}

impl Figures {
    /// From single durations.
    pub fn of(
        what: &str,
        connections: usize,
        mut durations: Vec<Duration>,
        bytes: u64,
        took: Duration,
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
        }
    }

    pub fn json(&self) -> Value {
        json!({
            "what": self.what,
            "connections": self.connections,
            "per_second": self.rate,
            "p50_ms": self.median.as_secs_f64() * 1e3,
            "p99_ms": self.worst_of_hundred.as_secs_f64() * 1e3,
            "mb_per_second": self.megabytes,
        })
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
        write!(
            f,
            "{:<34} {:>6} {:>11.0} {:>10.2} {:>10.2} {:>10.1}",
            self.what,
            self.connections,
            self.rate,
            ms(self.median),
            ms(self.worst_of_hundred),
            self.megabytes
        )
    }
}

/// Lets each connection do one thing again and again until the time is over. The thing gets a
/// number that no other gets, and tells how many bytes came back.
pub async fn run<F, R>(
    peer: &Peer,
    what: &str,
    connections: usize,
    lasts: Duration,
    thing: F,
) -> anyhow::Result<Figures>
where
    F: Fn(Connection, u64) -> R + Clone + Send + 'static,
    R: Future<Output = anyhow::Result<(Connection, u64)>> + Send,
{
    let numbers = Arc::new(AtomicU64::new(0));
    let mut workers = tokio::task::JoinSet::new();
    let begun = Instant::now();
    for _ in 0..connections {
        let mut connection = peer.connect().await?;
        let (numbers, thing) = (numbers.clone(), thing.clone());
        workers.spawn(async move {
            let (mut durations, mut bytes) = (Vec::new(), 0);
            while begun.elapsed() < lasts {
                let number = numbers.fetch_add(1, Ordering::Relaxed);
                let start = Instant::now();
                let count;
                (connection, count) = thing(connection, number).await?;
                durations.push(start.elapsed());
                bytes += count;
            }
            anyhow::Ok((durations, bytes))
        });
    }
    let (mut durations, mut bytes) = (Vec::new(), 0);
    while let Some(worker) = workers.join_next().await {
        let (some, count) = worker??;
        durations.extend(some);
        bytes += count;
    }
    Ok(Figures::of(
        what,
        connections,
        durations,
        bytes,
        begun.elapsed(),
    ))
}
