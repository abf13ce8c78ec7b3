//! State that all workers of a kubelet share.

use std::{
    collections::{BTreeMap, HashSet},
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use client::Informer;
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Node, Pod, Service},
    apimachinery::pkg::api::resource::Quantity,
};
use lifecycle::Context;
use parking_lot::Mutex;
use stdx::Blocking;
use tokio::sync::watch;
use volume::{LinuxMounter, NodeFacts, storage};

use crate::{
    Config,
    admit::Admitted,
    cgroups,
    collect::Ledger,
    configuration::KubeletConfiguration,
    events::Events,
    make::{
        cgroups::{CgroupRoot, Driver},
        dns::Dns,
        resources::{MemoryRules, NodeLimits},
    },
    metrics::Metrics,
    node::machine::Machine,
    pod::spec,
    pull_records::PullRecords,
    pulls::Pulls,
    registry::{Message, Registry},
    runtime::Runtime,
    server::auth::Auth,
    shutdown,
    sources::Sources,
    stats,
};

/// Shared, immutable after the start.
pub struct Core {
    pub config: Arc<Config>,
    /// The KubeletConfiguration that is in effect; parts of it change while the kubelet runs.
    pub settings: watch::Sender<Arc<KubeletConfiguration>>,
    pub context: Context,
    pub runtime: Runtime,
    pub events: Events,
    pub sources: Arc<Sources>,
    /// The manager of volumes that outlive pods.
    pub volumes: Arc<storage::Manager>,
    pub services: Informer<Service>,
    /// An informer of this node's own object.
    pub nodes: Informer<Node>,
    /// The pods that count against the node's resources.
    pub admitted: Admitted,
    /// The error says why this machine cannot enforce AppArmor profiles.
    pub apparmor: std::result::Result<(), &'static str>,
    /// When this kubelet started.
    pub started: Timestamp,
    pub registry: Registry,
    /// The uids of the pods that the runtime had when this kubelet first listed them.
    pub uids_at_start: OnceLock<HashSet<String>>,
    pub machine: Machine,
    pub mounter: LinuxMounter,
    /// For work on volumes, which mounts, writes and removes files.
    pub blocking: Blocking,
    pub auth: Auth,
    pub stats: stats::Provider,
    pub metrics: Metrics,
    /// Replaced when the pull settings change.
    pub pulls: Mutex<Arc<Pulls>>,
    /// Which pods may use which images of this node.
    pub(crate) pull_records: Arc<PullRecords>,
    /// How many pods were evicted, by what was short.
    pub evictions: Mutex<BTreeMap<&'static str, u64>>,
    /// Guards the record only.
    pub images_seen: Mutex<Ledger>,
    /// The pressure conditions that are true.
    pub pressures: watch::Sender<Vec<&'static str>>,
    /// Whether the machine is shutting down.
    pub shutting_down: watch::Sender<bool>,
    /// The times of the last shutdown.
    pub shutdown_times: watch::Sender<shutdown::Times>,
    /// When the node's status was last computed.
    pub status_seen: watch::Sender<Option<Timestamp>>,
}

impl Core {
    /// The KubeletConfiguration that is in effect now.
    pub fn settings(&self) -> Arc<KubeletConfiguration> {
        self.settings.borrow().clone()
    }

    /// The node's allocatable resources.
    pub fn allocatable(&self) -> BTreeMap<String, Quantity> {
        let settings = self.settings();
        let pods = settings.pod_capacity(self.machine.cpus);
        self.machine.allocatable(pods, &settings)
    }

    /// The current time.
    pub fn now(&self) -> Timestamp {
        self.config.clock.now()
    }

    /// Stops counting a pod and wakes the pods that wait for resources.
    pub fn release(&self, uid: &str) {
        self.wake(self.admitted.release(uid, &self.allocatable()));
    }

    /// Makes these pods' workers look at their resources again.
    pub fn wake(&self, pods: Vec<String>) {
        for uid in pods {
            self.registry.send(&uid, Message::Room);
        }
    }

    /// The cgroup above all pods. Until the runtime has reported its driver, it is the configured one.
    pub fn cgroup_root(&self) -> CgroupRoot {
        let configured = || Driver::named(&self.settings().cgroup_driver);
        let driver = self.runtime.driver.get().copied().or_else(configured);
        CgroupRoot {
            path: self.config.cgroup_root.clone(),
            driver: driver.unwrap_or(Driver::Cgroupfs),
        }
    }

    /// The pod's directory.
    pub fn pod_dir(&self, uid: &str) -> PathBuf {
        self.config.root_dir.join("pods").join(uid)
    }

    /// The node's part of the containers' limits.
    pub fn node_limits(&self) -> NodeLimits<'_> {
        NodeLimits {
            memory: self.machine.memory,
            cfs: self.settings().cfs_quota(),
            page_sizes: self.machine.page_sizes(),
            memory_rules: self.memory_rules(),
        }
    }

    fn memory_rules(&self) -> MemoryRules {
        let is_v2 = cgroups::is_v2();
        let single = self.settings().single_process_oom_kill;
        MemoryRules {
            is_v2,
            accounts_swap: cgroups::account_swap(&self.cgroup_root()),
            kills_all: is_v2 && single != Some(true),
        }
    }

    /// The node's addresses as text.
    pub fn host_ips(&self) -> Vec<String> {
        let ips = self.config.current_node_ips();
        ips.iter().map(ToString::to_string).collect()
    }

    /// The node's fields for the downward API.
    pub fn node_facts(&self) -> NodeFacts {
        NodeFacts {
            allocatable: self.allocatable(),
            host_ip: self.host_ips().first().cloned().unwrap_or_default(),
        }
    }

    /// Reads the node's own resolv.conf.
    pub fn node_dns(&self) -> Dns {
        Dns::parse(&std::fs::read_to_string(&self.config.resolv_conf).unwrap_or_default())
    }

    /// The Services whose environment variables the pod gets.
    pub fn services_for(&self, pod: &Pod) -> Vec<Arc<Service>> {
        let mut services = self.services.list_in(spec::namespace(pod));
        if spec::namespace(pod) != "default" {
            services.extend(self.services.get("default", "kubernetes"));
        }
        services
    }
}
