//! Preempts pods of lower priority when no node is feasible, at the lowest cost.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::arguments;
use crate::{
    cluster::Cluster,
    cycle::{Cycle, Failure, SeededRng},
    framework::{Plugin, Point, PostFilter},
    preemption::{self, Limits},
};

/// The plugin's name.
pub(super) const NAME: &str = "DefaultPreemption";

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Arguments {
    min_candidate_nodes_percentage: Option<usize>,
    min_candidate_nodes_absolute: Option<usize>,
}

/// The plugin.
pub(super) struct DefaultPreemption {
    limits: Limits,
}

/// Creates the plugin.
pub(super) fn new(value: &Value) -> Result<Arc<dyn Plugin>, String> {
    let (given, default): (Arguments, _) = (arguments(value)?, Limits::default());
    let limits = Limits {
        percentage: given
            .min_candidate_nodes_percentage
            .unwrap_or(default.percentage),
        absolute: given
            .min_candidate_nodes_absolute
            .unwrap_or(default.absolute),
    };
    if limits.percentage > 100 {
        return Err("minCandidateNodesPercentage must be between 0 and 100".into());
    }
    if limits.percentage == 0 && limits.absolute == 0 {
        return Err("minCandidateNodes cannot both be 0".into());
    }
    Ok(Arc::new(DefaultPreemption { limits }))
}

impl Plugin for DefaultPreemption {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PostFilter]
    }

    fn post_filter(
        &self,
        cycle: &mut Cycle<'_>,
        cluster: &mut Cluster,
        failure: &Failure,
        dice: &mut SeededRng,
    ) -> Option<PostFilter> {
        Some(preemption::find(cycle, cluster, failure, dice, self.limits))
    }
}
