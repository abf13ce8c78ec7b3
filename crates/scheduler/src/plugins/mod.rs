//! The scheduling plugins, one file each, with upstream's names and formulas.

mod balanced_allocation;
mod default_binder;
mod default_preemption;
pub(crate) mod dynamic_resources;
mod image_locality;
pub(crate) mod inter_pod_affinity;
pub(crate) mod node_affinity;
pub(crate) mod node_declared_features;
pub(crate) mod node_name;
pub(crate) mod node_ports;
pub(crate) mod node_resources_fit;
pub(crate) mod node_unschedulable;
pub(crate) mod node_volume_limits;
pub(crate) mod pod_topology_spread;
mod priority_sort;
mod resource_score;
mod scheduling_gates;
pub(crate) mod taint_toleration;
pub(crate) mod volume_binding;
pub(crate) mod volume_restrictions;
pub(crate) mod volume_zone;

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::framework::{Plugin, profile::Enabled};

/// Creates a plugin from its arguments in a configuration; [`Value::Null`] if there are none.
type New = fn(&Value) -> Result<Arc<dyn Plugin>, String>;

/// A plugin that configurations can name.
pub struct Registration {
    /// Its name.
    pub name: &'static str,
    /// The default weight of its scores.
    pub weight: i64,
    /// Creates the plugin.
    pub new: New,
}

const fn plugin(name: &'static str, weight: i64, new: New) -> Registration {
    Registration { name, weight, new }
}

/// Every plugin, in the default order.
pub const ALL: &[Registration] = &[
    plugin(scheduling_gates::NAME, 1, scheduling_gates::new),
    plugin(priority_sort::NAME, 1, priority_sort::new),
    plugin(node_unschedulable::NAME, 1, node_unschedulable::new),
    plugin(node_name::NAME, 1, node_name::new),
    plugin(taint_toleration::NAME, 3, taint_toleration::new),
    plugin(node_affinity::NAME, 2, node_affinity::new),
    plugin(node_ports::NAME, 1, node_ports::new),
    plugin(node_resources_fit::NAME, 1, node_resources_fit::new),
    plugin(volume_restrictions::NAME, 1, volume_restrictions::new),
    plugin(node_volume_limits::NAME, 1, node_volume_limits::new),
    plugin(volume_binding::NAME, 1, volume_binding::new),
    plugin(volume_zone::NAME, 1, volume_zone::new),
    plugin(pod_topology_spread::NAME, 2, pod_topology_spread::new),
    plugin(inter_pod_affinity::NAME, 2, inter_pod_affinity::new),
    plugin(dynamic_resources::NAME, 2, dynamic_resources::new),
    plugin(default_preemption::NAME, 1, default_preemption::new),
    plugin(balanced_allocation::NAME, 1, balanced_allocation::new),
    plugin(image_locality::NAME, 1, image_locality::new),
    plugin(default_binder::NAME, 1, default_binder::new),
    plugin(node_declared_features::NAME, 1, node_declared_features::new),
];

/// The plugins that v1.36 enables by default.
pub fn defaults() -> Vec<Enabled> {
    let enabled = |registration: &Registration| {
        let plugin = (registration.new)(&Value::Null);
        let plugin =
            plugin.expect("plugins have defaults for all arguments; a test makes them all");
        Enabled {
            plugin,
            weight: registration.weight,
        }
    };
    ALL.iter().map(enabled).collect()
}

/// Parses a plugin's arguments; unknown fields are rejected.
fn arguments<T: DeserializeOwned + Default>(value: &Value) -> Result<T, String> {
    if value.is_null() {
        return Ok(T::default());
    }
    let mut value = value.clone();
    if let Some(fields) = value.as_object_mut() {
        fields.remove("apiVersion");
        fields.remove("kind");
    }
    serde_json::from_value(value).map_err(|error| error.to_string())
}

/// For plugins without arguments.
fn no_arguments(value: &Value) -> Result<(), String> {
    if value.is_null() {
        return Ok(());
    }
    Err("takes no arguments".into())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{
        cycle::{Cycle, Outcome, Scheduling},
        framework::{BEST, profile::Profile},
        samples,
    };

    #[test]
    fn every_plugin_is_made_under_its_own_name() {
        let names: BTreeSet<_> = ALL.iter().map(|registration| registration.name).collect();
        assert_eq!(names.len(), ALL.len());
        for registration in ALL {
            let plugin = (registration.new)(&Value::Null).unwrap();
            assert_eq!(plugin.name(), registration.name);
            assert!(!plugin.points().is_empty(), "{}", plugin.name());
        }
    }

    #[test]
    fn a_pod_that_asks_for_nothing_fits_everywhere_and_scores_stay_in_bounds() {
        let mut scheduling = Scheduling::new(1);
        scheduling.cluster = samples::cluster(&[("n1", "1", "1Gi"), ("n2", "1", "1Gi")]);
        let (profile, pod) = (Profile::default_scheduler(), samples::pod("a", "0", "0"));
        let outcome = scheduling.schedule(&profile, &pod);
        assert!(
            matches!(outcome, Outcome::Node { feasible: 2, .. }),
            "{outcome:?}"
        );
        let (cycle, _) = Cycle::begin(&profile, &pod, &mut scheduling.cluster).unwrap();
        let highest: i64 = ALL
            .iter()
            .map(|registration| registration.weight * BEST)
            .sum();
        let scores = cycle.scores(&scheduling.cluster, &[0, 1]);
        assert!(
            scores.iter().all(|score| (0..=highest).contains(score)),
            "{scores:?}"
        );
    }
}
