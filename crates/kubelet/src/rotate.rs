//! Rotates logs: renames a log that is too large and has the runtime reopen it. The built-in
//! runtime rotates by itself; other runtimes leave it to the kubelet.

use std::{os::fd::OwnedFd, path::Path, sync::Arc};

use cri::v1;
use tracing::{debug, warn};

use crate::{
    Error, Result, core::Core, logs::LogFile, make::sandbox::log_directory, registry::PublishedPod,
    server::bare_id,
};

/// Checks all logs periodically. Never returns.
pub(crate) async fn run(core: Arc<Core>) {
    loop {
        let settings = core.settings();
        let wait = settings.container_log_monitor_interval.0;
        core.config.clock.sleep(wait).await;
        let Some(max) = settings.log_max_bytes() else {
            continue;
        };
        for seen in core.registry.pods() {
            for (id, log) in logs(&core, &seen) {
                if !std::fs::symlink_metadata(log.path()).is_ok_and(|meta| meta.len() > max) {
                    continue;
                }
                if let Err(error) = rotate(&core, &id, &log).await {
                    warn!(log = %log.path().display(), %error, "cannot rotate log");
                }
            }
        }
    }
}

/// The running containers of a pod and their logs.
fn logs(core: &Core, seen: &PublishedPod) -> Vec<(String, LogFile)> {
    let root = &core.config.pod_logs_dir;
    let dir = log_directory(&root.to_string_lossy(), &seen.pod);
    let status = &seen.status;
    [&status.container_statuses, &status.init_container_statuses]
        .into_iter()
        .flat_map(|list| list.iter().flatten())
        .filter(|status| {
            status
                .state
                .as_ref()
                .is_some_and(|state| state.running.is_some())
        })
        .filter_map(|status| {
            let id = bare_id(status.container_id.as_deref()?).to_owned();
            let file = format!("{}.log", status.restart_count);
            let path = Path::new(&dir).join(&status.name).join(file);
            Some((id, LogFile::new(root, &path)))
        })
        .collect()
}

async fn rotate(core: &Core, id: &str, log: &LogFile) -> Result<()> {
    let dir = log.directory().map_err(Error::io(log.path()))?;
    let stamp = core.now().strftime("%Y%m%d-%H%M%S");
    let (name, aside) = (log.name(), format!("{}.{stamp}", log.name()));
    let moved = rustix::fs::renameat(&dir, &name, &dir, &aside);
    moved.map_err(|error| Error::io(log.path())(error.into()))?;
    let request = v1::ReopenContainerLogRequest {
        container_id: id.to_owned(),
    };
    let mut runtime = core.runtime.client.clone().runtime;
    if let Err(status) = runtime.reopen_container_log(request).await {
        // The runtime did not reopen the log and still writes to the same file: rename it back.
        let _ = rustix::fs::renameat(&dir, &aside, &dir, &name);
        return Err(status.into());
    }
    debug!(log = %log.path().display(), "log rotated");
    let files = usize::try_from(core.settings().container_log_max_files).unwrap_or(2);
    remove_oldest(log, &dir, files);
    Ok(())
}

/// Removes the oldest rotated logs above the configured number of files.
fn remove_oldest(log: &LogFile, dir: &OwnedFd, files: usize) {
    let aside = log.set_aside(dir);
    let beyond = aside.len().saturating_sub(files.saturating_sub(1));
    for name in &aside[..beyond] {
        if let Err(error) = LogFile::remove(dir, name) {
            warn!(name, %error, "cannot remove an old log");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_logs_go_first() {
        let dir = tempfile::tempdir().unwrap();
        let log = LogFile::new(dir.path(), &dir.path().join("0.log"));
        for day in 1..=6 {
            std::fs::write(dir.path().join(format!("0.log.2026010{day}-000000")), "").unwrap();
        }
        std::fs::write(log.path(), "").unwrap();
        let opened = log.directory().unwrap();
        remove_oldest(&log, &opened, 5);
        let left = log.set_aside(&opened);
        assert_eq!(left.len(), 4);
        assert_eq!(left[0], "0.log.20260103-000000");
        assert!(log.path().exists());
    }
}
