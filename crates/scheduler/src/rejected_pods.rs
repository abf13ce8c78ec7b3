//! Unschedulable pods by the plugins that rejected them. Equal pods are kept together: they share the
//! results of queueing hints, so that a cluster event costs little however many replicas of a workload
//! wait.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use crate::pod::PodInfo;

/// The addresses of the template and the labels that equal pods share. They hold both.
type Shared = (usize, usize);

fn shared(pod: &PodInfo) -> Shared {
    let template = Arc::as_ptr(&pod.template) as usize;
    (template, Arc::as_ptr(&pod.label_set) as usize)
}

/// See the module.
#[derive(Default)]
pub(crate) struct RejectedPods(HashMap<&'static str, HashMap<Shared, HashSet<Arc<str>>>>);

impl RejectedPods {
    /// Adds a pod that a plugin rejected.
    pub(crate) fn insert(&mut self, plugin: &'static str, pod: &PodInfo) {
        let groups = self.0.entry(plugin).or_default();
        let group = groups.entry(shared(pod)).or_default();
        group.insert(pod.uid.clone());
    }

    /// Removes the same version of the pod.
    pub(crate) fn remove(&mut self, plugin: &str, pod: &PodInfo) {
        let Some(groups) = self.0.get_mut(plugin) else {
            return;
        };
        let key = shared(pod);
        if let Some(group) = groups.get_mut(&key) {
            group.remove(&pod.uid);
            if group.is_empty() {
                groups.remove(&key);
            }
        }
    }

    /// The uids of the pods that a plugin rejected, equal pods together.
    pub(crate) fn groups(&self, plugin: &str) -> impl Iterator<Item = &HashSet<Arc<str>>> {
        self.0.get(plugin).into_iter().flat_map(HashMap::values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn equal_pods_are_together_until_the_last_is_removed() {
        let one = samples::pod("a", "1", "1");
        let equal = |name: &str| PodInfo {
            uid: name.into(),
            name: name.into(),
            template: one.template.clone(),
            label_set: one.label_set.clone(),
            created: one.created,
            started: None,
            generation: None,
            nominated: None,
            preempted: false,
            unscheduled: None,
            made_claims: Box::default(),
        };
        let (second, other) = (equal("b"), samples::pod("c", "2", "1"));
        let mut rejected = RejectedPods::default();
        for pod in [&*one, &second, &other] {
            rejected.insert("Fit", pod);
        }
        rejected.insert("Ports", &second);
        let sizes = |rejected: &RejectedPods, plugin| {
            let mut sizes: Vec<_> = rejected.groups(plugin).map(HashSet::len).collect();
            sizes.sort_unstable();
            sizes
        };
        assert_eq!(sizes(&rejected, "Fit"), [1, 2]);
        rejected.remove("Fit", &one);
        assert_eq!(sizes(&rejected, "Fit"), [1, 1]);
        rejected.remove("Fit", &second);
        rejected.remove("Fit", &second);
        assert_eq!(sizes(&rejected, "Fit"), [1]);
        assert_eq!(sizes(&rejected, "Ports"), [1]);
        assert_eq!(sizes(&rejected, "None"), [0; 0]);
    }
}
