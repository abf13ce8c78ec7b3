//! Metrics of webhook calls: counts, durations and results.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};

/// Upstream's buckets, in seconds.
const DURATIONS: [f64; 8] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];
const EVALUATIONS: [f64; 7] = [0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Called {
    name: String,
    operation: &'static str,
    rejected: &'static str,
    r#type: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Requested {
    name: String,
    operation: &'static str,
    code: u16,
    rejected: &'static str,
    r#type: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Rejected {
    name: String,
    r#type: &'static str,
    operation: &'static str,
    error_type: &'static str,
    rejection_code: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FailedOpen {
    name: String,
    r#type: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Condition {
    name: String,
    kind: &'static str,
    r#type: &'static str,
    operation: &'static str,
}

type Durations<Of> = Family<Of, Histogram, fn() -> Histogram>;

/// The metrics; clones share them.
#[derive(Clone)]
pub struct Metrics {
    durations: Durations<Called>,
    requests: Family<Requested, Counter>,
    rejections: Family<Rejected, Counter>,
    failed_open: Family<FailedOpen, Counter>,
    condition_errors: Family<Condition, Counter>,
    exclusions: Family<Condition, Counter>,
    evaluations: Durations<Condition>,
}

/// The labels of a call.
pub(super) struct Observed<'a> {
    pub(super) name: &'a str,
    /// `admit` or `validating`.
    pub(super) r#type: &'static str,
    pub(super) operation: &'static str,
}

/// The type of a rejection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ErrorType {
    CallingWebhook,
    ServerInternal,
    None,
}

impl Metrics {
    pub fn registered(registry: &mut Registry) -> Self {
        let metrics = Self {
            durations: Family::new_with_constructor(|| Histogram::new(DURATIONS)),
            requests: Family::default(),
            rejections: Family::default(),
            failed_open: Family::default(),
            condition_errors: Family::default(),
            exclusions: Family::default(),
            evaluations: Family::new_with_constructor(|| Histogram::new(EVALUATIONS)),
        };
        let m = &metrics;
        registry.register(
            "apiserver_admission_webhook_admission_duration_seconds",
            "Duration of admission webhook calls in seconds",
            m.durations.clone(),
        );
        registry.register(
            "apiserver_admission_webhook_request",
            "Calls of admission webhooks",
            m.requests.clone(),
        );
        registry.register(
            "apiserver_admission_webhook_rejection_count",
            "Requests refused by or because of an admission webhook",
            m.rejections.clone(),
        );
        registry.register(
            "apiserver_admission_webhook_fail_open_count",
            "Admission webhooks that could not be asked and were passed over",
            m.failed_open.clone(),
        );
        registry.register(
            "apiserver_admission_match_condition_evaluation_errors",
            "Match conditions that could not be evaluated",
            m.condition_errors.clone(),
        );
        registry.register(
            "apiserver_admission_match_condition_exclusions",
            "Requests excluded by match conditions",
            m.exclusions.clone(),
        );
        registry.register(
            "apiserver_admission_match_condition_evaluation_seconds",
            "Duration of match conditions in seconds",
            m.evaluations.clone(),
        );
        metrics
    }

    /// Records a call.
    pub(super) fn called(&self, what: &Observed<'_>, took: Duration, rejected: bool, code: u16) {
        let rejected = if rejected { "true" } else { "false" };
        let called = Called {
            name: what.name.to_owned(),
            operation: what.operation,
            rejected,
            r#type: what.r#type,
        };
        let durations = self.durations.get_or_create(&called);
        durations.observe(took.as_secs_f64());
        // Webhooks choose the code: invalid ones are counted together.
        let code = code.min(600);
        self.requests
            .get_or_create(&Requested {
                name: called.name,
                operation: what.operation,
                code,
                rejected,
                r#type: what.r#type,
            })
            .inc();
    }

    /// Records a rejection.
    pub(super) fn rejected(&self, what: &Observed<'_>, why: ErrorType, code: u16) {
        self.rejections
            .get_or_create(&Rejected {
                name: what.name.to_owned(),
                r#type: what.r#type,
                operation: what.operation,
                error_type: match why {
                    ErrorType::CallingWebhook => "calling_webhook_error",
                    ErrorType::ServerInternal => "apiserver_internal_error",
                    ErrorType::None => "no_error",
                },
                rejection_code: code.min(600),
            })
            .inc();
    }

    /// Records a failed call that is ignored.
    pub(super) fn failed_open(&self, what: &Observed<'_>) {
        let labels = FailedOpen {
            name: what.name.to_owned(),
            r#type: what.r#type,
        };
        self.failed_open.get_or_create(&labels).inc();
    }

    /// Records an evaluation of match conditions.
    pub(super) fn conditions(
        &self,
        what: &Observed<'_>,
        took: Duration,
        errors: usize,
        excluded: bool,
    ) {
        let labels = Condition {
            name: what.name.to_owned(),
            kind: "webhook",
            r#type: what.r#type,
            operation: what.operation,
        };
        let evaluations = self.evaluations.get_or_create(&labels);
        evaluations.observe(took.as_secs_f64());
        if errors > 0 {
            let counter = self.condition_errors.get_or_create(&labels);
            counter.inc_by(errors as u64);
        }
        if excluded {
            self.exclusions.get_or_create(&labels).inc();
        }
    }
}
