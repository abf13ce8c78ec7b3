//! How fast the store is: durable puts, lists, watchers and memory, sync on, 1 KiB values. With
//! `--etcd` the same load runs against Debian's etcd, and both are printed with their ratio.
//!
//! `cargo run --release -p bench-store -- --etcd`
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "it prints its results")]

mod embedded;
mod etcd;
mod load;

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context;
use clap::Parser;
use load::{Puts, Subject};

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

/// What to measure.
#[derive(Parser)]
struct Arguments {
    /// Also run the load against etcd.
    #[arg(long)]
    etcd: bool,
    /// A directory on the disk to measure.
    #[arg(long)]
    directory: Option<PathBuf>,
    /// Seconds per number of writers.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Concurrent writers.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 256, 1024])]
    writers: Vec<usize>,
    /// Only measure the files that fills and updates leave, and how long opening takes.
    #[arg(long, conflicts_with = "etcd")]
    only_files: bool,
    /// The number of objects to list and measure.
    #[arg(long, default_value_t = 100_000)]
    objects: usize,
    /// The number of updates of one key, to measure the files they leave.
    #[arg(long, default_value_t = 200_000)]
    updates: usize,
    /// The number of watchers of one prefix.
    #[arg(long, default_value_t = 10_000)]
    watchers: usize,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let base = arguments
        .directory
        .clone()
        .unwrap_or_else(std::env::temp_dir);
    let directory = tempfile::tempdir_in(base)?;
    let floor = load::floor(directory.path())?;
    println!("the disk itself, one block written and synced: {floor:.0?}");
    let mut table = vec![];
    let subject = Arc::new(embedded::Embedded::open(
        &directory.path().join("embedded"),
    )?);
    if !arguments.only_files {
        table.push(measure(&subject, &arguments).await?);
    }
    let subject = Arc::into_inner(subject).context("the load has ended")?;
    if arguments.only_files {
        load::fill(&subject, arguments.objects).await?;
    }
    embedded_only(subject, &arguments).await?;
    if arguments.only_files {
        return Ok(());
    }
    if arguments.etcd {
        let subject = Arc::new(etcd::Etcd::start(&directory.path().join("etcd")).await?);
        table.push(measure(&subject, &arguments).await?);
    }
    print(&table);
    Ok(())
}

/// One line of the result: what, how much, and whether more is better.
struct Line {
    what: String,
    value: f64,
    unit: &'static str,
    more_is_better: bool,
}

/// Measurements of our own files.
async fn embedded_only(subject: embedded::Embedded, arguments: &Arguments) -> anyhow::Result<()> {
    let live = subject.live_bytes() as f64 / f64::from(1 << 20);
    let (opened, subject) = subject.reopen()?;
    println!("embedded start with {live:.0} MiB of live data: {opened:.1?}");
    load::updates(&subject, arguments.updates).await?;
    let used = subject.disk_bytes()? as f64 / f64::from(1 << 20);
    println!(
        "embedded disk after {} updates of one key: {used:.0} MiB for {live:.0} MiB of live data",
        arguments.updates
    );
    Ok(())
}

async fn measure(
    subject: &Arc<impl Subject + 'static>,
    arguments: &Arguments,
) -> anyhow::Result<Vec<Line>> {
    let mut lines = vec![];
    let mut line = |what: String, value, unit, more_is_better| {
        println!("{} {what}: {value:.2} {unit}", subject.name());
        lines.push(Line {
            what,
            value,
            unit,
            more_is_better,
        });
    };
    // First, while memory is empty.
    let before = subject.memory()?;
    load::fill(&**subject, arguments.objects).await?;
    let kib = (subject.memory()?.saturating_sub(before)) as f64 / arguments.objects as f64 / 1024.0;
    line("memory per 1 KiB object".into(), kib, "KiB", false);
    for writers in &arguments.writers {
        let Puts {
            per_second,
            processor,
            p50,
            p99,
        } = load::puts(subject, *writers, Duration::from_secs(arguments.seconds)).await?;
        line(
            format!("durable puts, {writers} writers"),
            per_second,
            "/s",
            true,
        );
        line(
            format!("processor time per put, {writers} writers"),
            micros(processor),
            "µs",
            false,
        );
        line(
            format!("put latency p50, {writers} writers"),
            micros(p50),
            "µs",
            false,
        );
        line(
            format!("put latency p99, {writers} writers"),
            micros(p99),
            "µs",
            false,
        );
    }
    let whole = load::lists(&**subject, arguments.objects, None).await?;
    line(
        format!("list of {}", arguments.objects),
        micros(whole) / 1000.0,
        "ms",
        false,
    );
    let paged = load::lists(&**subject, arguments.objects, Some(500)).await?;
    line(
        format!("list of {} by 500", arguments.objects),
        micros(paged) / 1000.0,
        "ms",
        false,
    );
    let events = load::watches(&**subject, arguments.watchers, 100).await?;
    line(
        format!("events to {} watchers", arguments.watchers),
        events,
        "/s",
        true,
    );
    Ok(lines)
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

fn print(table: &[Vec<Line>]) {
    println!("\n| | embedded | etcd | ratio |\n|---|---|---|---|");
    for (row, ours) in table[0].iter().enumerate() {
        let other = table.get(1).map(|lines| lines[row].value);
        let ratio = other.map(|other| {
            if ours.more_is_better {
                ours.value / other
            } else {
                other / ours.value
            }
        });
        let show = |value: Option<f64>, unit: &str| {
            value.map_or_else(String::new, |value| format!("{value:.2} {unit}"))
        };
        println!(
            "| {} | {} | {} | {} |",
            ours.what,
            show(Some(ours.value), ours.unit),
            show(other, ours.unit),
            show(ratio, "×")
        );
    }
}
