//! The cluster's controllers, one module each with the same shape: a pure decision and a thin shell
//! that reads shared informers and writes as its own service account. [`ALL`] lists them.

#![forbid(unsafe_code)]

mod claim;
mod discovery;
mod history;
mod intorpercent;
mod members;
mod metrics;
mod podcontrol;
mod pods;
mod replicas;
mod scaletargets;
mod selecting;
mod shared;
mod templatehash;

pub mod attachdetach;
pub mod bootstrapsigner;
pub mod clusterroleaggregation;
pub mod cronjob;
pub mod csr;
pub mod daemonset;
pub mod deployment;
pub mod devicetainteviction;
pub mod disruption;
pub mod endpoints;
pub mod endpointslice;
pub mod endpointslicemirroring;
pub mod ephemeralvolume;
pub mod expand;
pub mod gc;
pub mod hpa;
pub mod job;
pub mod legacytokencleaner;
pub mod loadbalancer;
pub mod localpath;
pub mod namespace;
pub mod nodeipam;
pub mod nodelifecycle;
pub mod persistentvolume;
pub mod podgc;
pub mod pvcprotection;
pub mod pvprotection;
pub mod replicaset;
pub mod replicationcontroller;
pub mod resourceclaim;
pub mod resourcequota;
pub mod rootca;
pub mod serviceaccount;
pub mod serviceaccounttokens;
pub mod servicecidrs;
pub mod statefulset;
pub mod storageversionmigration;
pub mod tainteviction;
pub mod tokencleaner;
pub mod ttl;
pub mod ttlafterfinished;
pub mod vacprotection;

use std::sync::Arc;

use client::Connector;
use lifecycle::{Context, Run, Service};
use metrics::{Collectors, Metrics};
use reconcile::QueueMetrics;
use stdx::{Clock, SystemClock};

pub use shared::Shared;

/// One controller.
pub struct Entry {
    /// The name in `--disable` and in logs.
    pub name: &'static str,
    /// Starts the controller; returns at once.
    pub start: fn(&Arc<Shared>),
}

macro_rules! table {
    ($($($module:ident)::+),* $(,)?) => {
        &[$(Entry { name: $($module)::+::NAME, start: $($module)::+::start }),*]
    };
}

/// Every controller.
pub const ALL: &[Entry] = table![
    deployment,
    replicaset,
    replicationcontroller,
    endpointslice,
    endpointslicemirroring,
    endpoints,
    namespace,
    serviceaccount,
    serviceaccounttokens,
    legacytokencleaner,
    rootca,
    gc,
    nodelifecycle,
    tainteviction,
    nodeipam,
    podgc,
    ttl,
    daemonset,
    statefulset,
    job,
    cronjob,
    ttlafterfinished,
    disruption,
    disruption::stale,
    clusterroleaggregation,
    persistentvolume,
    localpath,
    attachdetach,
    expand,
    ephemeralvolume,
    resourceclaim,
    devicetainteviction,
    pvcprotection,
    pvprotection,
    vacprotection,
    resourcequota,
    tokencleaner,
    bootstrapsigner,
    csr::approving,
    csr::signing,
    csr::cleaner,
    servicecidrs,
    hpa,
    loadbalancer,
    storageversionmigration,
];

/// The controllers' configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// PEM of the CA of the API server's certificate, published to every namespace.
    pub cluster_ca: String,
    /// The cluster CIDR, or one of each IP family separated by a comma; each node gets a subnet of
    /// each.
    pub cluster_cidr: String,
    /// The prefix lengths of the nodes' subnets.
    pub node_cidr_masks: Vec<u8>,
    /// The CA that signs certificates and tokens; `None`: nothing is signed.
    pub authority: Option<Authority>,
    /// The settings of Services of type LoadBalancer.
    pub load_balancer: loadbalancer::Settings,
    /// Names from [`ALL`] that do not run.
    pub disabled: Vec<String>,
}

/// The cluster's keys, which are not printed.
#[derive(Clone)]
pub struct Authority(pub Arc<pki::Pki>);

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authority(..)")
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cluster_ca: String::new(),
            cluster_cidr: "10.42.0.0/16".to_owned(),
            node_cidr_masks: vec![24],
            authority: None,
            load_balancer: loadbalancer::Settings::default(),
            disabled: Vec::new(),
        }
    }
}

impl Config {
    /// The service; `connector` makes a client for each identity.
    pub fn build(self, connector: Arc<dyn Connector>) -> Controllers {
        self.build_with_clock(connector, Arc::new(SystemClock))
    }

    /// The same with a given clock.
    pub fn build_with_clock(
        self,
        connector: Arc<dyn Connector>,
        clock: Arc<dyn Clock>,
    ) -> Controllers {
        Controllers {
            config: self,
            connector,
            clock,
            queues: QueueMetrics::default(),
            metrics: Metrics::default(),
            collectors: Collectors::default(),
        }
    }
}

/// All controllers as one service.
pub struct Controllers {
    config: Config,
    connector: Arc<dyn Connector>,
    clock: Arc<dyn Clock>,
    queues: QueueMetrics,
    metrics: Metrics,
    collectors: Collectors,
}

impl Service for Controllers {
    fn name(&self) -> &'static str {
        "controllers"
    }

    fn after(&self) -> &'static [&'static str] {
        &["apiserver"]
    }

    fn metrics(&self) -> String {
        self.queues.text() + &self.collectors.text(&self.metrics)
    }

    fn run(self: Arc<Self>, context: Context) -> Run {
        Box::pin(async move {
            let (config, connector) = (self.config.clone(), self.connector.clone());
            let metrics = (self.queues.clone(), self.metrics.clone());
            let collectors = self.collectors.clone();
            collectors.clear();
            let clock = self.clock.clone();
            let shared = Shared::new(
                context.clone(),
                config,
                connector,
                clock,
                metrics,
                collectors,
            );
            let wanted =
                |entry: &&Entry| !self.config.disabled.iter().any(|name| name == entry.name);
            for entry in ALL.iter().filter(wanted) {
                (entry.start)(&shared);
            }
            tokio::select! {
                () = shared.started() => context.ready(),
                () = context.shutdown() => return Ok(()),
            }
            context.shutdown().await;
            self.collectors.clear();
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_controller_has_a_name_of_its_own() {
        let names: BTreeSet<_> = ALL.iter().map(|entry| entry.name).collect();
        assert_eq!(names.len(), ALL.len());
    }
}
