//! nfs: an exported directory, mounted for every pod. Nodes without NFS support report that.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::NFSVolumeSource;
use tokio::process::Command;
use tracing::warn;

use super::mounted::{measure, remove_mount_point};
use crate::{
    Error, MountOptions,
    storage::{
        Host, Measure, Measuring, PodMount, Publish, Spec, Step, StepError, StoragePlugin,
        run_blocking,
    },
};

pub(super) const NAME: &str = "kubernetes.io/nfs";

/// The timeout of a mount.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long unmounting waits for a server that does not answer, as upstream.
const UNMOUNT_PATIENCE: Duration = Duration::from_secs(60);

/// The helper of mount(8), which resolves the server's name and negotiates the version.
const HELPERS: &[&str] = &["/sbin/mount.nfs", "/usr/sbin/mount.nfs"];

pub(super) struct Nfs;

fn source(spec: &Spec) -> Option<&NFSVolumeSource> {
    match &spec.volume {
        Some(volume) => volume.spec.as_ref()?.nfs.as_ref(),
        None => spec.inline.nfs.as_ref(),
    }
}

#[async_trait]
impl StoragePlugin for Nfs {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, spec: &Spec) -> bool {
        source(spec).is_some()
    }

    fn volume_name(&self, spec: &Spec, pod: &str) -> String {
        format!("{pod}-{}", spec.name)
    }

    async fn publish(&self, request: &Publish<'_>, host: &dyn Host) -> Step<PathBuf> {
        let spec = request.spec;
        let dir = request.mount.dir(host.root_dir(), NAME);
        let (target, mounter) = (dir.clone(), host.mounter());
        let is_mounted = move || Ok(mounter.is_mounted(&target)?);
        if run_blocking(host, is_mounted).await? {
            return Ok(dir);
        }
        let helper = HELPERS
            .iter()
            .copied()
            .find(|path| Path::new(path).exists());
        let Some(helper) = helper else {
            return Err(StepError::Failed(
                "this node cannot mount nfs: it has no mount.nfs (package nfs-common or nfs-utils)"
                    .to_owned(),
            ));
        };
        let kernel = fs::read_to_string("/proc/filesystems").unwrap_or_default();
        let modules = Path::new("/proc/modules").exists();
        if !supports_nfs(&kernel) && !modules {
            return Err(StepError::Failed(
                "this node cannot mount nfs: its kernel has no nfs client".to_owned(),
            ));
        }
        fs::create_dir_all(&dir).map_err(Error::io("create", &dir))?;
        mount(helper, spec, &dir).await?;
        Ok(dir)
    }

    async fn unpublish(&self, mount: &PodMount, host: &dyn Host) -> Step<()> {
        let dir = mount.dir(host.root_dir(), NAME);
        unmount("umount", &dir, UNMOUNT_PATIENCE, host).await
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
        Some(format!("{}-{}", mount.pod, mount.name))
    }
}

/// Whether the kernel's list of file systems has an NFS client.
fn supports_nfs(list: &str) -> bool {
    let names = list.lines().filter_map(|line| line.split('\t').nth(1));
    names
        .into_iter()
        .any(|name| name.starts_with("nfs") && name != "nfsd")
}

async fn mount(helper: &str, spec: &Spec, dir: &Path) -> Step<()> {
    let source = source(spec).cloned().unwrap_or_default();
    let server = match source.server.contains(':') && !source.server.starts_with('[') {
        true => format!("[{}]", source.server),
        false => source.server,
    };
    let options = MountOptions::new(&spec.mount_options(), spec.read_only);
    let mut command = Command::new(helper);
    command.arg(format!("{server}:{}", source.path)).arg(dir);
    let words = options.words();
    if !words.is_empty() {
        command.args(["-o", &words]);
    }
    command.kill_on_drop(true);
    let output = match tokio::time::timeout(PATIENCE, command.output()).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(StepError::Failed(format!("{helper}: {error}"))),
        Err(_) => {
            let why = format!("the nfs server did not answer within {PATIENCE:?}");
            return Err(StepError::Uncertain(why));
        }
    };
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(StepError::Uncertain(format!(
        "mount.nfs: {}: {}",
        output.status,
        said.trim()
    )))
}

async fn is_mounted(dir: &Path, host: &dyn Host) -> Step<bool> {
    let (dir, mounter) = (dir.to_owned(), host.mounter());
    run_blocking(host, move || Ok(mounter.is_mounted(&dir)?)).await
}

/// Unmounts and removes a directory. The kernel writes what is not written yet, which takes as long as the server is
/// away: another process waits for that, so that the number of servers that hang does not matter. The directory is no
/// mount point meanwhile, and the pod ends without it.
async fn unmount(program: &str, dir: &Path, patience: Duration, host: &dyn Host) -> Step<()> {
    for options in [&["-i", "-c"][..], &["-i", "-c", "-f"]] {
        if !is_mounted(dir, host).await? {
            break;
        }
        let mut command = Command::new(program);
        command.args(options).arg(dir);
        match run(command, patience).await? {
            Unmounting::Ended => {}
            Unmounting::NotInstalled => break,
            Unmounting::Hangs => {
                warn!(dir = %dir.display(), "an nfs server does not answer while its volume is unmounted");
            }
        }
    }
    remove_mount_point(dir.to_owned(), host).await
}

/// How far a program has got that unmounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unmounting {
    Ended,
    /// It still runs, and ends when the server answers.
    Hangs,
    NotInstalled,
}

async fn run(mut command: Command, patience: Duration) -> Step<Unmounting> {
    let ended = match tokio::time::timeout(patience, command.output()).await {
        Ok(Ok(ended)) => ended,
        Ok(Err(_)) => return Ok(Unmounting::NotInstalled),
        Err(_) => return Ok(Unmounting::Hangs),
    };
    if ended.status.success() {
        return Ok(Unmounting::Ended);
    }
    let said = String::from_utf8_lossy(&ended.stderr);
    Err(StepError::Uncertain(format!("umount: {}", said.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_with_a_server_only_has_no_client() {
        assert!(supports_nfs("nodev\tsysfs\nnodev\tnfs4\n"));
        assert!(!supports_nfs("nodev\tnfsd\n\text4\n"));
    }

    #[tokio::test]
    async fn a_server_that_does_not_answer_is_not_waited_for() {
        let run = async |program: &str, argument: &str, patience| {
            let mut command = Command::new(program);
            command.arg(argument);
            super::run(command, patience).await
        };
        let long = Duration::from_secs(60);
        assert_eq!(run("true", "", long).await, Ok(Unmounting::Ended));
        let short = Duration::from_millis(20);
        assert_eq!(run("sleep", "1", short).await, Ok(Unmounting::Hangs));
        assert_eq!(run("/none", "", long).await, Ok(Unmounting::NotInstalled));
        let failed = run("ls", "/none", long).await.unwrap_err();
        assert!(failed.to_string().contains("/none"), "{failed}");
    }
}
