//! Ranks pods for eviction, and the message of an evicted pod. Pure.

use std::{cmp::Ordering, collections::BTreeMap};

use machinery::quantity::{Format, Quantity};

use super::{
    decide::Observations,
    thresholds::{Resource, Threshold},
};

/// A pod's usage and requests.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodUsage {
    pub uid: String,
    pub name: String,
    pub priority: i32,
    /// Static, or of a system priority: never evicted.
    pub is_critical: bool,
    pub grace_period: i64,
    /// `None`: unknown.
    pub memory: Option<i64>,
    pub memory_request: i64,
    /// The request in the pod's own resources.
    pub pod_level_memory_request: Option<i64>,
    /// Writable layers, logs and local volumes.
    pub disk: Option<i64>,
    pub disk_request: i64,
    pub inodes: Option<i64>,
    pub processes: i64,
    pub containers: Vec<ContainerUsage>,
}

/// A container's usage and requests.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ContainerUsage {
    pub name: String,
    pub memory: i64,
    pub memory_request: i64,
    /// Writable layer and logs.
    pub disk: i64,
    pub disk_request: i64,
}

/// Sorts pods in the order of eviction: those that exceed their requests first, then by priority,
/// then by how much they exceed them. Pods of unknown usage come first.
pub fn rank(pods: &mut [PodUsage], resource: Resource) {
    let used = |pod: &PodUsage| match resource {
        Resource::Memory => pod.memory.map(|used| (used, pod.memory_request)),
        Resource::EphemeralStorage => pod.disk.map(|used| (used, pod.disk_request)),
        Resource::Inodes => pod.inodes.map(|used| (used, 0)),
        Resource::Pids => Some((pod.processes, 0)),
    };
    pods.sort_by(|a, b| match (used(a), used(b)) {
        (None, None) => a.priority.cmp(&b.priority),
        (None, Some(_)) => Ordering::Less,
        (Some(_), None) => Ordering::Greater,
        (Some(first), Some(second)) => {
            let exceeds = |(used, request): (i64, i64)| used > request;
            let beyond = |(used, request): (i64, i64)| used - request;
            let by_request = if resource == Resource::Pids {
                Ordering::Equal
            } else {
                exceeds(second).cmp(&exceeds(first))
            };
            by_request
                .then(a.priority.cmp(&b.priority))
                .then(beyond(second).cmp(&beyond(first)))
        }
    });
}

fn shown(amount: i64, resource: Resource) -> Quantity {
    let format = match resource {
        Resource::Memory | Resource::EphemeralStorage => Format::Binary,
        Resource::Inodes | Resource::Pids => Format::Decimal,
    };
    Quantity::from_value(amount, format)
}

/// The message in the status of an evicted pod.
pub fn message(pod: &PodUsage, threshold: &Threshold, seen: &Observations) -> String {
    let resource = threshold.signal.resource();
    let mut text = format!("The node was low on resource: {resource}. ");
    if let Some(observed) = seen.get(&threshold.signal) {
        let wanted = shown(threshold.value.resolve(observed.capacity), resource);
        let available = shown(observed.available, resource);
        text.push_str(&format!(
            "Threshold quantity: {wanted}, available: {available}. "
        ));
    }
    if let (Resource::Memory, Some(request), Some(used)) =
        (resource, pod.pod_level_memory_request, pod.memory)
    {
        text.push_str(&format!(
            "Pod {} was using {}, request is {}, has larger consumption of {resource}. ",
            pod.name,
            shown(used, resource),
            shown(request, resource),
        ));
    }
    for (name, used, request) in offending(pod, resource) {
        text.push_str(&format!(
            "Container {name} was using {}, request is {}, has larger consumption of {resource}. ",
            shown(used, resource),
            shown(request, resource),
        ));
    }
    text
}

/// The containers that use more than they request: name, usage and request.
fn offending(pod: &PodUsage, resource: Resource) -> Vec<(&str, i64, i64)> {
    let used = |container: &ContainerUsage| match resource {
        Resource::Memory => Some((container.memory, container.memory_request)),
        Resource::EphemeralStorage => Some((container.disk, container.disk_request)),
        Resource::Inodes | Resource::Pids => None,
    };
    let containers = pod.containers.iter().filter_map(|container| {
        let (used, request) = used(container)?;
        Some((container.name.as_str(), used, request))
    });
    containers
        .filter(|(_, used, request)| used > request)
        .collect()
}

/// The annotations of the event of an eviction; none without the pod's statistics.
pub fn annotations(pod: &PodUsage, resource: Resource) -> BTreeMap<String, String> {
    if pod.disk.is_none() && pod.memory.is_none() {
        return BTreeMap::new();
    }
    let offending = offending(pod, resource);
    let list = |of: fn(&(&str, i64, i64), Resource) -> String| {
        let parts: Vec<String> = offending.iter().map(|one| of(one, resource)).collect();
        parts.join(",")
    };
    let usage = list(|(_, used, _), resource| shown(*used, resource).to_string());
    let mut annotations = vec![
        (
            "offending_containers",
            list(|(name, ..), _| (*name).to_owned()),
        ),
        ("offending_containers_usage", usage),
        ("starved_resource", resource.to_string()),
    ];
    if let (Resource::Memory, Some(_), Some(used)) =
        (resource, pod.pod_level_memory_request, pod.memory)
    {
        annotations.push(("offending_pod", pod.name.clone()));
        annotations.push(("offending_pod_usage", shown(used, resource).to_string()));
    }
    let annotations = annotations.into_iter();
    annotations
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{
        super::{
            decide::Observation,
            thresholds::{Amount, Signal},
        },
        *,
    };

    fn pod(name: &str, priority: i32, memory: Option<i64>, memory_request: i64) -> PodUsage {
        PodUsage {
            name: name.into(),
            priority,
            memory,
            memory_request,
            ..PodUsage::default()
        }
    }

    fn order(mut pods: Vec<PodUsage>, resource: Resource) -> Vec<String> {
        rank(&mut pods, resource);
        pods.into_iter().map(|pod| pod.name).collect()
    }

    #[test]
    fn pods_beyond_their_requests_go_first_then_low_priorities_then_the_greediest() {
        let pods = vec![
            pod("within", 0, Some(50), 100),
            pod("important", 10, Some(900), 100),
            pod("little", 0, Some(110), 100),
            pod("much", 0, Some(500), 100),
            pod("unknown", 0, None, 0),
        ];
        assert_eq!(
            order(pods, Resource::Memory),
            ["unknown", "much", "little", "important", "within"]
        );
    }

    #[test]
    fn for_processes_priority_comes_before_their_number() {
        let with = |name: &str, priority, processes| PodUsage {
            processes,
            ..pod(name, priority, None, 0)
        };
        let pods = vec![
            with("bomb", 5, 9000),
            with("calm", 0, 2),
            with("busy", 0, 50),
        ];
        assert_eq!(order(pods, Resource::Pids), ["busy", "calm", "bomb"]);
    }

    #[test]
    fn an_eviction_message_has_the_resource_and_the_usage() {
        let mib = 1024 * 1024;
        let threshold = Threshold {
            signal: Signal::MemoryAvailable,
            value: Amount::Quantity(100 * mib),
            grace: Duration::ZERO,
            min_reclaim: Amount::Quantity(0),
        };
        let observation = Observation {
            available: 50 * mib,
            capacity: 1000 * mib,
        };
        let seen = [(Signal::MemoryAvailable, observation)].into();
        let mut greedy = pod("p", 0, Some(700 * mib), 0);
        greedy.containers = vec![
            ContainerUsage {
                name: "c".into(),
                memory: 700 * mib,
                memory_request: 10 * mib,
                ..Default::default()
            },
            ContainerUsage {
                name: "within".into(),
                memory: mib,
                memory_request: 10 * mib,
                ..Default::default()
            },
        ];
        assert_eq!(
            message(&greedy, &threshold, &seen),
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. \
             Container c was using 700Mi, request is 10Mi, has larger consumption of memory. "
        );
        // With pod-level resources the pod is blamed, too.
        greedy.pod_level_memory_request = Some(20 * mib);
        let whole = "available: 50Mi. Pod p was using 700Mi, request is 20Mi, has larger consumption of memory. Container c";
        let text = message(&greedy, &threshold, &seen);
        assert!(text.contains(whole), "{text}");
        let shown = annotations(&greedy, Resource::Memory);
        let shown: Vec<_> = shown
            .iter()
            .map(|(k, v)| (k.as_str(), v.as_str()))
            .collect();
        let expected = [
            ("offending_containers", "c"),
            ("offending_containers_usage", "700Mi"),
            ("offending_pod", "p"),
            ("offending_pod_usage", "700Mi"),
            ("starved_resource", "memory"),
        ];
        assert_eq!(shown, expected);
        let unknown = pod("p", 0, None, 0);
        assert!(annotations(&unknown, Resource::Memory).is_empty());
    }
}
