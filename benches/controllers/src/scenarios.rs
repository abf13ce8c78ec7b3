//! The loads.

use std::time::Instant;

use anyhow::Result;
use client::Api;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Namespace, Pod, Service},
};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::measure::Measure;

const PARALLEL: usize = 64;

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum Scenario {
    /// One Deployment of 5,000, then scaled to 0.
    Large,
    /// 1,000 Deployments of 5.
    Many,
    /// 50,000 pods of 50 Deployments.
    Pods,
    /// 10,000 Services without pods.
    Services,
}

impl Scenario {
    pub(crate) const ALL: [Self; 4] = [Self::Large, Self::Many, Self::Services, Self::Pods];

    pub(crate) async fn run(
        self,
        client: &kube::Client,
        measure: &Measure,
        scale: usize,
    ) -> Result<()> {
        let part = |count: usize| (count * scale / 100).max(1);
        match self {
            Self::Large => deployments(client, measure, "large", 1, part(5000)).await,
            Self::Many => deployments(client, measure, "many", part(1000), 5).await,
            Self::Pods => deployments(client, measure, "pods", 50, part(1000)).await,
            Self::Services => services(client, measure, part(10_000)).await,
        }
    }
}

fn deployment(name: &str, replicas: usize) -> Result<Deployment> {
    let labels = json!({"app": name});
    Ok(serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{
                    "name": "main", "image": "mainstay.local/hello",
                    "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
                    "ports": [{"containerPort": 8080, "name": "http"}],
                    "env": [{"name": "A", "value": "b"}],
                }]},
            },
        },
    }))?)
}

async fn namespace(client: &kube::Client, name: &str) -> Result<()> {
    let api: Api<Namespace> = Api::all(client.clone());
    let namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    api.create(&PostParams::default(), &namespace).await?;
    Ok(())
}

/// Creates `count` Deployments, waits until all their pods are ready, scales them to 0 and waits again.
async fn deployments(
    client: &kube::Client,
    measure: &Measure,
    name: &str,
    count: usize,
    replicas: usize,
) -> Result<()> {
    let namespace = format!("bench-{name}");
    self::namespace(client, &namespace).await?;
    let api: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
    let names: Vec<String> = (0..count).map(|number| format!("d{number}")).collect();
    let total = count * replicas;
    let (writes, begun) = (measure.writes().await?, Instant::now());
    let create = async |name: &String| -> Result<()> {
        api.create(&PostParams::default(), &deployment(name, replicas)?)
            .await?;
        Ok(())
    };
    let created = stream::iter(&names).map(create).buffer_unordered(PARALLEL);
    created.try_collect::<()>().await?;
    let settled = || async {
        let listed = api.list(&ListParams::default()).await?;
        let ready = |deployment: &Deployment| {
            let status = deployment.status.as_ref();
            status.and_then(|status| status.ready_replicas).unwrap_or(0)
        };
        Ok(listed.iter().map(ready).sum::<i32>() as usize == total)
    };
    let what = format!("{name}: {count} Deployments of {replicas}");
    measure.until(&what, total, begun, writes, settled).await?;
    measure.settled_memory(&what).await;
    let (writes, begun) = (measure.writes().await?, Instant::now());
    let scale = async |name: &String| -> Result<()> {
        let patch = json!({"spec": {"replicas": 0}});
        api.patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
        Ok(())
    };
    let scaled = stream::iter(&names).map(scale).buffer_unordered(PARALLEL);
    scaled.try_collect::<()>().await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let empty = || async {
        let listed = pods.list_metadata(&ListParams::default().limit(1)).await?;
        Ok(listed.is_empty())
    };
    let what = format!("{name}: scaled to 0");
    measure.until(&what, total, begun, writes, empty).await?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces
        .delete(&namespace, &DeleteParams::default())
        .await?;
    Ok(())
}

/// Creates Services and prints what they take.
async fn services(client: &kube::Client, measure: &Measure, count: usize) -> Result<()> {
    namespace(client, "bench-services").await?;
    let api: Api<Service> = Api::namespaced(client.clone(), "bench-services");
    measure.memory("services: before").await;
    let (writes, begun) = (measure.writes().await?, Instant::now());
    let create = async |number: usize| -> Result<()> {
        let service = serde_json::from_value(json!({
            "metadata": {"name": format!("s{number}")},
            "spec": {"selector": {"app": format!("a{number}")}, "ports": [{"port": 80, "name": "http"}]},
        }))?;
        api.create(&PostParams::default(), &service).await?;
        Ok(())
    };
    let created = stream::iter(0..count)
        .map(create)
        .buffer_unordered(PARALLEL);
    created.try_collect::<()>().await?;
    let what = format!("services: {count}");
    let done = || async { Ok(true) };
    measure.until(&what, count, begun, writes, done).await?;
    measure.settled_memory(&what).await;
    Ok(())
}
