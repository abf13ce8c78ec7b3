//! How fast pods start and end, and what idle ones cost, as a client of the API sees it: the time from the
//! create request until a watch shows the pod Running, one at a time and many at once; the time from the
//! delete request until the processes are gone; processor time and memory with many idle pods.
//!
//!     MAINSTAY_BIN=target/…/release/mainstay cargo run --release -p bench-pods      # a cluster of its own, as root
//!     … -- --kubeconfig FILE --pid PID                                              # any cluster
//!     … -- --upstream DIRECTORY                                                     # and kubelet with containerd
//!     … -- --compare-kubeconfig FILE --compare-pid PID,PID --compare-image IMAGE    # and another beside it
//!
//! Every measurement is made on the one and then on the other. The image must be there already: the first pod
//! of a run is not counted.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "it prints its results")]

mod life;
mod process;
mod spent;
mod target;
mod upstream;

use std::{path::PathBuf, time::Duration};

use anyhow::Result;
use clap::{Parser, ValueEnum};
use target::Target;

#[derive(Debug, Parser)]
pub struct Options {
    /// The cluster. Without it, `MAINSTAY_BIN` runs on a machine of its own.
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// Processes whose memory and CPU time are printed: the server's, or upstream's kubelet and
    /// containerd.
    #[arg(long, value_delimiter = ',')]
    pid: Vec<u32>,
    /// The containers' image.
    #[arg(long, default_value = "mainstay.local/hello")]
    image: String,
    /// Its arguments.
    #[arg(long, value_delimiter = ',', default_value = "sleep,360843")]
    args: Vec<String>,
    /// Image archives to import into a cluster of its own.
    #[arg(long)]
    import: Vec<PathBuf>,
    /// A directory with upstream's kubelet and kube-apiserver (and etcd, if it is not installed): they run with
    /// Debian's containerd on a machine of their own, with the same image, and are measured after the first cluster.
    #[arg(long, conflicts_with = "compare_kubeconfig")]
    upstream: Option<PathBuf>,
    /// A second cluster, measured after the first.
    #[arg(long)]
    compare_kubeconfig: Option<PathBuf>,
    #[arg(long, value_delimiter = ',')]
    compare_pid: Vec<u32>,
    #[arg(long, default_value = "registry.k8s.io/pause:3.10.2")]
    compare_image: String,
    #[arg(long, value_delimiter = ',')]
    compare_args: Vec<String>,
    /// Only these measurements, in this order.
    #[arg(long, value_delimiter = ',')]
    only: Vec<What>,
    /// The number of pods started one after another.
    #[arg(long, default_value_t = 20)]
    single: usize,
    /// The numbers of pods started at once, one measurement each.
    #[arg(long, value_delimiter = ',', default_value = "20,100")]
    at_once: Vec<usize>,
    /// The number of idle pods.
    #[arg(long, default_value_t = 500)]
    idle: usize,
    /// Seconds over which idle pods are measured, after as many to settle.
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// The number of repetitions.
    #[arg(long, default_value_t = 1)]
    rounds: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, ValueEnum)]
enum What {
    /// One pod after another.
    Single,
    /// Many at once, and their deletion.
    AtOnce,
    /// The cost of idle pods.
    Idle,
}

impl What {
    const ALL: [Self; 3] = [Self::Single, Self::AtOnce, Self::Idle];
}

fn main() -> Result<()> {
    let options = Options::parse();
    let most = options.at_once.iter().copied().max().unwrap_or(0);
    let targets = Target::all(&options, most.max(options.idle))?;
    for target in &targets {
        target.run(|bench| async move { bench.start_and_remove(1).await })?;
    }
    let all = match options.only.is_empty() {
        true => &What::ALL[..],
        false => &options.only,
    };
    for what in all {
        for _ in 0..options.rounds {
            match what {
                What::Single => single(&targets, options.single)?,
                What::AtOnce => at_once(&targets, &options.at_once)?,
                What::Idle => idle(&targets, options.idle, options.seconds)?,
            }
        }
    }
    Ok(())
}

fn single(targets: &[Target], count: usize) -> Result<()> {
    let mut medians = Vec::new();
    for target in targets {
        let mut times = target.run(move |bench| async move {
            let mut times = Vec::new();
            for _ in 0..count {
                times.extend(bench.start_and_remove(1).await?.running);
            }
            Ok(times)
        })?;
        times.sort_unstable();
        let what = format!("{count} one at a time");
        println!("{:<10} {what:<22} {}", target.name(), spread(&times));
        medians.push(median(&times));
    }
    compare("one at a time", &medians);
    Ok(())
}

fn at_once(targets: &[Target], counts: &[usize]) -> Result<()> {
    for &count in counts {
        let mut medians = Vec::new();
        for target in targets {
            let measured =
                target.run(move |bench| async move { bench.start_and_remove(count).await })?;
            let what = format!("{count} at once");
            println!(
                "{:<10} {what:<22} {}",
                target.name(),
                spread(&measured.running)
            );
            if let Some(spent) = &measured.spent {
                println!("{:<10} {what:<22} {spent}", target.name());
            }
            let gone = match measured.processes_gone {
                Some(gone) => format!("processes gone after {}", seconds(gone)),
                None => "processes are on another machine".to_owned(),
            };
            let objects = seconds(measured.objects_gone);
            let what = format!("{count} deleted");
            println!(
                "{:<10} {what:<22} {gone}, objects after {objects}",
                target.name()
            );
            medians.push(median(&measured.running));
        }
        compare(&format!("{count} at once"), &medians);
    }
    Ok(())
}

fn idle(targets: &[Target], count: usize, over: u64) -> Result<()> {
    let over = Duration::from_secs(over);
    for target in targets {
        for pods in [0, count] {
            let used = target.run(move |bench| async move { bench.idle(pods, over).await })?;
            println!(
                "{:<10} {:<22} {used}",
                target.name(),
                format!("{pods} idle")
            );
        }
    }
    Ok(())
}

/// Formats sorted durations.
fn spread(times: &[Duration]) -> String {
    let at =
        |share: usize| times.get((times.len() * share / 100).min(times.len().saturating_sub(1)));
    let shown = |share| at(share).map_or_else(String::new, |time| seconds(*time));
    format!(
        "running: median {}, p95 {}, last {}",
        shown(50),
        shown(95),
        shown(100)
    )
}

fn median(times: &[Duration]) -> Duration {
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// How many times faster the first is than the second, if there are two.
fn compare(what: &str, medians: &[Duration]) {
    if let [first, second] = medians {
        println!(
            "{what}: 1/{:.1}",
            second.as_secs_f64() / first.as_secs_f64()
        );
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}
