//! Metrics of flow control, with upstream's names.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use super::{demand::DemandStats, limits::Bounds, queues::Refusal};

/// Upstream's buckets for waits, in seconds.
const WAITS: [f64; 13] = [
    0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0,
];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfLevel {
    priority_level: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfSchema {
    flow_schema: String,
    priority_level: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Rejected {
    flow_schema: String,
    priority_level: String,
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Waited {
    execute: &'static str,
    flow_schema: String,
    priority_level: String,
}

type Fraction = Gauge<f64, AtomicU64>;
type ByLevel<Of = Gauge> = Family<OfLevel, Of>;
type BySchema<Of = Gauge> = Family<OfSchema, Of>;

/// All metrics.
#[derive(Clone)]
pub struct Figures {
    dispatched: BySchema<Counter>,
    rejected: Family<Rejected, Counter>,
    executing: BySchema,
    executing_seats: BySchema,
    in_queue: BySchema,
    in_queue_seats: BySchema,
    waits: Family<Waited, Histogram, fn() -> Histogram>,
    nominal: ByLevel,
    lower: ByLevel,
    upper: ByLevel,
    current: ByLevel,
    most: ByLevel,
    average: ByLevel<Fraction>,
    deviation: ByLevel<Fraction>,
    smoothed: ByLevel<Fraction>,
    target: ByLevel<Fraction>,
    fair: Fraction,
}

/// The metrics of one schema at its level: looked up once, used by every request.
pub(super) struct SchemaFigures {
    pub(super) dispatched: Counter,
    pub(super) executing: Gauge,
    pub(super) executing_seats: Gauge,
    /// Waits that ended with a seat.
    pub(super) waits: Histogram,
    of: OfSchema,
    all: Figures,
}

impl SchemaFigures {
    /// Changes the number of waiting requests and of their seats.
    pub(super) fn wait(&self, count: i64, seats: i64) {
        self.all.in_queue.get_or_create(&self.of).inc_by(count);
        self.all
            .in_queue_seats
            .get_or_create(&self.of)
            .inc_by(seats);
    }

    /// Counts a rejection after waiting this many seconds.
    pub(super) fn reject(&self, why: Refusal, seconds: f64) {
        let OfSchema {
            flow_schema,
            priority_level,
        } = self.of.clone();
        let waited = Waited {
            execute: "false",
            flow_schema: flow_schema.clone(),
            priority_level: priority_level.clone(),
        };
        self.all.waits.get_or_create(&waited).observe(seconds);
        let rejected = Rejected {
            flow_schema,
            priority_level,
            reason: why.name(),
        };
        self.all.rejected.get_or_create(&rejected).inc();
    }
}

impl Figures {
    /// Metrics that are not registered yet.
    pub(super) fn new() -> Self {
        let waits: fn() -> Histogram = || Histogram::new(WAITS);
        Self {
            dispatched: Family::default(),
            rejected: Family::default(),
            executing: Family::default(),
            executing_seats: Family::default(),
            in_queue: Family::default(),
            in_queue_seats: Family::default(),
            waits: Family::new_with_constructor(waits),
            nominal: Family::default(),
            lower: Family::default(),
            upper: Family::default(),
            current: Family::default(),
            most: Family::default(),
            average: Family::default(),
            deviation: Family::default(),
            smoothed: Family::default(),
            target: Family::default(),
            fair: Fraction::default(),
        }
    }

    /// Registered metrics.
    pub fn registered(registry: &mut Registry) -> Self {
        let figures = Self::new();
        figures.register(registry.sub_registry_with_prefix("apiserver_flowcontrol"));
        figures
    }

    fn register(&self, registry: &mut Registry) {
        let m = self;
        let about = "Requests dispatched by flow control";
        registry.register("dispatched_requests", about, m.dispatched.clone());
        let about = "Requests rejected by flow control";
        registry.register("rejected_requests", about, m.rejected.clone());
        let about = "Requests being executed; watches count only while they start";
        registry.register("current_executing_requests", about, m.executing.clone());
        let about = "Seats occupied by requests being executed";
        registry.register("current_executing_seats", about, m.executing_seats.clone());
        let about = "Requests waiting in queues";
        registry.register("current_inqueue_requests", about, m.in_queue.clone());
        let about = "Seats that requests in queues wait for";
        registry.register("current_inqueue_seats", about, m.in_queue_seats.clone());
        let about = "Seconds that requests waited in queues";
        registry.register("request_wait_duration_seconds", about, m.waits.clone());
        let about = "Nominal seats of each priority level";
        registry.register("nominal_limit_seats", about, m.nominal.clone());
        let about = "Minimum seats of each priority level";
        registry.register("lower_limit_seats", about, m.lower.clone());
        let about = "Maximum seats of each priority level";
        registry.register("upper_limit_seats", about, m.upper.clone());
        let about = "Current seats of each priority level";
        registry.register("current_limit_seats", about, m.current.clone());
        let about = "Highest seat demand of each priority level in the last period";
        registry.register("demand_seats_high_watermark", about, m.most.clone());
        let about = "Average seat demand of each priority level in the last period";
        registry.register("demand_seats_average", about, m.average.clone());
        let about = "Standard deviation of the seat demand in the last period";
        registry.register("demand_seats_stdev", about, m.deviation.clone());
        let about = "Smoothed seat demand of each priority level";
        registry.register("demand_seats_smoothed", about, m.smoothed.clone());
        let about = "Target seats of each priority level";
        registry.register("target_seats", about, m.target.clone());
        let about = "Fraction of its target that an unbounded priority level gets";
        registry.register("seat_fair_frac", about, m.fair.clone());
    }

    pub(super) fn schema(&self, schema: &str, level: &str) -> SchemaFigures {
        let of = OfSchema {
            flow_schema: schema.to_owned(),
            priority_level: level.to_owned(),
        };
        let waited = Waited {
            execute: "true",
            flow_schema: of.flow_schema.clone(),
            priority_level: of.priority_level.clone(),
        };
        SchemaFigures {
            dispatched: self.dispatched.get_or_create(&of).clone(),
            executing: self.executing.get_or_create(&of).clone(),
            executing_seats: self.executing_seats.get_or_create(&of).clone(),
            waits: self.waits.get_or_create(&waited).clone(),
            of,
            all: self.clone(),
        }
    }

    /// Sets a level's limits.
    pub(super) fn level(&self, name: &str, bounds: Bounds) {
        let of = of_level(name);
        self.nominal.get_or_create(&of).set(bounds.nominal as i64);
        self.lower.get_or_create(&of).set(bounds.lower as i64);
        self.upper.get_or_create(&of).set(bounds.upper as i64);
    }

    /// Records an adjustment of a level's limit.
    pub(super) fn adjusted(&self, name: &str, current: usize, seen: &DemandStats, target: f64) {
        let of = of_level(name);
        self.current.get_or_create(&of).set(current as i64);
        self.most.get_or_create(&of).set(seen.most as i64);
        self.average.get_or_create(&of).set(seen.average);
        self.deviation.get_or_create(&of).set(seen.deviation);
        self.smoothed.get_or_create(&of).set(seen.smoothed);
        self.target.get_or_create(&of).set(target);
    }

    pub(super) fn fair(&self, fraction: f64) {
        self.fair.set(fraction);
    }
}

fn of_level(name: &str) -> OfLevel {
    OfLevel {
        priority_level: name.to_owned(),
    }
}
