//! Resource usage of containers, pods and the image store, and the runtime's status.

use std::{collections::HashMap, fs, path::Path, sync::Arc};

use cri::v1;
use nix::sched::{CloneFlags, setns};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::{
    cgroup::{Cgroup, Pressure, PressureResource, Stalled, Usage},
    container::Container,
    engine::Engine,
    error::{Error, Result},
    matching,
    sandbox::Sandbox,
    snapshot::{Size, Sizing},
    stamp,
};

fn value(number: Option<u64>) -> Option<v1::UInt64Value> {
    number.map(|value| v1::UInt64Value { value })
}

/// Usage and pressure of one cgroup.
struct Measured {
    usage: Usage,
    cpu: Option<v1::PsiStats>,
    memory: Option<v1::PsiStats>,
    io: Option<v1::PsiStats>,
}

impl Measured {
    fn read(cgroup: &Cgroup) -> Self {
        let pressure = |waited| cgroup.pressure(waited).map(psi);
        Self {
            usage: cgroup.usage(),
            cpu: pressure(PressureResource::Cpu),
            memory: pressure(PressureResource::Memory),
            io: pressure(PressureResource::Io),
        }
    }
}

fn psi(pressure: Pressure) -> v1::PsiStats {
    let data = |stalled: Stalled| v1::PsiData {
        total: stalled.total,
        avg10: stalled.avg10,
        avg60: stalled.avg60,
        avg300: stalled.avg300,
    };
    v1::PsiStats {
        full: Some(data(pressure.full)),
        some: Some(data(pressure.some)),
    }
}

fn cpu(measured: &Measured, timestamp: i64) -> v1::CpuUsage {
    v1::CpuUsage {
        timestamp,
        usage_core_nano_seconds: value(measured.usage.cpu_nanos),
        psi: measured.cpu,
        ..Default::default()
    }
}

fn io(measured: &Measured, timestamp: i64) -> Option<v1::IoUsage> {
    let psi = measured.io?;
    Some(v1::IoUsage {
        timestamp,
        psi: Some(psi),
    })
}

fn memory(measured: &Measured, timestamp: i64) -> v1::MemoryUsage {
    let usage = &measured.usage;
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
        psi: measured.memory,
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

fn measure(
    container: &Container,
    pod_files: Size,
    root: &Path,
    sizing: &Sizing,
) -> v1::ContainerStats {
    let measured = Measured::read(&Cgroup::new(&container.facts.cgroup));
    let timestamp = stamp::now();
    let attributes = v1::ContainerAttributes {
        id: container.id.clone(),
        metadata: container.config.metadata.clone(),
        labels: container.config.labels.clone(),
        annotations: container.config.annotations.clone(),
    };
    v1::ContainerStats {
        attributes: Some(attributes),
        cpu: Some(cpu(&measured, timestamp)),
        memory: Some(memory(&measured, timestamp)),
        writable_layer: Some(filesystem(root, container.written(sizing) + pod_files)),
        swap: Some(v1::SwapUsage {
            timestamp,
            swap_available_bytes: None,
            swap_usage_bytes: value(measured.usage.swap),
        }),
        io: io(&measured, timestamp),
    }
}

/// Moves the calling thread into the pod's network namespace.
fn measure_pod(
    sandbox: &Sandbox,
    containers: &[Arc<Container>],
    root: &Path,
    sizing: &Sizing,
) -> v1::PodSandboxStats {
    let files = sandbox.files_size();
    let containers = containers.iter();
    let containers = containers.map(|container| measure(container, files, root, sizing));
    let measured = Measured::read(&Cgroup::new(&sandbox.facts.cgroup_parent));
    let timestamp = stamp::now();
    let attributes = v1::PodSandboxAttributes {
        id: sandbox.id.clone(),
        metadata: sandbox.config.metadata.clone(),
        labels: sandbox.config.labels.clone(),
        annotations: sandbox.config.annotations.clone(),
    };
    let linux = v1::LinuxPodSandboxStats {
        cpu: Some(cpu(&measured, timestamp)),
        memory: Some(memory(&measured, timestamp)),
        network: sandbox.facts.pins.net.as_deref().and_then(network_usage),
        process: Some(v1::ProcessUsage {
            timestamp,
            process_count: value(measured.usage.pids),
        }),
        containers: containers.collect(),
        io: io(&measured, timestamp),
    };
    v1::PodSandboxStats {
        attributes: Some(attributes),
        linux: Some(linux),
        windows: None,
    }
}

/// Interface counters of a network namespace. The calling thread stays in it.
fn network_usage(network: &Path) -> Option<v1::NetworkUsage> {
    let namespace = fs::File::open(network).ok()?;
    setns(namespace, CloneFlags::CLONE_NEWNET).ok()?;
    let text = fs::read_to_string("/proc/thread-self/net/dev").ok()?;
    let interfaces = interfaces(&text);
    let default = interfaces.iter().find(|link| link.name == "eth0");
    Some(v1::NetworkUsage {
        timestamp: stamp::now(),
        default_interface: default.or(interfaces.first()).cloned(),
        interfaces,
    })
}

impl Engine {
    /// Usage of containers.
    pub(crate) async fn container_stats(
        &self,
        containers: Vec<Arc<Container>>,
    ) -> Result<Vec<v1::ContainerStats>> {
        let root = self.config.root_dir.clone();
        let with_files = containers.into_iter().map(|container| {
            let sandbox = self.sandbox(&container.facts.sandbox).ok();
            (container, sandbox)
        });
        let with_files: Vec<_> = with_files.collect();
        let walks = self.walks.clone();
        self.blocking(move || {
            let sizing = Sizing::new(&walks);
            let all = with_files.iter().map(|(container, sandbox)| {
                // Any of the pod's containers may have written them, so that each counts them.
                let files = sandbox.as_ref().map(|sandbox| sandbox.files_size());
                measure(container, files.unwrap_or_default(), &root, &sizing)
            });
            all.collect()
        })
        .await
    }

    /// Usage of the running containers that a filter matches.
    pub(crate) async fn list_container_stats(
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
    pub(crate) async fn sandbox_stats(
        &self,
        sandbox: &Arc<Sandbox>,
    ) -> Result<v1::PodSandboxStats> {
        let stats = self.stats_of(vec![sandbox.clone()]).await?.pop();
        stats.ok_or_else(|| Error::NoSandbox(sandbox.id.clone()))
    }

    /// Usage of the pods that a filter matches.
    pub(crate) async fn list_sandbox_stats(
        &self,
        filter: Option<v1::PodSandboxStatsFilter>,
    ) -> Result<Vec<v1::PodSandboxStats>> {
        let filter = filter.unwrap_or_default();
        let matches = |sandbox: &&Arc<Sandbox>| {
            let labels = matching::labels(&filter.label_selector, &sandbox.config.labels);
            sandbox.is_ready() && labels && sandbox.id.starts_with(&filter.id)
        };
        let matching: Vec<_> = {
            let sandboxes = self.sandboxes.read();
            sandboxes.values().filter(matches).cloned().collect()
        };
        self.stats_of(matching).await
    }

    /// Usage of these pods, on one thread that enters their network namespaces one after the other.
    async fn stats_of(&self, sandboxes: Vec<Arc<Sandbox>>) -> Result<Vec<v1::PodSandboxStats>> {
        let mut containers: HashMap<String, Vec<Arc<Container>>> = HashMap::new();
        for container in self.containers.read().values() {
            if container.is_running() {
                let of_pod = containers.entry(container.facts.sandbox.clone());
                of_pod.or_default().push(container.clone());
            }
        }
        let root = self.config.root_dir.clone();
        let (send, receive) = oneshot::channel();
        // A thread of its own, since it does not leave the last network namespace.
        let walks = self.walks.clone();
        let work = move || {
            let sizing = Sizing::new(&walks);
            // Walks that take long go on in a thread, which stays in the network namespace where it was started.
            for container in containers.values().flatten() {
                container.written(&sizing);
            }
            let all = sandboxes.iter().map(|sandbox| {
                let containers = containers.get(&sandbox.id).map_or(&[][..], Vec::as_slice);
                measure_pod(sandbox, containers, &root, &sizing)
            });
            let _ = send.send(all.collect());
        };
        let thread = std::thread::Builder::new().name("stats".into());
        thread
            .spawn(work)
            .map_err(Error::system("start a thread"))?;
        let lost = |_| Error::Shim("a task panicked".into());
        receive.await.map_err(lost)
    }

    /// The disk usage of images.
    pub(crate) fn image_filesystem(&self) -> v1::FilesystemUsage {
        let root = &self.config.root_dir;
        let (sizing, [blobs, layers]) = (Sizing::new(&self.walks), &self.images_size);
        let blobs = sizing.size(blobs, &root.join("blobs"));
        filesystem(root, blobs + sizing.size(layers, &root.join("layers")))
    }

    /// The disk usage of containers' writable layers.
    pub(crate) fn container_filesystem(&self) -> v1::FilesystemUsage {
        let sizing = Sizing::new(&self.walks);
        let containers: Vec<_> = self.containers.read().values().cloned().collect();
        let sizes = containers.iter().map(|container| container.taken(&sizing));
        let all = sizes.fold(Size::default(), |sum, size| sum + size);
        filesystem(&self.config.root_dir, all)
    }

    /// The conditions of the runtime's status.
    pub(crate) async fn node_status(&self, verbose: bool) -> v1::StatusResponse {
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
