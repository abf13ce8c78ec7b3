//! Prefers nodes whose resources the pod would use more evenly.

use std::{any::Any, sync::Arc};

use serde::Deserialize;
use serde_json::Value;

use super::{
    arguments,
    resource_score::{ResourceWeight, Scored, checked},
};
use crate::{
    cluster::{Cluster, Slot},
    framework::{BEST, Plugin, Point},
    pod::PodInfo,
};

/// The plugin's name.
pub(super) const NAME: &str = "NodeResourcesBalancedAllocation";

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Arguments {
    resources: Vec<ResourceWeight>,
}

/// The plugin.
pub(super) struct BalancedAllocation {
    resources: Vec<ResourceWeight>,
}

/// Creates the plugin.
pub(super) fn new(value: &Value) -> Result<Arc<dyn Plugin>, String> {
    let resources = checked(arguments::<Arguments>(value)?.resources)?;
    if resources.iter().any(|resource| resource.weight != 1) {
        return Err("all weights must be 1".into());
    }
    Ok(Arc::new(BalancedAllocation { resources }))
}

/// How evenly the fractions are distributed, from 0 to [`BEST`].
fn balance(fractions: &[f64]) -> i64 {
    let deviation = match fractions {
        [] | [_] => 0.0,
        [one, other] => ((one - other) / 2.0).abs(),
        several => {
            let count = several.len() as f64;
            let mean = several.iter().sum::<f64>() / count;
            let squares = several.iter().map(|fraction| (fraction - mean).powi(2));
            (squares.sum::<f64>() / count).sqrt()
        }
    };
    ((1.0 - deviation) * BEST as f64) as i64
}

impl Plugin for BalancedAllocation {
    fn name(&self) -> &'static str {
        NAME
    }

    fn is_local(&self) -> bool {
        true
    }

    fn normalizes(&self) -> bool {
        false
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PreScore, Point::Score]
    }

    fn pre_score(&self, pod: &PodInfo, _: &Cluster, _: &[Slot]) -> Option<Box<dyn Any>> {
        // A pod without requests does not change the balance.
        let requests = &pod.template.requests;
        let mut names = self.resources.iter().map(|resource| &resource.name);
        let asks = names.any(|name| requests.amount(name) != 0);
        asks.then(|| Box::new(()) as Box<dyn Any>)
    }

    fn score(
        &self,
        pod: &PodInfo,
        cluster: &Cluster,
        _: &dyn Any,
        nodes: &[Slot],
        scores: &mut [i64],
    ) {
        let resources = Scored::new(&self.resources, pod, cluster, false);
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for (slot, score) in nodes.iter().zip(scores) {
            with.clear();
            without.clear();
            for (has, used, wanted) in resources.iter().filter_map(|r| r.amounts(*slot)) {
                without.push((used as f64 / has as f64).min(1.0));
                with.push((wanted as f64 / has as f64).min(1.0));
            }
            // How much the pod improves the balance; 75 for not at all.
            *score = BEST / 2 + (BEST / 2 + balance(&with) - balance(&without)) / 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::samples::{self, scored};

    #[test]
    fn the_score_depends_on_the_change_of_balance() {
        let mut cluster = samples::cluster(&[
            ("empty", "10", "10Gi"),
            ("cpu used", "10", "10Gi"),
            ("memory used", "10", "10Gi"),
        ]);
        cluster.put_pod("cpu used", samples::pod("x", "6", "0"));
        cluster.put_pod("memory used", samples::pod("y", "0", "6Gi"));
        let plugin = new(&Value::Null).unwrap();
        let even = samples::pod("p", "2", "2Gi");
        let scores = scored(&*plugin, &even, &mut cluster, &[0, 1, 2]).unwrap();
        assert_eq!(scores, [75, 75, 75], "it changes no balance");
        let cpu = samples::pod("q", "4", "0");
        let scores = scored(&*plugin, &cpu, &mut cluster, &[0, 1, 2]).unwrap();
        // 100 → 80; 70 → 50 of CPU 1.0 and memory 0; 70 → 90.
        assert_eq!(scores, [65, 65, 85]);
    }

    #[test]
    fn a_pod_without_requests_is_not_scored_and_weights_are_refused() {
        let mut cluster = samples::cluster(&[("n", "10", "10Gi")]);
        let plugin = new(&Value::Null).unwrap();
        let nothing = samples::pod_with("a", |_| {});
        assert_eq!(scored(&*plugin, &nothing, &mut cluster, &[0]), None);
        assert!(new(&json!({"resources": [{"name": "cpu", "weight": 2}]})).is_err());
    }

    #[test]
    fn three_resources_are_compared_by_their_standard_deviation() {
        assert_eq!(balance(&[0.5, 0.5, 0.5]), 100);
        assert_eq!(balance(&[0.0, 0.5, 1.0]), 59);
        assert_eq!(balance(&[0.2]), 100);
    }
}
