//! A pod network that lets no container start before the pod's policies are applied.
//!
//! A pod's address is in the API only when its containers already run; the node's own network knows
//! it before. Sandboxes that an earlier run attached do not wait: their rules are in the kernel.

use std::{collections::BTreeSet, path::Path, sync::Arc};

use async_trait::async_trait;
use network::{AttachRequest, Attachment, IpNet, PodNetwork, Result, Status};

use crate::Enforcer;

/// A pod network with policies.
pub struct Gated {
    /// Attaches pods.
    pub network: Arc<dyn PodNetwork>,
    /// Enforces their policies.
    pub enforcer: Arc<Enforcer>,
}

#[async_trait]
impl PodNetwork for Gated {
    async fn attach(&self, request: AttachRequest) -> Result<Attachment> {
        let sandbox = request.sandbox_id.clone();
        let pod = (request.namespace.clone(), request.name.clone());
        let was_attached = self.network.attachment(&sandbox).await.is_some();
        let attachment = self.network.attach(request).await?;
        let addresses = &attachment.addresses;
        if was_attached {
            self.enforcer.note_attached(&sandbox, pod, addresses);
        } else if let Err(error) = self.enforcer.admit(&sandbox, pod, addresses).await {
            self.detach(&sandbox, None).await?;
            return Err(error);
        }
        Ok(attachment)
    }

    async fn attachment(&self, sandbox_id: &str) -> Option<Attachment> {
        self.network.attachment(sandbox_id).await
    }

    async fn detach(&self, sandbox_id: &str, netns: Option<&Path>) -> Result<()> {
        self.network.detach(sandbox_id, netns).await?;
        self.enforcer.release(|sandbox| sandbox == sandbox_id).await;
        Ok(())
    }

    async fn retain(&self, alive: &BTreeSet<String>) -> Result<()> {
        self.network.retain(alive).await?;
        self.enforcer
            .release(|sandbox| !alive.contains(sandbox))
            .await;
        Ok(())
    }

    async fn set_pod_cidrs(&self, cidrs: Vec<IpNet>) -> Result<()> {
        self.network.set_pod_cidrs(cidrs).await
    }

    async fn status(&self) -> Status {
        self.network.status().await
    }
}
