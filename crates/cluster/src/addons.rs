//! Objects that a cluster of ours has beside those of the API server: the `kube-dns` Service, whose
//! address every pod's resolver asks. Each node answers for it; it needs no endpoints.

use std::{net::IpAddr, sync::Arc};

use client::kube::{self, Api, api::PostParams};
use k8s_openapi::api::core::v1::Service as KubeService;
use lifecycle::{Context, Run, Service};
use serde_json::json;

/// Keeps the objects there.
pub struct Addons {
    pub client: kube::Client,
    pub cluster_dns: IpAddr,
}

impl Service for Addons {
    fn name(&self) -> &'static str {
        "addons"
    }

    fn after(&self) -> &'static [&'static str] {
        &["apiserver"]
    }

    fn run(self: Arc<Self>, context: Context) -> Run {
        Box::pin(async move {
            self.ensure().await?;
            context.ready();
            context.shutdown().await;
            Ok(())
        })
    }
}

impl Addons {
    async fn ensure(&self) -> Result<(), kube::Error> {
        let services: Api<KubeService> = Api::namespaced(self.client.clone(), "kube-system");
        if services.get_opt("kube-dns").await?.is_some() {
            return Ok(());
        }
        let created = services
            .create(&PostParams::default(), &dns_service(self.cluster_dns))
            .await;
        match created {
            // Another server of the same cluster was faster.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            other => other.map(drop),
        }
    }
}

fn dns_service(address: IpAddr) -> KubeService {
    let port = |name: &str, protocol: &str| json!({"name": name, "port": 53, "protocol": protocol, "targetPort": 53});
    let service = json!({
        "metadata": {
            "name": "kube-dns",
            "namespace": "kube-system",
            "labels": {"k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS"}},
        "spec": {
            "clusterIP": address.to_string(),
            "ports": [port("dns", "UDP"), port("dns-tcp", "TCP")]}});
    // The literal above is a Service: it cannot fail to become one.
    serde_json::from_value(service).unwrap_or_default()
}
