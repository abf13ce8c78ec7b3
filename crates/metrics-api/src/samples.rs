//! The last two points of every node and of the containers on it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::RwLock;
use stdx::Clock;

use crate::{
    ContainerUsage, Usage,
    page::{Page, PodName},
    series::Series,
};

/// Older samples of a node are not served: three scrapes are missing.
const STALE: Duration = Duration::from_secs(45);

/// The usage of nodes and pods, updated per node.
pub struct Samples {
    clock: Arc<dyn Clock>,
    /// Guards the nodes, each of which is replaced as a whole.
    nodes: RwLock<HashMap<String, Arc<OfNode>>>,
}

struct OfNode {
    recorded: Timestamp,
    node: Option<Series>,
    pods: HashMap<PodName, BTreeMap<Box<str>, Series>>,
}

impl Samples {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            nodes: RwLock::default(),
        }
    }

    /// Records a page of a node. Pods that are not on it are dropped.
    pub(crate) fn record(&self, node: &str, page: Page) {
        let known = self.nodes.read().get(node).cloned();
        let advance = |known: Option<&Series>, point| Series::advance(known, point);
        let pods = page.pods.into_iter().map(|(pod, containers)| {
            let known = known.as_ref().and_then(|known| known.pods.get(&pod));
            let containers = containers.into_iter().map(|(name, point)| {
                let known = known.and_then(|known| known.get(&name));
                (name, advance(known, point))
            });
            let containers = containers.collect();
            (pod, containers)
        });
        let of_node = OfNode {
            recorded: self.clock.now(),
            pods: pods.collect(),
            node: page.node.map(|point| {
                let known = known.as_ref().and_then(|known| known.node.as_ref());
                advance(known, point)
            }),
        };
        let mut nodes = self.nodes.write();
        nodes.insert(node.to_owned(), Arc::new(of_node));
    }

    /// Drops removed nodes.
    pub(crate) fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.nodes.write().retain(|node, _| exists(node));
    }

    fn fresh(&self, node: &str) -> Option<Arc<OfNode>> {
        let found = self.nodes.read().get(node).cloned()?;
        let age = self.clock.now().duration_since(found.recorded);
        (age.as_millis() <= STALE.as_millis() as i128).then_some(found)
    }

    /// The usage of a node.
    pub fn node(&self, name: &str) -> Option<Usage> {
        self.fresh(name)?.node?.usage()
    }

    /// The usage of a pod's containers on a node; `None` if it is unknown for one of them.
    pub fn pod(&self, node: &str, namespace: &str, name: &str) -> Option<Vec<ContainerUsage>> {
        let known = self.fresh(node)?;
        let containers = known.pods.get(&(namespace.into(), name.into()))?;
        let usages = containers.iter().map(|(name, series)| {
            // A container without memory has just ended.
            let usage = series.usage().filter(|usage| usage.memory > 0)?;
            let name = name.clone();
            Some(ContainerUsage { name, usage })
        });
        usages.collect()
    }
}

#[cfg(test)]
mod tests {
    use stdx::FakeClock;

    use super::*;
    use crate::page;

    fn page(at: i64, cpu: u64, pods: &[&str]) -> Page {
        let mut text = format!(
            "node_cpu_usage_seconds_total {cpu} {at}\nnode_memory_working_set_bytes 1024 {at}\n"
        );
        for pod in pods {
            let labels = format!("container=\"app\",namespace=\"a\",pod=\"{pod}\"");
            text += &format!("container_cpu_usage_seconds_total{{{labels}}} {cpu} {at}\n");
            text += &format!("container_memory_working_set_bytes{{{labels}}} 512\n");
        }
        page::parse(&text, 0)
    }

    #[test]
    fn usage_is_known_from_the_second_sample_until_samples_stop() {
        let clock = FakeClock::at(Timestamp::UNIX_EPOCH);
        let samples = Samples::new(Arc::new(clock.clone()));
        samples.record("one", page(1_000, 1, &["p", "q"]));
        assert_eq!(samples.node("one"), None);
        samples.record("one", page(11_000, 6, &["p"]));
        let usage = samples.node("one").unwrap();
        assert_eq!((usage.cpu, usage.memory), (500_000_000, 1024));
        assert_eq!(usage.at, Timestamp::from_millisecond(11_000).unwrap());
        assert_eq!(usage.window, Duration::from_secs(10));
        let pod = samples.pod("one", "a", "p").unwrap();
        assert_eq!((&*pod[0].name, pod[0].usage.memory), ("app", 512));
        assert_eq!(samples.pod("one", "a", "q"), None, "it is gone");
        assert_eq!(samples.pod("two", "a", "p"), None, "of another node");
        clock.advance(STALE + Duration::from_secs(1));
        assert_eq!(samples.node("one"), None);
        samples.retain(|_| false);
        assert!(samples.nodes.read().is_empty());
    }

    #[test]
    fn a_pod_of_which_one_container_is_not_known_is_not_known() {
        let samples = Samples::new(Arc::new(FakeClock::at(Timestamp::UNIX_EPOCH)));
        samples.record("one", page(1_000, 1, &["p"]));
        let mut second = page(11_000, 2, &["p"]);
        let pod = second.pods.values_mut().next().unwrap();
        let point = pod["app"];
        pod.insert("new".into(), point);
        samples.record("one", second);
        assert_eq!(samples.pod("one", "a", "p"), None);
    }
}
