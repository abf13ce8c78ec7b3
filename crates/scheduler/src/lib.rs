//! The scheduler: assigns a node to every pod that has none. It maintains its own columnar view of
//! the cluster, fed by watches, schedules pending pods by priority, assumes a pod on its node as
//! soon as the node is chosen, and binds in the background. Unschedulable pods wait for an event
//! that could help; the reasons by node and plugin are computed on demand.

#![forbid(unsafe_code)]

pub mod alone;
mod binding_cycle;
mod bindings;
pub mod cluster;
pub mod configuration;
pub mod cycle;
pub mod devices;
pub mod diagnosis;
pub mod disk;
mod explanations;
pub mod extender;
pub mod framework;
mod in_tree;
mod inputs;
pub mod matching;
pub mod metrics;
mod node_rejections;
pub mod plugins;
pub mod pod;
pub mod preemption;
#[cfg(test)]
mod preemption_reference;
pub mod queue;
mod recent_specs;
#[cfg(test)]
mod reference;
mod rejected_pods;
pub mod resources;
mod run;
#[cfg(test)]
mod samples;
mod spec_memo;
pub mod template;
mod token_volume;
mod verdicts;
#[cfg(test)]
mod wakeups;
mod watched;
mod write;

use std::sync::Arc;

pub use diagnosis::{Diagnoses, Diagnosis};
use framework::profile::Profile;
use lifecycle::{Context, Run, Service};
use metrics::Metrics;
use queue::Backoff;
pub use write::{Release, Writes};

/// The scheduler's configuration.
pub struct Config {
    /// A client as system:kube-scheduler.
    pub client: kube::Client,
    /// The profiles.
    pub profiles: Vec<Profile>,
    /// The backoffs.
    pub backoff: Backoff,
    /// The extenders.
    pub extenders: Vec<extender::Settings>,
    /// Reproduces choices between equal nodes; random if `None`.
    pub seed: Option<u64>,
    /// Where the running scheduler answers why pods are pending.
    pub diagnoses: Diagnoses,
}

impl Config {
    /// The default scheduler.
    pub fn new(client: kube::Client) -> Self {
        Self {
            client,
            profiles: vec![Profile::default_scheduler()],
            backoff: Backoff::default(),
            extenders: Vec::new(),
            seed: None,
            diagnoses: Diagnoses::default(),
        }
    }

    /// The scheduler of a KubeSchedulerConfiguration.
    pub fn configured(client: kube::Client, document: &serde_json::Value) -> Result<Self, String> {
        let configuration = configuration::parse(document)?;
        Ok(Self {
            profiles: configuration.profiles,
            backoff: configuration.backoff,
            extenders: configuration.extenders,
            ..Self::new(client)
        })
    }

    /// The service.
    pub fn build(self) -> Scheduler {
        Scheduler {
            config: self,
            metrics: Metrics::default(),
        }
    }
}

/// The scheduler as a service.
pub struct Scheduler {
    config: Config,
    metrics: Metrics,
}

impl Service for Scheduler {
    fn name(&self) -> &'static str {
        "scheduler"
    }

    fn after(&self) -> &'static [&'static str] {
        &["apiserver"]
    }

    fn metrics(&self) -> String {
        self.metrics.text()
    }

    fn run(self: Arc<Self>, context: Context) -> Run {
        Box::pin(async move {
            let parts = run::Parts {
                client: self.config.client.clone(),
                profiles: self.config.profiles.clone(),
                backoff: self.config.backoff,
                extenders: self.config.extenders.clone(),
                seed: self.config.seed.unwrap_or_else(rand::random),
                diagnoses: self.config.diagnoses.clone(),
                metrics: self.metrics.clone(),
            };
            tokio::select! {
                why = run::run(context.clone(), parts) => Err(why.into()),
                () = context.shutdown() => Ok(()),
            }
        })
    }
}
