//! The scheduler: gives every pod that has none a node. It keeps its own columnar picture of the
//! cluster, fed by watches, tries waiting pods by importance, counts a pod on its node as soon as it
//! is chosen, and binds in the background. Pods that fit nowhere wait for an event that could help,
//! and why they wait is kept by node and plugin.

#![forbid(unsafe_code)]

pub mod alone;
mod bindings;
pub mod cluster;
pub mod configuration;
pub mod cycle;
pub mod disk;
pub mod extender;
pub mod framework;
mod inputs;
pub mod matching;
pub mod metrics;
pub mod plugins;
pub mod pod;
pub mod preemption;
pub mod queue;
#[cfg(test)]
mod reference;
pub mod resources;
mod run;
#[cfg(test)]
mod samples;
pub mod template;
mod verdicts;
mod watched;
mod write;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use framework::profile::Profile;
use lifecycle::{Context, Run, Service};
use metrics::Metrics;
use parking_lot::RwLock;
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
            diagnoses: Diagnoses::default(),
            metrics: Metrics::default(),
        }
    }
}

/// Why a pod waits: each node's reason.
#[derive(Debug, Clone)]
pub struct Diagnosis {
    /// The sentence of the pod's condition.
    pub message: String,
    /// Node, plugin, reasons; none for a pod that was tried long before others.
    pub nodes: Vec<(Arc<str>, &'static str, Vec<String>)>,
}

/// Pods whose reasons are kept for each node; of others only the message is kept.
const DETAILED: usize = 64;

/// The diagnoses of all waiting pods, by uid.
#[derive(Clone, Default)]
pub struct Diagnoses {
    /// Guards the table; written once per failed try.
    table: Arc<RwLock<Table>>,
}

#[derive(Default)]
struct Table {
    by_uid: HashMap<String, Diagnosis>,
    /// The pods with reasons for each node, the oldest first.
    detailed: VecDeque<String>,
}

impl Diagnoses {
    /// Why the pod with this uid waits.
    pub fn get(&self, uid: &str) -> Option<Diagnosis> {
        self.table.read().by_uid.get(uid).cloned()
    }

    fn put(&self, uid: &str, diagnosis: Diagnosis) {
        let mut table = self.table.write();
        table.by_uid.insert(uid.to_owned(), diagnosis);
        table.detailed.retain(|other| other != uid);
        table.detailed.push_back(uid.to_owned());
        if table.detailed.len() > DETAILED
            && let Some(oldest) = table.detailed.pop_front()
            && let Some(diagnosis) = table.by_uid.get_mut(&oldest)
        {
            diagnosis.nodes = Vec::new();
        }
    }

    fn remove(&self, uid: &str) {
        let known = self.table.read().by_uid.contains_key(uid);
        if known {
            let mut table = self.table.write();
            table.by_uid.remove(uid);
            table.detailed.retain(|other| other != uid);
        }
    }
}

/// The scheduler as a service.
pub struct Scheduler {
    config: Config,
    diagnoses: Diagnoses,
    metrics: Metrics,
}

impl Scheduler {
    /// Why pods wait; stays valid while the service runs.
    pub fn diagnoses(&self) -> Diagnoses {
        self.diagnoses.clone()
    }
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
                diagnoses: self.diagnoses.clone(),
                metrics: self.metrics.clone(),
            };
            tokio::select! {
                why = run::run(context.clone(), parts) => Err(why.into()),
                () = context.shutdown() => Ok(()),
            }
        })
    }
}
