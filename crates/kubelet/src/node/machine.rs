//! The machine's properties and capacity, read once.

use std::{collections::BTreeMap, fs, path::Path};

use k8s_openapi::{api::core::v1::NodeSystemInfo, apimachinery::pkg::api::resource::Quantity};

use crate::{
    configuration::KubeletConfiguration,
    eviction::thresholds::Signal,
    make::resources::{self, PodBounds},
};

/// One in this many processes is kept for the node itself.
const PIDS_KEPT_SHARE: i64 = 10;

/// The machine.
#[derive(Debug, Clone, Default)]
pub struct Machine {
    pub cpus: usize,
    /// In bytes.
    pub memory: i64,
    /// Size of the file system with the pods' data, in bytes.
    pub storage: i64,
    /// The maximum number of processes and threads; zero if unknown.
    pub max_pids: i64,
    /// Preallocated huge pages: bytes in total, by page size.
    pub huge_pages: BTreeMap<i64, i64>,
    page_sizes: Vec<i64>,
    pub info: NodeSystemInfo,
}

impl Machine {
    /// Reads the machine's properties. `data` is on the file system of the pods' data.
    pub fn read(data: &Path) -> Self {
        let uname = rustix::system::uname();
        let text = |path: &str| {
            fs::read_to_string(path)
                .unwrap_or_default()
                .trim()
                .to_owned()
        };
        let machine_id = text("/etc/machine-id");
        let system_uuid = text("/sys/class/dmi/id/product_uuid");
        let info = NodeSystemInfo {
            architecture: architecture().to_owned(),
            boot_id: text("/proc/sys/kernel/random/boot_id"),
            kernel_version: uname.release().to_string_lossy().into_owned(),
            operating_system: "linux".into(),
            os_image: os_image(&text("/etc/os-release")),
            system_uuid: if system_uuid.is_empty() {
                machine_id.clone()
            } else {
                system_uuid
            },
            machine_id,
            ..Default::default()
        };
        let huge_pages = huge_pages(Path::new("/sys/kernel/mm/hugepages"));
        Self {
            page_sizes: huge_pages.keys().copied().collect(),
            huge_pages,
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory: meminfo(&text("/proc/meminfo"), "MemTotal"),
            storage: storage(data).0,
            max_pids: crate::stats::max_pids().unwrap_or(0),
            info,
        }
    }

    /// The node's capacity.
    pub fn capacity(&self, max_pods: u32) -> BTreeMap<String, Quantity> {
        let quantity = |text: String| Quantity(text);
        let pages = self.huge_pages.iter();
        let mut list: BTreeMap<String, Quantity> = pages
            .map(|(size, all)| (resources::page_resource(*size), binary(*all)))
            .collect();
        list.extend([
            ("cpu".into(), quantity(self.cpus.to_string())),
            (
                "memory".into(),
                quantity(format!("{}Ki", self.memory / 1024)),
            ),
            (
                "ephemeral-storage".into(),
                quantity(format!("{}Ki", self.storage / 1024)),
            ),
            ("pods".into(), quantity(max_pods.to_string())),
        ]);
        list
    }

    /// The huge page sizes of the kernel, in bytes.
    pub fn page_sizes(&self) -> &[i64] {
        &self.page_sizes
    }

    /// The node's allocatable resources: capacity without reservations and hard eviction
    /// thresholds.
    pub fn allocatable(
        &self,
        max_pods: u32,
        kept: &KubeletConfiguration,
    ) -> BTreeMap<String, Quantity> {
        let mut list = self.capacity(max_pods);
        let hard = |signal: Signal, capacity: i64| {
            let all = kept.thresholds().unwrap_or_default();
            let found = all.iter().find(|t| t.signal == signal && t.is_hard());
            found.map_or(0, |threshold| threshold.value.resolve(capacity))
        };
        let millis = i64::try_from(self.cpus).unwrap_or(i64::MAX) * 1000;
        let millis = (millis - kept.reserved("cpu").millis()).max(0);
        if kept.reserved("cpu").is_zero() {
            list.insert("cpu".into(), Quantity(self.cpus.to_string()));
        } else {
            list.insert("cpu".into(), Quantity(format!("{millis}m")));
        }
        let memory = self.memory
            - kept.reserved("memory").value()
            - hard(Signal::MemoryAvailable, self.memory)
            - self.huge_pages.values().sum::<i64>();
        list.insert(
            "memory".into(),
            Quantity(format!("{}Ki", memory.max(0) / 1024)),
        );
        let storage = self.storage
            - kept.reserved("ephemeral-storage").value()
            - hard(Signal::NodeFsAvailable, self.storage);
        list.insert(
            "ephemeral-storage".into(),
            Quantity(storage.max(0).to_string()),
        );
        list
    }

    /// The limit of processes and threads of all pods together: without the reservation, and
    /// without a share that lets the node act when pods have used up theirs.
    pub fn pids_for_pods(&self, kept: &KubeletConfiguration) -> Option<i64> {
        if !kept.enforces("pods") {
            return None;
        }
        let reserved = kept
            .reserved("pid")
            .value()
            .max(self.max_pids / PIDS_KEPT_SHARE);
        Some((self.max_pids - reserved).max(1)).filter(|_| self.max_pids > 0)
    }

    /// The limits of all pods together: capacity without the reservations if they are enforced,
    /// otherwise the capacity.
    pub fn bounds_for_pods(&self, kept: &KubeletConfiguration) -> PodBounds {
        let reserved = |resource: &str| {
            let kept = kept.enforces("pods").then(|| kept.reserved(resource));
            kept.unwrap_or(machinery::quantity::Quantity::ZERO)
        };
        let cpus = i64::try_from(self.cpus).unwrap_or(i64::MAX);
        let millis = cpus.saturating_mul(1000) - reserved("cpu").millis();
        let pages = self.huge_pages.iter();
        PodBounds {
            cpu_shares: Some(resources::shares(millis.max(0))),
            memory: Some((self.memory - reserved("memory").value()).max(0)),
            huge_pages: pages
                .map(|(size, all)| (resources::page_name(*size), *all))
                .collect(),
            ..PodBounds::default()
        }
    }
}

/// Bytes as a quantity with a binary suffix where it divides evenly.
fn binary(bytes: i64) -> Quantity {
    let text = match bytes {
        0 => "0".to_owned(),
        bytes if bytes % (1 << 30) == 0 => format!("{}Gi", bytes >> 30),
        bytes if bytes % (1 << 20) == 0 => format!("{}Mi", bytes >> 20),
        bytes => format!("{}Ki", bytes >> 10),
    };
    Quantity(text)
}

/// The preallocated huge pages by page size. The kernel names directories after the size, such as
/// `hugepages-2048kB`.
fn huge_pages(dir: &Path) -> BTreeMap<i64, i64> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let sizes = entries.filter_map(|entry| {
        let name = entry.file_name();
        let size = name.to_str()?.strip_prefix("hugepages-")?;
        let kilobytes: i64 = size.strip_suffix("kB")?.parse().ok()?;
        let pages = fs::read_to_string(entry.path().join("nr_hugepages")).ok()?;
        let pages: i64 = pages.trim().parse().ok()?;
        let size = kilobytes.checked_mul(1024)?;
        Some((size, size.checked_mul(pages)?))
    });
    sizes.collect()
}

/// Size and free space of the file system of `path`, in bytes.
pub(crate) fn storage(path: &Path) -> (i64, i64) {
    let existing = path
        .ancestors()
        .find(|path| path.exists())
        .unwrap_or(Path::new("/"));
    rustix::fs::statvfs(existing).map_or((0, 0), |stat| {
        let bytes = |blocks: u64| i64::try_from(blocks * stat.f_frsize).unwrap_or(i64::MAX);
        (bytes(stat.f_blocks), bytes(stat.f_bavail))
    })
}

fn meminfo(text: &str, key: &str) -> i64 {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    let kilobytes: i64 = line
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse().ok())
        .unwrap_or(0);
    kilobytes * 1024
}

fn os_image(release: &str) -> String {
    let name = release
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.map_or("Linux".into(), |name| name.trim_matches('"').to_owned())
}

/// The architecture in Go's terms.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_found() {
        let text = "MemTotal:       16384 kB\nMemAvailable:    4096 kB\n";
        assert_eq!(meminfo(text, "MemTotal"), 16384 * 1024);
        assert_eq!(meminfo(text, "MemAvailable"), 4096 * 1024);
        assert_eq!(os_image("ID=x\nPRETTY_NAME=\"Debian 13\"\n"), "Debian 13");
        let machine = Machine::read(Path::new("/"));
        assert!(machine.cpus > 0 && machine.memory > 0 && machine.storage > 0);
    }

    #[test]
    fn allocatable_is_capacity_without_reservations_and_eviction_thresholds() {
        let gib = 1024 * 1024 * 1024;
        let machine = Machine {
            cpus: 4,
            memory: 8 * gib,
            storage: 100 * gib,
            max_pids: 1000,
            ..Machine::default()
        };
        let plain = KubeletConfiguration::default().complete();
        let list = machine.allocatable(110, &plain);
        assert_eq!(list["cpu"].0, "4");
        assert_eq!(
            list["memory"].0,
            format!("{}Ki", (8 * gib - (100 << 20)) / 1024)
        );
        assert_eq!(list["ephemeral-storage"].0, (90 * gib).to_string());
        assert_eq!(machine.pids_for_pods(&plain), Some(900));
        let mut kept = plain;
        let reserved = [("cpu", "500m"), ("memory", "1Gi"), ("pid", "300")];
        kept.kube_reserved = reserved.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let list = machine.allocatable(110, &kept);
        assert_eq!(list["cpu"].0, "3500m");
        assert_eq!(
            list["memory"].0,
            format!("{}Ki", (7 * gib - (100 << 20)) / 1024)
        );
        assert_eq!(machine.pids_for_pods(&kept), Some(700));
        let bounds = machine.bounds_for_pods(&kept);
        assert_eq!(
            (bounds.cpu_shares, bounds.memory),
            (Some(3584), Some(7 * gib))
        );
        kept.enforce_node_allocatable = vec!["none".into()];
        assert_eq!(machine.bounds_for_pods(&kept).memory, Some(8 * gib));
        assert_eq!(machine.pids_for_pods(&kept), None);
    }

    #[test]
    fn huge_pages_are_a_resource_and_no_memory_for_others() {
        let dir = tempfile::tempdir().unwrap();
        for (name, pages) in [("hugepages-2048kB", "8\n"), ("hugepages-1048576kB", "0\n")] {
            let dir = dir.path().join(name);
            fs::create_dir(&dir).unwrap();
            fs::write(dir.join("nr_hugepages"), pages).unwrap();
        }
        let machine = Machine {
            memory: 1 << 30,
            huge_pages: huge_pages(dir.path()),
            ..Machine::default()
        };
        let config = KubeletConfiguration {
            eviction_hard: [("memory.available".to_owned(), "0".to_owned())].into(),
            ..KubeletConfiguration::default()
        };
        let list = machine.allocatable(1, &config);
        assert_eq!(list["hugepages-2Mi"].0, "16Mi");
        assert_eq!(list["hugepages-1Gi"].0, "0");
        assert_eq!(
            list["memory"].0,
            format!("{}Ki", ((1 << 30) - (16 << 20)) / 1024)
        );
        assert_eq!(machine.bounds_for_pods(&config).huge_pages["2MB"], 16 << 20);
    }
}
