//! Archives of tar, written and extracted as they are streamed.

use std::{
    fs,
    io::{self, Read, Write},
    os::unix::fs::PermissionsExt,
    path::{Component, Path, PathBuf},
};

use anyhow::{Context, Result, anyhow, bail};

use crate::error::io_reason;

/// Writes a file or a directory under this name.
pub(super) fn pack(into: impl Write, path: &Path, name: &str) -> Result<()> {
    let mut archive = tar::Builder::new(into);
    archive.follow_symlinks(false);
    // Only GNU tar extracts sparse entries.
    archive.sparse(false);
    match path.is_dir() {
        true => archive.append_dir_all(name, path)?,
        false => archive.append_path_with_name(path, name)?,
    }
    Ok(archive.into_inner()?.flush()?)
}

/// Extracts an archive's files below the destination, and nowhere else. The contents of a directory
/// go into the destination itself; a file goes into a destination that is a directory. The first
/// skipped link is reported with the hint.
pub(super) fn unpack(
    archive: impl Read,
    source: &str,
    destination: &Path,
    no_preserve: bool,
    hint: &str,
) -> Result<()> {
    let mut hint = Some(hint);
    let prefix: PathBuf = Path::new(source)
        .components()
        .filter(|part| matches!(part, Component::Normal(_)))
        .collect();
    let mut archive = tar::Archive::new(archive);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let clean: PathBuf = path
            .components()
            .filter(|part| !matches!(part, Component::RootDir | Component::CurDir))
            .collect();
        let Ok(inside) = clean.strip_prefix(&prefix) else {
            bail!("tar contents corrupted");
        };
        let is_below = inside
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        let target = match inside.as_os_str().is_empty() {
            true => destination.to_owned(),
            false => destination.join(inside),
        };
        if !is_below {
            let target = target.display().to_string();
            eprintln!("warning: file {target:?} is outside target destination, skipping");
            continue;
        }
        let kind = entry.header().entry_type();
        if kind.is_symlink() || kind.is_hard_link() {
            // A link could lead later files out of the destination.
            let link = entry.link_name()?.unwrap_or_default();
            eprintln!(
                "warning: skipping symlink: {:?} -> {:?}{}",
                target.display().to_string(),
                link.display().to_string(),
                hint.take().unwrap_or_default()
            );
        } else if kind.is_dir() {
            fs::create_dir_all(&target)?;
        } else if kind.is_file() || kind.is_gnu_sparse() || kind.is_contiguous() {
            let target = file_target(target, &prefix);
            let mode = entry.header().mode().ok().filter(|_| !no_preserve);
            write_file(&target, &mut entry, mode)?;
        }
    }
    // The end of the archive is padded.
    io::copy(&mut archive.into_inner(), &mut io::sink())?;
    Ok(())
}

/// A file goes into a directory of this name.
pub(super) fn file_target(target: PathBuf, source: &Path) -> PathBuf {
    match (target.is_dir(), source.file_name()) {
        (true, Some(name)) => target.join(name),
        _ => target,
    }
}

/// Writes a file, and the directories above it.
pub(super) fn write_file(target: &Path, from: &mut impl Read, mode: Option<u32>) -> Result<()> {
    let context = || format!("cannot write {}", target.display());
    let failed = |verb: &str, path: &Path, error: io::Error| {
        anyhow!("{verb} {}: {}", path.display(), io_reason(&error))
    };
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent).map_err(|error| failed("mkdir", parent, error))?;
    }
    let mut file = fs::File::create(target).map_err(|error| failed("open", target, error))?;
    io::copy(from, &mut file).with_context(context)?;
    if let Some(mode) = mode {
        // An existing file may have another owner.
        let _ = file.set_permissions(fs::Permissions::from_mode(mode & 0o777));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::pipe::{self, ChunkReader, ChunkWriter};
    use super::*;

    fn packed(path: &Path, name: &str) -> Vec<u8> {
        let mut archive = Vec::new();
        pack(&mut archive, path, name).unwrap();
        archive
    }

    #[test]
    fn archives_are_extracted_and_never_leave_their_directory() {
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("src");
        fs::create_dir_all(source.join("inner")).unwrap();
        fs::write(source.join("inner/file"), "text").unwrap();
        let archive = packed(&source, "data");
        let out = directory.path().join("out");
        unpack(archive.as_slice(), "/data", &out, false, "").unwrap();
        assert_eq!(fs::read_to_string(out.join("inner/file")).unwrap(), "text");

        let mut evil = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(1);
        header.as_gnu_mut().unwrap().name[..14].copy_from_slice(b"data/../../bad");
        header.set_cksum();
        evil.append(&header, &b"x"[..]).unwrap();
        let evil = evil.into_inner().unwrap();
        let _ = unpack(
            evil.as_slice(),
            "data",
            &directory.path().join("out2"),
            false,
            "",
        );
        assert!(!directory.path().join("bad").exists());
        assert!(!directory.path().parent().unwrap().join("bad").exists());
    }

    #[test]
    fn an_existing_directory_gets_a_file_by_its_name_and_the_contents_of_a_directory() {
        let directory = tempfile::tempdir().unwrap();
        let (source, out) = (directory.path().join("src"), directory.path().join("out"));
        fs::create_dir_all(&source).unwrap();
        fs::create_dir_all(&out).unwrap();
        fs::write(source.join("file"), "text").unwrap();
        unpack(
            packed(&source, "etc/src").as_slice(),
            "/etc/src",
            &out,
            false,
            "",
        )
        .unwrap();
        assert!(out.join("file").is_file() && !out.join("src").exists());
        let file = packed(&source.join("file"), "etc/other");
        unpack(file.as_slice(), "/etc/other", &out, false, "").unwrap();
        assert!(out.join("other").is_file());
    }

    #[test]
    fn an_archive_cut_off_in_a_file_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("file");
        fs::write(&source, vec![7; 10_000]).unwrap();
        let archive = packed(&source, "file");
        let out = directory.path().join("out");
        assert!(unpack(&archive[..6_000], "file", &out, false, "").is_err());
    }

    #[test]
    fn a_large_file_passes_through_a_small_pipe() {
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("large");
        let size = 64 << 20;
        fs::File::create(&source).unwrap().set_len(size).unwrap();
        let (sender, receiver) = pipe::chunks();
        let packing =
            std::thread::spawn(move || pack(ChunkWriter::new(sender), &source, "large").unwrap());
        let out = directory.path().join("out");
        unpack(ChunkReader::new(receiver), "large", &out, false, "").unwrap();
        packing.join().unwrap();
        assert_eq!(fs::metadata(out).unwrap().len(), size);
    }
}
