//! The load, the same for every subject.

use std::{
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::future::{BoxFuture, Future, try_join_all};

/// A measured store.
pub(crate) trait Subject: Send + Sync {
    fn name(&self) -> &'static str;
    /// A durable put; `writer` may choose a connection.
    fn put(
        &self,
        writer: usize,
        key: Bytes,
        value: Bytes,
    ) -> impl Future<Output = anyhow::Result<()>> + Send;
    /// Keys from `from` on, at most `limit`; the number found and the last key.
    fn list<'a>(
        &'a self,
        prefix: &'a str,
        from: Option<String>,
        limit: Option<usize>,
    ) -> BoxFuture<'a, anyhow::Result<(usize, String)>>;
    /// Opens watchers that add every event to `seen`, until the guard is dropped.
    fn watch<'a>(
        &'a self,
        prefix: &'a str,
        watchers: usize,
        seen: Arc<AtomicU64>,
    ) -> BoxFuture<'a, anyhow::Result<tokio::task::JoinSet<()>>>;
    /// The resident bytes of the process that holds the data.
    fn memory(&self) -> anyhow::Result<u64>;
    /// The CPU time so far, of clients and store together.
    fn processor(&self) -> anyhow::Result<Duration>;
}

/// The result of a put load.
pub(crate) struct Puts {
    pub per_second: f64,
    /// Of clients and store together, per put.
    pub processor: Duration,
    pub p50: Duration,
    pub p99: Duration,
}

/// A value of 1 KiB that depends on the seed.
fn value(seed: usize) -> Bytes {
    let text = format!("{seed:016x}");
    Bytes::from(text.repeat(64))
}

/// Creates the objects to list.
pub(crate) async fn fill(subject: &impl Subject, objects: usize) -> anyhow::Result<()> {
    put_all(subject, objects, |n| {
        // In random order, like generated names.
        let name = (n as u32).wrapping_mul(2_654_435_761);
        format!("/registry/pods/default/object-{name:08x}")
    })
    .await
}

/// Many updates of one key.
pub(crate) async fn updates(subject: &impl Subject, updates: usize) -> anyhow::Result<()> {
    put_all(subject, updates, |_| "/registry/leases/one".to_owned()).await
}

/// This many puts, 256 concurrently.
async fn put_all(
    subject: &impl Subject,
    count: usize,
    key: impl Fn(usize) -> String,
) -> anyhow::Result<()> {
    let key = &key;
    let lanes = (0..256).map(|lane| async move {
        for n in (lane..count).step_by(256) {
            subject.put(lane, key(n).into(), value(n)).await?;
        }
        anyhow::Ok(())
    });
    try_join_all(lanes).await.map(drop)
}

/// Puts as fast as this many writers can, each to its own keys.
pub(crate) async fn puts(
    subject: &Arc<impl Subject + 'static>,
    writers: usize,
    time: Duration,
) -> anyhow::Result<Puts> {
    let before = subject.processor()?;
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..writers {
        let subject = subject.clone();
        tasks.spawn(async move {
            let value = value(writer);
            let keys: Vec<Bytes> = (0..16)
                .map(|n| format!("/registry/leases/writer-{writer:04}/{n:02}").into())
                .collect();
            let (mut latencies, mut begin) = (vec![], Instant::now());
            for key in keys.iter().cycle() {
                subject.put(writer, key.clone(), value.clone()).await?;
                let end = Instant::now();
                latencies.push((end - begin).as_nanos() as u32);
                begin = end;
                if end - start >= time {
                    break;
                }
            }
            anyhow::Ok(latencies)
        });
    }
    let mut latencies: Vec<u32> = vec![];
    while let Some(finished) = tasks.join_next().await {
        latencies.extend(finished??);
    }
    let per_second = latencies.len() as f64 / start.elapsed().as_secs_f64();
    let processor = (subject.processor()? - before) / latencies.len() as u32;
    latencies.sort_unstable();
    let at = |part: usize| {
        let nanos = latencies[(latencies.len() - 1) * part / 100];
        Duration::from_nanos(nanos.into())
    };
    Ok(Puts {
        per_second,
        processor,
        p50: at(50),
        p99: at(99),
    })
}

/// The time for a list of all objects; the best of three.
pub(crate) async fn lists(
    subject: &impl Subject,
    objects: usize,
    limit: Option<usize>,
) -> anyhow::Result<Duration> {
    let mut best = Duration::MAX;
    for _ in 0..3 {
        let (begin, mut count, mut from) = (Instant::now(), 0, None);
        loop {
            let (found, last) = subject.list("/registry/pods/", from.take(), limit).await?;
            count += found;
            if limit.is_none_or(|limit| found < limit) {
                break;
            }
            from = Some(format!("{last}0"));
        }
        anyhow::ensure!(count == objects, "{count} objects instead of {objects}");
        best = best.min(begin.elapsed());
    }
    Ok(best)
}

/// Events per second that all watchers together receive.
pub(crate) async fn watches(
    subject: &impl Subject,
    watchers: usize,
    writes: usize,
) -> anyhow::Result<f64> {
    let seen = Arc::new(AtomicU64::new(0));
    let _guard = subject
        .watch("/registry/watched/", watchers, seen.clone())
        .await?;
    let expected = (watchers * writes) as u64;
    let begin = Instant::now();
    for n in 0..writes {
        subject
            .put(0, format!("/registry/watched/{n}").into(), value(n))
            .await?;
    }
    while seen.load(Ordering::Relaxed) < expected {
        tokio::time::sleep(Duration::from_millis(1)).await;
        anyhow::ensure!(
            begin.elapsed() < Duration::from_secs(120),
            "watchers do not keep up"
        );
    }
    Ok(expected as f64 / begin.elapsed().as_secs_f64())
}

/// The disk's own time for a durable write of one block that was written before: the lower bound.
/// The median of a thousand.
pub(crate) fn floor(directory: &Path) -> anyhow::Result<Duration> {
    let block = [1; 4096];
    let file = tempfile::tempfile_in(directory)?;
    for n in 0..1000 {
        file.write_all_at(&block, n * 4096)?;
    }
    file.sync_all()?;
    let mut latencies = vec![];
    for n in 0..1000 {
        let begin = Instant::now();
        file.write_all_at(&block, n * 4096)?;
        file.sync_data()?;
        latencies.push(begin.elapsed());
    }
    latencies.sort_unstable();
    Ok(latencies[500])
}

/// Resident bytes of a process.
pub(crate) fn resident(process: &str) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line
        .and_then(|line| line.trim().strip_suffix(" kB"))
        .unwrap_or("0");
    Ok(kib.trim().parse::<u64>()? * 1024)
}

/// The CPU time of a process so far, including ended threads.
pub(crate) fn processor(process: &str) -> anyhow::Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // After the name, which may contain anything: the state is the first field, these are the 12th
    // and 13th.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.map(str::parse::<u64>).sum::<Result<_, _>>()?;
    // USER_HZ is 100.
    Ok(Duration::from_millis(ticks * 10))
}
