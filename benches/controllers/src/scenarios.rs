//! The scenarios.

use std::{cell::Cell, time::Duration};

use anyhow::Result;
use client::Api;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment},
    batch::v1::Job,
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
    /// A new template for a Deployment of 1,000.
    Rollout,
    /// 10,000 Jobs of one pod that ends at once.
    Jobs,
    /// A DaemonSet on all nodes.
    Daemons,
    /// 50,000 pods of 50 Deployments.
    Pods,
    /// 10,000 Services without pods.
    Services,
}

impl Scenario {
    pub(crate) const ALL: [Self; 7] = [
        Self::Large,
        Self::Many,
        Self::Rollout,
        Self::Jobs,
        Self::Daemons,
        Self::Services,
        Self::Pods,
    ];

    pub(crate) async fn run(
        self,
        client: &kube::Client,
        measure: &Measure,
        nodes: usize,
        scale: usize,
    ) -> Result<()> {
        let part = |count: usize| (count * scale / 100).max(1);
        match self {
            Self::Large => deployments(client, measure, "large", 1, part(5000)).await,
            Self::Many => deployments(client, measure, "many", part(1000), 5).await,
            Self::Rollout => rollout(client, measure, part(1000)).await,
            Self::Jobs => jobs(client, measure, part(10_000)).await,
            Self::Daemons => daemons(client, measure, nodes).await,
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

/// Creates `count` Deployments, waits until all their pods are ready, scales them to 0 and waits
/// again.
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
    let begun = measure.begin().await?;
    let create = async |name: &String| -> Result<()> {
        api.create(&PostParams::default(), &deployment(name, replicas)?)
            .await?;
        Ok(())
    };
    let created = stream::iter(&names).map(create).buffer_unordered(PARALLEL);
    created.try_collect::<()>().await?;
    // Each is looked at until it is ready, one after the other: lists of all would cost more than what is measured.
    let next = Cell::new(0);
    let settled = || async {
        while let Some(name) = names.get(next.get()) {
            let status = api.get(name).await?.status.unwrap_or_default();
            if status.ready_replicas.unwrap_or(0) as usize != replicas {
                return Ok(false);
            }
            next.set(next.get() + 1);
        }
        Ok(true)
    };
    let what = format!("{name}: {count} Deployments of {replicas}");
    measure.until(&what, total, begun, settled).await?;
    measure.settled_memory(&what).await;
    let begun = measure.begin().await?;
    let scale = async |name: &String| -> Result<()> {
        let patch = json!({"spec": {"replicas": 0}});
        api.patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
        Ok(())
    };
    let scaled = stream::iter(&names).map(scale).buffer_unordered(PARALLEL);
    scaled.try_collect::<()>().await?;
    let what = format!("{name}: scaled to 0");
    let empty = || no_pods(client, &namespace);
    measure.until(&what, total, begun, empty).await?;
    remove(client, &namespace).await
}

/// Whether a namespace has no pods.
async fn no_pods(client: &kube::Client, namespace: &str) -> Result<bool> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let listed = pods.list_metadata(&ListParams::default().limit(1)).await?;
    Ok(listed.is_empty())
}

/// Deletes a namespace and waits until its pods are gone.
async fn remove(client: &kube::Client, namespace: &str) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces
        .delete(namespace, &DeleteParams::default())
        .await?;
    while !no_pods(client, namespace).await? {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

/// Changes the template of a Deployment and waits until all pods have it.
async fn rollout(client: &kube::Client, measure: &Measure, replicas: usize) -> Result<()> {
    let namespace = "bench-rollout";
    self::namespace(client, namespace).await?;
    let api: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let created = api
        .create(&PostParams::default(), &deployment("d", replicas)?)
        .await?;
    let is_rolled_out = async |generation: i64| {
        let status = api.get("d").await?.status.unwrap_or_default();
        let counts = [
            status.replicas,
            status.updated_replicas,
            status.available_replicas,
        ];
        let all = counts.map(|count| count.unwrap_or(0) as usize == replicas);
        Ok(status.observed_generation >= Some(generation) && all == [true; 3])
    };
    let begun = measure.begin().await?;
    let first = created.metadata.generation.unwrap_or(1);
    let what = format!("rollout: a Deployment of {replicas} before it");
    measure
        .until(&what, replicas, begun, || is_rolled_out(first))
        .await?;
    let begun = measure.begin().await?;
    let template = json!({"metadata": {"annotations": {"version": "2"}}});
    let patch = json!({"spec": {"template": template}});
    let patched = api
        .patch("d", &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    let second = patched.metadata.generation.unwrap_or(2);
    let what = format!("rollout: {replicas} pods replaced");
    measure
        .until(&what, replicas, begun, || is_rolled_out(second))
        .await?;
    remove(client, namespace).await
}

/// Creates Jobs of one pod that completes at once, and waits until all have succeeded.
async fn jobs(client: &kube::Client, measure: &Measure, count: usize) -> Result<()> {
    let namespace = "bench-jobs";
    self::namespace(client, namespace).await?;
    let api: Api<Job> = Api::namespaced(client.clone(), namespace);
    let begun = measure.begin().await?;
    let create = async |number: usize| -> Result<()> {
        let pod = json!({
            "restartPolicy": "Never",
            "containers": [{
                "name": "main", "image": "mainstay.local/hello",
                "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
            }],
        });
        let annotations = json!({simulate::EXIT_AFTER: "0"});
        let job = serde_json::from_value(json!({
            "metadata": {"name": format!("j{number}")},
            "spec": {"template": {"metadata": {"annotations": annotations}, "spec": pod}},
        }))?;
        api.create(&PostParams::default(), &job).await?;
        Ok(())
    };
    let created = stream::iter(0..count)
        .map(create)
        .buffer_unordered(PARALLEL);
    created.try_collect::<()>().await?;
    let unfinished = ListParams::default().fields("status.successful=0").limit(1);
    let done = || async { Ok(api.list_metadata(&unfinished).await?.is_empty()) };
    let what = format!("jobs: {count}");
    measure.until(&what, count, begun, done).await?;
    measure.settled_memory(&what).await;
    remove(client, namespace).await
}

/// Creates a DaemonSet, waits until it has an available pod on each node, and deletes it.
async fn daemons(client: &kube::Client, measure: &Measure, nodes: usize) -> Result<()> {
    let namespace = "bench-daemons";
    self::namespace(client, namespace).await?;
    let api: Api<DaemonSet> = Api::namespaced(client.clone(), namespace);
    let template = deployment("d", 0)?.spec.unwrap_or_default().template;
    let set = serde_json::from_value(json!({
        "metadata": {"name": "d"},
        "spec": {"selector": {"matchLabels": {"app": "d"}}, "template": template},
    }))?;
    let begun = measure.begin().await?;
    api.create(&PostParams::default(), &set).await?;
    let available = || async {
        let status = api.get("d").await?.status.unwrap_or_default();
        Ok(status.number_available.unwrap_or(0) as usize >= nodes)
    };
    let what = format!("daemons: on {nodes} nodes");
    measure.until(&what, nodes, begun, available).await?;
    let begun = measure.begin().await?;
    api.delete("d", &DeleteParams::default()).await?;
    let what = "daemons: deleted";
    let empty = || no_pods(client, namespace);
    measure.until(what, nodes, begun, empty).await?;
    remove(client, namespace).await
}

/// Creates Services and prints their memory.
async fn services(client: &kube::Client, measure: &Measure, count: usize) -> Result<()> {
    namespace(client, "bench-services").await?;
    let api: Api<Service> = Api::namespaced(client.clone(), "bench-services");
    measure.memory("services: before").await;
    let begun = measure.begin().await?;
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
    measure.until(&what, count, begun, done).await?;
    measure.settled_memory(&what).await;
    // They must not count in the scenarios after this one.
    remove(client, "bench-services").await?;
    while !api
        .list_metadata(&ListParams::default().limit(1))
        .await?
        .is_empty()
    {
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    Ok(())
}
