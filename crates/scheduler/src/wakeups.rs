//! Tests queueing hints with random clusters: a rejected pod must be requeued by every event after
//! which a node would accept it. Hints that match too much cost time; hints that match too little
//! leave a pod pending until it is retried after five minutes.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::{Value, json};

use crate::{
    cluster::NodeInfo,
    cycle::{Failure, Outcome, Scheduling},
    framework::{event::Event, profile::Profile},
    matching::Labels,
    pod::PodInfo,
    reference::{Maker, clone, replica},
};

/// A pending pod and the plugins that rejected it last.
struct Waiting {
    pod: Arc<PodInfo>,
    rejected_by: BTreeSet<&'static str>,
}

struct Room {
    maker: Maker,
    scheduling: Scheduling,
    profile: Profile,
    placed: Vec<(String, Value)>,
    waiting: Vec<Waiting>,
    /// How often an event helped a pod.
    woken: usize,
}

fn info(document: &Value) -> Arc<PodInfo> {
    Arc::new(PodInfo::new(
        &serde_json::from_value(document.clone()).unwrap(),
    ))
}

impl Room {
    fn new(seed: u64) -> Self {
        let (mut maker, mut scheduling) = (Maker::new(seed), Scheduling::new(seed));
        for number in 0..5 {
            scheduling.cluster.put_node(maker.node(number));
        }
        Self {
            maker,
            scheduling,
            profile: Profile::default_scheduler(),
            placed: Vec::new(),
            waiting: Vec::new(),
            woken: 0,
        }
    }

    /// A new pod is placed if it fits, or waits.
    fn arrive(&mut self) {
        let mut document = self.maker.document();
        let cpu = self.maker.pick(&["500m", "1", "2", "3"]);
        document["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!(cpu);
        if let Some(meta) = document["metadata"].as_object_mut() {
            meta.remove("deletionTimestamp");
        }
        let pod = info(&document);
        match self.scheduling.schedule(&self.profile, &pod) {
            Outcome::Node { slot, .. } => {
                let node = self.scheduling.cluster.names[slot].to_string();
                self.scheduling.cluster.put_pod(&node, pod.clone());
                self.placed.push((node, document));
                self.happened(&Event::PodAdded(&pod));
            }
            Outcome::Failed(Failure { plugins, .. }) => self.waiting.push(Waiting {
                pod,
                rejected_by: plugins,
            }),
        }
    }

    /// Changes something of the cluster that a pending pod can see.
    fn change(&mut self) {
        match self.maker.dice.below(6) {
            0 => self.remove_pod(),
            1 => self.change_pod(),
            2 => self.remove_node(),
            3 => self.change_namespace(),
            _ => self.put_node(),
        }
    }

    fn remove_pod(&mut self) {
        if self.placed.is_empty() {
            return;
        }
        let gone = self.maker.dice.below(self.placed.len());
        let (_, document) = self.placed.swap_remove(gone);
        let pod = info(&document);
        let slot = self.scheduling.cluster.placed(&pod.uid);
        self.scheduling.cluster.remove_pod(&pod.uid);
        self.happened(&Event::PodDeleted(&pod, slot));
    }

    /// A placed pod gets other labels, requests less, or begins to terminate.
    fn change_pod(&mut self) {
        if self.placed.is_empty() {
            return;
        }
        let at = self.maker.dice.below(self.placed.len());
        let old = info(&self.placed[at].1);
        let (node, document) = &mut self.placed[at];
        match self.maker.dice.below(3) {
            0 => document["metadata"]["labels"]["app"] = json!(self.maker.pick(&["a", "b", "c"])),
            1 => {
                let requests = &mut document["spec"]["containers"][0]["resources"]["requests"];
                requests["cpu"] = json!("100m");
            }
            _ => document["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"),
        }
        let (node, new) = (node.clone(), info(document));
        self.scheduling.cluster.put_pod(&node, new.clone());
        self.happened(&Event::PodUpdated {
            old: &old,
            new: &new,
        });
    }

    fn remove_node(&mut self) {
        let number = self.maker.dice.below(5);
        if let Some(old) = self.scheduling.cluster.remove_node(&format!("n{number}")) {
            self.happened(&Event::NodeDeleted(&old));
        }
    }

    fn put_node(&mut self) {
        let number = self.maker.dice.below(5);
        let node: NodeInfo = self.maker.node(number);
        let new = clone(&node);
        match self.scheduling.cluster.put_node(node) {
            Some(old) => self.happened(&Event::NodeUpdated {
                old: &old,
                new: &new,
            }),
            None => self.happened(&Event::NodeAdded(&new)),
        }
    }

    fn change_namespace(&mut self) {
        let team = self.maker.pick(&["red", "blue"]).to_owned();
        let labels: Labels = [("team".to_owned(), team)].into();
        let name = self.maker.pick(&["x", "y"]);
        self.scheduling.cluster.put_namespace(name, Some(labels));
        self.happened(&Event::Namespace);
    }

    /// Every pod that would fit now must be requeued by the event. Requeued pods are scheduled
    /// again.
    fn happened(&mut self, event: &Event<'_>) {
        let waiting = std::mem::take(&mut self.waiting);
        for mut one in waiting {
            let judged = self.scheduling.judge(&self.profile, &one.pod);
            let cluster = &self.scheduling.cluster;
            for plugin in self.profile.plugins() {
                if plugin.hints_by_template() {
                    let helped = |pod: &PodInfo| plugin.is_helped_by(pod, event, cluster);
                    let equal = replica(&one.pod, 7);
                    assert_eq!(helped(&one.pod), helped(&equal), "{}", plugin.name());
                }
            }
            let helped = one.rejected_by.is_empty()
                || self.profile.plugins().any(|plugin| {
                    one.rejected_by.contains(plugin.name())
                        && plugin.events().contains(&event.kind())
                        && plugin.is_helped_by(&one.pod, event, cluster)
                });
            match judged {
                Ok(_) => {
                    let (by, template) = (&one.rejected_by, &one.pod.template);
                    assert!(
                        helped,
                        "{} does not help {by:?}: {template:#?}",
                        event.label()
                    );
                    self.woken += 1;
                    continue;
                }
                Err(failure) if helped => one.rejected_by = failure.plugins,
                Err(_) => {}
            }
            self.waiting.push(one);
        }
    }
}

#[test]
fn an_event_that_makes_a_node_feasible_requeues_the_pod() {
    let mut woken = 0;
    for seed in 0..40 {
        let mut room = Room::new(seed);
        for _ in 0..80 {
            room.arrive();
            room.change();
        }
        woken += room.woken;
    }
    assert!(woken > 200, "events helped only {woken} times");
}
