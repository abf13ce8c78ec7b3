//! Scheduling attempts in small clusters.

use super::*;
use crate::samples;

fn scheduling(nodes: &[(&str, &str, &str)]) -> Scheduling {
    let mut scheduling = Scheduling::new(1);
    scheduling.cluster = samples::cluster(nodes);
    scheduling
}

fn schedule(scheduling: &mut Scheduling, pod: &Arc<PodInfo>) -> Result<Slot, Failure> {
    match scheduling.schedule(&Profile::default_scheduler(), pod) {
        Outcome::Node { slot, .. } => Ok(slot),
        Outcome::Failed(failure) => Err(failure),
    }
}

#[test]
fn the_emptiest_node_that_fits_is_chosen() {
    let mut scheduling = scheduling(&[
        ("small", "1", "1Gi"),
        ("busy", "8", "16Gi"),
        ("idle", "8", "16Gi"),
    ]);
    scheduling
        .cluster
        .put_pod("busy", samples::pod("x", "4", "8Gi"));
    let chosen = schedule(&mut scheduling, &samples::pod("a", "2", "4Gi"));
    assert_eq!(chosen.unwrap(), 2);
}

#[test]
fn why_nothing_fits_is_kept_by_node_and_plugin() {
    let mut scheduling = scheduling(&[("small", "1", "1Gi")]);
    scheduling.cluster.put_node(samples::cordoned("closed"));
    let failure = schedule(&mut scheduling, &samples::pod("a", "2", "1Gi")).unwrap_err();
    let why = failure.rejected.iter().map(|r| (r.slot, r.plugin));
    assert_eq!(
        why.collect::<Vec<_>>(),
        [(0, "NodeResourcesFit"), (1, "NodeUnschedulable")]
    );
    assert_eq!(
        failure.message(),
        "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were unschedulable."
    );
}

#[test]
fn as_many_nodes_are_compared_as_upstream_compares() {
    for (percentage, nodes, wanted) in [
        (0, 10, 10),
        (0, 99, 99),
        (0, 100, 100),
        (0, 1000, 420),
        (0, 5000, 500),
        (0, 6000, 300),
        (40, 1000, 400),
        (1, 1000, 100),
        (100, 5000, 5000),
    ] {
        assert_eq!(
            nodes_to_find(percentage, nodes),
            wanted,
            "{percentage} {nodes}"
        );
    }
}

#[test]
fn the_next_attempt_begins_where_the_last_one_stopped() {
    let mut scheduling = Scheduling::new(1);
    for number in 0..200 {
        scheduling
            .cluster
            .put_node(samples::node(&format!("n{number}"), "8", "16Gi"));
    }
    let pod = samples::pod("a", "1", "1Gi");
    schedule(&mut scheduling, &pod).unwrap();
    assert_eq!(scheduling.next_start, 100);
    schedule(&mut scheduling, &pod).unwrap();
    assert_eq!(scheduling.next_start, 0);
}

#[test]
fn a_seed_repeats_every_decision() {
    let decide = |seed| {
        let mut scheduling = Scheduling::new(seed);
        for number in 0..50 {
            scheduling
                .cluster
                .put_node(samples::node(&format!("n{number}"), "8", "16Gi"));
        }
        let place = |number: usize, scheduling: &mut Scheduling| {
            let pod = samples::pod(&format!("p{number}"), "1", "1Gi");
            let slot = schedule(scheduling, &pod).unwrap();
            let node = scheduling.cluster.names[slot].clone();
            scheduling.cluster.put_pod(&node, pod);
            slot
        };
        (0..100)
            .map(|number| place(number, &mut scheduling))
            .collect::<Vec<_>>()
    };
    assert_eq!(decide(7), decide(7));
    assert_ne!(decide(7), decide(8));
}

#[test]
fn resources_of_a_nominated_pod_are_reserved_against_lower_priorities() {
    let mut scheduling = scheduling(&[("n1", "2", "4Gi")]);
    let important = samples::prioritised("important", "2", 10);
    scheduling
        .cluster
        .nominated
        .put(important.clone(), "n1".into());
    let lesser = samples::prioritised("lesser", "1", 5);
    let failure = schedule(&mut scheduling, &lesser).unwrap_err();
    assert_eq!(
        failure.message(),
        "0/1 nodes are available: 1 Insufficient cpu."
    );
    assert_eq!(scheduling.cluster.cpu.used, [0], "trying changed nothing");
    let greater = samples::prioritised("greater", "1", 11);
    assert_eq!(schedule(&mut scheduling, &greater).unwrap(), 0);
    assert_eq!(schedule(&mut scheduling, &important).unwrap(), 0);
}
