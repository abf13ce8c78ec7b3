//! A profile: which plugins run at which extension point, in which order and with which weights.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use super::{LoopState, Plugin, Point};
use crate::metrics::{Families, Meter};

/// The number of profiles created.
static MADE: AtomicU64 = AtomicU64::new(0);

/// A scheduler profile.
#[derive(Clone)]
pub struct Profile {
    /// The name in the pods' `schedulerName`.
    pub name: String,
    /// The percentage of nodes to score; 0 decides by their number.
    pub percentage_of_nodes: usize,
    /// Unique in the process; clones have the same number.
    number: u64,
    plugins: Vec<Arc<dyn Plugin>>,
    points: BTreeMap<Point, Vec<Enabled>>,
    /// The metrics of its plugins, if they are recorded.
    meter: Option<Arc<Meter>>,
}

/// The labels and counts of a plugin call, for the metrics.
#[derive(Clone, Copy)]
pub(crate) struct PluginCall<'a> {
    pub(crate) point: Point,
    pub(crate) plugin: &'a Arc<dyn Plugin>,
    /// The plugin's index in the profile's list for Filter, Score or the extension point itself.
    pub(crate) place: usize,
    /// The number of nodes that the call evaluates; 1 for calls about the pod.
    pub(crate) nodes: usize,
    /// Whether the attempt measures the duration of each plugin.
    pub(crate) is_measured: bool,
}

/// A plugin at an extension point.
#[derive(Clone)]
pub struct Enabled {
    /// The plugin.
    pub plugin: Arc<dyn Plugin>,
    /// The weight of its scores.
    pub weight: i64,
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |enabled: &Vec<Enabled>| -> Vec<_> {
            let named = enabled.iter().map(|one| (one.plugin.name(), one.weight));
            named.collect()
        };
        let points = self.points.iter().map(|(point, all)| (point, names(all)));
        f.debug_struct("Profile")
            .field("name", &self.name)
            .field("points", &points.collect::<Vec<_>>())
            .finish()
    }
}

impl Profile {
    /// A profile with these plugins at these extension points.
    pub fn new(
        name: &str,
        percentage_of_nodes: usize,
        points: BTreeMap<Point, Vec<Enabled>>,
    ) -> Self {
        let mut plugins: Vec<Arc<dyn Plugin>> = Vec::new();
        for enabled in points.values().flatten() {
            if !plugins
                .iter()
                .any(|known| known.name() == enabled.plugin.name())
            {
                plugins.push(enabled.plugin.clone());
            }
        }
        Self {
            name: name.to_owned(),
            percentage_of_nodes,
            number: MADE.fetch_add(1, Ordering::Relaxed),
            plugins,
            points,
            meter: None,
        }
    }

    /// The default profile.
    pub fn default_scheduler() -> Self {
        let mut points: BTreeMap<Point, Vec<Enabled>> = BTreeMap::new();
        for enabled in crate::plugins::defaults() {
            for point in enabled.plugin.points() {
                points.entry(*point).or_default().push(enabled.clone());
            }
        }
        Self::new("default-scheduler", 0, points)
    }

    /// The same profile for a new scheduling loop.
    pub(crate) fn for_loop(mut self, state: &LoopState) -> Self {
        for plugin in &mut self.plugins {
            let Some(new) = plugin.for_loop(state) else {
                continue;
            };
            let enabled = self.points.values_mut().flatten();
            for one in enabled.filter(|one| one.plugin.name() == new.name()) {
                one.plugin = new.clone();
            }
            *plugin = new;
        }
        self
    }

    /// Records the metrics of its plugins from now on.
    pub(crate) fn measured(mut self, families: &Families) -> Self {
        self.meter = Some(Arc::new(Meter::new(families, &self)));
        self
    }

    pub(crate) fn meter(&self) -> Option<&Meter> {
        self.meter.as_deref()
    }

    /// Starts an attempt; returns whether to measure its plugins.
    pub(crate) fn begin_attempt(&self) -> bool {
        self.meter().is_some_and(Meter::begin)
    }

    /// Runs a plugin and records its metrics.
    pub(crate) fn ask<T>(
        &self,
        asked: PluginCall<'_>,
        ask: impl FnOnce() -> T,
        status: impl FnOnce(&T) -> &'static str,
    ) -> T {
        let Some(meter) = self.meter() else {
            return ask();
        };
        meter.evaluated(asked.point, asked.place, asked.nodes);
        if !asked.is_measured {
            return ask();
        }
        let since = Instant::now();
        let answer = ask();
        meter.plugin_took(asked.point, asked.plugin.name(), status(&answer), since);
        answer
    }

    /// Identifies this profile and its copies.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The plugins at an extension point, in order.
    pub fn at(&self, point: Point) -> &[Enabled] {
        self.points.get(&point).map_or(&[], Vec::as_slice)
    }

    /// All plugins.
    pub fn plugins(&self) -> impl Iterator<Item = &Arc<dyn Plugin>> {
        self.plugins.iter()
    }

    /// A plugin by name.
    pub fn plugin(&self, name: &str) -> Option<&Arc<dyn Plugin>> {
        self.plugins().find(|plugin| plugin.name() == name)
    }
}
