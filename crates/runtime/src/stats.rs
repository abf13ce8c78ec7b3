//! What containers, pods and the image store use, and how the node's runtime is.

use std::{fs, path::Path, sync::Arc};

use cri::v1;
use tokio_util::sync::CancellationToken;

use crate::{
    cgroup::{Cgroup, Usage},
    container::Container,
    engine::Engine,
    error::Result,
    matching,
    sandbox::Sandbox,
    snapshot::{self, Size, size},
    stamp,
};

fn value(number: Option<u64>) -> Option<v1::UInt64Value> {
    number.map(|value| v1::UInt64Value { value })
}

fn cpu(usage: &Usage, timestamp: i64) -> v1::CpuUsage {
    v1::CpuUsage {
        timestamp,
        usage_core_nano_seconds: value(usage.cpu_nanos),
        ..Default::default()
    }
}

fn memory(usage: &Usage, timestamp: i64) -> v1::MemoryUsage {
    let available = match (usage.memory_limit, usage.working_set) {
        (Some(limit), Some(used)) => Some(limit.saturating_sub(used)),
        _ => None,
    };
    v1::MemoryUsage {
        timestamp,
        working_set_bytes: value(usage.working_set),
        available_bytes: value(available),
        usage_bytes: value(usage.memory),
        rss_bytes: value(usage.rss),
        page_faults: value(usage.page_faults),
        major_page_faults: value(usage.major_page_faults),
        psi: None,
    }
}

fn filesystem(mountpoint: &Path, size: Size) -> v1::FilesystemUsage {
    v1::FilesystemUsage {
        timestamp: stamp::now(),
        fs_id: Some(v1::FilesystemIdentifier {
            mountpoint: mountpoint.display().to_string(),
        }),
        used_bytes: value(Some(size.bytes)),
        inodes_used: value(Some(size.inodes)),
    }
}

fn measure(container: &Container, pod_files: Size, root: &Path) -> v1::ContainerStats {
    let usage = Cgroup::new(&container.facts.cgroup).usage();
    let timestamp = stamp::now();
    let attributes = v1::ContainerAttributes {
        id: container.id.clone(),
        metadata: container.config.metadata.clone(),
        labels: container.config.labels.clone(),
        annotations: container.config.annotations.clone(),
    };
    v1::ContainerStats {
        attributes: Some(attributes),
        cpu: Some(cpu(&usage, timestamp)),
        memory: Some(memory(&usage, timestamp)),
        writable_layer: Some(filesystem(root, container.written() + pod_files)),
        swap: Some(v1::SwapUsage {
            timestamp,
            swap_available_bytes: None,
            swap_usage_bytes: value(usage.swap),
        }),
        io: None,
    }
}

impl Engine {
    /// Usage of containers.
    pub async fn container_stats(
        &self,
        containers: Vec<Arc<Container>>,
    ) -> Result<Vec<v1::ContainerStats>> {
        let root = self.config.root_dir.clone();
        let with_files = containers.into_iter().map(|container| {
            let sandbox = self.sandbox(&container.facts.sandbox).ok();
            (container, sandbox)
        });
        let with_files: Vec<_> = with_files.collect();
        self.blocking(move || {
            let all = with_files.iter().map(|(container, sandbox)| {
                // Written by any of the pod's containers: each is asked about it.
                let files = sandbox.as_ref().map(|sandbox| sandbox.files_size());
                measure(container, files.unwrap_or_default(), &root)
            });
            all.collect()
        })
        .await
    }

    /// Usage of the running containers that a filter matches.
    pub async fn list_container_stats(
        &self,
        filter: Option<v1::ContainerStatsFilter>,
    ) -> Result<Vec<v1::ContainerStats>> {
        let filter = filter.unwrap_or_default();
        let containers = self.containers.read().values().cloned().collect::<Vec<_>>();
        let matches = |container: &Arc<Container>| {
            container.is_running()
                && container.id.starts_with(&filter.id)
                && container.facts.sandbox.starts_with(&filter.pod_sandbox_id)
                && matching::labels(&filter.label_selector, &container.config.labels)
        };
        self.container_stats(containers.into_iter().filter(matches).collect())
            .await
    }

    /// Usage of a pod.
    pub async fn sandbox_stats(&self, sandbox: &Arc<Sandbox>) -> Result<v1::PodSandboxStats> {
        let running = self
            .containers_of(&sandbox.id)
            .into_iter()
            .filter(|c| c.is_running());
        let containers = self.container_stats(running.collect()).await?;
        let cgroup = Cgroup::new(&sandbox.facts.cgroup_parent);
        let usage = self.blocking(move || cgroup.usage()).await?;
        let timestamp = stamp::now();
        let attributes = v1::PodSandboxAttributes {
            id: sandbox.id.clone(),
            metadata: sandbox.config.metadata.clone(),
            labels: sandbox.config.labels.clone(),
            annotations: sandbox.config.annotations.clone(),
        };
        let linux = v1::LinuxPodSandboxStats {
            cpu: Some(cpu(&usage, timestamp)),
            memory: Some(memory(&usage, timestamp)),
            network: self.network_usage(sandbox).await,
            process: Some(v1::ProcessUsage {
                timestamp,
                process_count: value(usage.pids),
            }),
            containers,
            io: None,
        };
        Ok(v1::PodSandboxStats {
            attributes: Some(attributes),
            linux: Some(linux),
            windows: None,
        })
    }

    /// Usage of the pods that a filter matches.
    pub async fn list_sandbox_stats(
        &self,
        filter: Option<v1::PodSandboxStatsFilter>,
    ) -> Result<Vec<v1::PodSandboxStats>> {
        let filter = filter.unwrap_or_default();
        let sandboxes = self.sandboxes.read().values().cloned().collect::<Vec<_>>();
        let mut stats = Vec::new();
        for sandbox in sandboxes {
            let labels = matching::labels(&filter.label_selector, &sandbox.config.labels);
            if sandbox.is_ready() && labels && sandbox.id.starts_with(&filter.id) {
                stats.push(self.sandbox_stats(&sandbox).await?);
            }
        }
        Ok(stats)
    }

    /// Counters of the pod's links, read inside its namespace.
    async fn network_usage(&self, sandbox: &Sandbox) -> Option<v1::NetworkUsage> {
        let netns = sandbox.facts.pins.net.as_ref()?;
        let read = || fs::read_to_string("/proc/thread-self/net/dev");
        let text = network::netns::run(netns, read).await.ok()?.ok()?;
        let interfaces = interfaces(&text);
        let default = interfaces
            .iter()
            .find(|link| link.name == "eth0")
            .or(interfaces.first());
        Some(v1::NetworkUsage {
            timestamp: stamp::now(),
            default_interface: default.cloned(),
            interfaces,
        })
    }

    /// What images take on disk.
    pub(crate) fn image_filesystem(&self) -> v1::FilesystemUsage {
        let root = &self.config.root_dir;
        let measured = self.images_size.get(|| {
            let parts = ["blobs", "layers"].map(|part| size(&root.join(part)));
            parts[0] + parts[1]
        });
        filesystem(root, measured)
    }

    /// What containers take beside their images.
    pub(crate) fn container_filesystem(&self) -> v1::FilesystemUsage {
        let measured = self.containers_size.get(|| {
            let containers: Vec<_> = self.containers.read().values().cloned().collect();
            let sizes = containers
                .iter()
                .map(|container| snapshot::taken(container.dir()));
            sizes.fold(Size::default(), |sum, size| sum + size)
        });
        filesystem(&self.config.root_dir, measured)
    }

    /// The conditions that a kubelet looks at.
    pub async fn node_status(&self, verbose: bool) -> v1::StatusResponse {
        let condition =
            |kind: &str, status: bool, reason: &str, message: String| v1::RuntimeCondition {
                r#type: kind.to_owned(),
                status,
                reason: reason.to_owned(),
                message,
            };
        let network = match self.config.network.status().await {
            network::Status::Ready => condition("NetworkReady", true, "", String::new()),
            network::Status::NotReady(why) => {
                condition("NetworkReady", false, "NetworkPluginNotReady", why)
            }
        };
        let features = v1::RuntimeHandlerFeatures {
            recursive_read_only_mounts: true,
            user_namespaces: false,
        };
        let names = std::iter::once(String::new()).chain(self.config.handlers.keys().cloned());
        let handlers = names.map(|name| v1::RuntimeHandler {
            name,
            features: Some(features),
        });
        let mut response = v1::StatusResponse {
            status: Some(v1::RuntimeStatus {
                conditions: vec![condition("RuntimeReady", true, "", String::new()), network],
            }),
            runtime_handlers: handlers.collect(),
            features: Some(v1::RuntimeFeatures {
                supplemental_groups_policy: true,
                ..Default::default()
            }),
            ..Default::default()
        };
        if verbose {
            let info = serde_json::json!({
                "rootDir": self.config.root_dir,
                "stateDir": self.config.state_dir,
                "cgroupRoot": self.config.cgroup_root,
            });
            response.info.insert("config".to_owned(), info.to_string());
        }
        response
    }

    /// Cancelled when the runtime stops.
    pub(crate) fn shutdown(&self) -> CancellationToken {
        self.token()
    }
}

fn interfaces(text: &str) -> Vec<v1::NetworkInterfaceUsage> {
    let line = |line: &str| {
        let (name, counters) = line.split_once(':')?;
        let numbers: Vec<u64> = counters.split_whitespace().flat_map(str::parse).collect();
        Some(v1::NetworkInterfaceUsage {
            name: name.trim().to_owned(),
            rx_bytes: value(numbers.first().copied()),
            rx_errors: value(numbers.get(2).copied()),
            tx_bytes: value(numbers.get(8).copied()),
            tx_errors: value(numbers.get(10).copied()),
        })
    };
    text.lines()
        .skip(2)
        .filter_map(line)
        .filter(|link| link.name != "lo")
        .collect()
}
