//! Sorts pods by priority, then by waiting time. The queue itself is ordered this way
//! ([`crate::queue`]); this is its name in configurations.

use std::sync::Arc;

use serde_json::Value;

use super::no_arguments;
use crate::framework::{Plugin, Point};

/// The plugin's name.
pub(super) const NAME: &str = "PrioritySort";

/// The plugin.
pub(super) struct PrioritySort;

/// Creates the plugin.
pub(super) fn new(arguments: &Value) -> Result<Arc<dyn Plugin>, String> {
    no_arguments(arguments)?;
    Ok(Arc::new(PrioritySort))
}

impl Plugin for PrioritySort {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[Point::QueueSort]
    }
}
