//! Durations of admission, by plugin and in total.

use std::{sync::OnceLock, time::Instant};

use machinery::Status;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, histogram::Histogram},
    registry::Registry,
};

use super::Operation;

/// Upstream's buckets, in seconds.
const BUCKETS: [f64; 6] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5];

/// The phase of admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Admit,
    Validate,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Step {
    operation: &'static str,
    rejected: &'static str,
    r#type: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Controller {
    name: &'static str,
    #[prometheus(flatten)]
    step: Step,
}

type Durations<Of> = Family<Of, Histogram, fn() -> Histogram>;

fn durations<Of: Clone + std::hash::Hash + Eq>() -> Durations<Of> {
    Family::new_with_constructor(|| Histogram::new(BUCKETS))
}

/// How many plugins of the chain have a fixed slot.
const PLACES: usize = 64;
/// Operations times phases.
const STEPS: usize = 8;

/// The durations so far.
pub struct Timing {
    steps: Durations<Step>,
    controllers: Durations<Controller>,
    /// Histograms of `controllers` without rejections, by the plugin's position and the step: used
    /// a dozen times per write.
    usual: Box<[OnceLock<Histogram>]>,
    /// Histograms of `steps` without rejections.
    usual_steps: [OnceLock<Histogram>; STEPS],
}

impl Timing {
    pub fn new(registry: &mut Registry) -> Self {
        let timing = Self {
            steps: durations(),
            controllers: durations(),
            usual: (0..PLACES * STEPS).map(|_| OnceLock::new()).collect(),
            usual_steps: Default::default(),
        };
        let about = "Duration of one admission plugin in seconds";
        let name = "apiserver_admission_controller_admission_duration_seconds";
        registry.register(name, about, timing.controllers.clone());
        let about = "Duration of all admission plugins in seconds";
        let name = "apiserver_admission_step_admission_duration_seconds";
        registry.register(name, about, timing.steps.clone());
        timing
    }

    pub(super) fn begin(&self, phase: Phase, operation: Operation) -> Watch<'_> {
        let now = Instant::now();
        let (row, operation) = match operation {
            Operation::Create => (0, "CREATE"),
            Operation::Update => (1, "UPDATE"),
            Operation::Delete => (2, "DELETE"),
            Operation::Connect => (3, "CONNECT"),
        };
        let (column, r#type) = match phase {
            Phase::Admit => (0, "admit"),
            Phase::Validate => (1, "validate"),
        };
        Watch {
            timing: self,
            number: row * 2 + column,
            operation,
            r#type,
            begun: now,
            last: now,
        }
    }
}

/// One measured step.
pub(super) struct Watch<'a> {
    timing: &'a Timing,
    /// The step, as one of [`STEPS`].
    number: usize,
    operation: &'static str,
    r#type: &'static str,
    begun: Instant,
    last: Instant,
}

impl Watch<'_> {
    fn step(&self, is_refused: bool) -> Step {
        Step {
            operation: self.operation,
            rejected: if is_refused { "true" } else { "false" },
            r#type: self.r#type,
        }
    }

    /// Records a plugin; a rejection ends the step.
    pub(super) fn plugin(
        &mut self,
        place: usize,
        name: &'static str,
        said: Result<(), Status>,
    ) -> Result<(), Status> {
        let now = Instant::now();
        let took = now.duration_since(self.last).as_secs_f64();
        self.last = now;
        let found = || {
            let step = self.step(said.is_err());
            let durations = &self.timing.controllers;
            durations.get_or_create(&Controller { name, step }).clone()
        };
        match self.timing.usual.get(place * STEPS + self.number) {
            Some(usual) if said.is_ok() => usual.get_or_init(found).observe(took),
            _ => found().observe(took),
        }
        if said.is_err() {
            let steps = &self.timing.steps;
            steps.get_or_create(&self.step(true)).observe(self.took());
        }
        said
    }

    /// Records a step without a rejection.
    pub(super) fn end(self) {
        let found = || self.timing.steps.get_or_create(&self.step(false)).clone();
        match self.timing.usual_steps.get(self.number) {
            Some(usual) => usual.get_or_init(found).observe(self.took()),
            None => found().observe(self.took()),
        }
    }

    /// The time of all plugins so far.
    fn took(&self) -> f64 {
        self.last.duration_since(self.begun).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text;

    use super::*;

    #[test]
    fn metrics_distinguish_plugins_and_steps_and_count_rejections() {
        let mut registry = Registry::default();
        let timing = Timing::new(&mut registry);
        let mut watch = timing.begin(Phase::Admit, Operation::Create);
        watch.plugin(0, "One", Ok(())).unwrap();
        watch.end();
        let mut watch = timing.begin(Phase::Validate, Operation::Delete);
        let refused = Err(Status::bad_request("no"));
        watch.plugin(PLACES, "Two", refused).unwrap_err();
        let mut shown = String::new();
        text::encode(&mut shown, &registry).unwrap();
        for line in [
            r#"apiserver_admission_controller_admission_duration_seconds_count{name="One",operation="CREATE",rejected="false",type="admit"} 1"#,
            r#"apiserver_admission_controller_admission_duration_seconds_count{name="Two",operation="DELETE",rejected="true",type="validate"} 1"#,
            r#"apiserver_admission_step_admission_duration_seconds_count{operation="CREATE",rejected="false",type="admit"} 1"#,
            r#"apiserver_admission_step_admission_duration_seconds_count{operation="DELETE",rejected="true",type="validate"} 1"#,
        ] {
            assert!(shown.lines().any(|one| one == line), "{line} in {shown}");
        }
    }
}
