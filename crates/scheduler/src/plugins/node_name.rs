//! Restricts a pod to `spec.nodeName`. The queue never has such pods; the plugin exists because
//! configurations name it.

use std::sync::Arc;

use serde_json::Value;

use super::no_arguments;
use crate::framework::{Plugin, Point};

/// The plugin's name.
pub(crate) const NAME: &str = "NodeName";

/// The plugin.
pub(super) struct NodeName;

/// Creates the plugin.
pub(super) fn new(arguments: &Value) -> Result<Arc<dyn Plugin>, String> {
    no_arguments(arguments)?;
    Ok(Arc::new(NodeName))
}

impl Plugin for NodeName {
    fn name(&self) -> &'static str {
        NAME
    }

    fn is_local(&self) -> bool {
        true
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PreFilter, Point::Filter]
    }

    fn pre_filter(
        &self,
        _: &crate::pod::PodInfo,
        _: &crate::cluster::Cluster,
    ) -> crate::framework::PreFilter {
        // A pod with spec.nodeName is already placed and never scheduled.
        crate::framework::PreFilter::Skip
    }
}
