//! What is measured. Every server gets the same objects and the same requests.

use std::{
    sync::{Arc, Barrier, LazyLock, mpsc},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::Context;
use serde_json::json;

use crate::{
    load::{self, Requests},
    peer::Peer,
    process,
    report::Figures,
};

/// Where everything is made; another name each time, because not every server has a controller that
/// empties namespaces.
static NAMESPACE: LazyLock<String> = LazyLock::new(|| format!("bench-{:x}", nanoseconds()));
/// How many changes the watchers see.
const CHANGES: usize = 50;
/// Stands in a template where the number comes.
const NUMBER: &str = "0123456789abcdef";

pub fn path(plural: &str) -> String {
    format!("/api/v1/namespaces/{}/{plural}", *NAMESPACE)
}

/// Makes the namespace, and the service account that pods want.
pub async fn prepare(peer: &Peer) -> anyhow::Result<()> {
    let namespace = json!({"metadata": {"name": *NAMESPACE}}).to_string();
    peer.ask("POST", "/api/v1/namespaces", &namespace).await?;
    let account = json!({"metadata": {"name": "default"}}).to_string();
    // A controller may have made it meanwhile.
    let _ = peer.ask("POST", &path("serviceaccounts"), &account).await;
    Ok(())
}

/// Removes the namespace; objects in it go with it where a controller cares for that.
pub async fn clean(peer: &Peer) -> anyhow::Result<()> {
    let namespace = format!("/api/v1/namespaces/{}", *NAMESPACE);
    peer.ask("DELETE", &namespace, "").await.map(|_| ())
}

fn map(name: &str) -> String {
    json!({"metadata": {"name": name}, "data": {"text": "x".repeat(400)}}).to_string()
}

fn pod(name: &str) -> String {
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
}

/// Creates of objects whose names differ in a number.
fn creates(peer: &Peer, plural: &str, body: &str) -> impl Requests + use<> {
    let request = peer.request("POST", &path(plural), "", body);
    let at = request
        .windows(NUMBER.len())
        .position(|window| window == NUMBER.as_bytes())
        .unwrap_or(0);
    let (before, after) = (
        request[..at].to_vec(),
        request[at + NUMBER.len()..].to_vec(),
    );
    move |number, out| {
        out.extend_from_slice(&before);
        out.extend_from_slice(format!("{number:016x}").as_bytes());
        out.extend_from_slice(&after);
    }
}

/// A name's beginning that no other measurement uses.
fn unique() -> String {
    format!("b{:x}-{NUMBER}", nanoseconds())
}

fn nanoseconds() -> u128 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos())
}

pub fn create_maps(peer: &Peer, connections: usize, lasts: Duration) -> anyhow::Result<Figures> {
    let requests = creates(peer, "configmaps", &map(&unique()));
    load::run(
        peer,
        "create ConfigMap 0.5 KiB",
        connections,
        lasts,
        &requests,
    )
}

pub fn create_pods(peer: &Peer, connections: usize, lasts: Duration) -> anyhow::Result<Figures> {
    let requests = creates(peer, "pods", &pod(&unique()));
    load::run(peer, "create Pod", connections, lasts, &requests)
}

/// Makes this many pods; the name of the first is `filled-` and zeros.
pub fn fill(peer: &Peer, pods: usize) -> anyhow::Result<()> {
    let requests = creates(peer, "pods", &pod(&format!("filled-{NUMBER}")));
    load::each(peer, 16, pods, &requests)
}

pub fn get(
    peer: &Peer,
    connections: usize,
    lasts: Duration,
    query: &str,
) -> anyhow::Result<Figures> {
    let path = format!("{}/filled-{:016x}{query}", path("pods"), 0);
    repeat(peer, &format!("GET Pod {query}"), connections, lasts, &path)
}

pub fn list(
    peer: &Peer,
    connections: usize,
    lasts: Duration,
    query: &str,
) -> anyhow::Result<Figures> {
    let what = format!("LIST Pods {}", if query.is_empty() { "all" } else { query });
    let path = format!("{}{query}", path("pods"));
    repeat(peer, what.trim(), connections, lasts, &path)
}

fn repeat(
    peer: &Peer,
    what: &str,
    connections: usize,
    lasts: Duration,
    path: &str,
) -> anyhow::Result<Figures> {
    let request = peer.request("GET", path, "", "");
    load::run(
        peer,
        what.trim(),
        connections,
        lasts,
        &move |_, out: &mut Vec<u8>| out.extend_from_slice(&request),
    )
}

/// Lets many watchers see the same changes; a duration is from the write to the last watcher.
pub fn watch(peer: &Peer, watchers: usize) -> anyhow::Result<Figures> {
    let ready = Arc::new(Barrier::new(3));
    let (seen, all_seen) = mpsc::channel();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for thread in 0..2 {
            let count = (watchers + thread) / 2;
            let (ready, seen) = (ready.clone(), seen.clone());
            threads.push(scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()?;
                runtime.block_on(follow(peer, count, &ready, &seen))
            }));
        }
        drop(seen);
        ready.wait();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let changes = creates(peer, "configmaps", &map(&unique()));
        let mut connection = runtime.block_on(peer.connect())?;
        let (begun, cpu, mut durations) =
            (Instant::now(), process::cpu(&peer.processes), Vec::new());
        for number in 0..CHANGES {
            let mut request = Vec::new();
            changes(number as u64, &mut request);
            let start = Instant::now();
            runtime.block_on(connection.exchange(&request))?;
            for _ in 0..watchers {
                all_seen
                    .recv_timeout(Duration::from_secs(30))
                    .context("not every watcher saw the change")?;
            }
            durations.push(start.elapsed());
        }
        let took = begun.elapsed();
        let cpu = process::cpu(&peer.processes).saturating_sub(cpu);
        let mut bytes = 0;
        for thread in threads {
            bytes += thread
                .join()
                .map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        }
        let what = "change seen by all watchers";
        Ok(Figures::of(what, watchers, durations, bytes, took, cpu))
    })
}

async fn follow(
    peer: &Peer,
    count: usize,
    ready: &Barrier,
    seen: &mpsc::Sender<()>,
) -> anyhow::Result<u64> {
    let query = "?watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan";
    let request = peer.request("GET", &format!("{}{query}", path("configmaps")), "", "");
    let mut open = Vec::new();
    for _ in 0..count {
        let connection = match peer.connect().await {
            Ok(connection) => connection.watch(&request).await,
            Err(error) => Err(error),
        };
        open.push(connection);
    }
    ready.wait();
    let follow = open.into_iter().map(|watch| async move {
        let (mut watch, mut bytes) = (watch?, 0);
        for _ in 0..CHANGES {
            bytes += watch.lines(1).await?;
            // Nobody listens any more only when the measurement has failed.
            let _ = seen.send(());
        }
        anyhow::Ok(bytes)
    });
    let mut bytes = 0;
    for watcher in futures::future::join_all(follow).await {
        bytes += watcher?;
    }
    Ok(bytes)
}
