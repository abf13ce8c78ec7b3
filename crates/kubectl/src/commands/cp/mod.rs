//! `kubectl cp`: copies files to and from containers with tar in the container; without tar, one
//! file at a time with cat and the shell. Contents are streamed: a copy of any size needs little
//! memory.

mod archive;
mod pipe;
mod remote;
mod without_tar;

use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::Args;
use streaming::ExitStatus;

use crate::{
    error::Exit,
    session::Session,
    streams::{choose_container, pod_of},
};
use pipe::ChunkReader;
use remote::{Ended, Remote};

/// Flags of `cp`.
#[derive(Debug, Args)]
pub(crate) struct Cp {
    /// [[NAMESPACE/]POD:]PATH
    source: String,
    /// [[NAMESPACE/]POD:]PATH
    destination: String,
    /// Container name
    #[arg(short, long)]
    container: Option<String>,
    /// Do not preserve owner and permissions of the copied files
    #[arg(long)]
    no_preserve: bool,
    /// How often a copy from a container is tried again; negative is without end
    #[arg(
        long,
        default_value_t = 0,
        value_name = "COUNT",
        allow_negative_numbers = true
    )]
    retries: i64,
}

/// A path, local or in a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FileSpec {
    namespace: Option<String>,
    pod: Option<String>,
    path: String,
}

impl FileSpec {
    fn parse(text: &str) -> Result<Self> {
        if text.is_empty() {
            bail!("filepath can not be empty");
        }
        let Some((pod, path)) = text.split_once(':') else {
            return Ok(Self {
                namespace: None,
                pod: None,
                path: text.to_owned(),
            });
        };
        if path.is_empty() {
            bail!("filepath can not be empty");
        }
        let (namespace, pod) = match pod.split('/').collect::<Vec<_>>().as_slice() {
            [pod] if !pod.is_empty() => (None, *pod),
            [namespace, pod] if !namespace.is_empty() && !pod.is_empty() => {
                (Some((*namespace).to_owned()), *pod)
            }
            _ => bail!("filespec must match the canonical format: [[namespace/]pod:]file/path"),
        };
        Ok(Self {
            namespace,
            pod: Some(pod.to_owned()),
            path: path.to_owned(),
        })
    }
}

impl Cp {
    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        let (source, destination) = (
            FileSpec::parse(&self.source)?,
            FileSpec::parse(&self.destination)?,
        );
        match (&source.pod, &destination.pod) {
            (Some(_), Some(_)) => bail!("one of src or dest must be a local file specification"),
            (None, None) => bail!("one of src or dest must be a remote file specification"),
            (Some(_), None) => {
                let remote = self.remote(session, &source, true).await?;
                self.download(&remote, &source.path, &destination.path)
                    .await
            }
            (None, Some(_)) => {
                if !Path::new(&source.path).exists() {
                    bail!("{} doesn't exist in local filesystem", source.path);
                }
                let remote = self.remote(session, &destination, false).await?;
                self.upload(&remote, &source.path, &destination.path).await
            }
        }
    }

    async fn remote<'a>(
        &self,
        session: &'a Session,
        spec: &FileSpec,
        is_download: bool,
    ) -> Result<Remote<'a>> {
        let name = spec.pod.as_deref().unwrap_or_default();
        let pod = match &spec.namespace {
            Some(namespace) => {
                session
                    .api
                    .get(&format!("/api/v1/namespaces/{namespace}/pods/{name}"))
                    .await?
            }
            None => pod_of(session, name, "0s").await?,
        };
        let (container, notice) = choose_container(&pod, self.container.as_deref())?;
        match notice {
            // As upstream: everything about a download is output.
            Some(notice) if is_download => println!("{notice}"),
            Some(notice) => eprintln!("{notice}"),
            None => {}
        }
        Ok(Remote {
            session,
            pod,
            container,
        })
    }

    async fn download(&self, remote: &Remote<'_>, source: &str, destination: &str) -> Result<()> {
        let (from, to) = (source.to_owned(), destination.to_owned());
        let no_preserve = self.no_preserve;
        let spec = FileSpec::parse(&self.source)?;
        let hint = format!(
            " (consider using \"kubectl exec -n {:?} {:?} -- tar cf - {source:?} | tar xf -\")",
            spec.namespace.unwrap_or_default(),
            spec.pod.unwrap_or_default()
        );
        let (ended, unpacked) = remote
            .receive_archive(source, self.retries, move |archive: ChunkReader| {
                archive::unpack(archive, &from, Path::new(&to), no_preserve, &hint)
            })
            .await?;
        if ended.is_program_missing() {
            return without_tar::download(remote, source, Path::new(destination)).await;
        }
        // As upstream: what tar reports about a download is output.
        print!("{}", ended.errors);
        unpacked?;
        ended.success()
    }

    async fn upload(&self, remote: &Remote<'_>, source: &str, destination: &str) -> Result<()> {
        let path = Path::new(source);
        let mut target = destination.trim_end_matches('/').to_owned();
        if destination.ends_with('/') || remote.is_directory(destination).await {
            let name = path
                .canonicalize()?
                .file_name()
                .context("the source names no file")?
                .to_string_lossy()
                .into_owned();
            target = format!("{target}/{name}");
        }
        let (directory, name) = target.rsplit_once('/').unwrap_or((".", &target));
        let directory = if directory.is_empty() { "/" } else { directory };
        let mut command = vec!["tar"];
        if self.no_preserve {
            command.extend(["--no-same-permissions", "--no-same-owner"]);
        }
        command.extend(["-xmf", "-", "-C", directory]);
        let (path, name) = (path.to_owned(), name.to_owned());
        let ended = remote
            .send(&command, move |archive| {
                archive::pack(archive, &path, &name)
            })
            .await?;
        if ended.is_program_missing() {
            return without_tar::upload(remote, Path::new(source), &target).await;
        }
        eprint!("{}", ended.errors);
        ended.success()
    }
}

impl Ended {
    /// Whether the container has no such program.
    fn is_program_missing(&self) -> bool {
        let is_missing = match &self.status {
            ExitStatus::Code(code) => matches!(code, 126 | 127),
            ExitStatus::Failed(_) => !self.is_disconnected(),
        };
        // The status of `tar | tail` is that of tail.
        is_missing
            || self.errors.contains("tar: not found")
            || self.errors.contains("tar: command not found")
    }

    /// Its exit code is an error with that code.
    fn success(self) -> Result<()> {
        match self.status {
            ExitStatus::Code(0) => Ok(()),
            ExitStatus::Code(code) => Err(Exit(u8::try_from(code & 0xff).unwrap_or(1)).into()),
            ExitStatus::Failed(message) => bail!("{message}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_local_or_in_a_pod() {
        let place = FileSpec::parse("ns/pod:/a/b").unwrap();
        assert_eq!(
            (
                place.namespace.as_deref(),
                place.pod.as_deref(),
                place.path.as_str()
            ),
            (Some("ns"), Some("pod"), "/a/b")
        );
        assert_eq!(FileSpec::parse("./x").unwrap().pod, None);
        assert!(FileSpec::parse("a/b/c:/x").is_err() && FileSpec::parse("pod:").is_err());
    }
}
