//! What the machine is and has, read from it once.

use std::{collections::BTreeMap, fs, path::Path};

use k8s_openapi::{api::core::v1::NodeSystemInfo, apimachinery::pkg::api::resource::Quantity};

use crate::{configuration::KubeletConfiguration, eviction::thresholds::Signal};

/// One of so many processes is the node's own.
const PIDS_KEPT_SHARE: i64 = 10;

/// The machine.
#[derive(Debug, Clone, Default)]
pub struct Machine {
    pub cpus: usize,
    /// In bytes.
    pub memory: i64,
    /// Size of the file system with the pods' data, in bytes.
    pub storage: i64,
    /// How many processes and threads there can be; zero if that is unknown.
    pub max_pids: i64,
    pub info: NodeSystemInfo,
}

impl Machine {
    /// Reads it. `data` is on the file system that pods fill.
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
        Self {
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory: meminfo(&text("/proc/meminfo"), "MemTotal"),
            storage: storage(data).0,
            max_pids: crate::stats::max_pids().unwrap_or(0),
            info,
        }
    }

    /// All there is.
    pub fn capacity(&self, max_pods: u32) -> BTreeMap<String, Quantity> {
        let quantity = |text: String| Quantity(text);
        BTreeMap::from([
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
            ("hugepages-1Gi".into(), quantity("0".into())),
            ("hugepages-2Mi".into(), quantity("0".into())),
        ])
    }

    /// What pods may use: all but what is reserved and what hard evictions keep free.
    pub fn allocatable(
        &self,
        max_pods: u32,
        kept: &KubeletConfiguration,
    ) -> BTreeMap<String, Quantity> {
        let mut list = self.capacity(max_pods);
        let hard = |signal: Signal, capacity: i64| {
            let all = kept.thresholds().unwrap_or_default();
            let found = all.iter().find(|t| t.signal == signal && t.is_hard());
            found.map_or(0, |threshold| threshold.value.of(capacity))
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
            - hard(Signal::MemoryAvailable, self.memory);
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

    /// How many processes and threads pods may have together: without what is reserved, and without
    /// a share that lets the node act when pods have taken all others.
    pub fn pids_for_pods(&self, kept: &KubeletConfiguration) -> Option<i64> {
        if !kept
            .enforce_node_allocatable
            .iter()
            .any(|what| what == "pods")
        {
            return None;
        }
        let reserved = kept
            .reserved("pid")
            .value()
            .max(self.max_pids / PIDS_KEPT_SHARE);
        Some((self.max_pids - reserved).max(1)).filter(|_| self.max_pids > 0)
    }
}

/// Size and free space of the file system of `path`, in bytes.
pub fn storage(path: &Path) -> (i64, i64) {
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

/// The architecture in Go's words.
pub fn architecture() -> &'static str {
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
    fn pods_get_what_is_neither_reserved_nor_kept_free() {
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
        kept.enforce_node_allocatable = vec!["none".into()];
        assert_eq!(machine.pids_for_pods(&kept), None);
    }
}
