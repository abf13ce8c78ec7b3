//! Keeps logs from filling the disk: a log that grew too large is set aside and its container told
//! to begin a new one.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cri::v1;
use tracing::{debug, warn};

use crate::{Result, core::Core, make::sandbox::log_directory, registry::Seen, server::bare_id};

const INTERVAL: Duration = Duration::from_secs(10);
const MAX_SIZE: u64 = 10 * 1024 * 1024;
/// With the one that is written.
const MAX_FILES: usize = 5;

/// Looks at all logs for ever.
pub async fn run(core: Arc<Core>) {
    loop {
        core.config.clock.sleep(INTERVAL).await;
        for seen in core.registry.pods() {
            for (id, log) in logs(&core, &seen) {
                if !std::fs::metadata(&log).is_ok_and(|meta| meta.len() > MAX_SIZE) {
                    continue;
                }
                if let Err(error) = rotate(&core, &id, &log).await {
                    warn!(log = %log.display(), %error, "cannot rotate log");
                }
            }
        }
    }
}

/// The running containers of a pod and their logs.
fn logs(core: &Core, seen: &Seen) -> Vec<(String, PathBuf)> {
    let dir = log_directory(&core.config.pod_logs_dir.to_string_lossy(), &seen.pod);
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
            Some((id, Path::new(&dir).join(&status.name).join(file)))
        })
        .collect()
}

async fn rotate(core: &Core, id: &str, log: &Path) -> Result<()> {
    let stamp = core.now().strftime("%Y%m%d-%H%M%S");
    let aside = PathBuf::from(format!("{}.{stamp}", log.display()));
    std::fs::rename(log, &aside).map_err(crate::Error::io(log))?;
    let request = v1::ReopenContainerLogRequest {
        container_id: id.to_owned(),
    };
    if let Err(status) = core
        .runtime
        .client
        .clone()
        .runtime
        .reopen_container_log(request)
        .await
    {
        // The container goes on writing where it wrote.
        let _ = std::fs::rename(&aside, log);
        return Err(status.into());
    }
    debug!(log = %log.display(), "log rotated");
    for old in superfluous(log) {
        let _ = std::fs::remove_file(old);
    }
    Ok(())
}

/// Logs set aside beyond what is kept, the oldest.
fn superfluous(log: &Path) -> Vec<PathBuf> {
    let prefix = format!("{}.", log.file_name().unwrap_or_default().to_string_lossy());
    let dir = log.parent().unwrap_or(Path::new("/"));
    let mut aside: Vec<PathBuf> = std::fs::read_dir(dir)
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    aside.retain(|path| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with(&prefix))
    });
    aside.sort();
    aside.truncate(aside.len().saturating_sub(MAX_FILES - 1));
    aside
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_logs_go_first() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("0.log");
        for day in 1..=6 {
            std::fs::write(dir.path().join(format!("0.log.2026010{day}-000000")), "").unwrap();
        }
        std::fs::write(&log, "").unwrap();
        let gone: Vec<_> = superfluous(&log)
            .iter()
            .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
            .collect();
        assert_eq!(gone, ["0.log.20260101-000000", "0.log.20260102-000000"]);
    }
}
