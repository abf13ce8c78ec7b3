//! A scheduler by name: which plugins it runs at which extension point, in which order and with
//! which weights.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{Plugin, Point};

/// How many profiles were made.
static MADE: AtomicU64 = AtomicU64::new(0);

/// One scheduler.
#[derive(Clone)]
pub struct Profile {
    /// Pods name it in `schedulerName`.
    pub name: String,
    /// How many of the nodes are looked at, in percent; 0 lets their number decide.
    pub percentage_of_nodes: usize,
    /// No other profile of the process has it; copies are the same profile.
    number: u64,
    plugins: Vec<Arc<dyn Plugin>>,
    points: BTreeMap<Point, Vec<Enabled>>,
}

/// A plugin at an extension point.
#[derive(Clone)]
pub struct Enabled {
    /// The plugin.
    pub plugin: Arc<dyn Plugin>,
    /// How much its scores count.
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
    /// A scheduler with these plugins at these extension points.
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
        }
    }

    /// The default scheduler.
    pub fn default_scheduler() -> Self {
        let mut points: BTreeMap<Point, Vec<Enabled>> = BTreeMap::new();
        for enabled in crate::plugins::defaults() {
            for point in enabled.plugin.points() {
                points.entry(*point).or_default().push(enabled.clone());
            }
        }
        Self::new("default-scheduler", 0, points)
    }

    /// What tells this profile and its copies from others.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The plugins that run at an extension point, in order.
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
