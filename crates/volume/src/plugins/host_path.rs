//! hostPath: a path of the node, checked or created by its type; never removed. In a pod or in a
//! persistent volume.

use std::{
    fs,
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{HostPathVolumeSource, Volume};

use super::make_dir;
use crate::{
    Error, Mounter, Plugin, Request, Result,
    storage::{Host, PodMount, Publish, Spec, Step, StepError, StoragePlugin, run_blocking},
};

pub(super) struct HostPath;

impl Plugin for HostPath {
    fn name(&self) -> &'static str {
        "kubernetes.io/host-path"
    }

    fn claims(&self, volume: &Volume) -> bool {
        volume.host_path.is_some()
    }

    fn set_up(&self, request: &Request) -> Result<PathBuf> {
        let source = request.volume.host_path.clone().unwrap_or_default();
        let path = Path::new(&source.path);
        check(path, source.type_.as_deref().unwrap_or_default())?;
        Ok(path.to_owned())
    }

    fn tear_down(&self, _: &Path, _: &dyn Mounter) -> Result<()> {
        Ok(())
    }
}

/// A hostPath persistent volume.
pub(super) struct HostPathVolume;

fn source(spec: &Spec) -> Option<&HostPathVolumeSource> {
    spec.volume.as_ref()?.spec.as_ref()?.host_path.as_ref()
}

#[async_trait]
impl StoragePlugin for HostPathVolume {
    fn name(&self) -> &'static str {
        "kubernetes.io/host-path"
    }

    fn handles(&self, spec: &Spec) -> bool {
        source(spec).is_some()
    }

    fn supports_mount_options(&self) -> bool {
        false
    }

    fn volume_name(&self, spec: &Spec, pod: &str) -> String {
        format!("{pod}-{}", spec.name)
    }

    async fn publish(&self, request: &Publish<'_>, host: &dyn Host) -> Step<PathBuf> {
        if request.spec.is_block {
            let why = "hostPath volumes have no block devices".to_owned();
            return Err(StepError::Failed(why));
        }
        let source = source(request.spec).cloned().unwrap_or_default();
        let checked = move || {
            let path = PathBuf::from(source.path);
            check(&path, source.type_.as_deref().unwrap_or_default())?;
            Ok(path)
        };
        run_blocking(host, checked).await
    }

    async fn unpublish(&self, _: &PodMount, _: &dyn Host) -> Step<()> {
        Ok(())
    }

    fn find_published(&self, mount: &PodMount, _: &Path) -> Option<String> {
        Some(format!("{}-{}", mount.pod, mount.name))
    }
}

fn check(path: &Path, wanted: &str) -> Result<()> {
    match wanted {
        "DirectoryOrCreate" if !path.exists() => return make_dir(path, 0o755),
        "FileOrCreate" if !path.exists() => {
            let mut open = fs::OpenOptions::new();
            open.write(true).create(true).truncate(false).mode(0o644);
            return open.open(path).map(drop).map_err(Error::io("create", path));
        }
        _ => {}
    }
    let kind = fs::metadata(path).map(|meta| meta.file_type()).ok();
    let is = |test: fn(&fs::FileType) -> bool| kind.as_ref().is_some_and(test);
    let (fits, noun) = match wanted {
        "" => (true, "path"),
        "Directory" | "DirectoryOrCreate" => (is(fs::FileType::is_dir), "directory"),
        "File" | "FileOrCreate" => (is(fs::FileType::is_file), "file"),
        "Socket" => (is(FileTypeExt::is_socket), "socket file"),
        "CharDevice" => (is(FileTypeExt::is_char_device), "character device"),
        "BlockDevice" => (is(FileTypeExt::is_block_device), "block device"),
        _ => (false, "known hostPath type"),
    };
    let path = path.display().to_string();
    if fits {
        Ok(())
    } else {
        Err(Error::HostPathType { path, wanted: noun })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_checked_and_created_where_they_say_so() {
        let root = tempfile::tempdir().unwrap();
        let (dir, file) = (root.path().join("d"), root.path().join("f"));
        assert!(check(&dir, "Directory").is_err());
        assert!(check(&dir, "DirectoryOrCreate").is_ok());
        assert!(check(&dir, "Directory").is_ok());
        assert!(check(&dir, "File").is_err());
        assert!(check(&file, "FileOrCreate").is_ok());
        assert!(check(&file, "File").is_ok());
        assert!(check(Path::new("/dev/null"), "CharDevice").is_ok());
        assert!(check(&root.path().join("none"), "").is_ok());
    }
}
