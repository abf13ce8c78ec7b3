//! How many decisions a second the scheduler makes, over the shapes of upstream's scheduler_perf.
//!
//! Measured is the decision itself: from a pod out of the queue to its place in the cluster's columns,
//! or to the diagnosis and the search for victims. No API server takes part, so that the figure is the
//! scheduler's own; what binding costs stands in the figures of the API server.
//!
//!     cargo run --release -p bench-scheduler -- --nodes 5000 --pods 10000

#![allow(clippy::print_stdout, reason = "it prints its results")]

mod shapes;

use std::time::Instant;

use anyhow::{Result, bail};
use clap::Parser;
use scheduler::{
    cycle::{Outcome, Scheduling},
    framework::{PostFilter, profile::Profile},
    pod::Pods,
};
use shapes::{SHAPES, Shape};

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

#[derive(Debug, Parser)]
struct Options {
    /// How many nodes the cluster has.
    #[arg(long, default_value_t = 5000)]
    nodes: usize,
    /// How many pods are placed before the clock starts.
    #[arg(long, default_value_t = 1000)]
    initial: usize,
    /// How many pods are measured.
    #[arg(long, default_value_t = 10_000)]
    pods: usize,
    /// Only the shape of this name.
    #[arg(long)]
    shape: Option<String>,
    /// The same seed makes the same decisions.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// What came of a run.
#[derive(Debug, Default)]
struct Tally {
    placed: usize,
    refused: usize,
    preempted: usize,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let known = |name: &String| SHAPES.iter().any(|shape| shape.name == name);
    if let Some(name) = options.shape.as_ref().filter(|name| !known(name)) {
        let names: Vec<_> = SHAPES.iter().map(|shape| shape.name).collect();
        bail!("no shape {name}; there are {}", names.join(", "));
    }
    println!(
        "{} nodes, {} pods before, {} measured",
        options.nodes, options.initial, options.pods
    );
    println!(
        "{:<28} {:>12} {:>10} {:>10} {:>10}",
        "shape", "decisions/s", "placed", "refused", "preempting"
    );
    for shape in SHAPES {
        if options
            .shape
            .as_deref()
            .is_none_or(|name| name == shape.name)
        {
            measure(shape, &options);
        }
    }
    Ok(())
}

fn measure(shape: &Shape, options: &Options) {
    let (profile, mut pods) = (Profile::default_scheduler(), Pods::default());
    let mut scheduling = Scheduling::new(options.seed);
    for number in 0..options.nodes {
        scheduling.cluster.put_node(shapes::node(number));
    }
    (shape.surround)(&mut scheduling.cluster);
    let mut tally = Tally::default();
    let initial = shape
        .fill
        .map_or(options.initial, |pods| pods * options.nodes);
    for number in 0..initial {
        let pod = pods.info(&(shape.initial)(number));
        decide(&mut scheduling, &profile, pod, &mut tally);
    }
    let waiting: Vec<_> = (0..options.pods)
        .map(|number| pods.info(&(shape.measured)(number)))
        .collect();
    let (mut tally, begun) = (Tally::default(), Instant::now());
    for pod in waiting {
        decide(&mut scheduling, &profile, pod, &mut tally);
    }
    let rate = options.pods as f64 / begun.elapsed().as_secs_f64();
    let Tally {
        placed,
        refused,
        preempted,
    } = tally;
    println!(
        "{:<28} {rate:>12.0} {placed:>10} {refused:>10} {preempted:>10}",
        shape.name
    );
}

fn decide(
    scheduling: &mut Scheduling,
    profile: &Profile,
    pod: scheduler::pod::PodInfo,
    tally: &mut Tally,
) {
    let pod = std::sync::Arc::new(pod);
    match scheduling.schedule(profile, &pod) {
        Outcome::Node { slot, .. } => {
            let node = scheduling.cluster.names[slot].clone();
            scheduling.cluster.put_pod(&node, pod);
            tally.placed += 1;
        }
        Outcome::Failed(failure) => {
            tally.refused += 1;
            let found = scheduling.post_filter(profile, &pod, &failure);
            if let Some(PostFilter::Nominate { slot, victims }) = found {
                // As if the victims ended at once: the next attempt finds the room.
                for victim in victims {
                    scheduling.cluster.remove_pod(&victim.uid);
                }
                let node = scheduling.cluster.names[slot].clone();
                scheduling.cluster.put_pod(&node, pod);
                tally.preempted += 1;
            }
        }
    }
}
