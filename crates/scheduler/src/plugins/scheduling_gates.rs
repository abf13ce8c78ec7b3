//! Keeps a pod with scheduling gates out of the active queue.

use std::sync::Arc;

use serde_json::Value;

use super::no_arguments;
use crate::{
    cluster::Cluster,
    framework::{
        Plugin, Point,
        event::{Event, EventKind},
    },
    pod::PodInfo,
};

/// The plugin's name.
pub(super) const NAME: &str = "SchedulingGates";

/// The plugin.
pub(super) struct SchedulingGates;

/// Creates the plugin.
pub(super) fn new(arguments: &Value) -> Result<Arc<dyn Plugin>, String> {
    no_arguments(arguments)?;
    Ok(Arc::new(SchedulingGates))
}

impl Plugin for SchedulingGates {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PreEnqueue]
    }

    fn pre_enqueue(&self, pod: &PodInfo, _: &Cluster) -> Result<(), String> {
        let gates = &pod.template.gates;
        if gates.is_empty() {
            return Ok(());
        }
        Err(format!(
            "waiting for scheduling gates: [{}]",
            gates.join(" ")
        ))
    }

    fn events(&self) -> &'static [EventKind] {
        &[EventKind::OwnUpdate]
    }

    fn is_helped_by(&self, _: &PodInfo, event: &Event<'_>, _: &Cluster) -> bool {
        matches!(event, Event::OwnUpdate { new, .. } if new.template.gates.is_empty())
    }
}
