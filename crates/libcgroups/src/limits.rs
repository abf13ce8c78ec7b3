//! A container's limits, at its creation and later: values that are set are written, others are
//! left unchanged. A limit whose controller is missing is an error.

use std::{io, path::PathBuf};

use oci_spec::runtime::{LinuxCpu, LinuxMemory, LinuxResources};

use crate::{
    Cgroup, devices,
    group::{put, put_each},
    systemd::Limits,
};

impl Cgroup {
    /// Writes the limits. systemd must know those of its scopes, or it resets them later.
    pub fn limit(&self, resources: &LinuxResources) -> io::Result<()> {
        if let Some(scope) = self.scope() {
            scope.limit(&systemd_limits(resources))?;
        }
        if self.hierarchies.is_unified() {
            self.limit_unified(resources)
        } else {
            self.limit_split(resources)
        }
    }

    fn controller(&self, name: &str) -> io::Result<PathBuf> {
        self.dir(name)
            .ok_or_else(|| io::Error::other(format!("the {name} controller is not mounted")))
    }

    fn set(&self, controller: &str, file: &str, value: impl ToString) -> io::Result<()> {
        put(&self.controller(controller)?, file, &value.to_string())
    }

    fn limit_split(&self, r: &LinuxResources) -> io::Result<()> {
        if let Some(rules) = r.devices() {
            let dir = self.controller("devices")?;
            for lines in devices::lines(rules).chunk_by(|one, next| one.0 == next.0) {
                let file = if lines[0].0 {
                    "devices.allow"
                } else {
                    "devices.deny"
                };
                put_each(&dir, file, lines.iter().map(|(_, text)| text.as_str()))?;
            }
        }
        if let Some(cpu) = r.cpu() {
            self.cpu_split(cpu)?;
        }
        if let Some(memory) = r.memory() {
            self.memory_split(memory)?;
        }
        if let Some(limit) = r.pids().as_ref().map(|pids| pids.limit()) {
            self.set("pids", "pids.max", or_max(limit, limit <= 0))?;
        }
        for page in r.hugepage_limits().iter().flatten() {
            let file = format!("hugetlb.{}.limit_in_bytes", page.page_size());
            self.set("hugetlb", &file, page.limit())?;
        }
        Ok(())
    }

    fn cpu_split(&self, cpu: &LinuxCpu) -> io::Result<()> {
        if let Some(shares) = cpu.shares() {
            self.set("cpu", "cpu.shares", shares)?;
        }
        // A quota must be valid for the current period.
        let quota = cpu
            .quota()
            .map(|quota| self.set("cpu", "cpu.cfs_quota_us", quota));
        if let Some(period) = cpu.period() {
            self.set("cpu", "cpu.cfs_period_us", period)?;
        }
        if let (Some(Err(_)), Some(wanted)) = (quota, cpu.quota()) {
            self.set("cpu", "cpu.cfs_quota_us", wanted)?;
        }
        if let Some(cpus) = cpu.cpus() {
            self.set("cpuset", "cpuset.cpus", cpus)?;
        }
        if let Some(mems) = cpu.mems() {
            self.set("cpuset", "cpuset.mems", mems)?;
        }
        Ok(())
    }

    /// The kernel rejects a memory limit above the memory and swap limit: when growing, the latter
    /// is written first.
    fn memory_split(&self, memory: &LinuxMemory) -> io::Result<()> {
        let inner = memory
            .limit()
            .map(|limit| self.set("memory", "memory.limit_in_bytes", limit));
        if let Some(swap) = memory.swap() {
            self.set("memory", "memory.memsw.limit_in_bytes", swap)?;
        }
        if let (Some(Err(_)), Some(limit)) = (inner, memory.limit()) {
            self.set("memory", "memory.limit_in_bytes", limit)?;
        }
        if let Some(reservation) = memory.reservation() {
            self.set("memory", "memory.soft_limit_in_bytes", reservation)?;
        }
        Ok(())
    }

    fn limit_unified(&self, r: &LinuxResources) -> io::Result<()> {
        if let Some(rules) = r.devices() {
            devices::attach(&self.controller("")?, rules)?;
        }
        if let Some(cpu) = r.cpu() {
            self.cpu_unified(cpu)?;
        }
        if let Some(memory) = r.memory() {
            self.memory_unified(memory)?;
        }
        if let Some(limit) = r.pids().as_ref().map(|pids| pids.limit()) {
            self.set("", "pids.max", or_max(limit, limit <= 0))?;
        }
        for page in r.hugepage_limits().iter().flatten() {
            let file = format!("hugetlb.{}.max", page.page_size());
            self.set("", &file, page.limit())?;
        }
        for (file, value) in r.unified().iter().flatten() {
            if file.contains('/') {
                return Err(io::Error::other(format!("{file:?} is not a cgroup file")));
            }
            self.set("", file, value)?;
        }
        Ok(())
    }

    fn cpu_unified(&self, cpu: &LinuxCpu) -> io::Result<()> {
        if let Some(shares) = cpu.shares() {
            self.set("", "cpu.weight", weight(shares))?;
        }
        match (cpu.quota(), cpu.period()) {
            (None, None) => {}
            (quota, period) => {
                let quota = quota.unwrap_or(-1);
                let period = period.unwrap_or(100_000);
                let value = format!("{} {period}", or_max(quota, quota <= 0));
                self.set("", "cpu.max", value)?;
            }
        }
        if let Some(cpus) = cpu.cpus() {
            self.set("", "cpuset.cpus", cpus)?;
        }
        if let Some(mems) = cpu.mems() {
            self.set("", "cpuset.mems", mems)?;
        }
        Ok(())
    }

    /// OCI's swap limit includes memory, v2's does not.
    fn memory_unified(&self, memory: &LinuxMemory) -> io::Result<()> {
        if let Some(limit) = memory.limit() {
            self.set("", "memory.max", or_max(limit, limit < 0))?;
        }
        if let Some(both) = memory.swap() {
            let limit = memory.limit().unwrap_or(0).max(0);
            let swap = (both - limit).max(0);
            let wanted = or_max(swap, both < 0);
            let there = self.controller("")?.join("memory.swap.max").exists();
            // Without the file there is no swap accounting, and a limit of zero need not be set.
            if there || wanted != "0" {
                self.set("", "memory.swap.max", wanted)?;
            }
        }
        if let Some(reservation) = memory.reservation() {
            self.set("", "memory.low", or_max(reservation, reservation < 0))?;
        }
        Ok(())
    }
}

/// The limits that systemd knows.
fn systemd_limits(resources: &LinuxResources) -> Limits {
    let cpu = resources.cpu().as_ref();
    let quota = cpu.and_then(|cpu| match (cpu.quota(), cpu.period()) {
        (None, None) => None,
        (quota, period) => Some((quota.unwrap_or(-1), period.unwrap_or(100_000))),
    });
    let memory = resources.memory().as_ref();
    let files = resources.unified().as_ref();
    let swap = files.and_then(|files| files.get("memory.swap.max"));
    Limits {
        cpu_weight: cpu.and_then(|cpu| cpu.shares()).map(weight),
        cpu_quota: quota,
        memory: memory.and_then(|memory| memory.limit()),
        // systemd would replace what is written into the file alone.
        swap: swap.and_then(|swap| swap.parse().ok()),
        pids: resources.pids().as_ref().map(|pids| pids.limit()),
    }
}

fn or_max(value: i64, is_unlimited: bool) -> String {
    if is_unlimited {
        "max".to_owned()
    } else {
        value.to_string()
    }
}

/// v2's weight (1 to 10000) for v1's shares (2 to 262144).
fn weight(shares: u64) -> u64 {
    1 + ((shares.clamp(2, 262_144) - 2) * 9999) / 262_142
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs};

    use super::*;
    use crate::Hierarchies;

    fn resources(json: &str) -> LinuxResources {
        serde_json::from_str(json).unwrap()
    }

    const WANTED: &str = r#"{
        "cpu": {"shares": 1024, "quota": 50000, "period": 100000, "cpus": "0-1", "mems": "0"},
        "memory": {"limit": 1000, "swap": 1500},
        "pids": {"limit": 7},
        "hugepageLimits": [{"pageSize": "2MB", "limit": 4096}]
    }"#;

    #[test]
    fn shares_become_weights_over_the_whole_range() {
        assert_eq!(weight(2), 1);
        assert_eq!(weight(1024), 39);
        assert_eq!(weight(262_144), 10_000);
        assert_eq!(weight(1 << 40), 10_000);
    }

    #[test]
    fn systemd_gets_the_limits_that_it_knows() {
        let expected = Limits {
            cpu_weight: Some(39),
            cpu_quota: Some((50_000, 100_000)),
            memory: Some(1000),
            swap: None,
            pids: Some(7),
        };
        assert_eq!(systemd_limits(&resources(WANTED)), expected);
        let without_swap = resources(r#"{"unified": {"memory.swap.max": "0"}}"#);
        assert_eq!(systemd_limits(&without_swap).swap, Some(0));
        assert_eq!(systemd_limits(&resources("{}")), Limits::default());
    }

    #[test]
    fn every_limit_of_version_2_is_written_in_its_form() {
        let dir = tempfile::tempdir().unwrap();
        let expected = [
            ("cpu.weight", "39"),
            ("cpu.max", "50000 100000"),
            ("cpuset.cpus", "0-1"),
            ("cpuset.mems", "0"),
            ("memory.max", "1000"),
            ("memory.swap.max", "500"),
            ("pids.max", "7"),
            ("hugetlb.2MB.max", "4096"),
            ("memory.high", "900"),
        ];
        for (file, _) in expected {
            fs::write(dir.path().join(file), "").unwrap();
        }
        let tree = Box::leak(Box::new(Hierarchies::Unified(dir.path().into())));
        let mut wanted = resources(WANTED);
        wanted.set_unified(Some([("memory.high".into(), "900".into())].into()));
        Cgroup::at(tree, "").limit(&wanted).unwrap();
        let read = |file: &str| fs::read_to_string(dir.path().join(file)).unwrap();
        for (file, value) in expected {
            assert_eq!(read(file), value, "{file}");
        }
        for file in ["memory.max", "memory.swap.max", "cpu.max"] {
            fs::write(dir.path().join(file), "").unwrap();
        }
        let lifted = r#"{"memory": {"limit": -1, "swap": -1}, "cpu": {"quota": -1}}"#;
        Cgroup::at(tree, "").limit(&resources(lifted)).unwrap();
        assert_eq!(read("memory.max"), "max");
        assert_eq!(read("memory.swap.max"), "max");
        assert_eq!(read("cpu.max"), "max 100000");
        let escape = r#"{"unified": {"../x": "1"}}"#;
        assert!(Cgroup::at(tree, "").limit(&resources(escape)).is_err());
    }

    #[test]
    fn every_limit_of_version_1_goes_to_its_controller() {
        let dir = tempfile::tempdir().unwrap();
        let expected = [
            ("cpu/cpu.shares", "1024"),
            ("cpu/cpu.cfs_quota_us", "50000"),
            ("cpu/cpu.cfs_period_us", "100000"),
            ("cpuset/cpuset.cpus", "0-1"),
            ("cpuset/cpuset.mems", "0"),
            ("memory/memory.limit_in_bytes", "1000"),
            ("memory/memory.memsw.limit_in_bytes", "1500"),
            ("pids/pids.max", "7"),
            ("hugetlb/hugetlb.2MB.limit_in_bytes", "4096"),
        ];
        let mut roots = BTreeMap::new();
        for (file, _) in expected {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            let controller = file.split('/').next().unwrap();
            roots.insert(controller.to_owned(), dir.path().join(controller));
        }
        let tree = Box::leak(Box::new(Hierarchies::Split(roots)));
        Cgroup::at(tree, "").limit(&resources(WANTED)).unwrap();
        for (file, value) in expected {
            assert_eq!(fs::read_to_string(dir.path().join(file)).unwrap(), value);
        }
        let denied = r#"{"devices": [{"allow": false, "access": "rwm"}]}"#;
        let missing = Cgroup::at(tree, "").limit(&resources(denied)).unwrap_err();
        assert!(missing.to_string().contains("devices controller"));
    }

    /// Controllers that no v1 hierarchy has are in the v2 hierarchy: these limits are set for real.
    /// Needs root.
    #[test]
    fn limits_of_version_2_are_set_for_real_where_there_are_any() {
        let Some(real) = crate::real::Tree::take() else {
            return;
        };
        let tree = real.hierarchies();
        let root = crate::v2::util::get_unified_mount_point().unwrap();
        let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap();
        let name = format!("mainstay-limits-{}", std::process::id());
        let group = Cgroup::at(tree, format!("{name}/inner"));
        group.create().unwrap();
        let mut seen = Vec::new();
        for (controller, wanted, file, value) in [
            (
                "hugetlb",
                r#"{"hugepageLimits": [{"pageSize": "2MB", "limit": 4194304}]}"#,
                "hugetlb.2MB.max",
                "4194304",
            ),
            (
                "memory",
                r#"{"memory": {"limit": 8388608}}"#,
                "memory.max",
                "8388608",
            ),
            ("pids", r#"{"pids": {"limit": 7}}"#, "pids.max", "7"),
            (
                "cpu",
                r#"{"cpu": {"quota": 20000, "period": 100000}}"#,
                "cpu.max",
                "20000 100000",
            ),
        ] {
            let set = group.limit(&resources(wanted)).map(|()| {
                let path = group.dir("").unwrap().join(file);
                fs::read_to_string(path).unwrap().trim().to_owned()
            });
            let has = controllers
                .split_whitespace()
                .any(|name| name == controller);
            seen.push((controller, has, set.map_err(|e| e.to_string()), value));
        }
        Cgroup::at(tree, &name)
            .remove_within(std::time::Duration::from_secs(5))
            .unwrap();
        for (controller, has, set, value) in seen {
            match set {
                Ok(found) => assert_eq!(found, value, "{controller}"),
                Err(error) => assert!(!has, "{controller}: {error}"),
            }
        }
    }
}
