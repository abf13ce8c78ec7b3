//! Requests and limits as CRI and cgroup values.

use std::collections::BTreeMap;

use cri::v1::{HugepageLimit, LinuxContainerResources};
use k8s_openapi::{
    api::core::v1::{Container, Pod},
    apimachinery::pkg::api::resource::Quantity,
};
use machinery::quantity;
use reconcile::pod_resources::{Field, from_spec};

use super::oom;
use crate::{
    admit::units,
    pod::spec::{self, QosClass},
};

const MIN_SHARES: i64 = 2;
const MAX_SHARES: i64 = 262_144;
const MIN_QUOTA: i64 = 1_000;
/// The prefix of huge page resources, such as `hugepages-2Mi`.
const HUGE_PAGES: &str = "hugepages-";

/// The node's part of the containers' limits.
#[derive(Debug, Clone, Copy)]
pub struct NodeLimits<'a> {
    /// All memory, in bytes.
    pub memory: i64,
    pub cfs: CfsQuota,
    /// The huge page sizes of the kernel, in bytes.
    pub page_sizes: &'a [i64],
    pub memory_rules: MemoryRules,
}

/// How the kernel treats containers whose memory ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryRules {
    pub is_v2: bool,
    /// Whether swap is accounted per cgroup. Then containers do not swap, as with upstream's default `NoSwap`.
    pub accounts_swap: bool,
    /// Whether all processes of a container are killed together, which needs cgroup v2.
    pub kills_all: bool,
}

impl MemoryRules {
    fn apply(self, resources: &mut LinuxContainerResources) {
        match (self.is_v2, self.accounts_swap) {
            (true, true) => set_file(resources, "memory.swap.max", "0"),
            // The limit of memory and swap together.
            (false, true) => {
                resources.memory_swap_limit_in_bytes = resources.memory_limit_in_bytes;
            }
            (_, false) => {}
        }
        if self.is_v2 && self.kills_all {
            set_file(resources, "memory.oom.group", "1");
        }
    }
}

fn set_file(resources: &mut LinuxContainerResources, file: &str, value: &str) {
    resources.unified.insert(file.to_owned(), value.to_owned());
}

/// The CFS quota settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CfsQuota {
    /// If false, cpu limits have no effect.
    pub enforced: bool,
    /// In microseconds.
    pub period: i64,
}

impl Default for CfsQuota {
    fn default() -> Self {
        Self {
            enforced: true,
            period: 100_000,
        }
    }
}

impl CfsQuota {
    /// The quota per period of a cpu limit in millicores; zero without a limit.
    pub fn quota(self, milli: i64) -> i64 {
        if milli == 0 || !self.enforced {
            0
        } else {
            (milli.saturating_mul(self.period) / 1000).max(MIN_QUOTA)
        }
    }
}

/// The cpu shares of a request in millicores.
pub fn shares(milli: i64) -> i64 {
    if milli == 0 {
        MIN_SHARES
    } else {
        (milli.saturating_mul(1024) / 1000).clamp(MIN_SHARES, MAX_SHARES)
    }
}

/// A quantity of a resource list: cpu in millicores, others in their own unit.
fn listed(list: Option<&BTreeMap<String, Quantity>>, resource: &str) -> Option<i64> {
    quantity::units(&list?.get(resource)?.0, resource)
}

/// A container's request or limit.
pub(super) fn amount(container: &Container, list: &str, resource: &str) -> Option<i64> {
    let resources = container.resources.as_ref()?;
    let list = if list == "limits" {
        &resources.limits
    } else {
        &resources.requests
    };
    listed(list.as_ref(), resource)
}

/// The pod-level request or limit.
pub(super) fn amount_of_pod(pod: &Pod, list: &str, resource: &str) -> Option<i64> {
    let resources = spec::spec(pod).resources.as_ref()?;
    let list = if list == "limits" {
        &resources.limits
    } else {
        &resources.requests
    };
    listed(list.as_ref(), resource)
}

/// The pod's overhead.
fn overhead(pod: &Pod, resource: &str) -> i64 {
    listed(spec::spec(pod).overhead.as_ref(), resource).unwrap_or(0)
}

/// A container's resources. Without a limit of its own the pod-level limit applies.
pub fn of_container(
    pod: &Pod,
    container: &Container,
    node: NodeLimits<'_>,
) -> LinuxContainerResources {
    let limit = |resource| {
        let own = amount(container, "limits", resource).filter(|amount| *amount > 0);
        own.or_else(|| amount_of_pod(pod, "limits", resource))
            .unwrap_or(0)
    };
    let request = amount(container, "requests", "cpu");
    let mut resources = LinuxContainerResources {
        oom_score_adj: oom::score(pod, container, node.memory),
        hugepage_limits: huge_pages(pod, container, node.page_sizes),
        ..linux(request, limit("cpu"), limit("memory"), node.cfs)
    };
    node.memory_rules.apply(&mut resources);
    resources
}

/// The sandbox's resources, without and with the pod's overhead.
pub fn of_sandbox(pod: &Pod, cfs: CfsQuota) -> (LinuxContainerResources, LinuxContainerResources) {
    let [requests, limits] = [Field::Requests, Field::Limits]
        .map(|field| from_spec(field, pod).total_without_overhead());
    let own = linux(
        Some(units(&requests, "cpu")).filter(|request| *request > 0),
        units(&limits, "cpu"),
        units(&limits, "memory"),
        cfs,
    );
    let beside = if spec::spec(pod).overhead.is_some() {
        let cpu = overhead(pod, "cpu");
        linux(Some(cpu), cpu, overhead(pod, "memory"), cfs)
    } else {
        LinuxContainerResources::default()
    };
    (own, beside)
}

/// A limit without a request is also the request.
fn linux(request: Option<i64>, cpu: i64, memory: i64, cfs: CfsQuota) -> LinuxContainerResources {
    LinuxContainerResources {
        cpu_period: if cfs.enforced { cfs.period } else { 0 },
        cpu_quota: cfs.quota(cpu),
        cpu_shares: shares(request.unwrap_or(cpu)),
        memory_limit_in_bytes: memory,
        ..Default::default()
    }
}

/// Limits for every page size of the kernel; zero where the container has no limit.
fn huge_pages(pod: &Pod, container: &Container, sizes: &[i64]) -> Vec<HugepageLimit> {
    let limits = sizes.iter().map(|size| {
        let name = page_resource(*size);
        let own = amount(container, "limits", &name);
        let limit = own.or_else(|| amount_of_pod(pod, "limits", &name));
        HugepageLimit {
            page_size: page_name(*size),
            limit: limit
                .and_then(|limit| u64::try_from(limit).ok())
                .unwrap_or(0),
        }
    });
    limits.collect()
}

/// The resource name of a huge page size.
pub fn page_resource(size: i64) -> String {
    format!("{HUGE_PAGES}{}", page_unit(size, ["Ki", "Mi", "Gi"]))
}

/// The kernel's name of a page size, as in the file names of the hugetlb controller.
pub fn page_name(size: i64) -> String {
    page_unit(size, ["KB", "MB", "GB"])
}

fn page_unit(size: i64, units: [&str; 3]) -> String {
    let [kilo, mega, giga] = units;
    if size % (1 << 30) == 0 {
        format!("{}{giga}", size >> 30)
    } else if size % (1 << 20) == 0 {
        format!("{}{mega}", size >> 20)
    } else {
        format!("{}{kilo}", size >> 10)
    }
}

/// The resources of a container that can change while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bounds {
    pub cpu_shares: i64,
    pub cpu_quota: i64,
    pub memory: i64,
    /// The request, which has no effect in a cgroup; `None` if it is unknown.
    pub memory_request: Option<i64>,
}

impl From<&LinuxContainerResources> for Bounds {
    fn from(resources: &LinuxContainerResources) -> Self {
        Self {
            cpu_shares: resources.cpu_shares,
            cpu_quota: resources.cpu_quota.max(0),
            memory: resources.memory_limit_in_bytes.max(0),
            memory_request: None,
        }
    }
}

impl Bounds {
    /// The resources of the spec.
    pub fn wanted(pod: &Pod, container: &Container, cfs: CfsQuota) -> Self {
        let node = NodeLimits {
            memory: 1,
            cfs,
            page_sizes: &[],
            memory_rules: MemoryRules::default(),
        };
        Self {
            memory_request: Some(memory_request(container)),
            ..Self::from(&of_container(pod, container, node))
        }
    }

    /// Whether they are these, as far as they are known.
    pub fn are(&self, wanted: &Self) -> bool {
        let memory_request = self.memory_request.or(wanted.memory_request);
        *wanted
            == Self {
                memory_request,
                ..*self
            }
    }

    /// Whether the memory request is known and another one.
    pub fn requests_other_memory(&self, wanted: &Self) -> bool {
        let own = self.memory_request;
        own.is_some_and(|own| wanted.memory_request != Some(own))
    }

    /// The cpu request that corresponds to the shares, in millicores.
    pub fn cpu_request(&self) -> i64 {
        (self.cpu_shares * 1000 + 1023) / 1024
    }

    /// The cpu limit that corresponds to the quota, in millicores.
    pub fn cpu_limit(&self, cfs: CfsQuota) -> i64 {
        self.cpu_quota.saturating_mul(1000) / cfs.period.max(1)
    }
}

/// A container's memory request in bytes; zero without one.
pub fn memory_request(container: &Container) -> i64 {
    amount(container, "requests", "memory").unwrap_or(0)
}

/// The values of a cgroup above the containers. `None` leaves a value unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodBounds {
    pub cpu_shares: Option<i64>,
    /// Per period; -1 removes the limit.
    pub cpu_quota: Option<i64>,
    /// In microseconds.
    pub cpu_period: i64,
    pub memory: Option<i64>,
    /// Bytes by the kernel's name of a page size.
    pub huge_pages: BTreeMap<String, i64>,
}

/// The limits of a pod's cgroup: pod-level, or the sum of its containers; plus the overhead. A
/// limit exists only if the pod or all of its containers have one.
pub fn of_pod(pod: &Pod, cfs: CfsQuota, page_sizes: &[i64]) -> PodBounds {
    let limits = from_spec(Field::Limits, pod);
    let (limit, requests) = (limits.total(), from_spec(Field::Requests, pod).total());
    let bound = |resource| {
        let sum = Some(units(&limit, resource)).filter(|sum| *sum > 0);
        sum.filter(|_| limits.all_have(resource))
    };
    let pages = page_sizes
        .iter()
        .map(|size| (page_name(*size), units(&requests, &page_resource(*size))));
    let request = match spec::qos_class(pod) {
        QosClass::BestEffort => 0,
        _ => units(&requests, "cpu"),
    };
    let quota = bound("cpu").map(|milli| cfs.quota(milli));
    PodBounds {
        cpu_shares: Some(shares(request)),
        cpu_quota: quota.map(|quota| if cfs.enforced { quota } else { -1 }),
        cpu_period: cfs.period,
        memory: bound("memory"),
        huge_pages: pages.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeLimits<'static> = NodeLimits {
        memory: 4 << 30,
        cfs: CfsQuota {
            enforced: true,
            period: 100_000,
        },
        page_sizes: &[2 << 20, 1 << 30],
        memory_rules: MemoryRules {
            is_v2: false,
            accounts_swap: false,
            kills_all: false,
        },
    };

    #[test]
    fn containers_do_not_swap_and_are_killed_as_a_whole_where_the_kernel_can() {
        let pod = pod(serde_json::json!({"limits": {"memory": "64Mi"}}));
        let made = |is_v2, accounts_swap, kills_all| {
            let memory_rules = MemoryRules {
                is_v2,
                accounts_swap,
                kills_all,
            };
            let node = NodeLimits {
                memory_rules,
                ..NODE
            };
            let made = of_container(&pod, &spec::spec(&pod).containers[0], node);
            let files: Vec<String> = made.unified.into_keys().collect();
            (made.memory_swap_limit_in_bytes, files)
        };
        let files = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        for (rules, expected) in [
            ((false, false, false), (0, files(&[]))),
            ((false, true, true), (64 << 20, files(&[]))),
            ((true, false, true), (0, files(&["memory.oom.group"]))),
            ((true, true, false), (0, files(&["memory.swap.max"]))),
            (
                (true, true, true),
                (0, files(&["memory.oom.group", "memory.swap.max"])),
            ),
        ] {
            let (is_v2, accounts_swap, kills_all) = rules;
            assert_eq!(made(is_v2, accounts_swap, kills_all), expected, "{rules:?}");
        }
    }

    fn bounds(pod: &Pod) -> (Option<i64>, Option<i64>, Option<i64>) {
        let made = of_pod(pod, CfsQuota::default(), &[]);
        (made.cpu_shares, made.cpu_quota, made.memory)
    }

    fn pod(resources: serde_json::Value) -> Pod {
        serde_json::from_value(serde_json::json!({"spec": {"containers": [
            {"name": "a", "resources": resources}]}}))
        .unwrap()
    }

    #[test]
    fn requests_become_shares_and_limits_become_quotas() {
        let pod = pod(
            serde_json::json!({"requests": {"cpu": "250m", "memory": "1Gi"},
            "limits": {"cpu": "500m", "memory": "2Gi"}}),
        );
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let made = of_container(&pod, container, NODE);
        assert_eq!(
            (made.cpu_shares, made.cpu_quota, made.cpu_period),
            (256, 50_000, 100_000)
        );
        assert_eq!(made.memory_limit_in_bytes, 2 << 30);
        assert_eq!(made.oom_score_adj, 750);
        assert_eq!(bounds(&pod), (Some(256), Some(50_000), Some(2 << 30)));
    }

    #[test]
    fn pod_level_resources_hold_for_the_pod_and_for_containers_without_limits() {
        let pod: Pod = serde_json::from_value(serde_json::json!({"spec": {
            "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "memory": "1Gi"}},
            "containers": [{"name": "a", "resources": {"limits": {"memory": "64Mi"}}}, {"name": "b"}]}}))
        .unwrap();
        assert_eq!(bounds(&pod), (Some(1024), Some(200_000), Some(1 << 30)));
        let of = |index: usize| {
            let container = &pod.spec.as_ref().unwrap().containers[index];
            let made = of_container(&pod, container, NODE);
            (made.cpu_quota, made.memory_limit_in_bytes)
        };
        assert_eq!(of(0), (200_000, 64 << 20));
        assert_eq!(of(1), (200_000, 1 << 30));
    }

    #[test]
    fn a_limit_alone_is_also_the_request_and_nothing_is_the_least() {
        let pod1 = pod(serde_json::json!({"limits": {"cpu": "2"}}));
        let made = of_container(&pod1, &pod1.spec.as_ref().unwrap().containers[0], NODE);
        assert_eq!(made.cpu_shares, 2048);
        let pod2 = pod(serde_json::json!({}));
        let made = of_container(&pod2, &pod2.spec.as_ref().unwrap().containers[0], NODE);
        assert_eq!(
            (made.cpu_shares, made.cpu_quota, made.oom_score_adj),
            (2, 0, 1000)
        );
        assert_eq!(bounds(&pod2), (Some(2), None, None));
    }

    #[test]
    fn amounts_beyond_every_machine_do_not_overflow() {
        let half = (i64::MAX / 2 + (1 << 40)).to_string();
        let giant = serde_json::json!({"cpu": half, "memory": half});
        let resources = serde_json::json!({"requests": giant, "limits": giant});
        let pod: Pod = serde_json::from_value(serde_json::json!({"spec": {"containers": [
            {"name": "a", "resources": resources}, {"name": "b", "resources": resources}]}}))
        .unwrap();
        let (shares, _, memory) = bounds(&pod);
        assert_eq!((shares, memory), (Some(MAX_SHARES), Some(i64::MAX)));
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let made = of_container(&pod, container, NODE);
        assert!(made.cpu_quota > 0 && made.memory_limit_in_bytes > 0);
        assert_eq!(crate::admit::request(&pod, "memory"), i64::MAX);
        assert!(Bounds::from(&made).cpu_limit(NODE.cfs) > 0);
    }

    #[test]
    fn the_overhead_widens_the_pods_bounds_and_not_its_containers() {
        let json = |resources: serde_json::Value| {
            serde_json::json!({"spec": {"overhead": {"cpu": "100m", "memory": "32Mi"},
                "containers": [{"name": "a", "resources": resources}]}})
        };
        let limited = json(serde_json::json!({"limits": {"cpu": "1", "memory": "64Mi"},
            "requests": {"cpu": "1", "memory": "64Mi"}}));
        let limited: Pod = serde_json::from_value(limited).unwrap();
        let whole = (Some(1126), Some(110_000), Some(96 << 20));
        assert_eq!(bounds(&limited), whole);
        let container = &limited.spec.as_ref().unwrap().containers[0];
        assert_eq!(
            of_container(&limited, container, NODE).memory_limit_in_bytes,
            64 << 20
        );
        let (own, beside) = of_sandbox(&limited, CfsQuota::default());
        assert_eq!(
            (own.memory_limit_in_bytes, beside.memory_limit_in_bytes),
            (64 << 20, 32 << 20)
        );
        assert_eq!((own.cpu_shares, beside.cpu_shares), (1024, 102));
        // Overhead does not create a limit; a BestEffort pod has the minimum shares.
        let free: Pod = serde_json::from_value(json(serde_json::json!({}))).unwrap();
        assert_eq!(bounds(&free), (Some(2), None, None));
    }

    #[test]
    fn huge_pages_are_limited_to_the_limits_of_the_container() {
        let pod = pod(
            serde_json::json!({"requests": {"cpu": "1", "hugepages-2Mi": "4Mi"},
            "limits": {"cpu": "1", "hugepages-2Mi": "4Mi"}}),
        );
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let limits = of_container(&pod, container, NODE).hugepage_limits;
        let limits: Vec<_> = limits
            .iter()
            .map(|page| (page.page_size.as_str(), page.limit))
            .collect();
        assert_eq!(limits, [("2MB", 4 << 20), ("1GB", 0)]);
        let made = of_pod(&pod, CfsQuota::default(), NODE.page_sizes);
        assert_eq!(
            made.huge_pages,
            [("1GB".to_owned(), 0), ("2MB".to_owned(), 4 << 20)].into()
        );
        assert_eq!(page_resource(64 << 10), "hugepages-64Ki");
    }

    #[test]
    fn a_node_may_set_another_period_or_no_quota_at_all() {
        let pod = pod(serde_json::json!({"limits": {"cpu": "500m", "memory": "1Gi"}}));
        let container = &pod.spec.as_ref().unwrap().containers[0];
        for (cfs, expected, of_the_pod) in [
            ((true, 10_000), (5_000, 10_000), 5_000),
            ((false, 100_000), (0, 0), -1),
        ] {
            let cfs = CfsQuota {
                enforced: cfs.0,
                period: cfs.1,
            };
            let made = of_container(&pod, container, NodeLimits { cfs, ..NODE });
            assert_eq!((made.cpu_quota, made.cpu_period), expected);
            assert_eq!(of_pod(&pod, cfs, &[]).cpu_quota, Some(of_the_pod));
        }
    }
}
