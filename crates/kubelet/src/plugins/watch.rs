//! Finds the sockets in the registry directory, notified by inotify.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::future::select_all;
use stdx::Clock;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{Handlers, socket};
use crate::inotify::Watch;

/// The maximum depth of directories below the registry.
const MAX_DEPTH: usize = 8;
/// The maximum number of watched directories; changes in others are found by the periodic scan.
const MAX_DIRECTORIES: usize = 256;
/// The period of scans without notification: the kernel may lose events.
const INTERVAL: Duration = Duration::from_secs(60);

/// Identifies the socket at a path: inode and change time.
type Identity = (u64, i64, i64);

/// The contents of the registry.
#[derive(Debug, Default, PartialEq)]
struct RegistryContents {
    sockets: BTreeMap<PathBuf, Identity>,
    directories: BTreeSet<PathBuf>,
}

/// Follows the registry. Never returns.
pub(crate) async fn run(dir: PathBuf, handlers: Handlers, clock: Arc<dyn Clock>) {
    let mut plugins: BTreeMap<PathBuf, (Identity, CancellationToken)> = BTreeMap::new();
    let mut tasks = JoinSet::new();
    let mut watches: BTreeMap<PathBuf, Watch> = BTreeMap::new();
    loop {
        // Watch before the scan, so that nothing is missed in between.
        watch(&mut watches, [dir.clone()].into());
        let mut found = scan(&dir);
        if watch(&mut watches, found.directories.clone()) {
            found = scan(&dir);
        }
        plugins.retain(|path, (identity, gone)| {
            let stays = found.sockets.get(path) == Some(identity);
            if !stays {
                gone.cancel();
            }
            stays
        });
        for (path, identity) in found.sockets {
            plugins.entry(path.clone()).or_insert_with(|| {
                let gone = CancellationToken::new();
                let (handlers, clock) = (handlers.clone(), clock.clone());
                tasks.spawn(socket::follow(path, handlers, clock, gone.clone()));
                (identity, gone)
            });
        }
        let changed = watches.values().map(|watch| Box::pin(watch.changed()));
        let changed = changed.collect::<Vec<_>>();
        tokio::select! {
            _ = async { select_all(changed).await }, if !watches.is_empty() => {}
            Some(_) = tasks.join_next(), if !tasks.is_empty() => {}
            () = clock.sleep(INTERVAL) => {}
        }
    }
}

/// Adds watches for these directories; returns whether any is new.
fn watch(watches: &mut BTreeMap<PathBuf, Watch>, directories: BTreeSet<PathBuf>) -> bool {
    watches.retain(|dir, _| dir.is_dir());
    let mut any = false;
    for dir in directories {
        if watches.contains_key(&dir) || watches.len() >= MAX_DIRECTORIES {
            continue;
        }
        match Watch::new(&dir, true) {
            Ok(watch) => {
                watches.insert(dir, watch);
                any = true;
            }
            Err(error) => warn!(dir = %dir.display(), %error, "cannot watch"),
        }
    }
    any
}

fn scan(dir: &Path) -> RegistryContents {
    let mut found = RegistryContents::default();
    find_sockets(dir, 0, &mut found);
    found
}

fn find_sockets(dir: &Path, depth: usize, found: &mut RegistryContents) {
    found.directories.insert(dir.to_owned());
    let Ok(entries) = std::fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        // As upstream, hidden files are ignored.
        if name.to_string_lossy().starts_with('.') {
            continue;
        }
        let Ok(meta) = std::fs::symlink_metadata(entry.path()) else {
            continue;
        };
        if meta.is_dir() && depth < MAX_DEPTH {
            find_sockets(&entry.path(), depth + 1, found);
        } else if meta.file_type().is_socket() {
            let identity = (meta.ino(), meta.ctime(), meta.ctime_nsec());
            found.sockets.insert(entry.path(), identity);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_found_in_subdirectories_and_hidden_ones_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::write(root.join("file"), "").unwrap();
        let listen = |path: &str| std::os::unix::net::UnixListener::bind(root.join(path)).unwrap();
        let _kept = [listen("x.sock"), listen("a/b/y.sock"), listen(".hidden")];
        let found = scan(root);
        let sockets: Vec<_> = found.sockets.keys().cloned().collect();
        assert_eq!(sockets, [root.join("a/b/y.sock"), root.join("x.sock")]);
        assert_eq!(found.directories.len(), 3);
        // A socket that was created again has another identity.
        std::fs::remove_file(root.join("x.sock")).unwrap();
        let _again = listen("x.sock");
        assert_ne!(scan(root).sockets, found.sockets);
    }
}
