//! Collects the usage of nodes and pods from kubelets, with this server's own client certificate.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use connect::Backends;
use metrics_api::{Fetch, MAX_PAGE, Samples};
use stdx::Clock;

use crate::Stored;

const PATH: &str = "/metrics/resource";

struct Kubelets(Arc<Backends>);

#[async_trait]
impl Fetch for Kubelets {
    async fn resource_metrics(&self, node: &Stored) -> Result<Bytes, String> {
        self.0.kubelet_page(&node.parse(), PATH, MAX_PAGE).await
    }
}

/// Collects samples for as long as the server runs. Without a client certificate for kubelets there is nothing to do.
pub(crate) async fn collect(backends: Arc<Backends>, samples: Arc<Samples>, clock: Arc<dyn Clock>) {
    if backends.kubelet_tls.is_none() {
        return;
    }
    let reader = backends.reader.clone();
    metrics_api::collect(reader, Arc::new(Kubelets(backends)), samples, clock).await;
}
