//! The metrics of devices, under upstream's names.

use std::time::Duration;

use prometheus_client::{
    metrics::{
        counter::Counter,
        family::Family,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

type Labels<const N: usize> = [(&'static str, String); N];

fn waiting() -> Histogram {
    Histogram::new(exponential_buckets(0.1, 2.0, 14))
}

/// Clones share the metrics.
#[derive(Clone)]
pub(crate) struct Devices {
    created: Family<Labels<1>, Counter>,
    allocations: Family<Labels<3>, Counter>,
    wait_seconds: Family<Labels<3>, Histogram, fn() -> Histogram>,
}

impl Default for Devices {
    fn default() -> Self {
        Self {
            created: Family::default(),
            allocations: Family::default(),
            wait_seconds: Family::new_with_constructor(waiting),
        }
    }
}

impl Devices {
    pub(super) fn register(&self, registry: &mut Registry) {
        let help = "ResourceClaims that the scheduler created for extended resources";
        let metric = self.created.clone();
        registry.register("scheduler_resourceclaim_creates", help, metric);
        let help = "Allocated devices with binding conditions, by what came of them";
        let metric = self.allocations.clone();
        registry.register("scheduler_dra_bindingconditions_allocations", help, metric);
        let help = "How long pods waited for binding conditions of their devices";
        registry.register(
            "scheduler_dra_bindingconditions_wait_duration_seconds",
            help,
            self.wait_seconds.clone(),
        );
    }

    /// A claim for extended resources was created, or not.
    pub(crate) fn created(&self, is_created: bool) {
        let status = if is_created { "success" } else { "failure" };
        let labels = [("status", status.to_owned())];
        self.created.get_or_create(&labels).inc();
    }

    /// A pod of a profile waited for a device of a driver.
    pub(crate) fn waited(&self, profile: &str, driver: &str, status: &str, took: Duration) {
        let labels = [
            ("profile", profile.to_owned()),
            ("driver", driver.to_owned()),
            ("status", status.to_owned()),
        ];
        self.allocations.get_or_create(&labels).inc();
        let seconds = self.wait_seconds.get_or_create(&labels);
        seconds.observe(took.as_secs_f64());
    }
}
