//! `kubectl cp`: copies files to and from containers with tar in the container; without tar, one
//! file at a time with cat, or with head and the shell.

use std::{
    io::Read,
    path::{Component, Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;
use streaming::ExitStatus;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    session::Session,
    streams::{self, container_of, pod_of},
};

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

/// A container to copy to or from.
struct Remote<'a> {
    session: &'a Session,
    pod: Value,
    container: String,
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
                let remote = self.remote(session, &source).await?;
                remote
                    .download(&source.path, &destination.path, &self)
                    .await
            }
            (None, Some(_)) => {
                if !std::path::Path::new(&source.path).exists() {
                    bail!("{} doesn't exist in local filesystem", source.path);
                }
                let remote = self.remote(session, &destination).await?;
                remote
                    .upload(&source.path, &destination.path, self.no_preserve)
                    .await
            }
        }
    }

    async fn remote<'a>(&self, session: &'a Session, place: &FileSpec) -> Result<Remote<'a>> {
        let name = place.pod.as_deref().unwrap_or_default();
        let pod = match &place.namespace {
            Some(namespace) => {
                session
                    .api
                    .get(&format!("/api/v1/namespaces/{namespace}/pods/{name}"))
                    .await?
            }
            None => pod_of(session, name, "0s").await?,
        };
        let container = container_of(&pod, self.container.as_deref(), false)?;
        Ok(Remote {
            session,
            pod,
            container,
        })
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

impl Remote<'_> {
    /// Runs a command with this input; returns its output and exit status.
    async fn run(
        &self,
        command: &[&str],
        input: Option<Vec<u8>>,
    ) -> Result<(Vec<u8>, String, ExitStatus)> {
        let mut exec = streams::exec(
            self.session,
            &self.pod,
            &self.container,
            &words(command),
            input.is_some(),
        )
        .await?;
        let stdin = exec.stdin.take();
        let send = async move {
            if let (Some(mut stdin), Some(input)) = (stdin, input) {
                let _ = stdin.write_all(&input).await;
                let _ = stdin.shutdown().await;
            }
        };
        let (stdout, stderr) = (exec.stdout.take(), exec.stderr.take());
        let read = |from: Option<streaming::StreamReader>| async move {
            let mut bytes = Vec::new();
            if let Some(mut from) = from {
                let _ = from.read_to_end(&mut bytes).await;
            }
            bytes
        };
        let ((), output, errors, status) =
            tokio::join!(send, read(stdout), read(stderr), exec.status());
        exec.close().await;
        Ok((
            output,
            String::from_utf8_lossy(&errors).into_owned(),
            status,
        ))
    }

    async fn succeeds(&self, command: &[&str]) -> bool {
        matches!(
            self.run(command, None).await,
            Ok((_, _, ExitStatus::Code(0)))
        )
    }

    /// The output of tar; read again from the start if the connection ends.
    async fn archive(&self, source: &str, retries: i64) -> Result<(Vec<u8>, String, ExitStatus)> {
        let mut retry = 0;
        loop {
            match self.run(&["tar", "cf", "-", source], None).await {
                Err(error) if retries < 0 || retry < retries => {
                    retry += 1;
                    eprintln!("{error:#}");
                    println!("Resuming copy at 0 bytes, retry {retry}/{retries}");
                }
                Err(error) if retries != 0 => {
                    println!("Dropping out copy after {retry} retries");
                    return Err(error);
                }
                outcome => return outcome,
            }
        }
    }

    async fn download(&self, source: &str, destination: &str, flags: &Cp) -> Result<()> {
        let (archive, errors, status) = self.archive(source, flags.retries).await?;
        if matches!(status, ExitStatus::Code(0 | 1)) && !archive.is_empty() {
            if !errors.is_empty() {
                eprint!("{errors}");
            }
            return unpack(&archive, source, Path::new(destination), flags.no_preserve);
        }
        if is_there(&status, &errors) {
            bail!("{}", errors.trim());
        }
        // No tar: the file's own bytes.
        let (bytes, errors, status) = self.run(&["cat", source], None).await?;
        match status {
            ExitStatus::Code(0) => {
                let mut path = PathBuf::from(destination);
                if path.is_dir() {
                    path.push(
                        Path::new(source)
                            .file_name()
                            .context("the source names no file")?,
                    );
                }
                Ok(std::fs::write(path, bytes)?)
            }
            _ => bail!(
                "the container has neither tar nor a cat that reads {source}: {}",
                errors.trim()
            ),
        }
    }

    async fn upload(&self, source: &str, destination: &str, no_preserve: bool) -> Result<()> {
        let path = Path::new(source);
        if !path.exists() {
            bail!("{source} doesn't exist in local filesystem");
        }
        let mut target = destination.trim_end_matches('/').to_owned();
        if destination.ends_with('/') || self.succeeds(&["test", "-d", destination]).await {
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
        let archive = pack(path, name)?;
        let mut command = vec!["tar", "-xmf", "-", "-C", directory];
        if no_preserve {
            command = vec![
                "tar",
                "--no-same-permissions",
                "--no-same-owner",
                "-xmf",
                "-",
                "-C",
                directory,
            ];
        }
        let (_, errors, status) = self.run(&command, Some(archive)).await?;
        if matches!(status, ExitStatus::Code(0)) {
            return Ok(());
        }
        if is_there(&status, &errors) || path.is_dir() {
            bail!(
                "{}",
                if errors.trim().is_empty() {
                    format!("{status:?}")
                } else {
                    errors.trim().to_owned()
                }
            );
        }
        let script = format!("cat > '{}'", target.replace('\'', "'\\''"));
        let (_, errors, status) = self
            .run(&["sh", "-c", &script], Some(std::fs::read(path)?))
            .await?;
        match status {
            ExitStatus::Code(0) => Ok(()),
            _ => bail!(
                "the container has neither tar nor a shell: {}",
                errors.trim()
            ),
        }
    }
}

/// Whether the program exists in the container.
fn is_there(status: &ExitStatus, errors: &str) -> bool {
    let is_missing = match status {
        ExitStatus::Code(code) => *code == 126 || *code == 127,
        ExitStatus::Failed(_) => true,
    };
    !is_missing && !errors.contains("not found")
}

fn pack(path: &Path, name: &str) -> Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    archive.follow_symlinks(false);
    match path.is_dir() {
        true => archive.append_dir_all(name, path)?,
        false => archive.append_path_with_name(path, name)?,
    }
    Ok(archive.into_inner()?)
}

/// Extracts an archive's files below the destination, and nowhere else.
fn unpack(archive: &[u8], source: &str, destination: &Path, no_preserve: bool) -> Result<()> {
    let prefix: PathBuf = Path::new(source)
        .components()
        .filter(|part| matches!(part, Component::Normal(_)))
        .collect();
    let base = match destination.is_dir() {
        true => destination.join(prefix.file_name().unwrap_or_default()),
        false => destination.to_owned(),
    };
    let mut archive = tar::Archive::new(archive);
    let mut found = false;
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let clean: PathBuf = path
            .components()
            .filter(|part| !matches!(part, Component::RootDir | Component::CurDir))
            .collect();
        let Ok(inside) = clean.strip_prefix(&prefix) else {
            bail!(
                "tar contents corrupted: {} is outside {source}",
                path.display()
            );
        };
        if inside
            .components()
            .any(|part| !matches!(part, Component::Normal(_)))
        {
            eprintln!(
                "warning: file {:?} is outside target destination, skipping",
                path.display().to_string()
            );
            continue;
        }
        found = true;
        let kind = entry.header().entry_type();
        let target = if inside.as_os_str().is_empty() {
            base.clone()
        } else {
            base.join(inside)
        };
        if kind.is_symlink() || kind.is_hard_link() {
            // A link could lead later files out of the destination.
            eprintln!(
                "warning: skipping symlink: {:?} -> {:?}",
                path.display().to_string(),
                entry.link_name()?.unwrap_or_default().display().to_string()
            );
        } else if kind.is_dir() {
            std::fs::create_dir_all(&target)?;
        } else if kind.is_file() {
            if let Some(parent) = target.parent() {
                std::fs::create_dir_all(parent)?;
            }
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes)?;
            std::fs::write(&target, bytes)
                .with_context(|| format!("cannot write {}", target.display()))?;
            if !no_preserve && let Ok(mode) = entry.header().mode() {
                use std::os::unix::fs::PermissionsExt;
                let _ = std::fs::set_permissions(
                    &target,
                    std::fs::Permissions::from_mode(mode & 0o777),
                );
            }
        }
    }
    match found {
        true => Ok(()),
        false => bail!("{source}: no such file or directory"),
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

    #[test]
    fn archives_come_back_and_never_leave_their_directory() {
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("src");
        std::fs::create_dir_all(source.join("inner")).unwrap();
        std::fs::write(source.join("inner/file"), "text").unwrap();
        let archive = pack(&source, "data").unwrap();
        unpack(&archive, "/data", &directory.path().join("out"), false).unwrap();
        assert_eq!(
            std::fs::read_to_string(directory.path().join("out/inner/file")).unwrap(),
            "text"
        );

        let mut evil = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(1);
        header.as_gnu_mut().unwrap().name[..14].copy_from_slice(b"data/../../bad");
        header.set_cksum();
        evil.append(&header, &b"x"[..]).unwrap();
        let evil = evil.into_inner().unwrap();
        let _ = unpack(&evil, "data", &directory.path().join("out2"), false);
        assert!(!directory.path().join("bad").exists());
        assert!(!directory.path().parent().unwrap().join("bad").exists());
    }
}
