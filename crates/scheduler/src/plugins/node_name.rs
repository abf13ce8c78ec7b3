//! A pod that names its node goes there or nowhere. The queue never holds such pods; the rule is
//! here because configurations name it.

use std::sync::Arc;

use serde_json::Value;

use super::no_arguments;
use crate::framework::{Plugin, Point};

/// The plugin's name.
pub(crate) const NAME: &str = "NodeName";

/// The rule.
pub(super) struct NodeName;

/// Makes it.
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
        // A pod with spec.nodeName is placed already: it is never given to a plugin.
        crate::framework::PreFilter::Skip
    }
}
