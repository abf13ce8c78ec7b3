//! Collects the usage of nodes and pods from kubelets, with this server's own client certificate.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use metrics_api::{Fetch, MAX_PAGE};

use crate::{Stored, pipeline::Core, proxy};

const PATH: &str = "/metrics/resource";

struct Kubelets(Arc<Core>);

#[async_trait]
impl Fetch for Kubelets {
    async fn resource_metrics(&self, node: &Stored) -> Result<Bytes, String> {
        proxy::kubelet_page(&self.0, &node.parse(), PATH, MAX_PAGE).await
    }
}

/// Collects samples for as long as the server runs; returns at once without a client certificate
/// for kubelets.
pub(crate) async fn collect(core: Arc<Core>) {
    if core.config.kubelet_tls.is_none() {
        return;
    }
    let (reader, samples) = (core.reader.clone(), core.usage.clone());
    let clock = core.config.clock.clone();
    metrics_api::collect(reader, Arc::new(Kubelets(core)), samples, clock).await;
}
