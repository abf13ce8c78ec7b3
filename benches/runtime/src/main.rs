//! How long a pod's life takes: creating and starting sandbox and container, running a command,
//! stopping and removing everything; one at a time and many at once, with the image present. With
//! `--containerd` the same load runs on Debian's containerd and runc over the same protocol, and
//! both are printed with their ratio. With `--weigh N` it measures the memory of that many idle
//! pods instead.
//!
//! `cargo run --release -p bench-runtime -- --containerd` (as root)
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "it prints its results")]

mod containerd;
mod life;
mod ours;
mod weigh;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

/// What to measure.
#[derive(Parser)]
struct Arguments {
    /// Also run the load on containerd and runc.
    #[arg(long)]
    containerd: bool,
    /// Pods per width.
    #[arg(long, default_value_t = 64)]
    lives: usize,
    /// The numbers of concurrent pods.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 32])]
    widths: Vec<usize>,
    /// Only measure the memory of this many idle pods.
    #[arg(long)]
    weigh: Option<usize>,
}

fn main() -> ExitCode {
    if let Some(code) = runtime::reexec::dispatch() {
        return code;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args
        .split_first()
        .map(|(first, rest)| (first.as_str(), rest))
    {
        Some(("hello", rest)) => return hello::main(rest),
        Some(("daemon", [dir, state])) => return ours::serve(dir, state),
        _ => {}
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn run() -> Result<()> {
    let arguments = Arguments::parse();
    let ours = ours::Ours::start().await?;
    if let Some(pods) = arguments.weigh {
        return weigh::weigh(&ours, pods).await;
    }
    let mut rows = Vec::new();
    for width in &arguments.widths {
        let mine = life::measure(&ours.subject, arguments.lives, *width).await?;
        rows.push((*width, mine, None));
    }
    if arguments.containerd {
        let other = containerd::Containerd::start(&ours).await?;
        for (width, _, theirs) in &mut rows {
            *theirs = Some(life::measure(&other.subject, arguments.lives, *width).await?);
        }
    }
    println!(
        "{:>8} {:24} {:>12} {:>12} {:>8}",
        "at once", "step", "mainstay", "containerd", "ratio"
    );
    for (width, mine, theirs) in &rows {
        for (index, name) in life::STEPS.iter().enumerate() {
            let own = mine.steps[index];
            let other = theirs.as_ref().map(|theirs| theirs.steps[index]);
            println!("{width:>8} {name:24} {}", compare(own, other));
        }
        let other = theirs.as_ref().map(|theirs| theirs.life);
        println!("{width:>8} {:24} {}", "a life", compare(mine.life, other));
        let other = theirs.as_ref().map(|theirs| theirs.total_per_life);
        println!(
            "{width:>8} {:24} {}",
            "all / lives",
            compare(mine.total_per_life, other)
        );
    }
    Ok(())
}

fn compare(own: f64, other: Option<f64>) -> String {
    match other {
        Some(other) => format!("{own:>9.2} ms {other:>9.2} ms {:>7.1}x", other / own),
        None => format!("{own:>9.2} ms"),
    }
}
