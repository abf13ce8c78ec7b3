//! Pods of higher priority are tried first; of equals, the one that has waited longer. The queue
//! itself is ordered so ([`crate::queue`]); this is the name that configurations know it by.

use std::sync::Arc;

use serde_json::Value;

use super::no_arguments;
use crate::framework::{Plugin, Point};

/// The plugin's name.
pub(super) const NAME: &str = "PrioritySort";

/// The rule.
pub(super) struct PrioritySort;

/// Makes it.
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
