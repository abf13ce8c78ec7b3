//! The scheduler: gives every pod that has none a node. It keeps its own columnar picture of the
//! cluster, fed by watches, tries waiting pods by importance, counts a pod on its node as soon as it
//! is chosen, and binds in the background. Pods that fit nowhere wait for an event that could help;
//! why they wait is worked out by node and plugin when it is asked for.

#![forbid(unsafe_code)]

pub mod alone;
mod bindings;
pub mod cluster;
pub mod configuration;
pub mod cycle;
pub mod diagnosis;
pub mod disk;
pub mod extender;
pub mod framework;
mod inputs;
pub mod matching;
pub mod metrics;
pub mod plugins;
pub mod pod;
pub mod preemption;
#[cfg(test)]
mod preemption_reference;
pub mod queue;
#[cfg(test)]
mod reference;
pub mod resources;
mod run;
#[cfg(test)]
mod samples;
mod spec_memo;
pub mod template;
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
pub use write::Writes;

/// How the scheduler is run.
pub struct Config {
    /// Reads and writes as system:kube-scheduler.
    pub client: kube::Client,
    /// The schedulers that pods can name.
    pub profiles: Vec<Profile>,
    /// How long pods wait after failures.
    pub backoff: Backoff,
    /// Programs that are asked beside the plugins.
    pub extenders: Vec<extender::Settings>,
    /// Repeats the decisions between equally good nodes; drawn when it is not given.
    pub seed: Option<u64>,
    /// Where the scheduler that runs answers why pods wait.
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

    /// The schedulers of a KubeSchedulerConfiguration.
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
