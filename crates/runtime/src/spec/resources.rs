//! The resource limits of a container.

use cri::v1::{LinuxContainerResources, LinuxContainerSecurityContext};
use serde_json::{Value, json};

use super::{Inputs, devices};
use crate::{
    cgroup::{Cgroup, Hierarchies},
    error::Result,
};

pub(super) fn resources(
    inputs: &Inputs<'_>,
    security: &LinuxContainerSecurityContext,
) -> Result<Value> {
    let wanted = inputs
        .config
        .linux
        .as_ref()
        .and_then(|linux| linux.resources.clone());
    let mut resources = limits(&wanted.unwrap_or_default());
    resources["devices"] = json!(devices::rules(inputs, security)?);
    Ok(resources)
}

/// CRI's resources in the OCI form; zero and empty values are omitted.
pub(crate) fn limits(r: &LinuxContainerResources) -> Value {
    let mut cpu = json!({});
    for (name, value) in [
        ("shares", r.cpu_shares),
        ("quota", r.cpu_quota),
        ("period", r.cpu_period),
    ] {
        if value != 0 {
            cpu[name] = json!(value);
        }
    }
    for (name, value) in [("cpus", &r.cpuset_cpus), ("mems", &r.cpuset_mems)] {
        if !value.is_empty() {
            cpu[name] = json!(value);
        }
    }
    let mut memory = json!({});
    if r.memory_limit_in_bytes != 0 {
        memory["limit"] = json!(r.memory_limit_in_bytes);
    }
    if r.memory_swap_limit_in_bytes != 0 && accounts_swap() {
        memory["swap"] = json!(r.memory_swap_limit_in_bytes);
    }
    let mut resources = json!({ "cpu": cpu, "memory": memory });
    let pages: Vec<_> = r
        .hugepage_limits
        .iter()
        .filter(|page| page.limit > 0 || has_pages(&page.page_size))
        .collect();
    if !pages.is_empty() {
        let limits = pages
            .iter()
            .map(|p| json!({ "pageSize": p.page_size, "limit": p.limit }));
        resources["hugepageLimits"] = limits.collect();
    }
    if !r.unified.is_empty() && Hierarchies::host().is_unified() {
        resources["unified"] = json!(r.unified);
    }
    resources
}

/// Whether the kernel accounts swap per cgroup.
fn accounts_swap() -> bool {
    let root = Cgroup::new("");
    let file = if Hierarchies::host().is_unified() {
        // The root has no limits; any cgroup below it shows whether they exist.
        return root.dir("memory").is_some();
    } else {
        "memory.memsw.limit_in_bytes"
    };
    root.dir("memory")
        .is_some_and(|dir| dir.join(file).exists())
}

/// Whether the kernel limits pages of this size per cgroup: only then can a limit of zero be set.
fn has_pages(size: &str) -> bool {
    let unified = Hierarchies::host().is_unified();
    let Some(dir) = Cgroup::new("").dir("hugetlb") else {
        return false;
    };
    if unified {
        let controllers = std::fs::read_to_string(dir.join("cgroup.controllers"));
        controllers.is_ok_and(|names| names.split_whitespace().any(|name| name == "hugetlb"))
    } else {
        dir.join(format!("hugetlb.{size}.limit_in_bytes")).exists()
    }
}
