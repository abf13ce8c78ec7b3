//! Reconstructs the node's volumes after a restart from the kubelet's directories. What is found
//! counts as done for undoing it, and is checked or done again when a pod needs it.

use std::{collections::BTreeSet, path::Path};

use tracing::{info, warn};

use super::{
    Key, Manager, PodMount, StoragePlugin,
    state::{Entry, Progress, User},
};
use crate::{Result, entries, plugins::STORAGE};

impl Manager {
    /// Reconstructs the volumes of earlier runs. `attached` are the volumes that the node's status
    /// shows as attached or in use: they are reported as in use until they are known to be unused.
    pub fn rebuild(&self, attached: &BTreeSet<String>) -> Result<()> {
        let root = self.host().root_dir().to_owned();
        let mut volumes = self.volumes.lock();
        for plugin in STORAGE.iter().copied() {
            for staged in plugin.find_staged(&root) {
                let key = Key {
                    plugin: plugin.name(),
                    volume: staged.volume,
                };
                let entry = volumes
                    .entry(key)
                    .or_insert_with(|| Entry::new(plugin, &staged.name, staged.is_block));
                entry.staged = Progress::Maybe;
            }
        }
        for pod in entries(&root.join("pods"))? {
            for (plugin, mount) in mounts_of_pod(&pod)? {
                let Some(volume) = plugin.find_published(&mount, &root) else {
                    let dir = mount.dir(&root, plugin.name());
                    warn!(dir = %dir.display(), "no record for volume directory");
                    self.report_rebuilt(false);
                    continue;
                };
                let key = Key {
                    plugin: plugin.name(),
                    volume,
                };
                let entry = volumes
                    .entry(key)
                    .or_insert_with(|| Entry::new(plugin, &mount.name, mount.is_block));
                let user = User::new(mount.clone(), Progress::Maybe);
                entry.users.insert(mount.pod, user);
                self.report_rebuilt(true);
            }
        }
        for (key, entry) in volumes.iter_mut() {
            entry.is_attachable = attached.contains(&key.to_string());
        }
        if !volumes.is_empty() {
            info!(count = volumes.len(), "volumes found on the node");
        }
        drop(volumes);
        self.show_in_use();
        Ok(())
    }
}

/// The mounts of persistent volumes below a pod's directory.
pub(crate) fn mounts_of_pod(pod_dir: &Path) -> Result<Vec<(&'static dyn StoragePlugin, PodMount)>> {
    let name = |path: &Path| {
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    };
    let mut found = Vec::new();
    for (kind, is_block) in [("volumes", false), ("volumeDevices", true)] {
        for of_plugin in entries(&pod_dir.join(kind))? {
            let plugin_name = name(&of_plugin).replace('~', "/");
            let plugin = STORAGE.iter().copied();
            let Some(plugin) = plugin.clone().find(|plugin| plugin.name() == plugin_name) else {
                continue;
            };
            for dir in entries(&of_plugin)? {
                let mount = PodMount {
                    pod: name(pod_dir),
                    name: name(&dir),
                    is_block,
                };
                found.push((plugin, mount));
            }
        }
    }
    Ok(found)
}
