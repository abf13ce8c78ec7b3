//! Decisions alone: from a pod out of the queue to its place in the cluster's columns, or to the
//! diagnosis and the search for victims. Without an API server.

use std::{sync::Arc, time::Instant};

use anyhow::Result;
use k8s_openapi::api::core::v1::{Node, Pod as ApiPod};
use scheduler::{
    cluster::NodeInfo,
    cycle::{Outcome, Scheduling},
    framework::profile::Profile,
    matching::Labels,
    pod::{PodInfo, Pods},
};
use serde_json::json;

use crate::{
    Load, process,
    shapes::{self, Churn, NAMESPACE, SHAPES, Shape},
};

/// The result of a run.
#[derive(Debug, Default)]
struct Tally {
    placed: usize,
    refused: usize,
    preempted: usize,
}

/// Measures every shape without churn.
pub(crate) fn run(load: &Load, seed: u64) -> Result<()> {
    println!(
        "{:<28} {:>12} {:>10} {:>8} {:>8} {:>8} {:>10}",
        "shape", "decisions/s", "us of CPU", "placed", "refused", "victims", "x floor"
    );
    for shape in SHAPES {
        if load.wants(shape) && shape.churn == Churn::None && !shape.before.gated {
            measure(shape, load, seed)?;
        }
    }
    Ok(())
}

fn info(pods: &mut Pods, mut pod: serde_json::Value) -> Result<Arc<PodInfo>> {
    // What admission would set.
    if pod["spec"]["priorityClassName"] == shapes::HIGH.0 {
        pod["spec"]["priority"] = json!(shapes::HIGH.1);
    }
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    pod["metadata"]["uid"] = json!(format!("uid-{name}"));
    let pod: ApiPod = serde_json::from_value(pod)?;
    Ok(Arc::new(pods.info(&pod)))
}

fn measure(shape: &Shape, load: &Load, seed: u64) -> Result<()> {
    let (profile, mut pods) = (Profile::default_scheduler(), Pods::default());
    let mut scheduling = Scheduling::new(seed);
    for number in 0..load.nodes {
        let node: Node = serde_json::from_value(shapes::node(number))?;
        scheduling.cluster.put_node(NodeInfo::new(&node));
    }
    if shape.service {
        let selector: Labels = [("app".to_owned(), "plain".to_owned())].into();
        let workloads = &mut scheduling.cluster.workloads;
        workloads.put_service(NAMESPACE, "plain", Some(selector));
    }
    let before = load.before(shape);
    for number in 0..before {
        let pod = info(&mut pods, (shape.before.pod)(number))?;
        let node = format!("node-{}", number % load.nodes);
        scheduling.cluster.put_pod(&node, pod);
    }
    let waiting = (before..before + load.measured(shape))
        .map(|number| info(&mut pods, (shape.measured)(number)));
    let waiting = waiting.collect::<Result<Vec<_>>>()?;
    let (mut tally, count, begun) = (Tally::default(), waiting.len(), Instant::now());
    let own = [std::process::id()];
    let spent = process::cpu(&own);
    for pod in waiting {
        decide(&mut scheduling, &profile, pod, &mut tally);
    }
    let rate = count as f64 / begun.elapsed().as_secs_f64();
    // CPU time, which does not depend on other load.
    let spent = process::cpu(&own).saturating_sub(spent).as_secs_f64() * 1e6 / count as f64;
    let Tally {
        placed,
        refused,
        preempted,
    } = tally;
    let times = shape.floor.map_or(String::new(), |floor| {
        format!("{:.0}", rate / f64::from(floor))
    });
    println!(
        "{:<28} {rate:>12.0} {spent:>10.1} {placed:>8} {refused:>8} {preempted:>8} {times:>10}",
        shape.name
    );
    Ok(())
}

fn decide(scheduling: &mut Scheduling, profile: &Profile, pod: Arc<PodInfo>, tally: &mut Tally) {
    match scheduling.schedule(profile, &pod) {
        Outcome::Node { slot, .. } => {
            let node = scheduling.cluster.names[slot].clone();
            scheduling.cluster.put_pod(&node, pod);
            tally.placed += 1;
        }
        Outcome::Failed(failure) => {
            tally.refused += 1;
            let found = scheduling.post_filter(profile, &pod, &failure);
            if let Some((slot, victims)) = found.nominated {
                // As if the victims ended at once: the next attempt finds free resources.
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
