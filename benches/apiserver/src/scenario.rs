//! What is measured.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::Context;
use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::json;
use tokio::sync::Barrier;

use crate::{
    load::{Figures, run},
    peer::Peer,
};

const NAMESPACE: &str = "bench-apiserver";
/// How many changes the watchers see.
const CHANGES: usize = 100;

fn path(plural: &str) -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/{plural}")
}

/// Makes the namespace, and the service account that pods want.
pub async fn prepare(peer: &Peer) -> anyhow::Result<()> {
    let mut connection = peer.connect().await?;
    let body = json!({"metadata": {"name": NAMESPACE}}).to_string();
    connection
        .exchange("POST", "/api/v1/namespaces", body.into())
        .await?;
    let body = json!({"metadata": {"name": "default"}}).to_string();
    // A controller may have made it meanwhile.
    let _ = connection
        .exchange("POST", &path("serviceaccounts"), body.into())
        .await;
    Ok(())
}

/// Removes the namespace; objects in it go with it where a controller cares for that.
pub async fn clean(peer: &Peer) -> anyhow::Result<()> {
    let mut connection = peer.connect().await?;
    for plural in ["pods", "configmaps"] {
        let now = json!({"gracePeriodSeconds": 0}).to_string();
        connection
            .exchange("DELETE", &path(plural), now.into())
            .await?;
    }
    let namespace = format!("/api/v1/namespaces/{NAMESPACE}");
    connection
        .exchange("DELETE", &namespace, Bytes::new())
        .await
        .map(|_| ())
}

/// A name that no other run uses.
fn unique(kind: &str, number: u64) -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos());
    format!("{kind}-{now:x}-{number}")
}

fn map(name: &str) -> Bytes {
    json!({"metadata": {"name": name}, "data": {"text": "x".repeat(400)}})
        .to_string()
        .into()
}

fn pod(name: &str) -> Bytes {
    let container = |name: &str| {
        json!({
            "name": name, "image": "registry.example/hello:1", "command": ["/hello", "serve"],
            "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
            "ports": [{"containerPort": 8080}],
            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
            "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}},
        })
    };
    json!({
        "metadata": {"name": name, "labels": {"app": "bench", "pod-template-hash": "abc"}},
        "spec": {
            "automountServiceAccountToken": false, "nodeName": "nowhere",
            "containers": [container("main"), container("side")],
        },
    })
    .to_string()
    .into()
}

pub async fn create_maps(
    peer: &Peer,
    connections: usize,
    lasts: Duration,
) -> anyhow::Result<Figures> {
    run(
        peer,
        "create ConfigMap (0.5 KiB)",
        connections,
        lasts,
        |mut connection, number| async move {
            let body = map(&unique("map", number));
            let count = connection
                .exchange("POST", &path("configmaps"), body)
                .await?;
            Ok((connection, count))
        },
    )
    .await
}

pub async fn create_pods(
    peer: &Peer,
    connections: usize,
    lasts: Duration,
) -> anyhow::Result<Figures> {
    run(
        peer,
        "create Pod",
        connections,
        lasts,
        |mut connection, number| async move {
            let count = connection
                .exchange("POST", &path("pods"), pod(&unique("pod", number)))
                .await?;
            Ok((connection, count))
        },
    )
    .await
}

/// Makes pods until there are this many more.
pub async fn fill(peer: &Peer, pods: usize) -> anyhow::Result<()> {
    let workers = 16;
    let mut all = tokio::task::JoinSet::new();
    for worker in 0..workers {
        let mut connection = peer.connect().await?;
        all.spawn(async move {
            for number in (worker..pods).step_by(workers) {
                let body = pod(&format!("filled-{number}"));
                connection.exchange("POST", &path("pods"), body).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(worker) = all.join_next().await {
        worker??;
    }
    Ok(())
}

pub async fn get(
    peer: &Peer,
    connections: usize,
    lasts: Duration,
    query: &'static str,
) -> anyhow::Result<Figures> {
    let what = format!("GET one Pod {query}");
    run(
        peer,
        &what,
        connections,
        lasts,
        move |mut connection, _| async move {
            let path = format!("{}/filled-0{query}", path("pods"));
            let count = connection.exchange("GET", &path, Bytes::new()).await?;
            Ok((connection, count))
        },
    )
    .await
}

pub async fn list(
    peer: &Peer,
    connections: usize,
    lasts: Duration,
    query: &'static str,
) -> anyhow::Result<Figures> {
    let what = format!("LIST Pods {}", if query.is_empty() { "all" } else { query });
    run(
        peer,
        &what,
        connections,
        lasts,
        move |mut connection, _| async move {
            let path = format!("{}{query}", path("pods"));
            let count = connection.exchange("GET", &path, Bytes::new()).await?;
            Ok((connection, count))
        },
    )
    .await
}

/// Lets many watchers see the same changes; a duration is from the write to the last watcher.
pub async fn watch(peer: &Peer, watchers: usize, lasts: Duration) -> anyhow::Result<Figures> {
    let ready = Arc::new(Barrier::new(watchers + 1));
    let seen = Arc::new(Barrier::new(watchers + 1));
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..watchers {
        let mut connection = peer.connect().await?;
        let (ready, seen) = (ready.clone(), seen.clone());
        all.spawn(async move {
            let query = "?watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan";
            let path = format!("{}{query}", path("configmaps"));
            let mut body = connection
                .begin("GET", &path, Bytes::new())
                .await?
                .into_body();
            ready.wait().await;
            let mut count = 0;
            for _ in 0..CHANGES {
                let frame = body.frame().await.context("the watch ended")??;
                count += frame.data_ref().map_or(0, Bytes::len) as u64;
                seen.wait().await;
            }
            anyhow::Ok(count)
        });
    }
    ready.wait().await;
    let mut connection = peer.connect().await?;
    let (begun, mut durations) = (Instant::now(), Vec::new());
    for number in 0..CHANGES {
        let start = Instant::now();
        let body = map(&unique("seen", number as u64));
        connection
            .exchange("POST", &path("configmaps"), body)
            .await?;
        let wait = tokio::time::timeout(lasts.max(Duration::from_secs(30)), seen.wait());
        wait.await.context("not every watcher saw the change")?;
        durations.push(start.elapsed());
    }
    let took = begun.elapsed();
    let mut bytes = 0;
    while let Some(watcher) = all.join_next().await {
        bytes += watcher??;
    }
    Ok(Figures::of(
        "change seen by all watchers",
        watchers,
        durations,
        bytes,
        took,
    ))
}
