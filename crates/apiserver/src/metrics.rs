//! The metrics of all parts of the server in one registry.

use std::sync::Arc;

use admission::{Timing, WebhookMetrics, policy};
use apiextensions::ConversionMetrics;
use http_server::HttpServer;
use prometheus_client::registry::Registry;
use server_metrics::ServerMetrics;

/// The metrics, shared by all requests.
pub(crate) struct Metrics {
    /// Durations of admission.
    pub(crate) admission: Timing,
    /// Decisions of admission policies.
    pub(crate) policies: policy::Figures,
    /// Calls of admission webhooks.
    pub(crate) webhooks: WebhookMetrics,
    /// The state of aggregated API servers.
    pub(crate) aggregation: aggregator::Metrics,
    /// Calls of conversion webhooks.
    pub(crate) conversion: ConversionMetrics,
    /// Flow control.
    pub(crate) fairness: flowcontrol::Figures,
    /// Requests, the store, health checks and this process.
    pub(crate) server: Arc<ServerMetrics>,
}

impl Metrics {
    pub(crate) fn new(http: &HttpServer) -> Self {
        let mut registry = Registry::default();
        Self {
            admission: Timing::new(&mut registry),
            policies: policy::Figures::new(&mut registry),
            webhooks: WebhookMetrics::registered(&mut registry),
            aggregation: aggregator::Metrics::registered(&mut registry),
            conversion: ConversionMetrics::registered(&mut registry),
            fairness: flowcontrol::Figures::registered(&mut registry),
            server: Arc::new(ServerMetrics::new(
                registry,
                &http.handshake_errors,
                http.budget.cut(),
            )),
        }
    }
}
