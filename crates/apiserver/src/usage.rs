//! Collects the usage of nodes and pods from kubelets, with this server's own client certificate.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use connect::Backends;
use metrics_api::{Fetch, MAX_PAGE};

use crate::{Stored, pipeline::Core};

const PATH: &str = "/metrics/resource";

struct Kubelets(Arc<Backends>);

#[async_trait]
impl Fetch for Kubelets {
    async fn resource_metrics(&self, node: &Stored) -> Result<Bytes, String> {
        self.0.kubelet_page(&node.parse(), PATH, MAX_PAGE).await
    }
}

/// Collects samples for as long as the server runs; returns at once without a client certificate
/// for kubelets.
pub(crate) async fn collect(core: Arc<Core>) {
    if core.config.kubelet_tls.is_none() {
        return;
    }
    let (reader, samples) = (core.storage.reader.clone(), core.observations.usage.clone());
    let clock = core.config.clock.clone();
    metrics_api::collect(
        reader,
        Arc::new(Kubelets(core.remote.backends.clone())),
        samples,
        clock,
    )
    .await;
}
