//! Metrics of policies: decisions and durations.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};

/// Upstream's buckets, in seconds.
const BUCKETS: [f64; 5] = [0.000_000_5, 0.001, 0.01, 0.1, 1.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Check {
    policy: String,
    policy_binding: String,
    error_type: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Enforced {
    #[prometheus(flatten)]
    check: Check,
    enforcement_action: &'static str,
}

type Durations<Of> = Family<Of, Histogram, fn() -> Histogram>;

fn durations<Of: Clone + std::hash::Hash + Eq>() -> Durations<Of> {
    Family::new_with_constructor(|| Histogram::new(BUCKETS))
}

/// The metrics of all policies. Clones share them.
#[derive(Debug, Clone)]
pub struct Figures {
    validated: Family<Enforced, Counter>,
    validation: Durations<Enforced>,
    mutated: Family<Check, Counter>,
    mutation: Durations<Check>,
}

impl Figures {
    pub fn new(registry: &mut Registry) -> Self {
        let figures = Self {
            validated: Family::default(),
            validation: durations(),
            mutated: Family::default(),
            mutation: durations(),
        };
        let about = "Validation failures by policy, binding and enforcement action";
        let name = "apiserver_validating_admission_policy_check";
        registry.register(name, about, figures.validated.clone());
        let about = "Duration of validation by a policy in seconds";
        let name = "apiserver_validating_admission_policy_check_duration_seconds";
        registry.register(name, about, figures.validation.clone());
        let about = "Mutations by policy and binding";
        let name = "apiserver_mutating_admission_policy_check";
        registry.register(name, about, figures.mutated.clone());
        let about = "Duration of mutations in seconds";
        let name = "apiserver_mutating_admission_policy_check_duration_seconds";
        registry.register(name, about, figures.mutation.clone());
        figures
    }

    /// Counts a validation that was denied, warned about, audited or, for an ignored failure,
    /// allowed.
    pub(super) fn validated(
        &self,
        (policy, binding): (&str, &str),
        message: &str,
        action: &'static str,
        took: Duration,
    ) {
        let labels = Enforced {
            check: Check::new(policy, binding, error_type(message)),
            enforcement_action: action,
        };
        self.validated.get_or_create(&labels).inc();
        self.validation
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
    }

    /// Counts a mutation, with the reason of a failure.
    pub(super) fn mutated(
        &self,
        (policy, binding): (&str, &str),
        failure: Option<&str>,
        took: Duration,
    ) {
        let labels = Check::new(policy, binding, failure.map_or("no_error", error_type));
        self.mutated.get_or_create(&labels).inc();
        self.mutation
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
    }
}

impl Check {
    fn new(policy: &str, binding: &str, error_type: &'static str) -> Self {
        Self {
            policy: policy.to_owned(),
            policy_binding: binding.to_owned(),
            error_type,
        }
    }
}

/// The error type of a message.
fn error_type(message: &str) -> &'static str {
    if message.starts_with("compilation") {
        "compile_error"
    } else if message.starts_with("validation failed due to running out of cost budget") {
        "out_of_budget"
    } else {
        "invalid_error"
    }
}
