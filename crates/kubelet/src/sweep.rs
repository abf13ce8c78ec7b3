//! Removes what a crash of the kubelet left behind: volumes, cgroups and log directories of pods
//! that neither the API, nor a manifest, nor the runtime has. A pod's worker removes them as its
//! last step, so that a crash just before leaves them. Runs at every start and periodically. Volumes
//! of different pods are removed independently: a driver that hangs delays only its own.

use std::{
    collections::{BTreeMap, HashSet},
    path::Path,
    sync::Arc,
    time::Duration,
};

use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::{Result, cgroups, core::Core, logs::links, make::labels, volumes};

const INTERVAL: Duration = Duration::from_secs(60);
/// The delay after a failed sweep, such as when the runtime is not available yet.
const RETRY: Duration = Duration::from_secs(5);

/// Sweeps at once and then periodically. Never returns.
pub(crate) async fn run(core: Arc<Core>) {
    let mut removals = Removals::default();
    loop {
        let pause = match sweep(&core, &mut removals).await {
            Ok(()) => INTERVAL,
            Err(error) => {
                warn!(%error, "cannot look for remains of removed pods");
                RETRY
            }
        };
        core.config.clock.sleep(pause).await;
    }
}

/// Removes leftovers. Lists directories before the known pods: a pod has a worker before it has
/// anything else.
async fn sweep(core: &Arc<Core>, removals: &mut Removals) -> Result<()> {
    let mut logs = log_directories(&core.config.pod_logs_dir);
    if core.config.shares_pod_logs_dir {
        logs.retain(|(_, dir)| links::is_marked(dir, &core.config.root_dir));
    }
    let groups = cgroups::pods(&core.cgroup_root());
    let dirs = pod_directories(&core.config.root_dir.join("pods"));
    if logs.is_empty() && groups.is_empty() && dirs.is_empty() {
        return Ok(());
    }
    let known = known_pod_uids(core).await?;
    let is_known = |uid: &String| known.contains(uid);
    for (uid, dir) in logs.into_iter().filter(|(uid, _)| !is_known(uid)) {
        info!(uid, dir = %dir.display(), "removing logs of removed pod");
        if let Err(error) = volumes::remove_dir(core, dir.clone()).await {
            warn!(dir = %dir.display(), %error, "cannot remove");
        }
    }
    links::remove_dangling(&core.config.container_logs_dir, &core.config.pod_logs_dir);
    for uid in dirs.into_iter().filter(|uid| !is_known(uid)) {
        removals.start(core, uid);
    }
    for (uid, path) in groups.into_iter().filter(|(uid, _)| !is_known(uid)) {
        info!(uid, path, "removing cgroup of removed pod");
        let remove = || cgroups::remove(&core.cgroup_root(), &path);
        core.metrics.cgroup_managed("destroy", remove);
    }
    Ok(())
}

/// Removals of volumes that are under way.
#[derive(Default)]
struct Removals {
    pods: HashSet<String>,
    tasks: JoinSet<String>,
}

impl Removals {
    /// Removes the volumes of a pod, unless that is under way.
    fn start(&mut self, core: &Arc<Core>, uid: String) {
        while let Some(ended) = self.tasks.try_join_next() {
            self.pods.retain(|uid| ended.as_ref().ok() != Some(uid));
        }
        if !self.pods.insert(uid.clone()) {
            return;
        }
        info!(uid, "removing volumes of removed pod");
        let core = core.clone();
        self.tasks.spawn(async move {
            if let Err(error) = remove_volumes(&core, &uid).await {
                warn!(uid, %error, "cannot remove");
            }
            uid
        });
    }
}

async fn remove_volumes(core: &Core, uid: &str) -> Result<()> {
    volumes::tear_down(core, uid).await?;
    volumes::remove_dir(core, core.pod_dir(uid)).await
}

/// The uids of pods with a directory.
fn pod_directories(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    dirs.filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

/// The pods that have a worker or anything in the runtime.
async fn known_pod_uids(core: &Core) -> Result<HashSet<String>> {
    let workers = core.registry.pods().into_iter();
    let mut known: HashSet<String> = workers
        .filter_map(|seen| seen.pod.metadata.uid.clone())
        .collect();
    let sandboxes = core.runtime.list_sandboxes(BTreeMap::new()).await?;
    known.extend(
        sandboxes
            .iter()
            .filter_map(|sandbox| sandbox.labels.get(labels::POD_UID).cloned()),
    );
    Ok(known)
}

/// Log directories by the uid in their names.
fn log_directories(dir: &Path) -> Vec<(String, std::path::PathBuf)> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            Some((log_owner(&name)?.to_owned(), entry.path()))
        })
        .collect()
}

/// The uid in `NAMESPACE_NAME_UID`; names and namespaces contain no underscore.
fn log_owner(name: &str) -> Option<&str> {
    let mut parts = name.split('_');
    let uid = parts.by_ref().nth(2).filter(|uid| !uid.is_empty())?;
    parts.next().is_none().then_some(uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_directory_names_its_pod() {
        assert_eq!(log_owner("default_web-1_0a-1b"), Some("0a-1b"));
        for other in ["default_web", "default_web_", "a_b_c_d", "lost+found"] {
            assert_eq!(log_owner(other), None, "{other}");
        }
    }
}
