//! Metrics of requests to the store, with the names of upstream's etcd metrics.

use std::{
    sync::{Arc, OnceLock},
    time::Instant,
};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};

use crate::Labels;

/// Upstream's buckets, in seconds.
const DURATIONS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0,
    10.0, 15.0, 20.0, 30.0, 45.0, 60.0,
];

#[derive(Debug, Clone, Copy)]
pub enum Operation {
    Get,
    List,
    Create,
    Update,
    Delete,
}

const OPERATIONS: [&str; 5] = ["get", "list", "create", "update", "delete"];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    operation: &'static str,
    group: Arc<str>,
    resource: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Listed {
    group: Arc<str>,
    resource: Arc<str>,
}

type Durations = Family<Request, Histogram, fn() -> Histogram>;

/// The metrics of all resources.
pub struct Storage {
    durations: Durations,
    requests: Family<Request, Counter>,
    errors: Family<Request, Counter>,
    lists: Family<Listed, Counter>,
    fetched: Family<Listed, Counter>,
    evaluated: Family<Listed, Counter>,
    returned: Family<Listed, Counter>,
}

impl Storage {
    pub fn registered(registry: &mut Registry) -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(DURATIONS);
        let storage = Self {
            durations: Family::new_with_constructor(histogram),
            requests: Family::default(),
            errors: Family::default(),
            lists: Family::default(),
            fetched: Family::default(),
            evaluated: Family::default(),
            returned: Family::default(),
        };
        let about = "Duration of store requests in seconds";
        registry.register(
            "etcd_request_duration_seconds",
            about,
            storage.durations.clone(),
        );
        registry.register("etcd_requests", "Store requests", storage.requests.clone());
        let about = "Store requests that failed";
        registry.register("etcd_request_errors", about, storage.errors.clone());
        for (name, about, counts) in [
            (
                "apiserver_storage_list",
                "LIST requests served",
                &storage.lists,
            ),
            (
                "apiserver_storage_list_fetched_objects",
                "Objects read for LIST requests",
                &storage.fetched,
            ),
            (
                "apiserver_storage_list_evaluated_objects",
                "Objects tested against selectors for LIST requests",
                &storage.evaluated,
            ),
            (
                "apiserver_storage_list_returned_objects",
                "Objects returned by LIST requests",
                &storage.returned,
            ),
        ] {
            registry.register(name, about, counts.clone());
        }
        storage
    }
}

/// The metrics of one resource, looked up once and used by every request.
#[derive(Default)]
pub struct Stores {
    operations: [OnceLock<Figures>; 5],
    lists: OnceLock<[Counter; 4]>,
}

struct Figures {
    duration: Histogram,
    requests: Counter,
    errors: Counter,
}

impl Stores {
    /// Counts a finished request to the store.
    pub fn count(
        &self,
        all: &Storage,
        labels: &Labels,
        operation: Operation,
        begun: Instant,
        failed: bool,
    ) {
        let figures = self.operations[operation as usize].get_or_init(|| {
            let request = Request {
                operation: OPERATIONS[operation as usize],
                group: labels.group.clone(),
                resource: labels.resource.clone(),
            };
            Figures {
                duration: all.durations.get_or_create(&request).clone(),
                requests: all.requests.get_or_create(&request).clone(),
                errors: all.errors.get_or_create(&request).clone(),
            }
        });
        figures.duration.observe(begun.elapsed().as_secs_f64());
        figures.requests.inc();
        if failed {
            figures.errors.inc();
        }
    }

    /// Counts a list, with the objects read, tested and returned.
    pub fn listed(&self, all: &Storage, labels: &Labels, read: usize, tested: usize, given: usize) {
        let [lists, fetched, evaluated, returned] = self.lists.get_or_init(|| {
            let listed = Listed {
                group: labels.group.clone(),
                resource: labels.resource.clone(),
            };
            [&all.lists, &all.fetched, &all.evaluated, &all.returned]
                .map(|counts| counts.get_or_create(&listed).clone())
        });
        lists.inc();
        fetched.inc_by(read as u64);
        evaluated.inc_by(tested as u64);
        returned.inc_by(given as u64);
    }
}
