//! Reads the files of a kustomization: only in or below its directory, unless unrestricted.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};

use crate::error::io_reason;

/// A directory to read from, and the directories it was reached through.
#[derive(Debug, Clone)]
pub(super) struct Loader {
    root: PathBuf,
    parents: Vec<PathBuf>,
    is_restricted: bool,
}

impl Loader {
    pub(super) fn new(directory: &Path, is_restricted: bool) -> Result<Self> {
        let root =
            confirm(directory).map_err(|error| anyhow!("must build at directory: {error:#}"))?;
        Ok(Self {
            root,
            parents: Vec::new(),
            is_restricted,
        })
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// The loader of another kustomization; cycles are rejected.
    pub(super) fn enter(&self, path: &str) -> Result<Self> {
        if path.is_empty() {
            bail!("new root cannot be empty");
        }
        if is_remote(path) {
            bail!("kustomizations in other hosts' repositories are not fetched: {path}");
        }
        if Path::new(path).is_absolute() {
            bail!("new root '{path}' cannot be absolute");
        }
        let root = confirm(&self.root.join(path))
            .map_err(|error| anyhow!("must build at directory: {error:#}"))?;
        for visited in self.parents.iter().chain([&self.root]).rev() {
            if visited.starts_with(&root) {
                bail!(
                    "cycle detected: candidate root '{}' contains visited root '{}'",
                    root.display(),
                    visited.display()
                );
            }
        }
        let mut parents = self.parents.clone();
        parents.push(self.root.clone());
        Ok(Self {
            root,
            parents,
            is_restricted: self.is_restricted,
        })
    }

    pub(super) fn bytes(&self, path: &str) -> Result<Vec<u8>> {
        if is_remote(path) {
            return Ok(download(path)?.into_bytes());
        }
        let path = clean(&self.root.join(path));
        if self.is_restricted {
            let real = path
                .canonicalize()
                .map_err(|error| evaluation_error(&path, &path, &error))?;
            if real.is_dir() {
                bail!("'{}' must resolve to a file", path.display());
            }
            if !real.starts_with(&self.root) {
                bail!(
                    "security; file '{}' is not in or below '{}'",
                    path.display(),
                    self.root.display()
                );
            }
        }
        std::fs::read(&path)
            .map_err(|error| anyhow!("open {}: {}", path.display(), io_reason(&error)))
    }

    pub(super) fn text(&self, path: &str) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.bytes(path)?).into_owned())
    }
}

pub(super) fn is_remote(path: &str) -> bool {
    ["http://", "https://"]
        .iter()
        .any(|scheme| path.starts_with(scheme))
}

/// Builds have no runtime; a download gets one on a separate thread.
fn download(url: &str) -> Result<String> {
    let fetch = || -> Result<String> {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(crate::download::text(url))
    };
    std::thread::scope(|scope| scope.spawn(fetch).join())
        .map_err(|_| anyhow!("the download of {url} failed"))?
}

/// The real path of a directory.
fn confirm(directory: &Path) -> Result<PathBuf> {
    if directory.as_os_str().is_empty() {
        bail!("directory path cannot be empty");
    }
    let absolute = clean(&std::path::absolute(directory)?);
    let real = absolute.canonicalize().map_err(|error| {
        anyhow!(
            "not a valid directory: {}",
            evaluation_error(directory, &absolute, &error)
        )
    })?;
    if !real.is_dir() {
        bail!("'{}': file is not directory", directory.display());
    }
    Ok(real)
}

/// Names the first missing part of a path, as resolving links would.
fn evaluation_error(given: &Path, path: &Path, error: &std::io::Error) -> anyhow::Error {
    let mut missing = path.to_path_buf();
    for ancestor in path.ancestors() {
        if ancestor.symlink_metadata().is_ok() {
            break;
        }
        missing = ancestor.to_path_buf();
    }
    anyhow!(
        "evalsymlink failure on '{}' : lstat {}: {}",
        given.display(),
        missing.display(),
        io_reason(error)
    )
}

/// Removes `.` and `..` from a path, without accessing the disk.
fn clean(path: &Path) -> PathBuf {
    let mut parts = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::CurDir => {}
            std::path::Component::ParentDir => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts
}
