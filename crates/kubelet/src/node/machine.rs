//! What the machine is and has, read from it once.

use std::{collections::BTreeMap, fs, path::Path};

use k8s_openapi::{api::core::v1::NodeSystemInfo, apimachinery::pkg::api::resource::Quantity};

/// The machine.
#[derive(Debug, Clone, Default)]
pub struct Machine {
    pub cpus: usize,
    /// In bytes.
    pub memory: i64,
    /// Size of the file system with the pods' data, in bytes.
    pub storage: i64,
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

    /// What pods may use: a little memory and disk is kept back, so that the node can say so before
    /// it runs out.
    pub fn allocatable(&self, max_pods: u32) -> BTreeMap<String, Quantity> {
        let mut list = self.capacity(max_pods);
        let memory = (self.memory - 100 * 1024 * 1024).max(0);
        list.insert("memory".into(), Quantity(format!("{}Ki", memory / 1024)));
        list.insert(
            "ephemeral-storage".into(),
            Quantity((self.storage / 10 * 9).to_string()),
        );
        list
    }
}

/// Memory that could be used, in bytes.
pub fn available_memory() -> i64 {
    meminfo(
        &fs::read_to_string("/proc/meminfo").unwrap_or_default(),
        "MemAvailable",
    )
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
}
