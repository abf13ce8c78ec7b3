//! Simulated nodes: they register, renew their Leases, report bound pods as running, and remove
//! deleted ones. No container runs. For tests of controllers and schedulers, on any cluster.

#![forbid(unsafe_code)]

mod node;
mod pod;

use std::{sync::Arc, time::Duration};

use client::Informer;
use futures::{StreamExt, stream};
use lifecycle::Context;
use reconcile::{Builder, Startup};
use tracing::{info, warn};

pub use node::Shape;
pub use pod::EXIT_AFTER;

use pod::{Kubelets, SimulatedPod};

/// The maximum number of concurrent requests.
const PARALLEL: usize = 64;
/// The Lease renewal interval of a kubelet.
const RENEW: Duration = Duration::from_secs(10);

/// The nodes to simulate.
#[derive(Debug, Clone)]
pub struct Nodes {
    /// Their number.
    pub count: usize,
    /// The prefix of their names, before a number.
    pub prefix: String,
    /// The properties of each.
    pub shape: Shape,
}

impl Nodes {
    /// The name of a node.
    fn name(&self, number: usize) -> String {
        format!("{}{number}", self.prefix)
    }

    /// Registers the nodes and keeps them alive for the context's run.
    pub async fn run(self, context: &Context, client: kube::Client) -> Result<(), kube::Error> {
        let names: Arc<Vec<String>> = Arc::new((0..self.count).map(|n| self.name(n)).collect());
        self.register(&client, &names).await?;
        info!(nodes = self.count, "registered");
        let leases = (client.clone(), names.clone());
        context.spawn("leases", async move {
            let (client, names) = leases;
            loop {
                renew(&client, &names).await;
                tokio::time::sleep(RENEW).await;
            }
        });
        let pods = Informer::<SimulatedPod>::builder(client.clone())
            .fields("spec.nodeName!=")
            .start(context);
        let kubelets = Arc::new(Kubelets::new(client, pods.clone(), names.iter().cloned()));
        let startup = Startup::default();
        Builder::new(context, &startup, kubelets)
            .watches(&pods)
            .workers(PARALLEL)
            .start();
        startup.finished().await;
        Ok(())
    }

    async fn register(&self, client: &kube::Client, names: &[String]) -> Result<(), kube::Error> {
        let register = |(number, name): (usize, String)| {
            let (client, shape) = (client.clone(), self.shape.clone());
            async move { node::register(&client, &name, number, &shape).await }
        };
        first_failure(names.iter().cloned().enumerate().map(register)).await
    }

    /// Deletes the nodes and their Leases.
    pub async fn remove(&self, client: &kube::Client) -> Result<(), kube::Error> {
        let remove = |number| {
            let (client, name) = (client.clone(), self.name(number));
            async move { node::remove(&client, &name).await }
        };
        first_failure((0..self.count).map(remove)).await
    }
}

/// Renews the Leases of all nodes.
async fn renew(client: &kube::Client, names: &[String]) {
    let renew = |name: String| {
        let client = client.clone();
        async move { node::renew(&client, &name).await }
    };
    if let Err(error) = first_failure(names.iter().cloned().map(renew)).await {
        warn!(%error, "cannot renew a Lease");
    }
}

/// Sends all requests, some concurrently; returns the first failure, if any.
async fn first_failure<F>(requests: impl Iterator<Item = F>) -> Result<(), kube::Error>
where
    F: Future<Output = Result<(), kube::Error>>,
{
    let outcomes = stream::iter(requests).buffer_unordered(PARALLEL);
    let outcomes: Vec<_> = outcomes.collect().await;
    outcomes.into_iter().collect()
}
