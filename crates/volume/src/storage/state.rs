//! The volume manager's state: a map of volumes, and the changes of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
    sync::Arc,
};

use jiff::Timestamp;

use super::{Measure, PodMount, Staged, StoragePlugin};

/// Identifies a volume of the node: plugin and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The plugin's name.
    pub plugin: &'static str,
    /// The volume's name among those of the plugin.
    pub volume: String,
}

impl fmt::Display for Key {
    /// The name in node statuses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.plugin, self.volume)
    }
}

/// Whether a step was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    No,
    /// It was started, or was found after a restart.
    Maybe,
    Yes,
}

/// A pod that uses a volume.
#[derive(Debug, Clone)]
pub(super) struct User {
    pub mount: PodMount,
    pub published: Progress,
    /// The result of the last publish.
    pub path: Option<PathBuf>,
    /// Its names in the pod.
    pub names: BTreeSet<String>,
    /// The last statistics and their time.
    pub measure: Option<Measure>,
    pub measured: Option<Timestamp>,
    /// Held while the volume is measured, also after the caller gave up.
    pub measuring: Arc<tokio::sync::Mutex<()>>,
}

impl User {
    pub(super) fn new(mount: PodMount, published: Progress) -> Self {
        Self {
            mount,
            published,
            path: None,
            names: BTreeSet::new(),
            measure: None,
            measured: None,
            measuring: Arc::default(),
        }
    }
}

/// A volume that a pod uses or that is on the node.
pub(super) struct Entry {
    pub plugin: &'static dyn StoragePlugin,
    pub name: String,
    pub is_block: bool,
    /// Whether a controller attaches it.
    pub is_attachable: bool,
    pub staged: Progress,
    /// By pod.
    pub users: BTreeMap<String, User>,
    /// Held during a step, so that the steps of one volume are sequential.
    pub steps: Arc<tokio::sync::Mutex<()>>,
}

impl Entry {
    pub(super) fn new(plugin: &'static dyn StoragePlugin, name: &str, is_block: bool) -> Self {
        Self {
            plugin,
            name: name.to_owned(),
            is_block,
            is_attachable: false,
            staged: Progress::No,
            users: BTreeMap::new(),
            steps: Arc::default(),
        }
    }

    /// The parameters of unstaging.
    pub(super) fn staged(&self, key: &Key) -> Staged {
        Staged {
            volume: key.volume.clone(),
            name: self.name.clone(),
            is_block: self.is_block,
        }
    }

    /// No pod uses it.
    pub(super) fn is_idle(&self) -> bool {
        self.users.is_empty()
    }
}

/// All volumes.
pub(super) type Volumes = BTreeMap<Key, Entry>;

/// The names of attachable volumes that pods use or that are on the node: controllers must not
/// detach them.
pub(super) fn in_use(volumes: &Volumes) -> Vec<String> {
    let used = volumes.iter().filter(|(_, entry)| entry.is_attachable);
    used.map(|(key, _)| key.to_string()).collect()
}
