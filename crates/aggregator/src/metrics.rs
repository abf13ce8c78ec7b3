//! Metrics of aggregated API servers.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    name: String,
    reason: String,
}

/// How often APIServices became unavailable.
#[derive(Default, Clone)]
pub struct Metrics {
    unavailable: Family<Reason, Counter>,
}

impl Metrics {
    pub fn registered(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let about = "How often an APIService became unavailable, by reason";
        let unavailable = metrics.unavailable.clone();
        registry.register("aggregator_unavailable_apiservice", about, unavailable);
        metrics
    }

    pub(crate) fn became_unavailable(&self, name: &str, reason: &str) {
        let reason = match reason {
            "" => "UnknownReason",
            reason => reason,
        };
        let labels = Reason {
            name: name.to_owned(),
            reason: reason.to_owned(),
        };
        self.unavailable.get_or_create(&labels).inc();
    }
}
