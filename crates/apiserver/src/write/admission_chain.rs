//! The admission plugins in their order, with the metrics of their durations.

use std::sync::Arc;

use admission::{Attributes, Plugin, Timing};
use machinery::{Object, Status};

/// The plugins of this server.
pub(crate) struct AdmissionChain {
    pub(crate) plugins: Vec<Arc<dyn Plugin>>,
    pub(crate) timing: Timing,
}

impl AdmissionChain {
    pub(crate) async fn mutate(
        &self,
        attributes: &Attributes<'_>,
        object: &mut Object,
    ) -> Result<(), Status> {
        admission::mutate(&self.plugins, &self.timing, attributes, object).await
    }

    /// Mutating admission of a deletion, which has no object that plugins could change.
    pub(crate) async fn mutate_delete(&self, attributes: &Attributes<'_>) -> Result<(), Status> {
        admission::mutate_delete(&self.plugins, &self.timing, attributes).await
    }

    pub(crate) async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Object>,
    ) -> Result<(), Status> {
        admission::validate(&self.plugins, &self.timing, attributes, object).await
    }

    /// Whether a plugin handles `exec`, `attach` and the like.
    pub(crate) fn handles_connect(&self) -> bool {
        self.plugins.iter().any(|plugin| plugin.handles_connect())
    }
}
