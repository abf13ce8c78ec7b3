//! The number of replicas that one metric proposes. Pure. All values are in thousandths, as
//! Kubernetes compares metrics.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use machinery::quantity::Quantity;
use reconcile::pod_resources::{Field, from_spec};

use crate::pods::{condition, is_deleting, is_ready, phase};

/// CPU samples of a pod that is not ready are ignored for this long after its start.
const CPU_INITIALIZATION_PERIOD: Duration = Duration::from_secs(300);
/// A pod that became unready within this time of its start was never ready.
const INITIAL_READINESS_DELAY: Duration = Duration::from_secs(30);

/// A metric sample of one pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sample {
    /// The end of its window.
    pub(super) timestamp: Timestamp,
    /// The length of its window.
    pub(super) window: Duration,
    /// Thousandths of a unit.
    pub(super) value: i64,
}

/// Samples by pod name.
pub(super) type Samples = BTreeMap<String, Sample>;

/// The allowed deviation of the ratio of usage to target from one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Tolerances {
    pub(super) scale_down: f64,
    pub(super) scale_up: f64,
}

impl Default for Tolerances {
    fn default() -> Self {
        Self {
            scale_down: 0.1,
            scale_up: 0.1,
        }
    }
}

impl Tolerances {
    fn holds(self, ratio: f64) -> bool {
        (1.0 - self.scale_down..=1.0 + self.scale_up).contains(&ratio)
    }
}

/// The scale target.
pub(super) struct Workload<'a> {
    /// `spec.replicas` of the scale subresource.
    pub(super) spec_replicas: i32,
    /// `status.replicas` of the scale subresource.
    pub(super) status_replicas: i32,
    /// The pods that its selector matches.
    pub(super) pods: &'a [Arc<Pod>],
    pub(super) tolerances: Tolerances,
    pub(super) now: Timestamp,
}

/// A metric's proposal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Proposal {
    pub(super) replicas: i32,
    /// The average per pod, or the whole value for a target of type Value; in thousandths.
    pub(super) usage: i64,
    /// The utilization in percent, for a target of type Utilization.
    pub(super) utilization: Option<i32>,
}

/// Proposes by utilization: percent of the requests of the pods, or of one container of each.
pub(super) fn by_utilization(
    workload: &Workload<'_>,
    samples: Samples,
    resource: &str,
    container: Option<&str>,
    target: i32,
) -> Result<Proposal, String> {
    let mut groups = Groups::new(workload, samples, resource)?;
    let requests = requests(workload.pods, container, resource)?;
    let (ratio, utilization, average) = utilization_ratio(&groups.samples, &requests, target)?;
    let proposal = |replicas| Proposal {
        replicas,
        usage: average,
        utilization: Some(utilization),
    };
    if let Some(replicas) = groups.direct(workload, ratio) {
        return Ok(proposal(replicas));
    }
    // Pods without samples are assumed to use what scales least.
    let fallback = i64::from(target.max(100));
    groups.fill(ratio, |pod| {
        let request = requests.get(pod).copied().unwrap_or(0);
        request.saturating_mul(fallback) / 100
    });
    let (corrected, ..) = utilization_ratio(&groups.samples, &requests, target)?;
    Ok(proposal(groups.corrected(workload, ratio, corrected)))
}

/// Proposes by the average value of a resource or a custom metric of pods.
pub(super) fn by_average_value(
    workload: &Workload<'_>,
    samples: Samples,
    resource: &str,
    target: i64,
) -> Result<Proposal, String> {
    let mut groups = Groups::new(workload, samples, resource)?;
    let (ratio, usage) = usage_ratio(&groups.samples, target);
    let proposal = |replicas| Proposal {
        replicas,
        usage,
        utilization: None,
    };
    if let Some(replicas) = groups.direct(workload, ratio) {
        return Ok(proposal(replicas));
    }
    groups.fill(ratio, |_| target);
    let (corrected, _) = usage_ratio(&groups.samples, target);
    Ok(proposal(groups.corrected(workload, ratio, corrected)))
}

/// Proposes by the whole value of an object or external metric.
pub(super) fn by_value(
    workload: &Workload<'_>,
    usage: i64,
    target: i64,
) -> Result<Proposal, String> {
    let ratio = usage as f64 / target as f64;
    let replicas = if workload.spec_replicas == 0 {
        ceil(ratio)
    } else if workload.tolerances.holds(ratio) {
        workload.spec_replicas
    } else {
        if workload.pods.is_empty() {
            return Err(format!("unable to calculate ready pods: {NO_PODS}"));
        }
        let ready = workload.pods.iter();
        let ready = ready.filter(|pod| phase(pod) == "Running" && is_ready(pod));
        ceil(ratio * ready.count() as f64)
    };
    Ok(Proposal {
        replicas,
        usage,
        utilization: None,
    })
}

/// Proposes by the value per replica of an object or external metric.
pub(super) fn by_value_per_pod(workload: &Workload<'_>, usage: i64, target: i64) -> Proposal {
    let current = f64::from(workload.status_replicas);
    let ratio = usage as f64 / (target as f64 * current);
    let replicas = if workload.tolerances.holds(ratio) {
        workload.status_replicas
    } else {
        ceil(usage as f64 / target as f64)
    };
    Proposal {
        replicas,
        usage: (usage as f64 / current).ceil() as i64,
        utilization: None,
    }
}

/// The sum of an external metric's values; it saturates.
pub(super) fn total(values: impl IntoIterator<Item = i64>) -> i64 {
    values.into_iter().fold(0, i64::saturating_add)
}

const NO_PODS: &str = "no pods returned by selector while calculating replica count";

/// Rounds up; a value out of range saturates.
fn ceil(replicas: f64) -> i32 {
    replicas.ceil() as i32
}

/// The pods of a workload, by whether their samples count.
struct Groups {
    /// Samples of ready pods.
    samples: Samples,
    ready: usize,
    unready: BTreeSet<String>,
    missing: BTreeSet<String>,
}

impl Groups {
    fn new(workload: &Workload<'_>, samples: Samples, resource: &str) -> Result<Self, String> {
        if workload.pods.is_empty() {
            return Err(NO_PODS.to_owned());
        }
        let mut groups = Self {
            samples,
            ready: 0,
            unready: BTreeSet::new(),
            missing: BTreeSet::new(),
        };
        for pod in workload.pods {
            groups.sort_in(pod, resource, workload.now);
        }
        if groups.samples.is_empty() {
            return Err(
                "did not receive metrics for targeted pods (pods might be unready)".to_owned(),
            );
        }
        Ok(groups)
    }

    fn sort_in(&mut self, pod: &Pod, resource: &str, now: Timestamp) {
        let name = pod.metadata.name.clone().unwrap_or_default();
        if is_deleting(pod) || phase(pod) == "Failed" {
            self.samples.remove(&name);
            return;
        }
        let pending = phase(pod) == "Pending";
        match self.samples.get(&name) {
            None if !pending => {
                self.missing.insert(name);
            }
            Some(sample) if !pending && (resource != "cpu" || !is_warming_up(pod, sample, now)) => {
                self.ready += 1;
            }
            _ => {
                self.samples.remove(&name);
                self.unready.insert(name);
            }
        }
    }

    fn scales_up_with_unready(&self, ratio: f64) -> bool {
        !self.unready.is_empty() && ratio > 1.0
    }

    /// The proposal if every relevant pod has a sample.
    fn direct(&self, workload: &Workload<'_>, ratio: f64) -> Option<i32> {
        if self.scales_up_with_unready(ratio) || !self.missing.is_empty() {
            return None;
        }
        if workload.tolerances.holds(ratio) {
            return Some(workload.spec_replicas);
        }
        Some(ceil(ratio * self.ready as f64))
    }

    /// Assumes values for pods without samples that work against the change.
    fn fill(&mut self, ratio: f64, when_shrinking: impl Fn(&str) -> i64) {
        let assumed = |value| Sample {
            timestamp: Timestamp::UNIX_EPOCH,
            window: Duration::ZERO,
            value,
        };
        let mut filled = Samples::new();
        for pod in &self.missing {
            if ratio < 1.0 {
                filled.insert(pod.clone(), assumed(when_shrinking(pod)));
            } else if ratio > 1.0 {
                filled.insert(pod.clone(), assumed(0));
            }
        }
        if self.scales_up_with_unready(ratio) {
            let unready = self.unready.iter();
            filled.extend(unready.map(|pod| (pod.clone(), assumed(0))));
        }
        self.samples.extend(filled);
    }

    /// The proposal after [`Self::fill`]; unchanged if the direction would reverse.
    fn corrected(&self, workload: &Workload<'_>, ratio: f64, corrected: f64) -> i32 {
        let current = workload.spec_replicas;
        let turned = (ratio < 1.0 && corrected > 1.0) || (ratio > 1.0 && corrected < 1.0);
        if workload.tolerances.holds(corrected) || turned {
            return current;
        }
        let replicas = ceil(corrected * self.samples.len() as f64);
        let wrong_way =
            (corrected < 1.0 && replicas > current) || (corrected > 1.0 && replicas < current);
        if wrong_way { current } else { replicas }
    }
}

/// Whether a pod may still be starting, so that its CPU usage does not count.
fn is_warming_up(pod: &Pod, sample: &Sample, now: Timestamp) -> bool {
    let started = pod.status.as_ref();
    let started = started.and_then(|status| status.start_time.as_ref());
    let (Some(ready), Some(started)) = (condition(pod, "Ready"), started) else {
        return true;
    };
    let unready = ready.status == "False";
    let changed = ready.last_transition_time.as_ref();
    let changed = changed.map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    // Nodes and metrics servers may report any time.
    let after = |time: Timestamp, wait: Duration| {
        let later = time.checked_add(wait);
        later.unwrap_or(Timestamp::MAX)
    };
    if after(started.0, CPU_INITIALIZATION_PERIOD) > now {
        unready || sample.timestamp < after(changed, sample.window)
    } else {
        unready && after(started.0, INITIAL_READINESS_DELAY) > changed
    }
}

/// Ratio to the target, utilization in percent, and the average value.
fn utilization_ratio(
    samples: &Samples,
    requests: &BTreeMap<String, i64>,
    target: i32,
) -> Result<(f64, i32, i64), String> {
    let known = samples.iter();
    let known = known.filter_map(|(pod, sample)| Some((sample.value, *requests.get(pod)?)));
    let (mut used, mut requested, mut count) = (0_i64, 0_i64, 0_i64);
    for (value, request) in known {
        used = used.saturating_add(value);
        requested = requested.saturating_add(request);
        count += 1;
    }
    if requested == 0 {
        return Err("no metrics returned matched known pods".to_owned());
    }
    let percent = i128::from(used) * 100 / i128::from(requested);
    let percent = i32::try_from(percent).unwrap_or(i32::MAX);
    let ratio = f64::from(percent) / f64::from(target);
    Ok((ratio, percent, used / count))
}

/// Ratio to the target, and the average value.
fn usage_ratio(samples: &Samples, target: i64) -> (f64, i64) {
    let used = total(samples.values().map(|sample| sample.value));
    let average = used / i64::try_from(samples.len().max(1)).unwrap_or(i64::MAX);
    (average as f64 / target as f64, average)
}

/// Each pod's request of a resource, in thousandths. A missing request is an error, since the
/// utilization is unknown.
fn requests(
    pods: &[Arc<Pod>],
    container: Option<&str>,
    resource: &str,
) -> Result<BTreeMap<String, i64>, String> {
    let mut requests = BTreeMap::new();
    for pod in pods {
        let name = pod.metadata.name.clone().unwrap_or_default();
        let resources = from_spec(Field::Requests, pod);
        let request = match container {
            None if !resources.pod_level.spec.is_empty() => {
                let total = resources.total().get(resource).copied();
                let missing = || format!("missing pod-level request for {resource} in Pod {name}");
                total.ok_or_else(missing)?.millis()
            }
            _ => container_requests(pod, &name, container, resource)?,
        };
        requests.insert(name, request);
    }
    Ok(requests)
}

fn millis(text: &str) -> i64 {
    text.parse::<Quantity>().map_or(0, Quantity::millis)
}

fn container_requests(
    pod: &Pod,
    name: &str,
    wanted: Option<&str>,
    resource: &str,
) -> Result<i64, String> {
    let spec = pod.spec.iter();
    let sidecars = spec.clone().flat_map(|spec| spec.init_containers.iter());
    let sidecars = sidecars.flatten();
    let sidecars = sidecars.filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let containers = spec.flat_map(|spec| spec.containers.iter()).chain(sidecars);
    let request = |container: &Container| {
        let requests = container.resources.as_ref()?.requests.as_ref()?;
        Some(millis(&requests.get(resource)?.0))
    };
    let missing = |container: &Container| {
        let container = &container.name;
        format!("missing request for {resource} in container {container} of Pod {name}")
    };
    let mut sum = 0;
    for container in containers {
        match wanted {
            Some(wanted) if wanted != container.name => continue,
            Some(_) => return request(container).ok_or_else(|| missing(container)),
            None => {
                let more = request(container).ok_or_else(|| missing(container))?;
                sum = i64::saturating_add(sum, more);
            }
        }
    }
    match wanted {
        Some(wanted) => Err(format!("container {wanted} not found in Pod {name}")),
        None => Ok(sum),
    }
}
