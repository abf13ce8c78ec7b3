//! Pods from creation to deletion, timed at the client.

use std::{
    collections::HashMap,
    fmt,
    process::id,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use serde_json::json;

use crate::{process, spent};

const NAMESPACE: &str = "default";
const LABEL: &str = "bench=pods";
/// The timeout.
const PATIENCE: Duration = Duration::from_secs(600);
/// How often processes are checked.
const LOOK: Duration = Duration::from_millis(20);
/// Concurrent requests.
const PARALLEL: usize = 32;

/// Makes names unique.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// One cluster's API, and the properties of its pods.
pub(crate) struct Bench {
    api: Api<Pod>,
    pids: Vec<u32>,
    image: String,
    args: Vec<String>,
    /// The node of the pods, in a cluster without a scheduler.
    node: Option<&'static str>,
    /// In the environment of every process of a pod.
    mark: String,
}

/// The measurements of pods that were created and deleted together.
pub(crate) struct Measured {
    /// From each create request until the pod was seen Running, sorted.
    pub running: Vec<Duration>,
    /// From the delete request until no process of theirs was left, if they ran on this machine.
    pub processes_gone: Option<Duration>,
    /// From the delete request until the API had none of them.
    pub objects_gone: Duration,
    /// The CPU time of the start, where the bench has a cgroup of its own.
    pub spent: Option<String>,
}

/// The usage of processes while idle.
pub(crate) struct Used {
    cpu_percent: f64,
    memory: process::Memory,
}

impl fmt::Display for Used {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let megabytes = |bytes: u64| bytes / 1_000_000;
        let (cpu, memory) = (self.cpu_percent, &self.memory);
        let (resident, anonymous) = (megabytes(memory.resident), megabytes(memory.anonymous));
        write!(
            f,
            "{cpu:.2} % of a core, {resident} MB resident, of which {anonymous} MB anonymous"
        )
    }
}

impl Bench {
    pub(crate) fn new(
        client: kube::Client,
        pids: Vec<u32>,
        image: String,
        args: Vec<String>,
        node: Option<&'static str>,
    ) -> Self {
        Self {
            api: Api::namespaced(client, NAMESPACE),
            pids,
            image,
            args,
            node,
            mark: format!(
                "BENCH_PODS={}-{}",
                id(),
                NEXT.fetch_add(1, Ordering::Relaxed)
            ),
        }
    }

    /// Creates pods at once, waits until they run, deletes them and waits until nothing is left.
    pub(crate) async fn start_and_remove(&self, count: usize) -> Result<Measured> {
        let before = spent::so_far();
        let running = self.start(count).await?;
        let spent = before.and_then(|before| spent::per_pod(before, count));
        let (processes_gone, objects_gone) = self.remove().await?;
        Ok(Measured {
            running,
            processes_gone,
            objects_gone,
            spent,
        })
    }

    /// The processes' usage with this many idle pods.
    pub(crate) async fn idle(&self, count: usize, over: Duration) -> Result<Used> {
        self.start(count).await?;
        tokio::time::sleep(over).await;
        let before = process::cpu(&self.pids);
        tokio::time::sleep(over).await;
        let spent = process::cpu(&self.pids).saturating_sub(before);
        let used = Used {
            cpu_percent: spent.as_secs_f64() / over.as_secs_f64() * 100.0,
            memory: process::memory(&self.pids),
        };
        self.remove().await?;
        Ok(used)
    }

    async fn start(&self, count: usize) -> Result<Vec<Duration>> {
        let listed = self.api.list(&ListParams::default().labels(LABEL)).await?;
        let version = listed.metadata.resource_version.unwrap_or_default();
        let params = WatchParams::default().labels(LABEL);
        let mut events = self.api.watch(&params, &version).await?.boxed();
        let names: Vec<String> = (0..count).map(|_| name()).collect();
        let creating = stream::iter(&names)
            .map(|name| self.create(name))
            .buffer_unordered(PARALLEL)
            .try_collect::<HashMap<_, _>>();
        let mut seen = HashMap::new();
        let watching = async {
            while seen.len() < count {
                match tokio::time::timeout(PATIENCE, events.try_next()).await?? {
                    Some(WatchEvent::Added(pod) | WatchEvent::Modified(pod))
                        if is_running(&pod) =>
                    {
                        seen.entry(pod.metadata.name.unwrap_or_default())
                            .or_insert_with(Instant::now);
                    }
                    Some(WatchEvent::Error(status)) => bail!("the watch failed: {status:?}"),
                    Some(_) => {}
                    None => bail!("the watch ended with {} of {count} running", seen.len()),
                }
            }
            Ok(())
        };
        let (asked, ()) = tokio::try_join!(async { Ok(creating.await?) }, watching)?;
        let took = |(name, at): (&String, &Instant)| asked.get(name).map(|asked| *at - *asked);
        let mut all: Vec<Duration> = seen.iter().filter_map(took).collect();
        all.sort_unstable();
        Ok(all)
    }

    async fn create(&self, name: &str) -> Result<(String, Instant), kube::Error> {
        let (key, value) = self.mark.split_once('=').unwrap_or_default();
        let pod = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"bench": "pods"}},
            "spec": {
                "nodeName": self.node,
                "terminationGracePeriodSeconds": 5,
                "containers": [{
                    "name": "main", "image": self.image, "args": self.args,
                    "imagePullPolicy": "IfNotPresent",
                    "env": [{"name": key, "value": value}],
                }],
            },
        }));
        let asked = Instant::now();
        let pod = pod.map_err(kube::Error::SerdeError)?;
        self.api.create(&PostParams::default(), &pod).await?;
        Ok((name.to_owned(), asked))
    }

    async fn remove(&self) -> Result<(Option<Duration>, Duration)> {
        let are_here = process::count(&self.mark) > 0;
        let selected = ListParams::default().labels(LABEL);
        let begun = Instant::now();
        self.api
            .delete_collection(&DeleteParams::default(), &selected)
            .await?;
        let (mut processes, mut objects) = (None, None);
        while objects.is_none() || (are_here && processes.is_none()) {
            if begun.elapsed() > PATIENCE {
                bail!("pods are left after {PATIENCE:?}");
            }
            if processes.is_none() && process::count(&self.mark) == 0 {
                processes = Some(begun.elapsed());
            }
            if objects.is_none() && self.api.list_metadata(&selected).await?.items.is_empty() {
                objects = Some(begun.elapsed());
            }
            tokio::time::sleep(LOOK).await;
        }
        let processes = processes.filter(|_| are_here);
        Ok((processes, objects.unwrap_or_default()))
    }
}

fn name() -> String {
    format!("bench-{}-{}", id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn is_running(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    status.and_then(|status| status.phase.as_deref()) == Some("Running")
}
