//! Metrics of the plugins of a profile. Counters are looked up once, so that an attempt only increments
//! them. The duration of each plugin is measured in one of ten attempts, as upstream does.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use prometheus_client::metrics::{
    counter::Counter,
    family::Family,
    histogram::{Histogram, exponential_buckets},
};

use super::{Attempt, Labels, StaticLabels, milliseconds, tenths};
use crate::framework::{Point, profile::Profile};

/// One of this many attempts measures the duration of each plugin.
const MEASURED: u32 = 10;
const POINTS: usize = Point::PostBind as usize + 1;

/// A histogram with buckets from 10 microseconds to about 20 milliseconds.
fn fine() -> Histogram {
    Histogram::new(exponential_buckets(0.00001, 1.5, 20))
}

/// The metrics of all profiles. Cloning shares them.
#[derive(Clone)]
pub(crate) struct Families {
    pub(super) attempts: Family<Labels, Counter>,
    pub(super) attempt_seconds: Family<Labels, Histogram, fn() -> Histogram>,
    pub(super) points: Family<Labels, Histogram, fn() -> Histogram>,
    pub(super) evaluations: Family<Labels, Counter>,
    pub(super) plugin_seconds: Family<StaticLabels<3>, Histogram, fn() -> Histogram>,
    pub(super) hint_seconds: Family<StaticLabels<3>, Histogram, fn() -> Histogram>,
}

impl Default for Families {
    fn default() -> Self {
        Self {
            attempts: Family::default(),
            attempt_seconds: Family::new_with_constructor(milliseconds),
            points: Family::new_with_constructor(tenths),
            evaluations: Family::default(),
            plugin_seconds: Family::new_with_constructor(fine),
            hint_seconds: Family::new_with_constructor(fine),
        }
    }
}

impl Families {
    /// The durations of a plugin's queueing hint for an event, by result: `QueueSkip`, `Queue`.
    pub(crate) fn hints(&self, plugin: &'static str, event: &'static str) -> [Histogram; 2] {
        ["QueueSkip", "Queue"].map(|hint| {
            let labels = [("plugin", plugin), ("event", event), ("hint", hint)];
            self.hint_seconds.get_or_create(&labels).clone()
        })
    }
}

/// The metrics of one profile.
pub(crate) struct Meter {
    families: Families,
    profile: String,
    /// The number of evaluations of each plugin of an extension point, in the order of the profile.
    evaluations: [Vec<Counter>; POINTS],
    /// The durations of each extension point for failures and successes; created at the first run.
    points: [[OnceLock<Histogram>; 2]; POINTS],
    attempts: [OnceLock<(Counter, Histogram)>; 3],
    begun: AtomicU32,
}

impl Meter {
    pub(crate) fn new(families: &Families, profile: &Profile) -> Self {
        let counter = |point: Point, plugin: &str| {
            let labels = vec![
                ("plugin", plugin.to_owned()),
                ("extension_point", format!("{point:?}")),
                ("profile", profile.name.clone()),
            ];
            families.evaluations.get_or_create(&labels).clone()
        };
        let mut evaluations: [Vec<Counter>; POINTS] = Default::default();
        for (point, listed) in [
            (Point::PreFilter, Point::Filter),
            (Point::Filter, Point::Filter),
            (Point::PreScore, Point::Score),
            (Point::Score, Point::Score),
        ] {
            let plugins = profile.at(listed).iter();
            let counters = plugins.map(|enabled| counter(point, enabled.plugin.name()));
            evaluations[point as usize] = counters.collect();
        }
        Self {
            families: families.clone(),
            profile: profile.name.clone(),
            evaluations,
            points: Default::default(),
            attempts: Default::default(),
            begun: AtomicU32::new(0),
        }
    }

    /// Starts an attempt; returns whether to measure its plugins.
    pub(crate) fn begin(&self) -> bool {
        let begun = self.begun.fetch_add(1, Ordering::Relaxed);
        begun.is_multiple_of(MEASURED)
    }

    /// A plugin was evaluated for this many nodes, or once for the pod.
    pub(crate) fn evaluated(&self, point: Point, place: usize, times: usize) {
        if let Some(counter) = self.evaluations[point as usize].get(place) {
            counter.inc_by(times as u64);
        }
    }

    /// A plugin was run in a measured attempt.
    pub(crate) fn plugin_took(
        &self,
        point: Point,
        plugin: &'static str,
        status: &'static str,
        since: Instant,
    ) {
        let labels = [
            ("plugin", plugin),
            ("extension_point", point.name()),
            ("status", status),
        ];
        let seconds = self.families.plugin_seconds.get_or_create(&labels);
        seconds.observe(since.elapsed().as_secs_f64());
    }

    /// An extension point was run for a pod.
    pub(crate) fn ran(&self, point: Point, success: bool, took: Duration) {
        let cell = &self.points[point as usize][usize::from(success)];
        let seconds = cell.get_or_init(|| {
            let status = if success { "Success" } else { "Unschedulable" };
            let labels = vec![
                ("extension_point", point.name().to_owned()),
                ("status", status.to_owned()),
                ("profile", self.profile.clone()),
            ];
            self.families.points.get_or_create(&labels).clone()
        });
        seconds.observe(took.as_secs_f64());
    }

    /// An attempt has ended.
    pub(crate) fn attempted(&self, attempt: Attempt, took: Duration) {
        let (count, seconds) = self.attempts[attempt as usize].get_or_init(|| {
            let profile = ("profile", self.profile.clone());
            let labels = vec![profile, ("result", attempt.label().to_owned())];
            let count = self.families.attempts.get_or_create(&labels).clone();
            let seconds = self.families.attempt_seconds.get_or_create(&labels);
            (count, seconds.clone())
        });
        count.inc();
        seconds.observe(took.as_secs_f64());
    }
}
