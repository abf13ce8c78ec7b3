//! Reloads the KubeletConfiguration when its files change. A file that cannot be read changes
//! nothing.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use reconcile::Kind;
use tracing::{info, warn};

use crate::{
    configuration::{self, Sources},
    core::Core,
    inotify::Watch,
    pulls::Pulls,
};

/// Never returns.
pub(crate) async fn run(core: Arc<Core>) {
    let sources = core.config.kubelet_sources.clone();
    loop {
        let Some(watch) = watch(&sources) else {
            return;
        };
        // The file may have changed before it was watched.
        take_over(&core, &sources);
        if watch.changed().await.is_err() {
            return;
        }
    }
}

/// The directories to watch. Editors replace files, so that a watch on the file itself would miss
/// the next change.
fn directories(sources: &Sources) -> Vec<PathBuf> {
    fn below(dir: &Path, found: &mut Vec<PathBuf>) {
        found.push(dir.to_owned());
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.path().is_dir() {
                below(&entry.path(), found);
            }
        }
    }
    let mut found = Vec::new();
    if let Some(dir) = sources.file.as_deref().and_then(Path::parent) {
        let dir = if dir.as_os_str().is_empty() {
            Path::new(".")
        } else {
            dir
        };
        found.push(dir.to_owned());
    }
    if let Some(dir) = &sources.drop_ins {
        below(dir, &mut found);
    }
    found
}

fn watch(sources: &Sources) -> Option<Watch> {
    let directories = directories(sources);
    let (first, rest) = directories.split_first()?;
    let watch = Watch::new(first, false).and_then(|watch| {
        rest.iter().try_for_each(|dir| watch.also(dir))?;
        Ok(watch)
    });
    watch
        .inspect_err(|error| warn!(%error, "cannot watch the kubelet configuration"))
        .ok()
}

fn take_over(core: &Core, sources: &Sources) {
    let loaded = match configuration::load(sources.clone()) {
        Ok(loaded) => loaded.configuration,
        Err(error) => {
            warn!(error, "changed kubelet configuration rejected");
            let message = format!("The changed kubelet configuration was rejected: {error}");
            core.events
                .node(Kind::Warning, "InvalidKubeletConfiguration", message);
            return;
        }
    };
    let change = configuration::reload(&core.settings(), &loaded);
    if !change.waiting.is_empty() {
        let fields = change.waiting.join(", ");
        warn!(fields, "changed settings take effect at the next start");
    }
    if change.changed.is_empty() {
        return;
    }
    let fields = change.changed.join(", ");
    info!(fields, "kubelet configuration reloaded");
    *core.pulls.lock() = Arc::new(Pulls::new(&change.effective));
    core.settings.send_replace(Arc::new(change.effective));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directories_of_the_file_and_of_all_drop_ins_are_watched() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("a/b");
        std::fs::create_dir_all(&below).unwrap();
        let sources = Sources {
            file: Some("/etc/kubelet.yaml".into()),
            drop_ins: Some(dir.path().to_owned()),
        };
        let expected = [
            PathBuf::from("/etc"),
            dir.path().to_owned(),
            dir.path().join("a"),
            below,
        ];
        assert_eq!(directories(&sources), expected);
        assert!(directories(&Sources::default()).is_empty());
    }
}
