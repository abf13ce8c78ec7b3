//! local: a directory or a block device of this node as a persistent volume. Directories must
//! exist, except those of the built-in provisioner, which are created at the first use. A volume
//! with enforced capacity is an image file of that size with a file system.

use std::{
    ffi::OsStr,
    fs,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::FileTypeExt,
    },
    path::{Component, Path, PathBuf},
};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{LocalVolumeSource, Pod};
use machinery::quantity;
use rustix::{
    fs::{Mode, OFlags, ResolveFlags},
    io::Errno,
};

use super::mounted::{link_device, measure, remove_mount_point, unlink_device};
use crate::{
    Error, MountOptions, Mounter, Result, format, image, ownership,
    storage::{
        Expand, Expanded, Host, Measure, Measuring, PodMount, Publish, Spec, Staged, Step,
        StepError, StoragePlugin, run_blocking,
    },
};

pub(super) const NAME: &str = "kubernetes.io/local-volume";

/// The built-in provisioner's annotation of volumes with enforced capacity.
const ENFORCE_CAPACITY: &str = "mainstay.dev/enforce-capacity";

pub(super) struct Local;

fn source(spec: &Spec) -> Option<&LocalVolumeSource> {
    spec.volume.as_ref()?.spec.as_ref()?.local.as_ref()
}

fn is_enforced(spec: &Spec) -> bool {
    let annotations = spec.volume.as_ref();
    let annotations = annotations.and_then(|volume| volume.metadata.annotations.as_ref());
    let value = annotations.and_then(|annotations| annotations.get(ENFORCE_CAPACITY));
    value.is_some_and(|value| value == "true")
}

fn capacity(spec: &Spec) -> Step<u64> {
    let volume = spec.volume.as_ref().and_then(|volume| volume.spec.as_ref());
    let size = volume.and_then(|volume| volume.capacity.as_ref()?.get("storage"));
    let bytes = size.and_then(|size| quantity::value(&size.0));
    let bytes = bytes.and_then(|bytes| u64::try_from(bytes).ok());
    bytes.ok_or_else(|| StepError::Failed("the volume has no capacity".to_owned()))
}

/// The node-wide mount points of block devices' file systems.
fn staging_root(root: &Path) -> PathBuf {
    root.join("plugins").join(NAME).join("mounts")
}

#[async_trait]
impl StoragePlugin for Local {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, spec: &Spec) -> bool {
        source(spec).is_some()
    }

    fn volume_name(&self, spec: &Spec, _: &str) -> String {
        spec.name.clone()
    }

    async fn stages(&self, spec: &Spec, host: &dyn Host) -> Step<bool> {
        let Some(source) = source(spec).filter(|_| !spec.is_block) else {
            return Ok(false);
        };
        let path = source.path.clone();
        let is_device = move || Ok(is_block_device(&path));
        Ok(is_enforced(spec) || run_blocking(host, is_device).await?)
    }

    async fn stage(&self, spec: &Spec, _: &Pod, host: &dyn Host) -> Step<()> {
        let source = source(spec).cloned().unwrap_or_default();
        let target = staging_root(host.root_dir()).join(&spec.name);
        let mounter = host.mounter();
        if mounter.is_mounted(&target)? {
            return Ok(());
        }
        fs::create_dir_all(&target).map_err(Error::io("create", &target))?;
        if is_enforced(spec) {
            return stage_image(spec, &target, host).await;
        }
        let kind = source.fs_type.filter(|kind| !kind.is_empty());
        let options = MountOptions::new(&spec.mount_options(), spec.read_only);
        let device = PathBuf::from(&source.path);
        let kind = kind.unwrap_or_else(|| "ext4".into());
        let kind = format::ensure(&device, &kind, spec.read_only)
            .await
            .map_err(StepError::Failed)?;
        let mount = move || Ok(mounter.mount(&device, &target, &kind, &options)?);
        run_blocking(host, mount).await
    }

    async fn publish(&self, request: &Publish<'_>, host: &dyn Host) -> Step<PathBuf> {
        let spec = request.spec;
        let path = source(spec).map(|source| PathBuf::from(&source.path));
        let path = path.unwrap_or_default();
        check_path(&path)?;
        let dir = request.mount.dir(host.root_dir(), NAME);
        if spec.is_block {
            return run_blocking(host, move || Ok(link_device(&path, &dir)?)).await;
        }
        let staged = staging_root(host.root_dir()).join(&spec.name);
        let is_staged = self.stages(spec, host).await?;
        // The first pod's fsGroup is applied.
        let owner = (!spec.read_only && !request.is_shared).then(|| request.pod.clone());
        let options = MountOptions::new(&spec.mount_options(), spec.read_only);
        let (root, mounter) = (host.local_path_root().to_owned(), host.mounter());
        let bind = move || {
            let open = || match is_staged {
                true => open_dir(&staged),
                false => open_source(&path, &root),
            };
            Ok(bind(open, &dir, &options, owner.as_ref(), mounter).map(|()| dir)?)
        };
        run_blocking(host, bind).await
    }

    async fn unpublish(&self, mount: &PodMount, host: &dyn Host) -> Step<()> {
        let dir = mount.dir(host.root_dir(), NAME);
        if mount.is_block {
            return Ok(unlink_device(&dir)?);
        }
        remove_mount_point(dir, host).await
    }

    async fn unstage(&self, staged: &Staged, host: &dyn Host) -> Step<()> {
        let dir = staging_root(host.root_dir()).join(&staged.name);
        remove_mount_point(dir, host).await
    }

    async fn expand(&self, request: &Expand<'_>, host: &dyn Host) -> Step<Expanded> {
        if !self.stages(request.spec, host).await? {
            // A directory has the size of its file system.
            return Ok(Expanded::Done);
        }
        let device = source(request.spec).map(|source| PathBuf::from(&source.path));
        let device = device.unwrap_or_default();
        let target = staging_root(host.root_dir()).join(&request.spec.name);
        let grown = match (is_enforced(request.spec), u64::try_from(request.bytes)) {
            (true, Ok(bytes)) => image::grow(&device, bytes, &target).await,
            _ => format::grow(&device, &target).await,
        };
        grown.map_err(StepError::Failed)?;
        Ok(Expanded::Done)
    }

    async fn stats(
        &self,
        mount: &PodMount,
        host: &dyn Host,
        measuring: Measuring,
    ) -> Step<Option<Measure>> {
        measure(mount, mount.dir(host.root_dir(), NAME), host, measuring).await
    }

    fn find_published(&self, mount: &PodMount, _: &Path) -> Option<String> {
        Some(mount.name.clone())
    }

    fn find_staged(&self, root: &Path) -> Vec<Staged> {
        let dirs = crate::entries(&staging_root(root)).unwrap_or_default();
        let names = dirs.iter().filter_map(|dir| dir.file_name()?.to_str());
        names
            .map(|name| Staged {
                volume: name.to_owned(),
                name: name.to_owned(),
                is_block: false,
            })
            .collect()
    }
}

/// Bind mounts a directory unless that is done. It was given to the pod's fsGroup before: an
/// interrupted change is repeated.
fn bind(
    open: impl FnOnce() -> Result<OwnedFd>,
    dir: &Path,
    options: &MountOptions,
    owner: Option<&Pod>,
    mounter: &dyn Mounter,
) -> Result<()> {
    if mounter.is_mounted(dir)? {
        return Ok(());
    }
    let source = open()?;
    if let Some(pod) = owner {
        ownership::apply_fs_group_to(source.as_fd(), dir, pod, false)?;
    }
    fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
    mounter.bind(source.as_fd(), dir, options)
}

/// Mounts a volume of the built-in provisioner with enforced capacity.
async fn stage_image(spec: &Spec, target: &Path, host: &dyn Host) -> Step<()> {
    let dir = source(spec).map(|source| PathBuf::from(&source.path));
    let dir = dir.unwrap_or_default();
    check_path(&dir)?;
    if promised(&dir, host.local_path_root()).is_none() {
        let why = format!("{} is no volume of the local-path class", dir.display());
        return Err(StepError::Failed(why));
    }
    // Pods see the mounted image, never the directory.
    open_promised(&dir, host.local_path_root(), 0o700)?;
    let options = MountOptions::new(&spec.mount_options(), spec.read_only);
    let mounted = image::mount(&dir, capacity(spec)?, target, &options, host.mounter()).await;
    mounted.map_err(StepError::Failed)
}

fn is_block_device(path: &str) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device())
}

fn check_path(path: &Path) -> Step<()> {
    let steps_back = path.components().any(|part| part == Component::ParentDir);
    if !path.is_absolute() || steps_back {
        let path = path.display();
        return Err(StepError::Failed(format!(
            "invalid path: {path} must be absolute and must not contain '..'"
        )));
    }
    Ok(())
}

fn open_dir(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
        .map_err(|errno| Error::io("open", path)(errno.into()))
}

/// Opens the directory of a volume. One directly below the root of the built-in provisioner is
/// created if it is missing, without following links: pods can write only within their volumes, and
/// the root belongs to the node.
fn open_source(path: &Path, root: &Path) -> Result<OwnedFd> {
    match promised(path, root) {
        // Whatever the umask: the pod's user need not be root.
        Some(_) => open_promised(path, root, 0o777),
        None => open_dir(path),
    }
}

fn open_promised(path: &Path, root: &Path, mode: u32) -> Result<OwnedFd> {
    let name = promised(path, root).unwrap_or_default();
    let mode = Mode::from_raw_mode(mode);
    let fail = |errno: Errno| Error::io("open", path)(errno.into());
    let top = open_dir(root)?;
    let made = match rustix::fs::mkdirat(&top, name, mode) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(errno) => return Err(Error::io("create", path)(errno.into())),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let dir = rustix::fs::openat2(&top, name, flags, Mode::empty(), resolve).map_err(fail)?;
    if made {
        rustix::fs::fchmod(&dir, mode).map_err(fail)?;
    }
    Ok(dir)
}

/// The name of a directory directly below the root.
fn promised<'a>(path: &'a Path, root: &Path) -> Option<&'a OsStr> {
    let mut below = path.strip_prefix(root).ok()?.components();
    match (below.next(), below.next()) {
        (Some(Component::Normal(name)), None) => Some(name),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_directly_beneath_the_root_are_promised() {
        let root = Path::new("/data/local-path");
        let name = |path: &'static str| promised(Path::new(path), root);
        assert_eq!(name("/data/local-path/pvc-1"), Some(OsStr::new("pvc-1")));
        for other in [
            "/data/local-path",
            "/data/local-path/",
            "/data/local-path/a/b",
            "/data/local-path/..",
            "/data/local-pathx/a",
            "/data/other",
        ] {
            assert_eq!(name(other), None, "{other}");
        }
    }

    #[test]
    fn a_promised_directory_is_made_open_to_all_and_never_through_a_link() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let (root, outside) = (dir.path().join("local-path"), dir.path().join("outside"));
        fs::create_dir(&root).unwrap();
        fs::create_dir(&outside).unwrap();
        open_source(&root.join("a"), &root).unwrap();
        let mode = fs::metadata(root.join("a")).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o777);
        fs::write(root.join("a/kept"), "x").unwrap();
        open_source(&root.join("a"), &root).unwrap();
        assert!(root.join("a/kept").exists());
        std::os::unix::fs::symlink(&outside, root.join("link")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("new"), root.join("dangling")).unwrap();
        assert!(open_source(&root.join("link"), &root).is_err());
        assert!(open_source(&root.join("dangling"), &root).is_err());
        assert!(!dir.path().join("new").exists());
        // Elsewhere directories must exist.
        assert!(open_source(&dir.path().join("missing"), &root).is_err());
        assert!(open_source(&outside, &root).is_ok());
    }

    #[test]
    fn paths_that_step_back_are_refused() {
        assert!(check_path(Path::new("/mnt/a")).is_ok());
        assert!(check_path(Path::new("/mnt/../etc")).is_err());
        assert!(check_path(Path::new("mnt")).is_err());
    }
}
