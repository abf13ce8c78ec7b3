//! HorizontalPodAutoscaler: computes the size of a workload from its metrics every fifteen seconds,
//! and sets it in the scale subresource, within bounds, scaling policies and stabilization windows.
//! The calculation ([`calculator`]) and the limits ([`behavior`]) are pure.

mod behavior;
mod calculator;
mod metrics;
mod rivals;
mod status;
#[cfg(test)]
mod tests;

use std::{
    cmp::Ordering,
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use client::Informer;
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        autoscaling::{
            v1::Scale,
            v2::{
                HorizontalPodAutoscaler, HorizontalPodAutoscalerSpec,
                HorizontalPodAutoscalerStatus, MetricSpec, MetricStatus,
            },
        },
        core::v1::Pod,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use machinery::labels::Selector;
use parking_lot::Mutex;
use reconcile::{Action, Controller, Error, Key, Kind, Recorder, Writer};

use self::{
    behavior::{Bounds, History},
    calculator::{Proposal, Tolerances, Workload},
    metrics::{MetricsClient, millis},
    rivals::Selectors,
    status::set_condition,
};
use crate::{
    discovery::Resource,
    scaletargets::{self, Targets},
    shared::{Shared, labelled_in},
};

/// The name in [`crate::ALL`].
pub const NAME: &str = "horizontal-pod-autoscaler";
const ACCOUNT: &str = "horizontal-pod-autoscaler";
/// How often an autoscaler is evaluated.
const PERIOD: Duration = Duration::from_secs(15);

struct Autoscalers {
    shared: Arc<Shared>,
    autoscalers: Writer<HorizontalPodAutoscaler>,
    pods: Informer<Pod>,
    metrics: MetricsClient,
    targets: Targets,
    recorder: Recorder,
    /// Guards the state of each autoscaler; never held across an await.
    memory: Mutex<HashMap<Key, Memory>>,
    /// Guards the selectors of all autoscalers; never held across an await.
    selectors: Mutex<Selectors>,
}

/// An autoscaler's state between two evaluations.
#[derive(Default)]
struct Memory {
    history: History,
    /// The spec and time of the last evaluation.
    seen: Option<(HorizontalPodAutoscalerSpec, Timestamp)>,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Autoscalers {
        shared: shared.clone(),
        autoscalers: shared.writer(ACCOUNT),
        pods: shared.informer(),
        metrics: MetricsClient::new(shared.client(ACCOUNT)),
        targets: Targets::new(shared.client(ACCOUNT)),
        recorder: shared.recorder(ACCOUNT, "horizontal-pod-autoscaler"),
        memory: Mutex::default(),
        selectors: Mutex::default(),
    });
    shared
        .controller(&controller)
        .watches(controller.autoscalers.cache())
        .reads(&controller.pods)
        .workers(5)
        .start();
}

impl Controller for Autoscalers {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let metrics = &self.shared.metrics;
        let this = [("namespace", &*key.namespace), ("hpa_name", &*key.name)];
        let count = self.autoscalers.cache().count();
        metrics.autoscalers.set([], count);
        let Some(autoscaler) = self.autoscalers.cache().get(&key.namespace, &key.name) else {
            self.memory.lock().remove(key);
            self.selectors.lock().remove(key);
            metrics.autoscaler_replicas.remove(this);
            return Ok(Action::Done);
        };
        if let Some(wait) = self.wait(key, &autoscaler) {
            return Ok(Action::After(wait));
        }
        let mut look = Look {
            controller: self,
            key,
            spec: autoscaler.spec.clone(),
            about: kube::Resource::object_ref(&*autoscaler, &()),
            status: autoscaler.status.clone().unwrap_or_default(),
            now: self.shared.now(),
            labels: Labels::default(),
        };
        let begun = Instant::now();
        look.run().await;
        let Labels { action, error } = look.labels;
        let desired = usize::try_from(look.status.desired_replicas).unwrap_or(0);
        metrics.autoscaler_replicas.set(this, desired);
        let written = self.write_status(&autoscaler, look.status).await;
        let error = if written.is_ok() { error } else { "internal" };
        let by = [("action", action), ("error", error)];
        metrics.autoscaler_syncs.add(by, 1);
        metrics.autoscaler_seconds.took(by, begun.elapsed());
        written?;
        Ok(Action::After(PERIOD))
    }
}

impl Autoscalers {
    async fn write_status(
        &self,
        autoscaler: &HorizontalPodAutoscaler,
        status: HorizontalPodAutoscalerStatus,
    ) -> Result<(), Error> {
        let status = Some(status);
        if status == autoscaler.status {
            return Ok(());
        }
        let namespace = autoscaler.metadata.namespace.as_deref();
        let updated = HorizontalPodAutoscaler {
            status,
            ..autoscaler.clone()
        };
        let namespace = namespace.unwrap_or_default();
        self.autoscalers.update_status(namespace, &updated).await?;
        Ok(())
    }

    /// How long to wait for the next evaluation: until the period is over, unless the spec changed.
    fn wait(&self, key: &Key, autoscaler: &HorizontalPodAutoscaler) -> Option<Duration> {
        let now = self.shared.now();
        let spec = autoscaler.spec.clone();
        let mut memory = self.memory.lock();
        let memory = memory.entry(key.clone()).or_default();
        if let Some((seen, when)) = &memory.seen {
            let due = *when + PERIOD;
            if *seen == spec && due > now {
                return Duration::try_from(due.duration_since(now)).ok();
            }
        }
        memory.seen = Some((spec, now));
        None
    }
}

/// One evaluation of one autoscaler; updates the status on the way.
struct Look<'a> {
    controller: &'a Autoscalers,
    key: &'a Key,
    spec: HorizontalPodAutoscalerSpec,
    about: k8s_openapi::api::core::v1::ObjectReference,
    status: HorizontalPodAutoscalerStatus,
    now: Timestamp,
    labels: Labels,
}

/// What an evaluation, or the computation of one metric, came to, as metrics name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Labels {
    action: &'static str,
    error: &'static str,
}

impl Default for Labels {
    fn default() -> Self {
        Self {
            action: "none",
            error: "none",
        }
    }
}

impl Labels {
    /// The computation of one metric of a workload whose status had `current` replicas.
    fn of_metric(outcome: &Result<(Proposal, String), Failure>, current: i32) -> Self {
        match outcome {
            Ok((proposal, _)) => Self {
                action: direction(current, proposal.replicas),
                error: "none",
            },
            Err((reason, _)) => Self {
                action: "none",
                error: if *reason == UNKNOWN_METRIC {
                    "spec"
                } else {
                    "internal"
                },
            },
        }
    }
}

fn direction(from: i32, to: i32) -> &'static str {
    match to.cmp(&from) {
        Ordering::Greater => "scale_up",
        Ordering::Less => "scale_down",
        Ordering::Equal => "none",
    }
}

/// The reason of the condition if a metric has a type that does not exist.
const UNKNOWN_METRIC: &str = "InvalidMetricSourceType";

/// Why a metric has no value: reason and message of the condition.
type Failure = (&'static str, String);

impl Look<'_> {
    async fn run(&mut self) {
        let target = self.spec.scale_target_ref.clone();
        let found = self.target(&target).await;
        let (resource, scale) = match found {
            Ok(found) => found,
            Err(error) => {
                self.labels.error = if scaletargets::is_version(&target) {
                    "internal"
                } else {
                    "spec"
                };
                self.warn("FailedGetScale", &error);
                let message = format!(
                    "the HPA controller was unable to get the target's current scale: {error}"
                );
                self.condition("AbleToScale", false, ("FailedGetScale", &message));
                return;
            }
        };
        let message = "the HPA controller was able to get the target's current scale";
        self.condition("AbleToScale", true, ("SucceededGetScale", message));
        let current = scale
            .spec
            .as_ref()
            .and_then(|spec| spec.replicas)
            .unwrap_or(0);
        self.remembered(|history, now| history.begin(current, now));
        let (desired, reason, metrics) = match self.desired(&scale, current).await {
            Ok(outcome) => outcome,
            Err((error, metrics)) => {
                let last = self.status.desired_replicas;
                self.sizes(current, last, metrics);
                self.labels.error = "internal";
                self.warn("FailedComputeMetricsReplicas", &error);
                return;
            }
        };
        if desired != current {
            if let Err(error) = self
                .rescale(&resource, scale, (current, desired), &reason)
                .await
            {
                let last = self.status.desired_replicas;
                self.sizes(current, last, metrics);
                self.labels.error = "internal";
                let message =
                    format!("the HPA controller was unable to update the target scale: {error}");
                self.condition("AbleToScale", false, ("FailedUpdateScale", &message));
                return;
            }
            self.labels.action = direction(current, desired);
            self.status.last_scale_time = Some(Time(self.now));
        }
        self.sizes(current, desired, metrics);
    }

    async fn target(
        &self,
        target: &k8s_openapi::api::autoscaling::v2::CrossVersionObjectReference,
    ) -> Result<(Resource, Scale), String> {
        let targets = &self.controller.targets;
        let version = target.api_version.as_deref().unwrap_or_default();
        let resource = targets.resource(version, &target.kind, self.now).await?;
        let scale = targets.scale(&resource, &self.key.namespace, &target.name);
        let scale = scale.await.map_err(|error| text(&error))?;
        Ok((resource, scale))
    }

    /// The desired size, the reason, and the metrics' status.
    async fn desired(
        &mut self,
        scale: &Scale,
        current: i32,
    ) -> Result<(i32, String, Option<Vec<MetricStatus>>), (String, Option<Vec<MetricStatus>>)> {
        let (min, max) = (self.spec.min_replicas.unwrap_or(1), self.spec.max_replicas);
        if current == 0 {
            let message = "scaling is disabled since the replica count of the target is zero";
            self.condition("ScalingActive", false, ("ScalingDisabled", message));
            return Ok((0, String::new(), None));
        }
        if current > max {
            let reason = "Current number of replicas above Spec.MaxReplicas";
            return Ok((max, reason.to_owned(), None));
        }
        if current < min {
            let reason = "Current number of replicas below Spec.MinReplicas";
            return Ok((min, reason.to_owned(), None));
        }
        let (proposed, metric, metrics) = self.by_metrics(scale, current).await?;
        let reason = if proposed > current {
            format!("{metric} above target")
        } else {
            "All metrics below target".to_owned()
        };
        let bounds = Bounds {
            min,
            max,
            current,
            desired: proposed,
        };
        let behavior = self.spec.behavior.clone();
        let decision =
            self.remembered(|history, now| history.decide(bounds, behavior.as_ref(), now));
        self.condition("AbleToScale", true, decision.able_to_scale);
        self.condition("ScalingLimited", decision.limited, decision.limit);
        Ok((decision.replicas, reason, Some(metrics)))
    }

    /// The largest size that a metric proposes. If metrics fail, the others may only scale up.
    async fn by_metrics(
        &mut self,
        scale: &Scale,
        current: i32,
    ) -> Result<(i32, String, Vec<MetricStatus>), (String, Option<Vec<MetricStatus>>)> {
        let (selector, pods) = self.pods(scale).map_err(|error| (error, None))?;
        let workload = Workload {
            spec_replicas: current,
            status_replicas: scale.status.as_ref().map_or(0, |status| status.replicas),
            pods: &pods,
            tolerances: tolerances(&self.spec),
            now: self.now,
        };
        let specs = self.spec.metrics.clone().unwrap_or_default();
        let mut best: Option<(i32, String)> = None;
        let mut statuses = Vec::with_capacity(specs.len());
        let mut failures: Vec<Failure> = Vec::new();
        for spec in &specs {
            let begun = Instant::now();
            let outcome = self.propose(spec, &workload, &selector).await;
            self.count(spec, &outcome, begun.elapsed());
            match outcome {
                Ok((proposal, name)) => {
                    statuses.push(status::metric(spec, &proposal));
                    if best
                        .as_ref()
                        .is_none_or(|(replicas, _)| proposal.replicas > *replicas)
                    {
                        best = Some((proposal.replicas, name));
                    }
                }
                Err((reason, error)) => {
                    self.warn(reason, &error);
                    statuses.push(MetricStatus::default());
                    failures.push((reason, error));
                }
            }
        }
        if !failures.is_empty() {
            self.labels.error = "internal";
        }
        let shrinks = best
            .as_ref()
            .is_none_or(|(replicas, _)| *replicas < current);
        match (best, failures.first()) {
            (Some((replicas, name)), failed) if failed.is_none() || !shrinks => {
                let message = format!(
                    "the HPA was able to successfully calculate a replica count from {name}"
                );
                self.condition("ScalingActive", true, ("ValidMetricFound", &message));
                Ok((replicas, name, statuses))
            }
            (_, failed) => {
                let (reason, error) = failed.cloned().unwrap_or_default();
                let message = format!("the HPA was unable to compute the replica count: {error}");
                self.condition("ScalingActive", false, (reason, &message));
                let error = format!(
                    "invalid metrics ({} invalid out of {}), first error is: {error}",
                    failures.len(),
                    specs.len(),
                );
                Err((error, Some(statuses)))
            }
        }
    }

    /// Counts the computation of one metric.
    fn count(
        &self,
        spec: &MetricSpec,
        outcome: &Result<(Proposal, String), Failure>,
        took: Duration,
    ) {
        let current = self.status.current_replicas.unwrap_or(0);
        let Labels { action, error } = Labels::of_metric(outcome, current);
        let metrics = &self.controller.shared.metrics;
        let by = [
            ("action", action),
            ("error", error),
            ("metric_type", &*spec.type_),
        ];
        metrics.autoscaler_metrics.add(by, 1);
        metrics.autoscaler_metric_seconds.took(by, took);
    }

    /// The target's selector and its pods; fails if another autoscaler selects them, too.
    fn pods(&mut self, scale: &Scale) -> Result<(Selector, Vec<Arc<Pod>>), String> {
        let text = scale.status.as_ref();
        let text = text
            .and_then(|status| status.selector.as_deref())
            .unwrap_or_default();
        if text.is_empty() {
            self.warn("SelectorRequired", "selector is required");
            let message = "the HPA target's scale is missing a selector";
            self.condition("ScalingActive", false, ("InvalidSelector", message));
            return Err("selector is required".to_owned());
        }
        let selector = match Selector::parse(text) {
            Ok(selector) => selector,
            Err(error) => {
                let message = format!(
                    "couldn't convert selector into a corresponding internal selector object: {error}"
                );
                self.warn("InvalidSelector", &message);
                self.condition("ScalingActive", false, ("InvalidSelector", &message));
                return Err(message);
            }
        };
        let namespace = &self.key.namespace;
        let required = selector.requirements().iter().filter_map(|requirement| {
            let value = selector.exact(&requirement.key)?;
            Some((requirement.key.as_str(), value))
        });
        let pods = labelled_in(&self.controller.pods, namespace, required, |pod| {
            selector.matches(|label| pod.label(label))
        });
        let rivals = {
            let mut selectors = self.controller.selectors.lock();
            selectors.set(self.key, &selector);
            selectors.rivals(self.key, &pods)
        };
        if rivals.is_empty() {
            return Ok((selector, pods));
        }
        let message = format!(
            "pods by selector {text} are controlled by multiple HPAs: [{} {}]",
            self.key,
            rivals.join(" "),
        );
        self.warn("AmbiguousSelector", &message);
        self.condition("ScalingActive", false, ("AmbiguousSelector", &message));
        Err(message)
    }

    /// One metric's proposal, and its name in messages.
    async fn propose(
        &self,
        spec: &MetricSpec,
        workload: &Workload<'_>,
        selector: &Selector,
    ) -> Result<(Proposal, String), Failure> {
        if let Some(source) = &spec.resource {
            let target = (&source.target, source.name.as_str(), None);
            let proposal = self.resource(target, workload, selector).await;
            let name = match source.target.average_value {
                Some(_) => format!("{} resource", source.name),
                None => format!(
                    "{} resource utilization (percentage of request)",
                    source.name
                ),
            };
            let failed = |error| ("FailedGetResourceMetric", error);
            return Ok((proposal.map_err(failed)?, name));
        }
        if let Some(source) = &spec.container_resource {
            let target = (
                &source.target,
                source.name.as_str(),
                Some(&*source.container),
            );
            let proposal = self.resource(target, workload, selector).await;
            let name = match source.target.average_value {
                Some(_) => format!("{} resource", source.name),
                None => format!(
                    "{} container resource utilization (percentage of request)",
                    source.name
                ),
            };
            let failed = |error| ("FailedGetContainerResourceMetric", error);
            return Ok((proposal.map_err(failed)?, name));
        }
        if let Some(source) = &spec.pods {
            let failed = |error| ("FailedGetPodsMetric", error);
            let namespace = &self.key.namespace;
            let samples = self
                .controller
                .metrics
                .pods(&source.metric, namespace, selector);
            let samples = samples.await.map_err(failed)?;
            let target = source.target.average_value.as_ref().map_or(0, millis);
            let proposal = calculator::by_average_value(workload, samples, "", target);
            let name = format!("pods metric {}", source.metric.name);
            return Ok((proposal.map_err(failed)?, name));
        }
        if let Some(source) = &spec.object {
            let failed = |error| ("FailedGetObjectMetric", error);
            let usage = self.object(source).await.map_err(failed)?;
            let proposal = by_target_value(workload, &source.target, usage).map_err(failed)?;
            let (kind, metric) = (&source.described_object.kind, &source.metric.name);
            return Ok((proposal, format!("{kind} metric {metric}")));
        }
        if let Some(source) = &spec.external {
            let failed = |error| ("FailedGetExternalMetric", error);
            let namespace = &self.key.namespace;
            let values = self
                .controller
                .metrics
                .external(&source.metric, namespace)
                .await;
            let usage = calculator::total(values.map_err(failed)?);
            let proposal = by_target_value(workload, &source.target, usage).map_err(failed)?;
            return Ok((proposal, format!("external metric {}", source.metric.name)));
        }
        let message = format!("unknown metric source type \"{}\"", spec.type_);
        Err((UNKNOWN_METRIC, message))
    }

    async fn resource(
        &self,
        (target, resource, container): (
            &k8s_openapi::api::autoscaling::v2::MetricTarget,
            &str,
            Option<&str>,
        ),
        workload: &Workload<'_>,
        selector: &Selector,
    ) -> Result<Proposal, String> {
        let namespace = &self.key.namespace;
        let metrics = &self.controller.metrics;
        let samples = metrics.resource(resource, namespace, selector, container);
        if let Some(value) = &target.average_value {
            let usage = |error| format!("failed to get {resource} usage: {error}");
            let samples = samples.await.map_err(usage)?;
            let proposal = calculator::by_average_value(workload, samples, resource, millis(value));
            return proposal.map_err(usage);
        }
        let Some(percent) = target.average_utilization else {
            return Err(
                "invalid resource metric source: neither an average utilization target nor an average value (usage) target was set"
                    .to_owned(),
            );
        };
        let utilization = |error| format!("failed to get {resource} utilization: {error}");
        let samples = samples.await.map_err(utilization)?;
        calculator::by_utilization(workload, samples, resource, container, percent)
            .map_err(utilization)
    }

    async fn object(
        &self,
        source: &k8s_openapi::api::autoscaling::v2::ObjectMetricSource,
    ) -> Result<i64, String> {
        let (object, metric) = (&source.described_object, &source.metric.name);
        let namespace = &self.key.namespace;
        let version = object.api_version.as_deref().unwrap_or_default();
        let resource = self
            .controller
            .targets
            .resource(version, &object.kind, self.now)
            .await?;
        let plural = match resource.api.group.as_str() {
            "" => resource.api.plural.clone(),
            group => format!("{}.{group}", resource.api.plural),
        };
        let metrics = &self.controller.metrics;
        let usage = metrics
            .object(&source.metric, namespace, &plural, &object.name)
            .await;
        usage.map_err(|error| {
            let (kind, name) = (&object.kind, &object.name);
            format!("unable to get metric {metric}: {kind} on {namespace} {name}/{error}")
        })
    }

    async fn rescale(
        &mut self,
        resource: &Resource,
        scale: Scale,
        (current, desired): (i32, i32),
        reason: &str,
    ) -> Result<(), String> {
        let resized = self
            .controller
            .targets
            .resize(resource, scale, desired)
            .await;
        if let Err(error) = resized {
            let error = text(&error);
            let message = format!("New size: {desired}; reason: {reason}; error: {error}");
            self.warn("FailedRescale", &message);
            return Err(error);
        }
        let message =
            format!("the HPA controller was able to update the target scale to {desired}");
        self.condition("AbleToScale", true, ("SucceededRescale", &message));
        let message = format!("New size: {desired}; reason: {reason}");
        let recorder = &self.controller.recorder;
        recorder.event(&self.about, Kind::Normal, "SuccessfulRescale", message);
        let behavior = self.spec.behavior.clone();
        self.remembered(|history, now| history.scaled(current, desired, behavior.as_ref(), now));
        Ok(())
    }

    fn sizes(&mut self, current: i32, desired: i32, metrics: Option<Vec<MetricStatus>>) {
        self.status.current_replicas = Some(current);
        self.status.desired_replicas = desired;
        self.status.current_metrics = metrics;
    }

    fn remembered<T>(&self, act: impl FnOnce(&mut History, Timestamp) -> T) -> T {
        let mut memory = self.controller.memory.lock();
        let memory = memory.entry(self.key.clone()).or_default();
        act(&mut memory.history, self.now)
    }

    fn condition(&mut self, type_: &str, value: bool, explanation: (&str, &str)) {
        set_condition(&mut self.status, type_, value, explanation, self.now);
    }

    fn warn(&self, reason: &str, message: &str) {
        let recorder = &self.controller.recorder;
        recorder.event(&self.about, Kind::Warning, reason, message);
    }
}

fn tolerances(spec: &HorizontalPodAutoscalerSpec) -> Tolerances {
    let default = Tolerances::default();
    let behavior = spec.behavior.as_ref();
    let set = |rules: Option<&k8s_openapi::api::autoscaling::v2::HPAScalingRules>| {
        let quantity = &rules?.tolerance.as_ref()?.0;
        let parsed: Result<machinery::quantity::Quantity, _> = quantity.parse();
        parsed.ok().map(machinery::quantity::Quantity::to_f64)
    };
    let down = set(behavior.and_then(|behavior| behavior.scale_down.as_ref()));
    let up = set(behavior.and_then(|behavior| behavior.scale_up.as_ref()));
    Tolerances {
        scale_down: down.unwrap_or(default.scale_down),
        scale_up: up.unwrap_or(default.scale_up),
    }
}

/// Proposes by value per pod if the target has one, otherwise by the value itself.
fn by_target_value(
    workload: &Workload<'_>,
    target: &k8s_openapi::api::autoscaling::v2::MetricTarget,
    usage: i64,
) -> Result<Proposal, String> {
    match (&target.average_value, &target.value) {
        (Some(average), _) => Ok(calculator::by_value_per_pod(
            workload,
            usage,
            millis(average),
        )),
        (None, Some(value)) => calculator::by_value(workload, usage, millis(value)),
        (None, None) => Err(
            "invalid metric source: neither a value target nor an average value target was set"
                .to_owned(),
        ),
    }
}

fn text(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}
