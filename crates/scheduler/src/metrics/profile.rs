//! What the plugins of a profile do. Counters are found once, so that an attempt pays for additions
//! alone; how long each plugin takes is measured in one attempt of ten, as upstream does.

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

/// One attempt of so many is measured plugin by plugin.
const MEASURED: u32 = 10;
const POINTS: usize = Point::PostBind as usize + 1;

/// From ten microseconds to some twenty milliseconds.
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
    /// How long a plugin takes to say whether an event helps a pod, when it does not and when it does.
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
    /// How often the plugins of an extension point were asked, by their places in the profile.
    evaluations: [Vec<Counter>; POINTS],
    /// How long an extension point took when it failed and when it succeeded, once it was run.
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

    /// Begins an attempt; whether its plugins are measured.
    pub(crate) fn begin(&self) -> bool {
        let begun = self.begun.fetch_add(1, Ordering::Relaxed);
        begun.is_multiple_of(MEASURED)
    }

    /// A plugin was asked about so many nodes, or about the pod.
    pub(crate) fn evaluated(&self, point: Point, place: usize, times: usize) {
        if let Some(counter) = self.evaluations[point as usize].get(place) {
            counter.inc_by(times as u64);
        }
    }

    /// A plugin was run in an attempt that is measured.
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
