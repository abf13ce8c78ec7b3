//! Copies for containers without tar: each file with `cat`, directories with a shell.

use std::{
    fs,
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, anyhow, bail};
use streaming::ExitStatus;

use super::{
    archive::{file_target, write_file},
    pipe::{ChunkReader, ChunkWriter},
    remote::{Ended, Remote, quoted},
};

/// Prints the files below a directory, each followed by a zero byte; links are left out.
const LIST: &str = r#"walk() {
  for entry in "$1"/* "$1"/.[!.]* "$1"/..?*; do
    if [ -L "$entry" ]; then continue
    elif [ -d "$entry" ]; then (walk "$entry")
    elif [ -f "$entry" ]; then printf '%s\0' "$entry"; fi
  done
}
walk "#;

/// The maximum length of the list of a directory's files.
const MAX_LIST: u64 = 64 << 20;

pub(super) async fn download(remote: &Remote<'_>, source: &str, destination: &Path) -> Result<()> {
    let target = file_target(destination.to_owned(), Path::new(source));
    let failed = match download_file(remote, source, target).await? {
        Ok(()) => return Ok(()),
        Err(failed) => failed,
    };
    if !remote.is_directory(source).await {
        return Err(failure(&failed, "cat"));
    }
    let directory = source.trim_end_matches('/');
    let script = format!("{LIST}{}", quoted(directory));
    let (ended, list) = remote
        .receive(&["sh", "-c", &script], |mut output: ChunkReader| {
            // The container chooses what it prints, and could print without end.
            let mut list = String::new();
            let length = output.by_ref().take(MAX_LIST).read_to_string(&mut list)?;
            if length as u64 == MAX_LIST {
                bail!("the list of files is too long");
            }
            Ok(list)
        })
        .await?;
    if ended.status != ExitStatus::Code(0) {
        return Err(failure(&ended, "a shell"));
    }
    fs::create_dir_all(destination)?;
    for file in list?.split_terminator('\0') {
        let target = target_below(destination, directory, file)?;
        if let Err(failed) = download_file(remote, file, target).await? {
            return Err(failure(&failed, "cat"));
        }
    }
    Ok(())
}

/// Why a copy without tar failed: `program` is missing, or what it reported.
fn failure(ended: &Ended, program: &str) -> anyhow::Error {
    let reported = match &ended.status {
        ExitStatus::Failed(message) => message.trim(),
        ExitStatus::Code(_) => ended.errors.trim(),
    };
    match ended.is_program_missing() {
        true => anyhow!(
            "the container has neither tar nor {program}: add a container that has them with `kubectl debug`, or use a volume"
        ),
        false if reported.is_empty() => anyhow!("the copy failed in the container"),
        false => anyhow!("{reported}"),
    }
}

/// The place of a listed file; a container may list anything.
fn target_below(destination: &Path, directory: &str, file: &str) -> Result<PathBuf> {
    let inside = file
        .strip_prefix(directory)
        .map(|inside| inside.trim_start_matches('/'));
    let inside = Path::new(inside.context("the list of files is corrupted")?);
    let is_below = inside
        .components()
        .all(|part| matches!(part, std::path::Component::Normal(_)));
    if !is_below {
        bail!("{file} is outside the target destination");
    }
    Ok(destination.join(inside))
}

/// The inner error is how `cat` ended.
async fn download_file(
    remote: &Remote<'_>,
    source: &str,
    target: PathBuf,
) -> Result<Result<(), Ended>> {
    let to = target.clone();
    let (ended, written) = remote
        .receive(&["cat", source], move |mut output: ChunkReader| {
            // Nothing is written if cat fails at once.
            let mut first = [0];
            match output.read(&mut first)? {
                0 => Ok(false),
                _ => write_file(&to, &mut first.chain(output), None).map(|()| true),
            }
        })
        .await?;
    if ended.status != ExitStatus::Code(0) {
        return Ok(Err(ended));
    }
    if !written? {
        write_file(&target, &mut io::empty(), None)?;
    }
    Ok(Ok(()))
}

pub(super) async fn upload(remote: &Remote<'_>, source: &Path, target: &str) -> Result<()> {
    if !source.is_dir() {
        return upload_file(remote, source, target).await;
    }
    let mut directories = vec![(source.to_owned(), target.to_owned())];
    while let Some((directory, target)) = directories.pop() {
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let target = format!("{target}/{}", name.to_string_lossy());
            let kind = entry.file_type()?;
            if kind.is_dir() {
                directories.push((entry.path(), target));
            } else if kind.is_file() {
                upload_file(remote, &entry.path(), &target).await?;
            } else {
                eprintln!("warning: skipping {:?}", entry.path().display().to_string());
            }
        }
    }
    Ok(())
}

async fn upload_file(remote: &Remote<'_>, source: &Path, target: &str) -> Result<()> {
    let mut script = String::new();
    if let Some((directory, _)) = target.rsplit_once('/')
        && !directory.is_empty()
    {
        script = format!("mkdir -p {} && ", quoted(directory));
    }
    script.push_str(&format!("cat > {}", quoted(target)));
    let source = source.to_owned();
    let ended = remote
        .send(&["sh", "-c", &script], move |mut input: ChunkWriter| {
            let mut file = fs::File::open(&source)
                .with_context(|| format!("cannot read {}", source.display()))?;
            io::copy(&mut file, &mut input)?;
            Ok(input.flush()?)
        })
        .await?;
    match ended.status {
        ExitStatus::Code(0) => Ok(()),
        _ => Err(failure(&ended, "a shell")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_copy_names_the_missing_program_or_what_was_reported() {
        let ended = |status: ExitStatus, errors: &str| Ended {
            status,
            errors: errors.to_owned(),
        };
        let missing = ExitStatus::Failed("exec: \"cat\": executable file not found".to_owned());
        for (ended, expected) in [
            (
                ended(missing, ""),
                "the container has neither tar nor cat: ",
            ),
            (
                ended(ExitStatus::Code(127), "sh: cat: not found"),
                "the container has neither tar nor cat: ",
            ),
            (
                ended(ExitStatus::Code(1), "cat: /x: Permission denied\n"),
                "cat: /x: Permission denied",
            ),
            (
                ended(ExitStatus::Code(1), ""),
                "the copy failed in the container",
            ),
        ] {
            let shown = failure(&ended, "cat").to_string();
            assert!(shown.starts_with(expected), "{shown}");
        }
    }

    #[test]
    fn listed_files_stay_below_the_destination() {
        let target = |file| target_below(Path::new("out"), "/etc", file);
        assert_eq!(target("/etc/a/b").unwrap(), Path::new("out/a/b"));
        for file in ["/etc/../x", "/other/x", "/etc/a/../../x"] {
            assert!(target(file).is_err(), "{file}");
        }
    }
}
